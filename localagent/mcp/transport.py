"""How a server is reached: through a program's pipes, or over HTTP.

What a program writes to its standard error never reaches the terminal. The end of it is kept to explain a
failure, and so is the last HTTP status that was an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from localagent.distribution import install_command
from localagent.errors import McpFailed
from localagent.mcp.config import HttpServer, ServerConfig, StdioServer

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

KEPT = 4096
"""Bytes of a server's standard error that are kept."""
SHOWN = 300
"""Characters of them that an error shows."""
LAST_READS = 16
"""How often standard error is read after a program ended: its children may write for ever."""
LONGEST_EVENT = 64 * 2**20
"""Bytes of one message over HTTP: what a message may hold of media, in base64, and more."""


def require() -> None:
    """Load the package. Raises McpFailed when it is not installed."""
    try:
        import mcp.client.streamable_http  # noqa: F401
    except ImportError as error:
        raise McpFailed(f"MCP is not installed: {install_command('mcp')} [{error}]") from error
    # What a server writes wrongly is logged by the package with a traceback, and Python prints what is logged
    # and handled by nobody. A program that sets logging up still gets all of it.
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class Traces:
    """What a server left besides its messages."""

    def __init__(self) -> None:
        self._stderr = b""
        self.status: int | None = None
        """The last HTTP status of 400 or above."""
        self.lost_session = False
        """The server answered that it does not know the session that it began with us."""

    def keep(self, data: bytes) -> None:
        """Add to the standard error."""
        self._stderr = (self._stderr + data)[-KEPT:]

    @property
    def stderr(self) -> str:
        """The end of the standard error, on one line."""
        text = self._stderr.decode("utf-8", "replace")
        lines = [
            " ".join("".join(c if c.isprintable() else " " for c in line).split())
            for line in text.splitlines()
        ]
        return " | ".join(line for line in lines if line)[-SHOWN:]

    async def look(self, response: httpx2.Response) -> None:
        """Keep what an HTTP answer says."""
        if response.status_code >= 400 and response.request.method == "POST":
            self.status = response.status_code
            if response.status_code == 404 and "mcp-session-id" in response.request.headers:
                self.lost_session = True


@asynccontextmanager
async def connect(config: ServerConfig, traces: Traces) -> AsyncIterator[TransportStreams]:
    """The streams to and from a server, which is ended with them."""
    match config:
        case StdioServer():
            async with _program(config, traces) as streams:
                yield streams
        case HttpServer():
            async with _http(config, traces) as streams:
                yield streams
        case _:
            raise McpFailed(f"{type(config).__name__} is not a kind of server")


@asynccontextmanager
async def _program(config: StdioServer, traces: Traces) -> AsyncIterator[TransportStreams]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=config.command,
        args=list(config.args),
        env=dict(config.env),
        cwd=config.cwd,
        # One stray byte must not end the connection: what it stands in is no message, and is passed over.
        encoding_error_handler="replace",
    )
    async with _kept_stderr(traces) as end, AsyncExitStack() as program:
        with os.fdopen(end, "w") as stderr:
            streams = await program.enter_async_context(stdio_client(parameters, errlog=stderr))
        # The program has the pipe's end now; with ours closed, it ends when the program does.
        yield streams


@asynccontextmanager
async def _kept_stderr(traces: Traces) -> AsyncIterator[int]:
    """The writing end of a pipe whose other end is read all the time, so that nobody ever waits to write."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()

    def read() -> bool:
        with suppress(BlockingIOError):
            data = os.read(reading, 65536)
            traces.keep(data)
            if data:
                return True
            loop.remove_reader(reading)
        return False

    loop.add_reader(reading, read)
    try:
        yield writing
    finally:
        loop.remove_reader(reading)
        for _ in range(LAST_READS):
            if not read():
                break
        os.close(reading)


@asynccontextmanager
async def _http(config: HttpServer, traces: Traces) -> AsyncIterator[TransportStreams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        headers=config.headers,
        # A tool may say nothing for as long as it works; how long a call may take is decided above.
        timeout=httpx2.Timeout(30.0, read=None),
        event_hooks={"response": [traces.look]},
    )
    async with (
        client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=LONGEST_EVENT) as streams,
    ):
        yield streams
