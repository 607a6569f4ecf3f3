"""What a dialect writes, and what it refuses to write. That it reads back is a law: see `test_laws.py`."""

from __future__ import annotations

import enum
import json
import math
from pathlib import Path

import pytest

from parsers import DIALECTS, CallPart, collect
from parsers.events import MAX_DEPTH
from tests.parsers.outputs import CALLING, declaring
from tests.parsers.reading import calls_of, canonical, read, whole

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


EVERY_TYPE = [
    ("get_weather", {"city": "Zürich", "days": 3, "exact": True, "places": ["a", "b\n"], "at": {"x": 1.5, "y": None}}),
    ("ping", {}),
]  # fmt: skip
WRITTEN = [*map(json.loads, Path(__file__).with_name("written.jsonl").read_text("utf-8").splitlines())]
"""These calls, as the chat template of each format writes them, or its models."""


@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: f"{row['dialect']}: {row['notation']}")
def test_each_format_is_written_in_its_own_notations(row):
    assert DIALECTS[row["dialect"]].render(EVERY_TYPE, row["notation"]) == row["text"]


def test_the_first_notation_is_what_is_written_unasked():
    assert [(row["dialect"], row["notation"]) for row in WRITTEN] == [
        (name, notation) for name, dialect in DIALECTS.items() for notation in dialect.renderers
    ]
    first = {row["dialect"]: row["text"] for row in reversed(WRITTEN)}
    assert {
        name: dialect.render(EVERY_TYPE) for name, dialect in DIALECTS.items() if dialect.renderers
    } == first


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
    ("dialect", "notation"), [(name, each) for name in CALLING for each in DIALECTS[name].renderers]
)
def test_values_are_written_as_deep_as_they_are_read(dialect, notation):
    tools = declaring([("f", {"a": [1]})])

    def written(depth: int) -> str:
        return DIALECTS[dialect].render([("f", {"a": nested(depth)})], notation)

    deepest = MAX_DEPTH
    while deepest > MAX_DEPTH - 3:
        try:
            text = written(deepest)
            break
        except ValueError:
            deepest -= 1
    (read_back,) = calls_of(read(dialect, whole(text), tools=tools))
    assert read_back == ("f", {"a": nested(deepest)})
    assert calls_of(read(dialect, whole(text.replace("[]", "[[]]")), tools=tools)) == []
    with pytest.raises(ValueError, match="128 deep"):
        written(deepest + 1)


IMPOSSIBLE = [
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
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), IMPOSSIBLE)
def test_what_no_call_can_hold_is_refused(call, says):
    for notation in LFM2.renderers:
        if notation == "json" and call[0] == "f" and list(call[1]) == ["a b"]:
            continue  # 128 deep is deep enough only behind an unpacked key
        with pytest.raises(ValueError, match=says):
            LFM2.render([call], notation)


@pytest.mark.parametrize("dialect", CALLING)
def test_what_no_call_can_hold_is_refused_in_every_dialect(dialect):
    for call, _ in IMPOSSIBLE:
        for notation in DIALECTS[dialect].renderers:
            if list(call[1]) != ["a b"]:
                with pytest.raises(ValueError, match=r"."):
                    DIALECTS[dialect].render([call], notation)


@pytest.mark.parametrize("dialect", CALLING)
def test_markers_in_strings_are_escaped_or_read_back_or_refused(dialect):
    """Where strings are JSON no marker stands in them: in a prompt it would become a control token."""
    table = DIALECTS[dialect]
    for notation in table.renderers:
        escapes = '\\"' in table.render([("f", {"a": 'x"y'})], notation)
        for marker in table.markers:
            for value in (f"x{marker}y", marker, f"{marker}\n{marker}", {"k": [marker]}):
                calls = [("f", {"a": value})]
                try:
                    text = table.render(calls, notation)
                except ValueError:
                    assert not escapes
                    continue
                plain = table.render([("f", {"a": {"k": [""]} if isinstance(value, dict) else ""})], notation)
                assert not escapes or text.count(marker) == plain.count(marker)
                assert canonical(calls_of(read(dialect, whole(text), tools=declaring(calls)))) == canonical(
                    calls
                )


@pytest.mark.parametrize("dialect", CALLING)
def test_no_calls_are_no_text(dialect):
    assert all(DIALECTS[dialect].render([], notation) == "" for notation in DIALECTS[dialect].renderers)
    with pytest.raises(ValueError, match="no notation 'klingon'"):
        DIALECTS[dialect].render([("f", {})], "klingon")


def test_an_unknown_notation_is_refused():
    with pytest.raises(ValueError, match="pythonic, json"):
        LFM2.render([("f", {})], "xml")


def test_a_dialect_without_calls_writes_none():
    assert DIALECTS["plain"].render([]) == ""
    with pytest.raises(ValueError, match="no tool calls"):
        DIALECTS["plain"].render([("f", {})])


@pytest.mark.parametrize("dialect", ["minimax-m2", "minicpm5", "deepseek-v32", "glm45", "longcat"])
def test_an_operator_at_the_end_of_raw_text_is_written_and_a_doubled_bracket_of_a_tag_is_not(dialect):
    """Behind a word, `<` and the closing tag are read as that tag with a character too many."""
    for value in ("<", "a <", "a <<", "a\n<"):
        calls = [("f", {"a": value})]
        written = DIALECTS[dialect].render(calls)
        assert canonical(calls_of(read(dialect, whole(written), tools=declaring(calls)))) == canonical(calls)
    with pytest.raises(ValueError, match="in it cannot be written as raw text"):
        DIALECTS[dialect].render([("f", {"a": "x<"})])
