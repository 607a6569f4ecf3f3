"""Scenarios of `concurrency.py`: those of `server.load`, for sides that are read by hand, token by token.

An HTTP library would take 0.1 ms for every token, of the processor on which a server computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from localagent_bench.harness.servers import SideFailed
from localagent_bench.server.load import RUNNING, LoadRequest, RequestWriter, Seen, gaps, lasted, meanwhile


@dataclass(slots=True)
class Tokens(Seen):
    """What came of a request, token by token."""

    ids: list[int] = field(default_factory=list)
    """Empty where the side does not say."""
    evaluated: int = 0
    """Tokens of the prompt that were computed, not taken from elsewhere."""
    mark: int = 0
    marked: asyncio.Event | None = None
    """Set when `mark` tokens have come."""

    def arrived(self, ids: Sequence[int] | None) -> None:
        """Tokens came together; None for one whose id is not known."""
        now = perf_counter()
        self.times += [now] * (1 if ids is None else len(ids))
        self.ids += ids or ()
        if self.marked is not None and len(self.times) >= self.mark:
            self.marked.set()


class ScenarioSide(Protocol):
    """Serves requests, many at once."""

    name: str
    build: str
    """Which engine it is, and for which processor it was built."""

    async def complete(self, request: LoadRequest, seen: Tokens) -> None:
        """Note every token in `seen` as it arrives."""


@dataclass
class ScenarioRun:
    """One scenario on one side, once. The first of the figures is the one that sides are compared by."""

    figures: dict[str, float]
    seen: list[Tokens]


Scenario = Callable[[ScenarioSide, Any], Coroutine[Any, Any, ScenarioRun]]
"""Of a side and a writer, of whichever kind the scenario needs."""


async def ask(side: ScenarioSide, request: LoadRequest, seen: Tokens) -> None:
    """One request, to its end."""
    seen.started = perf_counter()
    await side.complete(request, seen)
    check(side, request, seen)


def check(side: ScenarioSide, request: LoadRequest, seen: Tokens) -> None:
    """Raise Failed unless as many tokens came as were asked for."""
    if seen.written != request.count or not seen.times:
        raise SideFailed(
            f"{side.name}: {seen.written} tokens came, not {request.count}: does the model end its turn? "
            "Use a smaller --tokens"
        )


async def streams(side: ScenarioSide, writer: RequestWriter, *, count: int) -> ScenarioRun:
    """Requests that all arrive at once."""
    requests = writer.questions(count)
    seen = [Tokens() for _ in requests]
    await asyncio.gather(*map(partial(ask, side), requests, seen))
    figures = {
        "tokens/s": count * writer.tokens / lasted(seen),
        "first, s": median(each.first for each in seen),
        "worst, s": max(each.first for each in seen),
        "gap, s": max(gaps(seen), default=0.0),
    }
    return ScenarioRun(figures, seen)


async def long_prompt(side: ScenarioSide, writer: RequestWriter, *, words: int) -> ScenarioRun:
    """The long prompt arrives when one stream has written a quarter: where they run at once, all run then."""
    requests, long = writer.questions(RUNNING), writer.request(writer.words(words))
    quarter = asyncio.Event()
    running = [Tokens(mark=max(1, writer.tokens // 4), marked=quarter) for _ in requests]
    late = Tokens()

    async def arrive() -> None:
        await quarter.wait()
        await ask(side, long, late)

    await asyncio.gather(*map(partial(ask, side), requests, running), arrive())
    figures = {
        "gap, s": max(gaps(running, late.started, late.times[0]), default=0.0),
        "first, s": late.first,
        "meanwhile": meanwhile(running, late),
    }
    return ScenarioRun(figures, [*running, late])


def streams_title(count: int) -> str:
    """How the scenario of so many streams is called."""
    return f"{count} stream{'s' * (count > 1)}"


def measure(
    sides: Sequence[ScenarioSide],
    chosen: Mapping[str, Scenario],
    rounds: int,
    write: Callable[[str], RequestWriter],
    runner: asyncio.Runner,
) -> dict[str, dict[str, list[ScenarioRun]]]:
    """By scenario and side, the run of every round. `write`: makes a writer from a seed."""
    from rich.console import Console

    found: dict[str, dict[str, list[ScenarioRun]]] = {}
    status = Console(stderr=True)
    for number in range(rounds):
        for title, scenario in chosen.items():
            for side in sides[:: 1 if number % 2 else -1]:
                begin = perf_counter()
                run = runner.run(scenario(side, write(f"{title} {number}")))
                status.print(f"round {number + 1}, {title}, {side.name}: {perf_counter() - begin:.1f} s")
                found.setdefault(title, {}).setdefault(side.name, []).append(run)
    return found


def ratios(own: Sequence[ScenarioRun], other: Sequence[ScenarioRun], head: str) -> float | None:
    """The median of the ratios of one figure within a round; None where there is nothing to divide by."""
    found = [
        mine.figures[head] / theirs.figures[head]
        for mine, theirs in zip(own, other, strict=True)
        if theirs.figures[head]
    ]
    return median(found) if found else None


def numbers(text: str) -> list[int]:
    """Numbers on a command line, such as 1,4,8."""
    return [int(part) for part in text.split(",")]
