"""MCP servers on the command line serve chats and end with them: real servers, a real terminal, lfm2-nano."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pexpect

from localagent.agent import Agent
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.talk.chat import Chat
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.speaker import Speaker
from localagent.errors import InvalidTool
from tests.agent.replaying import scripted
from tests.cli.conftest import COMMAND
from tests.mcp.conftest import eventually, hostile, real

NANO = ("--model", "lfm2-nano", "--temperature", "0", "--threads", "1")
READY = "\x1b[?2004h"  # line editing switches bracketed paste on


@pytest.fixture
def config(tmp_path):
    def write(**servers):
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        return str(path)

    return write


@pytest.fixture
def spawn(localagent):
    children = []

    def start(*arguments):
        child = pexpect.spawn(
            str(COMMAND),
            [*arguments],
            env={**localagent.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
            encoding="utf-8",
            timeout=120,
            dimensions=(40, 160),
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


@pytest.fixture
def chat(spawn, config):
    """With a server whose only tool is `read_file`, which never comes to an end."""
    child = spawn("chat", *NANO, "--mcp", config(read=real(tools=["file"])))
    child.expect_exact("(starting the MCP servers of ")
    child.expect_exact(READY)
    return child


def ask(child, text):
    child.send(text)
    child.expect_exact(text)
    child.send("\r")


def test_ctrl_c_stops_the_call_and_not_the_server(chat):
    [server] = psutil.Process(chat.pid).children()
    ask(chat, "Read the file plan.txt.")
    chat.expect(r": step \d+ of ")
    chat.expect(r": step \d+ of ")  # not the next one: a frame shows only the latest
    assert "\n" not in chat.before, "progress has one line, whatever a tool tells"
    chat.sendintr()
    chat.expect_exact("was cancelled; it may have done part of it")
    chat.expect_exact("(stopped)")
    chat.expect_exact(READY)
    assert server.is_running()
    ask(chat, "/exit")
    chat.expect(pexpect.EOF)
    chat.close()
    assert (chat.exitstatus, server.is_running()) == (0, False)


def test_a_server_that_ends_is_told_of_above_what_is_typed(chat):
    [server] = psutil.Process(chat.pid).children()
    chat.send("/his")
    chat.expect_exact("/his")
    server.kill()
    chat.expect_exact("localagent: MCP server 'read': it ended by itself")
    chat.expect_exact("/his")  # what was typed is still there
    chat.send("tory\r")
    chat.expect_exact(READY)
    ask(chat, "/tools")
    chat.expect_exact("read_file: Read a file")


def test_ctrl_c_during_the_start(spawn, config):
    child = spawn("chat", *NANO, "--mcp", config(mute=hostile("mute")))
    child.expect_exact("(starting the MCP servers of ")
    eventually(lambda: psutil.Process(child.pid).children())
    [server] = psutil.Process(child.pid).children()
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    eventually(lambda: not server.is_running())


def test_patterns_for_tools_of_servers_are_only_warned_about(localagent, config):
    path = config(read=real(tools=["file"]))
    done = localagent("chat", *NANO, "--mcp", path, "--deny", "raed_*", "--allow", "read_*")
    assert done.returncode == 0
    assert "warning: --deny raed_* fits none of the tools: read_file\n" in done.stderr.decode()
    assert "--allow" not in done.stderr.decode()


def test_a_tool_that_models_cannot_tell_from_another_is_left_out(localagent, config):
    path = config(a=hostile("fine"), A=hostile("fine"))
    done = localagent("chat", *NANO, "--mcp", path)
    assert done.returncode == 0
    warning = "MCP server 'A': left out: tool A_t: models cannot tell it from a_t of the server a\n"
    assert warning in done.stderr.decode()


def test_tools_that_went_wrong_later_do_not_end_the_chat(capsys):
    class Source:
        broken = False

        def tools(self):
            if self.broken:
                raise InvalidTool("two of one name")
            return []

    source = Source()
    agent = Agent(scripted("Hi."), [source])
    speaker = Speaker(agent.model, [source], ModelOptions(), ToolOptions(), {}, lambda _: agent.model)
    chat = Chat(speaker, Conversation(print), ExitStack(), stats=False)
    source.broken = True
    assert chat._commands.run("/tools") is True
    assert capsys.readouterr().err == "localagent: two of one name\n"
