"""Events folded into ordered parts, and into the segments that show where everything came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from .events import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Fits,
    Malformed,
    Markup,
    Reason,
    Reasoning,
    Text,
)


@dataclass(frozen=True, slots=True)
class TextPart:
    """Content without interruption."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Reasoning without interruption."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A complete call. `arguments_text` is the streamed JSON text, equal to `arguments`."""

    name: str
    arguments: dict[str, Any]
    arguments_text: str
    repaired: bool
    fits: Fits = None


@dataclass(frozen=True, slots=True)
class MalformedPart:
    """Output kept because it is no call; the fields of the Malformed event."""

    raw: str
    reason: Reason
    name: str | None
    partial: dict[str, Any]


Part = TextPart | ReasoningPart | CallPart | MalformedPart

SegmentKind = Literal["text", "reasoning", "call", "malformed", "markup"]
Segment = tuple[SegmentKind, int, int]


class Collector:
    """The fold itself, one event at a time, for those who stream."""

    def __init__(self) -> None:
        self._done: list[Part] = []
        self._kind: type[TextPart] | type[ReasoningPart] = TextPart
        self._text: list[str] = []
        self._json: list[str] = []

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in the order the model wrote them."""
        open_text = [self._kind("".join(self._text))] if self._text else []
        return [*self._done, *open_text]

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Text(text=text):
                self._add_text(TextPart, text)
            case Reasoning(text=text):
                self._add_text(ReasoningPart, text)
            case CallStart():
                self._json.clear()
            case ArgumentsDelta(json=json):
                self._json.append(json)
            case CallEnd(name=name, arguments=arguments, repaired=repaired):
                self._add_part(CallPart(name, arguments, "".join(self._json), repaired, event.fits))
            case Malformed(raw=raw, reason=reason, name=name, partial=partial):
                self._add_part(MalformedPart(raw, reason, name, partial))
            case ArgumentEnd() | Markup():
                pass
            case _:
                assert_never(event)

    def _add_text(self, kind: type[TextPart] | type[ReasoningPart], text: str) -> None:
        if kind is not self._kind:
            self._end_text()
            self._kind = kind
        self._text.append(text)

    def _add_part(self, part: Part) -> None:
        self._end_text()
        self._done.append(part)

    def _end_text(self) -> None:
        if self._text:
            self._done.append(self._kind("".join(self._text)))
            self._text.clear()


def collect(events: Iterable[Event]) -> list[Part]:
    """The parts of a turn, in the order the model wrote them."""
    collector = Collector()
    for event in events:
        collector.add(event)
    return collector.parts


def segments(events: Iterable[Event]) -> list[Segment]:
    """What every stretch of the raw output was read as: (kind, start, end), tiling it from 0 to its end.

    The events of a call that failed count as malformed. Neighbours of one kind are one segment, except
    that every call stands alone.
    """
    events = list(events)
    failed = {event.index for event in events if isinstance(event, Malformed) and event.index is not None}
    merged: list[tuple[SegmentKind, int | None, int, int]] = []
    for kind, call, start, end in _spans(events, failed):
        if merged and merged[-1][:2] == (kind, call):
            merged[-1] = (kind, call, merged[-1][2], end)
        elif end > start:
            merged.append((kind, call, start, end))
    return [(kind, start, end) for kind, _, start, end in merged]


def _spans(events: list[Event], failed: set[int]) -> Iterator[tuple[SegmentKind, int | None, int, int]]:
    for event in events:
        kind: SegmentKind
        call: int | None = None
        match event:
            case Text():
                kind = "text"
            case Reasoning():
                kind = "reasoning"
            case Markup():
                kind = "markup"
            case Malformed():
                kind, call = "malformed", event.index
            case CallStart() | ArgumentsDelta() | ArgumentEnd() | CallEnd():
                kind, call = ("malformed" if event.index in failed else "call"), event.index
            case _:
                assert_never(event)
        yield kind, call, event.start, event.end
