"""The socket and uvicorn: where it listens, what it adds to an answer, and heads that do not come."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent.server.bounds import DEFAULT_BOUNDS, Bounds
from localagent.server.listening import bind, listener
from localagent.server.service import _LAST_WORDS
from tests.agent.replaying import scripted
from tests.cli.test_help import EVERY
from tests.server.serving import Running, each_parser, read, serving

pytestmark = pytest.mark.usefixtures(each_parser.__name__)


@pytest.fixture(scope="module")
def server(each_parser: None) -> Iterator[Running]:
    with serving(scripted("Yes."), bounds=Bounds(header_time=1, header_bytes=2000)) as running:
        yield running


# -- the socket --------------------------------------------------------------------------------------------


def test_a_port_that_is_free() -> None:
    with bind("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        assert (listening.type, listening.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name != "nt":
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with socket.create_connection(listening.getsockname(), timeout=5):
            listening.settimeout(5)
            listening.accept()[0].close()


def test_windows_would_share_a_port_that_may_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localagent.server.listening.os", SimpleNamespace(name="nt"))
    with bind("127.0.0.1", 0) as listening:
        assert not listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_a_port_that_is_taken_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == (
        f"port {port} of 127.0.0.1 is taken: is a server running already? Choose another with --port"
    )


def test_an_address_that_is_not_this_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:
        bind("203.0.113.1", 4711)  # an address of examples
    assert str(caught.value) == f"cannot listen on 203.0.113.1 port 4711: {os.strerror(errno.EADDRNOTAVAIL)}"

    def unknown(*_: Any, **__: Any) -> Any:
        raise OSError("no words for it")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match=r"^cannot listen on b\.example port 1: no words for it$"):
        bind("b.example", 1)


# -- uvicorn -----------------------------------------------------------------------------------------------


async def _nothing(*_: Any) -> None:
    """An application, or what ends its answers."""


def test_what_uvicorn_is_told() -> None:
    """Its defaults would wait for ever, log what is said in addresses, and believe any client's proxy."""
    config = listener(_nothing, Bounds(header_bytes=1234, connections=7), _nothing).config
    told: dict[str, Any] = {
        "app": _nothing, "ws": "none", "lifespan": "on", "log_config": None, "log_level": "error",
        "access_log": False, "server_header": False, "date_header": False, "proxy_headers": False,
        "timeout_keep_alive": 30, "timeout_graceful_shutdown": 1, "h11_max_incomplete_event_size": 1234,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in told} == told
    assert config.http.bounds == Bounds(header_bytes=1234, connections=7)  # type: ignore[union-attr]


def test_a_server_that_is_told_to_end_has_ended_before_docker_kills_it() -> None:
    grace = listener(_nothing, DEFAULT_BOUNDS, _nothing).config.timeout_graceful_shutdown
    assert grace is not None
    assert DEFAULT_BOUNDS.drain + _LAST_WORDS + grace <= 10 - 3, "and the engine has time to close"
    (drain,) = (option for option in EVERY["serve",].params if option.name == "drain")
    assert f"Default: {DEFAULT_BOUNDS.drain:g}." in (getattr(drain, "help", None) or "")


def test_an_answer_has_no_headers_but_its_own(server: Running) -> None:
    asked = {"upgrade": "websocket", "x_forwarded_for": "10.9.8.7", "connection": "keep-alive, upgrade"}
    answer = server.ask(path="/", method="GET", wait=0.2, **asked)
    names = [line.partition(":")[0] for line in answer.head.split("\r\n")]
    wanted = ["http/1.1 200 ok", "vary", "content-length", "content-type", "x-content-type-options"]
    assert names in (wanted, [*wanted, "connection"]), "httptools reads nothing after an upgrade"
    assert "x-content-type-options: nosniff" in answer.head


# -- heads that do not come --------------------------------------------------------------------------------


def test_what_came_of_a_head_is_answered_when_its_time_is_over(server: Running) -> None:
    answer = server.send(b"GET / HTTP/1.1\r\nho", wait=5)
    assert answer.closed
    assert answer.data == (
        b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 25\r\nconnection: close\r\n\r\n"
        b"the headers took too long"
    )


def test_a_head_that_is_too_large_is_not_waited_for(server: Running) -> None:
    answer = server.send(b"GET / HTTP/1.1\r\nx: " + b"a" * 3000, wait=5)
    assert (answer.status in (400, 431), answer.closed) == (True, True)


def test_the_head_of_a_fourth_request_is_waited_for_no_longer_than_that_of_a_first(server: Running) -> None:
    with server.connect() as connection:
        asked = server.request(path="/", method="GET", connection="keep-alive")
        for _ in range(3):
            connection.sendall(asked)
            data = b""
            while not data.endswith(b"Ollama is running"):
                data += connection.recv(1000)
        began = time.monotonic()
        connection.sendall(asked[:20])
        late = read(connection, 5, began)
    assert (late.status, late.closed) == (408, True)
