"""Calls run beside each other or alone, within their time; results keep the order of the calls."""

from __future__ import annotations

import threading
import time

import pytest

from localagent.agent import Agent, ToolEnded, ToolProgress, middleware
from localagent.prompt.request import build_request
from localagent.tools import Tool, ToolContext, ToolSet, tool
from localagent.wire import chat_template
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.sample_tools import add, finish


def test_parallel_calls_run_beside_each_other():
    barrier = threading.Barrier(20)

    @tool
    def meet(n: int) -> int:
        barrier.wait(timeout=30)  # nobody leaves before all are here
        return n

    calls = block(*(f"meet(n={n})" for n in range(20)))
    _, done = follow(Agent(scripted(calls, "Done."), [meet]))
    assert [result.text for result in done.messages[2].results] == [str(n) for n in range(20)]


def test_results_keep_the_order_of_the_calls_whatever_is_done_first():
    turns = [threading.Event() for _ in range(4)]
    turns[3].set()

    @tool
    def backwards(n: int) -> int:
        assert turns[n].wait(timeout=30)
        if n:
            turns[n - 1].set()
        return n

    calls = block(*(f"backwards(n={n})" for n in range(4)))
    events, done = follow(Agent(scripted(calls, "Done."), [backwards]))
    assert [event.result.text for event in events if isinstance(event, ToolEnded)] == ["3", "2", "1", "0"]
    assert [result.text for result in done.messages[2].results] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("per_run", [False, True])
def test_sequential_calls_do_not_overlap(per_run):
    running: list[str] = []
    most: dict[str, int] = {}
    order: list[str] = []

    def work(name: str) -> str:
        running.append(name)
        order.append(name)
        for each in running:
            most[each] = max(most.get(each, 0), len(running))
        time.sleep(0.02)
        running.remove(name)
        return name

    @tool(sequential=not per_run)
    def alone(n: int) -> str:
        return work(f"alone{n}")

    @tool
    def beside(n: int) -> str:
        return work(f"beside{n}")

    calls = block("beside(n=1)", "beside(n=2)", "alone(n=3)", "alone(n=4)", "beside(n=5)")
    follow(Agent(scripted(calls, "Done."), [alone, beside], sequential=per_run))
    assert most["alone3"] == most["alone4"] == 1
    assert order[2:] == ["alone3", "alone4", "beside5"]
    if per_run:
        assert (set(most.values()), order[:2]) == ({1}, ["beside1", "beside2"])


def test_a_tool_that_hangs_is_given_up():
    release = threading.Event()
    told = threading.Event()

    @tool(timeout=0.2)
    def hang(context: ToolContext) -> str:
        context.cancel.wait(30)
        told.set()
        release.wait(30)
        return "too late"

    _, done = follow(Agent(scripted(block("hang()", "add(a=1)"), "Done."), [hang, add]))
    late, added = done.messages[2].results
    assert late.is_error
    assert "within 0.2 seconds" in late.text
    assert added.text == "2"
    assert told.wait(30), "the tool hears that nobody waits any more"
    release.set()
    assert "too late" not in str(done)


def test_the_agent_has_a_time_limit_for_all_tools():
    @tool
    def hang(context: ToolContext) -> None:
        context.cancel.wait(30)

    _, done = follow(Agent(scripted(block("hang()"), "Done."), [hang], tool_timeout=0.1))
    assert "within 0.1 seconds" in done.messages[2].text


def test_progress_is_what_a_tool_reports_and_not_what_it_prints(capsys):
    @tool
    def work(context: ToolContext) -> str:
        context.progress("half", 0.5)
        print("printed")
        return context.call.name

    events, done = follow(Agent(scripted(block("work()"), "Done."), [work]))
    told = [(event.text, event.share) for event in events if isinstance(event, ToolProgress)]
    assert told == [("half", 0.5)]
    (result,) = done.messages[2].results
    assert (result.text, result.metadata) == ("work", {})
    assert capsys.readouterr().out == "printed\n"


def test_progress_is_told_whatever_a_tool_says():
    @tool
    def work(context: ToolContext) -> str:
        context.progress(5, "x")
        context.progress("\ud800", float("nan"))
        context.progress("over", 7)
        return "said"

    events, done = follow(Agent(scripted(block("work()"), "Done."), [work]))
    told = [(event.text, event.share) for event in events if isinstance(event, ToolProgress)]
    assert told == [("5", None), ("\\ud800", None), ("over", 1.0)]
    (result,) = done.messages[2].results
    assert (result.text, result.is_error) == ("said", False)
    result.model_dump_json().encode()


def test_metadata_is_kept_and_not_sent():
    _, done = follow(Agent(scripted(block("finish()"), "x"), [finish]))
    (result,) = done.messages[2].results
    assert result.metadata == {"n": 1}
    sent = build_request(done.messages, chat_template.TARGET).messages
    assert "metadata" not in str(sent[-1].model_dump(exclude_defaults=True))


def noting(bound: list) -> Tool:
    """A tool that notes each time that a call of it is bound."""

    def bind(arguments):
        bound.append(arguments)
        return lambda context: "done"

    return Tool(name="look", description="", parameters={"type": "object", "properties": {}}, bind=bind)


def test_a_call_is_looked_up_and_bound_once(monkeypatch):
    looked_up, bound = [], []
    find = ToolSet.find
    monkeypatch.setattr(ToolSet, "find", lambda self, name: looked_up.append(name) or find(self, name))

    @middleware("around_tool")
    def watch(call, proceed, run):
        return proceed(call)

    _, done = follow(Agent(scripted(block("look()"), "Done."), [noting(bound)], middleware=[watch]))
    assert (lines(done.messages)[2], looked_up, bound) == ("tool: done", ["look"], [{}])


def test_a_hook_that_proceeds_twice_has_the_call_bound_again():
    bound = []

    @middleware("around_tool")
    def again(call, proceed, run):
        proceed(call)
        return proceed(call)

    _, done = follow(Agent(scripted(block("look()"), "Done."), [noting(bound)], middleware=[again]))
    assert (lines(done.messages)[2], len(bound)) == ("tool: done", 2)


def test_a_hook_may_not_name_a_tool_that_does_not_exist():
    @middleware("around_tool")
    def rename(call, proceed, run):
        return proceed(call.model_copy(update={"name": "subtract"}))

    agent = Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[rename])
    _, done = follow(agent)
    assert lines(done.messages)[2] == f"tool: ! {agent.toolset().unknown('subtract')}"
