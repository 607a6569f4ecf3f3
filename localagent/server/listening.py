"""The socket and uvicorn: how long a client may take for the head of a request, and how the server ends.

uvicorn waits for ever for headers; `BoundedProtocol` does not. Its h11 parser is used since it bounds the
size of a head and is strict about framing. `Listener` ends running answers before uvicorn waits for them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from localagent.errors import UsageError
from localagent.server.bounds import CROWDED, DEFAULT_BOUNDS, Bounds

_BACKLOG = 256
_GRACE = 5
"""Seconds that connections have to take the end of their answers when the server stops."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of a request, and a limit to the connections.

    uvicorn's own limit answers in plain text, which the clients of no API expect.
    """

    bounds = DEFAULT_BOUNDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first request."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, CROWDED: len(self.connections) > self.bounds.connections}
        self._late: asyncio.TimerHandle | None = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Parse; stop waiting once the head of a request is whole."""
        super().data_received(data)
        # What is left of a request that was answered already has the same time: nobody reads that body, and
        # the first byte of it stops uvicorn's own timer.
        awaited = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if awaited and not self.transport.is_closing():
            self._expect()
        else:
            self._expect_nothing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.bounds.header_time, self._too_late)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            said = b"the headers took too long"
            headers = [("content-length", str(len(said))), ("connection", "close")]
            response = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
            for event in (response, h11.Data(data=said), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Listener(uvicorn.Server):
    """A uvicorn server that ends running answers first when it is to stop."""

    def __init__(self, config: uvicorn.Config, end_answers: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._end_answers = end_answers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, end the answers with an error, wait for the connections."""
        for server in self.servers:
            server.close()
        await self._end_answers()
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl-C: uvicorn waits for nobody then, and leaves this out
            await self.lifespan.shutdown()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError if the port is taken or the address is not this machine's."""
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named, or asyncio does not turn Nagle's algorithm off: each answer then waits 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name != "nt":  # there it would share the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        return listening
    except OSError as error:
        if listening is not None:
            listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is taken: is a server running already? Choose another with --port"
            ) from None
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def listener(app: Any, bounds: Bounds, end_answers: Callable[[], Awaitable[None]]) -> Listener:
    """A server for an ASGI application; `run(sockets=[...])` serves until SIGINT or SIGTERM."""

    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), {"bounds": bounds}),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,  # the application writes its own, without query strings
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE,
        h11_max_incomplete_event_size=bounds.header_bytes,
    )
    return Listener(config, end_answers)
