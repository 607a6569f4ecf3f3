"""Every rule of the loop, on recordings of what a model wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    Retried,
    Rule,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    middleware,
)
from localagent.agent.approvals import NOBODY
from localagent.agent.recovery import EMPTY, LAST_WORDS, NO_TOOLS, REPEATED
from localagent.agent.slot import NOT_RUN
from localagent.errors import UsageError
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    TextPart,
)
from localagent.prompt.request import build_request
from localagent.tools import Tool, tool
from localagent.wire import chat_template
from parsers import CallEnd, Malformed, Text
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.sample_tools import (
    BROKEN,
    MIXED,
    TOOLS,
    add,
    approver,
    write,
)

REASON = (
    "Write each of these calls again, complete and well formed:\nThe call of 'add' could not be read and was "
    "not run: a value is an expression: write plain values only."
)
RAN = "\nThe other calls of that message were run: add(a=1)."
LONG = "x" * 200


@dataclass
class Row:
    """What the model writes, and what must come of it."""

    name: str
    outputs: list[str]
    expected: list[str]
    """The conversation behind the user's request."""
    stop: str = "answer"
    tools: list[Any] = field(default_factory=lambda: list(TOOLS))
    options: dict[str, Any] = field(default_factory=dict)


ROWS = [
    Row("an answer needs no tool", ["Hello."], ["assistant: Hello."]),
    Row(
        "query, execute, append",
        [block("add(a=2)"), "Three."],
        ["assistant: add(a=2)", "tool: 3", "assistant: Three."],
    ),
    Row(
        "several turns",
        [block("add(a=1)"), block("add(a=2)"), "Done."],
        ["assistant: add(a=1)", "tool: 2", "assistant: add(a=2)", "tool: 3", "assistant: Done."],
    ),
    Row(
        "a batch has its results in the order of the calls",
        [block("add(a=1)", "fail(how='tool')", "add(a=2)"), "Done."],
        [
            'assistant: add(a=1) fail(how="tool") add(a=2)',
            "tool: 2 | ! the cat sleeps | 3",
            "assistant: Done.",
        ],
    ),
    Row(
        "a tool that there is not, and arguments that do not fit",
        [block("sing()", "add(b=1, c=2)", "add(a='x')"), "Done."],
        [
            'assistant: sing() add(b=1, c=2) add(a="x")',
            "tool: ! There is no tool sing. The tools are: add, write, fail, show, finish, look, get, meet, slow, "
            "alone. | ! c: there is no such parameter; the parameters are: a, b\na: missing | "
            '! a: Input should be a valid integer, not "x"',
            "assistant: Done.",
        ],
    ),
    Row(
        "what nobody can read is no result",
        [block("fail(how='socket')", "fail(how='nan')"), "Done."],
        [
            'assistant: fail(how="socket") fail(how="nan")',
            "tool: ! The tool ran, but its result cannot be shown: a lock (_thread.lock is not JSON: Unable to "
            "serialize unknown type: <class '_thread.lock'>). | ! The tool ran, but its result cannot be shown: "
            "a float (nan is not JSON).",
            "assistant: Done.",
        ],
    ),
    Row(
        "calls run beside each other",
        [block("meet()", "meet()", "meet()"), "Done."],
        ["assistant: meet() meet() meet()", "tool: all here | all here | all here", "assistant: Done."],
    ),
    Row(
        "a sequential tool runs alone",
        [block("add(a=1)", "alone()", "alone()", "add(a=2)"), "Done."],
        ["assistant: add(a=1) alone() alone() add(a=2)", "tool: 2 | alone | alone | 3", "assistant: Done."],
    ),
    Row(
        "a tool that hangs is given up",
        [block("slow()", "add(a=1)"), "Done."],
        [
            "assistant: slow() add(a=1)",
            "tool: ! No result: the tool did not answer within 0.1 seconds. It may still be at work. | 2",
            "assistant: Done.",
        ],
    ),
    Row(
        "repeatable calls of a round that is made again run",
        [block("look()", "get()"), block("look()", "get()"), block("look()", "get()"), "Done."],
        [
            *("assistant: look() get()", "tool: not yet | got"),
            *("assistant: look() get()", f"tool: not yet | {REPEATED}got") * 2,
            "assistant: Done.",
        ],
    ),
    Row(
        "without tools, what was meant as a call is not asked for again",
        [BROKEN, "Well."],
        ["assistant: <not_a_literal>", f"rescue: {NO_TOOLS}", "assistant: Well."],
        tools=[],
    ),
    Row(
        "an exception is a result",
        [block("fail(how='bug')", "fail(how='exit')"), "Done."],
        [
            'assistant: fail(how="bug") fail(how="exit")',
            "tool: ! KeyError: 'k' | ! SystemExit: 3",
            "assistant: Done.",
        ],
    ),
    Row(
        "what is printed is no part of the result",
        [block("show()"), "Done."],
        ["assistant: show()", "tool: null", "assistant: Done."],
    ),
    Row(
        "a name is found in other spellings",
        [block("ADD(a=2)"), "Done."],
        ["assistant: ADD(a=2)", "tool: 3", "assistant: Done."],
    ),
    Row(
        "terminate ends the run after the batch",
        [block("finish()", "add(a=1)"), "never"],
        ["assistant: finish() add(a=1)", "tool: the end | 2"],
        stop="terminated",
    ),
    Row(
        "with nobody to ask, what has side effects does not run",
        [block("write(path='a')", "add(a=1)"), "Done."],
        [
            'assistant: write(path="a") add(a=1)',
            f"tool: ! Denied: {NOBODY}. The call was not run. | 2",
            "assistant: Done.",
        ],
    ),
    Row(
        "allow",
        [block("write(path='a')"), "Done."],
        ['assistant: write(path="a")', "tool: wrote a", "assistant: Done."],
        options={"approvals": approver(Allow())},
    ),
    Row(
        "deny, with a reason and without",
        [block("write(path='a')", "write(path='b')"), "Done."],
        [
            'assistant: write(path="a") write(path="b")',
            "tool: ! Denied: not today. The call was not run. | ! Denied by the user. The call was not run.",
            "assistant: Done.",
        ],
        options={"approvals": approver(Deny("not today."), Deny())},
    ),
    Row(
        "edit: the model reads what was run",
        [block("write(path='a')"), "Done."],
        [
            'assistant: write(path="a")',
            'tool: (The user changed the arguments to: path="b")\nwrote b',
            "assistant: Done.",
        ],
        options={"approvals": approver(Edit({"path": "b"}))},
    ),
    Row(
        "rules: the first that fits",
        [block("write(path='tmp/a')", "write(path='etc/b')", "add(a=1)"), "Done."],
        [
            'assistant: write(path="tmp/a") write(path="etc/b") add(a=1)',
            "tool: wrote tmp/a | ! Denied: only below tmp. The call was not run. | "
            "! Denied: a rule forbids this call. The call was not run.",
            "assistant: Done.",
        ],
        options={
            "approvals": Approvals(
                [
                    Rule("allow", "write", {"path": "tmp/*"}),
                    Rule("deny", "wr?te", {"path": "*"}, reason="only below tmp"),
                    Rule("deny", "add", {"a": "1"}),
                ]
            )
        },
    ),
    Row(
        "a rule can ask about what would run",
        [block("add(a=1)"), "Done."],
        ["assistant: add(a=1)", "tool: ! Denied by the user. The call was not run.", "assistant: Done."],
        options={"approvals": Approvals([Rule("ask", "*")], approver(Deny()))},
    ),
    Row(
        "a repeated round is not run again, and repeated twice it is the last",
        [block("add(a=1)"), block("add( a = 1 )"), block("add(a=1)"), "Two."],
        [
            "assistant: add(a=1)",
            "tool: 2",
            "assistant: add(a=1)",
            f"tool: {REPEATED}2",
            "assistant: add(a=1)",
            f"tool: {REPEATED}2",
            f"rescue: {LAST_WORDS['repeated']}",
            "assistant: Two.",
        ],
        stop="repeated",
    ),
    Row(
        "only the round before counts",
        [block("add(a=1)"), block("add(a=2)"), block("add(a=1)"), "Done."],
        [
            *("assistant: add(a=1)", "tool: 2", "assistant: add(a=2)", "tool: 3"),
            *("assistant: add(a=1)", "tool: 2", "assistant: Done."),
        ],
    ),
    Row(
        "what may be repeated is",
        [block("look()")] * 4 + ["Done."],
        [*["assistant: look()", "tool: not yet"] * 4, "assistant: Done."],
    ),
    Row(
        "the turn limit forces an answer without tools",
        [block("add(a=1)"), block("add(a=2)"), "Enough."],
        [
            *("assistant: add(a=1)", "tool: 2", "assistant: add(a=2)", "tool: 3"),
            f"rescue: {LAST_WORDS['turn_limit']}",
            "assistant: Enough.",
        ],
        stop="turn_limit",
        options={"max_turns": 2},
    ),
    Row(
        "calls in a forced answer are kept and not run",
        [block("add(a=1)"), block("add(a=2)")],
        [
            *("assistant: add(a=1)", "tool: 2", f"rescue: {LAST_WORDS['turn_limit']}"),
            *("assistant: add(a=2)", f"tool: ! Not run. {LAST_WORDS['turn_limit']}"),
        ],
        stop="turn_limit",
        options={"max_turns": 1},
    ),
    Row(
        "a malformed call is answered with its reason",
        [BROKEN, block("add(a=1)"), "Done."],
        [
            *("assistant: <not_a_literal>", f"rescue: {REASON}"),
            *("assistant: add(a=1)", "tool: 2", "assistant: Done."),
        ],
    ),
    Row(
        "good calls beside a malformed one run",
        [MIXED, "Done."],
        ["assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}", "assistant: Done."],
    ),
    Row(
        "a call that was run beside a malformed one is not run again with the others that are written again",
        [MIXED, block("add(a=1)", "add(a=1, b=2)"), block("add(a=1)", "add(a=1, b=2)"), "Done."],
        [
            *("assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}"),
            *("assistant: add(a=1) add(a=1, b=2)", f"tool: {REPEATED}2 | 3"),
            *("assistant: add(a=1) add(a=1, b=2)", f"tool: {REPEATED}2 | {REPEATED}3"),
            "assistant: Done.",
        ],
    ),
    Row(
        "nor is it after several rescues",
        [MIXED, BROKEN, MIXED.replace("[", "[look(), "), block("add(a=1)", "add(a=1)", "look()"), "Done."],
        [
            *("assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}"),
            *("assistant: <not_a_literal>", f"rescue: {REASON}"),
            *("assistant: look() add(a=1) <not_a_literal>", f"tool: not yet | {REPEATED}2"),
            f"rescue: {REASON}{RAN.replace('add(a=1)', 'look()')}",
            *("assistant: add(a=1) add(a=1) look()", f"tool: {REPEATED}2 | 2 | not yet"),
            "assistant: Done.",
        ],
        options={"max_rescues": 3},
    ),
    Row(
        "what was run beside a malformed call is no repeated round, but then it is",
        [MIXED, block("add(a=1)"), block("add(a=1)"), block("add(a=1)"), "Two."],
        [
            *("assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}"),
            *("assistant: add(a=1)", f"tool: {REPEATED}2") * 3,
            *(f"rescue: {LAST_WORDS['repeated']}", "assistant: Two."),
        ],
        stop="repeated",
    ),
    Row(
        "nor are those of several such messages",
        [MIXED, MIXED.replace("(a=1)", "(a=3)"), block("add(a=1)", "add(a=3)"), "Done."],
        [
            *("assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}"),
            *("assistant: add(a=3) <not_a_literal>", "tool: 4", f"rescue: {REASON}{RAN.replace('1', '3')}"),
            *("assistant: add(a=1) add(a=3)", f"tool: {REPEATED}2 | {REPEATED}4", "assistant: Done."),
        ],
    ),
    Row(
        "once all calls were read, the same call is a new one",
        [MIXED, block("add(a=2)"), block("add(a=1)"), "Done."],
        [
            *("assistant: add(a=1) <not_a_literal>", "tool: 2", f"rescue: {REASON}{RAN}"),
            *("assistant: add(a=2)", "tool: 3", "assistant: add(a=1)", "tool: 2", "assistant: Done."),
        ],
    ),
    Row(
        "long arguments are not told again",
        [MIXED.replace("add(a=1)", f"write(path='{LONG}')"), "Done."],
        [
            f'assistant: write(path="{LONG}") <not_a_literal>',
            f"tool: wrote {LONG}",
            f"rescue: {REASON}" + RAN.replace("add(a=1)", f'write(path="{LONG[:93]}…)'),
            "assistant: Done.",
        ],
        options={"approvals": approver(Allow())},
    ),
    Row(
        "the model is corrected so often, then asked for an answer",
        [BROKEN, BROKEN, BROKEN, "I give up."],
        [
            *("assistant: <not_a_literal>", f"rescue: {REASON}") * 2,
            *("assistant: <not_a_literal>", f"rescue: {LAST_WORDS['rescues']}", "assistant: I give up."),
        ],
        stop="rescues",
    ),
    Row(
        "no corrections",
        [BROKEN, "Well."],
        ["assistant: <not_a_literal>", f"rescue: {LAST_WORDS['rescues']}", "assistant: Well."],
        stop="rescues",
        options={"max_rescues": 0},
    ),
    Row(
        "a marker in the wrong place is no lost call",
        ["Done.<|tool_call_end|>"],
        ["assistant: Done. <stray_end>"],
    ),
    Row(
        "an empty answer is none",
        ["<think>Hm.</think>", "Done."],
        ["assistant: ", f"rescue: {EMPTY}", "assistant: Done."],
    ),
    Row("without tools an empty answer is an answer", [""], ["assistant: "], tools=[]),
    Row(
        "the token limit",
        ["One two three four five."],
        ["assistant: One two th"],
        stop="length",
        options={"max_tokens": 2},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_loop(row):
    agent = Agent(scripted(*row.outputs), row.tools, **row.options)
    history: list = []
    _, done = follow(agent, history=history)
    user, *rest = lines(done.messages)
    assert user == "user: Go."
    assert rest == row.expected
    assert done.stop_reason == row.stop
    assert list(done.messages) == history
    assert build_request(history, chat_template.TARGET), "the conversation can go on"
    answers = [message for message in done.messages if isinstance(message, AssistantMessage)]
    assert done.turns == len(answers)
    assert done.usage.output == sum(message.usage.output for message in answers)
    assert done.usage.input == sum(message.usage.input for message in answers)
    assert done.message == answers[-1]


def test_a_repeated_round_keeps_its_pictures():
    picture = ImagePart.of(b"\x89PNG\r\n\x1a\n" + b"0" * 32)

    @tool
    def shot() -> ImagePart:
        return picture

    _, done = follow(Agent(scripted(block("shot()"), block("shot()"), "x"), [shot]))
    assert done.messages[2].results[0].content == (picture,)
    assert done.messages[4].results[0].content == (TextPart(text=REPEATED), picture)


def test_the_forced_answer_is_offered_no_tools():
    offered = []

    @middleware("before_model")
    def watch(request, run):
        offered.append([schema["function"]["name"] for schema in request.tools])

    agent = Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[watch], max_turns=1)
    events, _ = follow(agent)
    assert offered == [["add"], []]
    assert [event.tools for event in events if isinstance(event, TurnStarted)] == [True, False]


def test_events_in_order():
    agent = Agent(scripted("Let me see. " + block("add(a=1)", "nope()"), BROKEN, "Two."), [add])
    events, _ = follow(agent)
    kinds = (TurnStarted, Text, CallEnd, TurnEnded, ToolStarted, ToolEnded, Malformed, Retried)
    named = [type(event).__name__ for event in events if isinstance(event, kinds)]
    squeezed = [name for at, name in enumerate(named) if name != "Text" or named[at - 1] != "Text"]
    assert squeezed == [
        *("TurnStarted", "Text", "CallEnd", "CallEnd", "TurnEnded", "ToolEnded", "ToolStarted", "ToolEnded"),
        *("TurnStarted", "Malformed", "TurnEnded", "Retried"),
        *("TurnStarted", "Text", "TurnEnded"),
    ]
    unknown, added = (event for event in events if isinstance(event, ToolEnded))
    assert unknown.result.is_error
    assert "add" in unknown.result.text
    assert added.result.text == "2"


def test_the_whole_batch_is_gated_once_before_anything_runs():
    ran: list[str] = []
    asked: list[list[str]] = []

    @tool(side_effects=True)
    def touch(name: str) -> str:
        ran.append(name)
        return name

    @tool
    def free() -> str:
        ran.append("free")
        return "free"

    def approve(requests):
        asked.append([request.call.described_arguments for request in requests])
        assert ran == []
        return [Allow(), Allow(), Deny()]

    calls = block("free()", "touch(name='a')", "touch()", "touch(name='b')")
    events, done = follow(Agent(scripted(calls, "Done."), [touch, free], approvals=approve))
    assert asked == [['name="a"', "", 'name="b"']]
    assert sorted(ran) == ["a", "free"]
    (request,) = (event for event in events if isinstance(event, ApprovalAsked))
    assert [each.tool.name for each in request.requests] == ["touch"] * 3
    given = [event.decision for event in events if isinstance(event, ApprovalGiven)]
    assert given == [Allow(), Allow(), Deny()]
    assert [result.is_error for result in done.messages[2].results] == [False, False, True, True]


@pytest.mark.parametrize(("decision", "runs"), [(Allow(always=True), 3), (Deny(always=True), 0)])
def test_always(decision, runs):
    asked = []

    def approve(requests):
        asked.append(len(requests))
        return [decision] * len(requests)

    ran = []

    @tool(side_effects=True)
    def touch(n: int) -> int:
        ran.append(n)
        return n

    approvals = Approvals(approver=approve)
    outputs = (block("touch(n=1)"), block("touch(n=2)"), "Done.")
    follow(Agent(scripted(*outputs), [touch], approvals=approvals))
    follow(Agent(scripted(block("touch(n=3)"), "Done."), [touch], approvals=approvals))
    assert (asked, len(ran)) == ([1], runs)
    approvals.forget()
    follow(Agent(scripted(block("touch(n=3)"), "Done."), [touch], approvals=approvals))
    assert asked == [1, 1]


def test_always_does_not_undo_a_rule_that_denies():
    approvals = Approvals([Rule("deny", "write", {"path": "/*"})], approver(Allow(always=True)))
    agent = Agent(
        scripted(block("write(path='a')"), block("write(path='/b')"), "x"), [write], approvals=approvals
    )
    _, done = follow(agent)
    assert [message.results[0].is_error for message in done.messages[2:5:2]] == [False, True]


@pytest.mark.parametrize("answer", [[], [Allow(), Allow()], None, ["yes"], [True]])
def test_an_approver_that_answers_nonsense(answer):
    agent = Agent(scripted(block("write(path='a')"), "x"), [write], approvals=lambda requests: answer)
    history: list = []
    *_, last = agent.run("Go.", history=history)
    assert isinstance(last.error, UsageError)
    assert "approver" in str(last.error)
    assert lines(history)[-1] == f"tool: ! {NOT_RUN}", "the call has a result, and it is not that it ran"


def test_edited_arguments_are_checked_too():
    agent = Agent(scripted(block("write(path='a')"), "x"), [write], approvals=approver(Edit({"way": 1})))
    _, done = follow(agent)
    (result,) = done.messages[2].results
    assert result.is_error
    assert "way" in result.text


def test_a_tool_of_somebodys_own_that_raises_where_it_should_not():
    def bind(arguments):
        raise KeyError("x")

    def normalise(arguments):
        raise RuntimeError("no")

    broken = Tool(name="broken", description="", parameters={"type": "object"}, bind=bind)
    odd = Tool(
        name="odd",
        description="",
        parameters={"type": "object"},
        bind=lambda _: lambda _: "ran",
        normalise=normalise,
    )
    rules = [Rule("allow", "odd", {"a": "1"}), Rule("deny", "odd", {"a": "2"})]
    calls = block("broken()", "odd(a=1)", "odd(a=2)", "odd(a=3)")
    _, done = follow(Agent(scripted(calls, "Done."), [broken, odd], approvals=rules))
    assert lines(done.messages)[2] == (
        "tool: ! KeyError: 'x' | ran | ! Denied: a rule forbids this call. The call was not run. | ran"
    )


def test_a_middleware_that_changes_a_call_does_not_pass_by_rules():
    @middleware("around_tool")
    def change(call, proceed, run):
        return proceed(call.model_copy(update={"arguments": {"path": "/etc/x"}, "arguments_text": ""}))

    rules = [Rule("deny", "write", {"path": "/etc/*"}), Rule("allow", "write")]
    agent = Agent(scripted(block("write(path='a')"), "x"), [write], approvals=rules, middleware=[change])
    _, done = follow(agent)
    assert lines(done.messages)[2] == "tool: ! Denied: a rule forbids this call. The call was not run."


def test_why_the_model_is_asked_again():
    outputs = ("<|tool_call_end|>", BROKEN, block("add(a=1)"), block("add(a=1)"), block("add(a=1)"), "x")
    events, done = follow(Agent(scripted(*outputs), [add]))
    assert [event.why for event in events if isinstance(event, Retried)] == [
        *("empty", "malformed", "same_calls", "same_calls", "repeated")
    ]
    assert done.stop_reason == "repeated"


def test_an_answer_of_a_hook_may_say_that_it_is_cancelled():
    @middleware("before_model")
    def stop(request, run):
        return AssistantMessage(content="No.", stop_reason="cancelled")

    _, done = follow(Agent(scripted("x"), [add], middleware=[stop]))
    assert (done.stop_reason, done.turns) == ("cancelled", 1)


def test_every_call_has_its_end():
    events, _ = follow(Agent(scripted(block("add(a=1)"), block("add(a=2)")), [add], max_turns=1))
    assert [event.result.is_error for event in events if isinstance(event, ToolEnded)] == [False, True]
