"""Real servers, and the proof that nothing is left of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from localagent.mcp import McpServers
from localagent.messages import ToolCallPart
from localagent.tools.tool import ToolContext

HERE = Path(__file__).parent
LIMIT = 60.0


def eventually(happened, what="what was waited for"):
    end = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.01)


def real(*arguments, **more):
    return {"command": sys.executable, "args": [str(HERE / "server.py"), *arguments], **more}


def hostile(mode, *arguments, **more):
    return {"command": sys.executable, "args": [str(HERE / "hostile.py"), mode, *arguments], **more}


def context(**fields):
    return ToolContext(call=ToolCallPart(id="c1", name="t"), **fields)


def tool_of(servers, name):
    return next(tool for tool in servers.tools() if tool.name == name)


def call(servers, name, arguments=None, **fields):
    return tool_of(servers, name).bind(arguments or {})(context(**fields))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No thread and no process outlives a test."""
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    threads = set(threading.enumerate())
    files = me.num_fds()
    yield
    eventually(lambda: set(threading.enumerate()) <= threads, "the threads' end")
    eventually(
        lambda: not [child for child in me.children(recursive=True) if child.pid not in before],
        "the servers' end",
    )
    eventually(lambda: me.num_fds() <= files, "the end of all pipes")


@pytest.fixture(scope="module")
def servers():
    """One real server over stdio, called "real"."""
    with McpServers({"real": real()}) as opened:
        yield opened


class HttpProcess:
    """The real server over HTTP, which can be ended and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.told = folder / "port"
        self.port = 0
        self.process: subprocess.Popen | None = None

    @property
    def config(self):
        return {"http": {"type": "http", "url": f"http://127.0.0.1:{self.port}/mcp"}}

    def start(self) -> None:
        self.told.unlink(missing_ok=True)
        command = [
            sys.executable,
            str(HERE / "server.py"),
            "--port",
            str(self.port),
            "--told",
            str(self.told),
        ]
        self.process = subprocess.Popen(command)
        eventually(self.told.exists, "the port")
        self.port = int(self.told.read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def http_server(tmp_path):
    server = HttpProcess(tmp_path)
    server.start()
    yield server
    server.stop()
