"""The laws every dialect holds for any output whatever (see parsers/README.md).

`conftest.py` prints which dialect kept which law. The costs, and outputs made to hurt, are in
`test_adversarial.py`; what LFM2 promises besides is in `test_lfm2_laws.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import (
    DIALECTS,
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Malformed,
    Reasoning,
    StreamParser,
    Text,
)
from tests.parsers.conftest import BROKEN
from tests.parsers.outputs import (
    CALLING,
    END,
    START,
    Call,
    cuts,
    declaring,
    flagged,
    mixing,
    outputs,
    rendered,
    samples,
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

EXAMPLES = settings.default.max_examples // 5  # for each dialect and property


def law(*names: str, dialects: Iterable[str] = tuple(DIALECTS)) -> Callable[[Any], Any]:
    """A property that shows for each of `dialects` that it keeps the laws."""

    def decorate(test: Any) -> Any:
        test = settings(max_examples=EXAMPLES)(test)
        return pytest.mark.law(*names)(pytest.mark.parametrize("dialect", dialects)(test))

    return decorate


@contextmanager
def showing(name: str) -> Iterator[None]:
    """What fails here breaks this one of the laws that a property shows."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{BROKEN}{name}")
        raise


def options(data: st.DataObject, dialect: str) -> dict[str, Any]:
    """Options of a parser that the laws must not depend on."""
    insides = [None, "reasoning"] if DIALECTS[dialect].reasoning is not None else [None]
    strict = data.draw(st.integers(0, 3)) == 0
    return {"inside": data.draw(st.sampled_from(insides)), "tools": data.draw(tools), "strict": strict}


# -- laws of every output -----------------------------------------------------------------------------


@law("chunks", "monotone", "json", "total", "lossless", "prompt", "markers", "finish")
@given(data=st.data())
def test_any_output_keeps_the_laws(dialect, data):
    check_any_output(dialect, data)


def check_any_output(dialect: str, data: st.DataObject) -> None:
    """One output for all laws, since to draw it costs more than to read it."""
    raw = data.draw(outputs(dialect))
    if data.draw(st.integers(0, 3)) == 0:  # what means nothing to the dialect
        foreign = st.sampled_from([*DIALECTS]).flatmap(outputs)
        raw += data.draw(st.text(st.characters(), max_size=60) | foreign)
    given = options(data, dialect)
    with showing("total"):
        events = read(dialect, whole(raw), **given)
        single = read(dialect, characters(raw), **given)
    with showing("lossless"):
        check_tiling(raw, events)
        check_tiling(raw, single)
    with showing("json"):
        check_calls(events)
    with showing("chunks"):
        assert exact(single) == exact(events)
        assert exact(read(dialect, split(raw, data.draw(cuts)), **given)) == exact(events)
    with showing("finish"):
        assert exact(read(dialect, whole(raw), finish="length", **given)) == exact(events)
    with showing("monotone"):
        check_nothing_is_taken_back(dialect, raw, data.draw(st.integers(0, len(raw))), given)
    unable = str.maketrans("", "", unmarked(dialect))
    with showing("prompt"):
        check_text_is_held_only_while_it_may_be_a_marker(dialect, raw.translate(unable))
    with showing("markers"):
        check_markers_do_not_leak(dialect, raw)
        check_spelled_markers_are_data(dialect, raw.translate(unable))


HEADERS = {"harmony": (" to=", "to="), "muse": (" to=", "to="), "functionary32": ("all\n",)}
"""How an output goes on with a header that the prompt has begun: it may be a call without a marker."""


def check_nothing_is_taken_back(dialect: str, raw: str, at: int, given: dict[str, Any]) -> None:
    """What is emitted for a prefix is a prefix of what is emitted for any continuation."""
    before = merged(StreamParser(DIALECTS[dialect], **given).feed(raw[:at]))
    complete = merged(read(dialect, whole(raw), **given))
    settled = max(0, len(before) - 1)
    assert exact(before[:settled]) == exact(complete[:settled])
    for last, same in zip(before[settled:], complete[settled:], strict=False):
        assert type(last) is type(same)
        assert last.start == same.start
        assert last.end <= same.end
        if isinstance(last, (Text, Reasoning)):
            assert same.text.startswith(last.text)
        elif isinstance(last, ArgumentsDelta):
            assert same.json.startswith(last.json)


def check_text_is_held_only_while_it_may_be_a_marker(dialect: str, raw: str) -> None:
    """Or the white space that belongs to one. Inside blocks, what follows decides; there the check stops."""
    table, headers = DIALECTS[dialect], HEADERS.get(dialect, ())
    parser = StreamParser(table)
    end = 0
    for count, char in enumerate(raw, 1):
        events = parser.feed(char)
        end = events[-1].end if events else end
        called = any(isinstance(event, CallStart) for event in events)
        if called or any(m in raw[:count] for m in table.openers) or raw.startswith(headers, 0, count):
            break
        if any(header.startswith(raw[:count]) for header in headers):
            continue
        held = raw[end:count]
        assert not held or any(pattern.startswith(held) for pattern in with_spaces(dialect))


def check_markers_do_not_leak(dialect: str, raw: str) -> None:
    """Except as data: a closing think tag outside reasoning, anything but that tag inside it."""
    table = DIALECTS[dialect]
    closes = [] if table.reasoning is None else [table.reasoning.close]
    closes += [text for text, means in (table.spellings | table.phrases).items() if means == "close"]
    for event in merged(read(dialect, whole(raw))):
        if isinstance(event, Text):
            assert not [marker for marker in table.markers if marker not in closes and marker in event.text]
        if isinstance(event, Reasoning):
            assert not [marker for marker in closes if marker in event.text]


def check_spelled_markers_are_data(dialect: str, raw: str) -> None:
    """When the vocabulary has them as tokens: not phrases of ordinary words, nor a header that the prompt began."""
    table = DIALECTS[dialect]
    if raw.startswith(HEADERS.get(dialect, ())) or any(phrase in raw for phrase in table.phrases):
        return
    events = merged(read(dialect, [(raw, False)], atomic=frozenset(table.markers)))
    assert events == ([Text(raw, 0, len(raw))] if raw else [])


def test_the_comparison_sees_every_field_of_every_event():
    """Also of events and fields that are yet to come."""
    raw = f"a<think>b</think>{START}[f(a=1), g(2)]{END}"
    events = {type(event): event for event in read("lfm2", whole(raw))}
    assert set(events) == set(get_args(Event))
    for event in events.values():
        for field in fields(event):
            assert exact([replace(event, **{field.name: "other"})]) != exact([event])
    assert exact([Text("a", 0, 1), Text("b", 2, 3)]) != exact([Text("ab", 0, 3)])
    assert exact([replace(events[ArgumentEnd], value=1.0)]) != exact([replace(events[ArgumentEnd], value=1)])
    assert exact([replace(events[ArgumentEnd], value=True)]) != exact([replace(events[ArgumentEnd], value=1)])


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


# -- calls -------------------------------------------------------------------------------------------


@law("prompt", dialects=CALLING)
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


@law("roundtrip", "complete", dialects=CALLING)
@given(data=st.data())
def test_calls_keep_the_laws(dialect, data):
    check_any_calls(dialect, data)


def check_any_calls(dialect: str, data: st.DataObject) -> None:
    """Calls are drawn once for all laws, as any output is."""
    notation = data.draw(st.sampled_from([None, *DIALECTS[dialect].renderers]))
    calls, raw = data.draw(rendered(dialect, notation))
    with showing("roundtrip"):
        check_calls_read_back(dialect, calls, raw, data.draw(cuts))
        marked = samples(dialect)[0].lstrip("\n").startswith(DIALECTS[dialect].openers)
        if marked and notation in (None, next(iter(DIALECTS[dialect].renderers))):
            check_what_stands_around_calls_is_kept(dialect, calls, raw, data)
    with showing("complete"):
        check_a_call_counts_only_when_it_is_complete(
            dialect, calls, raw[: data.draw(st.integers(0, len(raw) - 1))]
        )


def check_calls_read_back(dialect: str, calls: list[Call], raw: str, cuts: list[int]) -> None:
    """All of them, with nothing else and nothing repaired."""
    events = read(dialect, split(raw, cuts), tools=declaring(calls))
    check_run(raw, events)
    assert canonical(calls_of(events)) == canonical(calls)
    assert not [event for event in events if isinstance(event, (Malformed, Text, Reasoning))]
    assert not [event for event in events if isinstance(event, CallEnd) and event.repaired]


def check_what_stands_around_calls_is_kept(
    dialect: str, calls: list[Call], raw: str, data: st.DataObject
) -> None:
    """Content before and after a block, and reasoning in front of both."""
    table = DIALECTS[dialect]
    word = st.text("abc xyz", max_size=8).map(lambda inner: f"a{inner}z")
    before, after, thought = data.draw(word | st.just("")), data.draw(word), data.draw(word)
    tail = [table.ends[0]] if table.ends and data.draw(st.booleans()) else []
    opened = [] if table.reasoning is None else [table.reasoning.open, thought, table.reasoning.close]
    if not tail and not raw.endswith(table.markers):
        after = f" {after}"  # a word glued to the brace of an object shows that it was closed too early
    turn = "".join([*opened, before, raw, *tail, after])
    events = read(dialect, split(turn, data.draw(cuts)), tools=declaring(calls))
    assert canonical(calls_of(events)) == canonical(calls)
    assert joined(events, Text) == before + after
    assert joined(events, Reasoning) == (thought if opened else "")


def joined(events: Iterable[Event], kind: type[Text] | type[Reasoning]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def check_a_call_counts_only_when_it_is_complete(dialect: str, calls: list[Call], cut: str) -> None:
    """Cut anywhere: calls are emitted in order, as they were written, and a cut one is kept."""
    events = read(dialect, whole(cut), finish="length", tools=declaring(calls))
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


BARE = [name for name in DIALECTS if DIALECTS[name].bare is not None and name != "llama3-json"]
"""The dialects in which calls without markers count if they are all that a turn says.

Llama's may also begin with calls of tools that nobody declares.
"""


@pytest.mark.law("prompt")
@pytest.mark.parametrize("dialect", BARE)
def test_a_bare_call_streams_and_text_is_held_only_while_it_may_be_one(dialect):
    declared = declaring([("look_up", {"word": "x"})])
    parser = StreamParser(DIALECTS[dialect], declared)
    assert parser.feed('```json\n{"name": "look_up"') == []
    start, *_ = [event for event in parser.feed(', "arguments": {"word": "') if isinstance(event, CallStart)]
    assert start.name == "look_up"
    assert [event.json for event in parser.feed("x") if isinstance(event, ArgumentsDelta)] == ["x"]
    for raw in (
        '{"name": "look_it',
        '{"name": "look_up", "of":',
        "{1",
        '{"k":',
        "```json\nx",
        "[Call m",
        "\n\nNo",
    ):
        parser = StreamParser(DIALECTS[dialect], declared)
        assert joined(parser.feed(raw), Text) == raw, raw
