"""Arguments that come by themselves are read as they arrive, however they are cut, and by the laws of calls."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import ArgumentEnd, ArgumentsDelta, ArgumentsReader, CallEnd, CallStart, Event, Malformed, Reason
from tests.parsers.reading import merged

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def read(text: str, cuts: list[int] = [], finish: str = "stop") -> list[Event]:  # noqa: B006
    reader = ArgumentsReader("f", 2)
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    events = [event for begin, end in pairwise(ends) for event in reader.feed(text[begin:end])]
    return events + reader.close(finish)


@given(OBJECTS, st.lists(st.integers(0, 80)), st.booleans(), st.sampled_from([None, 1]))
def test_an_object_is_read_exactly_however_it_is_cut(value, cuts, plain, indent):
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    events = read(text, cuts)
    assert merged(events) == merged(read(text))
    assert isinstance(events[0], CallStart) and events[0].name == "f"
    last = events[-1]
    assert isinstance(last, CallEnd) and (last.index, last.arguments, last.repaired) == (2, value, False)
    assert json.loads("".join(e.json for e in events if isinstance(e, ArgumentsDelta))) == value
    assert {e.key: e.value for e in events if isinstance(e, ArgumentEnd)} == value
    assert (events[0].start, last.end) == (0, len(text))
    assert all(before.end == event.start for before, event in pairwise(events))


@given(st.text('{}[]",:\\ax1 \n'), st.lists(st.integers(0, 80)), st.sampled_from(["stop", "length"]))
def test_anything_else_is_kept_whole(text, cuts, finish):
    events = read(text, cuts, finish)
    assert merged(events) == merged(read(text, finish=finish))
    *_, last = events
    assert isinstance(last, CallEnd | Malformed) and last.end == len(text)
    if isinstance(last, Malformed):
        assert last.raw == text
        assert not is_object(text)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("value", [{}, {"a": "x"}, {"a": [{"b": "}"}]}, {"a": {"b": 1}}])
def test_it_is_complete_with_its_last_brace_and_not_before(value):
    reader = ArgumentsReader("f")
    seen = []
    for char in json.dumps(value):
        reader.feed(char)
        seen.append(reader.complete)
    assert seen == [False] * (len(seen) - 1) + [True]
    reader.feed(" \n")
    assert reader.complete
    reader.feed("x")
    assert not reader.complete
    (last,) = reader.close()
    assert isinstance(last, Malformed) and last.reason == Reason.SYNTAX and last.raw.endswith("} \nx")


def test_what_ends_early_keeps_the_arguments_that_were_complete():
    assert read('{"a": 1, "b": [2')[-1] == Malformed(
        '{"a": 1, "b": [2', Reason.TRUNCATED, "f", 2, {"a": 1}, 15, 16
    )
    assert read("")[-1] == Malformed("", Reason.TRUNCATED, "f", 2, {}, 0, 0)
