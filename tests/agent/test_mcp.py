"""An agent calls the tools of a real MCP server, and cancelling the run reaches the server."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest

from localagent.agent import Agent, Allow, ToolEnded, ToolProgress, ToolStarted
from localagent.mcp import McpServers
from tests.agent.replaying import block, follow, lines, scripted
from tests.cli.conftest import Command
from tests.mcp.conftest import eventually

SERVER = Path(__file__).parents[1] / "mcp" / "server.py"
CONFIG = {"mcpServers": {"my-server": {"command": sys.executable, "args": [str(SERVER)]}}}


@pytest.fixture(scope="module")
def servers():
    with McpServers(CONFIG) as opened:
        yield opened


def allow(requests):
    return [Allow()] * len(requests)


def test_tools_of_servers_are_tools(servers):
    calls = block(
        "my_server_add(a=1, b=2)",
        "my_server_get_time_now(zone='CET')",
        "my_server_fail()",
        "my_server_add(a='x')",
    )
    agent = Agent(scripted(calls, "Done."), [servers], approvals=allow)
    events, done = follow(agent)
    added, told, failed, wrong = done.messages[2].results
    assert (added.text, told.text) == ("3", "noon in CET")
    assert (failed.is_error, wrong.is_error) == (True, True)
    assert "the disk is full" in failed.text
    assert sum(isinstance(event, ToolStarted) for event in events) == 4


def test_what_only_reads_does_not_ask(servers):
    calls = block("my_server_add(a=1, b=2)", "my_server_get_time_now()")
    _, done = follow(Agent(scripted(calls, "Done."), [servers]))
    assert [result.is_error for result in done.messages[2].results] == [False, True]


def test_progress_and_images(servers):
    calls = block("my_server_steps()", "my_server_picture()")
    events, done = follow(Agent(scripted(calls, "Done."), [servers], approvals=allow))
    told = [event.text for event in events if isinstance(event, ToolProgress)]
    assert told == ["step 1", "step 2", "step 3"]
    assert [part.kind for part in done.messages[2].results[1].parts] == ["image"]


def test_arun(servers):
    async def main():
        agent = Agent(scripted(block("my_server_add(a=1, b=2)"), "Done."), [servers])
        return [event async for event in agent.arun("Go.")][-1]

    assert lines(asyncio.run(main()).messages)[2:] == ["tool: 3", "assistant: Done."]


def test_a_server_that_dies_is_an_error_result_and_comes_back():
    with McpServers(CONFIG) as servers:
        outputs = (block("my_server_crash()"), block("my_server_add(a=1, b=2)"), "Done.")
        _, done = follow(Agent(scripted(*outputs), [servers], approvals=allow))
        crashed, added = (message.results[0] for message in done.messages[2:5:2])
        assert crashed.is_error
        assert "may have done part of it" in crashed.text
        assert added.text == "3"


def test_cancelled_in_a_call(servers, tmp_path):
    cancel = threading.Event()
    agent = Agent(
        scripted(block(f"my_server_wait(record='{tmp_path}')"), "never"), [servers], approvals=allow
    )

    def stop_when_started() -> None:
        eventually((tmp_path / "started").exists)
        cancel.set()

    for event in agent.run("Go.", cancel=cancel):
        if isinstance(event, ToolStarted):
            threading.Thread(target=stop_when_started).start()
        if isinstance(event, ToolEnded):
            assert event.result.is_error
        last = event
    assert last.stop_reason == "cancelled"
    eventually((tmp_path / "cancelled").exists, "the server's cancellation")


def test_the_command_line(tmp_path, gguf):
    localagent = Command(tmp_path)
    path = tmp_path / "mcp.json"
    gone = {"command": "/nowhere/server"}
    path.write_text(
        json.dumps({"mcpServers": {"my-server": CONFIG["mcpServers"]["my-server"], "gone": gone}})
    )
    done = localagent("chat", "--model", "lfm2-nano", "--mcp", str(path), stdin=b"/tools\n")
    notes = done.stderr.decode()
    assert "my-server_add: Add two numbers." in notes
    assert "my-server_get-time.now (asks): The time" in notes
    assert "localagent: " in notes
    assert "gone" in notes
    assert done.returncode == 0
