"""What may follow a string: whether the quote at hand closes it is decided by that alone (policy 26).

Everything here reads ahead and leaves going back to its caller, so one rule serves however the output is cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from parsers.events import Reason
from parsers.grammars.faults import Fault
from parsers.grammars.frames import CLOSERS, Frame
from parsers.grammars.skipping import QUOTES, Passed, pass_literal
from parsers.grammars.strings import PREFIXES
from parsers.grammars.words import literal
from parsers.source import Source
from parsers.spans import Span

WORD = re.compile(r"[^\s,()\[\]{}:'\"=<*`]*")
SIGNS = ("+", "-")

PREFIX_LETTERS = frozenset("rufRUF")
"""With which a further literal may begin; bytes cannot be joined to text."""


class Following:
    """Knows the open brackets, and so what fits behind a closing quote.

    Subclasses know what fits outside all brackets.
    """

    def __init__(self, source: Source, span: Span) -> None:
        self.source = source
        self.span = span
        self.frames: list[Frame] = []
        self.adjacent_until = -1  # closing quotes up to this offset belong to a chain of adjacent literals

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what comes next fits behind a complete value outside all brackets of that value."""
        raise NotImplementedError

    def fits_after(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what comes next shows that the quote just read closes its string.

        `inner`: the string holds unescaped quotes already.
        """
        if self.source.offset <= self.adjacent_until:
            return True
        char = self.source.ready() or (yield from self.source.space())
        if not char:
            return True  # the output ends here: nothing can contradict
        if not inner and (char in QUOTES or char in PREFIX_LETTERS):
            start = self.source.offset
            if (yield from self._adjacent()):
                return True
            self.source.rewind(start)
        return (yield from self._fits(inner))

    def _adjacent(self) -> Generator[None, None, bool]:
        """Whether more literals follow, each complete, the last up to a quote that fits."""
        source = self.source
        while True:
            word = yield from source.run(WORD)
            text = not word or (word.lower() in PREFIXES and word[0] in PREFIX_LETTERS)
            if (yield from source.char()) not in QUOTES or not text:
                return False
            passed = yield from pass_literal(source, self.span)
            after = source.offset
            if passed is Passed.OUTPUT_ENDED or (passed is Passed.CLOSED and (yield from self._fits(False))):
                self.adjacent_until = after
                return True
            if passed is Passed.CUT:
                return False
            source.rewind(after)
            yield from source.space()

    def _fits(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what follows fits the innermost bracket, or closes it and fits the next one out."""
        source = self.source
        grouped = True  # only grouping parentheses so far: `{('a'): 1}`
        for frame in reversed(self.frames):
            char = source.ready() or (yield from source.space())
            if not char:
                return True
            if grouped and frame.expects_key:
                if char == ":":
                    return True
                if frame.keys:
                    return False
            if char == ",":
                source.pos += 1
                return (yield from self._starts_item(frame))
            if char != frame.closer:
                return False
            grouped = grouped and frame.groups
            source.pos += 1
        return (yield from self.follows(inner))

    def _starts_item(self, frame: Frame) -> Generator[None, None, bool]:
        source = self.source
        char = source.ready() or (yield from source.space())
        if char in ("", frame.closer, *QUOTES) or (char in CLOSERS and not frame.keys):
            return True
        word = yield from source.run(WORD)
        if word in SIGNS:
            yield from source.space()
            word += yield from source.run(WORD)
        if not (follower := (yield from source.char())):
            return True
        if follower in QUOTES:
            return word.lower() in PREFIXES
        try:
            literal(word or "?")
        except Fault as fault:
            return fault.reason is not Reason.NOT_A_LITERAL  # too large a number is one all the same
        return True
