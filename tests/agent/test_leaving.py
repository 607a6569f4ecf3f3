"""However a run ends: what was written is kept, nothing that ran is "not run", and nothing hangs."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from localagent.agent import (
    Agent,
    RunDone,
    RunFailed,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    middleware,
)
from localagent.errors import EngineFailed, LocalAgentError, McpFailed, SaveFailed, UnpairedResult
from localagent.messages import AssistantMessage, FlushMessage, ToolCallPart, ToolMessage, UserMessage
from localagent.session import Session
from localagent.tools import ToolContext, tool
from parsers import Markup, Text
from tests.agent.replaying import LFM2, block, follow, lines, scripted

HEAD = """
import asyncio, os, signal, sys, threading, time
from localagent.agent import *
from localagent.tools import tool
from tests.agent.replaying import *
"""
BROKEN = f"{LFM2.calls.open}[add(a=1, b=oops(2))]{LFM2.calls.close}"


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def program(code: str) -> str:
    """What a program of its own prints; it must come to an end, and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        timeout=60, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# -- what the model wrote is kept -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EngineFailed("gone"), KeyboardInterrupt(), MemoryError()])
def test_what_was_written_before_an_error_is_kept(error):
    model = scripted("One two three four.")
    generate = model.host.generate

    def breaking(*arguments):
        generation = generate(*arguments)
        steps = generation.steps

        def broken():
            for number, token in enumerate(steps()):
                if number == 3:
                    raise error
                yield token

        generation.steps = broken
        return generation

    model.host.generate = breaking
    history: list = []
    events = Agent(model).run("Go.", history=history)
    if isinstance(error, EngineFailed):
        *_, last = events
        assert isinstance(last, RunFailed)
    else:
        with pytest.raises(type(error)):
            list(events)
    assert history[1].raw == history[1].text == "One two three f"
    assert history[1].stop_reason == ("cancelled" if isinstance(error, KeyboardInterrupt) else "error")


def test_what_was_written_is_kept_when_a_hook_fails():
    @middleware("after_model")
    def broken(message, run):
        raise ValueError("bug")

    history: list = []
    with pytest.raises(ValueError, match="bug"):
        list(Agent(scripted("One."), middleware=[broken]).run("Go.", history=history))
    assert lines(history) == ["user: Go.", "assistant: One."]


def test_cancelled_within_markers_what_was_written_is_kept():
    cancel = threading.Event()
    history: list = []
    for event in Agent(scripted("<think>Hm.</think>Done.")).run("Go.", history=history, cancel=cancel):
        if isinstance(event, Markup):
            cancel.set()
    assert [message.raw for message in history[1:]] == ["<think>"]


def test_an_answer_that_was_complete_is_one():
    cancel = threading.Event()
    for event in Agent(scripted("All done.")).run("Go.", cancel=cancel):
        if isinstance(event, TurnEnded):
            cancel.set()
    assert event.stop_reason == "answer"


@pytest.mark.parametrize(("output", "kind"), [("Let me see. " + BROKEN, TurnEnded), ("Let me see.", Text)])
def test_an_unfinished_answer_can_be_gone_on_from(output, kind):
    history: list = []
    events = Agent(scripted(output), [add]).run("Go.", history=history)
    for event in events:
        if isinstance(event, kind):
            break
    events.close()
    _, done = follow(Agent(scripted("Done."), [add]), None, history=history)
    assert done.text == "Done."


# -- "not run" is said of nothing that ran ----------------------------------------------------------------


class Forgetful:
    """A history that cannot be written for a moment, at the first results."""

    def __init__(self) -> None:
        self.kept: list = []
        self.failed = False

    def messages(self):
        return list(self.kept)

    def append(self, message):
        if isinstance(message, ToolMessage) and not self.failed:
            self.failed = True
            raise SaveFailed("the disk is full")
        self.kept.append(message)

    def compact(self, summary, kept, tokens_before=None):
        raise AssertionError


def test_results_that_could_not_be_kept_at_first():
    history = Forgetful()
    *_, last = Agent(scripted(block("add(a=1)"), "Done."), [add]).run("Go.", history=history)
    assert str(last.error) == "the disk is full"
    assert lines(history.kept) == ["user: Go.", "assistant: add(a=1)", "tool: 2"]


def test_a_session_that_is_removed_meanwhile(tmp_path):
    session = Session.create(tmp_path)

    @tool
    def remove() -> str:
        session.file.unlink()
        return "removed"

    *_, last = Agent(scripted(block("remove()"), "Done."), [remove]).run("Go.", history=session)
    assert isinstance(last, RunFailed)
    assert [message.role for message in last.messages] == ["user", "assistant"]


def test_a_hook_that_makes_a_result_of_nothing():
    @middleware("around_tool")
    def around(call, proceed, run):
        return proceed(call).model_copy(update={"content": 5})

    _, done = follow(Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[around]))
    assert lines(done.messages)[2].startswith(
        "tool: ! UsageError: the hook around_tool returned an invalid result"
    )


def test_a_slow_reader_turns_no_results_into_timeouts():
    @tool(timeout=2)
    def quick(n: int) -> int:
        return n

    for event in Agent(scripted(block("quick(n=1)", "quick(n=2)", "quick(n=3)"), "x"), [quick]).run("Go."):
        if isinstance(event, ToolEnded) and event.call.arguments["n"] == 1:
            time.sleep(2.1)
        last = event
    assert [result.text for result in last.messages[2].results] == ["1", "2", "3"]


def test_made_up_results_are_marked():
    history = [UserMessage.text("a"), AssistantMessage(content=(ToolCallPart(id="c", name="add"),))]
    follow(Agent(scripted("x"), [add]), "b", history=history)
    assert [message.source for message in history] == [None, None, "agent", None, None]


def test_open_calls_that_were_flushed_are_gone():
    call = AssistantMessage(content=(ToolCallPart(id="c", name="add"),))
    _, done = follow(Agent(scripted("Hi."), [add]), history=[UserMessage.text("a"), call, FlushMessage()])
    assert lines(done.messages) == ["user: Go.", "assistant: Hi."]


@pytest.mark.parametrize("kind", [ToolMessage, UserMessage])
def test_results_that_answer_nothing_are_refused_before_they_are_kept(kind):
    call = ToolCallPart(id="c", name="add", arguments={"a": 1})
    history = [UserMessage.text("a"), AssistantMessage(content=(call,))]
    other = call.model_copy(update={"id": "zzz"})
    with pytest.raises(UnpairedResult):
        Agent(scripted("Hi."), [add]).run(kind(content=(other.result("1"),)), history=history)
    assert len(history) == 2


def test_results_in_the_words_of_the_user():
    call = ToolCallPart(id="c", name="add", arguments={"a": 1})
    history = [UserMessage.text("a"), AssistantMessage(content=(call,))]
    prompt = UserMessage(content=(call.result("1"), "And?"))
    _, done = follow(Agent(scripted("Hi."), [add]), prompt, history=history)
    assert lines(done.messages) == ["user: And?", "assistant: Hi."]


def test_results_can_be_the_prompt():
    calls = tuple(ToolCallPart(id=f"c{n}", name="add", arguments={"a": n}) for n in range(2))
    history = [UserMessage.text("a"), AssistantMessage(content=calls)]
    _, done = follow(Agent(scripted("Hi.")), ToolMessage.from_result(calls[0].result("1")), history=history)
    told, closed, answer = lines(done.messages)
    assert (told, answer) == ("tool: 1", "assistant: Hi.")
    assert closed.startswith("tool: ! No result")


# -- errors -----------------------------------------------------------------------------------------------


def test_a_hook_that_fails_does_not_hide_why_the_run_failed():
    @middleware("on_message")
    def broken(message, run):
        if isinstance(message, ToolMessage):
            raise ValueError("bug")

    @tool(side_effects=True)
    def touch() -> None: ...

    def ask(requests):
        raise EngineFailed("the reason")

    agent = Agent(scripted(block("touch()")), [touch], approvals=ask, middleware=[broken])
    *_, last = agent.run("Go.")
    assert str(last.error) == "the reason"


def test_a_source_of_tools_that_fails():
    class Source:
        def tools(self):
            asked.append(threading.current_thread())
            raise McpFailed("gone")

    asked: list = []
    agent = Agent(scripted("x"), [Source()])
    *_, last = agent.run("Go.")
    assert isinstance(last, RunFailed)

    async def main():
        return [event async for event in agent.arun("Go.")][-1]

    assert isinstance(asyncio.run(main()), RunFailed)
    assert asked[1] is not threading.main_thread(), "the event loop is not kept waiting"


@pytest.mark.parametrize(
    "options",
    [
        {"tool_timeout": "3"}, {"tools": None}, {"name": 5}, {"instructions": 5}, {"middleware": object()},
        {"tempurature": 0}, {"temperature": -1}, {"approvals": True}, {"approvals": "ask"},
    ],
)  # fmt: skip
def test_wrong_options_are_found_at_once(options):
    with pytest.raises(LocalAgentError):
        Agent(scripted("x"), **options)
    if "temp" in next(iter(options)):
        with pytest.raises(LocalAgentError):
            Agent(scripted("x")).run("Go.", **options)


# -- nothing hangs, and nothing is left over --------------------------------------------------------------


@pytest.mark.parametrize("way", ["follow(agent)[1]", "asyncio.run(finish())"])
def test_sys_exit_in_a_coroutine_is_a_result(way):
    assert program(f"""
        @tool(timeout=20)
        async def leave() -> str:
            sys.exit(3)
        @tool(timeout=20)
        async def fine() -> str:
            return "fine"
        agent = Agent(scripted(block("leave()"), block("fine()"), "Done."), [leave, fine])
        async def finish():
            return [event async for event in agent.arun("Go.")][-1]
        print(lines(({way}).messages)[2:5:2])
    """) == "['tool: ! SystemExit: 3', 'tool: fine']\n"  # fmt: skip


HANGING = {
    "before_model": "async def hang(request, run): await asyncio.sleep(3600)",
    "around_tool": "async def hang(call, proceed, run): await asyncio.sleep(3600)",
}


@pytest.mark.parametrize("hook", HANGING)
def test_a_hook_that_hangs_is_cancelled(hook):
    assert program(f"""
        @middleware({hook!r})
        {HANGING[hook]}
        @tool
        def add(a: int) -> int:
            return a
        def agent():
            return Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[hang])
        async def main():
            async def work():
                async for event in agent().arun("Go."):
                    pass
            task = asyncio.create_task(work())
            await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.wait([task], timeout=30)
            print(task.cancelled(), len(asyncio.all_tasks()))
        asyncio.run(main())
        cancel = threading.Event()
        threading.Timer(0.5, cancel.set).start()
        for event in agent().run("Go.", cancel=cancel):
            pass
        print(event.stop_reason)
    """) == "True 1\ncancelled\n"  # fmt: skip


def test_a_hook_that_gives_up_on_a_tool_leaves_no_noise():
    assert program("""
        release = threading.Event()
        @tool(timeout=20)
        def hang() -> str:
            release.wait(10)
            return "late"
        @middleware("around_tool")
        async def around(call, proceed, run):
            return await asyncio.wait_for(proceed(call), 0.1)
        _, done = follow(Agent(scripted(block("hang()"), "x"), [hang], middleware=[around]))
        release.set()
        time.sleep(0.3)
        print(done.messages[2].text)
    """) == "TimeoutError\n"  # fmt: skip


def test_an_agent_within_a_coroutine_of_another():
    assert program("""
        @tool(timeout=30)
        async def inner() -> str:
            return "in"
        sub = Agent(scripted(block("inner()"), "Sub."), [inner])
        @tool(timeout=30)
        async def ask() -> str:
            return sub.respond("x").text
        _, done = follow(Agent(scripted(block("ask()"), "x"), [ask]))
        print(done.messages[2].text)
    """) == "Sub.\n"  # fmt: skip


def test_ctrl_c_ends_what_is_awaited():
    assert program("""
        @tool(side_effects=True)
        def touch() -> None: ...
        async def ask(requests):
            asyncio.get_running_loop().call_later(.1, os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("given up", flush=True)
                given_up.set()
                raise
        given_up = threading.Event()
        try:
            list(Agent(scripted(block("touch()"), "x"), [touch], approvals=ask).run("x"))
        except KeyboardInterrupt:
            given_up.wait(30)
    """) == "given up\n"  # fmt: skip


@pytest.mark.parametrize(
    "hanging",
    [
        "Agent(scripted(block('hang()'), 'x'), [tool(hang)], tool_timeout=None)",
        "Agent(scripted(block('hang()'), 'x'), [tool(hang, side_effects=True)], approvals=hang)",
    ],
)
def test_a_program_ends_whatever_hangs(hanging):
    assert program(f"""
        def hang(requests: list | None = None) -> None:
            time.sleep(3600)
        agent = {hanging}
        async def work():
            async for event in agent.arun("Go."):
                pass
        async def main():
            try:
                await asyncio.wait_for(work(), 0.5)
            except TimeoutError:
                print("given up")
        asyncio.run(main())
        loop = asyncio.new_event_loop()
        task = loop.create_task(work())
        loop.run_until_complete(asyncio.wait([task], timeout=0.5))
        print("left open", flush=True)
    """).startswith("given up\nleft open\n")  # fmt: skip


def test_cancelled_twice_the_history_is_whole():
    history: list = []
    inside, release = threading.Event(), threading.Event()

    @tool
    def hang() -> None:
        inside.set()
        release.wait(30)

    async def main():
        async def work():
            async for _ in Agent(scripted(block("hang()"), "x"), [hang]).arun("Go.", history=history):
                pass

        task = asyncio.create_task(work())
        while not inside.is_set():
            await asyncio.sleep(0.01)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        return lines(history)

    assert asyncio.run(main())[-1].startswith("tool: ! No result")
    release.set()


def test_left_without_a_word_the_history_is_whole():
    for _ in range(40):
        history: list = []

        async def work(history=history):
            async for event in Agent(scripted(block("add(a=1)"), "x"), [add]).arun("Go.", history=history):
                if isinstance(event, ToolStarted):
                    return

        asyncio.run(work())
        assert isinstance(history[-1], ToolMessage)


def test_context_variables_reach_tools():
    name = contextvars.ContextVar("name", default="none")

    @tool
    def look(context: ToolContext) -> str:
        return f"{name.get()} {context.state}"

    @middleware("around_tool")
    async def around(call, proceed, run):
        return await proceed(call)

    async def main(agent):
        return [event async for event in agent.arun("Go.", state="given")][-1]

    name.set("mine")
    for hooks in ([], [around]):
        agents = [Agent(scripted(block("look()"), "x"), [look], middleware=hooks) for _ in range(2)]
        _, done = follow(agents[0], state="given")
        assert done.messages[2].text == "mine given"
        assert asyncio.run(main(agents[1])).messages[2].text == "mine given"


def test_arun_can_be_made_before_there_is_a_loop():
    events = Agent(scripted("x")).arun("Go.")

    async def main():
        return [event async for event in events]

    assert isinstance(asyncio.run(main())[-1], RunDone)


def test_cancel_can_be_waited_for():
    cancel = threading.Event()
    seen = []

    @middleware("before_model")
    def look(request, run):
        seen.append(run.cancel.wait(0.01))
        cancel.set()
        seen.append(run.cancel.wait(30))

    list(Agent(scripted("x"), middleware=[look]).run("Go.", cancel=cancel))
    assert seen == [False, True]


def test_a_tool_that_goes_on_after_it_was_given_up_fills_no_memory():
    told = 0
    stop = threading.Event()

    @tool(timeout=1.5)
    def chat(context: ToolContext) -> None:
        nonlocal told
        while not stop.is_set():
            context.progress("x")
            told += 1
            time.sleep(0.0001)

    def kept() -> int:
        return sum(isinstance(each, ToolProgress) for each in gc.get_objects())

    events, _ = follow(Agent(scripted(block("chat()"), "x"), [chat]))
    assert any(isinstance(event, ToolProgress) for event in events)
    before, until = kept(), told + 1000
    while told < until:
        time.sleep(0.01)
    assert kept() <= before
    stop.set()


def test_a_reader_that_leaves_an_engine_that_fails_is_gone_all_the_same():
    model = scripted("One two three four.")
    generate = model.host.generate

    def breaking(*arguments):
        generation = generate(*arguments)
        steps = generation.steps

        def broken():
            yield next(steps())
            raise EngineFailed("gone")

        generation.steps = broken
        return generation

    model.host.generate = breaking
    history: list = []
    events = Agent(model).run("Go.", history=history)
    for event in events:
        if isinstance(event, Text):
            with pytest.raises(GeneratorExit):
                events.throw(GeneratorExit)
            break
    assert history[1].raw == "One t"
    assert history[1].stop_reason == "error"


def test_a_reader_that_leaves_hooks_that_cannot_be_awaited_any_more_is_gone_all_the_same():
    @middleware("on_message")
    async def slow(message, run):
        if isinstance(message, AssistantMessage):
            await asyncio.sleep(30)

    history: list = []
    events = Agent(scripted("One two three."), middleware=[slow]).run("Go.", history=history)
    for event in events:
        if isinstance(event, Text):
            break
    events.close()
    assert lines(history) == ["user: Go.", "assistant: One t"]
