"""A connection: uvicorn's HTTP/1.1, within bounds on what one client may cost all others.

It works on either of uvicorn's parsers: httptools where that is installed, else h11, which takes many times
as long for a chunk. What arrives is parsed in turns of a few milliseconds, since a quarter of a megabyte may
come at once, and be forty thousand chunks of one byte.

The body of a request is parsed while the application reads it, and never for those who are refused: they get
their answer, the server closes its side of the connection, and what they still send is thrown away. Closing
the other side as well would be a reset, and most clients, which send all of a body before they read anything,
would report that and never look for an answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from localagent.server.bounds import BACKED_UP, CROWDED, DEFAULT_BOUNDS, Bounds

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Parser
else:
    Parser = object  # h11's or httptools', beside this class

_TURN = 0.004
"""Seconds in which a connection is parsed before others have their turn."""
_LEAST, _MOST = 512, 1 << 16
"""Bytes that are given to the parser at once; more and more of them while it is quick."""
_WAITING = 1 << 16
"""Bytes that wait for their turn before the socket is not read any more."""
_THROWN_AWAY = 4
"""How many times the largest body is thrown away after a refusal."""


def protocol(bounds: Bounds) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection of one server."""
    return type("Protocol", (BoundedProtocol, AutoHTTPProtocol), {"bounds": bounds, "waiting": set()})


class BoundedProtocol(Parser):
    """Time limits for heads, limits to the connections and to their share of the event loop."""

    bounds = DEFAULT_BOUNDS
    waiting: set[BoundedProtocol]
    """The connections of this server that have more to be parsed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first request."""
        self._socket = transport
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        # uvicorn's own limit answers in plain text, which the clients of no API expect.
        crowded = len(self.connections) > self.bounds.connections
        self.app_state = {
            **self.app_state,
            CROWDED: crowded,
            BACKED_UP: lambda: self.flow.write_paused,
        }
        self._arrived = bytearray()
        self._size = 8 * _LEAST
        self._fruitless = 0  # bytes of a head that is not whole, or in which no byte of a body came
        self._left: int | None = None  # bytes that are still thrown away, after the answer
        self._ends = False  # the server does
        self._due = 0.0
        self._turn: asyncio.Handle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._expect(self.bounds.header_time)

    def data_received(self, data: bytes) -> None:
        """Parse it, at once if this connection has parsed little of late."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._socket.abort()
            return
        self._arrived += data
        if self._turn is None and monotonic() >= self._due:
            self._parse()
        else:
            self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._expect(None)
        self._arrived.clear()
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Parse the next request, unless there is more of this one, which nobody will read."""
        super().on_response_complete()
        if not self.has_hung_up and self._is_unread:
            self.hang_up()
        self.go_on()

    # -- parsing -----------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Have a turn, as soon as it is due, if there is something to parse and somebody waits for it."""
        if self._arrived and self._turn is None and self._may_parse:
            self.waiting.add(self)
            self._turn = self.loop.call_later(max(0.0, self._due - monotonic()), self._parse)
        # Reading goes on while little waits, since only so it is seen that a client leaves.
        if len(self._arrived) > _WAITING:
            self._socket.pause_reading()
        elif not self.flow.read_paused and not self._socket.is_closing():
            self._socket.resume_reading()

    def _parse(self) -> None:
        self._stop_waiting()
        began = now = monotonic()
        while self._arrived and self._may_parse and now - began < _TURN:
            piece = bytes(self._arrived[: self._size])
            del self._arrived[: self._size]
            self._feed(piece)
            took = monotonic() - now
            now += took
            self._size = min(2 * self._size, _MOST) if took < _TURN / 4 else max(self._size // 2, _LEAST)
        self._due = now + (now - began) * (1 + len(self.waiting)) / self.bounds.parsing
        if not self.has_hung_up:
            self._expect(self.bounds.header_time if self._is_between else None)
        self.go_on()

    def _feed(self, piece: bytes) -> None:
        before, had = self.cycle, len(self.cycle.body) if self.cycle is not None else 0
        super().data_received(piece)
        begun = self.cycle is not before
        if begun and self.cycle.more_body:
            self.flow.pause_reading()  # until the application asks for the body
        grown = begun or (self.cycle is not None and (len(self.cycle.body) > had or not self.cycle.more_body))
        self._fruitless = 0 if grown and not self._is_between else self._fruitless + len(piece)
        if self._fruitless > self.bounds.header_bytes:
            if self._is_between:
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large")
            else:
                self._socket.abort()

    @property
    def _is_between(self) -> bool:
        """Whether what comes next is the head of a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_unread(self) -> bool:
        """Whether a request was answered of which not all had come."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    @property
    def _may_parse(self) -> bool:
        """Whether somebody waits for what has arrived: it is a head, or a body that is being read."""
        wanted = self._is_between or self.cycle.more_body
        return wanted and not self.flow.read_paused and not self.transport.is_closing()

    def _stop_waiting(self) -> None:
        self.waiting.discard(self)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # -- ending ------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Called by uvicorn: the server ends, and waits for nobody who only goes on sending."""
        self._ends = True
        if self.has_hung_up:
            self._socket.close()
        else:
            super().shutdown()

    @property
    def has_hung_up(self) -> bool:
        """Whether nothing is sent any more, and what still comes is thrown away."""
        return self._left is not None

    def hang_up(self) -> None:
        """Close the connection: only its own side first, where a client is still sending a body."""
        if self._is_unread and not (self._ends or self.has_hung_up or self._socket.is_closing()):
            self._throw_away()
        else:
            self._socket.close()

    def _throw_away(self) -> None:
        self._left = _THROWN_AWAY * self.bounds.body
        self._arrived.clear()
        self._stop_waiting()
        with suppress(OSError):  # the client has gone already
            self._socket.write_eof()
        self._socket.resume_reading()
        self._expect(None)
        self._expect(self.bounds.drain_time)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection after so many seconds, or never. A time that runs already goes on."""
        if seconds is None and self._late is not None:
            self._late.cancel()
            self._late = None
        elif seconds is not None and self._late is None:
            self._late = self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        self._late = None
        if self._is_between and self._fruitless and not self.has_hung_up:
            self._refuse(b"408 Request Timeout", b"the headers took too long")
        else:
            self._socket.close()

    def _refuse(self, status: bytes, said: bytes) -> None:
        """Answer a head that is not whole."""
        if not self._socket.is_closing():
            head = b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(said))
            self._socket.write(head + said)
            self._throw_away()

    # -- httptools ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools: leave the trailers after a body out, which would count as headers."""
        if self._is_between or not self.cycle.more_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by httptools: keep the target as it was sent.

        uvicorn would leave out the host that it may name, and refuse what is no path, such as `*`.
        """
        url, self.url = self.url, b"/"
        super().on_headers_complete()
        path, _, query = url.partition(b"?")
        told = {"raw_path": path, "path": unquote(path.decode("ascii")), "query_string": query}
        self.scope.update(told)  # type: ignore[typeddict-item]
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # it parses nothing after that


class _Transport:
    """The transport as uvicorn sees it: a connection that is closed may go on reading for a while."""

    def __init__(self, transport: asyncio.Transport, connection: BoundedProtocol) -> None:
        self._transport = transport
        self._connection = connection
        self.write = transport.write  # called for every token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def resume_reading(self) -> None:
        """The application asks for more of a body."""
        self._connection.go_on()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._connection.has_hung_up or self._transport.is_closing()

    def close(self) -> None:
        """Close it, in time."""
        self._connection.hang_up()
