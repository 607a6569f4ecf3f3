"""A model is told what was wrong with its output, in words it can use, and only if something was."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.agent import Agent, Retried
from localagent.agent.recovery import ALSO_RAN, EMPTY, LONGEST, NO_TOOLS, Rounds, also_ran, what_was_wrong
from localagent.agent.slot import Slot
from localagent.messages import AssistantMessage, MalformedToolCallPart, TextPart, ToolCallPart
from tests.agent.replaying import block, follow, scripted
from tests.agent.sample_tools import add, get, look

LOST = MalformedToolCallPart(raw="[f(", reason="truncated", name="f")
CALL = ToolCallPart(id="c", name="f", arguments={})


@pytest.mark.parametrize(
    ("content", "stop", "had_tools", "wrong"),
    [
        ((), "stop", True, ("empty", EMPTY)),
        ((TextPart(text=" \n"),), "stop", True, ("empty", EMPTY)),
        ((), "length", True, None),
        ((), "stop", False, None),
        ((TextPart(text="x"),), "stop", True, None),
        ((CALL,), "stop", True, None),
        ((LOST,), "stop", False, ("malformed", NO_TOOLS)),
        ((LOST, CALL), "stop", False, ("malformed", NO_TOOLS)),
    ],
)
def test_what_is_wrong_with_a_message(content: Any, stop: Any, had_tools: bool, wrong: Any) -> None:
    message = AssistantMessage(content=content, stop_reason=stop)
    assert what_was_wrong(message, had_tools=had_tools) == wrong


def test_each_lost_call_is_named_with_its_reason() -> None:
    odd = MalformedToolCallPart(raw="[", reason="something_new")
    kind, text = what_was_wrong(AssistantMessage(content=(LOST, CALL, odd)), had_tools=True) or ("", "")
    assert kind == "malformed"
    assert text.splitlines()[1:] == [
        "The call of 'f' could not be read and was not run: it was cut off before it was complete.",
        "A tool call could not be read and was not run: something_new.",
    ]


def test_calls_that_ran_are_named_in_short() -> None:
    def slot(size: int, started: bool = True, failed: bool = False) -> Slot:
        call = ToolCallPart(id="c", name="f", arguments={"a": "x" * (size - len('a=""'))})
        return Slot(call, call, started=started, result=call.result("done", is_error=failed))

    whole = 'a="' + "x" * (LONGEST - 4) + '"'
    assert also_ran([slot(LONGEST)]) == ALSO_RAN.format(f"f({whole})")
    cut = 'a="' + "x" * (LONGEST - 4) + "…"
    assert also_ran([slot(LONGEST + 1), slot(5)]) == ALSO_RAN.format(f'f({cut}), f(a="x")')
    assert also_ran([slot(5, started=False), slot(5, failed=True)]) == ""


@pytest.mark.parametrize(
    ("calls", "told"),
    [(("look()",), []), (("get()",), ["same_calls"]), (("look()", "get()"), ["same_calls"]), (("add(a=1)",), ["same_calls"])],
)  # fmt: skip
def test_only_calls_that_are_not_run_again_are_told_to_be_the_same(
    calls: tuple[str, ...], told: list[str]
) -> None:
    events, _ = follow(Agent(scripted(block(*calls), block(*calls), "Done."), [look, get, add]))
    assert [event.why for event in events if isinstance(event, Retried)] == told


def test_counters_begin_below_one() -> None:
    rounds = Rounds(max_turns=1, max_rescues=1)
    assert (rounds.turn, rounds.is_last, rounds.repeats) == (-1, False, 0)
    assert [rounds.may_rescue(wrong=True), rounds.may_rescue(wrong=True)] == [True, False]
    assert rounds.may_rescue(wrong=False)
    assert rounds.may_rescue(wrong=True), "only those in a row count"
