"""Laws of LFM2's own: its notations need no tools, and its strings stream whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parsers import DIALECTS, ArgumentsDelta, CallEnd, Malformed, StreamParser
from tests.parsers.outputs import END, START, call_lists, cuts, outputs, rendered, written
from tests.parsers.reading import calls_of, canonical, read, split, whole


@pytest.mark.law("prompt")
@given(words=st.text(alphabet=st.characters(exclude_characters="'\\<\"", exclude_categories=["Cs"])))
def test_lfm2_streams_strings_as_they_arrive(words):
    parser = StreamParser(DIALECTS["lfm2"])
    parser.feed(f"{START}[f(a='")
    for char in words:
        (event,) = parser.feed(char)
        assert isinstance(event, ArgumentsDelta)


@pytest.mark.law("roundtrip")
@pytest.mark.parametrize("notation", DIALECTS["lfm2"].renderers)
@given(data=st.data())
def test_lfm2_needs_no_tools_to_read_calls_back(notation, data):
    calls = [*data.draw(call_lists("lfm2")), *data.draw(call_lists("lfm2"))]
    kept, raw = written("lfm2", calls, notation)
    assert kept == calls  # it can write any call
    events = read("lfm2", split(raw, data.draw(cuts)))
    assert canonical(calls_of(events)) == canonical(calls)
    assert not [event for event in events if isinstance(event, CallEnd) and event.repaired]


@pytest.mark.law("complete")
@given(pair=rendered("lfm2"), before=outputs("lfm2"))
def test_a_good_block_of_lfm2_survives_whatever_came_before_it(pair, before):
    """Once the output is back in text, a block is read as if nothing had happened."""
    calls, block = pair
    raw = f"{before}</think>{END}{END}"
    closed = read("lfm2", whole(raw))
    assume(isinstance(closed[-1], Malformed) and closed[-1].reason == "stray_end")
    after = calls_of(read("lfm2", whole(raw + block)))
    assert canonical(after[len(calls_of(closed)) :]) == canonical(calls)
