"""HTTP that can be given up: a transport for httpx2 whose connections are waited for in short steps.

httpx2, the successor of httpx that `mcp` uses too, waits for a connection, for an answer and for each piece
of it until a timeout, and nothing can interrupt that. Here each wait is cut into `TICK` seconds, and `look`
is called between them, which raises if nobody waits any more.

Import it where it is used: httpx takes a while to load.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import monotonic
from typing import Any, Self, TypeVar

import httpcore2
import httpx2

T = TypeVar("T")
Connect = Callable[[str, int, float], socket.socket]
"""Makes a connection to a host and port within some seconds. Raises OSError, UnicodeError."""
TICK = 0.05
"""Seconds between two looks."""
_PIECE = 1 << 14
"""Bytes that are sent at once."""


class Unconnected(OSError):
    """There is no connection; why not is its cause, and its text."""


class Untrusted(Unconnected):
    """The server's certificate is not one that this machine trusts."""


class Transport(httpx2.BaseTransport):
    """A transport for `httpx2.Client`. Every request has a connection of its own, which its end closes.

    What goes wrong is raised as Unconnected, OSError and httpcore2's errors, and as what `look` raises.
    """

    def __init__(
        self,
        look: Callable[[], object],
        connect: Connect | None = None,
        proxy: str | None = None,
        *,
        secure: bool,
    ) -> None:
        """`connect`: by default to the first address that answers. `proxy`: the URL of one to use.
        `secure`: whether HTTPS is spoken.
        """
        self._network = _Network(look, connect or (lambda *to: _connected(look, *to)))
        given: dict[str, Any] = {
            "network_backend": self._network,
            "ssl_context": ssl.create_default_context() if secure else None,  # to make one takes 20 ms
            "max_keepalive_connections": 0,
        }
        if proxy is None:
            self._pool = httpcore2.ConnectionPool(**given)
        else:
            asked = httpx2.Proxy(proxy)  # which knows what is a password in it
            self._pool = httpcore2.HTTPProxy(str(asked.url), asked.raw_auth, **given)

    @property
    def received(self) -> bool:
        """Whether any byte has come."""
        return self._network.received

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request over a connection of its own. Its body is read as it arrives."""
        url = request.url
        answer = self._pool.handle_request(
            httpcore2.Request(
                request.method,
                httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),  # type: ignore[arg-type]
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close what is still open."""
        self._pool.close()


class _Body(httpx2.SyncByteStream):
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]


class _Network(httpcore2.NetworkBackend):
    def __init__(
        self, look: Callable[[], object], connect: Callable[[str, int, float], socket.socket]
    ) -> None:
        self.look = look
        self.received = False
        self._connect = connect

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any
    ) -> httpcore2.NetworkStream:
        try:
            return _Connection(self._connect(host, port, timeout or inf), self)
        except (OSError, UnicodeError) as error:  # the second: a name that no host can have
            raise Unconnected(error.args[-1] if error.args else "") from error


class _Connection(httpcore2.NetworkStream):
    def __init__(self, connection: socket.socket, network: _Network) -> None:
        self._socket = connection
        self._network = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._patiently(lambda: self._socket.recv(max_bytes), timeout, httpcore2.ReadTimeout)
        self._network.received |= bool(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        while left:
            # The same bytes again where they could not be sent: TLS asks for that.
            piece = left[:_PIECE]
            left = left[self._patiently(lambda: self._socket.send(piece), timeout, httpcore2.WriteTimeout) :]  # noqa: B023

    def _patiently(self, step: Callable[[], T], timeout: float | None, error: type[Exception]) -> T:
        self._socket.settimeout(TICK)
        end = monotonic() + (timeout or inf)
        while True:
            self._network.look()
            try:
                return step()
            except TimeoutError:
                if monotonic() > end:
                    raise error from None

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Self:
        secured = ssl_context.wrap_socket(
            self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
        )
        made = type(self)(secured, self._network)
        try:
            made._patiently(secured.do_handshake, timeout, Unconnected)
        except BaseException as error:
            secured.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise Untrusted(error.verify_message) from error
            if isinstance(error, OSError):
                raise Unconnected(error.strerror or str(error)) from error
            raise
        return made

    def close(self) -> None:
        self._socket.close()


def _connected(look: Callable[[], object], host: str, port: int, seconds: float) -> socket.socket:
    """Connect, in a thread: looking a name up cannot be interrupted. Raises OSError, UnicodeError.

    Where `look` raises meanwhile, the thread closes what it gets in the end.
    """
    made: list[socket.socket | BaseException] = []
    left = threading.Event()

    def connect() -> None:
        try:
            made.append(socket.create_connection((host, port), seconds))
        except BaseException as error:
            made.append(error)
        if left.is_set():
            hang_up()

    def hang_up() -> None:
        while made:
            if isinstance(connection := made.pop(), socket.socket):
                connection.close()

    thread = threading.Thread(target=connect, name="localagent-connecting", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TICK)
            look()
    except BaseException:
        left.set()
        hang_up()
        raise
    (connection,) = made
    if isinstance(connection, BaseException):
        raise connection
    return connection
