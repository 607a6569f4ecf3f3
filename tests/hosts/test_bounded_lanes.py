"""Constraints on real engines: what bounds one lane, alone or beside others, leaves every lane's tokens as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from localagent.hosts.engine import Engine
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.sampling import Sampling
from tests.conftest import LONG
from tests.hosts.bounding import Bounded, Rule, made_up, mask_of, obeys
from tests.hosts.stepping import Asked, Stepping

pytestmark = pytest.mark.engine

TEXT = "<|im_start|>user\nWhat is the weather in {}, and why?<|im_end|>\n<|im_start|>assistant\n"
MIXED = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 20, "seed": 2},
    {"temperature": 1.2, "min_p": 0.05, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 3},
    {"repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 4, "logprobs": 1},
]


@pytest.fixture(scope="module", params=["llamacpp", "mlx"])
def engine(request: pytest.FixtureRequest, nano: dict[str, Path]) -> Iterator[Engine]:
    if request.param == "mlx":
        pytest.importorskip("mlx_lm")
        from localagent.hosts.mlx.engine import MlxEngine

        made: Any = MlxEngine.load(nano["mlx"], 512, lanes=4)
    else:
        made = LlamaCppEngine(nano["llamacpp"], Options(512, 1, lanes=4, capacity=4 * 512))
    yield made
    made.close()


@pytest.fixture
def stepping(engine: Engine) -> Iterator[Stepping]:
    """The engine with lanes that hold nothing, and no memory of what they held."""
    yield Stepping(engine)
    for lane in engine.lanes:
        lane.end()
        lane.clear()


def prompt(engine: Engine, word: str) -> tuple[int, ...]:
    return engine.vocabulary.tokenize(TEXT.format(word), True)


def words_only(engine: Engine, count: int = 300) -> list[int]:
    """Tokens of letters, which end no turn."""
    pieces = [engine.vocabulary.piece(token) for token in range(engine.vocabulary.size)]
    return [token for token, piece in enumerate(pieces) if piece.data.strip().isalpha()][:count]


def run_alone(engine: Engine, ids: Any, sampling: Sampling, rule: Rule | None) -> Asked:
    for lane in engine.lanes:
        lane.clear()
    stepping = Stepping(engine, budget=0)
    asked = stepping.ask(ids, sampling, rule and Bounded(rule, engine.vocabulary.size))
    stepping.run()
    return asked


@pytest.mark.parametrize("options", MIXED, ids=str)
def test_what_the_mask_bars_ends_the_turn_where_it_is_to(engine: Engine, options: dict[str, Any]) -> None:
    """The model draws as it would without a mask; only where that is barred does the end come in its place."""
    size = engine.vocabulary.size
    [end] = engine.vocabulary.tokenize("<|im_end|>", True)
    ids, sampling = prompt(engine, "Rome"), Sampling(max_tokens=12, **options)
    free = run_alone(engine, ids, sampling, None)
    assert end not in free.ids[:5]

    def asked(barred: int) -> Asked:
        for lane in engine.lanes:
            lane.clear()
        stepping = Stepping(engine, budget=0)
        mask = mask_of([token for token in range(size) if token != barred], size)
        answer = stepping.ask(ids, sampling, Bounded(lambda _: mask, size, end))
        stepping.run()
        return answer

    place = max(range(5), key=lambda n: free.ids.index(free.ids[n]))
    ended = asked(free.ids[place])
    assert ended.ids == [*free.ids[:place], end]
    assert ended.outcome == "stop"
    unused = next(token for token in words_only(engine) if token not in free.ids)
    assert said(asked(unused)) == said(free)


def said(asked: Asked) -> list[Any]:
    """What came. A batch may change the last bits of a log-probability, so these are compared elsewhere."""
    return [(token.id, token.text, token.logprobs is None) for token in asked.tokens]


@pytest.mark.parametrize("options", MIXED, ids=str)
def test_a_mask_that_allows_everything_changes_nothing(engine: Engine, options: dict[str, Any]) -> None:
    size = engine.vocabulary.size
    ids, sampling = prompt(engine, "Rome"), Sampling(max_tokens=16, **options)
    free = run_alone(engine, ids, sampling, None)
    everything = mask_of(range(size), size)
    assert said(run_alone(engine, ids, sampling, lambda _: everything)) == said(free)
    assert said(run_alone(engine, ids, sampling, lambda _: None)) == said(free)


@pytest.mark.parametrize("options", MIXED, ids=str)
def test_a_forced_beginning_is_as_if_it_had_been_drawn(engine: Engine, options: dict[str, Any]) -> None:
    """Forced or drawn under a mask of one, the same tokens come, and the same ones after them."""
    if options.get("temperature"):
        options = {**options, "temperature": 0.0}  # else the draws of the mask of one have used up numbers
    size = engine.vocabulary.size
    start = engine.vocabulary.tokenize("The weather is", False)
    ids = prompt(engine, "Rome")

    def masked(so_far: Any) -> Any:
        return mask_of([start[len(so_far)]], size) if len(so_far) < len(start) else None

    def forced(so_far: Any) -> Any:
        return list(start[len(so_far) :]) or None

    sampling = Sampling(max_tokens=20, **options)
    drawn = run_alone(engine, ids, sampling, masked)
    assert drawn.text.startswith("The weather is")
    assert said(run_alone(engine, ids, sampling, forced)) == said(drawn)


@pytest.mark.parametrize("liked", [True, False])
@pytest.mark.parametrize("forced", [True, False])
def test_the_repetition_penalty_sees_what_came_and_nothing_else(
    engine: Engine, forced: bool, liked: bool
) -> None:
    """After it the model goes on as after a prompt that ends so; what it would have said instead is not seen."""
    size = engine.vocabulary.size
    ids, sampling = prompt(engine, "Rome"), Sampling(max_tokens=10, repetition_penalty=9.0)
    wanted = run_alone(engine, ids, Sampling(max_tokens=6), None).ids
    likely = [*reversed(wanted), *wanted[:2]]  # what it would say again
    start = likely if liked else list(engine.vocabulary.tokenize(" green apples", False))

    def rule(so_far: Any) -> Any:
        rest = start[len(so_far) :]
        return (rest if forced else mask_of(rest[:1], size)) if rest else None

    after = run_alone(engine, [*ids, *start], sampling, None)
    bounded = run_alone(engine, ids, Sampling(max_tokens=len(start) + 10, repetition_penalty=9.0), rule)
    assert bounded.ids == [*start, *after.ids]


def test_probabilities_are_those_before_the_mask(engine: Engine) -> None:
    ids, sampling = prompt(engine, "Rome"), Sampling(max_tokens=1, logprobs=5)
    free = run_alone(engine, ids, sampling, None).tokens[0]
    assert free.logprobs is not None
    fifth, score = free.logprobs.top[4]
    mask = mask_of([fifth], engine.vocabulary.size)
    bounded = run_alone(engine, ids, sampling, lambda _: mask).tokens[0]
    assert bounded.logprobs is not None
    assert bounded.id == fifth
    assert bounded.logprobs.token == pytest.approx(score, abs=1e-6)
    assert bounded.logprobs.top == free.logprobs.top


@pytest.mark.parametrize("seed", range(200 if LONG else 12))
def test_alone_or_together_the_same_tokens(engine: Engine, stepping: Stepping, seed: int) -> None:
    """Random arrivals, free and bounded, and cancels; then each once more alone."""
    draw = random.Random(seed)
    letters = words_only(engine)
    size = engine.vocabulary.size
    asked: list[tuple[Asked, Rule | None]] = []
    for number in range(6):
        rule: Rule | None = None
        if draw.random() < 0.7:
            made = made_up(draw.randrange(99), size, len(letters))
            rule = translated(made, letters, size)
        sampling = Sampling(max_tokens=draw.randrange(4, 24), **draw.choice(MIXED))
        ids = prompt(stepping.engine, draw.choice(["Rome", "Oslo", "Bern"]))
        asked.append((stepping.ask(ids, sampling, rule and Bounded(rule, size)), rule))
        for _ in range(draw.randrange(12)):
            stepping.step()
        if draw.random() < 0.2:
            asked[draw.randrange(number + 1)][0].cancel.set()
    stepping.run()
    assert stepping.busy == 0
    for each, rule in asked:
        assert each.outcome in ("length", "stop", "cancelled")
        if rule is not None:
            assert obeys(rule, each.ids)
        generation = each.job.generation
        alone = run_alone(engine, generation.ids, generation.sampling, rule)
        assert said(each) == said(alone)[: len(each.ids)]
        if each.outcome != "cancelled":
            assert len(each.ids) == len(alone.ids)


def translated(rule: Rule, tokens: list[int], size: int) -> Rule:
    """The same for other tokens than the first ones."""
    number = {token: at for at, token in enumerate(tokens)}

    def other(so_far: Any) -> Any:
        found = rule([number.get(token, 0) for token in so_far])
        if isinstance(found, list):
            return [tokens[token] for token in found]
        if found is None:
            return None
        flags = numpy.unpackbits(found.view(numpy.uint8), bitorder="little")
        return mask_of([tokens[at] for at in numpy.flatnonzero(flags)], size)

    return other
