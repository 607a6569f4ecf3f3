"""Blocks of calls as a name and pairs: one call each, or several between markers of their own."""

from __future__ import annotations

from collections.abc import Generator

from ...dialect import Context
from ...engine.driver import Call, CallBlock, FramedBlock
from ...engine.faults import Fault
from ...engine.source import Reading, Source
from ...engine.spans import Span
from ...engine.writer import NAME
from ...events import Reason
from ...literals.raw import stops_at
from .call import PairsCall
from .shape import PairShape


class PairsBlock(CallBlock):
    """Reads one block, which is one call. `source.pos` is at its marker."""

    def __init__(self, context: Context, shape: PairShape) -> None:
        super().__init__(context)
        self._shape = shape

    def confirm(self) -> Reading:
        """Raise Fault if more of the call follows."""
        return _not_cut(self.source, self._shape)

    def call(self) -> PairsCall:
        """A reader for the call."""
        return PairsCall(self.context, self.span, self._shape)


def _not_cut(source: Source, shape: PairShape) -> Reading:
    """Raise Fault if a key and its closing tag follow the end of a call, which stands for the key's tag."""
    end = source.offset
    key = yield from source.run(NAME)
    cut = key != "" and (yield from source.ahead((shape.key_end,))) != ""
    source.rewind(end)
    if cut:
        raise Fault(Reason.SYNTAX, final=True)


class PairsSection(FramedBlock):
    """A block of several calls, each between markers of its own. Some models leave out the block's."""

    def __init__(self, context: Context, call: Span, shape: PairShape) -> None:
        """`call`: the markers around one call."""
        super().__init__(context)
        self._shape = shape
        self._call = call
        self.call_end = call.close
        self._stops = stops_at((*call.markers, *self.span.markers, *context.dialect.ends))

    def confirm(self) -> Reading:
        """Raise Fault if more of the call follows."""
        return _not_cut(self.source, self._shape)

    def call(self) -> PairsCall:
        """A reader for the next call, its markers included."""
        return PairsCall(self.context, self._call, self._shape, opened=False)

    def begins(self) -> Generator[None, None, bool]:
        """Whether the marker of a call comes next, or its beginning at the end of the output."""
        return (yield from self.source.ahead((self._call.open,))) != "" or self.cut(self._call.open)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to the next marker, behind it if it closes the call."""
        end = yield from self._stops.skip(self.source)
        if end == self.call_end:
            self.source.pos += len(end)
            return fault.reason
        return Reason.TRUNCATED if not end or end in self.context.dialect.ends else Reason.UNCLOSED
