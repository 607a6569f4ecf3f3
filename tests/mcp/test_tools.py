"""A server's tool, what a call of it gives and what cannot be read of that, without a server."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from anyio import EndOfStream
from mcp_types import CallToolResult, Tool, jsonrpc_message_adapter
from pydantic import TypeAdapter, ValidationError

from localagent.errors import InvalidArguments, McpFailed
from localagent.mcp import McpServers
from localagent.mcp.config import ServerConfig, StdioServer
from localagent.mcp.incoming import Incoming, salvage, written
from localagent.mcp.tools import as_output, fingerprint, offered_name, offered_tool
from localagent.mcp.transport import LONGEST_EVENT
from localagent.messages import AudioPart, ImagePart, TextPart, ToolCallPart
from localagent.messages.media import MAX_BYTES
from localagent.tools import ToolContext

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"
ID3 = b"ID3\x04"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def output(*blocks: dict, **fields: Any):
    said = {"content": [*blocks], **fields}
    return as_output("server", "look", TypeAdapter(CallToolResult).validate_python(said))


@pytest.mark.parametrize(
    ("tool", "prefix", "name"),
    [
        ("look", True, "my_server_look"),
        ("look", False, "look"),
        ("a/b:c d.e-f_g\u00e9", False, "a_b_c_d.e-f_g_"),
    ],
)
def test_names_for_models(tool, prefix, name):
    assert offered_name("my server", tool, prefix) == name


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def file(**fields: Any) -> dict:
    return {"type": "resource", "resource": {"uri": "file:///x", **fields}}


def link(**fields: Any) -> dict:
    return {"type": "resource_link", "uri": "file:///x", "name": "x", **fields}


IMAGE = {"type": "image", "data": in_base64(PNG), "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": in_base64(ID3), "mimeType": "audio/mpeg"}
CONTENTS = [
    ((), ""),
    ((text("a"),), "a"),
    ((text("a"), text("b")), "a\nb"),
    ((IMAGE,), [ImagePart(data=PNG)]),
    ((text("a"), AUDIO), [TextPart(text="a"), AudioPart(data=ID3)]),
    ((file(text="words"),), "words"),
    ((file(blob=in_base64(PNG), mimeType="image/png"),), [ImagePart(data=PNG)]),
    ((file(blob=in_base64(ID3), mimeType="audio/mpeg"),), [AudioPart(data=ID3)]),
    ((file(blob=in_base64("grüße".encode()), mimeType="text/plain"),), "grüße"),
    ((file(blob=in_base64(b"{}"), mimeType="application/json"),), "{}"),
    ((file(blob=in_base64(b"x" * 1234), mimeType="a/b"),), "[the file file:///x: a/b, 1,234 bytes]"),
    ((file(blob=in_base64(b"x")),), "[the file file:///x: no known type, 1 bytes]"),
    ((file(blob=in_base64(b"\xff"), mimeType="text/plain"),), "[the file file:///x, which cannot be read]"),
    ((file(blob="x", mimeType="a/b"),), "[the file file:///x, which cannot be read]"),
    ((link(),), "file:///x (x)"),
    ((link(title="X", description="about", mimeType="a/b"),), "file:///x (X; about; a/b)"),
    ((link(name=""),), "file:///x"),
]


@pytest.mark.parametrize(("blocks", "content"), CONTENTS)
def test_what_comes_of_a_call(blocks, content):
    made = output(*blocks)
    assert made.content == content
    assert (made.is_error, made.terminate) == (False, False)
    assert made.metadata == {"mcp_server": "server", "mcp_tool": "look"}


@pytest.mark.parametrize(("kind", "noun"), [("image", "an image"), ("audio", "a recording")])
def test_media_that_cannot_be_read_are_named(kind, noun):
    made = output({"type": kind, "data": "?", "mimeType": f"{kind}/x"})
    assert made.content.startswith(f"[{noun} that cannot be read: ")
    assert made.content.endswith("]")


def test_what_else_a_result_says():
    made = output(structuredContent={"a": "ü"}, isError=True, _meta={"b": 1})
    assert (made.content, made.is_error) == ('{"a": "ü"}', True)
    assert made.metadata == {
        "mcp_server": "server", "mcp_tool": "look", "structured_content": {"a": "ü"}, "_meta": {"b": 1},
    }  # fmt: skip
    assert output(text("x"), structuredContent={"a": 1}).content == "x"
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    strict = output(text("x"), structuredContent={"a": deep}).metadata["structured_content"]
    assert strict == '{"a": ' + "[" * 200 + "1" + "]" * 200 + "}", "as text, which our messages can carry"


def listed(**fields: Any) -> Tool:
    return Tool.model_validate({"name": "look", "inputSchema": SCHEMA, **fields})


def offered(tool: Tool, prefix: bool = True, run: Any = None, **settings: Any):
    config = StdioServer(name="s", command="x", **settings)
    return offered_tool(config, tool, tool, prefix, run)


@pytest.mark.parametrize(
    ("said", "description"),
    [
        ({"description": "d", "title": "t", "annotations": {"title": "n"}}, "d"),
        ({"title": "t", "annotations": {"title": "n"}}, "t"),
        ({"annotations": {"title": "n"}}, "n"),
        ({"annotations": {}}, ""),
        ({}, ""),
    ],
)
def test_what_a_tool_says_of_itself(said, description):
    tool = listed(**said)
    made = offered(tool)
    assert (made.name, made.description, made.timeout) == ("s_look", description, None)
    assert made.origin == ("s", "x", "cwd=None", fingerprint(tool))
    assert fingerprint(None) == ""
    other = offered(listed(inputSchema={"type": "object"}), prefix=False, timeout=2.5)
    assert (other.name, other.timeout, other.parameters) == (
        "look",
        2.5,
        {"type": "object", "properties": {}},
    )


def test_a_call_is_passed_on_with_the_arguments_as_they_were_written():
    def run(*arguments):
        passed.append(arguments)
        return "done"

    passed: list = []
    tool, context = listed(), ToolContext(ToolCallPart(id="1", name="s_look"))
    made = offered(tool, run=run)
    assert made.bind({"a": 1})(context) == "done"
    assert passed == [("s", tool, {"a": 1}, context)]
    with pytest.raises(InvalidArguments):
        made.bind({"a": "x"})


def refused(line: str) -> ValidationError:
    """What the package makes of a line that is no message."""
    with pytest.raises(ValidationError) as error:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    return error.value


UNREADABLE = "the answer cannot be read: it is not a valid message, or is nested too deep"


def test_what_a_server_wrote_is_recovered_from_the_error():
    assert written(ValueError("x")) is None
    assert written(refused("not JSON")) == "not JSON"
    assert written(refused('{"jsonrpc": "2.0", "id": 3, "result": "\\ud800"}')) == {
        "jsonrpc": "2.0", "id": 3, "result": "\ud800",
    }  # fmt: skip
    assert written(refused('{"id": 3}')) == {"id": 3}


def test_an_answer_is_read_as_far_as_it_can_be():
    found = salvage({"jsonrpc": "2.0", "id": 3, "result": {"a": "\ud83d!"}})
    assert (found.message.id, found.message.result) == (3, {"a": "?!"})
    for value in ('{"jsonrpc": "2.0", "id": 3, "result": x}', {"jsonrpc": "2.0", "id": 3, "result": 5}):
        broken = salvage(value).message
        assert (broken.id, broken.error.code, broken.error.message) == (3, -32700, UNREADABLE)
    for value in (
        None,
        [],
        "x",
        {"id": None},
        {"id": True},
        {"id": 1.5},
        {"id": 3, "method": 5, "jsonrpc": "2.0"},
    ):
        assert salvage(value) is None


def test_the_first_line_that_is_no_message_is_remembered():
    class Stream:
        last_context = "its context"

        async def receive(self):
            if not items:
                raise EndOfStream
            return items.pop(0)

        async def aclose(self):
            ended.append("closed")

    async def main():
        async with incoming as entered:
            assert entered is incoming
            return [item async for item in incoming]

    first, second = refused("  Listening   on\n3000 " + "x" * 300), refused("more")
    items: list = [ValueError("no line"), refused(" "), first, second, refused('{"id": 3}')]
    ended: list = []
    incoming = Incoming(Stream(), lambda: ended.append("ended"))
    assert (incoming.last_context, incoming.nonsense) == ("its context", None)
    found = asyncio.run(main())
    assert found[2:4] == [first, second]
    assert found[4].message.error.message == UNREADABLE
    assert incoming.nonsense == "Listening on 3000 " + "x" * 178
    assert ended == ["ended", "closed"]


def test_a_message_may_hold_the_largest_media_and_not_much_more():
    assert MAX_BYTES * 4 / 3 < LONGEST_EVENT < MAX_BYTES * 4


def test_what_is_no_kind_of_server():
    config = ServerConfig(name="s")
    assert config.place == ("s",)
    with pytest.raises(McpFailed, match=r"^MCP server 's': ServerConfig is not a kind of server$"):
        McpServers([config]).open()
