"""A server on a real port, in a thread, and a client that sends any bytes."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from localagent.messages import UserMessage
from localagent.model import Model
from localagent.server.access import Access
from localagent.server.app import create_app
from localagent.server.bounds import Bounds
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    Answer,
    BadRequest,
    Frame,
    Limits,
    TurnRequest,
    Wire,
    message_of,
    status_of,
)
from localagent.server.listening import bind, listener
from localagent.server.models import ModelPool
from localagent.server.service import Service
from localagent.turn import Done, TurnEvent
from parsers import Text

PATH = "/v1/echo"


@pytest.fixture(params=["h11_impl:H11Protocol", "httptools_impl:HttpToolsProtocol"], scope="module")
def each_parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both of uvicorn's parsers of HTTP: which of them a server has depends on what is installed beside it."""
    module, _, name = request.param.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        parser = getattr(importlib.import_module(f"uvicorn.protocols.http.{module}"), name)
        patch.setattr("localagent.server.connection.AutoHTTPProtocol", parser)
        yield


class PlainWire:
    """An API as small as one can be: {"prompt", "stream", "max_tokens"} to the model's text."""

    path = PATH
    framing = "sse"
    tell = None

    def read(self, body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
        if not isinstance(body, dict) or not isinstance(body.get("prompt"), str):
            raise BadRequest("prompt: text is needed", "prompt")
        options = {"max_tokens": body["max_tokens"]} if "max_tokens" in body else {}
        return TurnRequest(
            model=body.get("model", ""),
            messages=[UserMessage(content=body["prompt"])],
            options=options,
            stream=bool(body.get("stream")),
            ignored=tuple(body.get("ignored", ())),
            details={"pad": body.get("pad", 0)},
        )

    def writer(self, request: TurnRequest, answer: Answer) -> PlainWriter:
        return PlainWriter(answer, request.details["pad"])

    def error(self, problem: Exception) -> tuple[int, dict[str, Any]]:
        code = getattr(problem, "code", None)
        return status_of(problem), {"plain": {"message": message_of(problem), "code": code}}

    def fails_in_stream(self, problem: Exception) -> bool:
        return False


class PlainWriter:
    def __init__(self, answer: Answer, pad: int) -> None:
        self._pad = pad
        self._answer = answer
        self._text = ""
        self._tokens = 0

    def begin(self) -> list[Frame]:
        return [Frame({"begin": self._answer.model})]

    def feed(self, event: TurnEvent) -> list[Frame]:
        if isinstance(event, Text):
            self._text += event.text
            return [Frame({"text": event.text}), Frame(comment="a" * self._pad)][: 1 + bool(self._pad)]
        if isinstance(event, Done):
            self._tokens = len(event.token_ids)
            return [Frame("[DONE]")]
        return []

    def keep_alive(self) -> list[Frame]:
        return [Frame(comment="alive")]

    def fail(self, error: Exception) -> list[Frame]:
        return [Frame({"failed": message_of(error)})]

    def whole(self) -> dict[str, Any]:
        return {"text": self._text, "tokens": self._tokens}


@dataclass
class Answered:
    """What came back on a connection, as far as it came."""

    data: bytes
    seconds: float
    closed: bool

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1]) if self.data else 0

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode("latin-1").lower()

    @property
    def body(self) -> bytes:
        body = self.data.partition(b"\r\n\r\n")[2]
        return unchunked(body) if "transfer-encoding: chunked" in self.head else body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        found += rest[:length]
        data = rest[length + 2 :]
    return found


@dataclass
class Running:
    """A running server."""

    port: int
    service: Service
    stop: Any = None
    stopped: Any = None
    failures: list[BaseException] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """A connection, which is closed at the end if not before."""
        self.connections.append(socket.create_connection(("127.0.0.1", self.port), timeout=20))
        return self.connections[-1]

    def send(self, data: bytes, wait: float = 20) -> Answered:
        """Send bytes, and read until the server closes the connection or has said nothing for `wait`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            began = time.monotonic()
            with suppress(ConnectionError):
                connection.sendall(data)
            return read(connection, wait, began)

    def ask(
        self,
        body: Any = None,
        *,
        path: str = PATH,
        method: str = "POST",
        wait: float = 20,
        **headers: str | None,
    ) -> Answered:
        """One request on a connection of its own."""
        return self.send(self.request(body, path=path, method=method, **headers), wait)

    def request(
        self, body: Any = None, *, path: str = PATH, method: str = "POST", **headers: str | None
    ) -> bytes:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given: dict[str, str | None] = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
        if body is not None:
            given |= {"content-type": "application/json", "content-length": str(len(data))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items() if v is not None)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def read(connection: socket.socket, wait: float, began: float) -> Answered:
    connection.settimeout(wait)
    data, closed = b"", False
    try:
        while more := connection.recv(1 << 16):
            data += more
        closed = True
    except TimeoutError:
        pass
    except ConnectionError:
        closed = True
    return Answered(data, time.monotonic() - began, closed)


@contextmanager
def serving(
    *models: Model,
    access: Access | None = None,
    bounds: Bounds | None = None,
    pool: ModelPool | None = None,
    wires: Sequence[Wire] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A server of these models, named model-1, model-2..., until the block ends."""
    pool = pool or ModelPool(
        {f"model-{number}": (lambda m=model: m) for number, model in enumerate(models, 1)}
    )
    service = Service(pool, access, bounds, **options)
    server = listener(create_app(service, wires or [PlainWire()]), service.bounds, service.stop)
    listening = bind("127.0.0.1", 0)
    running = Running(listening.getsockname()[1], service)

    def run() -> None:
        try:
            server.run(sockets=[listening])
        except BaseException as error:
            running.failures.append(error)

    thread = threading.Thread(target=run, name="server under test")
    thread.start()

    def stop() -> None:
        server.should_exit = True

    running.stop, running.stopped = stop, thread.join
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield running
    finally:
        stop()
        thread.join(30)
        for each in (listening, *running.connections):
            each.close()
        assert not thread.is_alive()
        assert not running.failures, running.failures
