"""One GET of a URL, from a checked address, with limits on time and size.

The HTTP library is httpcore, the lower layer of httpx, because it lets our own class make the connection, and
only to an address that `addresses.resolve` returned. Proxies from the environment are ignored, since they
would look the name up again. `web` interprets the body.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

from localagent.distribution import install_command
from localagent.errors import ToolError, UsageError
from localagent.toolbox.addresses import Endpoint, Target, read_url, resolve

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_HEADERS = 100
_TICK = 0.2
"""Seconds between looks at whether the call was cancelled."""
_ADDRESSES = 4
"""Addresses of one host that are tried."""
_ENDED = "the connection ended before the answer did"
_HEADERS: dict[bytes | str, bytes | str] = {
    "User-Agent": "localagent",
    "Accept": "text/html, text/*, application/json, image/*;q=0.8, */*;q=0.1",
    # Some servers pack all the same. `_read_body` unpacks, since httpx would without a limit.
    "Accept-Encoding": "identity",
    "Connection": "close",
}


def require() -> None:
    """Load the libraries of the web tool. Raises UsageError when one is not installed."""
    try:
        import httpcore2  # noqa: F401
        import lxml.etree  # noqa: F401
    except ImportError as error:
        raise UsageError(f"the web tool is not installed: {install_command('web')} [{error}]") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may do, and how long and how large it may be."""

    allow_private: bool
    """Also fetch from this machine and its network."""
    connect_seconds: float
    idle_seconds: float
    """For how long nothing may come."""
    seconds: float
    """For all of it, redirects included."""
    max_bytes: int
    """Of a body, both as it comes and unpacked."""
    max_redirects: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer that is not a redirect. Its reason and content type are as the server wrote them."""

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
        """The seconds left. Raises ToolError when there are none, or when the call was cancelled."""
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
            raise ToolError(f"{target.host}: redirects to {answer!r:.200}, which is not a URL") from error
    raise ToolError(f"{url:.200}: more than {limits.max_redirects} redirects")


def _get(target: Target, limits: Limits, clock: Clock) -> Fetched | str:
    """The answer to one request, or where it redirects to. Raises ToolError."""
    require()
    import ssl

    import httpcore2

    endpoints = resolve(target, min(clock.left(), limits.connect_seconds), limits.allow_private)
    network = _Network(endpoints, limits, clock)
    url = httpcore2.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )
    headers = {"Host": target.netloc, **_HEADERS}
    extensions = {"sni_hostname": target.host.rstrip(".")}
    tls = ssl.create_default_context() if target.scheme == "https" else None
    pool = httpcore2.ConnectionPool(ssl_context=tls, network_backend=cast(Any, network))
    try:
        with (
            closing(network),
            pool,
            pool.stream("GET", url, headers=headers, extensions=extensions) as response,
        ):
            if len(response.headers) > _MAX_HEADERS or response.extensions["http_version"][:7] != b"HTTP/1.":
                raise ToolError(f"{target.host}: the answer is broken HTTP")
            given = {name.lower(): value for name, value in reversed(response.headers)}
            location = given.get(b"location", b"").strip().decode("utf-8", "replace")
            if response.status in _REDIRECTS and location:
                return location.replace(" ", "%20")
            encoding = given.get(b"content-encoding", b"").decode("latin-1")
            body, problem = _read_body(response.iter_stream(), encoding, limits.max_bytes)
            reason = response.extensions["reason_phrase"].decode("latin-1")
            content_type = given.get(b"content-type", b"").decode("latin-1")
            return Fetched(target.url, response.status, reason, content_type, body, problem)
    except httpcore2.ProtocolError as error:
        reason = "the answer is broken HTTP" if network.received else _ENDED
        raise ToolError(f"{target.host}: {reason}") from error
    except OSError as error:
        reason = getattr(error, "verify_message", None) or error.strerror or str(error)
        raise ToolError(f"{target.host}: {reason or 'the connection failed'}") from error
    except ValueError as error:  # a length of thousands of digits
        raise ToolError(f"{target.host}: the answer is broken HTTP") from error


def _read_body(pieces: Iterator[bytes], encoding: str, limit: int) -> tuple[bytes, str]:
    """At most `limit` bytes of a body, unpacked, and why there are not more."""
    import httpcore2

    match encoding.strip().lower():
        case "" | "identity":
            unpack = None
        case "gzip" | "x-gzip" | "deflate":  # although that was not asked for
            unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out which of the two it is
        case _:
            raise ToolError(f"the answer is compressed as {encoding!r:.50}, which was not requested")
    body = bytearray()
    taken = 0
    try:
        for piece in pieces:
            taken += len(piece)
            body += piece if unpack is None else unpack.decompress(piece, limit + 1 - len(body))
            if len(body) > limit or taken > limit:
                return bytes(body[:limit]), f"cut after {limit:,} bytes"
    except zlib.error:
        raise ToolError("the answer is compressed, but cannot be decompressed") from None
    except httpcore2.RemoteProtocolError as error:
        if not str(error).startswith("peer closed connection"):
            raise
        return bytes(body), _ENDED
    whole = unpack is None or unpack.eof or not taken
    return bytes(body), "" if whole else _ENDED


class _Network:
    """What the HTTP library connects with and reads from: one connection, to an address that was checked.

    However little comes at a time, no wait passes the deadline, and a cancelled call ends soon.
    """

    def __init__(self, endpoints: Sequence[Endpoint], limits: Limits, clock: Clock) -> None:
        self._endpoints = endpoints[:_ADDRESSES]
        self._limits = limits
        self._clock = clock
        self._socket: socket.socket | None = None
        self.received = False
        """Whether anything came."""

    def connect_tcp(self, *_: Any, **__: Any) -> _Network:
        """Connect to the first address that answers: the name is not looked up again. Raises OSError."""
        problem = OSError("it has no address")
        for endpoint in self._endpoints:
            try:
                self._socket = socket.socket(endpoint.family, socket.SOCK_STREAM)
                self._wait_at_most(self._limits.connect_seconds).connect(endpoint.address)
                return self
            except OSError as error:
                problem = error
                self.close()
        raise problem

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: Any = None
    ) -> _Network:
        """Speak TLS from now on. Raises OSError."""
        connection = self._wait_at_most(self._limits.connect_seconds)
        self._socket = ssl_context.wrap_socket(connection, server_hostname=server_hostname)
        return self

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What has come, at least one byte; none at the end. Raises OSError, ToolError."""
        idle_end = time.monotonic() + self._limits.idle_seconds
        while True:
            try:
                data = self._wait_at_most(_TICK).recv(max_bytes)
            except TimeoutError:
                if time.monotonic() > idle_end:
                    raise ToolError(f"nothing came for {self._limits.idle_seconds:g} seconds") from None
            else:
                self.received = self.received or bool(data)
                return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all. Raises OSError."""
        self._wait_at_most(self._limits.idle_seconds).sendall(buffer)

    def close(self) -> None:
        """Close the connection."""
        if self._socket:
            self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        """What the library asks for concerns HTTP/2 and connections that are used again: not this one."""

    def _wait_at_most(self, seconds: float) -> socket.socket:
        assert self._socket
        self._socket.settimeout(min(self._clock.left(), seconds))
        return self._socket
