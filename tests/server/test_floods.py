"""Clients that send much, or in tiny pieces: what it costs is bounded, and the others are served meanwhile.

`benchmarks/floods.py` measures what the others wait.
"""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from localagent.errors import EngineFailed
from localagent.server import connection as connections
from localagent.server.access import Access
from localagent.server.bounds import Bounds
from tests.agent.replaying import scripted
from tests.server.serving import Running, each_parser, read, serving

pytestmark = pytest.mark.usefixtures(each_parser.__name__)

GOOD = {"prompt": "Hello."}
BYTES = b"1\r\n \r\n" * 10_000
"""Chunks of one byte."""
SMALL = Bounds(header_bytes=4096, header_time=2, body_time=3, drain_time=1)


@pytest.fixture(scope="module")
def locked(each_parser: None) -> Iterator[Running]:
    with serving(scripted("Good day."), access=Access(keys=("k",)), bounds=SMALL) as running:
        yield running


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the parser was given, in pieces."""
    pieces: list[int] = []
    parser = connections.AutoHTTPProtocol
    give = parser.data_received

    def count(self: Any, data: bytes) -> None:
        pieces.append(len(data))
        give(self, data)

    monkeypatch.setattr(parser, "data_received", count)
    return pieces


def flood(connection: socket.socket, data: bytes, seconds: float = 10) -> None:
    """Send the same again and again, until the server has had enough."""
    end = time.monotonic() + seconds
    with pytest.raises(ConnectionError):
        while time.monotonic() < end:
            connection.sendall(data)


@contextmanager
def flooding(server: Running, head: bytes, count: int) -> Iterator[None]:
    """Chunks of one byte meanwhile, on so many connections, and on new ones where they are closed."""
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection,
            ):
                connection.sendall(head)
                while not over.wait(0.05):
                    connection.sendall(BYTES)

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("key", ["k", "wrong"])
def test_others_are_served_while_chunks_of_one_byte_come(key: str) -> None:
    """Each of these took seconds: a quarter of a megabyte was parsed at once, whoever had sent it."""
    with serving(scripted("Good day."), access=Access(keys=("k",))) as server:
        head = server.request(b"", content_length=None, transfer_encoding="chunked", x_api_key=key)
        with flooding(server, head, count=4):
            time.sleep(0.5)
            began = time.monotonic()
            for _ in range(20):
                assert server.ask(path="/health", method="GET").status == 200
                assert server.ask(GOOD, x_api_key="k").status == 200
            assert time.monotonic() - began < 20


REFUSED: dict[str, dict[str, Any]] = {
    "no key": {"x_api_key": None},
    "a wrong key": {"x_api_key": "wrong"},
    "another host": {"host": "evil.example"},
    "another page": {"origin": "https://evil.example"},
    "no such path": {"path": "/v1/nothing"},
    "no such method": {"method": "PUT"},
    "not JSON": {"content_type": "text/plain"},
    "where none is read": {"path": "/health", "method": "GET", "x_api_key": None},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_body_that_nobody_wants_is_not_parsed(locked: Running, why: str, parsed: list[int]) -> None:
    """The answer comes at once, then the end of what the server sends, and after a while the connection ends."""
    given = {"x_api_key": "k", "content_length": None, "transfer_encoding": "chunked", **REFUSED[why]}
    with locked.connect() as connection:
        connection.sendall(locked.request(b"", **given) + BYTES)
        answer = read(connection, 5, time.monotonic())
        assert answer.closed
        assert answer.status == (200 if why == "where none is read" else answer.status) != 0
        assert json.loads(answer.body)
        flood(connection, BYTES)
    assert sum(parsed) < 10_000


def test_what_a_client_may_send_is_parsed_in_turns(locked: Running, parsed: list[int]) -> None:
    with locked.connect() as connection:
        head = locked.request(b"", content_length=None, transfer_encoding="chunked", x_api_key="k")
        data = b"%x\r\n%s\r\n" % (100_000, json.dumps({"prompt": "a" * 99_986}).encode())
        connection.sendall(head + data + b"0\r\n\r\n")
        assert read(connection, 10, time.monotonic()).status == 200
    assert sum(parsed) == len(head + data) + 5
    assert max(parsed) <= 1 << 16
    assert len(parsed) > 3


@pytest.mark.parametrize(
    ("rest", "again"),
    [
        (b"", b"x: y\r\n"),
        (b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\n", b"x: y\r\n"),
        (b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\nx: ", b"a" * 1000),
        (b"transfer-encoding: chunked\r\n\r\n1;a=", b"a" * 1000),
        (b"x: ", b"a" * 1000),
    ],
)
def test_what_never_ends_is_cut_off(locked: Running, rest: bytes, again: bytes, parsed: list[int]) -> None:
    """Headers, trailers, and what a chunk may have beside its size."""
    with locked.connect() as connection:
        connection.sendall(locked.request(b"", content_length=None, x_api_key="k")[:-2] + rest)
        flood(connection, again * 100)
    assert sum(parsed) < 200_000


def test_trailers_are_no_headers(locked: Running) -> None:
    head = locked.request(
        b"", content_length=None, transfer_encoding="chunked", connection=None, x_api_key="k"
    )
    body = json.dumps(GOOD).encode()
    data = b"%x\r\n%s\r\n0\r\nx-api-key: other\r\nhost: evil.example\r\n\r\n" % (len(body), body)
    with locked.connect() as connection:
        connection.sendall((head + data) * 3)
        answers = b""
        while answers.count(b"Good day.") < 3 and (more := connection.recv(1 << 16)):
            answers += more
    assert answers.count(b"HTTP/1.1 200 OK") == 3


def test_requests_that_come_together_are_answered_one_after_the_other(locked: Running) -> None:
    ask = locked.request(GOOD, x_api_key="k", connection=None)
    health = locked.request(path="/health", method="GET", connection=None)
    with locked.connect() as connection:
        connection.sendall((ask + health) * 200)
        answers = b""
        while answers.count(b"}") < 400 and (more := connection.recv(1 << 16)):
            answers += more
    kinds = [b"status" in each for each in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert kinds == [False, True] * 200


def test_large_bodies_wait_for_room_and_small_ones_do_not() -> None:
    bounds = Bounds(bodies=250_000)
    body = json.dumps({"prompt": "a" * 200_000}).encode()
    with serving(scripted("Good day."), bounds=bounds) as server:
        first, second = server.connect(), server.connect()
        request = server.request(body)
        first.sendall(request[:150_000])
        while not server.service.bodies.running:
            time.sleep(0.01)
        second.sendall(request)
        second.settimeout(0.5)
        with pytest.raises(TimeoutError):
            second.recv(100)
        assert server.ask(GOOD).status == 200
        first.sendall(request[150_000:])
        for connection in (first, second):
            assert read(connection, 10, time.monotonic()).status == 200
        while server.service.bodies.running:
            time.sleep(0.01)


def test_an_answer_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's traceback led to the request, and that back to the error: sixteen of 8 MB stayed."""
    messages = []
    model = scripted("Good day.")

    def fail(given: list[Any], **_: Any) -> None:
        messages.append(weakref.ref(given[0]))
        raise EngineFailed("no")

    monkeypatch.setattr(model, "agroups", fail)
    with serving(model) as server:
        gc.disable()
        try:
            assert server.ask(GOOD).status == 500
            end = time.monotonic() + 5
            while messages[0]() is not None:
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            gc.enable()
