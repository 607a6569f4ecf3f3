"""The input of the responses API: which messages a list of items is."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.errors import InvalidMessage, UnpairedResult
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    MalformedToolCallPart,
    ReasoningPart,
    TextPart,
    ToolMessage,
    UnknownPart,
)
from localagent.prompt.request import build_request
from localagent.prompt.variables import TARGET
from localagent.wire.openai import read_input


def call(call_id: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments, **fields}


def output(call_id: str, text: Any = "4") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


USER = {"role": "user", "content": "Hi"}


def line(message: Any) -> str:
    if isinstance(message, AssistantMessage):
        parts = [
            message.reasoning and f"({message.reasoning})",
            message.text,
            *(c.id for c in message.tool_calls),
        ]
        return "assistant: " + " ".join(filter(None, parts))
    if isinstance(message, ToolMessage):
        return "tool: " + " ".join(result.call_id for result in message.results)
    return f"{message.role}: {message.text}"


@pytest.mark.parametrize(
    ("items", "lines"),
    [
        ("Hi", ["user: Hi"]),
        ([USER, {"type": "message", **USER}], ["user: Hi", "user: Hi"]),
        ([{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}], ["system: D", "system: S"]),
        ([call("a"), call("b"), output("a"), output("b")], ["assistant: a b", "tool: a b"]),
        ([call("a"), output("a"), call("b"), output("b")], ["assistant: a", "tool: a", "assistant: b", "tool: b"]),
        ([call("a"), call("b"), output("b"), USER, output("a")], ["assistant: a b", "tool: b a", "user: Hi"]),
        ([call("a"), output("a"), call("a"), output("a")], ["assistant: a", "tool: a", "assistant: a", "tool: a"]),
        (
            [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
             {"role": "assistant", "content": [{"type": "output_text", "text": "t"}]}, call("a"), output("a"),
             {"role": "assistant", "content": "u"}],
            ["assistant: (r) t a", "tool: a", "assistant: u"],
        ),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, USER], ["assistant: (s)", "user: Hi"]),
    ],
)  # fmt: skip
def test_runs_of_items_are_messages_and_results_follow_their_calls(items, lines):
    messages, left_out = read_input(items)
    assert (list(map(line, messages)), left_out) == (lines, [])
    build_request(messages, TARGET)


def test_items_of_tools_that_only_the_api_has_are_left_out_and_named():
    items = [USER, {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "mcp_list_tools"}]
    messages, left_out = read_input(items)
    assert (len(messages), left_out) == (1, ["web_search_call", "mcp_list_tools"])


def test_a_custom_call_is_a_function_with_one_text_and_a_namespace_is_part_of_the_name():
    custom = {"type": "custom_tool_call", "call_id": "a", "name": "sh", "input": "ls -l", "namespace": "os"}
    results = {
        "type": "custom_tool_call_output",
        "call_id": "a",
        "output": [{"type": "input_text", "text": "x"}],
    }
    (said, answer), _ = read_input([custom, results])
    assert [(part.name, part.arguments) for part in said.tool_calls] == [("os__sh", {"input": "ls -l"})]
    assert [(result.name, result.text) for result in answer.results] == [("os__sh", "x")]


def test_arguments_that_are_no_object_make_a_malformed_call_whose_result_still_finds_it():
    (said, answer), _ = read_input([call("a", '{"x": '), output("a", "cannot be read")])
    (part,) = said.content
    assert isinstance(part, MalformedToolCallPart) and part.raw == '{"name": "f", "arguments": {"x": }'
    assert answer.results[0].call_id == part.id == "a"


def test_images_files_and_parts_nobody_knows():
    content = [
        {"type": "input_image", "image_url": "data:image/png;base64,eA==", "detail": "low"},
        {"type": "input_image", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_file", "file_data": "data:application/pdf;base64,eA==", "filename": "a.pdf"},
        {"type": "input_smell", "of": "roses"},
    ]
    (message,), _ = read_input([{"role": "user", "content": content}])
    first, second, third, fourth = message.content
    assert (
        isinstance(first, ImagePart)
        and first.data == b"x"
        and first.provider_metadata == {"openai": {"detail": "low"}}
    )
    assert isinstance(second, ImagePart) and second.url == "https://example.org/a.png"
    assert isinstance(third, ImagePart) and third.media_type == "application/pdf"
    assert isinstance(fourth, UnknownPart) and fourth.kind == "openai:input_smell"


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        (3, InvalidMessage, r"^input\[0\]: a number where an object"),
        ({"type": 3}, InvalidMessage, r"^input\[0\]\.type: a number"),
        ({"role": "wizard", "content": "x"}, InvalidMessage, r"^input\[0\]\.role: 'wizard' is no role"),
        ({"role": "user", "content": None}, InvalidMessage, r"^input\[0\]\.content: nothing"),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            InvalidMessage,
            r"^input\[0\]\.content\[0\]\.text: missing",
        ),
        (
            {"role": "user", "content": [{"type": "input_image"}]},
            InvalidMessage,
            r"^input\[0\]\.content\[0\]\.image_url",
        ),
        (
            {"type": "function_call", "name": "f", "arguments": "{}"},
            InvalidMessage,
            r"^input\[0\]\.call_id: missing",
        ),
        (
            {"type": "function_call", "call_id": "a", "arguments": "{}"},
            InvalidMessage,
            r"^input\[0\]\.name: missing",
        ),
        (output("x"), UnpairedResult, r"^input\[0\]\.call_id: .*'x'"),
        ({"type": "item_reference", "id": "x"}, InvalidMessage, r"^input\[0\]\.type: no items are kept"),
        ({"type": "compaction"}, InvalidMessage, r"^input\[0\]\.type: only the server"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_path(item, error, said):
    with pytest.raises(error, match=said):
        read_input([item])


def test_a_result_answers_one_call():
    with pytest.raises(UnpairedResult):
        read_input([call("a"), output("a"), output("a")])


def reasoning(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", **fields}


def texts(kind: str, *said: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": each} for each in said]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": texts("reasoning_text", "a", "b"), "summary": texts("summary_text", "s")}, "ab"),
        ({"summary": texts("summary_text", "s", "t")}, "s\n\nt"),
        ({"summary": [], "encrypted_content": "localagent:kept"}, "kept"),
        ({"content": texts("reasoning_text", "a"), "encrypted_content": "localagent:kept"}, "a"),
        ({"summary": texts("summary_text", "s"), "encrypted_content": "of another server"}, "s"),
        ({"summary": [], "encrypted_content": "of another server"}, None),
        ({"summary": [], "encrypted_content": "localagent:"}, None),
        ({}, None),
    ],
)
def test_reasoning_is_what_can_be_read_of_it(fields: dict[str, Any], text: str | None) -> None:
    (message,), _ = read_input([reasoning(**fields)])
    assert message.content == (() if text is None else (ReasoningPart(text=text),))


DATA_URL = "data:application/pdf;base64,JVBERi0="


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "input_text", "text": "x"}, TextPart(text="x")),
        ({"type": "summary_text", "text": "x", "more": 1}, TextPart(text="x")),
        ({"type": "refusal", "refusal": "no"}, TextPart(text="no")),
        ({"type": "input_image", "file_id": "f"}, ImagePart(file_id="f")),
        ({"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"},
         ImagePart(data=b"%PDF-", provider_metadata={"openai": {"filename": "a.pdf"}})),
        ({"type": "input_file", "file_data": DATA_URL}, ImagePart(data=b"%PDF-")),
        ({"type": "input_file", "file_url": "https://a.b/c.pdf"}, ImagePart(url="https://a.b/c.pdf")),
        ({"type": "input_file", "file_id": "f"}, ImagePart(file_id="f")),
    ],
)  # fmt: skip
def test_the_parts_of_a_message(block: dict[str, Any], part: Any) -> None:
    (message,), _ = read_input([{"role": "user", "content": [block]}])
    assert message.content == (part,)
    (_, answer), _ = read_input([call("a"), output("a", [block])])
    assert isinstance(answer, ToolMessage) and answer.results[0].content == (part,)


def test_calls_of_every_kind_and_their_results() -> None:
    items = [
        call("a", '{"x":1}', namespace="git", id="fc_1"),
        {"type": "custom_tool_call", "call_id": "b", "name": "run", "input": "ls", "namespace": "os__"},
        output("b", "files"),
        {"type": "custom_tool_call_output", "call_id": "a", "output": "4"},
    ]
    (said, answer), _ = read_input(items)
    assert isinstance(said, AssistantMessage) and isinstance(answer, ToolMessage)
    assert [(each.id, each.name, each.arguments, each.provider_metadata) for each in said.tool_calls] == [
        ("a", "git__f", {"x": 1}, {}),
        ("b", "os__run", {"input": "ls"}, {}),
    ]
    assert [(each.call_id, each.name, each.text) for each in answer.results] == [
        ("b", "os__run", "files"),
        ("a", "git__f", "4"),
    ]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "item_reference", "id": "x"}, "input[0].type: no items are kept: send it whole, as clients do with store: false"),
        ({"type": "compaction_summary"}, "input[0].type: only the server that wrote this compaction can read it"),
        ({"role": "x" * 90, "content": "a"}, f"input[0].role: '{'x' * 59} is no role: system, developer, user, assistant"),
        (output("b"), "input[0].call_id: no call before it has the id 'b'"),
    ],
)  # fmt: skip
def test_what_is_said_of_items_that_cannot_be_read(item: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidMessage, UnpairedResult)) as caught:
        read_input([item])
    assert str(caught.value) == said


def test_what_was_left_out_is_told_in_its_order() -> None:
    items = [
        {"type": "web_search_call"},
        USER,
        {"type": "image_generation_call"},
        {"type": "web_search_call"},
    ]
    messages, left_out = read_input(items)
    assert [line(each) for each in messages] == ["user: Hi"]
    assert left_out == ["web_search_call", "image_generation_call", "web_search_call"]
    assert read_input([]) == ([], [])
