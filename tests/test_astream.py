"""A turn on an event loop is the same turn: it blocks nothing, holds no thread, and frees its lane when it is left.

Many at once: with the replay host where what was written matters, on lfm2-nano where the lanes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from localagent.agent import Agent, Allow, RunDone
from localagent.errors import EngineFailed, UsageError
from localagent.hosts.host import EngineHost
from localagent.hosts.protocol import Prefilled, Queued, Token
from localagent.hosts.replay import ReplayHost
from localagent.hosts.sampling import Sampling
from localagent.messages import AssistantMessage, UserMessage
from localagent.model import Model
from localagent.tools import tool
from localagent.turn import BrokenOff, Done
from parsers import DIALECTS
from tests.agent.replaying import block, recording, scripted

LFM2 = DIALECTS["lfm2"]
WAYS = ["stream", "astream"]
PLACES = ["Fence", "Oslo", "Rome", "Cairo", "Lima"]


def follow(way: str, model: Model, *arguments: Any, **options: Any) -> tuple[list[Any], BaseException | None]:
    """The events of a turn, and the error in which it ended."""
    found: list[Any] = []

    async def main() -> None:
        async for event in model.astream(*arguments, **options):
            found.append(event)

    try:
        if way == "astream":
            asyncio.run(main())
        else:
            for event in model.stream(*arguments, **options):
                found.append(event)
    except (Exception, KeyboardInterrupt) as error:
        return found, error
    return found, None


def told(message: AssistantMessage) -> tuple[object, ...]:
    """What of a message is the same in every run."""
    parts = [
        (type(part), getattr(part, "text", None), getattr(part, "name", None)) for part in message.content
    ]
    return message.raw, parts, message.stop_reason, message.usage, message.error, message.model


def shown(events: list[Any]) -> list[object]:
    return [
        (type(event), told(event.message)) if isinstance(event, Done | BrokenOff) else event
        for event in events
    ]


# -- one turn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("Hello there.", {}),
        ("<think>Hm.</think>So. " + block("f(a=1)", "g()"), {}),
        (block("f(a=[1, {'b': 'x'}])"), {"max_tokens": 3}),
        ("One. Two. Three.", {"stop": ("Two",)}),
        ("", {}),
    ],
)
def test_both_ways_give_the_same(output: str, options: dict[str, Any]) -> None:
    asked = [UserMessage.with_images("What?", [b"GIF89a"])]  # which brings a warning
    (sync, _), (others, _) = (follow(way, scripted(output), asked, **options) for way in WAYS)
    assert shown(others) == shown(sync)
    assert sync[-1].token_ids == others[-1].token_ids
    response = asyncio.run(scripted(output).arespond(asked, **options))
    assert told(response) == told(sync[-1].message)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (EngineFailed("no power"), "error", "no power"),
        (ZeroDivisionError(), "error", "ZeroDivisionError"),
        (KeyboardInterrupt(), "cancelled", None),
    ],
)
def test_a_turn_that_breaks_off_tells_what_was_written(
    way: str, error: BaseException, reason: str, said: str | None
) -> None:
    class Breaking(list[Token]):
        at = 2

        def __getitem__(self, at: Any) -> Any:
            if at == self.at:
                raise error
            return super().__getitem__(at)

    tokens = Breaking(recording("Hello there, you."))
    *events, last = follow(way, Model(ReplayHost([tokens]), LFM2), "Hi")[0]
    assert "".join(event.text for event in events) == "Hello ther"
    assert isinstance(last, BrokenOff)
    assert (last.message.raw, last.message.stop_reason, last.message.error) == ("Hello ther", reason, said)
    assert follow(way, Model(ReplayHost([tokens]), LFM2), "Hi")[1] is error

    tokens.at = 0
    assert follow(way, Model(ReplayHost([tokens]), LFM2), "Hi") == ([], error), "nothing was written"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [threading.Event, asyncio.Event])
def test_cancelling_ends_in_done(way: str, make: Callable[[], Any]) -> None:
    cancel = make()
    seen: list[str] = []

    class Cancelling(ReplayHost):
        def generate(self, *arguments: Any) -> Any:
            assert arguments[2] is cancel
            return super().generate(*arguments)

    class Tokens(list[Token]):
        def __getitem__(self, at: Any) -> Any:
            seen.append("token")
            if len(seen) == 3:
                cancel.set()
            return super().__getitem__(at)

    host = Cancelling([Tokens(recording("One two three four five six."))])
    *events, last = follow(way, Model(host, LFM2), "Hi", cancel=cancel)[0]
    assert (last.message.stop_reason, last.message.usage.output) == ("cancelled", 3)
    assert last.message.text == "".join(event.text for event in events) == "One two three f"[:15]


def test_what_is_wrong_with_the_arguments_is_said_at_once() -> None:
    model = scripted("x")
    with pytest.raises(UsageError, match="empty"):
        model.astream("")
    with pytest.raises(UsageError, match="no sampling option"):
        model.astream("Hi", colour=3)  # type: ignore[call-arg]


def test_the_request_is_rendered_with_the_context_variables_of_the_task() -> None:
    user = ContextVar[str]("user")
    seen = []

    class Rendering(ReplayHost):
        def render(self, *arguments: Any, **options: Any) -> Any:
            seen.append((user.get(), threading.current_thread() is threading.main_thread()))
            return super().render(*arguments, **options)

    async def main() -> None:
        user.set("Ada")
        await Model(Rendering([recording("x")]), LFM2).arespond("Hi")

    asyncio.run(main())
    assert seen == [("Ada", False)]


def test_a_replay_lets_the_loop_turn_at_every_token() -> None:
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        events = scripted("word " * 100).astream("Hi")
        await anext(events)
        before = turns
        tokens = len([event async for event in events])
        assert turns - before > tokens - 5 > 90
        ticking.cancel()

    asyncio.run(main())


# -- lanes --------------------------------------------------------------------------------------------


@tool
def get_weather(city: str, days: int = 1) -> dict[str, object]:
    """Get the weather in a city.

    Args:
        city: Where.
        days: How many days ahead.
    """
    return {"city": city, "sky": "cloudy", "degrees": 10 + days}


def question(number: int) -> str:
    return f"What will the weather be in {PLACES[number % 5]} over the next {2 + number // 5} days?"


OPTIONS: Any = {"tools": [get_weather.schema], "temperature": 0, "max_tokens": 100}
RAMBLING: Any = OPTIONS | {"temperature": 50, "seed": 1, "logprobs": 1}
"""Hot enough that no end token comes: far longer than the engine runs ahead of a reader, so that a turn
which nobody reads cannot come to its end."""


@pytest.fixture(scope="module")
def lanes(nano: dict[str, Path]) -> Iterator[Model]:
    """lfm2-nano with eight lanes."""
    from localagent.hosts.llamacpp.host import LlamaCppHost

    with LlamaCppHost.load(nano["llamacpp"], lanes=8, context=1024, threads=1) as host:
        yield Model(host, LFM2)


@pytest.fixture(scope="module")
def lane(nano: dict[str, Path]) -> Iterator[Model]:
    """lfm2-nano with one lane."""
    from localagent.hosts.llamacpp.host import LlamaCppHost

    with LlamaCppHost.load(nano["llamacpp"], lanes=1, context=1024, threads=1) as host:
        yield Model(host, LFM2)


def engine_host(model: Model) -> EngineHost:
    assert isinstance(model.host, EngineHost)
    return model.host


@contextmanager
def together(model: Model, count: int) -> Iterator[None]:
    """No generation begins until so many of them wait."""
    scheduler = engine_host(model)._scheduler
    step, opened = scheduler.step, False

    def held() -> bool:
        nonlocal opened
        opened = opened or len(scheduler._waiting) >= count
        return opened and step()

    scheduler.step = held  # type: ignore[method-assign]
    try:
        yield
    finally:
        del scheduler.step  # type: ignore[method-assign]


@contextmanager
def stopped(model: Model) -> Iterator[threading.Event]:
    """The owner thread does nothing until the event is set."""
    host, gate = engine_host(model), threading.Event()
    timer = threading.Timer(30, gate.set)  # whoever blocks the loop ends here, and the test fails
    timer.start()
    host._owner.post(gate.wait)
    try:
        yield gate
    finally:
        gate.set()
        timer.cancel()


def lanes_in_use(model: Model) -> int:
    host = engine_host(model)
    return host._owner.run(lambda: sum(seat.need is not None for seat in host._prefix._seats))


async def becomes_free(model: Model) -> bool:
    """Whether all lanes are free soon."""
    end = monotonic() + 10
    while (taken := lanes_in_use(model)) and monotonic() < end:
        await asyncio.sleep(0.01)
    return not taken


@pytest.fixture
def widths(lanes: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes got a token in each step of the engine."""
    found: list[int] = []
    engine = engine_host(lanes)._engine
    advance = engine.advance

    def counted(which: Any) -> Any:
        found.append(len(which))
        return advance(which)

    monkeypatch.setattr(engine, "advance", counted)
    return found


def test_twenty_turns_overlap_and_hold_no_thread(lanes: Model, widths: list[int]) -> None:
    alone = [told(lanes.respond(question(number), **OPTIONS)) for number in range(20)]
    threads = []

    async def ask(number: int) -> list[Any]:
        found = []
        async for event in lanes.astream(question(number), progress=True, **OPTIONS):
            threads.append(threading.active_count())
            found.append(event)
        return found

    async def main() -> list[list[Any]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.gather(*map(ask, range(20)))

    before = threading.active_count()
    with together(lanes, 20):
        turns = asyncio.run(main())
    # What was read again differs: the lanes still hold the prompts that were answered alone.
    assert [told(turn[-1].message)[:3] for turn in turns] == [each[:3] for each in alone]
    assert max(widths) > 4
    assert max(threads) == before + 1, "the one that renders"
    places = {event.place for turn in turns for event in turn if isinstance(event, Queued)}
    assert places == {*range(1, 20 - lanes.lanes + 1)}, "as many begin at once as there are lanes"


def test_threads_and_tasks_overlap(lanes: Model, widths: list[int]) -> None:
    async def main() -> list[str]:
        threads = [asyncio.to_thread(lanes.respond, question(n), **OPTIONS) for n in range(3)]
        tasks = [lanes.arespond(question(n), **OPTIONS) for n in range(3)]
        return [message.raw for message in await asyncio.gather(*threads, *tasks)]

    with together(lanes, 6):
        texts = asyncio.run(main())
    assert texts[:3] == texts[3:]
    assert max(widths) > 2


def test_a_loop_is_never_blocked(lanes: Model) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with stopped(lanes) as gate:  # it cannot even tokenize
            task = loop.create_task(lanes.arespond(question(0), **OPTIONS))
            for _ in range(10):
                await asyncio.sleep(0.01)
            assert not task.done()
            assert not gate.is_set()
        assert (await task).tool_calls

        events = lanes.astream(question(1), **OPTIONS)
        await anext(events)
        with stopped(lanes) as gate:
            await events.aclose()
            assert not gate.is_set(), "it does not wait for the engine"
        assert await becomes_free(lanes)

    asyncio.run(main())


def test_a_slow_reader_still_lets_the_loop_turn(lanes: Model) -> None:
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        ticking, seen = asyncio.create_task(tick()), []
        host = engine_host(lanes)
        prompt = host.render([{"role": "user", "content": question(0)}])
        async for _ in host.generate(prompt, Sampling(temperature=0)).asteps(1):
            seen.append(turns)
            sleep(0.02)  # the next step is there before it is done
        ticking.cancel()
        assert len({*seen}) == len(seen) > 5

    asyncio.run(main())


async def close_it(model: Model) -> None:
    async with aclosing(model.astream(question(0), **RAMBLING)) as events:
        await anext(events)
        assert lanes_in_use(model) == 1
    channels = [job.channel for job in engine_host(model)._scheduler._running]
    assert all(channel.cancelled for channel in channels), "it is cancelled when `aclose` returns"


async def break_off(model: Model) -> None:
    async for _ in model.astream(question(0), **RAMBLING):
        assert lanes_in_use(model) == 1
        break
    gc.collect()


async def cancel_its_task(model: Model) -> None:
    started = asyncio.Event()

    async def work() -> None:
        async for _ in model.astream(question(0), **RAMBLING):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await started.wait()
    assert lanes_in_use(model) == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def run_out_of_time(model: Model) -> None:
    """The time ends while it waits for the engine."""
    events = model.astream(question(0), **RAMBLING)
    await anext(events)
    assert lanes_in_use(model) == 1
    with stopped(model) as gate:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async for _ in events:
                    pass
        assert not gate.is_set()


async def fail_in_its_reader(model: Model) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aclosing(model.astream(question(0), **OPTIONS)) as events:
            async for _ in events:
                raise ZeroDivisionError


@pytest.mark.parametrize("leave", [close_it, break_off, cancel_its_task, run_out_of_time, fail_in_its_reader])
def test_leaving_frees_the_lane(lanes: Model, leave: Callable[[Model], Awaitable[None]]) -> None:
    async def main() -> None:
        await leave(lanes)
        assert await becomes_free(lanes)

    asyncio.run(main())


def test_a_loop_that_ends_frees_the_lane(lanes: Model) -> None:
    """Nobody closes the iterator, and it is still referred to when the loop ends."""

    async def begin() -> Any:
        events = lanes.astream(question(0), **RAMBLING)
        await anext(events)
        return events

    kept = [asyncio.run(begin())]
    assert asyncio.run(becomes_free(lanes))

    loop = asyncio.new_event_loop()
    kept.append(loop.run_until_complete(begin()))
    loop.close()
    kept.clear()
    gc.collect()
    assert asyncio.run(becomes_free(lanes))


def test_a_turn_whose_loop_is_gone_holds_up_nobody(lane: Model) -> None:
    loop = asyncio.new_event_loop()
    events = lane.astream(question(0), **OPTIONS)
    loop.run_until_complete(anext(events))
    loop.close()
    assert lane.respond(question(1), **OPTIONS).tool_calls
    assert lanes_in_use(lane) == 0


def test_what_was_taken_is_remembered_when_the_rest_is_left(lanes: Model) -> None:
    host = engine_host(lanes)
    generation = host.generate(host.render([{"role": "user", "content": "Hello."}]), Sampling(temperature=0))
    kept: list[Token] = []
    generation._record = kept.extend

    async def main() -> list[Token]:
        taken = []
        async with aclosing(generation.asteps(1)) as steps:
            async for (step,) in steps:
                if isinstance(step, Token):
                    taken.append(step)
                if len(taken) == 2:
                    return taken
        return []

    assert asyncio.run(main()) == kept
    assert len(kept) == 2


def test_a_host_that_is_closed_ends_its_turns(nano: dict[str, Path]) -> None:
    from localagent.hosts.llamacpp.host import LlamaCppHost

    async def main() -> list[Any]:
        host = LlamaCppHost.load(nano["llamacpp"], lanes=1, context=1024, threads=1)
        host._scheduler._begin = lambda: None  # type: ignore[method-assign]
        model = Model(host, LFM2)
        events = model.astream(question(0), progress=True, **OPTIONS)
        assert await anext(events) == Queued(1)
        await asyncio.to_thread(host.close)
        with pytest.raises(UsageError, match="closed"):
            await model.arespond("Hi")
        return [event async for event in events]

    (last,) = asyncio.run(main())
    assert last.message.stop_reason == "cancelled"


# -- what waits ---------------------------------------------------------------------------------------


def steps_of(model: Model, *numbers: int) -> list[list[Any]]:
    """All steps of generations that were asked for one after the other, before the first began."""
    host = engine_host(model)
    prompts = [host.render([{"role": "user", "content": question(n)}]) for n in numbers]
    with together(model, len(numbers)):
        generations = [host.generate(prompt, Sampling(temperature=0, max_tokens=5)) for prompt in prompts]
        return [list(generation.steps()) for generation in generations]


def test_what_waits_is_told_its_place(lane: Model) -> None:
    first, second, third = steps_of(lane, 0, 1, 2)
    assert [step for step in first if isinstance(step, Queued)] == [], "it began at once"
    assert [type(step) for step in second[:2]] == [Queued, Prefilled]
    assert second[0] == Queued(1)
    assert third[:2] == [Queued(2), Queued(1)]
    assert not any(isinstance(step, Queued) for step in third[2:])


def test_who_leaves_the_queue_makes_room_in_it(lane: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    host = engine_host(lane)
    prompt = host.render([{"role": "user", "content": question(0)}])

    def ask() -> Any:
        return host.generate(prompt, Sampling(temperature=0, max_tokens=5))

    with monkeypatch.context() as patched:
        patched.setattr(host._scheduler, "_begin", lambda: None)
        first, second, third, fourth = (ask() for _ in range(4))
        assert [next(each.steps()).place for each in (first, second, third)] == [1, 2, 3]
        fifth = ask()  # behind the others, to whom it makes no difference
        assert next(fifth.steps()) == Queued(5)
        second.close()
        host._owner.run(lambda: None)  # the step in which it left is over
    host._owner.wake()
    places = [
        [step.place for step in each.steps() if isinstance(step, Queued)]
        for each in (first, third, fourth, fifth)
    ]
    assert places == [[], [2, 1], [4, 3, 2, 1], [4, 3, 2, 1]]


def test_places_are_shown_to_those_who_ask(lane: Model) -> None:
    async def main(progress: bool) -> list[Any]:
        async def ask(number: int) -> list[Any]:
            return [e async for e in lane.astream(question(number), progress=progress, **OPTIONS)]

        with together(lane, 3):
            return list(chain(*await asyncio.gather(*map(ask, range(3)))))

    def places(events: list[Any]) -> list[int]:
        return sorted(event.place for event in events if isinstance(event, Queued))

    assert places(asyncio.run(main(progress=True))) == [1, 1, 2]
    assert places(asyncio.run(main(progress=False))) == []


def test_one_that_cannot_begin_does_not_hold_up_the_next(
    lane: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = engine_host(lane)._prefix
    opened, count = prefix.open, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            raise EngineFailed("no room")
        return opened(*arguments)

    monkeypatch.setattr(prefix, "open", fail_once)

    async def main() -> list[Any]:
        turns = (lane.arespond(question(n), **OPTIONS) for n in range(2))
        async with asyncio.timeout(30):
            return await asyncio.gather(*turns, return_exceptions=True)

    with together(lane, 2):
        kinds = {type(outcome) for outcome in asyncio.run(main())}
    assert kinds == {EngineFailed, AssistantMessage}


# -- agents -------------------------------------------------------------------------------------------


def test_twenty_agents_overlap_on_one_model(lanes: Model, widths: list[int]) -> None:
    asked = []

    async def main() -> list[RunDone]:
        everybody = asyncio.Barrier(20)

        async def approve(requests: Any) -> list[Allow]:
            asked.append(requests)
            await asyncio.wait_for(everybody.wait(), 60)  # so all of them wait here at once
            return [Allow()] * len(requests)

        @tool(side_effects=True, name="get_weather")
        async def weather(city: str, days: int = 1) -> dict[str, object]:
            """Get the weather in a city.

            Args:
                city: Where.
                days: How many days ahead.
            """
            return {"city": city, "sky": "cloudy", "degrees": 10 + days}

        async def ask(number: int) -> RunDone:
            agent = Agent(lanes, [weather], approvals=approve, temperature=0)
            *_, last = [event async for event in agent.arun(question(number))]
            assert isinstance(last, RunDone)
            return last

        return await asyncio.gather(*map(ask, range(20)))

    alone = [Agent(lanes, [get_weather], temperature=0).respond(question(n)).text for n in range(20)]
    with together(lanes, 20):
        done = asyncio.run(main())
    assert [each.text for each in done] == alone
    assert len(set(alone)) == 20
    assert len(asked) == 20
    assert max(widths) > 4


def test_a_cancelled_agent_frees_its_lane_and_harms_no_other(lanes: Model) -> None:
    async def main() -> list[str]:
        def begin(number: int) -> Any:
            return Agent(lanes, [get_weather], temperature=0).arun(question(number))

        async def leave(events: Any) -> None:
            async for event in events:
                if isinstance(event, Prefilled):
                    await asyncio.sleep(60)

        async def ask(events: Any) -> str:
            return [event async for event in events][-1].text

        left = asyncio.create_task(leave(begin(0)))
        others = [asyncio.create_task(ask(begin(number))) for number in range(1, 8)]
        while not lanes_in_use(lanes):
            await asyncio.sleep(0.01)
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        texts = await asyncio.gather(*others)
        assert await becomes_free(lanes)
        return texts

    alone = [Agent(lanes, [get_weather], temperature=0).respond(question(n)).text for n in range(1, 8)]
    assert asyncio.run(main()) == alone
