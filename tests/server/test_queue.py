"""The queue in front of a model: clients take turns, nobody is lost, and a place is given back however it is left."""

from __future__ import annotations

import asyncio
import random

import pytest

from localagent.server.queue import FairQueue, Overloaded


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Clients:
    """Requests that hold their places until they are told to leave."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.served: list[str] = []
        self.leaving: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, client: str) -> None:
        async def request() -> None:
            async with self.queue.place(client):
                self.served.append(name)
                await self.leaving[name].wait()

        self.leaving[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(request())
        await settle()

    async def leave(self, name: str) -> None:
        self.leaving[name].set()
        await self.tasks[name]
        await settle()


async def in_turns() -> None:
    clients = Clients(FairQueue(1, 10))
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        await clients.come(name, name[0])
    for name in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
        assert clients.served[-1] == name
        await clients.leave(name)
    assert (clients.queue.running, clients.queue.waiting) == (0, 0)


async def full() -> None:
    queue = FairQueue(1, 3)
    clients = Clients(queue)
    for name in ("a1", "a2", "a3", "a4"):
        await clients.come(name, "a")
    await clients.come("a5", "a")
    with pytest.raises(Overloaded) as refused:
        await clients.tasks["a5"]
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert str(refused.value) == "3 requests are waiting already: try again later"
    await clients.come("b1", "b")
    with pytest.raises(Overloaded):
        await clients.tasks["a4"]
    await clients.come("b2", "b")  # he would have as many as a, so nobody is sent away for him
    with pytest.raises(Overloaded):
        await clients.tasks["b2"]
    assert queue.waiting == 3
    for name in ("a1", "a2", "b1", "a3"):
        await clients.leave(name)
    assert (queue.running, queue.waiting) == (0, 0)


async def head_leaves() -> None:
    queue = FairQueue(5, 10)

    async def hold(client: str, slots: int) -> None:
        async with queue.place(client, slots):
            await asyncio.Event().wait()

    tasks = []
    for client, slots in (("a", 2), ("b", 4), ("c", 1)):
        tasks.append(asyncio.create_task(hold(client, slots)))
        await settle()
    assert (queue.running, queue.waiting) == (2, 2)
    tasks[1].cancel()
    await settle()
    assert (queue.running, queue.waiting) == (3, 0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert queue.running == 0


async def at_random(seed: int) -> None:
    """Who leaves or is cancelled at any moment leaves no place behind, and no more run than may."""
    draw = random.Random(seed)
    queue = FairQueue(draw.randint(1, 3), draw.randint(0, 6))
    clients = Clients(queue)
    for number in range(120):
        name = f"{draw.choice('abc')}{number}"
        match draw.choice(["come", "come", "leave", "cancel", "both"]):
            case "come":
                await clients.come(name, name[0])
            case "leave" if clients.served:
                clients.leaving[draw.choice(clients.served)].set()
            case "cancel" if clients.tasks:
                draw.choice(list(clients.tasks.values())).cancel()
            case "both" if clients.served:  # a place is given to one who is cancelled before he hears of it
                clients.leaving[draw.choice(clients.served)].set()
                await asyncio.sleep(0)
                for task in draw.sample(list(clients.tasks.values()), min(3, len(clients.tasks))):
                    task.cancel()
        if draw.random() < 0.7:
            await settle()
        assert 0 <= queue.running <= queue.slots
    for event in clients.leaving.values():
        event.set()
    for _ in range(50):
        await settle()
    await asyncio.gather(*clients.tasks.values(), return_exceptions=True)
    assert (queue.running, queue.waiting) == (0, 0)


async def told_when(clock: list[float], slots: int, most: int, took: float) -> int:
    """When to come back, once a request has taken so many seconds and all places are taken."""
    clients = Clients(FairQueue(slots, most))
    await clients.come("first", "first")
    clock[0] += took
    await clients.leave("first")
    for number in range(slots + most + 1):
        await clients.come(str(number), str(number))
    with pytest.raises(Overloaded) as refused:
        await clients.tasks[str(slots + most)]
    for number in range(slots + most):
        await clients.leave(str(number))
    return refused.value.retry_after


@pytest.mark.parametrize(
    ("slots", "most", "took", "seconds"),
    [
        (1, 4, 81.0, 44),  # of four requests, which take 11 seconds each
        (2, 4, 81.0, 22),
        (1, 4, 1.0, 4),
        (1, 4, 801.0, 60),  # a minute at most
        (1, 0, 81.0, 1),  # and a second at least
        (3, 1, 5.0, 1),
    ],
)
def test_who_is_sent_away_is_told_when_it_may_be_worth_coming_back(
    monkeypatch: pytest.MonkeyPatch, slots: int, most: int, took: float, seconds: int
) -> None:
    """The mean of the requests before moves by an eighth with each."""
    clock = [50.0]
    monkeypatch.setattr("localagent.server.queue.monotonic", lambda: clock[0])
    assert asyncio.run(told_when(clock, slots, most, took)) == seconds


def test_clients_take_turns() -> None:
    asyncio.run(in_turns())


def test_a_full_queue_sends_away_who_has_most_in_it() -> None:
    asyncio.run(full())


def test_who_waits_behind_one_that_wants_more_goes_on_when_that_leaves() -> None:
    asyncio.run(head_leaves())


@pytest.mark.parametrize("seed", range(30))
def test_no_place_is_lost_in_whatever_order_they_come_and_go(seed: int) -> None:
    asyncio.run(at_random(seed))
