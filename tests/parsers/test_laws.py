"""The laws every dialect holds for any output whatever (see parsers/README.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import (
    DIALECTS,
    ArgumentsDelta,
    CallEnd,
    CallPart,
    CallStart,
    Malformed,
    Reasoning,
    StreamParser,
    Text,
    collect,
)
from tests.parsers.outputs import END, MARKERS, START, call_lists, cuts, flagged, outputs, tools
from tests.parsers.reading import characters, check_run, merged, read, split, whole

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@every_dialect
@given(raw=outputs, cuts=cuts, inside=st.sampled_from([None, "reasoning"]), tools=tools)
def test_chunking_changes_nothing(dialect, raw, cuts, inside, tools):
    expected = read(dialect, whole(raw), inside=inside, tools=tools)
    check_run(raw, expected)
    for pieces in (characters(raw), split(raw, cuts)):
        events = read(dialect, pieces, inside=inside, tools=tools)
        check_run(raw, events)
        assert merged(events) == merged(expected)


@every_dialect
@given(output=flagged(), data=st.data(), tools=tools)
def test_chunking_of_flagged_pieces_changes_nothing(dialect, output, data, tools):
    raw, pieces = output
    atomic = data.draw(st.sampled_from([None, frozenset(), frozenset(MARKERS), frozenset(MARKERS[:2])]))
    expected = read(dialect, pieces, atomic=atomic, tools=tools)
    check_run(raw, expected)
    finer = [(c, flag) for text, flag in pieces for c in ([text] if flag else text)]
    assert merged(read(dialect, finer, atomic=atomic, tools=tools)) == merged(expected)


@every_dialect
@given(raw=outputs, data=st.data(), tools=tools)
def test_nothing_is_taken_back(dialect, raw, data, tools):
    """What is emitted for a prefix is a prefix of what is emitted for any continuation."""
    at = data.draw(st.integers(0, len(raw)))
    parser = StreamParser(DIALECTS[dialect], tools)
    before = merged(parser.feed(raw[:at]))
    after = merged([*before, *parser.feed(raw[at:]), *parser.close()])
    complete = merged(read(dialect, whole(raw), tools=tools))
    assert after == complete
    if before:
        assert before[:-1] == complete[: len(before) - 1]
        last, same = before[-1], complete[len(before) - 1]
        assert type(last) is type(same)
        assert last.end <= same.end


@every_dialect
@given(raw=outputs)
def test_the_end_of_generation_does_not_change_what_was_read(dialect, raw):
    assert read(dialect, whole(raw), finish="length") == read(dialect, whole(raw))


@every_dialect
@given(raw=outputs)
def test_text_is_held_only_while_it_may_be_a_marker(dialect, raw):
    parser = StreamParser(DIALECTS[dialect])
    fed = ""
    end = 0
    for char in raw:
        fed += char
        events = parser.feed(char)
        end = events[-1].end if events else end
        if any(isinstance(event, CallStart) for event in events) or START in fed:
            break  # inside blocks, quotes and notations are decided by what follows
        held = fed[end:]
        assert not held or any(marker.startswith(held) for marker in MARKERS)


@given(words=st.text(alphabet=st.characters(exclude_characters="'\\<\"", exclude_categories=["Cs"])))
def test_string_arguments_stream_as_they_arrive(words):
    parser = StreamParser(DIALECTS["lfm2"])
    parser.feed(f"{START}[f(a='")
    for char in words:
        (event,) = parser.feed(char)
        assert isinstance(event, ArgumentsDelta)


@every_dialect
@given(raw=outputs)
def test_markers_never_leak_into_text(dialect, raw):
    """Except as data: a closing think tag outside reasoning, anything but that tag inside it."""
    for event in merged(read(dialect, whole(raw))):
        table = DIALECTS[dialect]
        if isinstance(event, Text):
            assert not any(marker in event.text for marker in table.markers if marker != "</think>")
        if isinstance(event, Reasoning):
            assert "</think>" not in event.text


@every_dialect
@given(output=flagged())
def test_spelled_markers_are_data_when_the_vocabulary_has_them_as_tokens(dialect, output):
    raw = output[0]
    events = read(dialect, [(raw, False)], atomic=frozenset(MARKERS))
    assert merged(events) == merged([Text(raw, 0, len(raw))] if raw else [])


@given(calls=call_lists, data=st.data())
def test_a_call_counts_only_when_it_is_complete(calls, data):
    """Cut anywhere: calls are emitted in order, as they were written, and a cut one is kept."""
    raw = DIALECTS["lfm2"].render(calls)
    at = data.draw(st.integers(0, len(raw) - 1))
    events = read("lfm2", whole(raw[:at]), finish="length")
    done = [(event.name, event.arguments) for event in events if isinstance(event, CallEnd)]
    assert done == calls[: len(done)]
    started = sum(isinstance(event, CallStart) for event in events)
    kept = [event for event in events if isinstance(event, Malformed)]
    assert started - len(done) == len([event for event in kept if event.index is not None])
    for event in kept:
        assert event.reason == "truncated"
        if event.index is not None:
            name, arguments = calls[event.index]
            assert event.name == name
            assert event.partial.items() <= arguments.items() or event.partial == {
                key: arguments[key] for key in event.partial
            }


@pytest.mark.parametrize("notation", [None, "pythonic", "json"])
@given(calls=call_lists, cuts=cuts)
def test_rendered_calls_read_back(notation, calls, cuts):
    raw = DIALECTS["lfm2"].render(calls, notation)
    parts = collect(read("lfm2", split(raw, cuts)))
    assert [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)] == calls
    assert len(parts) == len(calls)
    assert not any(part.repaired for part in parts)


@given(calls=call_lists, before=outputs)
def test_a_good_block_survives_whatever_came_before_it(calls, before):
    """Once the output is back in text, a block is read as if nothing had happened."""
    raw = f"{before}</think>{END}{END}"
    closed = read("lfm2", whole(raw))
    known = [event for event in closed if isinstance(event, CallEnd)]
    if isinstance(closed[-1], Malformed) and closed[-1].reason == "stray_end":
        block = DIALECTS["lfm2"].render(calls)
        after = [event for event in read("lfm2", whole(raw + block)) if isinstance(event, CallEnd)]
        assert [(e.name, e.arguments) for e in after[len(known) :]] == calls
