"""The laws every dialect holds for any output whatever (see parsers/README.md).

`conftest.py` prints which dialect kept which law. The costs, and outputs made to hurt, are in
`test_adversarial.py`; what LFM2 promises besides is in `test_lfm2_laws.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import (
    DIALECTS,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Malformed,
    Reasoning,
    StreamParser,
    Text,
)
from tests.parsers.outputs import (
    CALLING,
    cuts,
    declaring,
    flagged,
    mixing,
    outputs,
    rendered,
    tools,
    unmarked,
    with_spaces,
)
from tests.parsers.reading import (
    calls_of,
    canonical,
    characters,
    check_calls,
    check_run,
    check_tiling,
    exact,
    merged,
    read,
    split,
    whole,
)

EXAMPLES = settings.default.max_examples // 5  # for each dialect and law


def law(name: str, dialects: Iterable[str] = tuple(DIALECTS)) -> Callable[[Any], Any]:
    """A property that shows for each of `dialects` that it keeps the law."""

    def decorate(test: Any) -> Any:
        test = settings(max_examples=EXAMPLES)(test)
        return pytest.mark.law(name)(pytest.mark.parametrize("dialect", dialects)(test))

    return decorate


def options(data: st.DataObject, dialect: str) -> dict[str, Any]:
    """Options of a parser that the laws must not depend on."""
    insides = [None, "reasoning"] if DIALECTS[dialect].reasoning is not None else [None]
    return {"inside": data.draw(st.sampled_from(insides)), "tools": data.draw(tools)}


# -- laws of every output -----------------------------------------------------------------------------


@law("chunks")
@given(data=st.data())
def test_chunking_changes_nothing(dialect, data):
    raw = data.draw(outputs(dialect))
    given = options(data, dialect)
    expected = exact(read(dialect, whole(raw), **given))
    for pieces in (characters(raw), split(raw, data.draw(cuts))):
        assert exact(read(dialect, pieces, **given)) == expected


@pytest.mark.law("chunks")
@pytest.mark.parametrize("dialect", CALLING)
def test_chunking_changes_nothing_about_calls_that_mix_notations(dialect):
    """What is read ahead in one step is judged as what is read item by item, `repaired` included."""
    for head, value, tail in mixing(dialect):
        raw = f"{head}{value}{tail}"
        expected = exact(read(dialect, whole(raw)))
        assert exact(read(dialect, [(head, None), *characters(value), (tail, None)])) == expected, raw


@law("chunks")
@given(data=st.data())
def test_chunking_of_flagged_pieces_changes_nothing(dialect, data):
    raw, pieces = data.draw(flagged(dialect))
    markers = DIALECTS[dialect].markers
    atomic = data.draw(st.sampled_from([None, frozenset(), frozenset(markers), frozenset(markers[::2])]))
    given = options(data, dialect)
    expected = read(dialect, pieces, atomic=atomic, **given)
    check_run(raw, expected)
    finer = [(c, flag) for text, flag in pieces for c in ([text] if flag else text)]
    assert exact(read(dialect, finer, atomic=atomic, **given)) == exact(expected)


@law("monotone")
@given(data=st.data())
def test_nothing_is_taken_back(dialect, data):
    """What is emitted for a prefix is a prefix of what is emitted for any continuation."""
    raw = data.draw(outputs(dialect))
    at = data.draw(st.integers(0, len(raw)))
    given = options(data, dialect)
    before = merged(StreamParser(DIALECTS[dialect], **given).feed(raw[:at]))
    complete = merged(read(dialect, whole(raw), **given))
    if before:
        assert before[:-1] == complete[: len(before) - 1]
        last, same = before[-1], complete[len(before) - 1]
        assert type(last) is type(same)
        assert last.start == same.start
        assert last.end <= same.end
        if isinstance(last, (Text, Reasoning)):
            assert same.text.startswith(last.text)
        elif isinstance(last, ArgumentsDelta):
            assert same.json.startswith(last.json)


@law("json")
@given(data=st.data())
def test_arguments_are_strict_json(dialect, data):
    raw = data.draw(outputs(dialect))
    check_calls(read(dialect, split(raw, data.draw(cuts)), **options(data, dialect)))


@law("lossless")
@given(data=st.data())
def test_spans_tile_the_output(dialect, data):
    raw = data.draw(outputs(dialect))
    check_tiling(raw, read(dialect, split(raw, data.draw(cuts)), **options(data, dialect)))


@law("total")
@given(data=st.data())
def test_nothing_raises(dialect, data):
    """Also for text that means nothing to the dialect: other dialects' outputs, and any characters."""
    raw = data.draw(
        st.one_of(st.text(st.characters(), max_size=60), outputs(data.draw(st.sampled_from([*DIALECTS]))))
    )
    raw = data.draw(outputs(dialect)) + raw
    check_run(raw, read(dialect, characters(raw), **options(data, dialect), strict=data.draw(st.booleans())))


@law("finish")
@given(data=st.data())
def test_the_end_of_generation_does_not_change_what_was_read(dialect, data):
    raw = data.draw(outputs(dialect))
    assert exact(read(dialect, whole(raw), finish="length")) == exact(read(dialect, whole(raw)))


# -- text and markers ---------------------------------------------------------------------------------


@law("prompt")
@given(data=st.data())
def test_text_is_held_only_while_it_may_be_a_marker(dialect, data):
    """Or the white space that belongs to one. Inside blocks, what follows decides; there the test stops."""
    raw = data.draw(outputs(dialect))
    table = DIALECTS[dialect]
    parser = StreamParser(table)
    fed, end = "", 0
    for char in raw:
        fed += char
        events = parser.feed(char)
        end = events[-1].end if events else end
        held = fed[end:]
        if any(isinstance(event, CallStart) for event in events) or any(m in fed for m in table.openers):
            break
        if held and held[0] in unmarked(dialect):
            break  # calls may begin without a marker
        assert not held or any(pattern.startswith(held) for pattern in with_spaces(dialect))


@law("prompt", CALLING)
@given(words=st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=20))
def test_string_arguments_stream_as_they_arrive(dialect, words):
    calls = [("f", {"a": "placeholder"})]
    raw = DIALECTS[dialect].render(calls)
    parser = StreamParser(DIALECTS[dialect], declaring(calls))
    parser.feed(raw[: raw.index("placeholder") + 1])
    for char in words:
        (event,) = parser.feed(char)
        assert isinstance(event, ArgumentsDelta)
        assert event.json == char


@law("markers")
@given(data=st.data())
def test_markers_never_leak_into_text(dialect, data):
    """Except as data: a closing think tag outside reasoning, anything but that tag inside it."""
    raw = data.draw(outputs(dialect))
    table = DIALECTS[dialect]
    close = None if table.reasoning is None else table.reasoning.close
    for event in merged(read(dialect, whole(raw))):
        if isinstance(event, Text):
            assert not [marker for marker in table.markers if marker != close and marker in event.text]
        if isinstance(event, Reasoning):
            always = [marker for marker, follow in table.interrupts.items() if not follow]
            assert not [marker for marker in (close, *always) if marker in event.text]


@law("markers")
@given(data=st.data())
def test_spelled_markers_are_data_when_the_vocabulary_has_them_as_tokens(dialect, data):
    raw = data.draw(outputs(dialect))
    table = DIALECTS[dialect]
    events = merged(read(dialect, [(raw, False)], atomic=frozenset(table.markers)))
    if not set(raw) & set(unmarked(dialect)):
        assert events == ([Text(raw, 0, len(raw))] if raw else [])


# -- calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", CALLING)
def test_every_dialect_with_calls_writes_ordinary_ones(dialect):
    """Nothing here is rare; a dialect whose renderer refuses it would pass the properties below emptily."""
    ordinary = {
        "city": "Zürich", "n": -3, "x": 1.5, "ok": True, "no": False, "nothing": None, "empty": "", "digits": "07",
        "lines": "a\n  b\n\nc", "quotes": "it's \"so\" \\ `x`", "code": "if (a < b && c > d) { f(\"x\"); }", "list": [],
        "rows": [{"id": 1, "tags": ["a", "b"]}, {"id": 2, "tags": []}], "o": {"k": {"l": [1, None, "ü🌍"]}}, "e": {},
    }  # fmt: skip
    for notation in DIALECTS[dialect].renderers or [None]:
        for key, value in ordinary.items():
            calls = [("get_weather", {key: value})]
            raw = DIALECTS[dialect].render(calls, notation)
            events = read(dialect, whole(raw), tools=declaring(calls))
            assert canonical(calls_of(events)) == canonical(calls), raw
        calls = [("get_weather", ordinary)]
        events = read(dialect, whole(DIALECTS[dialect].render(calls, notation)), tools=declaring(calls))
        assert canonical(calls_of(events)) == canonical(calls)


@law("roundtrip", CALLING)
@given(data=st.data())
def test_rendered_calls_read_back(dialect, data):
    notation = data.draw(st.sampled_from([None, *DIALECTS[dialect].renderers]))
    calls, raw = data.draw(rendered(dialect, notation))
    events = read(dialect, split(raw, data.draw(cuts)), tools=declaring(calls))
    check_run(raw, events)
    assert canonical(calls_of(events)) == canonical(calls)
    assert not [event for event in events if isinstance(event, (Malformed, Text, Reasoning))]
    assert not [event for event in events if isinstance(event, CallEnd) and event.repaired]


@law("roundtrip", CALLING)
@given(data=st.data())
def test_what_stands_around_calls_is_kept(dialect, data):
    """Content before and after a block, and reasoning in front of both."""
    table = DIALECTS[dialect]
    calls, raw = data.draw(rendered(dialect))
    if not raw.lstrip("\n").startswith(table.openers):
        return  # such calls are the whole turn
    word = st.text("abc xyz", max_size=8).map(lambda inner: f"a{inner}z")
    before, after, thought = data.draw(word | st.just("")), data.draw(word), data.draw(word)
    tail = [table.ends[0]] if table.ends and data.draw(st.booleans()) else []
    opened = [] if table.reasoning is None else [table.reasoning.open, thought, table.reasoning.close]
    turn = "".join([*opened, before, raw, *tail, after])
    events = read(dialect, split(turn, data.draw(cuts)), tools=declaring(calls))
    assert canonical(calls_of(events)) == canonical(calls)
    assert joined(events, Text) == before + after
    assert joined(events, Reasoning) == (thought if opened else "")


def joined(events: Iterable[Event], kind: type[Text] | type[Reasoning]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


@law("complete", CALLING)
@given(data=st.data())
def test_a_call_counts_only_when_it_is_complete(dialect, data):
    """Cut anywhere: calls are emitted in order, as they were written, and a cut one is kept."""
    calls, raw = data.draw(rendered(dialect))
    at = data.draw(st.integers(0, len(raw) - 1))
    events = read(dialect, whole(raw[:at]), finish="length", tools=declaring(calls))
    done = calls_of(events)
    assert canonical(done) == canonical(calls[: len(done)])
    started = sum(isinstance(event, CallStart) for event in events)
    kept = [event for event in events if isinstance(event, Malformed)]
    assert started - len(done) == len([event for event in kept if event.index is not None])
    for event in kept:
        assert event.reason == "truncated"
        if event.index is not None:
            name, arguments = calls[event.index]
            assert event.name == name
            partial = {key: arguments[key] for key in event.partial}
            assert canonical([(name, event.partial)]) == canonical([(name, partial)])
    for event in events:
        if isinstance(event, Text) and not unmarked(dialect):
            assert any(pattern.startswith(event.text) for pattern in with_spaces(dialect))
