"""The parser says where it is, token by token: in text, in reasoning, or in a block of calls."""

from __future__ import annotations

import pytest

from parsers import DIALECTS, StreamParser

CALL = [("f", {"a": 1, "text": "x"})]
WITH_CALLS = [name for name, dialect in DIALECTS.items() if dialect.calls is not None]
REASONING = [name for name, dialect in DIALECTS.items() if dialect.reasoning is not None]
# The template of these writes calls without their marker.
UNMARKED = {"llama-pythonic", "llama3-json"}
# A message counts as what its header says, once that is complete.
HEADED = {"harmony", "muse", "inkling"}


def places(parser: StreamParser, text: str) -> list[str]:
    """Where it is after every character."""
    found = []
    for char in text:
        parser.feed(char)
        found.append(parser.place)
    return found


@pytest.mark.parametrize("name", sorted(set(WITH_CALLS) - UNMARKED))
def test_a_block_of_calls(name: str) -> None:
    dialect = DIALECTS[name]
    written = dialect.render(CALL)
    parser = StreamParser(dialect)
    found = places(parser, "Well. " + written)
    opener = next(opener for opener in dialect.openers if opener in written)
    begins = 6 + written.index(opener)
    assert set(found[: begins + len(opener) - 1]) == {"text"}
    inside = found.index("calls")
    if name not in HEADED:
        assert inside <= begins + len(opener), (
            "with the marker, or the character that shows that it is no longer one"
        )
    body = written.index("x", written.index("text") + 4) + 6
    assert set(found[inside:body]) == {"calls"}
    parser = StreamParser(dialect)
    places(parser, ("Well. " + written)[: inside + 1])
    assert parser.since == begins


@pytest.mark.parametrize("name", REASONING)
def test_reasoning(name: str) -> None:
    dialect = DIALECTS[name]
    assert dialect.reasoning is not None
    opened, closed = dialect.reasoning.open, dialect.reasoning.close
    for inside in (None, "reasoning"):
        parser = StreamParser(dialect, inside=inside)  # type: ignore[arg-type]
        written = ("" if inside else opened) + "\nhm, so" + closed + "\n\nYes. "
        found = places(parser, written)
        begin, end = written.index("hm"), written.index(closed) + len(closed)
        assert set(found[begin : end - 1]) == {"reasoning"}
        assert set(found[end + 2 :]) == {"text"}


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_that_the_prompt_opened(name: str) -> None:
    """From the beginning: nothing needs to come first."""
    dialect = DIALECTS[name]
    parser = StreamParser(dialect, inside="reasoning")
    assert (parser.place, parser.since) == ("reasoning", 0)
    found = places(parser, "a thought")
    assert set(found) == {"reasoning"}
    assert places(parser, dialect.reasoning.close + "x")[-1] == "text" or name in HEADED


def test_a_draft_in_reasoning_is_reasoning() -> None:
    parser = StreamParser(DIALECTS["hermes"])
    parser.feed('<think>I could <tool_call>{"name": "f", "arguments": {}}</tool_call> or')
    assert parser.place == "reasoning"


def test_after_a_block_comes_text_again() -> None:
    parser = StreamParser(DIALECTS["lfm2"])
    assert (parser.place, parser.since) == ("text", 0)
    parser.feed("<|tool_call_start|>[f(a=1)]<|tool_call_end|>")
    parser.feed(" So")
    assert (parser.place, parser.since) == ("text", 44)
    parser.feed("<|tool_call_start|>")
    assert (parser.place, parser.since) == ("calls", 47)
