"""A block of calls that are JSON objects: one of them, several, or a list.

An object is complete with its own brace, whatever comes next, and nothing else is a call. Where the end of
the output stands in for the end marker, nothing is amiss, since end markers are often stop tokens, which are
not printed.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ...dialect import Context
from ...engine.driver import Call
from ...engine.source import Reading
from ...events import Reason
from ...literals.block import LiteralBlock
from ...literals.object_call import NAMED, JsonCall, ObjectShape

_CLOSERS = ")]}"
_SURPLUS = re.compile(r"[)\]}]*")
_SURPLUS_IN_LIST = re.compile(r"[)}]*")


class JsonBlock(LiteralBlock):
    """Reads one block. `source.pos` is at its marker when `read` begins."""

    separators = ","
    """What may stand between two objects, besides white space."""

    def __init__(self, context: Context, shape: ObjectShape = NAMED) -> None:
        super().__init__(context)
        self._shape = shape
        dialect = context.dialect
        answers = (marker for span in dialect.answers for marker in (span.open, span.close))
        self.ends = (*self.ends, *answers, *dialect.slips)
        self._after: int | None = None  # behind the last object that was read or kept

    def read(self) -> Reading:
        """Read the block and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len((yield from source.marker()))
        yield from self.opening()
        if (yield from self.elements()):
            yield from self.close()
        source.keep_from(None)

    def elements(self) -> Generator[None, None, bool]:
        """Read the calls; True when they are followed by the end of the block, or by what ends it."""
        source = self.source
        while True:
            char = yield from source.space()
            if not char or (yield from self.at_terminator()) or source.cut_marker(self.span.close):
                return (yield from self.broken_off())
            if char == "]" and self.bracketed:
                source.pos += 1
                self._after = source.offset
                return True
            if char in self.separators:
                source.pos += 1
            elif char in _CLOSERS and self._after is not None:
                self.emit.markup(source.offset)
                yield from self.surplus(_SURPLUS_IN_LIST if self.bracketed else _SURPLUS)
                self._after = source.offset
            elif self.bracketed or self._after is None or (yield from self.is_element(char)):
                yield from self.element(char)
                self._after = source.offset
            elif not (yield from self.closing_fence()):
                return True

    def is_element(self, char: str) -> Generator[None, None, bool]:
        """Whether a call begins here, with `char`."""
        return char == "{"
        yield

    def element(self, char: str) -> Reading:
        """Read an object. Anything else is kept, up to where one can begin."""
        is_call = yield from self.is_element(char)
        self.emit.markup(self.source.offset)
        start = self.source.offset
        if is_call:
            yield from self.read_call(self.call_at(char), start)
            return
        self.faulty = True
        yield from self._skip_garbage()
        self.emit.malformed(self.source.since(start), Reason.NOT_A_CALL, self.source.offset)

    def call_at(self, char: str) -> Call:
        """A reader for the call that begins with `char`."""
        return JsonCall(self.context, self.span, self.follows_call, self._shape)

    def _skip_garbage(self) -> Reading:
        """Skip what is no call: an item of the list, or everything up to a line that is an object."""
        source = self.source
        while (yield from self.skip_brackets([], own=False)):
            line_ended = (yield from source.char()) == "\n"
            if self.bracketed or (line_ended and (yield from source.space()) == "{"):
                return
            if not line_ended:
                source.pos += 1
        yield from self.skip_to_terminator()
        self.kept = True

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """Skip the rest of a faulty object, which ends with its own brackets, too."""
        own = (yield from self.source.char()) != ""
        return (yield from self.skip_brackets(closers, own=own))

    def confirm(self) -> Reading:
        """An object is complete with its own brace, unless that was one too early.

        The comma between two objects of a list may be missing.
        """
        if (yield from self.source.char()) != "{":
            yield from self.bounded()
        elif self.bracketed:
            self.writer.repaired = True

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Anything may follow, unless unescaped quotes make it doubtful which brace ends the object."""
        return not inner or (yield from super().follows_call(inner, opener))

    def broken_off(self) -> Generator[None, None, bool]:
        """The block ends at a marker or with the output, and its list is open or was never opened."""
        source = self.source
        closed = (yield from self.at_marker((self.span.close,))) and self.span.close not in self.ends
        if self._after is not None and not (closed and self.bracketed and not self.kept):
            return True
        if closed:
            source.pos += len(self.span.close)
            reason = Reason.UNCLOSED if self.bracketed else Reason.NOT_A_CALL
        else:
            reopened = yield from self.at_marker((self.span.open,))
            reason = Reason.UNCLOSED if reopened else Reason.TRUNCATED
            if source.cut_marker(self.span.close):
                source.pos = len(source.text)
        self.emit.malformed(source.since(self.start), reason, source.offset)
        return False

    def close(self) -> Reading:
        """Read the end marker. Text in its place is content, and shows that it is missing."""
        source = self.source
        assert self._after is not None
        yield from self.closing_fence()
        char = yield from source.space()
        if (yield from self.at_marker((self.span.close,))):
            source.pos += len(self.span.close)
        elif source.cut_marker(self.span.close):
            source.pos = len(source.text)
        elif char and not (yield from self.at_marker((self.span.open, *self.ends))):
            source.rewind(self._after)
            self.emit.markup(self._after)
            if self.span.close not in self.ends:
                self.emit.malformed("", Reason.MISSING_END, self._after)
            return
        self.emit.markup(source.offset)
