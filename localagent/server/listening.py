"""The socket and uvicorn, and how the server ends: running answers first, before uvicorn waits for them.

SIGTERM comes from what looks after services, and lets answers end; Ctrl-C is pressed by somebody who waits.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn

from localagent.errors import UsageError
from localagent.server.bounds import Bounds
from localagent.server.connection import protocol

_BACKLOG = 256
_GRACE = 1
"""Seconds that connections have to take the end of their answers when the server stops; what is not taken
then is cut off.
"""


EndAnswers = Callable[[Callable[[], bool]], Awaitable[None]]
"""Ends all answers, and lets them go on before that as long as the function says so; see `Service.stop`."""


class Listener(uvicorn.Server):
    """A uvicorn server that ends running answers first when it is to stop."""

    def __init__(self, config: uvicorn.Config, end_answers: EndAnswers) -> None:
        super().__init__(config)
        self._end_answers = end_answers
        self._drains = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops the server, and the second one at once."""
        if self.should_exit:
            self._drains, self.force_exit = False, True
        else:
            self._drains = sig == signal.SIGTERM
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers end or end them with an error, stop accepting, wait for the connections.

        Whoever comes until then is told that the server stops.
        """
        await self._end_answers(lambda: self._drains)
        await super().shutdown(sockets)
        if self.force_exit:  # a second signal: uvicorn waits for nobody then, and leaves this out
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


def listener(app: Any, bounds: Bounds, end_answers: EndAnswers) -> Listener:
    """A server for an ASGI application; `run(sockets=[...])` serves until SIGINT or SIGTERM."""

    config = uvicorn.Config(
        app,
        http=protocol(bounds),
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
