"""What the owner thread and a reader share: who waits is woken, and no more often than needed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.hosts import channel as module
from localagent.hosts.channel import Channel, End, EngineGeneration, tell
from localagent.hosts.protocol import Queued

STEPS = [Queued(number) for number in range(1, 33)]


class Loop:
    """An event loop that calls at once, or is closed; it counts how often it is woken."""

    def __init__(self, closed: bool = False) -> None:
        self.woken = 0
        self._closed = closed

    def call_soon_threadsafe(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        self.woken += 1
        call(*arguments)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that it is, which a test may move on."""
    now = [1000.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


def made(loop: Any = None, calls: list[int] | None = None, number: int = 0) -> tuple[Channel, list[int]]:
    """A channel, and how often the owner thread was asked to look at it."""
    wakes: list[int] = []
    channel = Channel(lambda: wakes.append(1))
    if loop is not None:
        channel.notify(loop, (lambda: calls.append(number)) if calls is not None else None)
    return channel, wakes


def put(channel: Channel, steps: Iterable[Any]) -> None:
    for step in steps:
        channel.put(step)


def test_steps_come_out_in_their_order_and_the_end_last():
    channel, wakes = made()
    assert not channel.more
    assert channel.take_now() == []
    put(channel, STEPS[:2])
    channel.end(End())
    assert channel.more
    assert [channel.take(), *channel.take_now(1), channel.take()] == [*STEPS[:2], End()]
    assert (channel.more, channel.take_now(), wakes) == (False, [], [])
    put(channel, STEPS[:2])
    assert channel.take_now() == STEPS[:2]


def test_a_lane_is_ahead_from_sixteen_steps_on_and_until_its_reader_takes_one():
    channel, wakes = made()
    put(channel, STEPS[:15])
    assert (channel.ahead, channel.resting) == (False, False)
    channel.take()
    put(channel, STEPS[:1])
    assert (channel.ahead, channel.resting) == (False, False)
    put(channel, STEPS[:1])
    assert (channel.ahead, channel.resting) == (True, True)
    assert wakes == []
    channel.take()
    assert (channel.resting, wakes) == (False, [1]), "the owner thread goes on"
    channel.take()
    assert (channel.ahead, wakes) == (False, [1]), "and is asked to once"


def test_a_cancel_wakes_the_owner_thread():
    channel, wakes = made()
    assert not channel.cancelled
    channel.cancel()
    assert (channel.cancelled, wakes) == (True, [1])


@pytest.mark.parametrize("ending", [False, True])
def test_who_sleeps_is_woken(ending):
    channel, _ = made()
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(channel.take()), daemon=True)
    reader.start()
    while not channel._asleep:
        assert reader.is_alive()
    if ending:
        channel.end(End())
    else:
        channel.put(STEPS[0])
        tell([channel])
    reader.join(20)
    assert found == [End() if ending else STEPS[0]]


def test_readers_of_one_loop_are_woken_with_one_call(clock):
    one, other, calls = Loop(), Loop(), []
    channels = [made(loop, calls, number)[0] for number, loop in enumerate((one, other, one, one, None))]
    for channel in channels[1:]:
        channel.put(STEPS[0])
    tell(channels)
    assert (one.woken, other.woken, sorted(calls)) == (1, 1, [1, 2, 3]), "the first has nothing to take"
    tell(channels)
    assert (one.woken, other.woken) == (1, 1), "they have been told"
    channels[2].notify(None, None)
    channels[3].notify(one, None)
    put(channels[2], STEPS[:1])
    put(channels[3], STEPS[:1])
    tell(channels)
    assert (one.woken, sorted(calls)) == (2, [1, 2, 3]), "they follow no more"


def test_patiently_a_reader_is_told_a_little_later(clock):
    loop, calls = Loop(), []
    channel = made(loop, calls, 7)[0]
    channel.put(STEPS[0])
    tell([channel], patiently=True)
    assert calls == [7], "the first time at once"
    channel.put(STEPS[1])
    clock[0] += 0.0039
    tell([channel], patiently=True)
    assert calls == [7]
    late = made(loop, calls, 8)[0]
    late.put(STEPS[0])
    tell([channel, late], patiently=True)
    assert sorted(calls) == [7, 7, 8], "all of them, where one was not told for long"
    channel.put(STEPS[2])
    clock[0] += 0.0041
    tell([channel], patiently=True)
    assert calls.count(7) == 3
    channel.put(STEPS[3])
    tell([channel])
    assert calls.count(7) == 4, "where nothing may come for a while, at once"
    tell([], patiently=True)


def test_who_rests_has_been_told_of_all_there_is(clock):
    loop, calls = Loop(), []
    channel = made(loop, calls)[0]
    put(channel, STEPS[:16])
    tell([channel])
    put(channel, STEPS[:1])
    tell([channel], patiently=True)
    assert len(calls) == 1
    assert channel.ahead
    assert len(calls) == 2


def test_a_generation_that_is_dropped_raises_nothing():
    """It may be in a garbage collection, anywhere."""
    asked = []

    def wake() -> None:
        asked.append(1)
        raise RuntimeError("the interpreter ends")

    generation = EngineGeneration(None, Channel(wake), lambda tokens: None)  # type: ignore[arg-type]
    del generation
    gc.collect()
    assert asked == [1]


def test_readers_of_a_loop_that_is_closed_have_left():
    open_loop, calls = Loop(), []
    gone, stays = made(Loop(closed=True), calls, 1)[0], made(open_loop, calls, 2)[0]
    for channel in (gone, stays):
        channel.put(STEPS[0])
    tell([gone, stays])
    assert (gone.cancelled, stays.cancelled, calls) == (True, False, [2])


@pytest.mark.parametrize(("most", "sizes"), [(None, [5, 2]), (2, [2, 2, 1, 2])])
def test_what_is_there_comes_as_one_group_and_before_what_broke_it_off(most: int | None, sizes: list[int]):
    channel, _ = made()
    owner: Any = SimpleNamespace(check_process=lambda: None, foreign=False)
    groups: list[Any] = []

    async def read() -> None:
        async for group in EngineGeneration(owner, channel, lambda tokens: None).asteps(most):
            groups.append(group)
            if sum(map(len, groups)) == 5:
                put(channel, STEPS[5:7])
                channel.end(End(error=RuntimeError("broken")))

    put(channel, STEPS[:5])
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(read())
    assert [len(group) for group in groups] == sizes
    assert [step for group in groups for step in group] == STEPS[:7]
