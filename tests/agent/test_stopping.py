"""A run that is cancelled, or whose reader leaves, keeps what was written; every call has a result."""

from __future__ import annotations

import threading

import pytest

from localagent.agent import Agent, Rule, RunDone, RunFailed, ToolEnded, ToolStarted, TurnEnded
from localagent.agent.slot import NOT_RUN, STOPPED
from localagent.errors import InvalidTool, ToolError, UsageError
from localagent.prompt.request import build_request
from localagent.tools import ToolContext, tool
from localagent.wire import chat_template
from parsers import CallEnd, Text
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.sample_tools import add
from tests.agent.words import wordy


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


# -- the end by a tool's name -----------------------------------------------------------------------------


@tool
def submit(text: str) -> str:
    """Submit."""
    if not text:
        raise ToolError("empty")
    return f"submitted {text}"


def test_a_named_tool_ends_the_run_once_it_ran():
    outputs = (block("submit(text='')"), block("add(a=1)", "SUBMIT(text='x')", "add(a=2)"), "never")
    _, done = follow(Agent(scripted(*outputs), [add, submit], stop_after=("submit",)))
    assert (done.stop_reason, done.turns) == ("terminated", 2)
    assert [result.text for result in done.messages[-1].results] == ["2", "submitted x", "3"]
    assert done.message.tool_calls


def test_a_named_tool_that_is_denied_or_repeated_ends_nothing():
    call = block("submit(text='x')")
    agent = Agent(
        scripted(call, "Then not."), [submit], stop_after=["submit"], approvals=[Rule("deny", "submit")]
    )
    _, done = follow(agent)
    assert (done.stop_reason, done.text) == ("answer", "Then not.")


@pytest.mark.parametrize("names", ["submit", ("submit", "sumbit"), (5,), 5])
def test_names_that_are_no_tools_are_found_at_once(names):
    with pytest.raises(UsageError, match="stop_after"):
        Agent(scripted("x"), [submit, add], stop_after=names)


def test_names_of_tools_that_sources_have_are_looked_up_when_it_runs():
    class Source:
        def __init__(self, *tools):
            self.found = tools

        def tools(self):
            return self.found

    agent = Agent(scripted(block("submit(text='x')")), [Source(submit)], stop_after=("submit",))
    _, done = follow(agent)
    assert done.stop_reason == "terminated"
    *_, last = Agent(scripted("x"), [Source(add)], stop_after=("submit",)).run("Go.")
    assert isinstance(last, RunFailed)
    assert str(last.error) == "stop_after names 'submit': the agent has no such tool; there are: add"


# -- tools that come later --------------------------------------------------------------------------------


def test_a_tool_can_be_added():
    agent = Agent(scripted(block("add(a=1)"), "Done."))

    def subtract(a: int) -> int:
        """Subtract."""
        return a - 1

    agent.add_tool(add)
    agent.add_tool(subtract)
    assert agent.toolset().names == ("add", "subtract")
    _, done = follow(agent)
    assert done.messages[2].text == "2"


def test_a_run_keeps_the_tools_it_has():
    agent = Agent(wordy(block("add(a=1)"), "Done.", "Again."), [add])
    for event in agent.run("Go."):
        if isinstance(event, ToolStarted):
            agent.add_tool(submit)
    follow(agent)
    shown = [prompt.splitlines()[0] for prompt in agent.model.host.asked]
    assert shown == ["tools: add", "tools: add", "tools: add submit"]


@pytest.mark.parametrize("more", [add, tool(add.function, name="Add"), "add", 5, int])
def test_two_tools_of_one_name_or_none_at_all(more):
    agent = Agent(scripted("x"), [add])
    with pytest.raises(InvalidTool):
        agent.add_tool(more)
    assert agent.toolset().names == ("add",)
