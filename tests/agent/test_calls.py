"""Calls run beside each other or alone, within their time; results keep the order of the calls."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from localagent.agent import Agent, Edit, ToolEnded, ToolProgress, ToolStarted, TurnEnded, middleware
from localagent.agent.calls import NO_THREAD
from localagent.messages import AssistantMessage, ToolCallPart
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


def test_a_call_that_did_not_run_took_no_time():
    events, _ = follow(Agent(scripted(block("add(a=1)", "nothing()"), "Done."), [add]))
    ended = {event.call.name: event.seconds for event in events if isinstance(event, ToolEnded)}
    assert ended["nothing"] == 0.0 < ended["add"] < 20.0


# -- the kind of a tool -----------------------------------------------------------------------------------


def test_calls_are_kept_with_the_kind_of_their_tool():
    @tool(kind="read", side_effects=True)
    def get_it(n: int) -> int:
        return n

    def ask(requests):
        seen.extend(request.call.tool_kind for request in requests)
        return [Edit({"n": 5})]

    @middleware("after_model")
    def look(message, run):
        seen.extend(call.tool_kind for call in message.tool_calls)

    seen: list = []
    agent = Agent(
        scripted(block("Get_It(n=1)", "add(a=1)", "nothing()"), "Done."),
        [get_it, add], approvals=ask, middleware=[look],
    )  # fmt: skip
    events, done = follow(agent)
    assert [call.tool_kind for call in done.messages[1].tool_calls] == ["read", None, None]
    assert seen == ["read", None, None, "read"]
    (ended,) = [event for event in events if isinstance(event, TurnEnded) and event.message.tool_calls]
    assert ended.message is done.messages[1]
    told = [event.call.tool_kind for event in events if isinstance(event, ToolStarted | ToolEnded)]
    assert told.count("read") == 2
    assert [result.text.split("\n")[-1] for result in done.messages[2].results][:2] == ["5", "2"]


def test_a_kind_that_a_call_has_stays():
    @middleware("before_model")
    def plan(request, run):
        if run.turn == 0:
            call = ToolCallPart(id="c", name="look_up", tool_kind="search")
            return AssistantMessage(content=(call,))
        return None

    @tool(kind="read")
    def look_up() -> str:
        return "x"

    _, done = follow(Agent(scripted("Done."), [look_up], middleware=[plan]))
    assert done.messages[1].tool_calls[0].tool_kind == "search"


def test_calls_of_a_forced_answer_have_their_kind_too():
    @tool(kind="read")
    def look_up() -> str:
        return "x"

    _, done = follow(Agent(scripted(block("look_up()")), [look_up], max_turns=1))
    assert [call.tool_kind for call in done.message.tool_calls] == ["read"]


# -- a system that has no more threads --------------------------------------------------------------------


def test_a_call_for_which_there_is_no_thread_is_an_error_result(monkeypatch):
    start, begun = threading.Thread.start, []

    def scarce(thread):
        if thread.name == "localagent-add":
            begun.append(thread)
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    calls = block("add(a=1)", "add(a=2)", "add(a=3)")
    events, done = follow(Agent(scripted(calls, "Done."), [add]))
    results = done.messages[2].results
    assert [result.is_error for result in results] == [False, True, False]
    assert results[1].text == NO_THREAD
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 3
    assert done.text == "Done."


def test_a_coroutine_for_which_there_is_no_loop_is_an_error_result():
    code = """if True:
        import threading
        from localagent.agent import Agent
        from localagent.tools import tool
        from tests.agent.replaying import block, follow, lines, scripted
        start, tried = threading.Thread.start, []
        def scarce(thread):
            if thread.name == "localagent-coroutines" and not tried:
                tried.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = scarce
        @tool(timeout=20)
        async def get(n: int) -> int:
            return n
        print(lines(follow(Agent(scripted(block("get(n=1)"), block("get(n=2)"), "x"), [get]))[1].messages))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "tool: ! RuntimeError: can't start new thread" in done.stdout, done.stderr
    assert "'tool: 2'" in done.stdout


def test_a_tool_that_fails_on_a_call_that_does_not_fit_says_so_and_why():
    def bind(arguments):
        return lambda context: {"city": arguments["city"], "days": 1 / arguments["days"]}

    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    weather = Tool(
        name="weather", description="Weather.", parameters={**schema, "required": ["city"]}, bind=bind,
        side_effects=False,
    )  # fmt: skip
    agent = Agent(scripted(block("weather(days=1)"), "Hm."), [weather])
    events, _ = follow(agent)
    (ended,) = (event for event in events if isinstance(event, ToolEnded))
    assert ended.result.is_error
    assert ended.result.text.startswith("(The call does not fit the tool: city: missing.)\n")
    agent = Agent(scripted(block("weather(city='Rome', days=0)"), "Hm."), [weather])
    events, _ = follow(agent)
    (ended,) = (event for event in events if isinstance(event, ToolEnded))
    assert ended.result.is_error and "does not fit" not in ended.result.text
    agent = Agent(scripted(block("weather(city='Rome', days=1, unit='C')"), "Hm."), [weather])
    events, _ = follow(agent)
    (ended,) = (event for event in events if isinstance(event, ToolEnded))
    assert not ended.result.is_error  # the tool makes something of it
