"""One part that a wire cannot read does not cost the conversation, and goes back as it came."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from localagent.errors import InvalidMessage, UnpairedResult, Unsupported
from localagent.messages import (
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    FlushMessage,
    MalformedToolCallPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    UserMessage,
    dump_messages,
    load_messages,
)
from localagent.prompt import build_request
from localagent.prompt.variables import to_wire as to_variables
from localagent.wire import anthropic, gemini, openai
from localagent.wire.extras import sign
from localagent.wire.folded import Waiting, fold, unfold
from parsers import DIALECTS

WIRES = {"openai": openai, "anthropic": anthropic, "google": gemini}


def turns(wire: ModuleType, *given: dict[str, Any]) -> Any:
    """A payload of these turns."""
    return [*given] if wire is openai else {"contents" if wire is gemini else "messages": [*given]}


def openai_calls(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def function(arguments: Any) -> dict[str, Any]:
    return openai_calls({"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}})


SMELL = {"type": "smell", "of": ["roses", None], "kind": "text"}
UNKNOWN = [
    ("openai", {"role": "user", "content": [{"type": "text", "text": "hi"}, SMELL]}, "openai:smell"),
    ("openai", {"role": "assistant", "content": [{"type": "text", "text": "hi"}, SMELL]}, "openai:smell"),
    ("openai", {"role": "assistant", "content": "", "reasoning_details": [{"type": "reasoning.dream", "of": 7}]},
     "openai.reasoning:reasoning.dream"),
    ("openai", {"role": "assistant", "content": "hi", "audio": {"id": "audio_1"}}, "openai.message:audio"),
    ("anthropic", {"role": "user", "content": [{"type": "text", "text": "hi"}, SMELL]}, "anthropic:smell"),
    ("anthropic", {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}}]},
     "anthropic:server_tool_use"),
    ("anthropic", {"role": "user", "content": [{"type": "image", "source": {"type": "smell"}}]}, "anthropic:image"),
    ("anthropic", {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": "x"}}]},
     "anthropic:document"),
    ("google", {"role": "model", "parts": [{"executableCode": {"code": "1", "language": "PYTHON"}}]}, "google:executableCode"),
    ("google", {"role": "user", "parts": [{"text": "hi"}, {"smell": {"of": "roses"}}]}, "google:smell"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "turn", "kind"), UNKNOWN)
def test_a_part_of_unknown_kind_is_kept_and_goes_back_as_it_came(name, turn, kind):
    wire = WIRES[name]
    messages = wire.from_wire(turns(wire, turn))
    (part,) = [part for message in messages for part in message.content if isinstance(part, UnknownPart)]
    assert part.kind == kind
    again = load_messages(dump_messages(messages))
    assert again == messages
    assert wire.to_wire(again) == turns(wire, turn)
    assert wire.to_wire(build_request(again, wire.TARGET).messages) == turns(wire, turn)
    for other in {*WIRES.values()} - {wire}:
        with pytest.raises(Unsupported, match=kind):
            other.to_wire(messages)


def test_an_unknown_detail_of_reasoning_keeps_its_place():
    details = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.dream"}]
    turn = {"role": "assistant", "content": "", "reasoning_details": [*details, details[0]]}
    assert openai.to_wire(openai.from_wire([turn])) == [turn]


def test_an_unknown_part_of_a_result_is_kept():
    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    block = {"type": "tool_reference", "tool_name": "g"}
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [block]}]}
    messages = anthropic.from_wire(turns(anthropic, asked, answer))
    assert isinstance(messages[1], ToolMessage)
    assert [part.kind for part in messages[1].results[0].parts] == ["anthropic:tool_reference"]
    assert anthropic.to_wire(messages) == turns(anthropic, asked, answer)


MALFORMED = [
    ("openai", function('{"x": 1'), '{"name": "f", "arguments": {"x": 1}'),
    ("openai", function("[1]"), '{"name": "f", "arguments": [1]}'),
    ("openai", function([1]), '{"name": "f", "arguments": [1]}'),
    ("openai", function('{"x": 1, "x": 2}'), '{"name": "f", "arguments": {"x": 1, "x": 2}}'),
    ("anthropic", {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": [1]}]},
     '{"name": "f", "input": [1]}'),
    ("google", {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "f", "args": "{}"}}]},
     '{"name": "f", "args": "{}"}'),
]  # fmt: skip
RESULTS = {
    "openai": {"role": "tool", "tool_call_id": "a", "content": "not run"},
    "anthropic": {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": "not run"}],
    },
    "google": {
        "role": "user",
        "parts": [{"functionResponse": {"id": "a", "name": "f", "response": {"error": "not run"}}}],
    },
}


@pytest.mark.parametrize(("name", "turn", "raw"), MALFORMED)
def test_arguments_that_are_no_object_make_a_malformed_call_whose_result_still_finds_it(name, turn, raw):
    wire = WIRES[name]
    said, answer = wire.from_wire(turns(wire, turn, RESULTS[name]))
    assert [part for part in said.content if not isinstance(part, MalformedToolCallPart)] == []
    (call,) = said.malformed_tool_calls
    assert (call.raw, call.name, call.id, call.reason) == (raw, "f", "a", "syntax")
    assert [result.text for result in answer.results] == ["not run"]
    sent = build_request([said, answer], wire.TARGET).messages  # as text, and what became of it
    assert raw in str(wire.to_wire(sent))


def test_a_call_of_unknown_type_keeps_its_id_and_its_words():
    custom = {"id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    said, answer = openai.from_wire([openai_calls(custom), RESULTS["openai"]])
    (call,) = said.malformed_tool_calls
    assert (call.id, call.reason) == ("a", "not_a_call")
    assert '"input": "ls"' in call.raw
    assert answer.results[0].call_id == "a"


def test_calls_in_older_forms_are_read():
    (said,) = openai.from_wire(
        [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]
    )
    assert [(call.name, call.id, call.arguments) for call in said.tool_calls] == [("f", "", {})]
    (said,) = openai.from_wire([function({"x": 1})])
    assert said.tool_calls[0].arguments == {"x": 1}


@pytest.mark.parametrize(
    "message",
    [CompactionSummaryMessage(content="x"), BranchSummaryMessage(content="x"), FlushMessage()],
    ids=lambda message: message.role,
)
def test_messages_of_sessions_are_refused_by_name(message):
    to_any = [openai.to_wire, anthropic.to_wire, gemini.to_wire, lambda m: to_variables(m, DIALECTS["lfm2"])]
    for to_wire in to_any:
        with pytest.raises(Unsupported, match=message.role):
            to_wire([message])


def test_reasoning_goes_out_flat_or_structured_but_not_both():
    flat, structured = (
        openai.from_wire([{"role": "assistant", "content": "x", "reasoning_content": "hm", **more}])
        for more in ({}, {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]})
    )
    assert openai.to_wire(flat)[0].keys() == {"role", "content", "reasoning_content"}
    assert openai.to_wire(structured)[0].keys() == {"role", "content", "reasoning_details"}


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ('{"sky": "blue", "at": null}', {"sky": "blue", "at": None}),
        ('{"sky":"blue"}', {"result": '{"sky":"blue"}'}),  # as an object it would not come back as it was
        ('{"result": 1}', {"result": {"result": 1}}),
        ("[1, 2]", {"result": "[1, 2]"}),
        ("{sunny}", {"result": "{sunny}"}),
        ("", {"result": ""}),
    ],
)
def test_a_result_that_is_an_object_stays_one_on_gemini(text, response):
    call = ToolCallPart(id="a", name="f")
    messages = [
        UserMessage(content="?"),
        AssistantMessage(content=(call,)),
        ToolMessage.from_result(call.result(text)),
    ]
    sent = gemini.to_wire(messages)
    assert sent["contents"][-1]["parts"][0]["functionResponse"]["response"] == response
    assert gemini.from_wire(sent)[-1].text == text


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("error", ["x", None, False, 0])
def test_an_object_that_speaks_of_an_error_is_a_failure_on_gemini_only_if_it_was_one(error, is_error):
    call = ToolCallPart(id="a", name="f")
    said = ToolMessage.from_result(call.result({"error": error, "code": 5}, is_error=is_error))
    sent = gemini.to_wire([AssistantMessage(content=(call,)), said])
    again = gemini.from_wire(sent)
    assert again[-1] == said
    assert gemini.to_wire(again) == sent


@pytest.mark.parametrize("value", [float("nan"), {1}, "\ud800"])
def test_what_is_not_json_beside_a_call_is_refused(value):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "more": value}
    with pytest.raises(InvalidMessage, match=r"tool_calls\[0\]"):
        openai.from_wire([openai_calls(call)])


def test_an_error_that_is_an_object_stays_one_on_gemini():
    call = ToolCallPart(id="a", name="f")
    failed = ToolMessage.from_result(call.result({"code": 7}, is_error=True))
    sent = gemini.to_wire([AssistantMessage(content=(call,)), failed])
    assert sent["contents"][-1]["parts"][0]["functionResponse"]["response"] == {"error": {"code": 7}}
    assert gemini.from_wire(sent)[-1] == failed


def test_a_message_that_a_wire_refuses_is_named_by_its_place_and_one_of_nothing_is_left_out():
    def write(message):
        if message.text == "bad":
            raise Unsupported("no such part")
        return [{"text": message.text}] if message.text else []

    good, empty, bad = (UserMessage.text(text) for text in ("good", "", "bad"))
    assert [*fold([empty, good, empty], write)] == [(good, [{"text": "good"}])]
    with pytest.raises(Unsupported, match=r"^message 2: no such part$"):
        [*fold([good, empty, bad], write)]
    system = SystemMessage.text("Be kind.")
    assert [message for message, _ in fold([system, good], write)] == [system, good]
    said = "message 1: a system message after others: build_request joins them into one, in front"
    with pytest.raises(Unsupported, match=f"^{said}$"):
        [*fold([good, system], write)]


def test_results_wait_for_no_calls_but_those_of_the_last_turn():
    def asked(*names):
        return AssistantMessage(content=tuple(ToolCallPart(id=name, name=f"f{name}") for name in names))

    def result(call_id, name=""):
        return ToolResultPart(call_id=call_id, name=name, content="x")

    waiting = Waiting()
    waiting.call(asked("a", "b", "c"))
    first = waiting.answer([result("c"), result("a", "given")], "here")
    assert [(each.call_id, each.name) for each in first.results] == [("c", "fc"), ("a", "given")]
    with pytest.raises(UnpairedResult, match=r"^there: .*'a'"):
        waiting.answer([result("a")], "there")
    assert waiting.answer([result("b")], "here").results[0].name == "fb"
    waiting.call(asked("d"))
    waiting.call(asked("e"))
    with pytest.raises(UnpairedResult):
        waiting.answer([result("d")], "there")
    text = TextPart(text="y")
    messages = [*unfold([text, result("e"), text, text], waiting, "here")]
    assert [type(message) for message in messages] == [UserMessage, ToolMessage, UserMessage]
    assert messages[2].content == (text, text)
    assert [*unfold([], waiting, "here")] == [UserMessage(content=())]


def test_reasoning_says_whose_it_is_where_only_its_provider_can_check_or_read_it() -> None:
    whose = {
        "a signature": {"text": "b", "signature": "s"},
        "nothing": {"text": "c"},
        "a code": {"encrypted": "e"},
    }
    parts = (TextPart(text="a"), *(ReasoningPart(**fields) for fields in whose.values()))
    signed = sign(parts, "google")
    assert [part.provider for part in signed[1:]] == ["google", None, "google"]
    assert signed[0] == parts[0] and "provider" not in dict(signed[0])
