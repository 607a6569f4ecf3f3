"""How fast a model reads and writes at some depth of context, and what memory it takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localagent.errors import LocalAgentError
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.nano.values import sentence
from localagent.nano.words import Lexicon
from localagent.prompt.segments import Prompt
from localagent_bench.model.energy import EnergyMeter, NotTold
from localagent_bench.model.sides import Opened, resident, weights_of
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.statistics import spread

Tell = Callable[[str, int, int], None]
"""Progress: what is being done, how much of it is, and of how much."""

SPEED = Table(
    "model.speed",
    "Speed against the depth of the context",
    (
        Column("side", "model"),
        Column("depth", "depth", "tokens"),
        Column("prompt", "prompt", "tokens/s", "more", 1),
        Column("prompt_low", "least", "tokens/s", decimals=1),
        Column("prompt_high", "most", "tokens/s", decimals=1),
        Column("decode", "decode", "tokens/s", "more", 1),
        Column("decode_low", "least", "tokens/s", decimals=1),
        Column("decode_high", "most", "tokens/s", decimals=1),
        Column("watts", "power", "W", "less", 1),
        Column("joules", "energy per token", "J", "less", 3),
        Column("rounds", "rounds"),
    ),
    "Depth tokens are in the context already; then a prompt is read, and an answer decoded, one likeliest "
    "token after the other, without drafts. Invented words, a new prompt in each round; sides take turns. "
    "The median of the rounds, and the least and the most of them. Power is of the whole processor while it "
    "decodes.",
    (
        Chart("lines", "depth", ("decode",), "Decode speed, tokens/s", "side"),
        Chart("lines", "depth", ("prompt",), "Prompt speed, tokens/s", "side"),
    ),
    within="depth",
)
RATIO = Table(
    "model.ratio",
    "How many times as fast",
    (
        Column("side", "model"),
        Column("against", "against"),
        Column("depth", "depth", "tokens"),
        Column("what", "what"),
        Column("ratio", "ratio", "", "more", 3),
        Column("low", "least", "", decimals=3),
        Column("high", "most", "", decimals=3),
        Column("rounds", "rounds"),
    ),
    "The speed of a model over that of the one it is held against, round by round, so that the drift of the "
    "machine cancels: the median, the least and the most.",
    within="depth",
)
MEMORY = Table(
    "model.memory",
    "Memory",
    (
        Column("side", "model"),
        Column("engine", "engine"),
        Column("context", "context", "tokens"),
        Column("weights", "weights", "MB", "less", 1),
        Column("loaded", "grown by loading", "MB", "less", 1),
        Column("deep", "by reading", "MB", "less", 1),
        Column("kept", "kept prompts", "MB", "less", 1),
        Column("seconds", "loading", "s", "less", 2),
    ),
    "Weights: as the files are. What the process has grown by when the model was loaded, and then when it "
    "had read and written at the greatest depth; mapped files count as far as they were read. What a "
    "graphics card holds is not in it. Kept prompts: what the host keeps of evaluated prompts.",
)
_GREEDY: dict[str, Any] = {"temperature": 1.0, "top_k": 1}
"""The likeliest token, but without the drafts of a temperature of 0: they make text that repeats fast."""
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many tokens are read and written at each depth, and how often."""

    depths: Sequence[int]
    prompt: int = 256
    decode: int = 64
    rounds: int = 3


@dataclass(slots=True)
class Sample:
    """One round at one depth: tokens per second, and joules for the decoded tokens."""

    prompt: float
    decode: float | None
    watts: float | None = None
    joules: float | None = None


Samples = dict[tuple[str, int], list[Sample]]
"""What was found, by side and depth: a sample for each round."""


def measure_speed(results: Results, sides: Sequence[Opened], sizes: Sizes, tell: Tell) -> None:
    """Add the rows of `MEMORY`, `SPEED` and `RATIO`. Sides that share their weights are measured once."""
    own = [side for side in sides if side.own]
    fitting: dict[str, list[int]] = {}
    wanted = sizes.prompt + sizes.decode
    for side in own:
        room = side.host.context - wanted
        fitting[side.name] = [depth for depth in sizes.depths if depth <= room]
        for depth in (depth for depth in sizes.depths if depth > room):
            results.skip(
                f"{side.name} at a depth of {depth:,}",
                f"the context of {side.host.context:,} tokens has no room for {wanted} more",
            )
    try:
        meter = EnergyMeter()
    except NotTold as why:
        meter = None
        results.skip("power", str(why))
    for at, side in enumerate(own):  # also the first computation of the engine, which is slower
        tell(f"warming up {side.name}", at, len(own))
        before = resident()
        for depth in fitting[side.name][-1:] or [0]:
            with suppress(LocalAgentError):  # a context may have no room for even that
                _sample(side, depth, sizes, "warm up", None)
        _add_memory(results, side, resident() - before)
    found: Samples = {}
    jobs = [(number, depth) for number in range(sizes.rounds) for depth in sizes.depths]
    try:
        for at, (number, depth) in enumerate(jobs):
            tell(f"speed, round {number + 1}, depth {depth:,}", at, len(jobs))
            for side in own if number % 2 else own[::-1]:
                if depth in fitting[side.name]:
                    sample = _sample(side, depth, sizes, f"round {number}", meter)
                    found.setdefault((side.name, depth), []).append(sample)
        tell("speed", len(jobs), len(jobs))
    finally:
        _add_speed(results, found)
        _add_ratios(results, found, own, sizes)


def words(count: int, seed: str) -> str:
    """About `count` sentences of invented words."""
    lexicon = Lexicon(random.Random(seed), held_out=True)
    return " ".join(sentence(lexicon) for _ in range(count))


def ids_of(side: Opened, count: int, seed: str) -> tuple[int, ...]:
    """`count` tokens of such text."""
    ids: tuple[int, ...] = ()
    while len(ids) < count:  # a sentence has four words on average
        ids += side.host.tokenize(words(16 + (count - len(ids)) // 4, f"{seed}/{len(ids)}"), special=False)
    return ids[:count]


def _sample(side: Opened, depth: int, sizes: Sizes, seed: str, meter: EnergyMeter | None) -> Sample:
    host = side.host.scoped("speed")
    before, decoded, seconds, joules = ids_of(side, depth, "depth"), 0, 0.0, 0.0
    prompt_rate = 0.0
    for attempt in range(_ATTEMPTS):  # where the model soon ends its turn, it is asked again
        chunk = ids_of(side, sizes.prompt, f"{seed}/{depth}/{attempt}")
        if before:
            list(host.generate(Prompt(before, ""), Sampling(max_tokens=1)))
        wanted = Sampling(**_GREEDY, max_tokens=sizes.decode - decoded + 1)
        generation, times, energy = host.generate(Prompt((*before, *chunk), ""), wanted), [], None
        for token in generation:
            assert isinstance(token, Token)
            if meter is not None and energy is None:
                energy = meter.read()
            times.append(perf_counter())
        if meter is not None and energy is not None:
            joules += meter.since(energy)
        finish = generation.finish
        assert finish is not None
        if not attempt:
            prompt_rate = finish.prefilled / finish.timings.prefill
        decoded += len(times) - 1
        seconds += times[-1] - times[0]
        if decoded >= sizes.decode:
            break
    if decoded < sizes.decode // 2 or not seconds:
        return Sample(prompt_rate, None)
    power = (joules / seconds, joules / decoded) if meter is not None else (None, None)
    return Sample(prompt_rate, decoded / seconds, *power)


def _add_memory(results: Results, side: Opened, deep: int) -> None:
    host = side.host
    results.add(
        MEMORY,
        side=side.name,
        engine=host.engine,
        context=host.context,
        weights=_megabytes(_weights(side)),
        loaded=_megabytes(side.grown),
        deep=_megabytes(deep),
        kept=_megabytes(host.cache_bytes),
        seconds=side.seconds,
    )


def _weights(side: Opened) -> int | None:
    with suppress(LocalAgentError, OSError):
        path = weights_of(side.side.model, side.side.loading.get("backend"))
        if path is not None:
            files = path.glob("*.safetensors") if path.is_dir() else [path]
            return sum(file.stat().st_size for file in files)
    return None


def _add_speed(results: Results, found: Samples) -> None:
    for (name, depth), samples in found.items():
        cells: dict[str, Any] = {}
        for what in ("prompt", "decode"):
            values = [value for each in samples if (value := getattr(each, what)) is not None]
            if values:
                middle = spread(values)
                cells |= {what: middle.value, f"{what}_low": middle.low, f"{what}_high": middle.high}
        for what in ("watts", "joules"):
            values = [value for each in samples if (value := getattr(each, what)) is not None]
            cells[what] = spread(values).value if values else None
        if "decode" not in cells:
            results.skip(f"decoding of {name} at a depth of {depth:,}", "the model ends its turn at once")
        results.add(SPEED, side=name, depth=depth, rounds=len(samples), **cells)


def _add_ratios(results: Results, found: Samples, sides: Sequence[Opened], sizes: Sizes) -> None:
    for side in sides[1:]:
        for depth in sizes.depths:
            mine, others = (found.get((each.name, depth), []) for each in (side, sides[0]))
            for what in ("prompt", "decode"):
                pairs = [
                    (getattr(a, what), getattr(b, what)) for a, b in zip(mine, others, strict=False)
                ]  # the last round may lack one of them
                ratios = [a / b for a, b in pairs if a and b]
                if ratios:
                    middle = spread(ratios)
                    results.add(
                        RATIO, side=side.name, against=sides[0].name, depth=depth, what=what,
                        ratio=middle.value, low=middle.low, high=middle.high, rounds=len(ratios),
                    )  # fmt: skip


def _megabytes(size: int | None) -> float | None:
    return None if size is None else max(0, size) / 1e6
