"""A server across its connections: started, called, and restarted after it died.

Everything here runs in the event loop's thread. A call is never sent twice, since the first one may have had
an effect even if its result was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from localagent.errors import McpFailed, ToolError
from localagent.mcp.config import ServerConfig
from localagent.mcp.failures import failure
from localagent.mcp.link import Link
from localagent.mcp.tools import fingerprint

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool

ATTEMPTS = 3
"""Failures in a row after which a server is not started for `REST` seconds."""
REST = 30.0
"""Seconds of that pause."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server, for display."""

    name: str
    state: Literal["starting", "running", "failed", "closed"]
    about: str = ""
    """The server's own name and version."""
    tools: tuple[str, ...] = ()
    """The server's own names of all tools in its last list, including those not offered."""
    error: str | None = None
    """The last failure."""


class McpServer:
    """One server of the configuration. `report` receives failures that no caller is waiting for."""

    def __init__(
        self,
        config: ServerConfig,
        tasks: TaskGroup,
        start_timeout: float,
        report: Callable[[str, McpFailed], None],
    ) -> None:
        import anyio

        self.config = config
        self.listing: tuple[Tool, ...] = ()
        """The last list of tools. It is replaced, never changed, so any thread may read it."""
        self.first: dict[str, Tool] | None = None
        """The tools of its first list by name, kept over restarts."""
        self._tasks = tasks
        self._start_timeout = start_timeout
        self._report = report
        self._link: Link | None = None
        self._failures = 0
        self._rest_until = 0.0
        self._starting = anyio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start it if it is not running. Raises McpFailed."""
        await self._linked()

    async def restart(self) -> None:
        """End it, forget its failures and start it. Raises McpFailed."""
        self._failures = 0
        if self._link is not None:
            self._link.stop()
        await self._linked()

    def close(self) -> None:
        """Tell it to end for good; the connection's task does the work."""
        self._closed = True
        if self._link is not None:
            self._link.stop()

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> CallToolResult:
        """Call a tool; a dead server is started first. Raises ToolError.

        `tool` is the tool as it was offered. If it has changed since, the user's approval does not cover it,
        so the call is refused.
        """
        try:
            link = await self._linked()
        except McpFailed as error:
            raise ToolError(str(error)) from error
        now = next((each for each in link.tools if each.name == tool.name), None)
        if fingerprint(now) != fingerprint(tool):
            changed = f"has changed or withdrawn its tool {tool.name!r:.80} since it was offered"
            raise ToolError(f"the MCP server {self.config.name} {changed}; the call was not sent")
        result = await link.call(tool.name, arguments, on_progress)
        self._failures = 0
        return result

    @property
    def status(self) -> ServerStatus:
        """Its state; any thread may ask."""
        link = self._link
        names = tuple(tool.name for tool in self.listing)
        if self._closed or link is None:
            return ServerStatus(self.config.name, "closed", tools=names)
        state: Literal["starting", "running", "failed"]
        state = "running" if link.open else "failed" if link.ready.is_set() else "starting"
        error = link.error
        if state == "failed" and error is None:  # its connection is being closed
            error = failure(self.config.name, "it ended by itself")
        return ServerStatus(self.config.name, state, link.about, names, str(error) if error else None)

    async def _linked(self) -> Link:
        """An open connection, made if need be. Raises McpFailed if that fails."""
        import anyio

        async with self._starting:
            link = self._link
            if link is None or not (link.open or not link.ready.is_set()):
                if link is not None:
                    await link.finished.wait()  # two processes of one server might get in each other's way
                if self._closed:
                    raise failure(self.config.name, "it was closed")
                rest = self._rest_until - anyio.current_time()
                if self._failures >= ATTEMPTS and rest > 0:
                    why = f"; {link.error}" if link and link.error else ""
                    raise failure(
                        self.config.name,
                        f"it failed {self._failures} times in a row and is left alone for {rest:.0f} s{why}",
                    )
                self._link = link = Link(self.config, self._start_timeout, self._on_tools)
                self._tasks.start_soon(self._live, link)
            await link.ready.wait()
            if link.open:
                return link
            await link.finished.wait()  # only then the cause of death is known
            raise link.error or failure(self.config.name, "it was closed")

    async def _live(self, link: Link) -> None:
        """The task of a connection."""
        import anyio

        await link.live()
        if link.error is not None:
            self._failures += 1
            if self._failures >= ATTEMPTS:
                self._rest_until = anyio.current_time() + REST
            if link.ready.is_set():  # otherwise the caller that started it gets the error
                self._report(self.config.name, link.error)
        link.ready.set()
        link.finished.set()

    def _on_tools(self, link: Link, problem: McpFailed | None) -> None:
        if problem is None:
            self.listing = link.tools
            if self.first is None:
                # Of two with one name, the first is offered.
                self.first = {tool.name: tool for tool in reversed(link.tools)}
        else:
            self._report(self.config.name, problem)
