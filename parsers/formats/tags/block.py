"""A block of calls as tags, or such a call without a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cache

from ...dialect import Context
from ...engine.driver import Call, FramedBlock
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import Span
from ...engine.tools import Tool
from ...events import Reason
from ...literals.raw import Ends, stops_at
from .call import TagCall, begins_call
from .shape import FUNCTION, Shape

# Bounded, since text that may be a beginning is looked at again with each piece of output.
_BLANKS = re.compile(r"[ \t\r\n]{0,64}")


class TagBlock(FramedBlock):
    """Reads one block of calls, or calls without one."""

    def __init__(self, context: Context, shape: Shape = FUNCTION) -> None:
        super().__init__(context)
        self.shape = shape
        self.call_end = shape.call_end
        self._is_whole = False  # the last thing in the block is a call
        self._stops, self._far_stops = _stops_of(shape, self.span, context.dialect.ends)

    def read(self) -> Reading:
        """Read the block. A tag that no marker announces begins a call only if it goes on like one."""
        if opener := (yield from self.source.ahead((self.span.open, *self.shape.alias(self.span.open)))):
            self.span = replace(self.span, open=opener)
            yield from super().read()
            yield from self._second_marker()
            return
        self.source.keep_from(self.start)
        if (yield from self.read_lone_call()):
            yield from self._late_marker()
            yield from self._second_marker()
        self.source.keep_from(None)

    def read_call(self, call: Call, start: int) -> Generator[None, None, bool]:
        """Closing tags behind the call's own are markup: Qwen3.6 writes them twice [repeated-closer]."""
        source = self.source
        self._is_whole = yield from super().read_call(call, start)
        while self._is_whole and self.shape.strays:
            end = source.offset
            yield from source.space()
            rest = source.text[source.pos :]
            if (yield from source.either(self.shape.strays)):
                self.emit.markup(source.offset)
            elif source.ended and rest and any(stray.startswith(rest) for stray in self.shape.strays):
                source.pos = len(source.text)
                self.emit.markup(source.offset)
            else:
                source.rewind(end)
                break
        return self._is_whole

    def _second_marker(self) -> Reading:
        """Read a second end marker behind a whole call, or closing tags [repeated-closer]."""
        ends = (self.span.close, *self.shape.strays) if self._is_whole and self.shape.strays else ()
        while (yield from self.source.either(tuple(space + end for end in ends for space in ("", "\n")))):
            self.emit.markup(self.source.offset)

    def read_lone_call(self) -> Generator[None, None, bool]:
        """Read a call that no marker announces, if its tag begins one: text may speak of such tags."""
        source = self.source
        marker = yield from source.marker()
        yield from source.either((self.shape.call, *self.shape.alias(self.shape.call)))
        begins = (yield from begins_call(source, self.shape)) and self.emit.before != "`"  # a mention
        source.rewind(self.start)
        if begins:
            self.emit.markup(source.offset)
            yield from self.read_call(self.call(), self.start)
        elif marker:
            source.pos += len(marker)
            self.emit.malformed(marker, Reason.NOT_A_CALL, source.offset)
        return begins

    def _late_marker(self) -> Reading:
        """Read the end marker behind a call that had none in front; anything else is left."""
        source, span = self.source, self.span
        end = source.offset
        char = yield from source.space()
        if (yield from source.either((span.close,))):
            self.emit.markup(source.offset)
        elif char and source.cut_marker(span.close):
            source.pos = len(source.text)
            self.emit.markup(source.offset)
        else:
            source.rewind(end)

    def call(self) -> TagCall:
        """A reader for the call that comes next."""
        return TagCall(self.context, self.shape)

    def begins(self) -> Generator[None, None, bool]:
        """Whether the tag of a call comes next, or its beginning at the end of the output."""
        tags = (self.shape.call, *self.shape.alias(self.shape.call))
        return (yield from self.source.ahead(tags)) != "" or any(map(self.cut, tags))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to the next tag of a call or a marker. Where tags cannot be trusted, only a marker counts."""
        stops = self._stops if fault.balanced else self._far_stops
        end = yield from stops.skip(self.source)
        if end == self.call_end:
            self.source.pos += len(end)
        if not end or end in self.context.dialect.ends:
            return Reason.TRUNCATED  # there is no telling how it would have gone on
        return fault.reason


class LoneTagBlock(TagBlock):
    """A call that stands between no markers but its own tags."""

    def read(self) -> Reading:
        """Read the call, behind which nothing belongs to it."""
        self.source.keep_from(self.start)
        yield from self.read_lone_call()
        self.source.keep_from(None)


class TagOpening:
    """Where a call of a declared tool begins with its tag alone, in formats whose calls stand in blocks."""

    def __init__(self, shape: Shape, tools: Mapping[str, Tool]) -> None:
        self._shape = shape
        self.first = shape.call[0]
        names = "|".join(map(re.escape, sorted(tools, key=len, reverse=True)))
        self._call = re.compile(
            rf"{re.escape(shape.call)}([\"']?)(?:{names})\1>{_BLANKS.pattern}(?:\{{|{re.escape(shape.parameter)})"
        )
        self._tags = [f"{shape.call}{mark}{name}{mark}>" for name in tools for mark in ("", "'", '"')]
        self._longest = max(map(len, self._tags))

    def at(self, text: str, index: int) -> bool | None:
        """Whether such a call begins at `index`; None while more text may make it so."""
        if self._call.match(text, index):
            return True
        rest = text[index : index + self._longest]
        for tag in self._tags:
            if tag.startswith(rest):
                return None
            if rest.startswith(tag):
                behind = _BLANKS.match(text, index + len(tag)).end()  # type: ignore[union-attr]
                return None if self._shape.parameter.startswith(text[behind:]) else False
        return False

    def read(self, context: Context) -> Reading:
        """Read the call, unless it is only mentioned: behind a backquote it is content."""
        if context.emit.before != "`":
            yield from TagBlock(context, self._shape).read()


def opening_of(shape: Shape) -> Callable[[Mapping[str, Tool]], TagOpening | None]:
    """Where a call may begin without its block, if there are tools: some models forget it [loose-tags]."""

    def opening(tools: Mapping[str, Tool]) -> TagOpening | None:
        return TagOpening(shape, tools) if tools else None

    return opening


functions_of_tools = opening_of(FUNCTION)
"""Where `<function=f>` may begin one."""


@cache
def _stops_of(shape: Shape, span: Span, ends: tuple[str, ...]) -> tuple[Ends, Ends]:
    """Where a broken call ends: at its closing tag, or at what cannot be in it.

    The second are for calls whose tags cannot be trusted, since one may quote another: only a marker ends
    those, so that nothing quoted is executed.
    """
    outer = (span.close, span.open, *shape.alias(span.open), *ends)
    markers = [marker for marker in outer if not marker.startswith(shape.call)]
    calls = (shape.call_end, shape.call, *shape.alias(shape.call))
    return stops_at((*calls, *markers)), stops_at((*markers,))
