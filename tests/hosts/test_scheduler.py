"""Who is served when, and what happens to the others when one of them fails, leaves or waits."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import EngineFailed
from localagent.hosts import channel
from localagent.hosts.channel import AHEAD
from localagent.hosts.engine import State
from localagent.hosts.prefix import SnapshotFolder, Snapshots
from localagent.hosts.prefix.cache import DEFAULT_BUDGET
from localagent.hosts.prefix.matching import WORTH_FORKING
from localagent.hosts.prefix.snapshots import Snapshot
from localagent.hosts.sampling import Sampling
from localagent.hosts.scheduler import _SHORT, Scheduler
from tests.hosts.prefix.chain import Chain, folded, spoken
from tests.hosts.prefix.test_cache import talk
from tests.hosts.prefix.test_snapshots import KEY
from tests.hosts.speaking import END, Speaking, SpeakingLane, failing
from tests.hosts.stepping import Asked, Stepping


def serving(lanes: int = 2, works: Any = lambda *_: None, **options: Any) -> tuple[Stepping, Speaking]:
    """An engine whose tokens follow from the state of a lane: they are right, or the state was wrong."""
    reading, snapshots = options.pop("reading", True), options.pop("snapshots", None)
    engine = Speaking(None, works, lanes=lanes, **options)
    return Stepping(engine, reading=reading, snapshots=snapshots), engine


def tokens(count: int) -> Sampling:
    return Sampling(max_tokens=count)


def is_right(asked: Asked) -> bool:
    """Whether what was said follows from the prompt."""
    return asked.ids == spoken(asked.job.generation.ids, len(asked.ids))


# -- who is served when -------------------------------------------------------------------------------


def logs(stepping: Stepping, count: int) -> list[list[tuple[str, tuple[int, ...]]]]:
    """What the engine is asked in so many steps."""
    steps = []
    for _ in range(count):
        stepping.engine.log.clear()  # type: ignore[attr-defined]
        stepping.step()
        steps.append(list(stepping.engine.log))  # type: ignore[attr-defined]
    return steps


def test_a_step_is_one_token_for_each_that_runs_and_then_one_chunk() -> None:
    stepping, _ = serving(2)
    stepping.ask(talk(0, 40), tokens(10))
    steps = logs(stepping, 4)
    stepping.ask(talk(1, 40), tokens(10))
    steps += logs(stepping, 4)
    first, second = ("read", (0,)), ("read", (1,))
    assert steps == [
        [first],
        [first],
        [first, ("draw", (0,))],  # the first token, while the engine still has its logits
        [("draw", (0,))],
        [("draw", (0,)), second],
        [("draw", (0,)), second],
        [("draw", (0,)), second, ("draw", (1,))],
        [("draw", (0, 1))],
    ]
    stepping.run()


def test_long_prompts_are_read_one_after_the_other() -> None:
    stepping, engine = serving(3, joint=True)
    asked = [stepping.ask(talk(seed, 150), tokens(4)) for seed in range(3)]
    stepping.run()
    reads = [lanes for work, lanes in engine.log if work == "read"]
    assert reads == [(0,)] * 10 + [(1,)] * 10 + [(2,)] * 10
    assert all(map(is_right, asked))


def test_short_prompts_are_read_together_a_chunk_of_each_in_turn() -> None:
    stepping, _ = serving(3)
    asked = [stepping.ask(talk(seed, 40), tokens(10)) for seed in range(3)]
    first, second, third = ("read", (0,)), ("read", (1,)), ("read", (2,))
    assert logs(stepping, 9) == [
        *[[first], [second], [third]] * 2,
        [first, ("draw", (0,))],
        [("draw", (0,)), second, ("draw", (1,))],
        [("draw", (0, 1)), third, ("draw", (2,))],
    ]
    stepping.run()
    assert all(map(is_right, asked))


def test_what_is_known_of_a_prompt_need_not_be_read_with_the_others() -> None:
    stepping, engine = serving(3)
    stepping.ask(talk(0, 200), tokens(2))
    stepping.run()
    engine.log.clear()
    asked = [stepping.ask(talk(1, 100), tokens(2)), stepping.ask([*talk(0, 200), *talk(2, 40)], tokens(2))]
    stepping.run()
    reads = [lanes for work, lanes in engine.log if work == "read"]
    assert len({*reads[:2]}) == 2, "in turn, since both are short"
    assert all(map(is_right, asked))


def test_chunks_of_one_length_are_evaluated_at_once_as_many_as_one_chunk_has_room_for() -> None:
    stepping, _ = serving(4, joint=True)
    lengths = (20, 20, 21, 20)
    asked = [stepping.ask(talk(seed, length), tokens(10)) for seed, length in enumerate(lengths)]
    assert logs(stepping, 7) == [
        [("read", (0,))],
        [("read", (1,))],
        [("read", (2,))],
        [("read", (3,))],  # sixteen each
        [("read", (0, 1, 3)), ("draw", (0, 1, 3))],  # four each
        [("draw", (0, 1, 3)), ("read", (2,)), ("draw", (2,))],  # five
        [("draw", (0, 1, 3, 2))],
    ]
    stepping.run()
    assert all(map(is_right, asked))


@pytest.mark.parametrize("anywhere", [True, False])
def test_where_cuts_change_nothing_short_prompts_are_read_at_once_in_equal_parts(anywhere: bool) -> None:
    """A larger batch while nobody generates, and none leaves a single token."""
    stepping, engine = serving(4, joint=True, batch=64, anywhere=anywhere)
    if not anywhere:
        engine.spacing = 256
    asked = [stepping.ask(talk(seed, length), tokens(10)) for seed, length in enumerate((33, 33, 40, 20))]
    assert logs(stepping, 5) == [
        [("read", (0, 1, 2, 3))],  # sixteen each
        [("read", (0, 1, 2))],  # fifteen, where sixteen would leave one
        [("read", (3, 2)), ("draw", (3,))],  # the last four
        [("draw", (3,)), ("read", (0, 1, 2)), ("draw", (0, 1))],  # the last two
        [("draw", (3, 0, 1)), ("read", (2,)), ("draw", (2,))],
    ]
    stepping.run()
    assert all(map(is_right, asked))


def test_where_cuts_change_nothing_the_last_chunk_is_never_a_single_token() -> None:
    for length in (15, 16, 17, 18, 33, 65):
        stepping, _ = serving(1, batch=16, anywhere=True)
        asked = stepping.ask(talk(0, length), tokens(1))
        stepping.run()
        ends = [*(each.done for each in asked.progress), length]
        sizes = [end - start for start, end in pairwise(ends)]
        assert min(sizes) > 1
        assert max(sizes) <= 16
        assert is_right(asked)


def test_a_prompt_is_continued_from_any_token_where_lanes_need_no_checkpoints() -> None:
    stepping, engine = serving(2, anywhere=True)
    first = stepping.ask(talk(0, 50), tokens(3))
    stepping.run()
    again = stepping.ask(talk(0, 50), tokens(3))
    stepping.run()
    other = stepping.ask([*talk(0, 37), *talk(1, 9)], tokens(3))
    stepping.run()
    assert [each.finish.cached for each in (first, again, other)] == [0, 48, 37]
    assert engine.evaluated == 50 + 2 + 2 + 2 + 9 + 2
    assert all(map(is_right, (first, again, other)))


def test_a_few_tokens_in_common_are_not_worth_a_copy_of_another_lane() -> None:
    for shared, cached in ((WORTH_FORKING - 1, 0), (WORTH_FORKING, WORTH_FORKING)):
        stepping, engine = serving(2, anywhere=True)
        first = stepping.ask(talk(0, 90), tokens(60))
        stepping.step()
        second = stepping.ask([*talk(0, shared), *(50 + each for each in talk(1, 30))], tokens(3))
        stepping.run()
        assert second.finish.cached == cached
        assert sum(lane.forks for lane in engine.lanes) == (cached > 0)
        assert all(map(is_right, (first, second)))


def test_those_who_come_later_again_and_again_delay_a_prompt_by_a_few_chunks() -> None:
    stepping, engine = serving(30)
    first = stepping.ask(talk(0, 200), tokens(2))
    others = []
    while not first.tokens:
        stepping.step()
        others.append(stepping.ask(talk(len(others) + 1, 8), tokens(1)))
    reads = [lanes for work, lanes in engine.log if work == "read"]
    assert reads.count((0,)) == 13
    assert len(reads) == 13 + (_SHORT * 16 - 200) // 8
    stepping.run()
    assert all(map(is_right, [first, *others]))


def test_a_prompt_waits_for_what_another_is_about_to_evaluate_for_both() -> None:
    stepping, engine = serving(4, joint=True)
    system = [*talk(0, 31), END]
    asked = [stepping.ask([*system, *talk(seed, 5)], tokens(5)) for seed in (1, 2, 3)]
    other = stepping.ask(talk(9, 5), tokens(5))
    assert logs(stepping, 4) == [
        [("read", (0,))],
        [("read", (0,))],
        [("read", (0, 1, 2)), ("draw", (0, 1, 2))],
        [("draw", (0, 1, 2)), ("read", (3,)), ("draw", (3,))],
    ]
    stepping.run()
    assert [each.finish.cached for each in asked] == [0, 32, 32]
    assert engine.evaluated == 32 + 4 * (5 + 4)
    assert all(map(is_right, [*asked, other]))


def test_a_prompt_does_not_wait_for_what_another_scope_evaluates() -> None:
    stepping, _ = serving(2, joint=True)
    system = [*talk(0, 7), END]
    asked = [stepping.ask([*system, *talk(seed, 5)], tokens(5)) for seed in (1, 2)]
    asked[1].job.scope = "theirs"
    assert logs(stepping, 1) == [[("read", (0, 1))]]
    stepping.run()
    assert [each.finish.cached for each in asked] == [0, 0]
    assert all(map(is_right, asked))


def test_no_stream_waits_longer_than_one_chunk_while_long_prompts_arrive() -> None:
    stepping, engine = serving(4)
    running = stepping.ask(talk(0, 5), tokens(100))
    stepping.step()
    for seed in (1, 2, 3, 4, 5, 6):
        stepping.ask(talk(seed, 500 if seed < 4 else 30), tokens(2))
    count = len(running.ids)
    while running.end is None:
        engine.log.clear()
        stepping.step()
        assert len(running.ids) == count + 1, "a token in every step"
        assert [work for work, _ in engine.log].count("read") <= 1
        count += 1
    assert count == 100


def test_first_come_first_served() -> None:
    stepping, engine = serving(2)
    asked = [stepping.ask(talk(seed, 20 + 13 * seed), tokens(3 + seed)) for seed in range(6)]
    stepping.run()
    assert engine.histories == [each.job.generation.ids for each in asked]
    assert all(map(is_right, asked))
    assert [each.finish.generated for each in asked] == [3, 4, 5, 6, 7, 8]


def test_the_place_in_the_queue() -> None:
    stepping, _ = serving(1)
    asked = [stepping.ask(talk(seed, 20), tokens(3)) for seed in range(4)]
    places = [[each.job.place for each in asked]]
    while stepping.step():
        now = [each.job.place for each in asked]
        if now != places[-1]:
            places.append(now)
    assert places == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_who_leaves_the_queue_moves_the_others_up() -> None:
    stepping, engine = serving(1)
    asked = [stepping.ask(talk(seed, 20), tokens(3)) for seed in range(4)]
    stepping.step()
    asked[2].cancel.set()
    stepping.step()
    assert [each.job.place for each in asked] == [0, 1, 0, 2]
    assert (asked[2].finish.stop_reason, asked[2].finish.generated) == ("cancelled", 0)
    stepping.run()
    assert [each.outcome for each in asked] == ["length", "length", "cancelled", "length"]
    assert len(engine.histories) == 3


def test_what_does_not_fit_waits_and_nothing_overtakes_it() -> None:
    stepping, engine = serving(3, context_size=100, capacity=150)
    large = stepping.ask(talk(0, 60), tokens(30))
    larger = stepping.ask(talk(1, 60), tokens(41))
    small = stepping.ask(talk(2, 5), tokens(5))
    stepping.step()
    while large.end is None:
        assert (larger.job.place, small.job.place) == (1, 2)
        stepping.step()
    stepping.run()
    assert [each.outcome for each in (large, larger, small)] == ["length"] * 3
    assert [len(each) for each in engine.histories] == [60, 5, 60]  # the last two are read together
    assert all(map(is_right, (large, larger, small)))


def test_a_request_as_large_as_everything_gets_everything() -> None:
    stepping, _ = serving(3, context_size=100, capacity=100)
    for seed in range(3):
        stepping.ask(talk(seed, 20), tokens(5))
    last = stepping.ask(talk(3, 99), Sampling())
    stepping.run()
    assert (last.finish.generated, last.finish.stop_reason, is_right(last)) == (2, "length", True)


def test_each_prompt_finds_what_those_before_it_have_evaluated() -> None:
    stepping, engine = serving(8)
    system = [*talk(0, 95), END]
    asked = [stepping.ask([*system, *talk(seed, 20)], tokens(5)) for seed in range(1, 9)]
    stepping.run()
    assert [each.finish.cached for each in asked] == [0] + [96] * 7
    assert engine.evaluated == 96 + 8 * (20 + 4)
    assert all(map(is_right, asked))


# -- a reader that is slow ----------------------------------------------------------------------------


def test_a_lane_rests_when_its_reader_does_not_take_and_goes_on_when_he_does() -> None:
    stepping, engine = serving(2, reading=False)
    asked = stepping.ask(talk(0, 5), tokens(50))
    stepping.run()
    assert (asked.channel.resting, stepping.wakes) == (True, [])
    drawn = sum(work == "draw" for work, _ in engine.log)
    assert drawn == AHEAD - 1, "and the progress of the prompt"
    assert asked.take(1) == 1
    assert (asked.channel.resting, stepping.wakes) == (False, [1])
    engine.log.clear()
    stepping.run()
    assert engine.log == [("draw", (0,))]
    stepping.reading = True
    stepping.take()
    stepping.run()
    assert (asked.finish.generated, is_right(asked)) == (50, True)


def test_a_slow_reader_keeps_nobody_from_running() -> None:
    stepping, _ = serving(2, reading=False)
    slow, quick = stepping.ask(talk(0, 5), tokens(50)), stepping.ask(talk(1, 5), tokens(50))
    for _ in range(200):
        stepping.step()
        quick.take()
    assert (quick.finish.generated, slow.channel.resting, slow.end) == (50, True, None)


def test_nobody_rests_while_somebody_waits_for_a_lane() -> None:
    """So that a thread which reads two generations in any order cannot wait for ever."""
    stepping, _ = serving(1, reading=False)
    first, second = stepping.ask(talk(0, 5), tokens(50)), stepping.ask(talk(1, 5), tokens(3))
    for _ in range(200):
        stepping.step()
        second.take()
    assert (second.finish.generated, is_right(second)) == (3, True)
    assert first.take() == 1 + 50 + 1
    assert is_right(first)


def test_there_is_nothing_to_do_when_all_rest_or_nothing_was_asked() -> None:
    stepping, engine = serving(2, reading=False)
    assert not stepping.step()
    for seed in range(2):
        stepping.ask(talk(seed, 5), tokens(50))
    stepping.run()
    count = len(engine.log), engine.rests
    assert not stepping.step()
    assert (len(engine.log), engine.rests) == (count[0], count[1] + 1), "the engine is told"


# -- one that leaves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["event", "channel"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6])
def test_a_cancel_frees_the_lane_within_one_step_whatever_is_being_done(how: str, steps: int) -> None:
    """Before its turn, within its prompt, at its first token, later."""
    stepping, _engine = serving(2)
    other = stepping.ask(talk(0, 5), tokens(40))
    stepping.step()
    asked = stepping.ask(talk(1, 60), tokens(40))
    for _ in range(steps):
        stepping.step()
    busy = stepping.busy
    asked.cancel.set() if how == "event" else asked.channel.cancel()
    stepping.step()
    assert (asked.finish.stop_reason, asked.finish.generated) == ("cancelled", max(0, steps - 3))
    assert stepping.busy == 1
    assert busy == 1 + (steps > 0)
    assert is_right(asked)
    third = stepping.ask([*talk(1, 60), 1], tokens(5))
    stepping.run()
    assert third.finish.cached >= min(3, max(0, steps - 1)) * 16, "what it had evaluated is used"
    assert is_right(other)
    assert is_right(third)


@pytest.mark.parametrize("length", [20, 40])
def test_a_cancel_while_several_prompts_are_evaluated_at_once_is_about_one(length: int) -> None:
    """After its last chunk, or before that."""

    def leave(work: str, lane: SpeakingLane) -> None:
        if work == "evaluate" and lane.number == 1 and engine.log[-1][1] == (0, 1, 2):
            asked[1].cancel.set()

    stepping, engine = serving(3, leave, joint=True)
    asked = [stepping.ask([*talk(seed, 4), END, *talk(seed, length - 5)], tokens(3)) for seed in range(3)]
    stepping.run()
    assert [each.outcome for each in asked] == ["length", "cancelled", "length"]
    assert all(map(is_right, asked))
    assert asked[1].tokens == []
    assert stepping.busy == 0


def test_a_call_for_several_prompts_ends_when_all_of_them_are_cancelled() -> None:
    def leave(work: str, _: SpeakingLane) -> None:
        if work == "evaluate":
            for each in asked:
                each.cancel.set()

    stepping, engine = serving(3, leave, joint=True)
    asked = [stepping.ask(talk(seed, 5), tokens(3)) for seed in range(3)]
    stepping.step()
    assert [each.outcome for each in asked] == ["cancelled"] * 3
    assert (stepping.busy, len(engine.log)) == (0, 1)
    assert all(lane.value == folded(lane.ids) for lane in engine.lanes), "nothing undefined is kept"


def test_a_resting_lane_can_be_cancelled() -> None:
    stepping, _ = serving(1, reading=False)
    asked = stepping.ask(talk(0, 5), tokens(50))
    stepping.run()
    asked.channel.cancel()
    assert stepping.wakes, "the thread is told to look"
    stepping.step()
    asked.take()
    assert (asked.outcome, stepping.busy) == ("cancelled", 0)


def test_who_may_be_cancelled_by_a_flag_is_looked_at_again_without_a_wake() -> None:
    """Nobody wakes the thread when a flag is set."""
    stepping, _ = serving(1, reading=False)
    assert stepping.scheduler.patience is None
    asked = stepping.ask(talk(0, 5), tokens(50))
    stepping.run()
    assert not stepping.wakes
    assert 0 < (stepping.scheduler.patience or 0) < 0.1
    asked.cancel.set()
    stepping.step()
    assert (stepping.busy, stepping.scheduler.patience) == (0, None)
    asked.take()
    assert (asked.outcome, len(asked.tokens)) == ("cancelled", AHEAD - 1)


def test_the_end_cancels_everything_and_what_comes_later() -> None:
    stepping, _ = serving(2)
    asked = [stepping.ask(talk(seed, 40), tokens(50)) for seed in range(4)]
    for _ in range(6):
        stepping.step()
    stepping.stopping = True
    stepping.scheduler.end()
    stepping.ask(talk(9, 5))
    stepping.take()
    assert [each.outcome for each in asked] == ["cancelled"] * 4
    assert asked[0].ids == spoken(talk(0, 40), 2)
    assert (stepping.busy, stepping.step()) == (0, False)


def test_stopping_within_a_chunk_ends_it() -> None:
    def stop(work: str, _: SpeakingLane) -> None:
        stepping.stopping = work == "evaluate"

    stepping, _ = serving(1, stop)
    asked = stepping.ask(talk(0, 40))
    stepping.step()
    assert (asked.outcome, stepping.busy) == ("cancelled", 0)


# -- one that fails -----------------------------------------------------------------------------------


def outcomes(
    works: Any, count: int = 4, lanes: int = 3, logprobs: int | None = None, joint: bool = False
) -> tuple[list[Any], Stepping]:
    stepping, _ = serving(lanes, works, joint=joint)
    sampling = Sampling(max_tokens=12, logprobs=logprobs)
    asked = [stepping.ask(talk(seed, 40), sampling) for seed in range(count)]
    stepping.run()
    assert stepping.busy == 0
    assert all(map(is_right, asked))
    for lane in stepping.engine.lanes:
        assert isinstance(lane, Chain)
        assert lane.value == folded(lane.ids)
    after = stepping.ask([*talk(1, 40), 1], tokens(3))
    stepping.run()
    assert is_right(after), "what is left is right"
    return [each.outcome for each in asked], stepping


@pytest.mark.parametrize(
    ("work", "at", "error"),
    [
        ("evaluate", 1, EngineFailed),
        ("evaluate", 3, ValueError),
        ("begin", 1, EngineFailed),
        ("begin", 1, ValueError),
        ("draw", 1, EngineFailed),
        ("draw", 5, EngineFailed),
        ("logprobs", 2, ValueError),
        ("logprobs", 1, EngineFailed),
    ],
)
@pytest.mark.parametrize("joint", [False, True])
def test_what_fails_in_one_lane_fails_alone(work: str, at: int, error: type[Exception], joint: bool) -> None:
    found, _ = outcomes(failing(work, at, 1, error), logprobs=0, joint=joint)
    others = error if joint and (work, at) == ("evaluate", 3) else "length"  # a call for two lanes
    assert found == [others, error, "length", "length"]


def test_what_fails_for_all_ends_all_that_ran_and_no_other() -> None:
    """The fourth step: the first two run, the third is still read, the fourth waits."""
    found, _ = outcomes(failing("step", 4))
    assert found == [EngineFailed, EngineFailed, "length", "length"]


def test_a_first_token_that_cannot_be_drawn_ends_nobody_else() -> None:
    found, _ = outcomes(failing("step", 1, 1))
    assert found == ["length", EngineFailed, "length", "length"]


def test_a_lane_that_cannot_be_opened_ends_one_and_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing runs that would have the thread look again."""
    checkpoint = Chain.checkpoint
    stepping, _ = serving(1)
    stepping.ask(talk(0, 40), tokens(3))
    stepping.run()
    further = [*stepping.engine.lanes[0].ids, 1]

    def fails(_: Chain) -> State:
        monkeypatch.setattr(Chain, "checkpoint", checkpoint)
        raise EngineFailed("no memory for a copy")

    monkeypatch.setattr(Chain, "checkpoint", fails)
    asked = [stepping.ask(further, tokens(3)) for _ in range(3)]
    stepping.run()
    assert [each.outcome for each in asked] == [EngineFailed, "length", "length"]
    assert all(map(is_right, asked))


def test_a_checkpoint_that_cannot_be_taken_ends_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping, _ = serving(2)
    first = stepping.ask(talk(0, 5), tokens(30))
    stepping.step()
    second = stepping.ask(talk(1, 40), tokens(3))

    def fails(_: Chain) -> State:
        raise EngineFailed("no memory for a copy")

    with monkeypatch.context() as broken:
        broken.setattr(Chain, "checkpoint", fails)
        stepping.step()
    stepping.run()
    assert (first.outcome, second.outcome) == ("length", EngineFailed)
    assert is_right(first)


def test_a_step_that_raises_itself_ends_everything_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepping, _ = serving(2)
    asked = [stepping.ask(talk(seed, 40), tokens(9)) for seed in range(4)]
    for _ in range(4):
        stepping.step()

    def fails() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(stepping.scheduler, "_drop_cancelled", fails)
        stepping.step()
    assert [each.outcome for each in asked] == [ZeroDivisionError] * 4
    assert (stepping.busy, stepping.engine.lanes[0].ids) == (0, [])
    after = stepping.ask(talk(0, 40), tokens(9))
    stepping.run()
    assert (after.finish.cached, is_right(after)) == (0, True)


def test_a_reader_whose_event_loop_is_gone_is_as_good_as_gone() -> None:
    stepping, _ = serving(2)
    asked, other = stepping.ask(talk(0, 5), tokens(50)), stepping.ask(talk(1, 5), tokens(9))

    loop = asyncio.new_event_loop()
    loop.close()
    asked.channel.notify(loop, lambda: None)
    stepping.run()
    assert (asked.outcome, other.outcome) == ("cancelled", "length")
    assert is_right(other)


def test_readers_on_one_event_loop_are_woken_with_one_call_for_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "_PATIENCE", 0.0)
    stepping, _ = serving(3)
    asked = [stepping.ask(talk(number, 5), tokens(30)) for number in range(3)]
    calls: list[set[int]] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, callback: Any, *arguments: Any, **_: Any) -> Any:
            calls.append(set())
            callback(*arguments)

    loop = Loop()
    for number, each in enumerate(asked):
        each.channel.notify(loop, lambda number=number: calls[-1].add(number))  # type: ignore[misc]
    while not all(each.tokens for each in asked):
        stepping.step()
        for each in asked:
            each.take()
    calls.clear()
    stepping.step()
    assert calls == [{0, 1, 2}]
    # Tokens that come fast are told of together.
    monkeypatch.setattr(channel, "_PATIENCE", 1e9)
    come = [len(each.tokens) for each in asked]
    for _ in range(5):
        stepping.step()
    assert [len(each.tokens) for each in asked] == [each + 5 for each in come]
    assert calls == [{0, 1, 2}]
    loop.close()


# -- anything at any time -----------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 5),
    share=st.floats(0, 1),
    chunk=st.sampled_from([3, 16, 64]),
    trouble=st.booleans(),
    joint=st.booleans(),
    batch=st.sampled_from([None, 64, 100]),
    anywhere=st.booleans(),
)
def test_whatever_comes_goes_and_fails_every_token_is_right_and_all_end(
    seed: int,
    lanes: int,
    share: float,
    chunk: int,
    trouble: bool,
    joint: bool,
    batch: int | None,
    anywhere: bool,
) -> None:
    """Random arrivals, prompts that go on from others, limits, slow readers, cancels, and faults of one lane."""
    draw = random.Random(seed)

    def works(work: str, _: SpeakingLane) -> None:
        if trouble and work != "step" and draw.random() < 0.01:
            raise EngineFailed("the engine gave up")

    context = 200
    capacity = context + int((lanes - 1) * context * share)
    stepping, engine = serving(
        lanes, works, chunk=chunk, context_size=context, capacity=capacity, reading=False, joint=joint,
        batch=batch, anywhere=anywhere,
    )  # fmt: skip
    asked: list[Asked] = []
    begun: list[Asked] = []
    for _ in range(draw.randrange(50, 400)):
        if draw.random() < 0.1:
            earlier = draw.choice(asked).job.generation.ids if asked else []
            prompt = [
                *earlier[: draw.choice([0, 20, 50, 150])],
                *talk(draw.randrange(4), draw.randrange(1, 120)),
            ]
            prompt = prompt[: context - 1]
            asked.append(stepping.ask(prompt, tokens(draw.randrange(1, 40))))
        stepping.step()
        running = [each for each in asked if each.end is None]
        begun += [each for each in running if each.job.seat is not None and each not in begun]
        for each in running:
            if draw.random() < 0.4:
                each.take(draw.choice([1, None]))
            if draw.random() < 0.01:
                each.cancel.set()
        waiting = [each.job.place for each in running if each.job.place]
        assert waiting == list(range(1, len(waiting) + 1))
    stepping.reading = True
    stepping.take()
    stepping.run()
    assert all(each.outcome in ("length", "cancelled", EngineFailed) for each in asked)
    assert all(map(is_right, asked))
    assert begun == [each for each in asked if each in begun], "in the order in which they came"
    assert stepping.busy == 0
    assert sum(len(lane.ids) for lane in engine.lanes) <= capacity
    assert all(lane.begun is None and lane.value == folded(lane.ids) for lane in engine.lanes)


# -- what is on disk --------------------------------------------------------------------------------------


def stored(root: Path, ids: list[int], lanes: int = 2) -> Stepping:
    """A scheduler with a folder in which `ids` are kept, and nothing of them in memory."""
    folder = SnapshotFolder(root)
    writing, _ = serving(1, snapshots=Snapshots(folder, KEY))
    writing.ask(ids, tokens(1))
    writing.run()
    writing.prefix.write()
    assert len(folder.files()) == 1
    return serving(lanes, snapshots=Snapshots(folder, KEY))[0]


def held_up(stepping: Stepping, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Reading a file waits for the first event; the second is set when it has been read."""
    goes_on, has_read = threading.Event(), threading.Event()
    reader = Snapshots.reader

    def slow(self: Snapshots, path: Path) -> Callable[[], Snapshot]:
        read = reader(self, path)
        return lambda: read() if goes_on.wait(20) else pytest.fail("never read")

    monkeypatch.setattr(Snapshots, "reader", slow)
    stepping.scheduler._wake = has_read.set
    return goes_on, has_read


def test_a_state_is_read_from_disk_while_others_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids)
    goes_on, has_read = held_up(stepping, monkeypatch)
    running = stepping.ask(talk(1, 20), tokens(60))
    while not running.tokens:
        stepping.step()
    late = stepping.ask([*ids, 7], tokens(5))
    for _ in range(20):
        assert stepping.step()
    assert len(running.tokens) > 20
    assert not late.progress
    goes_on.set()
    assert has_read.wait(20)
    stepping.run()
    assert late.finish.cached >= 192
    assert is_right(late)
    assert is_right(running)


@pytest.mark.parametrize("how", ["channel", "flag"])
def test_who_leaves_while_a_state_is_read_from_disk_is_gone_within_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also where nobody else is served, and then the next one begins."""
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids, lanes=1)
    goes_on, has_read = held_up(stepping, monkeypatch)
    asked = stepping.ask([*ids, 7], tokens(5))
    other = stepping.ask(talk(1, 20), tokens(3))
    assert not stepping.step(), "the thread does not wait for the file"
    assert stepping.scheduler.patience, "and looks at the flag"
    if how == "flag":
        asked.cancel.set()
    else:
        asked.channel.cancel()
    stepping.run()
    assert (asked.outcome, other.outcome) == ("cancelled", "length")
    goes_on.set()
    assert has_read.wait(20)
    assert is_right(other)


def test_a_state_is_read_from_disk_beside_others_even_if_there_was_no_lane_for_it_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids)
    goes_on, has_read = held_up(stepping, monkeypatch)
    running = [stepping.ask(talk(seed, 20)) for seed in (1, 2)]  # which may need all the room
    while not all(each.tokens for each in running):
        stepping.step()
    late = stepping.ask([*ids, 7], tokens(5))
    stepping.step()
    running[0].channel.cancel()
    for _ in range(20):
        assert stepping.step()
    assert (stepping.busy, late.progress) == (1, []), "the other one has gone on"
    goes_on.set()
    assert has_read.wait(20)
    while late.end is None:
        stepping.step()
    assert late.finish.cached >= 192
    assert is_right(late)


def test_reading_from_disk_goes_on_when_the_others_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids)
    goes_on, has_read = held_up(stepping, monkeypatch)
    running = stepping.ask(talk(1, 20), tokens(3))
    while not running.tokens:
        stepping.step()
    late = stepping.ask([*ids, 7], tokens(5))
    stepping.run()
    assert running.outcome == "length"
    assert late.outcome is None
    assert not stepping.step(), "the thread sleeps until it is woken"
    goes_on.set()
    assert has_read.wait(20)
    stepping.run()
    assert late.finish.cached >= 192
    assert is_right(late)


def test_a_state_on_disk_that_does_not_fit_beside_the_others_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids)
    stepping.prefix._capacity = 1000
    running = stepping.ask(talk(1, 20), tokens(850))
    while not running.tokens:
        stepping.step()

    def never(*_: object) -> None:
        pytest.fail("read in vain")

    monkeypatch.setattr(Snapshots, "reader", never)
    late = stepping.ask([*ids[:60], 7], tokens(5))
    stepping.run()
    assert (running.outcome, late.finish.cached, is_right(late)) == ("length", 0, True)


def test_a_file_that_is_damaged_meanwhile_is_read_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = talk(5, 200)
    stepping = stored(tmp_path, ids)
    goes_on, has_read = held_up(stepping, monkeypatch)
    running = stepping.ask(talk(1, 20), tokens(60))
    while not running.tokens:
        stepping.step()
    late = stepping.ask([*ids, 7], tokens(5))
    stepping.step()
    [path] = SnapshotFolder(tmp_path).files()
    path.write_bytes(path.read_bytes()[:-9])
    goes_on.set()
    assert has_read.wait(20)
    stepping.run()
    assert late.finish.cached == 0
    assert is_right(late)
    assert is_right(running)


def test_an_engine_that_fails_again_while_lanes_are_emptied_leaves_no_reader_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object) -> None:
        raise MemoryError

    stepping, _ = serving(2)
    asked = [stepping.ask(talk(seed, 20), tokens(9)) for seed in range(4)]
    while not asked[1].tokens:
        stepping.step()
    with monkeypatch.context() as broken:
        broken.setattr(Scheduler, "_drop_cancelled", breaks)
        broken.setattr(SpeakingLane, "clear", breaks)
        stepping.step()
    assert [each.outcome for each in asked] == [MemoryError] * 4


@pytest.mark.parametrize("budget", [0, DEFAULT_BUDGET])
@pytest.mark.parametrize("work", ["end", "clear"])
@pytest.mark.parametrize("how", ["finish", "cancel", "fail", "end"])
def test_a_lane_that_cannot_be_freed_leaves_no_reader_waiting(
    monkeypatch: pytest.MonkeyPatch, how: str, work: str, budget: int
) -> None:
    stepping = Stepping(Speaking(None, lanes=2), budget)
    asked = [stepping.ask(talk(seed, 20), tokens(9)) for seed in range(3)]
    while not asked[1].tokens:
        stepping.step()

    def breaks(_: SpeakingLane) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(SpeakingLane, work, breaks)
        if how == "finish":
            for _ in range(20):
                stepping.step()
        elif how == "cancel":
            for each in asked:
                each.cancel.set()
            stepping.step()
        elif how == "fail":
            stepping.scheduler.fail(MemoryError())
        else:
            stepping.scheduler.end()
        stepping.take()
    assert None not in [each.outcome for each in asked]
    assert stepping.busy == 0


def test_a_cancel_flag_that_fails_ends_its_own_generation_alone() -> None:
    class Fails(threading.Event):
        def is_set(self) -> bool:
            raise LookupError("no such flag")

    stepping, _ = serving(2)
    asked = [stepping.ask(talk(seed, 20), tokens(9)) for seed in range(3)]
    asked[1].job._cancel = Fails()
    stepping.run()
    assert [each.outcome for each in asked] == ["length", LookupError, "length"]
    assert is_right(asked[0])
    assert is_right(asked[2])
    assert stepping.busy == 0
