"""Alone or together, the same tokens: random schedules on real weights, and what may not spread between lanes.

The engine is stepped in the test's own thread, so a schedule is given by its seed. llama.cpp sums in another order where
a sequence has other cells of the pool, and where a batch has one row or several, and it rounds to 16 bits in between:
the same text has slightly other logits. Where two streams part, the test looks at the probabilities that they were
drawn from: more than `ROUNDING` apart, and a lane held what it should not; less, and it was a near tie, which is
counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from localagent.errors import EngineFailed
from localagent.hosts.llamacpp import LlamaCppHost
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.lanes import LlamaCppLane
from localagent.hosts.protocol import Prompt, Token
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF
from localagent.nano.requests import make_requests
from localagent.prompt import Trusted
from tests.conftest import LONG
from tests.hosts.stepping import Asked, Stepping

pytestmark = pytest.mark.engine

ROUNDING = 2e-3  # of a probability; 4e-4 is the most that was seen
LANES, CONTEXT = 8, 1024
SCHEDULES = 2000 if LONG else 100
MIXED = [
    Sampling(max_tokens=40),
    Sampling(max_tokens=25),
    Sampling(max_tokens=30, temperature=0.7, top_k=20, seed=1),
    Sampling(max_tokens=30, temperature=1.0, top_p=0.9, min_p=0.05, seed=2),
    Sampling(max_tokens=30, temperature=1.3, seed=3),
    Sampling(max_tokens=30, repetition_penalty=1.2),
    Sampling(max_tokens=30, temperature=0.8, repetition_penalty=1.1, top_k=40, seed=4, logprobs=2),
    Sampling(max_tokens=30, logprobs=3),
    Sampling(max_tokens=40, stop=('"', " the", ")")),
]


# -- what is asked ------------------------------------------------------------------------------------


@cache
def prompts(seed: int) -> list[list[int]]:
    """Conversations, each up to every one of its user's messages: many begin as others do."""
    found = []
    with LlamaCppHost.load(GGUF, context=CONTEXT, threads=1) as host:
        for kind in ("third_turn", "answers", "think_call", "quoted", "parallel", "greeting"):
            for request in make_requests(kind, 2, seed):
                turns: list[Any] = []
                for turn in request.messages:
                    content = Trusted(turn["content"]) if turn["role"] == "assistant" else turn["content"]
                    turns.append({**turn, "content": content})
                    if turn["role"] in ("user", "tool"):
                        found.append(list(host.render(turns, list(request.tools) or None).ids))
    return [ids for ids in found if len(ids) <= 500]


@cache
def again() -> list[int]:
    """What comes between an answer and the next one."""
    with LlamaCppHost.load(GGUF, context=CONTEXT, threads=1) as host:
        text = "<|im_end|>\n<|im_start|>user\nAnd once more, please.<|im_end|>\n<|im_start|>assistant\n"
        return list(host.tokenize(text, special=True))


class Recorder:
    """Keeps the logits of every draw, in the order of the generations that begin."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.drawn: dict[tuple[int, ...], list[list[Any]]] = {}
        begin, draw = LlamaCppLane.begin, LlamaCppLane.draw
        now: dict[int, list[Any]] = {}

        def begun(lane: LlamaCppLane, sampling: Sampling, history: Sequence[int]) -> None:
            begin(lane, sampling, history)
            now[id(lane)] = []
            self.drawn.setdefault(tuple(history), []).append(now[id(lane)])

        def recorded(lane: LlamaCppLane, logits: Any, row: int) -> int:
            now[id(lane)].append(logits[row].copy())
            return draw(lane, logits, row)

        patch.setattr(LlamaCppLane, "begin", begun)
        patch.setattr(LlamaCppLane, "draw", recorded)


# -- schedules ----------------------------------------------------------------------------------------


@dataclass
class Streams:
    """The streams of schedules, and where they parted from those that ran alone."""

    streams: int = 0
    tokens: int = 0
    cached: int = 0
    cancelled: int = 0
    parted: list[tuple[int, float, float]] = field(default_factory=list)
    """The schedule, how far the two likeliest tokens were apart, and the largest difference of a probability."""

    def __str__(self) -> str:
        near = ", ".join(f"schedule {seed}: {gap:.2g} and {far:.2g}" for seed, gap, far in self.parted)
        return (
            f"{self.streams} streams of {self.tokens} tokens, {self.cancelled} cancelled, {self.cached} tokens of "
            f"prompts reused; {len(self.parted)} parted (gap of the likeliest, difference): {near or '-'}"
        )


class Alone:
    """A request on an engine that has forgotten everything, kept for the next schedule that asks it."""

    def __init__(self, path: Path = GGUF, **options: Any) -> None:
        self._engine = LlamaCppEngine(path, Options(CONTEXT, 1, **options))
        self._known: dict[tuple[tuple[int, ...], Sampling], Asked] = {}

    def run(self, ids: Sequence[int], sampling: Sampling) -> Asked:
        key = tuple(ids), sampling
        if key not in self._known:
            stepping = Stepping(self._engine, budget=0)
            self._known[key] = stepping.ask(ids, sampling)
            stepping.run()
            assert self._known[key].finish.cached == 0
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()

    def close(self) -> None:
        self._engine.close()


def schedule(stepping: Stepping, seed: int, offered: list[list[int]]) -> list[Asked]:
    """Run a schedule to its end: what was asked."""
    draw = random.Random(seed)
    asked: list[Asked] = []
    leaving: dict[int, Asked] = {}
    left = draw.randrange(3, 9)
    for step in range(10_000):
        if left and draw.random() < draw.choice([0.05, 0.3, 1.0]):
            left -= 1
            ended = [each for each in asked if each.outcome in ("stop", "length")]
            if ended and draw.random() < 0.3:
                last = draw.choice(ended)
                ids = [
                    *last.job.generation.ids,
                    *(token.id for token in last.tokens if not token.end),
                    *again(),
                ]
            else:
                ids = draw.choice(offered)
            new = stepping.ask(ids[-CONTEXT:], draw.choice(MIXED))
            asked.append(new)
            if draw.random() < 0.15:
                leaving[step + draw.randrange(20)] = new
        if not stepping.step() and not left:
            return asked
        if step in leaving:
            leaving[step].channel.cancel()
    raise AssertionError("it does not end")


def compare(streams: Streams, seed: int, asked: list[Asked], alone: Alone, drawn: dict[Any, Any]) -> None:
    """Every stream against the same request alone; where they part, look at the logits."""
    for each in asked:
        ids, sampling = each.job.generation.ids, each.job.generation.sampling
        wanted = alone.run(ids, sampling)
        streams.streams += 1
        streams.tokens += len(each.tokens)
        streams.cached += each.finish.cached
        if each.finish.stop_reason == "cancelled":
            streams.cancelled += 1
            same = each.ids == wanted.ids[: len(each.ids)]
        else:
            same = (
                same_tokens(each.tokens, wanted.tokens)
                and each.finish.stop_reason == wanted.finish.stop_reason
            )
        if same:
            continue
        at = next((n for n, pair in enumerate(zip(each.ids, wanted.ids)) if pair[0] != pair[1]), None)
        assert at is not None, (seed, each.text, wanted.text, each.finish, wanted.finish)
        rows = {rows[at].tobytes(): rows[at] for rows in drawn[tuple(ids)] if len(rows) > at}
        with pytest.MonkeyPatch.context() as patch:
            cold = Recorder(patch)
            alone.forget()
            alone.run(ids, sampling)
        right = cold.drawn[tuple(ids)][0][at]
        top = numpy.sort(right)[-2:]
        far = min(float(abs(softmax(row) - softmax(right)).max()) for row in rows.values())
        streams.parted.append((seed, float(top[1] - top[0]), far))
        assert far < ROUNDING, (seed, at, each.text, wanted.text, "the logits are not those of the same text")


def same_tokens(left: list[Token], right: list[Token]) -> bool:
    """The same ids and texts, and log-probabilities as near as rounding lets them be."""
    if [(a.id, a.text) for a in left] != [(b.id, b.text) for b in right]:
        return False
    for a, b in zip(left, right, strict=True):
        assert (a.logprobs is None) == (b.logprobs is None)
        if a.logprobs and b.logprobs:
            values = [[each.token, *(value for _, value in each.top)] for each in (a.logprobs, b.logprobs)]
            assert numpy.exp(values[0]) == pytest.approx(numpy.exp(values[1]), abs=ROUNDING)
    return True


def softmax(logits: Any) -> Any:
    values = numpy.exp(logits.astype(numpy.float64) - logits.max())
    return values / values.sum()


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[list[LlamaCppEngine], Alone]]:
    """Engines of two to eight lanes, and one to ask alone."""
    together = [
        LlamaCppEngine(GGUF, Options(CONTEXT, 1, lanes=count, capacity=size)) for count, size in SIZES
    ]
    alone = Alone()
    yield together, alone
    for each in [*together, alone]:
        each.close()


SIZES = [(2, 1024), (3, 3072), (5, 2048), (8, 8192)]


def test_alone_or_together_the_same_tokens(
    engines: tuple[list[LlamaCppEngine], Alone],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    together, alone = engines
    streams = Streams()
    for seed in range(SCHEDULES):
        with monkeypatch.context() as patch:
            recorder = Recorder(patch)
            stepping = Stepping(together[seed % len(SIZES)])
            asked = schedule(stepping, seed, prompts(seed // 100))
        assert stepping.busy == 0
        compare(streams, seed, asked, alone, recorder.drawn)
        for lane in stepping.engine.lanes:
            lane.clear()
        if seed % 100 == 99:
            alone.forget()
    with capsys.disabled():
        print(f"\n{streams}")
    assert streams.cancelled
    assert streams.cached > streams.tokens
    assert len(streams.parted) <= streams.streams / 100
