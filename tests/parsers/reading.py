"""Ways to run a parser, and what every run must satisfy."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from parsers import (
    DIALECTS,
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallPart,
    CallStart,
    Event,
    Fits,
    Malformed,
    MalformedPart,
    Markup,
    MisfitKind,
    Reasoning,
    ReasoningPart,
    StreamParser,
    Text,
    TextPart,
    collect,
    misfits,
    segments,
)

Piece = tuple[str, bool | None]


def read(dialect: str, pieces: Iterable[Piece], finish: str = "stop", **options: Any) -> list[Event]:
    """All events of one turn."""
    parser = StreamParser(DIALECTS[dialect], **options)
    events = [event for text, special in pieces for event in parser.feed(text, special)]
    return [*events, *parser.close(finish)]  # type: ignore[arg-type]


def whole(text: str) -> list[Piece]:
    return [(text, None)]


def split(text: str, cuts: Iterable[int]) -> list[Piece]:
    """`text` cut at the offsets `cuts`."""
    edges = sorted({0, len(text), *(cut for cut in cuts if 0 < cut < len(text))})
    return [(text[a:b], None) for a, b in pairwise(edges)]


def characters(text: str) -> list[Piece]:
    return [(char, None) for char in text]


_GROWING = {Text: "text", Reasoning: "text", ArgumentsDelta: "json", Markup: ""}
"""The events of which neighbours make one, and the field in which they add up."""


def merged(events: Iterable[Event]) -> list[Event]:
    """Neighbouring deltas that differ in nothing else made one: what chunking must not change."""
    result: list[Event] = []
    for event in events:
        growing = _GROWING.get(type(event))
        if (
            growing is not None
            and result
            and type(last := result[-1]) is type(event)
            and last.end == event.start
        ):
            grown: dict[str, Any] = (
                {growing: getattr(last, growing) + getattr(event, growing)} if growing else {}
            )
            joined = replace(event, start=last.start, **grown)
            if joined == replace(last, end=event.end, **grown):
                result[-1] = joined
                continue
        result.append(event)
    return result


def exact(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Every field of every event as text, which tells 1, 1.0 and True apart; neighbouring deltas made one."""
    return [
        (type(event).__name__, *(f"{field.name}={getattr(event, field.name)!r}" for field in fields(event)))
        for event in merged(events)
    ]


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not strict JSON")


def check_tiling(raw: str, events: list[Event]) -> None:
    """Law 5: the spans of events and of segments tile `raw`, and what is kept is found there in `raw`.

    What is kept of a call begins where that began, or before it, and takes nothing from the call before.
    """
    position = call = over = 0
    for event in events:
        assert event.start == position, f"gap or overlap before {event}"
        assert event.end >= event.start
        position = event.end
        match event:
            case Text() | Reasoning():
                assert raw[event.start : event.end] == event.text
            case CallStart():
                call = event.start
            case CallEnd():
                over = event.end
            case Malformed():
                begin = event.end - len(event.raw)
                assert event.raw in raw
                if event.index is not None:
                    assert raw[begin : event.end] == event.raw
                    assert over <= begin <= call
                    over = event.end
    assert position == len(raw)
    edges = [(start, end) for _, start, end in segments(events)]
    assert [start for start, _ in edges] == [0, *(end for _, end in edges)][: len(edges)]
    assert not raw or edges[-1][1] == len(raw)
    for part in collect(events):
        match part:
            case MalformedPart():
                assert part.raw in raw
            case TextPart() | ReasoningPart():
                assert part.text


def check_calls(events: list[Event]) -> None:
    """Law 3, and that every call has one beginning and one end, in order."""
    for part in collect(events):
        if isinstance(part, CallPart):
            decoded = json.loads(part.arguments_text, parse_constant=no_constant)
            assert isinstance(decoded, dict)
            assert canonical([("", decoded)]) == canonical([("", part.arguments)])
            part.arguments_text.encode()  # no lone surrogate
    current: int | None = None
    for event in events:
        match event:
            case CallStart():
                assert current is None
                current = event.index
                told = dict[str | None, Fits]({None: event.fits})
            case ArgumentsDelta() | ArgumentEnd():
                assert event.index == current
                if isinstance(event, ArgumentEnd):
                    told[event.key] = event.fits
            case CallEnd() | Malformed() if event.index is not None:
                assert event.index == current
                current = None
                if isinstance(event, CallEnd):
                    before = [reason for fits in told.values() for reason in misfits(fits)]
                    last = misfits(event.fits)
                    assert last[: len(before)] == tuple(before[: len(last)])
                    assert {r.kind for r in last[len(before) :]} <= {MisfitKind.MISSING}
                    assert (event.fits is None) is (told[None] is None)
    assert current is None
    started = [event.index for event in events if isinstance(event, CallStart)]
    assert started == list(range(len(started)))


def check_run(raw: str, events: list[Event]) -> None:
    """Everything that holds for every run over `raw`."""
    check_tiling(raw, events)
    check_calls(events)


def calls_of(events: Iterable[Event]) -> list[tuple[str, dict[str, Any]]]:
    """The complete calls."""
    return [(event.name, event.arguments) for event in events if isinstance(event, CallEnd)]


def canonical(calls: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Calls in a form that tells 1, 1.0 and true apart, and disregards the order of keys."""
    return [f"{name} {json.dumps(arguments, sort_keys=True)}" for name, arguments in calls]


def outcome(events: list[Event]) -> dict[str, Any]:
    """What a case row states."""
    parts = collect(events)
    return {
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)),
        "reasoning": "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        "calls": [[part.name, part.arguments] for part in parts if isinstance(part, CallPart)],
        "malformed": [str(part.reason) for part in parts if isinstance(part, MalformedPart)],
    }
