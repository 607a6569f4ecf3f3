"""Prefix reuse: the state is always the one that the ids make, and no more is computed than needed."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from localagent.errors import EngineFailed
from localagent.hosts.engine import NOTHING, State
from localagent.hosts.prefix import PrefixCache, SnapshotFolder, SnapshotKey, Snapshots
from localagent.hosts.prefix.cache import _MOST_CHECKPOINTS, Seat
from localagent.hosts.prefix.matching import (
    WORTH_FORKING,
    common,
    enter_anywhere,
    enter_at_checkpoints,
    worth_forking,
)
from tests.hosts.prefix.chain import Chain, Pool, folded, spoken


def go(cache: PrefixCache, chain: Chain, ids: Sequence[int], step: int = 16, more: int = 0) -> int:
    """One turn in the only lane: see `begin`, `read` and `say`. Returns what was reused."""
    seat = begin(cache, ids)
    assert seat is not None
    assert seat.lane is chain
    reused = len(chain.ids)
    while read(cache, seat, ids, step):
        pass
    say(seat, more)
    cache.release(seat)
    return reused


def begin(cache: PrefixCache, ids: Sequence[int], need: int = 0, scope: str = "") -> Seat | None:
    """A lane that leads into `ids`, after what is on disk of them has been read."""
    read = threading.Event()
    loading = cache.load(ids, read.set, scope)
    assert loading.path is None or read.wait(20)
    assert cache.loaded(loading)
    seat = cache.open(ids, need, scope)
    if seat is not None:
        chain = seat.lane
        assert chain.ids == list(ids[: len(chain.ids)]), "the lane holds a prefix of the prompt"
        assert len(chain.ids) < len(ids), "something is left to evaluate"
        assert right(chain), "and its state is the one of that prefix"
    return seat


def read(cache: PrefixCache, seat: Seat, ids: Sequence[int], step: int) -> bool:
    """Evaluate a chunk of a prompt. Whether there is more."""
    start = len(seat.lane.ids)
    seat.lane.evaluate(ids[start : start + step], lambda: False)
    if start + step >= len(ids):  # the last chunk belongs to the decoding, which takes no checkpoint
        return False
    cache.mark(seat)
    return True


def say(seat: Seat, count: int) -> None:
    """Generate."""
    for token in spoken(seat.lane.ids, count):
        seat.lane.evaluate([token], lambda: False)


def right(chain: Chain) -> bool:
    return chain.value == folded(chain.ids)


def talk(seed: int, length: int) -> list[int]:
    return [random.Random(f"{seed} {n}").randrange(50) for n in range(length)]


turns = st.tuples(
    st.integers(0, 12),  # the earlier turn whose words are gone on from
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),  # from which part of it on
    st.integers(0, 3),
    st.integers(1, 150),
    st.integers(0, 60),
)


@given(
    st.lists(turns, min_size=1, max_size=14),
    st.integers(0, 20_000),
    st.sampled_from([1, 7, 16, 200]),
    st.booleans(),
)
def test_the_state_is_right_whatever_came_before(
    drawn: list[tuple[int, float, int, int, int]], budget: int, step: int, anywhere: bool
) -> None:
    """Prompts that go on from any place in any earlier one, under any budget."""
    chain = Chain()
    cache = PrefixCache([chain], budget, anywhere=anywhere)
    past: list[list[int]] = [[]]
    for which, share, seed, length, more in drawn:
        earlier = past[which % len(past)]
        prompt = [*earlier[: int(len(earlier) * share)], *talk(seed, length)]
        go(cache, chain, prompt, step, more)
        past.append(list(chain.ids))
        assert cache.nbytes <= max(budget, 8 * (_MOST_CHECKPOINTS + 1)) + 8 * 400


def test_a_conversation_that_grows_is_never_read_again() -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    ids: list[int] = []
    for turn in range(20):
        ids += talk(turn, 30)
        before = chain.evaluated
        assert go(cache, chain, ids, more=20) == len(ids) - 30
        assert chain.evaluated - before == 30 + 20
        ids = list(chain.ids)


def test_a_changed_message_goes_on_from_the_checkpoint_before_it() -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    go(cache, chain, talk(1, 96), step=32)
    assert go(cache, chain, [*talk(1, 70), *talk(2, 10)], step=32) == 64


def test_both_branches_of_a_conversation_stay() -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    trunk = talk(0, 64)
    left, right = [*trunk, *talk(1, 64)], [*trunk, *talk(2, 64)]
    go(cache, chain, left)
    assert go(cache, chain, right) == 64
    assert go(cache, chain, [*left, 1]) == 128
    assert go(cache, chain, [*right, 1]) == 128


def test_several_conversations_and_the_one_used_least_recently_goes_first() -> None:
    chain = Chain()
    cache = PrefixCache([chain], budget=8 * 101 * 2)
    talks = [talk(seed, 99) for seed in range(4)]
    for ids in talks:
        go(cache, chain, ids, step=200)
    assert go(cache, chain, [*talks[1], 5]) == 99
    assert go(cache, chain, [*talks[2], 5]) == 99
    assert go(cache, chain, [*talks[0], 5]) == 0, "four do not fit: the live one, and two"


def test_without_a_budget_nothing_is_reused() -> None:
    chain = Chain()
    cache = PrefixCache([chain], 0)
    for _ in range(2):
        assert go(cache, chain, talk(1, 50)) == 0
    assert cache.nbytes == 0


def test_checkpoints_are_thinned_and_the_first_one_stays() -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    ids = talk(1, 5_000)
    go(cache, chain, ids, step=5)
    assert cache.nbytes <= 8 * (_MOST_CHECKPOINTS + 1)
    assert go(cache, chain, [*ids[:4_990], 51], step=5) == 4_990, "the last ones are dense"
    assert go(cache, chain, [*ids[:7], 51], step=5) == 5, "the end of the system turn is kept"


def test_checkpoints_of_a_lane_that_needs_none_take_no_memory() -> None:
    class Attention(Chain):
        def checkpoint(self) -> State:
            return NOTHING

    chain = Attention()
    cache = PrefixCache([chain])
    go(cache, chain, talk(1, 100))
    assert cache.nbytes == 0


def test_what_two_lanes_share_is_counted_once() -> None:
    cache = PrefixCache([Chain(nbytes=10), Chain(nbytes=10)])
    first = cache.open(talk(1, 60))
    assert first is not None
    for step in range(5):
        first.lane.evaluate(talk(1, 60)[10 * step : 10 * step + 10], lambda: False)
        cache.mark(first)
    assert cache.nbytes == 50
    second = cache.open([*talk(1, 60)[:50], 9])
    assert second is not None
    assert (second is not first, len(second.lane.ids), len(second.checkpoints)) == (True, 50, 5)
    assert cache.nbytes == 50


def test_large_checkpoints_leave_room() -> None:
    chain = Chain(nbytes=1000)
    cache = PrefixCache([chain], budget=20_000)
    go(cache, chain, talk(1, 900), step=10)
    assert cache.nbytes <= 11_000


@pytest.mark.parametrize(("points", "kept"), [(5, 5), (6, 5)])
def test_checkpoints_may_take_half_of_the_budget(points: int, kept: int) -> None:
    """Of more than half every second one goes, up to the newer half; the other half is for whole sequences."""
    chain = Chain(nbytes=10)
    cache = PrefixCache([chain], budget=100)
    seat = cache.open([99])
    assert seat is not None
    for number in range(points):
        chain.evaluate([number], lambda: False)
        cache.mark(seat)
    assert cache.nbytes == 10 * kept
    cache.mark(seat)
    assert cache.nbytes == 10 * kept, "here there is one already"


def test_two_checkpoints_stay_however_large_they_are() -> None:
    chain = Chain(nbytes=1000)
    cache = PrefixCache([chain], budget=100)
    seat = cache.open([99])
    assert seat is not None
    for number in range(5):
        chain.evaluate([number], lambda: False)
        cache.mark(seat)
    assert cache.nbytes == 2000


@pytest.mark.parametrize(("left", "right", "shared"), [
    ([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1], [2], 0),
    ([*range(9), 1], [*range(9), 2], 9), ([0, 1, 5, 3], [0, 1, 2, 3], 2),
])  # fmt: skip
def test_how_much_two_sequences_share(left: list[int], right: list[int], shared: int) -> None:
    assert common(left, right) == shared


@pytest.mark.parametrize(
    ("checkpoints", "wanted", "reached"),
    [
        ([], [1, 2, 3, 4, 5], 4),  # its end
        ([], [1, 2, 3, 4], 0),  # one token must be left to evaluate
        ([2, 3], [1, 2, 3, 4], 3),
        ([2, 3, 4], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 9], 2),
        ([1, 3], [1, 2, 9], 1),
        ([2], [9], 0),
        ([1], [1], 0),
        ([1], [1, 2], 1),
        ([2], [], 0),
    ],
)
def test_a_sequence_is_entered_at_its_end_or_at_a_checkpoint(
    checkpoints: list[int], wanted: list[int], reached: int
) -> None:
    assert enter_at_checkpoints([1, 2, 3, 4], checkpoints, wanted) == reached


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ([1, 2, 3, 4, 5, 6], 4),
        ([1, 2, 3, 4, 5], 3),
        ([1, 2, 3, 4], 2),
        ([1, 2, 3, 9, 9], 3),
        ([1], 0),
        ([], 0),
    ],
)
def test_where_no_checkpoints_are_needed_a_sequence_is_entered_anywhere_but_for_the_last_token(
    wanted: list[int], reached: int
) -> None:
    assert enter_anywhere([1, 2, 3, 4], [], wanted) == reached


@pytest.mark.parametrize(
    ("shared", "held", "copied"), [(15, 15, 0), (16, 16, 16), (16, 1024, 16), (16, 1025, 0), (100, 6400, 100)]
)
def test_a_lane_is_copied_whole_if_enough_of_it_is_shared(shared: int, held: int, copied: int) -> None:
    assert worth_forking(shared, held) == copied


def test_a_chunk_given_up_on_the_way() -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    go(cache, chain, talk(1, 64))
    seat = cache.open([*talk(1, 64), *talk(2, 20)])
    assert seat is not None
    assert len(chain.ids) == 64
    assert not chain.evaluate(talk(2, 20), lambda: True)
    cache.recover(seat, 64)
    assert (len(chain.ids), chain.value) == (64, folded(talk(1, 64)))
    cache.clear(seat)
    chain.evaluate([1], lambda: True)
    cache.recover(seat, 0)
    assert chain.ids == []


def test_going_on_directly_behind_what_was_saved() -> None:
    """The live sequence goes on from the very one that is wanted, and saving it must not lose that one."""
    chain = Chain()
    cache = PrefixCache([chain])
    go(cache, chain, talk(1, 64), step=200)
    go(cache, chain, talk(2, 64), step=200)
    go(cache, chain, [*talk(1, 64), *talk(3, 64)], step=200, more=40)
    whole = list(chain.ids)
    assert go(cache, chain, [*talk(1, 64), *talk(4, 64)], step=200) == 64
    assert go(cache, chain, [*whole, 1], step=200) == len(whole) == 168


def test_a_state_that_the_engine_refuses_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain()
    cache = PrefixCache([chain])
    go(cache, chain, talk(1, 64))
    go(cache, chain, talk(2, 64))
    chain.refusing = True
    assert go(cache, chain, [*talk(1, 64), 3]) == 0
    said = "the engine refused a saved state of 64 tokens: dropped"
    assert caplog.record_tuples == [("localagent.hosts.prefix.saved", logging.WARNING, said)]
    chain.refusing = False
    assert go(cache, chain, [*talk(2, 64), 3]) == 64, "what was live had been saved"


# -- several lanes ------------------------------------------------------------------------------------


def lanes(count: int, capacity: int = sys.maxsize, **options: Any) -> tuple[PrefixCache, list[Chain]]:
    """A cache over lanes that share the room of one pool."""
    pool = Pool(capacity)
    made = [Chain(pool=pool) for _ in range(count)]
    return PrefixCache(made, capacity=capacity, **options), made


def turn(cache: PrefixCache, ids: Sequence[int], step: int = 16, more: int = 0) -> tuple[Seat, int]:
    """A generation that goes on: its seat, and what was reused."""
    seat = begin(cache, ids, len(ids) + more)
    assert seat is not None
    reused = len(seat.lane.ids)
    while read(cache, seat, ids, step):
        pass
    say(seat, more)
    return seat, reused


PROMPTS = {
    "which": st.integers(0, 50),
    "share": st.sampled_from([0.0, 0.0, 0.5, 0.9, 1.0]),
    "seed": st.integers(0, 5),
    "length": st.sampled_from([1, 20, 60, 100, 150]),
    "more": st.sampled_from([0, 5, 40, 100]),
    "scope": st.sampled_from(["", "", "", "one", "two"]),
}


class Cache(RuleBasedStateMachine):
    """Generations that come and go in any order. What a lane holds is always what it should."""

    @initialize(
        count=st.integers(1, 4),
        budget=st.sampled_from([0, 300, 5_000, 1 << 20]),
        share=st.sampled_from([0.0, 0.4, 1.0, 1.0]),
        step=st.sampled_from([7, 16, 200]),
        anywhere=st.booleans(),
    )
    def load(self, count: int, budget: int, share: float, step: int, anywhere: bool) -> None:
        self.context = 300
        self.capacity = self.context + int((count - 1) * self.context * share)
        self.cache, self.lanes = lanes(
            count, self.capacity, budget=budget, context=self.context, anywhere=anywhere
        )
        self.budget, self.step, self.anywhere = budget, step, anywhere
        self.past: list[list[int]] = [talk(seed, 150) for seed in range(3)]
        self.running: dict[Seat, tuple[list[int], int]] = {}
        """The prompt of every seat in use, and how many tokens it holds."""
        self.known: dict[str, list[list[int]]] = {"": [], "one": [], "two": []}
        """What was evaluated in each scope."""

    def draw(self, which: int, share: float, seed: int, length: int, more: int) -> tuple[list[int], int]:
        """A prompt that goes on from an earlier one, and how many tokens it and what follows need."""
        earlier = self.past[which % len(self.past)]
        prompt = [*earlier[: int(len(earlier) * share)], *talk(seed, length)][: self.context]
        return prompt, min(len(prompt) + more, self.context)

    def enter(self, prompt: list[int], need: int, scope: str) -> Seat | None:
        cache = self.cache
        room = self.capacity - sum(seat.need for seat in cache._seats if seat.need is not None)
        kept = [saved for saved in cache._saved if len(saved.ids) <= room]
        best = max(cache._reach(each, prompt, scope) for each in [*cache._seats, *kept]) if self.budget else 0
        seat = begin(cache, prompt, need, scope)
        if seat is None:
            assert len(self.running) == len(self.lanes) or need > room
            return None
        assert need <= room
        assert seat not in self.running, "it was free"
        lost = best - len(seat.lane.ids)
        assert 0 <= lost <= (2 * WORTH_FORKING if self.anywhere else 0), "nothing that there is leads further"
        held = seat.lane.ids
        assert not held or any(each[: len(held)] == held for each in self.known[scope]), "it is of this scope"
        self.known[scope].append(prompt)
        self.past.append(prompt)
        return seat

    @rule(**PROMPTS)
    def open(self, scope: str, **drawn: Any) -> None:
        prompt, need = self.draw(**drawn)
        seat = self.enter(prompt, need, scope)
        if seat is not None:
            self.running[seat] = prompt, len(seat.lane.ids)

    @rule(**PROMPTS)
    def whole_turn(self, scope: str, **drawn: Any) -> None:
        prompt, need = self.draw(**drawn)
        seat = self.enter(prompt, need, scope)
        if seat is not None:
            while read(self.cache, seat, prompt, self.step):
                pass
            say(seat, need - len(prompt))
            self.past.append(list(seat.lane.ids))
            self.known[scope].append(list(seat.lane.ids))
            self.cache.release(seat)

    def pick(self, which: int) -> Seat:
        return list(self.running)[which % len(self.running)]

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), chunks=st.sampled_from([1, 3, 30, 1000]))
    def go_on(self, which: int, chunks: int) -> None:
        """Evaluate chunks of the prompt, and say something after it, as far as there is room."""
        seat = self.pick(which)
        prompt, held = self.running[seat]
        for _ in range(chunks):
            if held < len(prompt):
                read(self.cache, seat, prompt, self.step)
            elif held < (seat.need or 0):
                say(seat, 1)
            held = len(seat.lane.ids)
        self.running[seat] = (list(seat.lane.ids) if held > len(prompt) else prompt), held

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def finish(self, which: int) -> None:
        seat = self.pick(which)
        self.past.append(list(seat.lane.ids))
        self.known[seat.scope].append(list(seat.lane.ids))
        del self.running[seat]
        self.cache.release(seat)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        """Within a chunk of the prompt: the lane is then wrong."""
        seat = self.pick(which)
        prompt, held = self.running[seat]
        if held < len(prompt):
            seat.lane.evaluate(prompt[held : held + self.step][:-1], lambda: True)
            seat.lane.value = -1
            self.cache.recover(seat, held)
            assert len(seat.lane.ids) <= held
            assert len(seat.lane.ids) == held or not self.anywhere
            del self.running[seat]
            self.cache.release(seat)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def fail(self, which: int) -> None:
        seat = self.pick(which)
        seat.lane.value = -1
        del self.running[seat]
        self.cache.clear(seat)
        self.cache.release(seat)

    @rule()
    def drop(self) -> None:
        self.cache.drop()

    @invariant()
    def every_state_is_that_of_its_tokens(self) -> None:
        for seat in getattr(self, "cache", PrefixCache([]))._seats:
            assert right(seat.lane)
            assert not (self.anywhere and seat.checkpoints)
            for point in seat.checkpoints:
                assert point.state.data == folded(seat.lane.ids[: point.length])
        for saved in self.cache._saved if hasattr(self, "cache") else ():
            assert saved.state.data == (folded(saved.ids), saved.ids)

    @invariant()
    def nothing_in_use_is_cut(self) -> None:
        for seat, (prompt, held) in getattr(self, "running", {}).items():
            assert seat.need is not None
            assert seat.lane.ids == prompt[:held]

    @invariant()
    def no_more_is_held_than_there_is_room_for(self) -> None:
        if hasattr(self, "cache"):
            assert sum(len(lane.ids) for lane in self.lanes) <= self.capacity
            checkpoints = 8 * (_MOST_CHECKPOINTS + 1) * len(self.lanes)
            assert self.cache.nbytes <= max(self.budget, checkpoints) + 8 * 2 * self.context


TestCache = Cache.TestCase
TestCache.settings = settings(stateful_step_count=40)


def test_there_is_room_for_what_is_put_back() -> None:
    """Free lanes are emptied before a saved sequence takes its place, and not after that."""
    cache, made = lanes(3, capacity=300)
    for seed in range(3):
        cache.release(turn(cache, talk(seed, 140), step=200)[0])
    assert turn(cache, [*talk(0, 140), 1])[1] == 140
    assert sum(len(lane.ids) for lane in made) <= 300


def test_a_saved_sequence_that_is_too_long_for_the_room_that_is_left_stays_saved() -> None:
    cache, _ = lanes(2, capacity=300)
    cache.release(turn(cache, talk(0, 200))[0])
    cache.release(turn(cache, talk(1, 20))[0])
    held, _ = turn(cache, talk(2, 150))
    seat, reused = turn(cache, [*talk(0, 100), 1])
    assert reused == 0
    cache.release(seat)
    cache.release(held)
    assert turn(cache, [*talk(0, 200), 1])[1] == 200


def test_what_a_lane_in_use_has_evaluated_is_forked() -> None:
    cache, made = lanes(3)
    trunk = talk(0, 64)
    first, _ = turn(cache, [*trunk, *talk(1, 40)], more=30)
    second, reused = turn(cache, [*trunk, *talk(2, 40)])
    assert (reused, second.lane.forks, first is not second) == (64, 1, True)
    whole, reused = turn(cache, [*first.lane.ids, 51])
    assert (reused, whole.lane.forks) == (64 + 40 + 30, 1), "at its end, too"
    assert sum(lane.evaluated for lane in made) == 64 + 40 + 30 + 40 + 1
    assert cache.open([1]) is None, "no lane is free"


def test_a_fork_can_be_entered_where_its_origin_could() -> None:
    cache, made = lanes(2)
    first, _ = turn(cache, talk(0, 96))
    second, reused = turn(cache, [*talk(0, 90), 51])
    assert reused == 80
    assert [point.length for point in second.checkpoints] == [16, 32, 48, 64, 80]
    cache.release(second)
    cache.release(first)
    _seat, reused = turn(cache, [*talk(0, 40), 51])
    assert reused == 32
    assert right(made[0])
    assert right(made[1])


def test_of_a_free_lane_whose_rest_is_worth_keeping_the_beginning_is_forked_into_an_empty_one() -> None:
    cache, made = lanes(2)
    cache.release(turn(cache, talk(0, 96))[0])
    seat, reused = turn(cache, [*talk(0, 50), 51])
    assert (reused, seat.lane) == (48, made[1])
    assert len(made[0].ids) == 96
    cache.release(seat)
    assert turn(cache, [*talk(0, 96), 1])[1] == 96


def test_a_free_lane_is_cut_where_little_is_lost() -> None:
    cache, made = lanes(2)
    cache.release(turn(cache, talk(0, 96))[0])
    seat, reused = turn(cache, [*talk(0, 80), 51])
    assert (reused, seat.lane, made[1].ids) == (80, made[0], [])
    for held, lane in ((95, 0), (96, 1)):  # of the second, 32 tokens would be lost
        cache, made = lanes(2)
        cache.release(turn(cache, talk(0, held))[0])
        seat, reused = turn(cache, [*talk(0, 64), 51])
        assert (reused, seat.lane) == (64, made[lane])


def test_where_no_lane_is_empty_a_free_one_is_cut_and_what_is_lost_saved() -> None:
    cache, made = lanes(2)
    for seed in range(2):
        cache.release(turn(cache, talk(seed, 96))[0])
    seat, reused = turn(cache, [*talk(0, 50), 51])
    assert (reused, seat.lane, len(made[1].ids)) == (48, made[0], 96)
    cache.release(seat)
    assert turn(cache, [*talk(0, 96), 1])[1] == 96
    assert turn(cache, [*talk(1, 96), 1])[1] == 96


def test_new_words_go_to_an_empty_lane_then_to_the_one_used_longest_ago() -> None:
    cache, made = lanes(2)
    for seed, lane in ((0, 0), (1, 1), (2, 0), (3, 1)):
        seat, _ = turn(cache, talk(seed, 64))
        assert seat.lane is made[lane]
        cache.release(seat)
    for seed in range(4):
        seat, reused = turn(cache, [*talk(seed, 64), 51])
        assert reused == 64, "what had to go was saved"
        cache.release(seat)


def test_what_another_lane_leads_to_is_not_saved_again() -> None:
    cache, _ = lanes(2)
    _running, _ = turn(cache, talk(0, 96))
    beginning, _ = turn(cache, talk(0, 80))
    cache.release(beginning)
    other, _ = turn(cache, talk(1, 64))
    assert other.lane is beginning.lane
    assert [saved.ids for saved in cache._saved] == []


def test_an_engine_that_cannot_fork_begins_afresh() -> None:
    cache, made = lanes(2)
    running, _ = turn(cache, talk(0, 64))
    made[1].refusing = True
    seat, reused = turn(cache, [*talk(0, 64), 51])
    assert (reused, made[1].forks) == (0, 0)
    assert right(seat.lane)
    assert running.lane.ids == talk(0, 64)


def test_a_generation_gets_a_lane_only_if_all_that_it_may_need_fits_beside_the_others() -> None:
    cache, _made = lanes(3, capacity=100)
    first = cache.open([1] * 10, need=60)
    assert first is not None
    assert cache.open([2] * 10, need=41) is None
    second = cache.open([2] * 10, need=40)
    assert second is not None
    assert cache.open([3], need=1) is None, "a lane is free, and no room"
    cache.release(first)
    assert cache.open([3], need=61) is None
    assert cache.open([3], need=60) is not None


def test_free_lanes_are_emptied_for_what_may_be_needed_the_one_used_longest_ago_first() -> None:
    cache, made = lanes(3, capacity=200)
    for seed in range(2):
        cache.release(turn(cache, talk(seed, 64))[0])
    seat = begin(cache, talk(2, 10), need=100)
    assert [len(lane.ids) for lane in made] == [0, 64, 0]
    assert seat is not None
    cache.release(seat)
    assert turn(cache, [*talk(0, 64), 1])[1] == 64, "what was in it had been saved"


def test_without_a_budget_a_lane_forgets_at_once() -> None:
    cache, made = lanes(2, budget=0)
    seat, _ = turn(cache, talk(0, 64))
    other, reused = turn(cache, [*talk(0, 64), 1])
    assert reused == 0
    cache.release(seat)
    cache.release(other)
    assert [lane.ids for lane in made] == [[], []]


@pytest.mark.parametrize("work", ["checkpoint", "save", "restore", "fork", "rewind"])
def test_an_engine_that_fails_while_a_lane_is_chosen_keeps_no_lane(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what a free lane holds is used after that; those in use go on."""
    cache, _made = lanes(3)
    running, _ = turn(cache, talk(9, 64))
    for seed in range(3):
        cache.release(turn(cache, talk(seed, 96))[0])
    prompt = {"restore": talk(0, 97), "fork": [*talk(9, 64), 1], "rewind": [*talk(2, 50), 51]}.get(
        work, talk(5, 5)
    )

    def fails(lane: Chain, *_: object) -> None:
        lane.value = -1
        raise EngineFailed("the engine gave up")

    with monkeypatch.context() as broken:
        broken.setattr(Chain, work, fails)
        with pytest.raises(EngineFailed):
            cache.open([*talk(2, 96), 1] if work == "checkpoint" else prompt)
    assert running.lane.ids == talk(9, 64)
    for seed in range(2):
        seat, _ = turn(cache, [*talk(seed, 96), 1])
        assert right(seat.lane)
    assert cache.open([1]) is None, "all three are in use"


def test_all_lanes_are_written_the_one_used_last_as_the_newest(tmp_path: Path) -> None:
    stored = SnapshotFolder(tmp_path)
    key = SnapshotKey("a model", "weights", "template", "engine 1", "Linux x86_64")
    cache, _ = lanes(3, snapshots=Snapshots(stored, key))
    _running, _ = turn(cache, talk(0, 80), more=10)
    for seed in (1, 2):
        cache.release(turn(cache, talk(seed, 80))[0])
    cache.release(turn(cache, [*talk(1, 80), 1])[0])
    cache.write()
    lengths = []
    for path in stored.files():
        _, tokens = stored.describe(path) or (None, 0)
        lengths.append(tokens)
    assert lengths == [90, 80, 81], "also one that goes on"
    again, made = lanes(2, snapshots=Snapshots(stored, key))
    for seed, count in ((0, 80), (1, 80), (2, 80)):
        said = spoken(talk(0, 80), 10) if seed == 0 else []
        seat, reused = turn(again, [*talk(seed, count), *said, 51])
        assert reused >= count
        again.release(seat)
    assert all(map(right, made))


def test_a_file_too_long_for_the_room_that_is_left_is_left_alone(tmp_path: Path) -> None:
    stored = SnapshotFolder(tmp_path)
    key = SnapshotKey("a model", "weights", "template", "engine 1", "Linux x86_64")
    cache, _ = lanes(1, snapshots=Snapshots(stored, key))
    turn(cache, talk(0, 200))
    cache.write()
    cache, _ = lanes(2, capacity=300, snapshots=Snapshots(stored, key))
    running, _ = turn(cache, talk(1, 101))
    seat, reused = turn(cache, [*talk(0, 100), 1])
    assert reused == 0
    cache.release(seat)
    cache.release(running)
    assert turn(cache, [*talk(0, 200), 1])[1] == 200
