"""One GET over HTTP/1.1, to an address that was checked, within a time and a size.

Knows sockets, TLS and redirects. Does not know what a body means. Contract: it connects to the addresses that
`addresses.resolve` gave and to no other; proxies of the environment are not used, since they would resolve
the name anew. Every wait is bounded by one deadline and ends when the call is cancelled.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

from localagent.errors import ToolError
from localagent.toolbox.addresses import Endpoint, Target, read_url, resolve

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PIECE = 65_536
_TICK = 0.2
"""Seconds between looks at whether the call was cancelled."""
_ADDRESSES = 4
"""Addresses of one host that are tried."""
_ENDED = "the connection ended before the answer did"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may do and take."""

    allow_private: bool = False
    """Also fetch from this machine and its network."""
    connect_seconds: float = 10.0
    idle_seconds: float = 15.0
    """How long nothing may come."""
    seconds: float = 30.0
    """For all of it, redirects included."""
    max_bytes: int = 2_000_000
    """Of a body, as it comes and unpacked."""
    max_redirects: int = 5


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer that is no redirect. Headers and reason are as the server wrote them."""

    url: str
    status: int
    reason: str
    content_type: str
    body: bytes
    problem: str = ""
    """Why the body is not whole."""


class Clock:
    """How long a call may still wait."""

    def __init__(self, seconds: float, cancel: threading.Event) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._cancel = cancel

    def left(self) -> float:
        """Seconds. Raises ToolError when there are none, or nobody waits any more."""
        if self._cancel.is_set():
            raise ToolError("the request was cancelled")
        left = self._end - time.monotonic()
        if left <= 0:
            raise ToolError(f"no complete answer within {self._seconds:g} seconds")
        return left


def fetch(url: str, limits: Limits, cancel: threading.Event) -> Fetched:
    """Get a URL, following redirects, each of which is checked like the first. Raises ToolError."""
    clock = Clock(limits.seconds, cancel)
    target = read_url(url)
    for _ in range(limits.max_redirects + 1):
        answer = _get(target, limits, clock)
        if isinstance(answer, Fetched):
            return answer
        try:
            target = read_url(urljoin(target.url, answer))
        except ValueError as error:
            raise ToolError(f"{target.host}: redirects to {answer!r:.200}, which is no URL") from error
    raise ToolError(f"{url:.200}: more than {limits.max_redirects} redirects")


def _get(target: Target, limits: Limits, clock: Clock) -> Fetched | str:
    """The answer to one request, or where it redirects to. Raises ToolError."""
    endpoints = resolve(target, min(clock.left(), limits.connect_seconds), limits.allow_private)
    try:
        with _connected(target, endpoints, limits, clock) as stream:
            stream.sendall(
                f"GET {target.path} HTTP/1.1\r\nHost: {target.netloc}\r\nUser-Agent: localagent\r\n"
                "Accept: text/html, text/*, application/json, image/*;q=0.8, */*;q=0.1\r\n"
                "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
            )
            with closing(http.client.HTTPResponse(cast(socket.socket, stream), method="GET")) as response:
                response.begin()
                location = response.headers.get("Location")
                if response.status in _REDIRECTS and location:
                    return _location(location)
                body, problem = _read_body(response, limits.max_bytes)
                content_type = response.headers.get("Content-Type", "")
                return Fetched(target.url, response.status, response.reason, content_type, body, problem)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a malformed number
        raise ToolError(f"{target.host}: {_reason(error)}") from error


def _location(header: str) -> str:
    """A redirect's target: bytes beyond ASCII are UTF-8 where they are anything."""
    raw = header.strip().encode("latin-1", "replace")
    return raw.decode("utf-8", "replace").replace(" ", "%20")


def _reason(error: Exception) -> str:
    match error:
        case http.client.RemoteDisconnected():
            return _ENDED
        case http.client.BadStatusLine() | http.client.LineTooLong():
            return "the answer is no HTTP"
        case http.client.HTTPException():
            return f"the answer is broken HTTP ({type(error).__name__})"
        case OSError():
            return (
                getattr(error, "verify_message", None)
                or error.strerror
                or str(error)
                or "the connection failed"
            )
    return "the answer is broken HTTP"


@contextmanager
def _connected(target: Target, endpoints: list[Endpoint], limits: Limits, clock: Clock) -> Iterator[_Stream]:
    """A connection to the first address that answers, with TLS for https. Raises OSError."""
    problem: OSError = OSError("it has no address")
    for endpoint in endpoints[:_ADDRESSES]:
        connection = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(clock.left(), limits.connect_seconds))
            connection.connect(endpoint.address)
        except OSError as error:
            connection.close()
            problem = error
            continue
        except BaseException:
            connection.close()
            raise
        with closing(connection):
            connection.settimeout(min(clock.left(), limits.connect_seconds))
            if target.scheme == "http":
                yield _Stream(connection, limits.idle_seconds, clock)
                return
            import ssl

            with ssl.create_default_context().wrap_socket(
                connection, server_hostname=target.host.rstrip(".")
            ) as secure:
                yield _Stream(secure, limits.idle_seconds, clock)
                return
    raise problem


class _Stream(io.RawIOBase):
    """A connection as http.client reads it. However little comes at a time, no wait passes the deadline."""

    def __init__(self, connection: socket.socket, idle_seconds: float, clock: Clock) -> None:
        self._connection = connection
        self._idle_seconds = idle_seconds
        self._clock = clock

    def makefile(self, mode: str) -> io.BufferedReader:
        """What http.client asks of a socket."""
        assert mode == "rb"
        return io.BufferedReader(self, _PIECE)

    def sendall(self, data: bytes) -> None:
        """Send all. Raises OSError."""
        self._connection.settimeout(min(self._clock.left(), self._idle_seconds))
        self._connection.sendall(data)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has come, at least one byte; 0 at the end. Raises OSError, ToolError."""
        idle_end = time.monotonic() + self._idle_seconds
        while True:
            self._connection.settimeout(min(self._clock.left(), _TICK))
            try:
                return self._connection.recv_into(buffer)
            except TimeoutError:
                if time.monotonic() > idle_end:
                    raise ToolError(f"nothing came for {self._idle_seconds:g} seconds") from None


def _read_body(response: http.client.HTTPResponse, limit: int) -> tuple[bytes, str]:
    """At most `limit` bytes of a body, unpacked, and why there are not more."""
    unpack = _unpacker(response.headers.get("Content-Encoding", ""))
    body = bytearray()
    taken = 0
    while len(body) <= limit and taken <= limit:
        try:
            piece = response.read1(_PIECE)
        except http.client.IncompleteRead:
            return bytes(body), _ENDED
        if not piece:
            whole = not response.length and (unpack is None or unpack.eof or not taken)
            return bytes(body), "" if whole else _ENDED
        taken += len(piece)
        try:
            body += piece if unpack is None else unpack.decompress(piece, limit + 1 - len(body))
        except zlib.error:
            raise ToolError("the answer is packed, and cannot be unpacked") from None
    return bytes(body[:limit]), f"cut after {limit:,} bytes"


def _unpacker(encoding: str) -> Any:
    """What unpacks a body that is packed although that was not asked for; None for one that is not."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out which of the two it is
    raise ToolError(f"the answer is packed as {encoding!r:.50}, which was not asked for")
