"""What a model declares is read as it says, with the laws of every dialect; what cannot be read is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import DIALECTS, Dialect, Markup, Reasoning, StreamParser, Text
from parsers.declared import declared_dialect
from tests.parsers import test_laws
from tests.parsers.declarations import DECLARATIONS, OUTCOMES
from tests.parsers.outputs import cuts, outputs
from tests.parsers.reading import characters, check_run, exact, merged, outcome, read, split, whole

FEW = settings(max_examples=max(5, settings.default.max_examples // 20))
"""A declared format is read with patterns, which take longer than the tables of known formats."""


def dialect(declared: object, **config: Any) -> Dialect:
    """The dialect for that `response_template`."""
    found = declared_dialect({"response_template": declared, **config})
    assert found is not None
    return found


@pytest.fixture(scope="module", autouse=True)
def among_the_dialects() -> Iterator[None]:
    """The declared ones, so that whatever is tested of a dialect can be tested of them."""
    made = {name: replace(dialect(declared), name=name) for name, declared in DECLARATIONS.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, each in made.items():
            patch.setitem(DIALECTS, name, each)  # type: ignore[arg-type]
        yield


@pytest.mark.parametrize(("name", "raw", "expected"), OUTCOMES)
def test_outputs_are_read_as_declared(name, raw, expected):
    events = read(name, whole(raw))
    check_run(raw, events)
    assert outcome(events) == {"content": "", "reasoning": "", "calls": [], "malformed": []} | expected
    assert exact(read(name, characters(raw))) == exact(events)
    assert (
        not [event for event in events if getattr(event, "repaired", False)]
        or "tool_name" in raw
        or "null" in raw
    )


def test_every_declaration_has_an_outcome_and_a_renderer():
    assert {name for name, _, _ in OUTCOMES} == set(DECLARATIONS)
    assert all(DIALECTS[name].renderers for name in DECLARATIONS)


# -- laws ----------------------------------------------------------------------------------------------

READING = [name for name in DECLARATIONS if name != "code"]
"""Those in which a call can have any name and arguments."""
WRITING = [name for name in READING if name not in ("list", "nested")]
"""Those of them in which a turn can have calls in any number of places."""


@pytest.mark.law("chunks", "monotone", "json", "total", "lossless", "prompt", "markers", "finish")
@pytest.mark.parametrize("dialect", READING)
@FEW
@given(data=st.data())
def test_any_output_keeps_the_laws(dialect, data):
    raw = data.draw(outputs(dialect))
    given = test_laws.options(data, dialect)
    events = read(dialect, whole(raw), **given)
    check_run(raw, events)
    assert exact(read(dialect, characters(raw), **given)) == exact(events)
    assert exact(read(dialect, split(raw, data.draw(cuts)), **given)) == exact(events)
    assert exact(read(dialect, whole(raw), finish="length", **given)) == exact(events)
    test_laws.check_nothing_is_taken_back(dialect, raw, data.draw(st.integers(0, len(raw))), given)
    test_laws.check_markers_do_not_leak(dialect, raw)
    check_spelled_markers_are_text(dialect, raw)
    if dialect != "blocks":  # where any text can be the beginning of a field
        check_text_is_held_only_while_it_may_be_a_marker(dialect, raw)


def check_spelled_markers_are_text(name: str, raw: str) -> None:
    """When the vocabulary has them as tokens. White space at the ends is still none of the content."""
    tokens = frozenset({*DIALECTS[name].markers, *DIALECTS[name].cores.values()})
    events = merged(read(name, [(raw, False)], atomic=tokens))
    if name == "started":  # it begins in its reasoning, whatever the output begins with
        assert {type(event) for event in events} <= {Reasoning, Markup}
    else:
        assert [event.text for event in events if isinstance(event, Text)] == [raw.strip()][
            : bool(raw.strip())
        ]


def check_text_is_held_only_while_it_may_be_a_marker(name: str, raw: str) -> None:
    """Or the beginning of a field, or white space at its end. Inside calls, what follows decides."""
    table = DIALECTS[name]
    parser = StreamParser(table)
    end = 0
    for count, char in enumerate(raw, 1):
        events = parser.feed(char)
        end = events[-1].end if events else end
        held = raw[end:count].lstrip()
        if any(opener in raw[:count] for opener in table.openers):
            break
        assert not held or any(m.startswith(held) or held.startswith(m) for m in table.markers)


@pytest.mark.law("chunks")
@pytest.mark.parametrize("dialect", READING)
@FEW
@given(data=st.data())
def test_flags_change_nothing_about_the_laws(dialect, data):
    test_laws.test_chunking_of_flagged_pieces_changes_nothing.hypothesis.inner_test(dialect, data)


@pytest.mark.law("roundtrip", "complete")
@pytest.mark.parametrize("dialect", WRITING)
@FEW
@given(data=st.data())
def test_calls_keep_the_laws(dialect, data):
    test_laws.test_calls_keep_the_laws.hypothesis.inner_test(dialect, data)


@pytest.mark.law("prompt")
@pytest.mark.parametrize("dialect", WRITING)
@FEW
@given(words=st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=20))
def test_string_arguments_stream_as_they_arrive(dialect, words):
    test_laws.test_string_arguments_stream_as_they_arrive.hypothesis.inner_test(dialect, words)
