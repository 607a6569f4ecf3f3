"""Of many calls a few run at a time and a bounded number at all; each has its result in its place."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from localagent.agent import Agent, Allow, ApprovalAsked, RunDone, ToolEnded, ToolStarted
from localagent.agent.recovery import REPEATED
from localagent.agent.slot import NONE, NOT_RUN, ONE, ONLY, STOPPED, TOO_MANY
from localagent.errors import UsageError
from localagent.tools import ToolContext, tool
from tests.agent.replaying import block, follow, scripted


def follow_async(agent: Agent, prompt: object = "Go.", **options: Any) -> tuple[list, RunDone]:
    async def collect() -> list:
        return [event async for event in agent.arun(prompt, **options)]

    *events, last = asyncio.run(collect())
    assert isinstance(last, RunDone), last
    return events, last


both = pytest.mark.parametrize("follow", [follow, follow_async], ids=["run", "arun"])


class Work:
    """A tool that says how many of its calls were at work at once, in plain code and as a coroutine."""

    def __init__(self, begin: Callable[[int], object] = lambda n: time.sleep(0.002)) -> None:
        self.begin = begin
        self.ran: list[int] = []
        self.now = self.most = self.threads = 0
        self._lock = threading.Lock()

    def enter(self, n: int) -> None:
        with self._lock:
            self.ran.append(n)
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads = max(self.threads, threading.active_count())

    def leave(self) -> None:
        with self._lock:
            self.now -= 1

    def tool(self, kind: str = "plain", **options: Any) -> Any:
        @tool(name="work", **options)
        def plain(n: int) -> str:
            self.enter(n)
            self.begin(n)
            self.leave()
            return f"did {n}"

        @tool(name="work", **options)
        async def coroutine(n: int) -> str:
            self.enter(n)
            await asyncio.sleep(0.002)
            self.leave()
            return f"did {n}"

        return plain if kind == "plain" else coroutine


def calls(count: int, first: int = 0) -> str:
    return block(*(f"work(n={n})" for n in range(first, first + count)))


def texts(done: RunDone, message: int = 2) -> list[str]:
    return [result.text for result in done.messages[message].results]


# -- a few at a time ----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_thousand_calls_run_a_few_at_a_time(follow: Any, kind: str) -> None:
    before, work = threading.active_count(), Work()
    agent = Agent(scripted(calls(1000), "Done."), [work.tool(kind)], max_calls=1000)
    events, done = follow(agent)
    assert work.most <= 32
    assert work.threads - before <= 32 + 8  # those of the run, and some that are about to end
    assert texts(done) == [f"did {n}" for n in range(1000)]
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 1000
    assert sorted(work.ran) == list(range(1000))


def test_so_many_do_run_beside_each_other() -> None:
    together = threading.Barrier(32)
    work = Work(lambda n: together.wait(30))
    _, done = follow(Agent(scripted(calls(64), "Done."), [work.tool()]))
    assert texts(done) == [f"did {n}" for n in range(64)]
    assert work.most == 32


@both
def test_how_many_can_be_set(follow: Any) -> None:
    together = threading.Barrier(3)
    work = Work(lambda n: together.wait(30))
    _, done = follow(Agent(scripted(calls(30), "Done."), [work.tool()], max_parallel=3))
    assert (work.most, texts(done)) == (3, [f"did {n}" for n in range(30)])
    assert set(work.ran[:3]) == {0, 1, 2}


def test_calls_begin_in_their_order() -> None:
    work = Work()
    events, _ = follow(Agent(scripted(calls(20), "Done."), [work.tool()], max_parallel=2))
    assert [event.call.arguments["n"] for event in events if isinstance(event, ToolStarted)] == list(
        range(20)
    )


def test_tools_that_run_alone_still_do() -> None:
    work = Work()
    follow(Agent(scripted(calls(40), "Done."), [work.tool(sequential=True)]))
    assert (work.most, work.ran) == (1, list(range(40)))


@both
def test_the_time_that_a_call_waits_for_its_turn_is_not_counted(follow: Any) -> None:
    work = Work(lambda n: time.sleep(0.5))
    _, done = follow(Agent(scripted(calls(4), "Done."), [work.tool(timeout=1.9)], max_parallel=1))
    assert texts(done) == [f"did {n}" for n in range(4)]


@both
def test_a_call_that_is_given_up_leaves_its_place_to_the_next(follow: Any) -> None:
    release = threading.Event()
    work = Work(lambda n: release.wait(30) if n < 2 else None)
    _, done = follow(Agent(scripted(calls(5), "Done."), [work.tool(timeout=1.5)], max_parallel=2))
    release.set()
    assert ["1.5 seconds" in text for text in texts(done)] == [True, True, False, False, False]
    assert texts(done)[2:] == ["did 2", "did 3", "did 4"]


# -- stopped while calls wait -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_calls_that_wait_when_the_run_is_cancelled_never_run(follow: Any, kind: str) -> None:
    cancel = threading.Event()
    ran: list[int] = []

    @tool(name="work")
    def plain(n: int, context: ToolContext) -> str:
        ran.append(n)
        if len(ran) == 2:
            cancel.set()
        assert context.cancel.wait(30)
        return "half done"

    @tool(name="work")
    async def coroutine(n: int) -> str:
        ran.append(n)
        if len(ran) == 2:
            cancel.set()
        await asyncio.sleep(60)
        return "never"

    tools = [plain if kind == "plain" else coroutine]
    events, done = follow(Agent(scripted(calls(50), "never"), tools, max_parallel=2), cancel=cancel)
    began = "half done" if kind == "plain" else STOPPED
    assert (done.stop_reason, sorted(ran)) == ("cancelled", [0, 1])
    assert texts(done) == [began] * 2 + [NOT_RUN] * 48
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 50


@pytest.mark.parametrize("waits", [True, False], ids=["arun", "run"])
def test_a_call_that_is_announced_when_the_run_is_cancelled_does_not_run(waits: bool) -> None:
    cancel, work, history = threading.Event(), Work(), []
    agent = Agent(scripted(calls(3), "never"), [work.tool()])

    def hear(event: object) -> None:
        if isinstance(event, ToolStarted):
            cancel.set()

    async def listen() -> None:
        async for event in agent.arun("Go.", history=history, cancel=cancel):
            hear(event)

    if waits:
        asyncio.run(listen())
    else:
        for event in agent.run("Go.", history=history, cancel=cancel):
            hear(event)
    assert work.ran == []
    assert [result.text for result in history[2].results] == [NOT_RUN] * 3


@pytest.mark.parametrize("leave", [ToolStarted, ToolEnded])
def test_left_by_its_reader_while_calls_wait(leave: type) -> None:
    release, work = threading.Event(), Work()
    work.begin = lambda n: n and release.wait(30)
    history: list = []
    events = Agent(scripted(calls(50), "never"), [work.tool()], max_parallel=2).run("Go.", history=history)
    for event in events:
        if isinstance(event, leave) and event.call.arguments["n"] == (1 if leave is ToolStarted else 0):
            break
    events.close()
    release.set()
    time.sleep(0.1)
    assert set(work.ran) <= {0, 1, 2}, "one was done, and two had a place when the reader left"
    results = [result.text for result in history[2].results]
    assert len(results) == 50
    assert results[3:] == [NOT_RUN] * 47


# -- a bounded number ---------------------------------------------------------------------------------


@both
def test_calls_behind_the_bound_are_not_run_and_the_model_is_told(follow: Any) -> None:
    work = Work()
    agent = Agent(scripted(calls(1000), "Done."), [work.tool()])
    events, done = follow(agent)
    assert sorted(work.ran) == list(range(128))
    assert texts(done) == [f"did {n}" for n in range(128)] + [TOO_MANY.format(128)] * 872
    results = done.messages[2].results
    assert [result.is_error for result in results] == [False] * 128 + [True] * 872
    assert [result.call_id for result in results] == [call.id for call in done.messages[1].tool_calls]
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 1000
    assert not any(isinstance(event, ToolStarted) and event.call.arguments["n"] > 127 for event in events)
    assert done.message.text == "Done."


def test_nobody_is_asked_about_calls_behind_the_bound() -> None:
    work = Work()
    agent = Agent(
        scripted(calls(5), "Done."), [work.tool(side_effects=True)], max_calls=2,
        approvals=lambda requests: [Allow()] * len(requests),
    )  # fmt: skip
    events, done = follow(agent)
    (asked,) = [event for event in events if isinstance(event, ApprovalAsked)]
    assert [request.call.arguments["n"] for request in asked.requests] == [0, 1]
    assert texts(done) == ["did 0", "did 1"] + [TOO_MANY.format(2)] * 3


def test_calls_that_were_not_run_can_be_made_again() -> None:
    work = Work()
    agent = Agent(
        scripted(calls(5), calls(3, first=2), calls(1, first=4), "Done."), [work.tool()], max_calls=2
    )
    _, done = follow(agent)
    assert sorted(work.ran) == list(range(5))
    assert texts(done, 4) == ["did 2", "did 3", TOO_MANY.format(2)]
    assert texts(done, 6) == ["did 4"]


def test_all_of_them_made_again_have_the_results_that_they_had() -> None:
    work = Work()
    _, done = follow(Agent(scripted(calls(3), calls(3), "Done."), [work.tool()], max_calls=2))
    assert sorted(work.ran) == [0, 1]
    assert texts(done, 4) == [f"{REPEATED}did 0", f"{REPEATED}did 1", TOO_MANY.format(2)]


def test_made_again_with_a_call_that_is_mended_they_run() -> None:
    work = Work()
    broken = calls(3).replace("work(n=2)", "work(n=2), work(n=oops(3))")
    again = block("work(n=2)", "work(n=3)")
    _, done = follow(Agent(scripted(broken, again, "Done."), [work.tool()], max_calls=2))
    assert sorted(work.ran) == [0, 1, 2, 3]
    assert texts(done, 5) == ["did 2", "did 3"]


@pytest.mark.parametrize("name", ["max_calls", "max_parallel"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None])
def test_bounds_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*: it must be a whole number, 1 or more"):
        Agent(scripted("x"), **{name: value})


# -- agents within tools ------------------------------------------------------------------------------


def inner(kind: str) -> tuple[Agent, Work]:
    work = Work()
    return Agent(scripted(calls(3), "Inner."), [work.tool(kind)], max_parallel=1), work


@both
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("outer", ["plain", "coroutine"])
def test_agents_within_tools_wait_for_nobodys_place(follow: Any, kind: str, outer: str) -> None:
    """Each run has places of its own: one that is within a call never waits for the place of that call."""
    works: list[Work] = []

    @tool(name="work")
    def plain(n: int) -> str:
        agent, work = inner(kind)
        works.append(work)
        return agent.respond("Go.").text

    @tool(name="work")
    async def coroutine(n: int) -> str:
        agent, work = inner(kind)
        works.append(work)
        return [event async for event in agent.arun("Go.")][-1].text

    tools = [plain if outer == "plain" else coroutine]
    for parallel in (1, 8):
        works.clear()
        _, done = follow(Agent(scripted(calls(20), "Done."), tools, max_parallel=parallel, tool_timeout=60))
        assert texts(done) == ["Inner."] * 20
        assert [sorted(work.ran) for work in works] == [[0, 1, 2]] * 20


ALLOWED = [
    ({"parallel_tool_calls": False}, [False, True, True], ONE),
    ({"tool_choice": "work"}, [False, True, True], ONE),
    ({"tool_choice": "rest"}, [True, True, True], ONLY.format("rest")),
    ({"tool_choice": "none"}, [True, True, True], NONE),
]


@pytest.mark.parametrize(("options", "refused", "text"), ALLOWED, ids=str)
def test_what_the_options_do_not_allow_is_kept_and_not_run(
    options: dict[str, Any], refused: list[bool], text: str
) -> None:
    """What is played here nothing bounds, as where a server draws that takes no grammar."""
    work = Work()
    rest = tool(name="rest")(lambda: "rested")
    agent = Agent(scripted(calls(3), "Done."), [work.tool(), rest])
    asked = agent.model.stream  # with `tool_choice` "none" a model on this machine does not even read calls

    def stream(*args: Any, **given: Any) -> Any:
        return asked(*args, **{**given, "tool_choice": "auto"})

    agent.model.stream = stream  # type: ignore[method-assign]
    events, done = follow(agent, **options)
    assert [result.is_error for result in done.messages[2].results] == refused
    assert work.ran == [n for n in range(3) if not refused[n]]
    assert texts(done)[-1] == text
    assert len(done.messages[1].tool_calls) == 3
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 3
    assert done.message.text == "Done."


NEITHER = "neither()"
ONCE = [
    ({"tool_choice": "rest"}, ["work(n=1)", "rest()"], [ONLY.format("rest"), "rested"]),
    ({"parallel_tool_calls": False}, [NEITHER, "work(n=1)"], [None, "did 1"]),
]


@pytest.mark.parametrize(("options", "asked", "results"), ONCE, ids=str)
def test_a_call_that_is_refused_is_not_the_one_that_may_run(
    options: dict[str, Any], asked: list[str], results: list[str | None]
) -> None:
    agent = Agent(scripted(block(*asked), "Done."), [Work().tool(), tool(name="rest")(lambda: "rested")])
    _, done = follow(agent, **options)
    assert [text if text in results else None for text in texts(done)] == results


def test_of_calls_that_are_made_again_one_by_one_each_has_its_turn() -> None:
    work = Work()
    both = block("work(n=1)", "work(n=2)")
    _, done = follow(Agent(scripted(both, both, "Done."), [work.tool()]), parallel_tool_calls=False)
    assert work.ran == [1, 2]
    assert done.message.text == "Done."


def test_a_required_call_stays_required_until_one_may_run() -> None:
    chosen: list[object] = []
    agent = Agent(
        scripted(block("work(n=1)"), block("rest()"), "Done."), [Work().tool(), tool(name="rest")(lambda: "")]
    )
    asked = agent.model.stream

    def stream(*args: Any, **given: Any) -> Any:
        chosen.append(given.get("tool_choice"))
        return asked(*args, **given)

    agent.model.stream = stream  # type: ignore[method-assign]
    follow(agent, tool_choice="rest")
    assert chosen == ["rest", "rest", None]
