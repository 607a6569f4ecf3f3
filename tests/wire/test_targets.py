"""What the builder sends to each wire: all that it carries, and nothing of what it refuses."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from localagent.errors import Unsupported
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from localagent.prompt.request import build_request
from localagent.wire import anthropic, gemini, openai

WIRES = {"openai": openai, "anthropic": anthropic, "google": gemini}
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SENT = {
    "openai": {*PICTURES, "application/pdf", "audio/wav", "audio/mpeg"},
    "anthropic": {*PICTURES, "application/pdf", "text/plain"},
    "google": {
        *(
            "image/png",
            "image/jpeg",
            "image/webp",
            "image/heic",
            "image/heif",
            "application/pdf",
            "text/plain",
        ),
        *("audio/wav", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"),
        *("video/mp4", "video/mpeg", "video/mov", "video/avi", "video/x-flv", "video/mpg", "video/webm"),
        *("video/wmv", "video/3gpp"),
    },
}
"""The media types that each API takes, by its documentation."""
OTHERS = {"image/bmp", "image/svg+xml", "audio/amr", "video/quicktime", "text/html", "application/zip"}


def sent(wire: ModuleType, *messages: Message) -> Any:
    return wire.to_wire(build_request(messages, wire.TARGET).messages)


@pytest.mark.parametrize("name", WIRES)
def test_media_go_out_where_the_api_takes_their_type(name: str) -> None:
    wire = WIRES[name]
    assert wire.TARGET.media_types == SENT[name]
    for kind in sorted(set.union(*SENT.values()) | OTHERS):
        part = (AudioPart if kind.startswith("audio/") else ImagePart)(data=b"??", media_type=kind)
        if kind in SENT[name]:
            (message,) = build_request([UserMessage(content=(part,))], wire.TARGET).messages
            assert message.content == (part,)
        else:
            with pytest.raises(Unsupported, match=f"the .* wire takes no {kind}".replace("+", ".")):
                build_request([UserMessage(content=(part,))], wire.TARGET)


def test_instructions_that_come_later_are_joined_where_there_is_one_place_for_them() -> None:
    history = [SystemMessage.text("A"), UserMessage.text("x"), SystemMessage.text("B"), UserMessage.text("y")]
    assert [turn["role"] for turn in sent(openai, *history)] == ["system", "user", "system", "user"]
    payload = sent(anthropic, *history)
    assert "A" in str(payload["system"]) and "B" in str(payload["system"])
    assert [turn["role"] for turn in payload["messages"]] == ["user", "user"]
    payload = sent(gemini, *history)
    assert "A" in str(payload["systemInstruction"]) and "B" in str(payload["systemInstruction"])
    assert [turn["role"] for turn in payload["contents"]] == ["user", "user"]


THOUGHTS = {
    "plain": ReasoningPart(text="plain"),
    "signed": ReasoningPart(text="signed", signature="s"),
    "encrypted": ReasoningPart(encrypted="encrypted"),
    "redacted": ReasoningPart(encrypted="redacted", redacted=True),
}


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("openai", {"plain", "signed", "encrypted", "redacted"}),
        ("anthropic", {"signed", "redacted"}),
        ("google", {"plain", "signed"}),
    ],
)
def test_reasoning_goes_back_beside_calls_to_whom_it_came_from(name: str, forms: set[str]) -> None:
    call = ToolCallPart(id="a", name="f")
    result = ToolMessage.from_result(call.result("x"))
    for form, thought in THOUGHTS.items():
        own = thought if form == "plain" else thought.model_copy(update={"provider": name})
        other = thought.model_copy(update={"provider": "another"})
        for part, goes in ((own, form in forms), (other, False)):
            answer = AssistantMessage(content=(part, "Yes.", call))
            assert (form in str(sent(WIRES[name], UserMessage.text("x"), answer, result))) is goes, form
            without = AssistantMessage(content=(part, "Yes."))
            assert form not in str(sent(WIRES[name], UserMessage.text("x"), without)), "nothing hangs on it"


@pytest.mark.parametrize(
    ("name", "ids"),
    [("openai", ["call", "a", "a"]), ("anthropic", ["call", "a", "a_2"]), ("google", ["", "a", "a"])],
)
def test_calls_have_the_ids_that_the_api_wants(name: str, ids: list[str]) -> None:
    history: list[Message] = []
    for call_id in ("", "a", "a"):
        call = ToolCallPart(id=call_id, name="f")
        history += [AssistantMessage(content=(call,)), ToolMessage.from_result(call.result("x"))]
    request = build_request(history, WIRES[name].TARGET)
    calls = [
        message.tool_calls[0].id for message in request.messages if isinstance(message, AssistantMessage)
    ]
    results = [message.results[0].call_id for message in request.messages if isinstance(message, ToolMessage)]
    assert calls == results == ids


@pytest.mark.parametrize("name", WIRES)
def test_what_cannot_be_sent_is_told_of_by_the_name_of_the_wire(name: str) -> None:
    title = {"openai": "the OpenAI wire", "anthropic": "the Anthropic wire", "google": "the Gemini wire"}
    assert (WIRES[name].TARGET.name, WIRES[name].TARGET.provider) == (title[name], name)
