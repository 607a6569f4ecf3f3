"""What a dialect writes, and what it refuses to write."""

from __future__ import annotations

import enum
import math

import pytest

from parsers import DIALECTS, CallPart, collect
from tests.parsers.reading import read, whole

LFM2 = DIALECTS["lfm2"]


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Level(enum.IntEnum):
    HIGH = 3


class Measure(float):
    def __repr__(self) -> str:
        return "Measure()"


def test_calls_are_written_as_the_model_writes_them():
    calls = [
        ("get_weather", {"city": "Zürich", "days": 3, "max-age": None, "a b": [True, 1.5]}),
        ("ping", {}),
    ]
    assert LFM2.render(calls) == (
        '<|tool_call_start|>[get_weather(city="Zürich", days=3, max-age=None, **{"a b": [True, 1.5]}), ping()]'
        "<|tool_call_end|>"
    )
    assert LFM2.render(calls[:1], "json") == (
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "max-age": null, '
        '"a b": [true, 1.5]}}]<|tool_call_end|>'
    )
    assert LFM2.render([]) == LFM2.render([], "json") == ""


@pytest.mark.parametrize("marker", LFM2.markers)
def test_no_marker_stands_in_a_string(marker):
    calls = [("f", {"a": f"x{marker}y", "b": {marker: marker}})]
    text = LFM2.render(calls)
    assert text.count(marker) == (marker in (LFM2.calls.open, LFM2.calls.close))
    (part,) = collect(read("lfm2", whole(text)))
    assert isinstance(part, CallPart)
    assert (part.name, part.arguments) == calls[0]


@pytest.mark.parametrize("value", [Level.HIGH, Measure(1.5), (1, 2), nested(128)], ids=str)
def test_subclasses_and_depth_read_back(value):
    (part,) = collect(read("lfm2", whole(LFM2.render([("f", {"a": value})]))))
    assert part.arguments == {"a": list(value) if isinstance(value, tuple) else value}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("a b", {}), "no tool name"),
        (("", {}), "no tool name"),
        (("f", {"a": math.nan}), "no JSON form"),
        (("f", {"a": -math.inf}), "no JSON form"),
        (("f", {"a": {1, 2}}), "no JSON form"),
        (("f", {"a": b"x"}), "no JSON form"),
        (("f", {"a": "\ud800"}), "lone surrogate"),
        (("f", {"a": {1: 2}}), "keys are strings"),
        (("f", {1: 2}), "keys are strings"),
        (("f", {"a": nested(129)}), "128 deep"),
        (("f", {"a b": nested(128)}), "128 deep"),
        (("f", {"a": nested(5000)}), "128 deep"),
    ],
)  # fmt: skip
def test_what_no_call_can_hold_is_refused(call, says):
    for notation in LFM2.renderers:
        if notation == "json" and call[0] == "f" and list(call[1]) == ["a b"]:
            continue  # 128 deep is deep enough only behind an unpacked key
        with pytest.raises(ValueError, match=says):
            LFM2.render([call], notation)


def test_an_unknown_notation_is_refused():
    with pytest.raises(ValueError, match="pythonic, json"):
        LFM2.render([("f", {})], "xml")


def test_a_dialect_without_calls_writes_none():
    assert DIALECTS["plain"].render([]) == ""
    with pytest.raises(ValueError, match="no tool calls"):
        DIALECTS["plain"].render([("f", {})])
