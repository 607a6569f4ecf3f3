"""A run that is cancelled, or whose reader leaves, keeps what was written; every call has a result."""

from __future__ import annotations

import threading

import pytest

from localagent.agent import Agent, RunDone, ToolEnded, ToolStarted, TurnEnded
from localagent.agent.slot import NOT_RUN, STOPPED
from localagent.prompt.request import build_request
from localagent.tools import ToolContext, tool
from localagent.wire import chat_template
from parsers import CallEnd, Text
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.sample_tools import add


def test_cancelled_while_the_model_writes():
    cancel = threading.Event()
    agent = Agent(scripted("One two three. " + block("add(a=1)")), [add])
    history: list = []
    for event in agent.run("Go.", history=history, cancel=cancel):
        if isinstance(event, Text):
            cancel.set()
        last = event
    assert isinstance(last, RunDone)
    assert last.stop_reason == "cancelled"
    _, answer = history
    assert (answer.stop_reason, answer.text) == ("cancelled", "One t")


def test_cancelled_before_the_first_word_nothing_was_said():
    cancel = threading.Event()
    cancel.set()
    _, done = follow(Agent(scripted("x")), cancel=cancel)
    assert (lines(done.messages), done.stop_reason, done.message) == (["user: Go."], "cancelled", None)


def test_cancelled_after_the_calls_were_written():
    cancel = threading.Event()
    ran = []

    @tool
    def touch() -> None:
        ran.append(1)

    history: list = []
    for event in Agent(scripted(block("touch()")), [touch]).run("Go.", history=history, cancel=cancel):
        if isinstance(event, TurnEnded):
            cancel.set()
    assert ran == []
    assert lines(history)[-1] == f"tool: ! {NOT_RUN}"


def test_cancelled_while_tools_run():
    cancel = threading.Event()
    release = threading.Event()

    @tool
    def hang() -> None:
        release.wait(30)

    @tool
    def polite(context: ToolContext) -> str:
        assert context.cancel.wait(30)
        return "half done"

    calls = block("add(a=1)", "hang()", "polite()")
    history: list = []
    for event in Agent(scripted(calls, "never"), [add, hang, polite]).run(
        "Go.", history=history, cancel=cancel
    ):
        if isinstance(event, ToolEnded) and event.call.name == "add":
            cancel.set()
        last = event
    release.set()
    assert last.stop_reason == "cancelled"
    assert lines(history)[-1] == f"tool: 2 | ! {STOPPED} | half done"


@pytest.mark.parametrize("kind", [Text, CallEnd, TurnEnded, ToolStarted, ToolEnded])
def test_left_by_its_reader(kind):
    ran = []

    @tool
    def touch(n: int) -> int:
        ran.append(n)
        return n

    output = "Look. " + block("touch(n=1)", "touch(n=2)")
    history: list = []
    events = Agent(scripted(output, "never"), [touch], sequential=True).run("Go.", history=history)
    for event in events:
        if isinstance(event, kind):
            break
    events.close()
    assert history[1].role == "assistant"
    assert history[1].raw
    assert build_request(history, chat_template.TARGET)
    results = history[2].results if len(history) > 2 else ()
    assert len(results) == len(history[1].tool_calls)
    assert [result.text for result in results if not result.is_error] == [str(n) for n in ran][
        : kind is ToolEnded
    ]
    if kind in (Text, CallEnd, TurnEnded):
        assert ran == []
