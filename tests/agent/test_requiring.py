"""What an agent's model must write: calls that are required once, one at a time, answers that fit a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from localagent.agent import Agent, RunFailed
from localagent.errors import UsageError
from localagent.model import Model, load
from localagent.nano import GGUF
from localagent.tools import tool
from tests.agent.replaying import block, follow, scripted
from tests.agent.test_compaction import talk
from tests.agent.words import wordy

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def nano_model() -> Iterator[Model]:
    with load(GGUF, backend="llamacpp", threads=1, context=2048) as loaded:
        yield loaded


ran: list[Any] = []


@tool(repeatable=True)
def add(a: Annotated[int, Field(ge=0, le=99)], b: Annotated[int, Field(ge=0, le=99)]) -> int:
    """Add two numbers."""
    ran.append((a, b))
    return a + b


@tool(repeatable=True)
def get_city(person: Annotated[str, Field(max_length=20)]) -> str:
    """The city that a person lives in."""
    ran.append(person)
    return "Oslo"


@pytest.mark.parametrize("choice", ["required", "get_city"])
def test_a_required_call_is_made_once_and_then_the_run_can_answer(nano_model: Model, choice: str) -> None:
    ran.clear()
    agent = Agent(nano_model, [add, get_city], tool_choice=choice, parallel_tool_calls=False, max_tokens=200)
    done = agent.respond("Hello!")
    assert ran
    assert done.stop_reason == "answer"
    if choice == "get_city":
        assert isinstance(ran[0], str)


def test_what_was_required_is_not_asked_of_later_turns() -> None:
    model, told = scripted(block("add(a=1, b=2)"), "Three."), []
    stream = model.stream

    def listening(*arguments: Any, **options: Any) -> Any:
        told.append(options.get("tool_choice"))
        return stream(*arguments, **options)

    model.stream = listening  # type: ignore[method-assign]
    follow(Agent(model, [add], tool_choice="required"))
    assert told == ["required", None]
    told.clear()
    follow(Agent(model, [add], tool_choice="none"))
    assert told == ["none"]


def test_none_makes_no_call(nano_model: Model) -> None:
    ran.clear()
    done = Agent(nano_model, [get_city], max_tokens=80).respond("Where does Anna live?", tool_choice="none")
    assert done.stop_reason in ("answer", "length")
    assert not ran


def test_an_answer_in_a_format_comes_after_the_calls(nano_model: Model) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}  # fmt: skip
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    done = Agent(nano_model, [get_city], response_format=asked, max_tokens=200, max_turns=2).respond("Go on.")
    assert done.message is not None
    assert 0 <= json.loads(done.message.text)["n"] <= 9


@tool(repeatable=True)
def weigh(code: Annotated[str, Field(pattern=r"^[a-z]+$", max_length=5)], kg: int) -> int:
    """Weigh something; what it weighs must be even."""
    ran.append(code)
    return kg


def test_arguments_that_do_not_fit_what_was_not_enforced_are_told_to_the_model() -> None:
    """As for any call: what validates arguments does not ask how they came about."""
    messages, done = follow(Agent(scripted(block("weigh(code='A1', kg=2)"), "Sorry."), [weigh]))
    del messages
    [result] = [part for message in done.messages for part in getattr(message, "results", ())]
    assert "code" in result.text


@pytest.mark.parametrize(
    "options", [{"tool_choice": 3}, {"strict": "yes"}, {"response_format": "json"}], ids=str
)
def test_options_that_mean_nothing_are_refused_when_the_agent_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Agent(scripted("Hello."), [add], **options)


def test_a_tool_that_there_is_not_fails_the_run() -> None:
    *_, failed = Agent(scripted("Hello."), [add], tool_choice="fly").run("Go.")
    assert isinstance(failed, RunFailed)
    assert "no tool has that name: there are add" in str(failed.error)


def test_a_summary_is_text_whatever_the_turns_must_be() -> None:
    agent = Agent(wordy("You and I spoke.", context=100_000), [add], tool_choice="required", strict=True)
    respond, asked = agent.model.respond, []

    def listening(*arguments: Any, **options: Any) -> Any:
        asked.append(options.keys() & {"tool_choice", "response_format", "strict", "parallel_tool_calls"})
        assert options["tool_choice"] == "none"
        return respond(*arguments, **options)

    agent.model.respond = listening  # type: ignore[method-assign]
    list(agent.compact(talk(4)))
    assert asked == [{"tool_choice"}]
