"""One GET of a URL, from a checked address, with limits on time and size.

Connections go only to addresses that `addresses.resolve` returned, and never through a proxy, which would
look the name up again. `web` interprets the body.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin

from localagent.distribution import install_command
from localagent.errors import ToolError, UsageError
from localagent.toolbox.addresses import Endpoint, ParsedUrl, read_url, resolve

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_HEADERS = 100
_ADDRESSES = 4
"""Addresses of one host that are tried."""
_ENDED = "the connection ended before the answer did"
_HEADERS = {
    "User-Agent": "localagent",
    "Accept": "text/html, text/*, application/json, image/*;q=0.8, */*;q=0.1",
    # Some servers pack all the same. `_read_body` unpacks, since httpx would without a limit.
    "Accept-Encoding": "identity",
    "Connection": "close",
}


def require() -> None:
    """Load the libraries of the web tool. Raises UsageError when one is not installed."""
    try:
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


def _get(target: ParsedUrl, limits: Limits, clock: Clock) -> Fetched | str:
    """The answer to one request, or where it redirects to. Raises ToolError."""
    require()
    import httpcore2
    import httpx2

    from localagent.transport import Transport

    endpoints = resolve(target, min(clock.left(), limits.connect_seconds), limits.allow_private)
    transport = Transport(
        clock.left, lambda *_: _connected(endpoints, limits, clock), secure=target.scheme == "https"
    )
    url = f"{target.scheme}://{target.netloc}{target.path}"
    extensions = {"sni_hostname": target.host.rstrip(".")}
    waits = httpx2.Timeout(limits.idle_seconds, connect=limits.connect_seconds)
    try:
        with (
            httpx2.Client(transport=transport, timeout=waits, headers=_HEADERS) as client,
            client.stream("GET", url, extensions=extensions) as response,
        ):
            if len(response.headers) > _MAX_HEADERS or not response.http_version.startswith("HTTP/1."):
                raise ToolError(f"{target.host}: the answer is broken HTTP")
            given = response.headers
            location = given.get("location", "").strip()
            if response.status_code in _REDIRECTS and location:
                return location.replace(" ", "%20")
            encoding = given.get("content-encoding", "")
            body, problem = _read_body(response.iter_raw(), encoding, limits.max_bytes)
            return Fetched(
                target.url,
                response.status_code,
                response.reason_phrase,
                given.get("content-type", ""),
                body,
                problem,
            )
    except httpcore2.ReadTimeout as error:
        raise ToolError(f"nothing came for {limits.idle_seconds:g} seconds") from error
    except httpcore2.ProtocolError as error:
        reason = "the answer is broken HTTP" if transport.received else _ENDED
        raise ToolError(f"{target.host}: {reason}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ToolError(f"{target.host}: {reason or 'the connection failed'}") from error
    except ValueError as error:  # a length of thousands of digits
        raise ToolError(f"{target.host}: the answer is broken HTTP") from error


def _connected(endpoints: Sequence[Endpoint], limits: Limits, clock: Clock) -> socket.socket:
    """A connection to the first address that answers: the name is not looked up again. Raises OSError."""
    problem = OSError("it has no address")
    for endpoint in endpoints[:_ADDRESSES]:
        connection = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(clock.left(), limits.connect_seconds))
            connection.connect(endpoint.address)
            return connection
        except OSError as error:
            problem = error
            connection.close()
    raise problem


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
