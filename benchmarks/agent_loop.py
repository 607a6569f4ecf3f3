"""What the agent loop adds to the cost of `Model.stream`, and how long tools take that run in parallel.

    python benchmarks/agent_loop.py [--tokens 2000] [--tasks 30] [--rounds 7] [--threads 1] [--json]

    tokens   lfm2-nano without its end token writes `--tokens` tokens in one turn
    replayed ten times as many recorded tokens in one turn: without an engine, whose noise is larger
    tasks    lfm2-nano solves unseen tasks, each of two turns with a call and its result in between
    tools    a turn of 20 calls, of tools that sleep half a second each: the time of all over the slowest;
             `threads` are as many threads that only sleep

Lanes of the first three: `stream` is `Model.stream` and, for the calls, the shortest loop that one would
write around it; `run` and `arun` are the agent's. They run in turn, round by round, in one process.
Differences are taken within a round, and their median counts. Lanes that write different things are an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from localagent.agent import Agent, ToolEnded, TurnEnded
from localagent.hosts.host import Reuse
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.hosts.protocol import Token
from localagent.hosts.replay import ReplayHost
from localagent.messages import Message, SystemMessage, ToolMessage, UserMessage
from localagent.model import Model
from localagent.nano import GGUF
from localagent.nano.tasks import Task, make_tasks
from localagent.parsers import DIALECTS
from localagent.tools import Tool
from localagent.turn import Done
from localagent_bench.harness.bare_loops import endless

QUESTION = "Write a long story about a fox and a bear."
OPTIONS: dict[str, Any] = {"temperature": 0}
SLEEPERS, SLEEP = 20, 0.5
MARKERS = ("<|tool_call_start|>", "<|tool_call_end|>")
Lane = Callable[[], tuple[float, list[str | None]]]
"""Does its work once: the seconds, and what the model wrote."""


def load(path: Path, threads: int, context: int) -> Model:
    """The weights. No prefix is reused: every lane does the same work."""
    host = LlamaCppHost.load(path, context=context, threads=threads, reuse=Reuse(0))
    return Model(host, DIALECTS["lfm2"])


def lanes_of(stream: Lane, agents: list[tuple[Agent, str]], limit: int) -> dict[str, Lane]:
    """The lanes that are compared."""
    return {"stream": stream, "run": by_run(agents, limit), "arun": by_arun(agents, limit)}


def by_run(agents: list[tuple[Agent, str]], limit: int) -> Lane:
    """`Agent.run`, event by event."""

    def lane() -> tuple[float, list[str | None]]:
        written, started = [], perf_counter()
        for agent, prompt in agents:
            for event in agent.run(prompt, max_tokens=limit):
                if isinstance(event, TurnEnded):
                    written.append(event.message.raw)
        return perf_counter() - started, written

    return lane


def by_arun(agents: list[tuple[Agent, str]], limit: int) -> Lane:
    """`Agent.arun`, event by event."""

    async def work() -> tuple[float, list[str | None]]:
        written, started = [], perf_counter()
        for agent, prompt in agents:
            async for event in agent.arun(prompt, max_tokens=limit):
                if isinstance(event, TurnEnded):
                    written.append(event.message.raw)
        return perf_counter() - started, written

    return lambda: asyncio.run(work())


def by_hand(model: Model, tasks: list[Task], limit: int) -> Lane:
    """The simplest loop around `Model.stream` that solves the tasks."""

    def lane() -> tuple[float, list[str | None]]:
        written, started = [], perf_counter()
        for task in tasks:
            functions = {tool.name: tool for tool in tools_of(task)}
            history: list[Message] = [SystemMessage(content=task.system)] if task.system else []
            history.append(UserMessage(content=task.prompt))
            while True:
                for event in model.stream(history, tools=task.tools, max_tokens=limit, **OPTIONS):
                    if isinstance(event, Done):
                        message = event.message
                written.append(message.raw)
                history.append(message)
                if not message.tool_calls:
                    break
                results = [
                    call.result(str(functions[call.name].bind(call.arguments)(None)))  # type: ignore[arg-type]
                    for call in message.tool_calls
                ]
                history.append(ToolMessage.from_results(results))
        return perf_counter() - started, written

    return lane


def by_stream(model: Model, limit: int) -> Lane:
    """`Model.stream`, event by event."""

    def lane() -> tuple[float, list[str | None]]:
        written, started = [], perf_counter()
        for event in model.stream(QUESTION, max_tokens=limit, **OPTIONS):
            if isinstance(event, Done):
                written.append(event.message.raw)
        return perf_counter() - started, written

    return lane


def tools_of(task: Task) -> list[Tool]:
    """Tools that give back what the task says, whatever they are called with."""
    results = {step.name: step.result for steps in task.rounds for step in steps}

    def binding(name: str) -> Callable[[Mapping[str, Any]], Any]:
        return lambda arguments: lambda context: results.get(name, "error: unexpected")

    return [
        Tool(
            name=f["name"], description=f["description"], parameters=f["parameters"], bind=binding(f["name"])
        )
        for f in (tool["function"] for tool in task.tools)
    ]


def solvable(model: Model, count: int) -> list[Task]:
    """Tasks of one call each that the model solves, so that every lane has two turns for each."""
    found = []
    for task in make_tasks("one", 2 * count, seed=5):
        _, written = by_hand(model, [task], 200)()
        if len(written) == 2 and (written[1] or "").removesuffix("<|im_end|>") == task.answer:
            found.append(task)
    return found[:count]


def measure(lanes: dict[str, Lane], rounds: int, units: int) -> list[dict[str, Any]]:
    """One row per lane: microseconds per unit, and those above the first lane."""
    found: dict[str, list[float]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(rounds + 1):
        runs = {name: lanes[name]() for name in (names if number % 2 else names[::-1])}
        if any(written != runs[names[0]][1] for _, written in runs.values()):
            raise SystemExit("the lanes disagree on what the model wrote")
        if number == 0:  # warm-up
            continue
        for name, (seconds, _) in runs.items():
            found[name].append(1e6 * seconds / units)
    first = found[names[0]]
    return [
        {
            "lane": name,
            "us": round(median(each), 1),
            "ratio": round(median(own / bare for own, bare in zip(each, first, strict=True)), 3),
            "us_above": round(median(own - bare for own, bare in zip(each, first, strict=True)), 1),
        }
        for name, each in found.items()
    ]


def tokens(count: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Tokens of lfm2-nano."""
    with tempfile.TemporaryDirectory() as work:
        path = endless(GGUF, Path(work))
        with load(path, threads, count + 600) as model:
            return one_turn(model, count, rounds)


def replayed(count: int, rounds: int) -> list[dict[str, Any]]:
    """The same with recorded words of six characters, which cost no engine."""
    recording = [Token(number, f" w{number % 10_000:04}", False) for number in range(count)]
    model = Model(ReplayHost([recording], MARKERS), DIALECTS["lfm2"])
    return one_turn(model, count, rounds)


def one_turn(model: Model, count: int, rounds: int) -> list[dict[str, Any]]:
    """Many tokens in one turn."""
    agents = [(Agent(model, **OPTIONS), QUESTION)]
    return measure(lanes_of(by_stream(model, count), agents, count), rounds, count)


def tasks(count: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Short turns with calls between them."""
    with load(GGUF, threads, 4096) as model:
        chosen = solvable(model, count)
        agents = [
            (Agent(model, tools_of(task), instructions=task.system or None, **OPTIONS), task.prompt)
            for task in chosen
        ]
        lanes = lanes_of(by_hand(model, chosen, 200), agents, 200)
        return measure(lanes, rounds, 2 * len(chosen))


def sleepers(rounds: int) -> list[dict[str, Any]]:
    """Seconds from the first call to the last result, and over the longest that a tool took."""
    lanes = {"threads": sleep_in_threads, "run": sleep_as_tools}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in lanes}
    for _ in range(rounds):
        for name, lane in lanes.items():
            found[name].append(lane())
    return [
        {
            "lane": name,
            "seconds": round(median(wall for wall, _ in each), 4),
            "over_slowest": round(median(wall / slowest for wall, slowest in each), 4),
        }
        for name, each in found.items()
    ]


def slept() -> float:
    """Sleep; the seconds it took."""
    started = perf_counter()
    time.sleep(SLEEP)
    return perf_counter() - started


def sleep_in_threads() -> tuple[float, float]:
    """As many threads, and nothing else."""
    started = perf_counter()
    with ThreadPoolExecutor(SLEEPERS) as pool:
        took = list(pool.map(lambda _: slept(), range(SLEEPERS)))
    return perf_counter() - started, max(took)


def sleep_as_tools() -> tuple[float, float]:
    """A turn of calls, recorded, which an agent runs."""
    took: list[float] = []

    def bind(arguments: Mapping[str, Any]) -> Any:
        return lambda context: took.append(slept())

    parameters = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    sleeper = Tool(name="sleep", description="Sleep.", parameters=parameters, bind=bind)
    host = ReplayHost(list(recordings()), MARKERS)
    events = Agent(Model(host, DIALECTS["lfm2"]), [sleeper]).run("Sleep.")
    times = [perf_counter() for event in events if isinstance(event, TurnEnded | ToolEnded)]
    assert len(took) == SLEEPERS == len(times) - 2
    return times[-2] - times[0], max(took)


def recordings() -> Iterator[list[Token]]:
    """A turn of calls, and an answer."""
    calls = DIALECTS["lfm2"].render([("sleep", {"number": number}) for number in range(SLEEPERS)])
    start, end = MARKERS
    inner = calls.removeprefix(start).removesuffix(end)
    yield [Token(1, start, True), Token(2, inner, False), Token(3, end, True)]
    yield [Token(4, "Done.", False)]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "tokens": tokens(options.tokens, options.rounds, options.threads),
        "replayed": replayed(10 * options.tokens, options.rounds),
        "tasks": tasks(options.tasks, options.rounds, options.threads),
        "tools": sleepers(options.rounds),
    }
    if options.json:
        print(json.dumps(vars(options) | found))
        return
    for name, unit in (("tokens", "token"), ("replayed", "token"), ("tasks", "turn")):
        print(f"{name:<8}{'us per ' + unit:>14}{'ratio':>9}{'us above stream':>17}")
        for row in found[name]:
            print(f"{row['lane']:<8}{row['us']:>14}{row['ratio']:>9}{row['us_above']:>17}")
    print(f"{'tools':<8}{'seconds':>14}{'of the slowest':>17}")
    for row in found["tools"]:
        print(f"{row['lane']:<8}{row['seconds']:>14}{row['over_slowest']:>17}")


if __name__ == "__main__":
    main()
