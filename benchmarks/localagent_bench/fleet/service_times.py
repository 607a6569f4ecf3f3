"""What one replica takes for a token of a prompt and for a step of its lanes: `Times`, for the simulation.

A host in this process is asked for tokens, below its parser. Prompts of several lengths are read one after
the other, and lanes write together at two depths; what `Times` has is fitted to the quickest of the rounds,
since what else a machine does makes it slower, and never quicker.
"""

from __future__ import annotations

import asyncio
import platform
from contextlib import closing
from pathlib import Path
from time import perf_counter

import numpy as np

from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.memory import estimate_gguf
from localagent.hosts.llamacpp.prefill import LEAST, choose_prefill
from localagent_bench.fleet.replica import Times
from localagent_bench.harness.scenarios import Tokens
from localagent_bench.harness.servers import Settings
from localagent_bench.harness.sides import Localagent
from localagent_bench.server.load import LoadRequest, RequestWriter

SHALLOW, DEEP = 64, 320
"""Tokens in each lane when it begins to write."""
WRITTEN = 24
"""Tokens that each lane writes while all of them do."""
PROMPTS = (64, 192, 512)
"""Tokens of the prompts that are read."""


def measure(model: str, weights: Path, lanes: int, threads: int, rounds: int) -> Times:
    """The times of a GGUF file whose turns do not end by themselves. Raises LocalAgentError."""
    context = 2 * max(DEEP, *PROMPTS)
    settings = Settings(str(weights), context, lanes, threads)
    header = read_header(weights)
    prefill = choose_prefill(header, context)
    with closing(Localagent(settings)) as side:
        words = _Words(side)
        asyncio.run(_lanes(side, words, 2, SHALLOW))  # the first computations of an engine are slower
        reads = {size: [asyncio.run(_reads(side, words, size)) for _ in range(rounds)] for size in PROMPTS}
        steps = {
            (count, depth): min(asyncio.run(_lanes(side, words, count, depth)) for _ in range(rounds))
            for count in _counts(lanes)
            for depth in ((SHALLOW, DEEP) if count == lanes else (SHALLOW,))
        }
        preamble = words.preamble()
    token, token_depth = _reading({size: min(times) for size, times in reads.items()})
    base, step_depth = _stepping(steps, lanes)
    return Times(
        model=model,
        token=token,
        token_depth=token_depth,
        steps=base,
        step_depth=step_depth,
        chunk=prefill.chunk,
        bytes_per_token=estimate_gguf(weights, header, context, prefill).kv_per_token,
        preamble=preamble,
        machine=f"{platform.machine()}, {threads} threads",
    )


class _Words:
    """Prompts of so many tokens, each of other words."""

    def __init__(self, side: Localagent) -> None:
        self._side = side
        self._writer = RequestWriter("service times", WRITTEN)

    def prompt(self, tokens: int, count: int) -> LoadRequest:
        ids = self._side.host.tokenize(self._writer.words(tokens), False)[:tokens]
        return LoadRequest("", "", count, tuple(ids))

    def preamble(self) -> int:
        """Tokens that the prompts of all conversations begin with."""
        one, other = (self._side.model.render(word, limit=float("inf")).ids for word in ("Red", "7"))
        return next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def _counts(lanes: int) -> list[int]:
    """One, two, four and so on, and all."""
    return sorted({*(1 << power for power in range(lanes.bit_length()) if 1 << power <= lanes), lanes})


async def _reads(side: Localagent, words: _Words, size: int) -> float:
    seen = Tokens()
    await _ask(side, words.prompt(size, 1), seen)
    return seen.first


async def _lanes(side: Localagent, words: _Words, count: int, depth: int) -> float:
    """Seconds of a step, while all of the lanes write."""
    seen = [Tokens() for _ in range(count)]
    # Who begins first writes a token for each chunk of the others' prompts.
    tokens = WRITTEN + -(-count * depth // LEAST)
    await asyncio.gather(*(_ask(side, words.prompt(depth, tokens), each) for each in seen))
    begin, end = max(each.times[0] for each in seen), min(each.times[-1] for each in seen)
    steps = max(sum(begin < time <= end for time in each.times) for each in seen)
    return (end - begin) / steps


async def _ask(side: Localagent, request: LoadRequest, seen: Tokens) -> None:
    seen.started = perf_counter()
    await side.complete(request, seen)


def _reading(seconds: dict[int, float]) -> tuple[float, float]:
    """For a token at the beginning, and more for each token before it: of the lengths the best fit."""
    sizes = np.array(list(seconds), dtype=float)
    # Relative errors: the short prompts count as much as the long ones.
    told = np.array([*seconds.values()])
    columns = np.stack([sizes, sizes**2 / 2], axis=1) / told[:, None]
    (token, depth), *_ = np.linalg.lstsq(columns, np.ones_like(told), rcond=None)
    if depth < 0:
        return float(np.mean(told / sizes)), 0.0
    return float(token), float(depth)


def _stepping(steps: dict[tuple[int, int], float], lanes: int) -> tuple[list[float], float]:
    """For a step by the number of lanes at depth 0, and more for each token that the lanes hold."""
    counts = sorted({count for count, _ in steps})
    most = counts[-1]
    slope = max(0.0, (steps[most, DEEP] - steps[most, SHALLOW]) / (most * (DEEP - SHALLOW)))
    # A line through noise must not leave a step that takes no time.
    base = [
        max(steps[each, SHALLOW] - slope * each * (SHALLOW + WRITTEN / 2), steps[each, SHALLOW] / 4)
        for each in counts
    ]
    return [float(np.interp(each, counts, base)) for each in range(1, lanes + 1)], slope
