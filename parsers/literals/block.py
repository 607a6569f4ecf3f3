"""A block of calls whose values are literals: where it may end, and where a call in it ends that is broken.

Its brackets and quotes show where, so that the calls behind it survive. Which calls a block holds, and how
they follow one another, is the business of the formats.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ..dialect import Context
from ..engine.driver import PREMATURE, Block, Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.writer import NAME
from ..events import Reason
from .skipping import QUOTES, Passed, pass_literal
from .values import CLOSERS

_FENCE = "```"
_INFO = re.compile(r"[^\n\[{(<]*")
_BOUNDS = ("", *",;)]}`<")  # a tag, too, even of another format
_CLOSED = re.compile(r"[\s}\]]*")
_BLANK = re.compile(r"[ \t\r]*")
_NO_BRACKET = re.compile(r"[^()\[\]{}'\"<,\n]*")


class LiteralBlock(Block):
    """Knows the ends of a block. Subclasses read the calls in it."""

    bracketed = False
    """Whether the calls stand in brackets; elsewhere a line end separates two of them."""
    kept = False
    """Whether a call that broke was kept up to the end of the block, and that says it all."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.ends = context.dialect.ends
        """The markers that end any block."""

    # -- where a block may end ------------------------------------------------------------------------

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `markers` comes next."""
        if (yield from self.source.char()) == "":
            return False
        return (yield from self.source.marker()) in markers

    def at_terminator(self) -> Generator[None, None, bool]:
        """Whether a marker comes next that ends a block: one of its own two, or the turn's end."""
        return (yield from self.at_marker((self.span.open, self.span.close, *self.ends)))

    def ends_here(self) -> Generator[None, None, bool]:
        """Whether nothing but a fence stands between here and the end of the block."""
        yield from self.closing_fence()
        yield from self.source.space()
        return (yield from self.may_end())

    def may_end(self) -> Generator[None, None, bool]:
        """Whether a block may end here: at a marker or with the output, even in its end marker [cut-end]."""
        ends = yield from self.at_terminator()
        return ends or self.source.cut_marker(self.span.close)

    def bounded(self, goes_on: tuple[str, ...] = (*QUOTES, ":")) -> Reading:
        """Look at what follows an object. Raises Fault where that is more of it [closed-early].

        Such an object has been closed too early: `{"area": "San Jose"}intent": "rent"}`. `goes_on`: what
        never stands behind a whole one, over white space and brackets.
        """
        source = self.source
        end = source.offset
        char = yield from source.char()
        early = not (char in _BOUNDS or char.isspace() or (yield from source.marker()))
        if early and any(map(source.cut_marker, self.context.dialect.markers)):
            return
        yield from source.run(_CLOSED)
        early = early or (yield from source.char()) in goes_on
        source.rewind(end)
        if early:
            raise Fault(Reason.SYNTAX, balanced=False, final=True)

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Whether what comes next fits behind a whole call. Reads ahead; the caller goes back.

        `inner`: a string of the call holds unescaped quotes, so that `)]` may be text as well: it only
        counts where the block ends [inner-quote]. `opener`: what the next call of the same notation opens
        with, "(" behind its name or "{".
        """
        source = self.source
        start = source.offset
        char = yield from source.space()
        if (yield from self.may_end()):
            return True
        if char == "]":
            source.pos += 1
            return not inner or (yield from self.ends_here())
        if char == ",":
            source.pos += 1
            char = yield from source.space()
            if char == "]":
                return True
        elif "\n" not in source.since(start):
            return False
        elif char == "`":
            return (yield from self.ends_here())
        if char == "" or opener == "{":
            return char in ("", "{")
        name = yield from source.run(NAME)
        follower = yield from source.space()
        return not follower or (name != "" and follower == "(")

    def surplus(self, brackets: re.Pattern[str]) -> Reading:
        """Keep brackets that close nothing, which are no text: `{"arguments": {}}}` is a frequent slip."""
        start = self.source.offset
        yield from self.source.run(brackets)
        if self.source.offset > start:
            self.emit.malformed(self.source.since(start), Reason.SYNTAX, self.source.offset)

    # -- what opens a list, and Markdown fences --------------------------------------------------------

    def opening(self) -> Reading:
        """Read a fence and the bracket in front of the calls, where they have one."""
        yield from self.opening_fence()
        self.bracketed = (yield from self.source.space()) == "["
        self.source.pos += self.bracketed

    def opening_fence(self) -> Reading:
        """Read a Markdown fence to the end of its line, or up to the list if that is on the same line."""
        source = self.source
        if not (yield from self._backquotes()):
            return
        start = source.offset
        yield from source.run(_INFO)
        if (yield from source.char()) == "(":
            source.rewind(start)  # what looks like a language is the name of a call

    def closing_fence(self) -> Generator[None, None, bool]:
        """Read a Markdown fence if one comes next, with nothing behind it on its line."""
        source = self.source
        yield from source.space()
        start = source.offset
        if (yield from self._backquotes()):
            yield from source.run(_BLANK)
            if (yield from source.char()) == "\n" or (yield from self.may_end()):
                return True
            source.rewind(start)
        return False

    def _backquotes(self) -> Generator[None, None, bool]:
        source = self.source
        yield from source.space()
        start = source.offset
        for character in _FENCE:
            if (yield from source.char()) != character:
                source.rewind(start)
                return False
            source.pos += 1
        return True

    # -- behind a fault -------------------------------------------------------------------------------

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to what follows the element, or to what ends the block."""
        source = self.source
        premature = fault.reason in PREMATURE and not fault.final
        reason = fault.reason
        if premature and (yield from self.at_terminator()):
            reason = Reason.TRUNCATED if (yield from self.at_marker(self.ends)) else Reason.UNCLOSED
        if not (fault.balanced and (yield from self.skip_element(call.closers()))):
            yield from self.skip_to_terminator()
            self.kept = True
            if premature and not (yield from source.char()):
                reason = Reason.TRUNCATED
        return reason

    def skip_to_terminator(self) -> Reading:
        """Pass over everything up to the marker that ends the block."""
        source = self.source
        while True:
            yield from source.run(source.unmarked)
            if not (yield from source.char()) or (yield from self.at_terminator()):
                return
            source.pos += 1

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """Skip the rest of a faulty element by its brackets and quotes.

        True at the separator or the end of the list behind it; False when it cannot be found, at a
        position from which the next marker counts.
        """
        return (yield from self.skip_brackets(closers, own=False))

    def skip_brackets(self, closers: list[str], *, own: bool) -> Generator[None, None, bool]:
        """Skip the rest of an element, as `skip_element`; with `own` only to behind its own brackets."""
        source = self.source
        while closers or not own:
            yield from source.run(_NO_BRACKET)
            char = yield from source.char()
            if not char or (char in source.starts and (yield from self.at_terminator())):
                return False
            if not closers and (char in ",]" or (char == "\n" and not self.bracketed)):
                return True
            if char in CLOSERS:
                closers.append(CLOSERS[char])
            elif char in ")]}" and (not closers or closers.pop() != char):
                return False
            if char not in QUOTES:
                source.pos += 1
            elif (yield from pass_literal(source, self.span)) is not Passed.CLOSED:
                return False
        return True
