"""What a constraint bounds, what it forces, and that neither it nor its faults touch another generation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ConstraintFailed, EngineFailed
from localagent.hosts.sampling import Sampling
from tests.hosts.bounding import Bounded, Rule, made_up, mask_of, spoken_under
from tests.hosts.prefix.chain import folded, spoken
from tests.hosts.prefix.test_cache import talk
from tests.hosts.speaking import END, HEL, LO, Bytes, Speaking, SpeakingLane, failing
from tests.hosts.stepping import Asked, Stepping

SIZE = Bytes.size


def serving(lanes: int = 2, works: Any = lambda *_: None, **options: Any) -> tuple[Stepping, Speaking]:
    reading = options.pop("reading", True)
    engine = Speaking(None, works, lanes=lanes, **options)
    return Stepping(engine, reading=reading), engine


def bounded(rule: Rule) -> Bounded:
    return Bounded(rule, SIZE)


def forcing(*tokens: int) -> Rule:
    """These at the beginning, then anything."""
    return lambda said: list(tokens[len(said) :]) or None


def work(engine: Speaking) -> list[str]:
    return [what for what, _ in engine.log if what != "read"]


# -- what it bounds -----------------------------------------------------------------------------------


def test_a_mask_bounds_the_draws_for_which_it_holds() -> None:
    def rule(said: Sequence[int]) -> Any:
        return mask_of([3, 40], SIZE) if 2 <= len(said) < 5 else None

    stepping, _ = serving()
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=8), bounded(rule))
    stepping.run()
    assert asked.ids == spoken_under(rule, talk(0, 20), 8)
    assert set(asked.ids[2:5]) <= {3, 40}
    assert asked.ids[:2] == spoken(talk(0, 20), 2)


def test_what_is_forced_comes_and_counts_like_any_token() -> None:
    stepping, engine = serving()
    rule = forcing(*b"hello")
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=8), bounded(rule))
    stepping.run()
    assert asked.text.startswith("hello")
    assert asked.ids == spoken_under(rule, talk(0, 20), 8)
    assert (asked.finish.generated, asked.finish.stop_reason) == (8, "length")
    assert work(engine) == ["force", "draw", "draw", "draw"], "in one call, and none is drawn"


def test_a_single_forced_token_is_drawn_with_the_other_lanes() -> None:
    stepping, engine = serving()
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=3), bounded(forcing(7)))
    stepping.run()
    assert (asked.ids[0], work(engine)) == (7, ["draw"] * 3)


@pytest.mark.parametrize("forced", [{0}, {1}, {0, 2}, {0, 1, 2}])
def test_prompts_that_are_read_together_are_drawn_from_before_anything_is_forced(forced: set[int]) -> None:
    stepping, engine = serving(lanes=3, chunk=60, joint=True)
    rules = [forcing(*b"hello") if number in forced else forcing() for number in range(3)]
    prompts = [talk(number, 20) for number in range(3)]
    every = [
        stepping.ask(ids, Sampling(max_tokens=8), bounded(rule))
        for ids, rule in zip(prompts, rules, strict=True)
    ]
    stepping.run()
    assert engine.log[0] == ("read", (0, 1, 2))
    assert [asked.ids for asked in every] == [
        spoken_under(rule, ids, 8) for ids, rule in zip(prompts, rules, strict=True)
    ]


def test_what_comes_to_be_forced_while_lanes_begin_waits_for_the_next_step() -> None:
    """Such as the end of the reasoning, which another thread asks for at any time."""

    class Late(Bounded):
        asked = 0

        def forced(self) -> Sequence[int]:
            self.asked += 1
            return super().forced() if self.asked > 1 else ()

    stepping, engine = serving(lanes=3, chunk=60, joint=True)
    rules = [forcing(9, 7, 5, 3), forcing(), forcing()]
    prompts = [talk(number, 20) for number in range(3)]
    every = [
        stepping.ask(ids, Sampling(max_tokens=8), Late(rule, SIZE))
        for ids, rule in zip(prompts, rules, strict=True)
    ]
    stepping.run()
    assert engine.log[0] == ("read", (0, 1, 2))
    assert [asked.ids for asked in every] == [
        spoken_under(rule, ids, 8) for ids, rule in zip(prompts, rules, strict=True)
    ]


def test_more_than_a_chunk_is_forced_in_several_steps() -> None:
    """So that the other streams wait no longer than for a prompt."""
    stepping, _ = serving(chunk=4)
    tokens = [*range(10, 21)]
    other = stepping.ask(talk(1, 3), Sampling(max_tokens=30))
    while not other.tokens:
        stepping.step()
    asked = stepping.ask(talk(0, 3), Sampling(max_tokens=13), bounded(forcing(*tokens)))
    before = len(other.ids)
    while len(asked.ids) < 11:
        stepping.step()
    assert asked.ids[:11] == tokens
    assert len(other.ids) == before + 3, "a token in every step"
    stepping.run()
    assert asked.ids == spoken_under(forcing(*tokens), talk(0, 3), 13)
    assert other.ids == spoken(talk(1, 3), 30)


def test_nothing_is_forced_in_chunks_where_probabilities_are_asked_for() -> None:
    stepping, engine = serving()
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=4, logprobs=1), bounded(forcing(1, 2, 3)))
    stepping.run()
    assert asked.ids[:3] == [1, 2, 3]
    assert work(engine) == ["draw"] * 4
    assert all(token.logprobs is not None for token in asked.tokens)


def test_an_end_token_that_is_forced_ends_the_turn_and_nothing_after_it_comes() -> None:
    stepping, _ = serving()
    constraint = bounded(forcing(1, 2, END, 5))
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=9), constraint)
    stepping.run()
    assert (asked.ids, asked.outcome, constraint.said) == ([1, 2, END], "stop", [1, 2])


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_limit_holds_within_what_is_forced(most: int) -> None:
    stepping, _ = serving()
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=most), bounded(forcing(1, 2, 3, 4)))
    stepping.run()
    assert (asked.ids, asked.outcome) == ([1, 2, 3, 4][:most], "length")


def test_the_context_ends_what_is_forced() -> None:
    stepping, _ = serving(context_size=24)
    asked = stepping.ask(talk(0, 20), Sampling(), bounded(forcing(*range(9))))
    stepping.run()
    assert (asked.ids, asked.outcome) == ([0, 1, 2, 3, 4], "length")


def test_a_stop_string_ends_what_is_forced() -> None:
    stepping, _ = serving()
    asked = stepping.ask(talk(0, 20), Sampling(stop=("lo w",)), bounded(forcing(HEL, LO, *b" world")))
    stepping.run()
    assert (asked.text, asked.outcome, asked.finish.stop) == ("hel", "stop", "lo w")


def test_drafts_go_on_while_nothing_is_bound_and_end_where_something_is() -> None:
    """The model repeats itself, so drafts are right; a mask holds for every eleventh token."""
    script = [1, 2, 3, 4, 5] * 20

    def rule(said: Sequence[int]) -> Any:
        return mask_of([script[len(said)]], SIZE) if len(said) % 11 == 10 else None

    class Asking(Bounded):
        def mask(self) -> Any | None:
            asked_after.append(len(self.said))
            return super().mask()

    asked_after: list[int] = []
    engine = Speaking(script, lanes=1, drafts=True)
    stepping = Stepping(engine)
    constraint = Asking(rule, SIZE)
    drafted = stepping.ask([9] * 3, Sampling(max_tokens=90), constraint)
    stepping.run()
    assert drafted.ids == script[:90]
    assert "verify" in work(engine)
    assert asked_after == sorted(asked_after), "it is told every token once, before it is asked of the next"
    assert set(asked_after) >= set(range(10, 90, 11)), "no token that may be bound is drawn without asking"
    assert constraint.said[:89] == script[:89]


# -- what fails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["forced", "mask", "accept"])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_constraint_that_raises_ends_its_own_generation_alone(method: str, at: int) -> None:
    class Breaks(Bounded):
        pass

    def breaks(self: Breaks, *_: int) -> Any:
        if len(self.said) >= at:
            raise ZeroDivisionError("no rule")
        return getattr(Bounded, method)(self, *_)

    setattr(Breaks, method, breaks)
    stepping, _ = serving(3)
    others = [
        stepping.ask(talk(1, 30), Sampling(max_tokens=20)),
        stepping.ask(talk(2, 30), Sampling(max_tokens=20), bounded(made_up(1, SIZE, 50))),
    ]
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=20), Breaks(made_up(2, SIZE, 50), SIZE))
    stepping.run()
    assert asked.end is not None
    assert isinstance(asked.end.error, ConstraintFailed)
    assert "ZeroDivisionError: no rule" in str(asked.end.error)
    assert others[0].ids == spoken(talk(1, 30), 20)
    assert others[1].ids == spoken_under(made_up(1, SIZE, 50), talk(2, 30), 20)
    assert stepping.busy == 0
    again = stepping.ask(talk(0, 20), Sampling(max_tokens=20))
    stepping.run()
    assert again.ids == spoken(talk(0, 20), 20)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (numpy.zeros(9, numpy.uint32), "allows no token"),
        (numpy.full(8, 0xFFFFFFFF, numpy.uint32), "another vocabulary"),
    ],
)
def test_a_mask_that_cannot_be_meant_is_an_error(mask: Any, said: str) -> None:
    stepping, _ = serving()
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=20), bounded(lambda _: mask))
    stepping.run()
    assert asked.end is not None
    assert isinstance(asked.end.error, ConstraintFailed)
    assert said in str(asked.end.error)


def test_an_engine_that_fails_to_force_ends_that_stream_alone() -> None:
    stepping, _ = serving(2, failing("force", 1))
    asked = stepping.ask(talk(0, 20), Sampling(max_tokens=20), bounded(forcing(1, 2, 3)))
    other = stepping.ask(talk(1, 20), Sampling(max_tokens=20))
    stepping.run()
    assert (asked.outcome, other.ids) == (EngineFailed, spoken(talk(1, 20), 20))


# -- anything at any time -----------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 5),
    chunk=st.sampled_from([3, 16, 64]),
    trouble=st.booleans(),
)
def test_whatever_comes_goes_and_fails_every_token_is_right(
    seed: int, lanes: int, chunk: int, trouble: bool
) -> None:
    """Random arrivals, with and without a constraint, limits, slow readers, cancels, and faults of one lane."""
    draw = random.Random(seed)

    def works(done: str, _: SpeakingLane) -> None:
        if trouble and done != "step" and draw.random() < 0.01:
            raise EngineFailed("the engine gave up")

    stepping, engine = serving(lanes, works, chunk=chunk, context_size=200, reading=False)
    asked: list[tuple[Asked, Rule]] = []
    for _ in range(draw.randrange(50, 300)):
        if draw.random() < 0.1:
            earlier = draw.choice(asked)[0].job.generation.ids if asked else []
            prompt = [*earlier[: draw.choice([0, 20, 50])], *talk(draw.randrange(4), draw.randrange(1, 90))]
            rule: Rule = made_up(draw.randrange(99), SIZE, 50) if draw.random() < 0.7 else lambda _: None
            sampling = Sampling(max_tokens=draw.randrange(1, 40))
            asked.append((stepping.ask(prompt[:199], sampling, bounded(rule)), rule))
        stepping.step()
        for each, _ in asked:
            if each.end is None and draw.random() < 0.4:
                each.take(draw.choice([1, None]))
            if draw.random() < 0.005:
                each.cancel.set()
    stepping.reading = True
    stepping.take()
    stepping.run()
    for each, rule in asked:
        assert each.outcome in ("length", "cancelled", EngineFailed)
        assert each.ids == spoken_under(rule, each.job.generation.ids, len(each.ids))
    assert stepping.busy == 0
    assert all(lane.begun is None and lane.value == folded(lane.ids) for lane in engine.lanes)
