"""The worked example of the README: a dialect that somebody adds is read, and keeps the laws of all others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import DIALECTS, CallEnd, Malformed
from tests.parsers.assigned import ASSIGNED
from tests.parsers.reading import characters, exact, merged, read, whole
from tests.parsers.test_laws import check_any_calls, check_any_output, law

NAME = ASSIGNED.name


@pytest.fixture(scope="module", autouse=True)
def added():
    """As if its family stood in `parsers/formats/__init__.py`."""
    DIALECTS[NAME] = ASSIGNED
    yield
    del DIALECTS[NAME]


@law("chunks", "monotone", "json", "total", "lossless", "prompt", "markers", "finish", dialects=[NAME])
@given(data=st.data())
def test_any_output_keeps_the_laws(dialect, data):
    check_any_output(dialect, data)


@law("roundtrip", "complete", dialects=[NAME])
@given(data=st.data())
def test_calls_keep_the_laws(dialect, data):
    check_any_calls(dialect, data)


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('<<call:f>> city := "Paris"; n := 3 <<end>>', {"city": "Paris", "n": 3}),
        ("<<call:f>><<end>>", {}),
        ('<<call:f>> s := "x\\/y <<end>> <<call:g" <<end>>', {"s": "x/y <<end>> <<call:g"}),
        ('<<call:f>> s := "a; b <<end>>" <<end>>', {"s": "a; b <<end>>"}),
        (
            '<<call:f>> s := "say "hi" to"; n := [1, {"k": null}] <<end>>',
            {"s": 'say "hi" to', "n": [1, {"k": None}]},
        ),
    ],
)
def test_calls_are_read(raw, arguments):
    events = read(NAME, whole(raw))
    assert [event.arguments for event in events if isinstance(event, CallEnd)] == [arguments]
    assert exact(merged(read(NAME, characters(raw)))) == exact(merged(events))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('<<call:f>> city := "Par', "truncated"),
        ("<<call:f>> city = 3 <<end>>", "syntax"),
        ("<<call: the tool>> <<end>>", "not_a_call"),
        ("<<call:f>> n := 3 <<call:g>> n := 4 <<end>>", "unclosed"),
    ],
)
def test_what_is_no_call_is_kept(raw, reason):
    kept = [event for event in read(NAME, whole(raw)) if isinstance(event, Malformed)]
    assert [event.reason for event in kept] == [reason]


@pytest.mark.parametrize("arguments", [{1: 2}, {"a b": 1}, {"": 1}, {"a": float("nan")}, {"a": "\ud800"}])
def test_what_it_cannot_hold_is_refused(arguments):
    with pytest.raises(ValueError):
        ASSIGNED.render([("f", arguments)])
