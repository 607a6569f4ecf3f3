"""A whole agent on real weights: lfm2-nano, greedy, on both engines, with tasks that nobody ever saw.

`make test-long` solves 100 of each kind; `pytest tests/agent/test_nano.py -s` prints the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from time import perf_counter

import pytest

from localagent.agent import Agent, AgentEvent, RunDone, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from localagent.messages import AssistantMessage, Message, ToolMessage, UserMessage
from localagent.model import Model, load
from localagent.nano.tasks import TASKS, Task, make_tasks
from localagent.tools import tool
from parsers import ArgumentsDelta, CallEnd, CallStart, Text
from tests.agent.solving import Outcome, check_history, solve
from tests.conftest import LONG

EACH = 100 if LONG else 10
EACH_ON_MLX = EACH if LONG else 2  # on a CPU, MLX takes ten times as long
ENGINES = ["llamacpp", "mlx"]
LEAST = 0.95


@cache
def tasks(engine: str) -> tuple[Task, ...]:
    each = EACH_ON_MLX if engine == "mlx" else EACH
    return tuple(task for kind in TASKS for task in make_tasks(kind, EACH, seed=21)[:each])


@pytest.fixture(scope="module")
def models(nano: dict[str, Path]) -> Iterator[dict[str, Model]]:
    pytest.importorskip("mlx_lm")
    with load(nano["llamacpp"], threads=1) as one, load(nano["mlx"]) as other:
        yield {"llamacpp": one, "mlx": other}


@pytest.fixture(scope="module")
def outcomes(models: dict[str, Model]) -> dict[str, list[Outcome]]:
    """What came of every task, by engine."""
    found = {}
    for engine in ENGINES:
        started = perf_counter()
        found[engine] = [solve(models[engine], task) for task in tasks(engine)]
        seconds = perf_counter() - started
        for kind in TASKS:
            of_kind = [
                o.solves(t) for o, t in zip(found[engine], tasks(engine), strict=True) if t.kind == kind
            ]
            print(f"{engine}: {kind}, {sum(of_kind)} of {len(of_kind)} solved")
        print(f"{engine}: {seconds:.1f} s")
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_unseen_tasks_are_solved(outcomes: dict[str, list[Outcome]], engine: str) -> None:
    asked = tasks(engine)
    assert {task.kind for task in asked} == set(TASKS)
    assert all(task.answer and sum(map(len, task.rounds)) in (1, 2) for task in asked)
    missed = [(t, o) for t, o in zip(asked, outcomes[engine], strict=True) if not o.solves(t)]
    assert len(missed) <= len(asked) * (1 - LEAST), missed


def test_both_engines_do_the_same(outcomes: dict[str, list[Outcome]]) -> None:
    on_llamacpp = zip(tasks("llamacpp"), outcomes["llamacpp"], strict=True)
    assert [outcome for task, outcome in on_llamacpp if task in tasks("mlx")] == outcomes["mlx"]


@tool
def get_weather(city: str, days: int = 1) -> dict[str, object]:
    """Get the weather in a city.

    Args:
        city: Where.
        days: How many days ahead.
    """
    return {"city": city, "sky": "cloudy", "degrees": 10 + days}


def shown(events: list[AgentEvent]) -> list[object]:
    """The events without ids, times and figures, which differ from run to run."""
    found: list[object] = []
    for event in events:
        match event:
            case TurnEnded():
                found.append((TurnEnded, event.turn, event.message.raw, event.token_ids))
            case ToolStarted():
                found.append((ToolStarted, event.call.name, event.call.arguments))
            case ToolEnded():
                found.append((ToolEnded, event.call.name, event.result.content, event.result.is_error))
            case RunDone():
                found.append((RunDone, event.turns, event.stop_reason, event.usage.output))
            case TurnStarted() | Text() | CallStart() | ArgumentsDelta() | CallEnd():
                found.append(event)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_is_called_and_its_result_told(models: dict[str, Model], engine: str) -> None:
    agent = Agent(models[engine], [get_weather], temperature=0)
    history: list[Message] = []
    events = list(agent.run("What will the weather be in Fence over the next 4 days?", history=history))

    assert [type(message) for message in history] == [
        UserMessage, AssistantMessage, ToolMessage, AssistantMessage,
    ]  # fmt: skip
    check_history(history)
    (call,) = history[1].tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Fence", "days": 4})
    (result,) = history[2].results
    assert (result.text, result.is_error) == ('{"city": "Fence", "sky": "cloudy", "degrees": 14}', False)
    assert history[3].text == "It is cloudy in Fence, 14 degrees."
    told = shown(events)
    kinds = [item[0] if isinstance(item, tuple) else type(item) for item in told]
    assert list(dict.fromkeys(kinds)) == [
        TurnStarted, CallStart, ArgumentsDelta, CallEnd, TurnEnded, ToolStarted, ToolEnded, Text, RunDone,
    ]  # fmt: skip
    assert "".join(event.text for event in events if isinstance(event, Text)) == history[3].text

    async def collect() -> list[AgentEvent]:
        return [
            event async for event in agent.arun("What will the weather be in Fence over the next 4 days?")
        ]

    assert shown(asyncio.run(collect())) == told
