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
    more = {"includeTools": ["d"], "excludeTools": ["a"], "tools": ["a", "b"], "disabledTools": ["b"]}
    assert [name for name in "abcd" if one({"command": "x", **more}).offers(name)] == ["d"]
    assert one({"command": "x"}).offers("anything")
    assert [name for name in "ab" if server.allows(name)] == ["a", "b"]
    assert not server.allows("c")
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
    for key in ("command", "url", "serverUrl", "httpUrl"):
        [server] = load_config({"servers": {key: "http://x"}})
        assert server.name == "servers"
    [server] = load_config({"servers": {"command": {"command": "x"}}})
    assert server.name == "command", "which is no text, so it is no server's"
    assert load_config({"mcpServers": {}}) == load_config({}) == ()


KEYS = (
    "command, args, env, cwd, url, serverUrl, httpUrl, headers, timeout, alwaysAllow, autoApprove, tools, "
    "includeTools, disabledTools, excludeTools"
)
MISTAKES = [
    ({}, "needs a command or a url"),
    ({"command": "x", "url": "http://a"}, "needs one of command and url"),
    ({"command": ""}, "command: String should have at least 1 character"),
    ({"command": 5}, "command: Input should be a valid string"),
    ({"command": "a\0b"}, "command: it must not contain a NUL character"),
    ({"command": "x", "args": "-y"}, "args: Input should be a list"),
    ({"command": "x", "args": ["-y", 3]}, "args[1]: Input should be a valid string"),
    ({"command": "x", "env": {"PORT": 80}}, "env.PORT: Input should be a valid string"),
    ({"command": "x", "env": ["A=1"]}, "env: Input should be an object"),
    ({"command": "x", "env": {"A": "${UNSET}"}}, "env.A: the environment variable UNSET is not set"),
    (
        {"command": "x", "args": ["${input:key}"]},
        "args[0]: ${input:key} is not an environment variable: write ${NAME}",
    ),
    ({"command": "x", "timeout": 0}, "timeout: Input should be greater than 0"),
    ({"command": "x", "timeout": "60"}, "timeout: Input should be a valid number"),
    ({"command": "x", "timeout": True}, "timeout: Input should be a valid number"),
    ({"command": "x", "headers": {}}, "headers: only for servers with a url"),
    ({"url": "http://a", "args": []}, "args: only for servers with a command"),
    ({"url": "ftp://a"}, "url: ftp://a is not an http:// or https:// address"),
    ({"url": "http://[a"}, "url: http://[a is not an http:// or https:// address"),
    ({"url": "http://a", "serverUrl": "http://b"}, "serverUrl: says the same as url; keep one of them"),
    (
        {"url": "http://a", "type": "sse"},
        "type: the SSE transport is not supported, MCP replaced it in 2025: use the address of the server's "
        'streamable HTTP endpoint with type "http"',
    ),
    ({"url": "http://a", "type": "ws"}, "type: 'ws' is not a transport: use stdio or http"),
    ({"url": "http://a", "type": 5}, "type: 5 is not a transport: use stdio or http"),
    ({"url": "http://a", "type": "stdio"}, "type: 'stdio' does not go with a url"),
    ({"command": "x", "agrs": []}, "agrs: unknown key; did you mean args?"),
    (
        {"command": "x", "envFile": ".env"},
        "envFile: not supported; put the variables under env, as in ${NAME}",
    ),
    ({"command": "x", "trust": True}, f"trust: unknown key; the keys are {KEYS}"),
    ({"command": "x", "alwaysAllow": "a"}, "alwaysAllow: not a list of tool names"),
    ({"command": "x", "tools": [1]}, "tools: not a list of tool names"),
    ({"command": "x", "disabled": "no"}, "disabled: not true or false"),
    ("npx", "not an object with a command or a url"),
    ({"command": "x", "transport": "http"}, "transport: 'http' does not go with a command"),
    (
        {"command": "x", "transportType": "t" * 90},
        f"transportType: '{'t' * 59} is not a transport: use stdio or http",
    ),
    ({"url": "http://"}, "url: http:// is not an http:// or https:// address"),
    ({"url": "http://a:99999"}, "url: http://a:99999 is not an http:// or https:// address"),
    ({"url": "http://a", "headers": {"A\n": 1}}, r"headers.'A\n': Input should be a valid string"),
    ({"command": "x", "cwd": "a\0"}, "cwd: it must not contain a NUL character"),
    ({"command": "x", "args": [["${UNSET}"]]}, "args[0][0]: the environment variable UNSET is not set"),
    ({"command": "x", "disabled": None}, "disabled: not true or false"),
    ({"command": "x", "disable": True}, "disable: unknown key; did you mean disabled?"),
    ({"command": "x", "typ": "http"}, "typ: unknown key; did you mean type?"),
]


@pytest.mark.parametrize(("entry", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_mistakes_name_file_server_and_field(entry, said, tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"good": {"command": "x"}, "the bad": entry}}))
    with pytest.raises(UsageError) as refused:
        load_config(file)
    assert str(refused.value) == f"{file}: server 'the bad': {said}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a JSON file of MCP servers"),
        (b"[]", "not a JSON file of MCP servers: a JSON list, not an object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"mcpServers": []}', "mcpServers: not an object of servers by their names"),
        (
            b'{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
            "not a JSON file of MCP servers: the key 'a' is repeated",
        ),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_none(content, said, tmp_path):
    file = tmp_path / "mcp.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        McpServers.from_file(file)
    assert str(refused.value).startswith(f"{file}: {said}")


def test_secrets_are_not_shown():
    for entry in (
        {"command": "x", "env": {"KEY": "${TOKEN}"}},
        {"url": "http://a", "headers": {"A": "${TOKEN}"}},
    ):
        assert "t0k" not in repr(one(entry))


def test_what_tells_a_server_from_another_whatever_its_settings():
    program = {"command": "x", "args": ["-y", "a"], "cwd": "/tmp"}
    assert one({**program, "env": {"A": "b"}, "timeout": 3}).place == ("s", "x", "-y", "a", "cwd=/tmp")
    assert one({"command": "x"}).place == ("s", "x", "cwd=None")
    assert one({"url": "http://a", "headers": {"A": "b"}}).place == ("s", "http://a")


def test_two_of_one_name():
    server = StdioServer(name="s", command="x")
    with pytest.raises(UsageError, match="two MCP servers have the name 's'"):
        McpServers([server, server])
