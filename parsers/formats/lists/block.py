"""A block of calls: from its start marker to behind its end marker, however it is written.

Finds the list and its elements, and keeps what is no call. What an element looks like is the business of
`pythonic` and `literals.object_call`; where a broken one ends, that of `literals.block`.
"""

from __future__ import annotations

from collections.abc import Generator

from ...dialect import Context
from ...engine.driver import Call
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.writer import NAME
from ...events import Reason
from ...literals.block import LiteralBlock
from ...literals.object_call import JsonCall, ObjectShape
from .pythonic import PythonicCall

_OBJECT = ObjectShape(loose=False)


class ListBlock(LiteralBlock):
    """Reads one block. `source.pos` is at the start marker when `read` begins."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._body = self.start
        self._torn_name = False  # the last element may be the beginning of the next one's name

    def read(self) -> Reading:
        """Read the block and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len((yield from source.marker()))
        self._body = source.offset
        yield from self.opening()
        if (yield from self.elements()):
            yield from self.close()
        source.keep_from(None)

    # -- the list -------------------------------------------------------------------------------------

    def elements(self) -> Generator[None, None, bool]:
        """Read the calls; True when the list was closed, False when the block is over without that."""
        source = self.source
        while True:
            char = yield from source.space()
            if char == "]":
                source.pos += 1
                return True
            if char == ",":
                source.pos += 1
            elif not char or (yield from self.at_terminator()):
                return (yield from self.broken_off())
            elif self.bracketed or not (yield from self.closing_fence()):
                yield from self.element(char)

    def element(self, char: str) -> Reading:
        """Read one element of the list, and look at what follows it."""
        source = self.source
        self.emit.markup(source.offset)
        start = source.offset
        call = self.call_at(char)
        call.writer.only_declared |= self._torn_name  # `[get_wea,her(...)]` has no call [torn-string]
        read = yield from self.read_call(call, start)
        self._torn_name = not read and NAME.fullmatch(source.since(start).strip()) is not None

    def call_at(self, char: str) -> Call:
        """A reader for the element that begins with `char`."""
        if char == "{":
            return JsonCall(self.context, self.span, self.follows_call, _OBJECT)
        return PythonicCall(self.context, self.span, self.follows_call)

    def confirm(self) -> Reading:
        """A call is complete once a separator, the end of the list or a marker follows [call-is-whole]."""
        source = self.source
        start = source.offset
        char = yield from source.space()
        if char == "," and (yield from self._goes_on()):
            raise Fault(Reason.SYNTAX)
        if char in (",", "]"):
            return
        if not char or source.cut_marker(self.span.close) or (yield from self.at_marker(self.ends)):
            raise Fault(Reason.TRUNCATED, balanced=False)
        if (yield from self.at_terminator()):
            return
        if self.bracketed or "\n" not in source.since(start):
            raise Fault(Reason.SYNTAX, balanced=False)

    def _goes_on(self) -> Generator[None, None, bool]:
        """Whether the bracket came too early, since an argument follows: `f(a=1), b=2)` [closed-early]."""
        source, writer = self.source, self.writer
        if writer.tool is None:
            return False
        start = source.offset
        source.pos += 1
        yield from source.space()
        name = yield from source.run(NAME)
        goes_on = (yield from source.space()) == "=" and name in writer.tool.types
        source.rewind(start)
        return goes_on and name not in writer.arguments

    # -- the end --------------------------------------------------------------------------------------

    def broken_off(self) -> Generator[None, None, bool]:
        """The block ends at a marker or with the output, its list still open or never opened."""
        source = self.source
        start = source.offset
        if (yield from self.at_marker((self.span.close,))):
            if not self.bracketed or self.kept:
                self.bracketed = False
                return True
            text = source.since(self._body)
            source.pos += len(self.span.close)
            self.emit.malformed(source.since(self.start), Reason.UNCLOSED, source.offset)
            yield from self._echoes(text)
        elif not self.kept:
            reached = yield from self.at_marker((self.span.open,))
            reason = Reason.UNCLOSED if reached else Reason.TRUNCATED
            self.emit.malformed(source.since(self.start), reason, start)
        return False

    def close(self) -> Reading:
        """The list is closed: read the end marker, or say that it is missing [missing-end]."""
        source = self.source
        end = source.offset
        yield from self.closing_fence()
        char = yield from source.space()
        if (yield from self.at_marker((self.span.close,))):
            text = source.since(self._body)
            source.pos += len(self.span.close)
            self.emit.markup(source.offset)
            yield from self._echoes(text)
        elif not char or (yield from self.at_marker(self.ends)):
            self.emit.markup(source.offset)
        elif source.cut_marker(self.span.close):
            source.pos = len(source.text)
            self.emit.markup(source.offset)
        else:
            source.rewind(end)
            self.emit.markup(end)
            self.emit.malformed("", Reason.MISSING_END, end)

    def _echoes(self, body: str) -> Reading:
        """Copies of the body behind the end marker, each closed once more, are no calls [echo]."""
        source = self.source
        start = source.offset
        while body and (yield from self._repeats(body)) and (yield from self.at_marker((self.span.close,))):
            source.pos += len(self.span.close)
            self.emit.malformed(source.since(start), Reason.ECHO, source.offset)
            start = source.offset
        source.rewind(start)

    def _repeats(self, body: str) -> Generator[None, None, bool]:
        source = self.source
        done = 0
        while done < len(body):
            if not (yield from source.char()):
                return False
            piece = source.text[source.pos : source.pos + len(body) - done]
            if not body.startswith(piece, done):
                return False
            done += len(piece)
            source.pos += len(piece)
        return True
