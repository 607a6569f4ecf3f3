"""Prefix reuse: the state is always the one that the ids make, and no more is computed than needed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.hosts.prefix import PrefixCache
from localagent.hosts.prefix.cache import _MOST_CHECKPOINTS
from localagent.hosts.prefix.matching import common, reach
from tests.hosts.prefix.chain import Chain, folded


def go(cache: PrefixCache, chain: Chain, ids: Sequence[int], step: int = 16, more: int = 0) -> int:
    """One turn: resume, evaluate the rest in chunks, generate `more` tokens. Returns what was reused."""
    reused = cache.resume(ids)
    assert chain.ids == list(ids[:reused]), "the live sequence is a prefix of the prompt"
    assert reused < len(ids), "something is left to evaluate"
    assert chain.value == folded(chain.ids), "and its state is the one of that prefix"
    for start in range(reused, len(ids), step):
        chain.evaluate(ids[start : start + step], lambda: False)
        if start + step < len(ids):  # the last chunk belongs to the decoding, which takes no checkpoint
            cache.mark()
    for _ in range(more):
        chain.evaluate([chain.value % 50], lambda: False)
    return reused


def talk(seed: int, length: int) -> list[int]:
    return [random.Random(f"{seed} {n}").randrange(50) for n in range(length)]


turns = st.tuples(
    st.integers(0, 12),  # the earlier turn whose words are gone on from
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),  # from which part of it on
    st.integers(0, 3),
    st.integers(1, 150),
    st.integers(0, 60),
)


@given(st.lists(turns, min_size=1, max_size=14), st.integers(0, 20_000), st.sampled_from([1, 7, 16, 200]))
def test_the_state_is_right_whatever_came_before(
    drawn: list[tuple[int, float, int, int, int]], budget: int, step: int
) -> None:
    """Prompts that go on from any place in any earlier one, under any budget."""
    chain = Chain()
    cache = PrefixCache(chain, budget)
    past: list[list[int]] = [[]]
    for which, share, seed, length, more in drawn:
        earlier = past[which % len(past)]
        prompt = [*earlier[: int(len(earlier) * share)], *talk(seed, length)]
        go(cache, chain, prompt, step, more)
        past.append(list(chain.ids))
        assert cache.nbytes <= max(budget, 8 * (_MOST_CHECKPOINTS + 1)) + 8 * 400


def test_a_conversation_that_grows_is_never_read_again() -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    ids: list[int] = []
    for turn in range(20):
        ids += talk(turn, 30)
        before = chain.evaluated
        assert go(cache, chain, ids, more=20) == len(ids) - 30
        assert chain.evaluated - before == 30 + 20
        ids = list(chain.ids)


def test_a_changed_message_goes_on_from_the_checkpoint_before_it() -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    go(cache, chain, talk(1, 96), step=32)
    assert go(cache, chain, [*talk(1, 70), *talk(2, 10)], step=32) == 64


def test_both_branches_of_a_conversation_stay() -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    trunk = talk(0, 64)
    left, right = [*trunk, *talk(1, 64)], [*trunk, *talk(2, 64)]
    go(cache, chain, left)
    assert go(cache, chain, right) == 64
    assert go(cache, chain, [*left, 1]) == 128
    assert go(cache, chain, [*right, 1]) == 128


def test_several_conversations_and_the_one_used_least_recently_goes_first() -> None:
    chain = Chain()
    cache = PrefixCache(chain, budget=8 * 101 * 2)
    talks = [talk(seed, 99) for seed in range(4)]
    for ids in talks:
        go(cache, chain, ids, step=200)
    assert go(cache, chain, [*talks[1], 5]) == 99
    assert go(cache, chain, [*talks[2], 5]) == 99
    assert go(cache, chain, [*talks[0], 5]) == 0, "four do not fit: the live one, and two"


def test_without_a_budget_nothing_is_reused() -> None:
    chain = Chain()
    cache = PrefixCache(chain, 0)
    for _ in range(2):
        assert go(cache, chain, talk(1, 50)) == 0
    assert cache.nbytes == 0


def test_checkpoints_are_thinned_and_the_first_one_stays() -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    ids = talk(1, 5_000)
    go(cache, chain, ids, step=5)
    assert cache.nbytes <= 8 * (_MOST_CHECKPOINTS + 1)
    assert go(cache, chain, [*ids[:4_990], 51], step=5) == 4_990, "the last ones are dense"
    assert go(cache, chain, [*ids[:7], 51], step=5) == 5, "the end of the system turn is kept"


def test_large_checkpoints_leave_room() -> None:
    chain = Chain(nbytes=1000)
    cache = PrefixCache(chain, budget=20_000)
    go(cache, chain, talk(1, 900), step=10)
    assert cache.nbytes <= 11_000


@pytest.mark.parametrize(("points", "kept"), [(5, 5), (6, 5)])
def test_checkpoints_may_take_half_of_the_budget(points: int, kept: int) -> None:
    """Of more than half every second one goes, up to the newer half; the other half is for whole sequences."""
    chain = Chain(nbytes=10)
    cache = PrefixCache(chain, budget=100)
    for number in range(points):
        chain.evaluate([number], lambda: False)
        cache.mark()
    assert cache.nbytes == 10 * kept
    cache.mark()
    assert cache.nbytes == 10 * kept, "here there is one already"


def test_two_checkpoints_stay_however_large_they_are() -> None:
    chain = Chain(nbytes=1000)
    cache = PrefixCache(chain, budget=100)
    for number in range(5):
        chain.evaluate([number], lambda: False)
        cache.mark()
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
        ([2], [], 0),
    ],
)
def test_a_sequence_is_entered_at_its_end_or_at_a_checkpoint(
    checkpoints: list[int], wanted: list[int], reached: int
) -> None:
    assert reach([1, 2, 3, 4], checkpoints, wanted) == reached


def test_a_chunk_given_up_on_the_way() -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    go(cache, chain, talk(1, 64))
    reused = cache.resume([*talk(1, 64), *talk(2, 20)])
    assert reused == 64
    assert not chain.evaluate(talk(2, 20), lambda: True)
    cache.recover()
    assert (len(chain.ids), chain.value) == (64, folded(talk(1, 64)))
    cache.clear()
    cache.recover()
    assert chain.ids == []


def test_going_on_directly_behind_what_was_saved() -> None:
    """The live sequence goes on from the very one that is wanted, and saving it must not lose that one."""
    chain = Chain()
    cache = PrefixCache(chain)
    go(cache, chain, talk(1, 64), step=200)
    go(cache, chain, talk(2, 64), step=200)
    go(cache, chain, [*talk(1, 64), *talk(3, 64)], step=200, more=40)
    whole = list(chain.ids)
    assert go(cache, chain, [*talk(1, 64), *talk(4, 64)], step=200) == 64
    assert go(cache, chain, [*whole, 1], step=200) == len(whole) == 168


def test_a_state_that_the_engine_refuses_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain()
    cache = PrefixCache(chain)
    go(cache, chain, talk(1, 64))
    go(cache, chain, talk(2, 64))
    chain.refusing = True
    assert go(cache, chain, [*talk(1, 64), 3]) == 0
    assert "refused" in caplog.text
    chain.refusing = False
    assert go(cache, chain, [*talk(2, 64), 3]) == 64, "what was live had been saved"
