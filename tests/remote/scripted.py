"""A server on a real port that answers what a test wrote down, and notes what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

HANG = b"hang"
"""In the place of a piece: say nothing more until the client leaves."""
MODELS = {"object": "list", "data": [{"id": "theirs", "object": "model", "max_model_len": 2048}]}


@dataclass
class Asked:
    line: str
    headers: dict[str, str]
    body: Any


@dataclass
class Scripted:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """The client has closed a connection on which the server hung."""

    @property
    def chats(self) -> list[Any]:
        """The bodies of the chat completions that were asked for."""
        return [each.body for each in self.asked if "chat/completions" in each.line]


def head(
    status: int = 200, content_type: str = "text/event-stream", more: str = "", length: int | None = None
) -> bytes:
    size = "" if length is None else f"content-length: {length}\r\n"
    return f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n{size}{more}\r\n".encode()


def whole(body: Any, status: int = 200, more: str = "") -> list[bytes]:
    """An answer that is one JSON value."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [head(status, "application/json", more, len(data)), data]


def event(data: Any) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def chunk(delta: Any, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
    return event({"id": "chatcmpl-1", "model": "theirs", "choices": [choice]})


def stream(*chunks: bytes, size: int | None = None, more: str = "") -> list[bytes]:
    """A stream of chunks, in pieces of `size` bytes if that is given."""
    data = b"".join(chunks)
    pieces = [data] if size is None else [data[at : at + size] for at in range(0, len(data), size)]
    return [head(more=more), *pieces]


DONE = event("[DONE]")


@contextmanager
def scripted(
    *answers: Sequence[bytes],
    models: Any = MODELS,
    counts: Sequence[bytes] = (),
    routes: Mapping[str, Sequence[Sequence[bytes]]] | None = None,
) -> Iterator[Scripted]:
    """A server that gives these answers to chat completions, one after the other, and then the last again.

    `models`: what /v1/models answers; None for 404. `counts`: what is answered to whoever lets tokens be
    counted. `routes`: the answers at other addresses, in the same way. All else is 404, too.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.05)
    server = Scripted(f"http://127.0.0.1:{listening.getsockname()[1]}")
    ending = threading.Event()
    threads: list[threading.Thread] = []
    waiting = {"chat/completions": list(answers), "count_tokens": [counts] if counts else []}
    waiting |= {path: list(given) for path, given in (routes or {}).items()}

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            asked = _read(connection)
            server.asked.append(asked)
            pieces: Sequence[bytes] = whole({"error": {"message": "not here"}}, 404)
            if asked.line.startswith("GET /v1/models") and models is not None:
                pieces = whole(models)
            elif queue := next((queue for path, queue in waiting.items() if path in asked.line), None):
                pieces = queue.pop(0) if len(queue) > 1 else queue[0]
            for piece in pieces:
                if piece is HANG:
                    _wait_until_left(connection, server, ending)
                    return
                connection.sendall(piece)

    def listen() -> None:
        while not ending.is_set():
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                connection.settimeout(10)
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield server
    finally:
        ending.set()
        for each in (thread, *threads):
            each.join(15)
        listening.close()


def _wait_until_left(connection: socket.socket, server: Scripted, ending: threading.Event) -> None:
    connection.settimeout(0.02)
    while not ending.is_set():
        with suppress(TimeoutError):
            try:
                gone = not connection.recv(1)
            except ConnectionError:
                gone = True
            if gone:
                server.left.set()
                return


def _read(connection: socket.socket) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    top, _, body = data.partition(b"\r\n\r\n")
    line, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return Asked(line, headers, json.loads(body) if body else None)
