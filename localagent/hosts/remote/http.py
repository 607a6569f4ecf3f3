"""A server that speaks OpenAI's API over HTTP: where it is, what it is asked, how its refusals are told.

The HTTP is the standard library's. The answer is read from the socket in short waits, so that a turn that is
cancelled closes its connection within a moment, also while nothing comes.
"""

from __future__ import annotations

import http.client
import io
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from localagent.errors import LocalAgentError, ServerUnreachable, StreamBroken, UsageError
from localagent.hosts.protocol import CancelFlag, Cancelled
from localagent.hosts.remote.address import LOCAL
from localagent.hosts.remote.refusals import refusal
from localagent.settings import API_KEY
from localagent.wording import one_line, quoted, writable

_CONNECT = 10.0
"""Seconds for making a connection."""
_TICK = 0.05
"""Seconds between two looks at whether a turn is cancelled."""
_PIECE = 1 << 14
"""Bytes that are sent at once."""
_LONGEST = 1 << 26
"""Bytes of a line or a body: a server that sends more is broken, and must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens. `silence`: seconds without any sign of life after which it is given up."""

    url: str
    key: str | None = field(default=None, repr=False)
    silence: float = 600.0

    @classmethod
    def at(cls, url: str, key: str | None = None, silence: float = 600.0) -> Server:
        """The server at `url`, with or without /v1 at its end. Raises UsageError."""
        base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        example = "it must be like http://127.0.0.1:8080"
        if not base.isascii() or not base.isprintable() or " " in base:
            raise UsageError(f"the address {quoted(url)} is no URL: {example}")
        try:
            parts = urlsplit(base)
            wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:  # a port that is no number, a bracket that is not closed
            wrong = True
        if wrong or parts.query or parts.fragment:
            raise UsageError(f"the address {quoted(url)} is no URL of a server: {example}")
        if parts.username is not None:  # it would be in every error message
            raise UsageError(f"the address has a name or a password in it: put the key into {API_KEY}")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError(f"the key in {API_KEY} has characters that no HTTP header can carry")
        return cls(base, key, silence)

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON that the server answers. Raises as `open`."""
        with self.open(path, body) as answer:
            return answer.json()

    @contextmanager
    def open(self, path: str, body: Any = None, cancel: CancelFlag | None = None) -> Iterator[Answer]:
        """Ask, and read the answer while it comes. Leaving closes the connection, which stops the server.

        A GET without a body, a POST with one. Raises ServerUnreachable, ServerRefused, StreamBroken,
        UnknownModel and ContextOverflow; Cancelled.
        """
        data = None if body is None else writable(json.dumps(body, ensure_ascii=False)).encode()
        with self.send("GET" if body is None else "POST", path, data, cancel) as answer:
            if answer.status != 200:
                raise self._refusal(path, answer)
            yield answer

    @contextmanager
    def send(
        self,
        method: str,
        path: str,
        data: bytes | Iterable[bytes] | None = None,
        cancel: CancelFlag | None = None,
    ) -> Iterator[Answer]:
        """As `open`, for any method and bytes, and with the answer whatever its status is.

        Pieces are sent as a chunked body. Raises ServerUnreachable, StreamBroken; Cancelled.
        """
        connection = self.connection()
        connection.response_class = _Response
        headers = {**self.headers(data is not None), "Connection": "close"}
        try:
            _connect(connection, cancel)
        except (OSError, UnicodeError) as error:  # the second: a name that no host can have
            raise ServerUnreachable(
                f"no server answers at {self.url} ({_reason(error)}): start it with `localagent serve`, or "
                "correct the address"
            ) from error
        patient = connection.sock = _Patient(self, connection.sock, cancel)
        try:
            # A proxy without a tunnel is told the whole address.
            begin = urlsplit(self.url).path if self._proxy is None or self.url[:5] == "https" else self.url
            connection.request(method, f"{begin}{path}", data, headers)
            yield Answer(self, connection.getresponse())
        except http.client.RemoteDisconnected as error:
            raise StreamBroken(
                f"{self.url} closed the connection without an answer: its log says why; ask again"
            ) from error
        except http.client.IncompleteRead as error:
            raise StreamBroken(
                f"{self.url} broke the answer off in the midst: its log says why; ask again"
            ) from error
        except http.client.HTTPException as error:
            raise StreamBroken(
                f"{self.url} does not answer as an HTTP server does ({type(error).__name__}): correct the "
                "address"
            ) from error
        except OSError as error:
            raise StreamBroken(f"the connection to {self.url} broke ({_reason(error)}): ask again") from error
        finally:
            connection.close()
            patient.hang_up()

    def _refusal(self, path: str, answer: Answer) -> LocalAgentError:
        try:
            body = json.loads(answer.body())
        except (ValueError, RecursionError, StreamBroken):
            body = None
        return refusal(self.url, path, answer.status, body, answer.header, bool(self.key))

    def connection(self) -> http.client.HTTPConnection:
        """A connection to the server, which is not made yet.

        A proxy that the environment names (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) is used, but never for this
        machine.
        """
        parts, proxy = urlsplit(self.url), self._proxy
        assert parts.hostname is not None
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        if proxy is None:
            return kind(parts.hostname, parts.port, timeout=_CONNECT)
        connection = kind(*proxy, timeout=_CONNECT)
        if secure:
            connection.set_tunnel(parts.hostname, parts.port or 443)
        return connection

    @property
    def _proxy(self) -> tuple[str, int] | None:
        """Host and port of the proxy through which the server is asked."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if host in LOCAL:
            return None
        from urllib.request import getproxies, proxy_bypass  # slow to load, and most servers are here

        if proxy_bypass(host):
            return None
        at = urlsplit(f"//{getproxies().get(parts.scheme, '').rpartition('//')[2]}")
        return (at.hostname, at.port or 80) if at.hostname else None

    def headers(self, body: bool) -> dict[str, str]:
        """What every request says. `body`: it has one, of JSON."""
        headers = {"Accept": "text/event-stream, application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if body:
            headers["Content-Type"] = "application/json"
        return headers


class Answer:
    """What a server answers, while it comes."""

    def __init__(self, server: Server, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.streams = response.headers.get_content_type() == "text/event-stream"
        self._server = server
        self._response = response

    def header(self, name: str) -> str:
        """A header's value; "" if there is none."""
        return self._response.headers.get(name, "")

    def json(self) -> Any:
        """The whole body. Raises StreamBroken for one that is no JSON."""
        try:
            return json.loads(self.body())
        except (ValueError, RecursionError):
            raise StreamBroken(
                f"{self._server.url} answers with something else than JSON: correct the address"
            ) from None

    def body(self) -> bytes:
        """The whole body. Raises StreamBroken for one that is too large."""
        body = self._response.read(_LONGEST + 1)
        if len(body) > _LONGEST:
            raise self._too_long()
        return body

    def frames(self) -> Iterator[Any]:
        """The JSON of every server-sent event, up to "[DONE]" or the end; comments are skipped."""
        data: list[str] = []
        size = 0
        for line in self.lines():
            size += len(line)
            if size > _LONGEST:
                raise self._too_long()
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text:
                said, size = "\n".join(data).strip(), 0
                data.clear()
                if said == "[DONE]":
                    return
                if said:
                    yield self._parsed(said)
            elif text.startswith("data:"):
                data.append(text[5:])
        with suppress(ValueError, RecursionError):  # half an event at the end is no event
            if data:
                yield json.loads("\n".join(data))

    def lines(self) -> Iterator[bytes]:
        """The lines of the body, with their ends, as they come. Raises StreamBroken for too long a one."""
        while line := self._response.readline(_LONGEST + 1):
            if len(line) > _LONGEST:
                raise self._too_long()
            yield line

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise StreamBroken(
                f"{self._server.url} streams something else than JSON ({quoted(text)}): ask again"
            ) from None

    def _too_long(self) -> StreamBroken:
        return StreamBroken(
            f"{self._server.url} answers with more than {_LONGEST >> 20} MB at once: it is no such server"
        )


class _Response(http.client.HTTPResponse):
    """Refuses chunks of fewer bytes than none, and of more than there are: a read takes no such number."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if not 0 <= size <= sys.maxsize:
            raise http.client.IncompleteRead(b"")
        return size


def _connect(connection: http.client.HTTPConnection, cancel: CancelFlag | None) -> None:
    """Make the connection. A turn that is cancelled does not wait for it: looking a name up cannot be
    stopped, so that goes on in a thread of its own, which then closes what it got.

    Raises Cancelled, OSError, UnicodeError.
    """
    if cancel is None:
        connection.connect()
        return
    failed: list[BaseException] = []
    lock, left = threading.Lock(), False

    def connect() -> None:
        try:
            connection.connect()
        except BaseException as error:
            failed.append(error)
        with lock:
            if left:
                connection.close()

    thread = threading.Thread(target=connect, name="localagent-connecting", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TICK)
        if cancel.is_set():
            with lock:
                left = True
            connection.close()
            raise Cancelled
    if failed:
        raise failed[0]


class _Patient(io.RawIOBase):
    """A socket that `http.client` reads through: it waits for as long as a model may think, and no longer
    than until the turn is cancelled.
    """

    def __init__(self, server: Server, socket: Any, cancel: CancelFlag | None) -> None:
        self._server = server
        self._socket = socket
        self._cancel = cancel

    def sendall(self, data: Any) -> None:
        """Send all of it. Raises Cancelled, OSError."""
        self._socket.settimeout(_TICK)
        left = memoryview(data).cast("B")
        end = monotonic() + self._server.silence
        while left:
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled
            try:
                # The same bytes again where they could not be sent: TLS asks for that.
                left = left[self._socket.send(left[:_PIECE]) :]
                end = monotonic() + self._server.silence
            except TimeoutError:
                if monotonic() > end:
                    raise

    def makefile(self, mode: str) -> io.BufferedReader:
        """What the answer is read from."""
        self._socket.settimeout(_TICK)
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has come, at least one byte; nothing at the end. Raises Cancelled, StreamBroken, OSError."""
        end = monotonic() + self._server.silence
        while True:
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled
            try:
                return int(self._socket.recv_into(buffer))
            except TimeoutError:
                if monotonic() > end:
                    raise StreamBroken(
                        f"{self._server.url} has said nothing for {self._server.silence:g} seconds: look at "
                        "its log, or ask again"
                    ) from None

    def close(self) -> None:
        """Nothing yet: `http.client` closes its socket as soon as the answer's head says that it is the last
        one, and reads on from what `makefile` gave.
        """

    def hang_up(self) -> None:
        """Close the connection."""
        self._socket.close()


def _reason(error: OSError | UnicodeError) -> str:
    said = (
        getattr(error, "verify_message", None)
        or getattr(error, "strerror", None)
        or str(error)
        or type(error).__name__
    )
    return one_line(str(said), 100).rstrip(".")
