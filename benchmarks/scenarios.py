"""The requests of `concurrency.py`, what comes of them, and scenarios."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Protocol

from rich.console import Console

from localagent_bench.server.load import QUESTION, RUNNING, WORDS
from servers import Failed


@dataclass(frozen=True)
class Request:
    """`count` tokens to be written."""

    system: str
    user: str
    count: int
    ids: tuple[int, ...] = ()
    """What the messages are rendered to, for sides that take ids."""


@dataclass
class Seen:
    """What came of a request. Times are those of the tokens, in seconds."""

    started: float = 0.0
    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Empty where the side does not say."""
    written: int = 0
    """Tokens; more than there are times where a server sends none for a token that is no text yet."""
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


class Side(Protocol):
    """Serves requests, many at once."""

    name: str
    build: str
    """Which engine it is, and for which processor it was built."""

    async def complete(self, request: Request, seen: Seen) -> None:
        """Note every token in `seen` as it arrives."""


class Writer:
    """Makes requests of words drawn at random: two writers with the same seed make the same ones."""

    def __init__(self, options: argparse.Namespace, seed: str) -> None:
        """`options`: `tokens` that each request writes, and `words` of a long prompt."""
        self._random = random.Random(seed)
        self.options = options

    def words(self, count: int) -> str:
        """So many words."""
        return " ".join(self._random.choices(WORDS.split(), k=count))

    def request(self, user: str, system: str | None = None) -> Request:
        """A request; its own system prompt stands where the template would put the same one in all."""
        return Request(self.words(6) if system is None else system, user, self.options.tokens)

    def questions(self, count: int, system: str | None = None) -> list[Request]:
        """Short requests."""
        return [self.request(QUESTION + self.words(8 + number % 4), system) for number in range(count)]


@dataclass
class Run:
    """One scenario on one side, once. The first of the figures is the one that sides are compared by."""

    figures: dict[str, float]
    seen: list[Seen]


Scenario = Callable[[Side, Writer], Coroutine[Any, Any, Run]]


async def ask(side: Side, request: Request, seen: Seen) -> None:
    """One request, to its end."""
    seen.started = perf_counter()
    await side.complete(request, seen)
    check(side, request, seen)


def check(side: Side, request: Request, seen: Seen) -> None:
    """Raise Failed unless as many tokens came as were asked for."""
    if seen.written != request.count or not seen.times:
        raise Failed(
            f"{side.name}: {seen.written} tokens came, not {request.count}: does the model end its turn? "
            "Use a smaller --tokens"
        )


def first(seen: Seen) -> float:
    """Seconds to the first token."""
    return seen.times[0] - seen.started


async def streams(side: Side, writer: Writer, *, count: int) -> Run:
    """Requests that all arrive at once."""
    requests = writer.questions(count)
    seen = [Seen() for _ in requests]
    await asyncio.gather(*map(partial(ask, side), requests, seen))
    seconds = max(each.times[-1] for each in seen) - min(each.started for each in seen)
    figures = {
        "tokens/s": count * writer.options.tokens / seconds,
        "first, s": median(map(first, seen)),
        "worst, s": max(map(first, seen)),
        "gap, s": max(
            (later - sooner for each in seen for sooner, later in pairwise(each.times)), default=0.0
        ),
    }
    return Run(figures, seen)


async def long_prompt(side: Side, writer: Writer) -> Run:
    """The long prompt arrives when one stream has written a quarter: where they run at once, all run then."""
    requests, long = writer.questions(RUNNING), writer.request(writer.words(writer.options.words))
    quarter = asyncio.Event()
    running = [Seen(mark=max(1, writer.options.tokens // 4), marked=quarter) for _ in requests]
    late = Seen()

    async def arrive() -> None:
        await quarter.wait()
        await ask(side, long, late)

    await asyncio.gather(*map(partial(ask, side), requests, running), arrive())
    begin, end = late.started, late.times[0]
    gaps = [
        later - sooner
        for each in running
        for sooner, later in pairwise(each.times)
        if later > begin and sooner < end
    ]
    figures = {
        "gap, s": max(gaps, default=0.0),
        "first, s": first(late),
        "meanwhile": sum(begin < time < end for each in running for time in each.times),
    }
    return Run(figures, [*running, late])


def streams_title(count: int) -> str:
    """How the scenario of so many streams is called."""
    return f"{count} stream{'s' * (count > 1)}"


def measure(
    sides: Sequence[Side],
    chosen: Mapping[str, Scenario],
    rounds: int,
    write: Callable[[str], Writer],
    runner: asyncio.Runner,
) -> dict[str, dict[str, list[Run]]]:
    """By scenario and side, the run of every round. `write`: makes a writer from a seed."""
    found: dict[str, dict[str, list[Run]]] = {}
    status = Console(stderr=True)
    for number in range(rounds):
        for title, scenario in chosen.items():
            for side in sides[:: 1 if number % 2 else -1]:
                begin = perf_counter()
                run = runner.run(scenario(side, write(f"{title} {number}")))
                status.print(f"round {number + 1}, {title}, {side.name}: {perf_counter() - begin:.1f} s")
                found.setdefault(title, {}).setdefault(side.name, []).append(run)
    return found


def ratios(own: Sequence[Run], other: Sequence[Run], head: str) -> float | None:
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
