"""The `mcpServers` JSON: what is read, and every mistake with its place."""

from __future__ import annotations

import json

import pytest

from localagent.errors import UsageError
from localagent.mcp import HttpServer, McpServers, StdioServer, load_config


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    monkeypatch.setenv("TOKEN", "t0k")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)


def one(entry):
    [server] = load_config({"mcpServers": {"s": entry}})
    return server


def test_a_server_that_is_a_program_is_read():
    assert one(
        {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "${UNSET:-pkg}"],
            "env": {"KEY": "a ${TOKEN} b"},
            "cwd": "/tmp",
            "timeout": 60,
            "description": "notes",
        }
    ) == StdioServer(
        name="s", command="npx", args=("-y", "pkg"), env={"KEY": "a t0k b"}, cwd="/tmp", timeout=60.0
    )


@pytest.mark.parametrize(
    "said", [{}, {"type": "http"}, {"type": "streamable-http"}, {"type": "streamableHttp"}]
)
@pytest.mark.parametrize("key", ["url", "serverUrl", "httpUrl"])
def test_a_server_at_an_address_is_read(said, key):
    entry = {key: "https://example.com/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}, **said}
    assert one(entry) == HttpServer(
        name="s", url="https://example.com/mcp", headers={"Authorization": "Bearer t0k"}
    )


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${TOKEN}", "t0k"),
        ("${TOKEN:-x}", "t0k"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("${UNSET:-}", ""),
        ("${UNSET:-http://a:1/b}", "http://a:1/b"),
        ("$TOKEN $${", "$TOKEN $${"),
        ("${TOKEN}${TOKEN}", "t0kt0k"),
    ],
)
def test_variables_are_expanded_from_the_environment(text, expanded):
    assert one({"command": "x", "args": [text]}).args == (expanded,)


def test_lists_of_tools():
    server = one(
        {
            "command": "x",
            "alwaysAllow": ["a"],
            "autoApprove": ["b"],
            "tools": ["a", "c"],
            "disabledTools": ["c"],
        }
    )
    assert server.allowed == {"a", "b"}
    assert [name for name in "abc" if server.offers(name)] == ["a"]
    assert one({"command": "x", "tools": ["*"]}).offers("anything")
    assert one({"command": "x", "autoApprove": ["*"]}).allows("anything")
    assert not one({"command": "x"}).allows("anything")


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"a": {"command": "x"}}, "theme": "dark"},
        {"servers": {"a": {"command": "x"}}, "inputs": []},
        {"a": {"command": "x"}},
        {"a": {"command": "x"}, "off": {"command": "${UNSET}", "disabled": True}},
    ],
)
def test_where_the_servers_are(document, tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text("\ufeff" + json.dumps(document), "utf-8")
    assert load_config(file) == load_config(document) == (StdioServer(name="a", command="x"),)


def test_a_server_may_be_called_servers():
    assert [server.name for server in load_config({"servers": {"command": "x"}})] == ["servers"]
    assert load_config({"mcpServers": {}}) == load_config({}) == ()


MISTAKES = [
    ({}, "needs a command or a url"),
    ({"command": "x", "url": "http://a"}, "needs one of command and url"),
    ({"command": ""}, "command: String should have at least 1 character"),
    ({"command": 5}, "command: should be a valid string"),
    ({"command": "a\0b"}, "command: it must not contain a NUL character"),
    ({"command": "x", "args": "-y"}, "args: should be a list"),
    ({"command": "x", "args": ["-y", 3]}, "args[1]: should be a valid string"),
    ({"command": "x", "env": {"PORT": 80}}, "env.PORT: should be a valid string"),
    ({"command": "x", "env": ["A=1"]}, "env: should be an object"),
    ({"command": "x", "env": {"A": "${UNSET}"}}, "env.A: the environment variable UNSET is not set"),
    (
        {"command": "x", "args": ["${input:key}"]},
        "args[0]: ${input:key} is not an environment variable: write ${NAME}",
    ),
    ({"command": "x", "timeout": 0}, "timeout: should be greater than 0"),
    ({"command": "x", "timeout": "60"}, "timeout: should be a valid number"),
    ({"command": "x", "timeout": True}, "timeout: should be a valid number"),
    ({"command": "x", "headers": {}}, "headers: only for servers with a url"),
    ({"url": "http://a", "args": []}, "args: only for servers with a command"),
    ({"url": "ftp://a"}, "url: ftp://a is not an http:// or https:// address"),
    ({"url": "http://[a"}, "url: http://[a is not an http"),
    ({"url": "http://a", "serverUrl": "http://b"}, "serverUrl: says the same as url"),
    ({"url": "http://a", "type": "sse"}, "type: the SSE transport is not supported"),
    ({"url": "http://a", "type": "ws"}, "type: 'ws' is not a transport: use stdio or http"),
    ({"url": "http://a", "type": 5}, "type: 5 is not a transport"),
    ({"url": "http://a", "type": "stdio"}, "type: 'stdio' does not go with a url"),
    ({"command": "x", "agrs": []}, "agrs: unknown key; did you mean args?"),
    ({"command": "x", "envFile": ".env"}, "envFile: not supported; put the variables under env"),
    ({"command": "x", "trust": True}, "trust: unknown key; the keys are command, args"),
    ({"command": "x", "alwaysAllow": "a"}, "alwaysAllow: not a list of tool names"),
    ({"command": "x", "tools": [1]}, "tools: not a list of tool names"),
    ({"command": "x", "disabled": "no"}, "disabled: not true or false"),
    ("npx", "not an object with a command or a url"),
]


@pytest.mark.parametrize(("entry", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_mistakes_name_file_server_and_field(entry, said, tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"good": {"command": "x"}, "the bad": entry}}))
    with pytest.raises(UsageError) as refused:
        load_config(file)
    assert str(refused.value).startswith(f"{file}: server 'the bad': {said}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a JSON file of MCP servers"),
        (b"[]", "not a JSON file of MCP servers: a JSON list, not an object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"mcpServers": []}', "mcpServers: not an object of servers by their names"),
        (b'{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "the key 'a' is repeated"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_none(content, said, tmp_path):
    file = tmp_path / "mcp.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        McpServers.from_file(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert said in str(refused.value)


def test_secrets_are_not_shown():
    shown = repr(one({"command": "x", "env": {"KEY": "${TOKEN}"}}))
    assert "t0k" not in shown


def test_two_of_one_name():
    server = StdioServer(name="s", command="x")
    with pytest.raises(UsageError, match="two MCP servers have the name 's'"):
        McpServers([server, server])
