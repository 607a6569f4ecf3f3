"""What is asked of a model is asked whole, in a thread and on a loop, and what is no question is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest

from localagent.chat_model import UNKNOWN_CONTEXT, as_conversation
from localagent.control import Control, TurnOptions
from localagent.errors import UsageError
from localagent.hosts.sampling import Sampling
from localagent.messages import AssistantMessage, Message, SystemMessage, UserMessage
from localagent.model import Model
from tests.agent.words import wordy

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def ask(model: Model, how: str, *arguments, **options) -> AssistantMessage:
    if how == "respond":
        return model.respond(*arguments, **options)
    return asyncio.run(model.arespond(*arguments, **options))


@pytest.mark.parametrize("how", ["respond", "arespond"])
def test_a_question_is_asked_whole(how):
    model = wordy("One two three four.")
    answer = ask(model, how, "How many?", system="Be brief.", tools=[TOOL], max_tokens=2)
    assert model.host.asked == ["tools: look\nsystem: Be brief.\nuser: How many?"]
    assert (answer.text.strip(), answer.stop_reason) == ("One two", "length")
    cancel = threading.Event()
    cancel.set()
    assert ask(model, how, "And now?", cancel=cancel).stop_reason == "cancelled"
    assert ask(model, how, [UserMessage.text("a"), {"role": "user", "content": "b"}]).text
    assert model.host.asked[-1] == "user: a\nuser: b"


@pytest.mark.parametrize("how", ["stream", "astream"])
def test_what_is_wrong_with_a_question_is_said_at_once(how):
    ask = getattr(wordy("x"), how)
    for arguments, options in (
        (("",), {}),
        (("a",), {"colour": 3}),
        (("a",), {"tool_choice": "look"}),
        (("a",), {"tools": [3]}),
        (("a",), {"max_tokens": 0}),
    ):
        with pytest.raises(UsageError):
            ask(*arguments, **options)


def test_the_options_of_a_turn():
    model = wordy("x")
    model.sampling = Sampling(temperature=0.5, max_tokens=9)
    assert model.turn_options({}) == (model.sampling, Control())
    assert model.turn_options({"max_tokens": 3, "strict": True, "thinking": False}) == (
        Sampling(temperature=0.5, max_tokens=3),
        Control(strict=True, thinking=False),
    )
    with pytest.raises(UsageError) as refused:
        model.turn_options({"colour": 3, "size": 4})
    known = ", ".join(TurnOptions.__annotations__)
    assert str(refused.value) == f"no sampling option 'colour'; the options are {known}"
    assert {"temperature", "max_tokens", "tool_choice", "end_thinking"} <= set(known.split(", "))


def test_a_model_is_closed_when_it_is_left():
    closed: list[bool] = []
    model = wordy("x")
    model.host.close = lambda: closed.append(True)
    with model as entered:
        assert entered is model
        assert (model.lanes, model.vision) == (model.host.lanes, False)
        assert closed == []
    assert closed == [True]
    with pytest.raises(ZeroDivisionError), model:
        _ = 1 // 0
    assert closed == [True, True]
    assert UNKNOWN_CONTEXT == 1 << 31


HELLO = UserMessage(content="hello")


@pytest.mark.parametrize(
    ("messages", "conversation"),
    [
        ("hello", [HELLO]),
        (HELLO, [HELLO]),
        ({"role": "user", "content": "hello"}, [HELLO]),
        ([HELLO, {"role": "assistant", "content": "hi"}], [HELLO, AssistantMessage(content="hi")]),
        ((each for each in [HELLO]), [HELLO]),
        ([], []),
    ],
)
def test_what_is_a_conversation(messages, conversation):
    def told(found: list[Message]) -> list[tuple[str, str]]:
        return [(message.role, message.text) for message in found]

    found = as_conversation(messages)
    assert told(found) == told(conversation)
    system = SystemMessage(content="Be brief.")
    assert told(as_conversation(found, "Be brief.")) == told([system, *conversation])
    assert told(as_conversation(found, "")) == told(conversation)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("", "the prompt is empty: say something to the model"),
        (" \n", "the prompt is empty: say something to the model"),
        (3, "messages must be text, a message or a list of messages, not 3"),
        (None, "messages must be text, a message or a list of messages, not None"),
        (b"hello", "messages must be text, a message or a list of messages, not b'hello'"),
        ([3], "3 is not a message: see localagent.messages"),
        (["hello"], "'hello' is not a message: see localagent.messages"),
    ],
)
def test_what_is_no_conversation(messages, says):
    with pytest.raises(UsageError) as refused:
        as_conversation(messages)
    assert str(refused.value) == says
