"""Servers that do it wrong: at the start, in their lists, and in what they answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from localagent.agent import Agent
from localagent.errors import InvalidArguments, McpFailed, ToolError
from localagent.mcp import McpServers
from localagent.mcp.incoming import salvage
from tests.agent.replaying import scripted
from tests.mcp.conftest import call, context, eventually, hostile, tool_of

ROOT = Path(__file__).parents[2]
STARTS = [
    (
        "no_such_command",
        {"command": "/no/such/program"},
        "'h': /no/such/program cannot be started: No such file",
    ),
    ("no_permission", {"command": __file__}, "cannot be started: Permission denied"),
    ("no_such_folder", {**hostile("fine"), "cwd": "/no/such/folder"}, "/no/such/folder cannot be started"),
    (
        "exits",
        hostile("exits"),
        "the server ended before it answered [it wrote: starting | no API key caf\ufffd [31mgiven]",
    ),
    ("mute", hostile("mute"), "it did not answer within 0.5 s"),
    ("nonsense", hostile("nonsense"), "it wrote 'Hello! I am a server. \\x1b[0m', which is not MCP"),
    ("version", hostile("version"), "Unsupported protocol version from the server: 1999-01-01"),
    ("no_handshake", hostile("no_handshake"), "its answer is not valid MCP: InitializeResult"),
    (
        "list_of_nonsense",
        hostile("list_of_nonsense"),
        "its answer is not valid MCP: ListToolsResult.tools",
    ),
    ("tool_without_schema", hostile("tool_without_schema"), "tools[0].inputSchema: Field required"),
    ("endless_list", hostile("endless_list"), "its list of tools has no end"),
]


@pytest.mark.parametrize(("config", "said"), [row[1:] for row in STARTS], ids=[row[0] for row in STARTS])
def test_a_failed_start_is_one_line(config, said):
    # Those that are waited for in vain; one of them has to be started and to write something in that time.
    waits = {"mute": 0.5, "nonsense": 4}.get(config.get("args", [""])[-1], 60)
    with pytest.raises(McpFailed) as failed:
        McpServers({"h": config}, start_timeout=waits).open()
    assert str(failed.value).startswith("MCP server 'h': ")
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_failed_server_leaves_the_others_to_those_who_ask_for_it():
    problems = []
    config = {"good": hostile("fine"), "bad": hostile("exits"), "worse": hostile("mute")}
    with pytest.raises(McpFailed, match=r"'bad': .*\(and 1 more failed\)"):
        McpServers(config, start_timeout=6).open()
    with McpServers(config, start_timeout=6, on_problem=lambda *it: problems.append(it)) as servers:
        assert call(servers, "good_t").content == "fine"
        assert {tool.name.split("_")[0] for tool in servers.tools()} == {"good"}
        assert [status.state for status in servers.status()] == ["running", "failed", "failed"]
        assert "no API key" in servers.status()[1].error
        with pytest.raises(McpFailed, match="no API key"):
            servers.restart("bad")
    assert [name for name, _ in problems] == ["bad", "worse"]


def test_nothing_of_a_server_reaches_the_terminal():
    configs = [hostile("exits"), hostile("nonsense"), hostile("chatty"), hostile("noisy")]
    code = (
        # In the mode for developers asyncio warns of what is slow, as everything is on a busy machine.
        "import logging; logging.getLogger('asyncio').setLevel('ERROR')\n"
        "from localagent.mcp import McpServers\nfrom tests.mcp.conftest import call\n"
        f"config = {{f'h{{n}}': one for n, one in enumerate({configs!r})}}\n"
        "with McpServers(config, on_problem=lambda *_: None, start_timeout=10) as servers:\n"
        "    print(call(servers, 'h2_t').content, call(servers, 'h3_t').content)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine fine\n", "")


def test_tools_are_listed_from_every_page():
    with McpServers({"h": hostile("pages")}) as servers:
        assert [tool.name for tool in servers.tools()] == [f"h_t{number}" for number in range(5)]


def test_what_models_cannot_be_offered_is_left_out_and_the_rest_stays():
    problems = []
    config = {"bad": hostile("unfit"), "good": hostile("fine")}
    with McpServers(config, on_problem=lambda *it: problems.append(it)) as servers:
        for _ in range(2):
            names = [tool.name for tool in servers.tools()]
        assert names == ["bad_same", "bad_t", "good_t"]
        assert tool_of(servers, "bad_same").description == "one"
        assert not tool_of(servers, "bad_same").side_effects  # it is as it was first listed
        assert call(servers, "bad_same").content == "fine"
        Agent(scripted("Hello."), [servers])
    said = f"tool 'bad_{'n' * 55}: its name has 100,004 characters, and at most 256 are taken (and 5 more)"
    assert [(name, str(problem)) for name, problem in problems] == [
        ("bad", f"MCP server 'bad': left out: {said}")
    ]


def test_of_tools_without_an_end_the_first_are_offered():
    problems = []
    with McpServers(
        {"endless": hostile("many"), "last": hostile("fine")}, on_problem=lambda *it: problems.append(it)
    ) as servers:
        names = [tool.name for tool in servers.tools()]
        assert names == [f"endless_t{number}" for number in range(900)]
        assert len(servers.status()[0].tools) == 11_000
        Agent(scripted("Hello."), [servers])
    said = "it is one more than the 900 that are taken"
    assert [str(problem) for _, problem in problems] == [
        f"MCP server 'endless': left out: tool endless_t900: {said} (and 10,099 more)",
        f"MCP server 'last': left out: tool last_t: {said}",
    ]


def test_what_is_left_out_is_logged_where_nobody_asks_for_problems(caplog):
    with McpServers({"h": hostile("unfit")}) as servers:
        assert [tool.name for tool in servers.tools()] == ["h_same", "h_t"]
    assert [record.getMessage()[:30] for record in caplog.records] == ["MCP server 'h': left out: tool"]


def test_a_server_without_tools():
    with McpServers({"h": hostile("no_tools")}) as servers:
        assert servers.tools() == []


def test_a_server_of_the_versions_without_a_handshake():
    with McpServers({"h": hostile("modern")}) as servers:
        assert [tool.name for tool in servers.tools()] == ["h_t"]


@pytest.mark.parametrize("name", ["bad_type", "bad_pattern", "elsewhere", "itself", "unknown_dialect"])
def test_with_a_broken_schema_only_the_server_checks(name):
    with McpServers({"h": hostile("schemas")}) as servers:
        tool = tool_of(servers, f"h_{name}")
        assert tool.bind({"a": "5"})(context()).content == "fine"
        assert tool.parameters["type"] == "object"
        with pytest.raises(InvalidArguments, match="are an object"):
            tool.bind("a")


@pytest.mark.parametrize(
    ("mode", "content"),
    [
        ("surrogate", "half ? of it"),
        ("structured", '{"wind": 3}'),
        ("not_a_number", '{"wind": NaN}'),
        ("broken_schema_out", "fine"),
        ("chatty", "fine"),
        ("noisy", "fine"),
    ],
)
def test_answers_that_are_read_all_the_same(mode, content):
    with McpServers({"h": hostile(mode)}) as servers:
        output = call(servers, "h_t")
        assert (output.content, output.is_error) == (content, False)
        if mode == "structured":
            assert output.metadata["_meta"] == {"cost": 2}


def test_media_that_cannot_be_read_are_named():
    with McpServers({"h": hostile("bad_media")}) as servers:
        content = call(servers, "h_t").content
    assert "[an image that cannot be read: not base64" in content
    assert "[a recording that cannot be read: not base64" in content
    assert content.endswith("fine")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("no_result", "gave no result: its answer is not valid MCP"),
        ("not_an_object", "the answer cannot be read: it is not a valid message"),
        ("deep", "the answer cannot be read: it is not a valid message, or is nested too deep"),
        ("deep_before_its_number", "nested too deep"),
        ("cut", "the answer cannot be read"),
        ("refuses", "refuses the call: no such thing"),
    ],
)
def test_answers_that_are_none(mode, said):
    with McpServers({"h": hostile(mode)}) as servers:
        for _ in range(2):  # the connection goes on
            with pytest.raises(ToolError) as failed:
                call(servers, "h_t")
            assert said in str(failed.value)
        assert servers.status()[0].state == "running"


def test_a_server_that_dies_once_it_has_listed_is_said_to_have_died():
    problems = []
    config = {"h": hostile("dies_after_list")}
    with McpServers(config, on_problem=lambda _, problem: problems.append(str(problem))) as servers:
        eventually(lambda: servers.status()[0].state == "failed", "its end")
        assert "it ended by itself" in servers.status()[0].error
        for _ in range(3):
            with pytest.raises(
                ToolError, match=r"it ended by itself \[it wrote: out of memory\]|ended during"
            ):
                call(servers, "h_t")
    assert not [problem for problem in problems if "closed" in problem]


@pytest.mark.parametrize("pipes", ["inherits", "apart"])
@pytest.mark.parametrize("dies", [True, False])
def test_what_a_server_has_started_ends_with_it(tmp_path, pipes, dies):
    """Also where the server ends by itself, in a call or when its input ends."""
    note = tmp_path / "child"
    with McpServers({"h": hostile("leaves_child", str(note), pipes)}) as servers:
        child = psutil.Process(int(note.read_text()))
        assert child.status() == psutil.STATUS_SLEEPING
        if dies:
            with pytest.raises(ToolError, match="ended during the call"):
                call(servers, "h_t")
            eventually(lambda: is_over(child), "the child's end")
            assert servers.status()[0].state == "failed"
    assert is_over(child)


def is_over(process: psutil.Process) -> bool:
    """Whether it has ended; the system may not have been told that yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_text_may_look_as_it_likes():
    with McpServers({"h": hostile("deep_text")}) as servers:
        assert call(servers, "h_t").content == "[" * 100_000 + "]" * 100_000


NUMBERS = [
    ('{"jsonrpc": "2.0", "id": 3, "result": {"id": 4, x', 3),
    ('{"jsonrpc": "2.0", "result": [[{"id": 4}], x], "id": "a\\"b"}', 'a"b'),
    ('{"result": {x}, "id": 3, "jsonrpc": "2.0"}', 3),
    ('{"jsonrpc": "2.0", "id": true, x', None),
    ('{"jsonrpc": "2.0", "id": [3], x', None),
    ('{"jsonrpc": "2.0", "result": {"id": 3}, x', None),
    ('{"jsonrpc": "2.0", "method": "m", "id": 3, x', None),
    ('{"jsonrpc": "2.0"} {"id": 3, x', None),
    ('{"id": 3, "result": x', None),
    ('["jsonrpc", "id", 3, x', None),
    ('log: {"jsonrpc": "2.0", "id": 3, x', None),
    ('{"jsonrpc": "2.0", "result": "never \\" ended, "id": 3}', None),
    ('{"jsonrpc": "2.0", "result": "never ended, \\"id\\": 3}', None),
]


@pytest.mark.parametrize(("line", "number"), NUMBERS)
def test_which_call_a_line_answers_that_cannot_be_read(line, number):
    message = salvage(line)
    assert (None if message is None else message.message.id) == number


@pytest.mark.parametrize("line", ['"a' * 5_000_000, '"' + '\\"' * 5_000_000, "[1," * 5_000_000])
def test_a_line_without_an_end_is_given_up(line):
    began = time.monotonic()
    assert salvage('{"jsonrpc": "2.0", "result": ' + line) is None
    assert time.monotonic() - began < 20


def test_a_call_that_is_never_answered_can_be_cancelled():
    cancel = threading.Event()
    with McpServers({"h": hostile("silent_in_call")}) as servers, ThreadPoolExecutor() as pool:
        running = pool.submit(call, servers, "h_t", cancel=cancel)
        assert not running.done()
        cancel.set()
        with pytest.raises(ToolError, match="was cancelled"):
            running.result(timeout=30)
        assert servers.status()[0].state == "running"


def test_a_list_that_never_comes_does_not_keep_servers_from_closing(tmp_path):
    servers = McpServers({"h": hostile("silent_in_second_list", str(tmp_path / "told"))}, start_timeout=3600)
    with ThreadPoolExecutor() as pool, servers:
        call(servers, "h_t")
        eventually((tmp_path / "told" / "asked").exists)
        closing = pool.submit(servers.close)
        closing.result(timeout=30)


def test_lists_that_always_change_are_followed_calmly(tmp_path, monkeypatch):
    told = tmp_path / "lists"
    monkeypatch.setattr("localagent.mcp.link.CALM", 3600.0)
    with McpServers({"h": hostile("storm", str(told))}) as servers:
        eventually(lambda: told.exists() and told.read_text().count("once") == 2)
        for _ in range(20):
            assert call(servers, "h_t").content == "fine"
        assert told.read_text().count("once") == 2
