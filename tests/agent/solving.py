"""Tasks of lfm2-nano for a real agent: tools that know the right calls, and what counts as solved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localagent.agent import Agent, RunDone, TurnEnded
from localagent.errors import InvalidArguments
from localagent.messages import AssistantMessage, Message, ToolMessage, Usage, UserMessage
from localagent.model import Model
from localagent.nano.tasks import Step, Task
from localagent.prompt.request import build_request
from localagent.tools import Tool, ToolContext, ToolOutput
from localagent.wire.chat_template import TARGET

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}
Calls = tuple[tuple[str, str], ...]
"""Names and arguments, the latter as JSON."""


def identity(name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """A call that can be compared: 1 is not 1.0 and not True."""
    return name, json.dumps(arguments, sort_keys=True)


class Bench:
    """The tools of tasks. Only an expected call gets the recorded result; every call that runs is written down."""

    def __init__(
        self, task: Task, seconds: float = 0.0, hear: Callable[[tuple[str, str]], None] | None = None
    ) -> None:
        """`seconds`: how long a call takes. `hear` is told of each that begins to run."""
        self.ran: list[tuple[str, str]] = []
        self._hear = hear or self.ran.append
        self._seconds = seconds
        self._expected = {identity(s.name, s.arguments): s for steps in task.rounds for s in steps}
        self.tools = [self._tool(schema["function"]) for schema in task.tools]

    def _tool(self, function: dict[str, Any]) -> Tool:
        name, parameters = function["name"], function["parameters"]

        def bind(arguments: Mapping[str, Any]) -> Any:
            check(arguments, parameters)

            def run(context: ToolContext) -> ToolOutput:
                made = identity(name, arguments)
                self._hear(made)
                context.cancel.wait(self._seconds)
                return output(self._expected.get(made))

            return run

        return Tool(name=name, description=function["description"], parameters=parameters, bind=bind)


def output(step: Step | None) -> ToolOutput:
    """What the tool gives back; None is a call that nobody expected."""
    if step is None:
        return ToolOutput("error: nobody asked for that", is_error=True)
    return ToolOutput(step.result, is_error=step.failed)


def check(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Hold the arguments against the schema. Raises InvalidArguments."""
    for name in parameters["required"]:
        if name not in arguments:
            raise InvalidArguments(f"{name} is missing")
    for name, value in arguments.items():
        if name not in parameters["properties"]:
            raise InvalidArguments(f"there is no {name}")
        kinds = parameters["properties"][name]["type"]
        kinds = [kinds] if isinstance(kinds, str) else kinds
        fits = any(
            value is None if kind == "null" else isinstance(value, TYPES[kind]) and
            (kind == "boolean" or not isinstance(value, bool))
            for kind in kinds
        )  # fmt: skip
        if not fits:
            raise InvalidArguments(f"{name} must be {' or '.join(kinds)}")


@dataclass(frozen=True)
class Outcome:
    """What came of a task."""

    rounds: tuple[Calls, ...]
    """The calls of every turn of the model that has some."""
    ran: Calls
    """The calls that reached a tool; those of one turn run at once, so in no order."""
    results: tuple[str, ...]
    thoughts: int
    """The turns that have some."""
    answer: str
    stop_reason: str

    def solves(self, task: Task) -> bool:
        """Exactly the right calls in the right turns, the right answer, and thoughts only where they are asked for."""
        rounds = tuple(tuple(identity(s.name, s.arguments) for s in steps) for steps in task.rounds)
        steps = [step for steps in task.rounds for step in steps]
        return self == Outcome(
            rounds=rounds,
            ran=tuple(sorted(call for calls in rounds for call in calls)),
            results=tuple(step.result for step in steps),
            thoughts=len(rounds) + 1 if task.kind == "thinking" else 0,
            answer=task.answer,
            stop_reason="answer",
        )


def outcome_of(messages: list[Message], ran: list[tuple[str, str]], stop_reason: str) -> Outcome:
    """The outcome that a conversation shows."""
    turns = [message for message in messages if isinstance(message, AssistantMessage)]
    return Outcome(
        rounds=tuple(
            tuple(identity(call.name, call.arguments) for call in turn.tool_calls)
            for turn in turns
            if turn.tool_calls
        ),
        ran=tuple(sorted(ran)),
        results=tuple(r.text for m in messages if isinstance(m, ToolMessage) for r in m.results),
        thoughts=sum(bool(turn.reasoning) for turn in turns),
        answer=turns[-1].text if turns else "",
        stop_reason=stop_reason,
    )


def solve(model: Model, task: Task) -> Outcome:
    """Let an agent solve the task, greedily, and check all that holds whether it is solved or not."""
    bench, history = Bench(task), list[Message]()
    agent = Agent(model, bench.tools, instructions=task.system or None, temperature=0, max_tokens=600)
    events = list(agent.run(task.prompt, history=history))
    done = events[-1]
    assert isinstance(done, RunDone), done
    assert list(done.messages) == history
    assert done.message is history[-1]
    check_history(history)
    turns = [message for message in history if isinstance(message, AssistantMessage)]
    assert done.turns == len(turns)
    assert done.usage == sum((turn.usage for turn in turns), Usage())
    ended = [event for event in events if isinstance(event, TurnEnded)]
    assert [event.message for event in ended] == turns
    assert done.usage.output == sum(len(event.token_ids) for event in ended) > 0
    return outcome_of(history, bench.ran, done.stop_reason)


def check_history(messages: list[Message]) -> None:
    """The request builder takes it, adds nothing, and every call has its own result directly behind it."""
    sent = build_request(messages, TARGET)
    assert len(sent.messages) == len(messages)
    assert isinstance(messages[0], UserMessage)
    for at, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            behind = messages[at + 1]
            assert isinstance(behind, ToolMessage)
            assert [r.call_id for r in behind.results] == [call.id for call in message.tool_calls]
            assert [r.name for r in behind.results] == [call.name for call in message.tool_calls]
