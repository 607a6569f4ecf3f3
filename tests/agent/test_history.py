"""What a run starts from and adds: open calls are answered first, and what cannot run is refused."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest

from localagent.agent import Agent, Approvals, ClipResults, RunFailed, middleware
from localagent.agent.history import INTERRUPTED, ListHistory
from localagent.agent.slot import NOT_RUN
from localagent.errors import InvalidTool, SaveFailed, UsageError
from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt.request import build_request
from localagent.wire import chat_template
from tests.agent.replaying import block, follow, lines, scripted
from tests.agent.sample_tools import BROKEN, add, asked, fail


def test_calls_with_the_same_id_are_paired_by_position():
    @middleware("after_model")
    def collide(message, run):
        parts = [
            part.model_copy(update={"id": "call_0"}) if isinstance(part, ToolCallPart) else part
            for part in message.content
        ]
        return message.model_copy(update={"content": tuple(parts)})

    outputs = (block("add(a=1)", "add(a=2)"), block("add(a=3)", "fail(how='tool')"), "Done.")
    _, done = follow(Agent(scripted(*outputs), [add, fail], middleware=[collide]))
    sent = build_request(done.messages, chat_template.TARGET).messages
    assert [[result.text for result in message.results] for message in sent if message.role == "tool"] == [
        ["2", "3"],
        ["4", "the cat sleeps"],
    ]


def test_history_grows_and_goes_on():
    history: list = []
    agent = Agent(scripted("One.", "Two."), instructions="Be brief.")
    follow(agent, "a", history=history)
    _, done = follow(agent, "b", history=history)
    assert lines(history) == ["user: a", "assistant: One.", "user: b", "assistant: Two."]
    assert lines(done.messages) == ["user: b", "assistant: Two."]
    shown = agent.model.host.rendered[-1]
    assert [turn["role"] for turn in shown] == ["system", "user", "assistant", "user"]


def test_w17_dicts_of_openais_api_are_a_history():
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    history: list = [
        {"role": "user", "content": "One more?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        AssistantMessage.text("Two."),
    ]
    follow(Agent(scripted("Three."), [add]), {"role": "user", "content": "And now?"}, history=history)
    assert lines(history) == [
        "user: One more?", "assistant: add(a=1)", "tool: 2", "assistant: Two.", "user: And now?", "assistant: Three.",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="wizard"):
        list(Agent(scripted("Hi.")).run("a", history=[{"role": "wizard", "content": "x"}]))


@pytest.mark.parametrize("prompt", [UserMessage.text("hi"), [UserMessage.text("hi")], "hi"])
def test_prompts(prompt):
    _, done = follow(Agent(scripted("Hi.")), prompt)
    assert lines(done.messages) == ["user: hi", "assistant: Hi."]
    assert done.messages[0].timestamp is not None


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], ["assistant: Done."]),
        ([asked("add", "add")], [f"tool: ! {INTERRUPTED} | ! {INTERRUPTED}", "assistant: Done."]),
        ([AssistantMessage.text("")], ["assistant: Done."]),
    ],
)
def test_going_on_where_a_program_ended(before, expected):
    history = [UserMessage.text("Go."), *before]
    _, done = follow(Agent(scripted("Done."), [add]), None, history=history)
    assert lines(done.messages) == expected


def test_an_interrupted_conversation_takes_a_new_prompt():
    history = [UserMessage.text("Go."), asked("add")]
    _, done = follow(Agent(scripted("Done."), [add]), "And?", history=history)
    assert lines(done.messages) == [f"tool: ! {INTERRUPTED}", "user: And?", "assistant: Done."]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prompt": None}, "there is no conversation yet"),
        (
            {"prompt": None, "history": [UserMessage.text("a"), FlushMessage()]},
            "there is no conversation yet",
        ),
        ({"prompt": None, "history": [SystemMessage.text("a")]}, "there is no conversation yet"),
        ({"prompt": None, "history": [UserMessage.text("a"), AssistantMessage.text("b")]}, "has its answer"),
        ({"prompt": ""}, "the prompt is empty"),
        (
            {"prompt": "a", "history": "b"},
            "history must be a list of messages or a session, not str",
        ),
        ({"prompt": "a", "history": ["b"]}, "'b' in the history is no message: see localagent.messages"),
    ],
)
def test_what_cannot_be_run(arguments, says):
    with pytest.raises(UsageError, match=says):
        Agent(scripted("x")).run(**arguments)


NO_APPROVALS = (
    "it must be Approvals(...), a list of Rule(...), or a function that decides about a list of "
    "ApprovalRequest"
)
NO_MIDDLEWARE = "no middleware: it needs a method such as before_model, or the decorator @middleware("


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tools": "add"}, "tools must be a list, not 'add': put the tool in brackets"),
        ({"tools": b"add"}, "tools must be a list, not b'add': put the tool in brackets"),
        ({"tools": 3}, "tools must be a list, not 3: put the tool in brackets"),
        ({"max_turns": 0}, "max_turns is '0': it must be a whole number, 1 or more"),
        ({"max_turns": 1.0}, "max_turns is '1.0': it must be a whole number, 1 or more"),
        ({"max_turns": "9" * 41}, f"max_turns is '{'9' * 40}': it must be a whole number, 1 or more"),
        ({"max_rescues": -1}, "max_rescues is '-1': it must be a whole number, 0 or more"),
        ({"max_calls": 0}, "max_calls is '0': it must be a whole number, 1 or more"),
        ({"max_parallel": True}, "max_parallel is 'True': it must be a whole number, 1 or more"),
        ({"max_parallel": 0}, "max_parallel is '0': it must be a whole number, 1 or more"),
        ({"tool_timeout": 0}, "tool_timeout is '0': it must be seconds above 0, or None"),
        ({"tool_timeout": math.inf}, "tool_timeout is 'inf': it must be seconds above 0, or None"),
        ({"tool_timeout": math.nan}, "tool_timeout is 'nan': it must be seconds above 0, or None"),
        ({"tool_timeout": True}, "tool_timeout is 'True': it must be seconds above 0, or None"),
        ({"tool_timeout": "1" * 41}, f"tool_timeout is '{'1' * 40}': it must be seconds above 0, or None"),
        ({"name": 3}, "name is 3: it must be text"),
        ({"instructions": ["a"]}, "instructions is ['a']: it must be text"),
        ({"stop_after": "add"}, "stop_after is 'add': it must be a list of names of tools"),
        ({"stop_after": 3}, "stop_after is 3: it must be a list of names of tools"),
        ({"stop_after": ["add", 3]}, "stop_after is ['add', 3]: it must be a list of names of tools"),
        ({"stop_after": ["x"]}, "stop_after names 'x': the agent has no such tool; there are: none"),
        (
            {"stop_after": ["add", "x"], "tools": [add, fail]},
            "stop_after names 'x': the agent has no such tool; there are: add, fail",
        ),
        ({"middleware": add}, "middleware must be a list: put it in brackets"),
        ({"middleware": "add"}, "middleware must be a list: put it in brackets"),
        ({"middleware": [3]}, f'3 is {NO_MIDDLEWARE}"before_model")'),
        ({"middleware": [ClipResults]}, f'{ClipResults!r:.60} is {NO_MIDDLEWARE}"before_model")'),
        ({"approvals": 3}, f"approvals is 3: {NO_APPROVALS}"),
        ({"approvals": "add"}, f"approvals is 'add': {NO_APPROVALS}"),
        ({"approvals": Approvals}, f"approvals is {Approvals!r:.60}: {NO_APPROVALS}"),
        ({"approvals": [3]}, "3 among the rules of approvals is no Rule(...)"),
    ],
)
def test_what_is_no_agent(options, says):
    with pytest.raises(UsageError) as refused:
        Agent(scripted("x"), **options)
    assert str(refused.value) == says


@pytest.mark.parametrize("tools", [[add, add], [3]])
def test_what_are_no_tools(tools):
    with pytest.raises(InvalidTool):
        Agent(scripted("x"), tools)


LIMITS = ("max_turns", "max_rescues", "max_calls", "max_parallel", "tool_timeout", "sequential", "stop_after")


def test_the_limits_of_an_agent():
    agent = Agent(scripted("x"))
    assert [getattr(agent, name) for name in LIMITS] == [10, 2, 128, 32, 120.0, False, ()]
    least = {"max_turns": 1, "max_rescues": 0, "max_calls": 1, "max_parallel": 1, "tool_timeout": 0.1}
    agent = Agent(scripted("x"), **least)
    assert {name: getattr(agent, name) for name in least} == least
    assert Agent(scripted("x"), tool_timeout=None).tool_timeout is None


class TakesNoResults(ListHistory):
    """A conversation that takes no results of tools, only what the loop makes up in their place."""

    def append(self, message):
        if message.role == "tool" and message.source is None:
            raise SaveFailed("too large")
        super().append(message)


@pytest.mark.parametrize(("ran", "told"), [(True, INTERRUPTED), (False, NOT_RUN)])
def test_of_results_that_cannot_be_kept_it_is_said_whether_the_calls_may_have_run(ran, told):
    kept: list = []

    @middleware("on_message")
    def stop(message, run):
        if not ran and message.role == "assistant":
            raise SaveFailed("before any call")

    agent = Agent(scripted(block("add(a=1)"), "Done."), [add], middleware=[stop])
    *_, last = agent.run("Go.", history=TakesNoResults(kept))
    assert isinstance(last, RunFailed)
    assert lines(kept)[-1] == f"tool: ! {told}"


# -- identity -------------------------------------------------------------------------------------------------


def test_everything_that_is_kept_has_an_id_and_a_time():
    calls = tuple(ToolCallPart(id=f"c{n}", name="add") for n in range(2))
    history = [UserMessage.text("a"), AssistantMessage(content=calls)]
    before = len(history)
    prompt = [ToolMessage.from_result(calls[0].result("1")), SystemMessage.text("s"), UserMessage.text("b")]
    agent = Agent(scripted(BROKEN, block("add(a=1)"), "Done."), [add])
    _, done = follow(agent, prompt, history=history)
    roles = "tool tool system user assistant rescue assistant tool assistant"
    assert [message.role for message in done.messages] == roles.split()
    assert history[before:] == list(done.messages)
    ids = [message.id for message in done.messages]
    assert all(re.fullmatch("msg_[0-9a-f]{16}", found or "") for found in ids), ids
    assert len(set(ids)) == len(ids)
    assert all(message.timestamp is not None for message in done.messages)
    assert [message.id for message in prompt] == [None] * 3, "what the caller gave stays as it was"


def test_ids_and_times_that_a_message_has_are_kept():
    said = UserMessage(content="a", id="mine", timestamp=datetime(2020, 1, 2, tzinfo=UTC))
    answer = AssistantMessage(content="Cached.", id="cached", timestamp=datetime(2020, 1, 3, tzinfo=UTC))

    @middleware("before_model")
    def cached(request, run):
        return answer

    events, done = follow(Agent(scripted("never"), middleware=[cached]), said)
    assert [(message.id, message.timestamp) for message in done.messages] == [
        ("mine", said.timestamp),
        ("cached", answer.timestamp),
    ]
    assert events[-1].message == done.message


def test_what_hooks_make_gets_an_id_and_a_time_too():
    @middleware("before_model")
    def cached(request, run):
        return AssistantMessage.text("Cached.")

    @middleware("after_model")
    def other(message, run):
        seen.append(message)
        return AssistantMessage.text("Other.")

    @middleware("on_message")
    def hear(message, run):
        heard.append(message)

    seen, heard = [], []
    events, done = follow(Agent(scripted("never"), middleware=[cached, other, hear]))
    assert seen[0].id
    assert done.message.id
    assert done.message.id != seen[0].id
    assert done.message.timestamp is not None
    assert events[-1].message is done.message is done.messages[-1] is heard[-1]


def test_a_summary_in_a_list_has_an_id_and_a_time():
    messages = [UserMessage.text("a"), AssistantMessage.text("b")]
    ListHistory(messages).compact("Short.", 1)
    assert re.fullmatch("msg_[0-9a-f]{16}", messages[0].id)
    assert messages[0].timestamp is not None
