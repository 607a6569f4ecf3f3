"""`arun` is the same run as `run`, followed from the caller's event loop, which it never blocks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from localagent.agent import Agent, Allow, RunDone, RunFailed, ToolEnded, ToolStarted, TurnEnded, middleware
from localagent.agent.slot import NOT_RUN, STOPPED
from localagent.errors import EngineFailed, UsageError
from localagent.tools import tool
from parsers import CallEnd, Text
from tests.agent.replaying import block, follow, lines, scripted


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool
async def later(n: int) -> int:
    """Answer later."""
    await asyncio.sleep(0)
    return n


OUTPUTS = ("Look. " + block("add(a=1)", "later(n=2)"), "Done.")


async def collect(agent: Agent, prompt: object = "Go.", **options: object) -> list:
    return [event async for event in agent.arun(prompt, **options)]


def shapes(events) -> list[str]:
    """Events without what differs from run to run."""
    told = [type(event).__name__ for event in events]
    return [name for name in told if not name.startswith("Tool")] + sorted(
        name for name in told if name.startswith("Tool")
    )


def test_both_ways_tell_the_same():
    sync, done = follow(Agent(scripted(*OUTPUTS), [add, later]))
    *events, last = asyncio.run(collect(Agent(scripted(*OUTPUTS), [add, later])))
    assert shapes(events) == shapes(sync)
    assert lines(last.messages) == lines(done.messages)
    assert lines(done.messages)[2] == "tool: 2 | 2"
    assert (last.usage, last.turns, last.stop_reason) == (done.usage, done.turns, done.stop_reason)


def test_async_code_runs_on_the_callers_loop():
    loops = []

    @tool(side_effects=True)
    async def where() -> str:
        loops.append(asyncio.get_running_loop())
        return "here"

    async def approve(requests):
        loops.append(asyncio.get_running_loop())
        return [Allow()] * len(requests)

    @middleware("around_tool")
    async def around(call, proceed, run):
        loops.append(asyncio.get_running_loop())
        result = await proceed(call)
        loops.append(asyncio.get_running_loop())
        return result

    async def main():
        agent = Agent(scripted(block("where()"), "x"), [where], approvals=approve, middleware=[around])
        done = (await collect(agent))[-1]
        assert done.messages[2].text == "here"
        return asyncio.get_running_loop()

    assert set(loops) <= {asyncio.run(main())}
    assert len(loops) == 4


def test_without_a_loop_they_share_one():
    loops = []

    @tool
    async def where() -> str:
        loops.append(asyncio.get_running_loop())
        return "here"

    for _ in range(2):
        follow(Agent(scripted(block("where()"), "x"), [where]))
    assert loops[0] is loops[1]


def test_run_works_within_a_running_loop():
    async def main():
        return follow(Agent(scripted(*OUTPUTS), [add, later]))[1]

    assert asyncio.run(main()).stop_reason == "answer"


def test_async_calls_run_beside_each_other():
    async def main():
        barrier = asyncio.Barrier(20)

        @tool
        async def meet(n: int) -> int:
            await asyncio.wait_for(barrier.wait(), 30)
            return n

        calls = block(*(f"meet(n={n})" for n in range(20)))
        return (await collect(Agent(scripted(calls, "x"), [meet])))[-1]

    assert asyncio.run(main()).messages[2].text.split() == [str(n) for n in range(20)]


def test_sync_tools_do_not_block_the_loop():
    async def main():
        ticked = threading.Event()

        @tool
        def wait() -> bool:
            return ticked.wait(30)

        async def tick():
            ticked.set()

        events = Agent(scripted(block("wait()"), "x"), [wait]).arun("Go.")
        async for event in events:
            if isinstance(event, ToolStarted):
                task = asyncio.create_task(tick())
        await task
        return event

    assert asyncio.run(main()).messages[2].text == "true"


def test_a_hanging_coroutine_is_cancelled_at_its_time_limit():
    ended = threading.Event()

    @tool(timeout=1.5)
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    done = asyncio.run(collect(Agent(scripted(block("hang()"), "x"), [hang])))[-1]
    assert "within 1.5 seconds" in done.messages[2].text
    assert ended.wait(30)


def test_cancelling_the_task_ends_the_run():
    ended = threading.Event()
    history: list = []

    @tool
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def main():
        started = asyncio.Event()

        async def work():
            async for event in Agent(scripted(block("hang()", "add(a=1)"), "never"), [hang, add]).arun(
                "Go.", history=history
            ):
                if isinstance(event, ToolEnded):
                    started.set()

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended.wait(30)
    assert lines(history)[-1] == f"tool: ! {STOPPED} | 2"


def test_leaving_the_iterator_ends_the_run():
    history: list = []

    async def main():
        events = Agent(scripted("Look. " + block("add(a=1)")), [add]).arun("Go.", history=history)
        async for event in events:
            if isinstance(event, Text):
                break
        await events.aclose()

    asyncio.run(main())
    assert history[1].raw.startswith("Look.")
    assert [line for line in lines(history) if line.startswith("tool")] in ([], [f"tool: ! {NOT_RUN}"])


def test_an_event_set_elsewhere_cancels():
    cancel = threading.Event()

    async def main():
        async for event in Agent(scripted("One two three. " * 200)).arun("Go.", cancel=cancel):
            if isinstance(event, Text):
                cancel.set()
            last = event
        return last

    assert asyncio.run(main()).stop_reason == "cancelled"


def test_errors():
    @middleware("before_model")
    async def fail(request, run):
        raise EngineFailed("the engine is gone")

    agent = Agent(scripted("x"), middleware=[fail])
    failed = asyncio.run(collect(agent))[-1]
    assert isinstance(failed, RunFailed)
    assert lines(failed.messages) == ["user: Go."]
    with pytest.raises(EngineFailed, match="gone"):
        agent.respond("Go.")

    async def empty():
        agent.arun("")

    with pytest.raises(UsageError, match="empty"):
        asyncio.run(empty())


def test_many_runs_at_once():
    async def main():
        agents = [Agent(scripted(*OUTPUTS), [add, later]) for _ in range(8)]
        return [events[-1] for events in await asyncio.gather(*map(collect, agents))]

    assert all(isinstance(done, RunDone) for done in asyncio.run(main()))


def test_nothing_happens_behind_an_event_before_it_is_taken():
    ran = []

    @tool
    def touch() -> None:
        ran.append(1)

    async def main():
        events = Agent(scripted("Look. " * 100 + block("touch()"), "Done."), [touch]).arun("Go.")
        async for event in events:
            if isinstance(event, CallEnd | ToolStarted) or (isinstance(event, TurnEnded) and event.turn == 0):
                await asyncio.sleep(0.05)
                assert ran == []
            elif isinstance(event, ToolEnded):
                assert ran == [1]
        return event

    assert isinstance(asyncio.run(main()), RunDone)


def test_a_slow_reader_is_not_run_away_from():
    written = []

    async def main():
        model = scripted("One two three. " * 100)
        generate = model.host.generate

        def counting(*arguments):
            generation = generate(*arguments)
            steps = generation.steps
            generation.steps = lambda: (written.append(token) or token for token in steps())
            return generation

        model.host.generate = counting
        events = Agent(model).arun("Go.")
        async for event in events:
            if isinstance(event, Text):
                await asyncio.sleep(0.05)
                break
        await events.aclose()

    asyncio.run(main())
    assert len(written) < 100, "of 300"
