"""Calls of a turn are decided together; denials are told, and nothing runs once the run is stopped."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from localagent.agent import (
    Agent,
    Allow,
    ApprovalAsked,
    ApprovalGiven,
    Approvals,
    Deny,
    Edit,
    Rule,
    RunFailed,
)
from localagent.agent.approvals import NOBODY, approve
from localagent.agent.concurrency import Coroutines
from localagent.agent.slot import NOT_RUN, open_slots
from localagent.errors import InvalidMessage
from localagent.hosts.protocol import Cancel
from localagent.messages import ToolCallPart
from localagent.tools import ToolSet, tool
from tests.agent.replaying import block, follow, lines, scripted

ran: list[str] = []
STOPPED = Deny("the run was stopped")
REFUSED = "Denied: the run was stopped. The call was not run."


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


@tool(side_effects=True)
def send(to: str) -> str:
    ran.append(to)
    return f"sent to {to}"


TWO = block("send(to='a')", "send(to='b')")


def decisions(events: list) -> list:
    return [event.decision for event in events if isinstance(event, ApprovalGiven)]


def test_a_run_that_is_stopped_already_asks_nobody_and_decides_nothing():
    asked: list = []
    cancel = Cancel()
    cancel.set()
    calls = [ToolCallPart(id="1", name="send", arguments={"to": each}) for each in "ab"]
    slots = open_slots(calls, ToolSet([send]), 2)
    approvals = Approvals([Rule("deny", "send", {"to": "a"})], asked.append)
    assert list(approve(slots, approvals, Coroutines(), cancel)) == []
    assert asked == []
    assert [slot.result for slot in slots] == [None, None]


def test_what_was_allowed_when_the_run_was_stopped_meanwhile_does_not_run():
    cancel = threading.Event()

    def allow(requests: list) -> list:
        cancel.set()
        return [Allow(always=True)] * len(requests)

    approvals = Approvals(approver=allow)
    events, done = follow(Agent(scripted(TWO, "x"), [send], approvals=approvals), cancel=cancel)
    assert (ran, done.stop_reason) == ([], "cancelled")
    assert decisions(events) == [STOPPED, STOPPED]
    assert lines(done.messages)[2] == f"tool: ! {REFUSED} | ! {REFUSED}"
    assert approvals.decide(send, done.messages[1].tool_calls[0]) is None, "nor is it remembered"


def test_a_run_that_is_stopped_while_somebody_is_asked():
    cancel = threading.Event()

    async def never(requests: list) -> Any:
        cancel.set()
        await asyncio.sleep(60)

    events, done = follow(Agent(scripted(TWO, "x"), [send], approvals=never), cancel=cancel)
    assert (ran, done.stop_reason, decisions(events)) == ([], "cancelled", [STOPPED, STOPPED])


def test_stopped_when_the_answers_are_told():
    """All that was decided is told; what was allowed does not begin any more."""
    cancel = threading.Event()
    agent = Agent(scripted(TWO, "x"), [send], approvals=lambda requests: [Allow(), Deny("no")])
    history: list = []
    for event in agent.run("Go.", history=history, cancel=cancel):
        if isinstance(event, ApprovalGiven):
            cancel.set()
    assert ran == []
    assert lines(history)[2] == f"tool: ! {NOT_RUN} | ! Denied: no. The call was not run."


def test_what_rules_deny_is_told_and_who_is_asked_hears_only_of_the_rest():
    rules = [Rule("deny", "send", {"to": "a"}, reason="not a.")]
    approvals = Approvals(rules, lambda requests: [Allow() for _ in requests])
    events, done = follow(Agent(scripted(TWO, "x"), [send], approvals=approvals))
    first, second = done.messages[1].tool_calls
    told = [event for event in events if isinstance(event, ApprovalAsked | ApprovalGiven)]
    assert told[0] == ApprovalGiven(first, Deny("not a."))
    assert [request.call for request in told[1].requests] == [second]
    assert told[2:] == [ApprovalGiven(second, Allow())]
    assert lines(done.messages)[2] == "tool: ! Denied: not a. The call was not run. | sent to b"


def test_where_nobody_can_be_asked_every_call_is_denied():
    events, done = follow(Agent(scripted(TWO, "x"), [send]))
    assert (ran, decisions(events)) == ([], [Deny(NOBODY), Deny(NOBODY)])
    assert [result.is_error for result in done.messages[2].results] == [True, True]


def test_a_denial_without_a_reason_is_by_the_user():
    _, done = follow(Agent(scripted(TWO, "x"), [send], approvals=lambda _: [Deny(), Deny("no...")]))
    assert lines(done.messages)[2] == (
        "tool: ! Denied by the user. The call was not run. | ! Denied: no. The call was not run."
    )


def test_an_answer_counts_for_the_call_that_was_asked_about():
    """Even where it lets a later rule through, which then denies the calls that come."""
    once = block("send(to='a')")
    approvals = Approvals([Rule("ask"), Rule("deny", "send")], lambda requests: [Allow(always=True)])
    _, done = follow(Agent(scripted(once, block("send(to='b')"), "x"), [send], approvals=approvals))
    assert ran == ["a"]
    assert lines(done.messages)[4] == "tool: ! Denied: a rule forbids this call. The call was not run."


def test_changed_arguments_that_json_cannot_say_fail_the_run_and_leave_a_history():
    history: list = []
    agent = Agent(scripted(TWO, "x"), [send], approvals=lambda _: [Edit({"to": object()}), Allow()])
    *_, last = agent.run("Go.", history=history)
    assert isinstance(last, RunFailed)
    assert isinstance(last.error, InvalidMessage)
    assert "the changed arguments of 'send' are not JSON" in str(last.error)
    assert ran == []
    assert [result.is_error for result in history[2].results] == [True, True]
