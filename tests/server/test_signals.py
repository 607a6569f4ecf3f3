"""SIGINT and SIGTERM at every stage of a server's life, from its first instruction to its last."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import schedules
from tests.server.serving import read
from tests.server.test_serve import CHAT, Process, served

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


def streaming_in(server: Process, tokens: int) -> Any:
    """A connection on which an answer of so many tokens is being streamed."""
    ask = [{"role": "user", "content": "Go on."}]
    body = {"temperature": 2, "seed": 1, "stream": True, "max_tokens": tokens, "messages": ask}
    connection = server.client.connect()
    connection.sendall(server.client.request({**body, "logit_bias": ENDS}, path="/v1/chat/completions"))
    assert connection.recv(100)
    return connection


ENDS = {"2": -100, "7": -100}
"""So that answers have all their tokens: what ends one in lfm2-nano."""
posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


@posix
@pytest.mark.engine
def test_sigterm_lets_answers_end_and_takes_no_more(nano: dict[str, Path], tmp_path: Path) -> None:
    options = ["--model", str(nano["llamacpp"]), "--lanes", "2", "--drain", "30"]
    with served(*options, home=tmp_path) as server:
        connection = streaming_in(server, 1500)
        server.child.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        late = server.client.ask({"messages": [{"role": "user", "content": "Hello."}]}, path=CHAT)
        assert late.status == 503 and b"the server is stopping" in late.body
        answer = read(connection, 30, time.monotonic())
        assert b"[DONE]" in answer.data and b"stopping" not in answer.data
        assert server.end(0) == 0 and server.said.splitlines()[-1] == "stopped"


@posix
@pytest.mark.engine
@pytest.mark.parametrize(
    ("drain", "signals"), [("0.3", [signal.SIGTERM]), ("60", [signal.SIGTERM] * 2), ("60", [signal.SIGINT])]
)
def test_what_does_not_end_in_time_is_ended(
    drain: str, signals: list[signal.Signals], nano: dict[str, Path], tmp_path: Path
) -> None:
    with served("--model", str(nano["llamacpp"]), "--lanes", "2", "--drain", drain, home=tmp_path) as server:
        connection = streaming_in(server, 30_000)
        began = time.monotonic()
        for number in signals:
            server.child.send_signal(number)
            time.sleep(0.3)
        answer = read(connection, 30, time.monotonic())
        assert b"the server is stopping" in answer.data and b"[DONE]" not in answer.data
        server.end(0)
        assert server.said.splitlines()[-1] == "stopped" and time.monotonic() - began < 20
