"""Connections to a server: through a program's pipes, or over HTTP.

A program's standard error never reaches the terminal. Its end is kept to explain a failure, and so is the
last HTTP error status.
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
    from anyio.abc import Process
    from mcp.client._transport import TransportStreams

KEPT = 4096
"""Bytes of a server's standard error that are kept."""
SHOWN = 300
"""Characters of them that an error shows."""
LOOK = 0.25
"""Seconds between checks whether a program has ended."""
LAST_READS = 16
"""The most reads of standard error after a program ended, since its children may write for ever."""
LONGEST_EVENT = 64 * 2**20
"""Bytes of one message over HTTP: enough for the largest media in base64."""


def require() -> None:
    """Import the package. Raises McpFailed if it is not installed."""
    try:
        import mcp.client.streamable_http  # noqa: F401
    except ImportError as error:
        raise McpFailed(f"MCP is not installed: {install_command('mcp')} [{error}]") from error
    # The package logs bad messages with a traceback, and Python prints log records that have no handler. This
    # handler keeps them off the terminal; a program that configures logging still gets them.
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class Traces:
    """Signs of what went wrong with a server, besides its messages."""

    def __init__(self) -> None:
        self._stderr = b""
        self.status: int | None = None
        """The last HTTP status of 400 or above."""
        self.lost_session = False
        """The server answered that it no longer knows our session."""

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
        """Note an HTTP answer's error status."""
        if response.status_code >= 400 and response.request.method == "POST":
            self.status = response.status_code
            if response.status_code == 404 and "mcp-session-id" in response.request.headers:
                self.lost_session = True


@asynccontextmanager
async def connect(config: ServerConfig, traces: Traces) -> AsyncIterator[TransportStreams]:
    """The streams to and from a server, which ends when the context does."""
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
    import anyio
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.os.posix.utilities import terminate_posix_process_tree

    parameters = StdioServerParameters(
        command=config.command,
        args=list(config.args),
        env=dict(config.env),
        cwd=config.cwd,
        # One bad byte must not end the connection: the line with it is no valid message and is skipped.
        encoding_error_handler="replace",
    )
    process: Process | None = None
    try:
        async with _kept_stderr(traces) as end, AsyncExitStack() as program:
            with os.fdopen(end, "w") as stderr:
                client = stdio_client(parameters, errlog=stderr)
                streams = await program.enter_async_context(client)
            # The program has its copy of the pipe's writing end; without ours the pipe ends when it does.
            process = client.gen.ag_frame.f_locals["process"]  # type: ignore[attr-defined]  # kept to itself
            watching = await program.enter_async_context(anyio.create_task_group())
            watching.start_soon(_end_children, process)
            yield streams
            watching.cancel_scope.cancel()
    finally:
        if process is not None:
            with anyio.CancelScope(shield=True):
                await terminate_posix_process_tree(process)


async def _end_children(process: Process) -> None:
    """Once a program has ended, end what it has started: what has inherited its pipes would hide its end."""
    import anyio
    from mcp.os.posix.utilities import terminate_posix_process_tree

    while process.returncode is None:
        await anyio.sleep(LOOK)
    await terminate_posix_process_tree(process)


@asynccontextmanager
async def _kept_stderr(traces: Traces) -> AsyncIterator[int]:
    """The writing end of a pipe that is read all the time, so that writing never blocks the server."""
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
        # No read timeout: a tool may be silent while it works, and the caller limits how long a call takes.
        timeout=httpx2.Timeout(30.0, read=None),
        event_hooks={"response": [traces.look]},
    )
    async with (
        client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=LONGEST_EVENT) as streams,
    ):
        yield streams
