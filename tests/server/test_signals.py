"""SIGINT and SIGTERM at every stage of a server's life, from its first instruction to its last."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.conftest import schedules
from tests.server.test_serve import CHAT, Process

SIGNALS = (signal.SIGINT, signal.SIGTERM)
BEGINS = "import sys, localagent.cli; print('begins', file=sys.stderr, flush=True); localagent.cli.main()"
"""The command, which first says that Python has started: a signal before that is Python's own affair."""
LAST = "  API key"
"""How the last line begins that is written before the first request."""


def loading(server: Process, draw: Random) -> None:
    """Somewhere between the first import and the loaded model, or a little later."""
    time.sleep(draw.random() * 3)


def listens(server: Process, draw: Random) -> None:
    """As soon as it says where it listens."""
    server.read_until("listens on")


def welcomed(server: Process, draw: Random) -> None:
    """When all has been said, in the moments in which it begins to serve."""
    server.read_until(LAST)
    time.sleep(draw.random() * 0.03)


def idle(server: Process, draw: Random) -> None:
    """After a request."""
    server.read_until(LAST)
    server.ask("Hello.")


def uploading(server: Process, draw: Random) -> None:
    """While half of a request has come."""
    server.read_until(LAST)
    server.client.connect().sendall(server.client.request(b"{}" * 100_000, path=CHAT)[:150_000])
    time.sleep(draw.random() * 0.02)


def streaming(server: Process, draw: Random) -> None:
    """While an answer is being written."""
    server.read_until(LAST)
    body = {"messages": [{"role": "user", "content": "Go on."}], "stream": True, "temperature": 2}
    connection = server.client.connect()
    connection.sendall(server.client.request(body, path=CHAT))
    assert connection.recv(100)
    time.sleep(draw.random() * 0.02)


STAGES: tuple[Callable[[Process, Random], None], ...] = (
    loading,
    listens,
    welcomed,
    idle,
    uploading,
    streaming,
)


@pytest.mark.parametrize("number", schedules(34, 4))
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.engine
def test_a_signal_ends_the_server_at_every_stage(
    stage: Callable[[Process, Random], None], number: int, nano: dict[str, Path], tmp_path: Path
) -> None:
    """Every second one gets another signal while it stops."""
    draw = Random(f"{stage.__name__} {number}")
    sent = [SIGNALS[number % 2]] + [draw.choice(SIGNALS)] * (number // 2 % 2)
    options = ["--model", str(nano["llamacpp"]), "--lanes", "2"]
    server = Process(options, tmp_path, words="begins", python=("-c", BEGINS))
    try:
        stage(server, draw)
        for each in sent:
            if server.child.poll() is None:
                server.child.send_signal(each)
            time.sleep(draw.random() * 0.4)
        code = server.end(0)
        assert "Traceback" not in server.said
        if "listens on" in server.said:
            assert server.said.splitlines()[-1] == "stopped", server.said
            # After its last word Python takes its handlers away, and a second signal may find none.
            assert code in (0, *(-each for each in sent[1:])), server.said
        else:
            assert code in (130, *(-each for each in sent)), server.said
    finally:
        for connection in server.client.connections:
            connection.close()
        if server.child.poll() is None:
            with suppress(Exception):
                server.end(signal.SIGKILL)
