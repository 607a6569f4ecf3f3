"""The MCP servers of a program, for use from any thread.

The `mcp` package is asynchronous, and the agent runs tools in threads. So all servers run in one event loop
in a background thread, which `open` starts and `close` ends. Each connection is one task there (`link.live`),
since the task that opened it must close it; a supervising task holds them all. A tool runs in its caller's
thread: it starts a task in the loop, which sends the request, and waits for progress or the result. When the
caller stops waiting, that task is cancelled, and with it the request.

`close` leaves nothing running: programs get the end of their input, after two seconds SIGTERM, and after two
more SIGKILL, together with their children. Those end as well when a program ends by itself. A process that
exits without `close` closes too, and the thread never delays its exit.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from localagent.errors import InvalidTool, McpFailed, ToolError, UsageError
from localagent.mcp.config import ServerConfig, load_config
from localagent.mcp.failures import failure
from localagent.mcp.server import McpServer, ServerStatus
from localagent.mcp.tools import as_output, offered_tool
from localagent.mcp.transport import require
from localagent.tools.bounds import TOOL_BOUNDS, ToolRoom
from localagent.tools.names import normal_name
from localagent.tools.tool import Tool, ToolContext, ToolOutput
from localagent.tools.toolset import shown_to_models
from localagent.wording import quoted

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus
    from anyio.from_thread import BlockingPortal
    from mcp_types import Tool as ListedTool

log = logging.getLogger(__name__)

Problem = Callable[[str, McpFailed], None]
GLANCE = 0.05
"""Seconds between checks whether a call was cancelled, or Ctrl-C was pressed during the start."""
BOUNDS = replace(TOOL_BOUNDS, count=900, together=1_800_000)
"""What is left belongs to an agent's own tools."""
CLOSED = "the MCP servers are closed"


class McpServers:
    """MCP servers that start together and offer their tools to an agent.

        with McpServers.from_file("mcp.json") as servers:
            agent = Agent(model, tools=[servers])

    Tools are named `{server}_{tool}`, or with `prefix=False` as the server names them. `on_problem` is called
    with the failure of a server at its start, for which `open` raises without it, and later, from another
    thread; and with tools that are left out, which are only logged without it. `start_timeout`: the seconds
    for a server to start and list its tools.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any] | Sequence[ServerConfig],
        *,
        prefix: bool = True,
        on_problem: Problem | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        given = isinstance(config, Sequence) and not isinstance(config, str)
        self._configs: tuple[ServerConfig, ...] = tuple(config) if given else load_config(config)  # type: ignore[arg-type]
        names = [one.name for one in self._configs]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two MCP servers have the name {name!r:.80}")
        self._prefix = prefix
        self._on_problem = on_problem
        self._start_timeout = start_timeout
        self._lock = threading.Lock()
        self._stack: ExitStack | None = None
        self._portal: BlockingPortal | None = None
        self._servers: dict[str, McpServer] = {}
        self._made: dict[str, tuple[tuple[ListedTool, ...], Sequence[Tool | InvalidTool], int]] = {}
        self._warned: set[tuple[str, str]] = set()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> McpServers:
        """The servers of a file in the standard `mcpServers` JSON. Raises UsageError."""
        return cls(path, **options)

    def open(self) -> Self:
        """Start all servers at once. If it raises McpFailed, everything is closed again."""
        with self._lock:
            if self._stack is not None:
                raise UsageError("these MCP servers are open already")
            require()
            from anyio.from_thread import start_blocking_portal

            with ExitStack() as stack:
                self._portal = portal = stack.enter_context(start_blocking_portal(name="localagent-mcp"))
                supervisor, started = portal.start_task(self._supervise)
                self._servers, stop = started
                stack.callback(self._end, portal, supervisor, stop)
                self._start_all(portal)
                self._stack = stack.pop_all()
            atexit.register(self.close)
        return self

    def close(self) -> None:
        """End all servers and the thread. Pending calls end with an error."""
        with self._lock:
            stack, self._stack = self._stack, None
            if stack is not None:
                atexit.unregister(self.close)
                stack.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        opening = asyncio.ensure_future(asyncio.to_thread(self.open))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._interrupt()
            await asyncio.wait([opening])
            if opening.exception() is None:
                await asyncio.to_thread(self.close)
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def tools(self) -> list[Tool]:
        """The tools that the servers offer now.

        Left out are those that are too large or too many, and those that models cannot tell from one before,
        of which `on_problem` hears once.
        """
        if self._portal is None:
            raise UsageError(f"{CLOSED}: open them with `with`")
        room = ToolRoom(BOUNDS)
        found: dict[str, Tool] = {}
        owners: dict[str, str] = {}
        for name, server in self._servers.items():
            made, more = self._offered(server)
            left_out: list[InvalidTool] = []
            for tool in made:
                try:
                    if isinstance(tool, InvalidTool):
                        raise tool
                    form = normal_name(tool.name)
                    if form in found:
                        other = f"{quoted(found[form].name)} of the server {quoted(owners[form])}"
                        raise InvalidTool(f"tool {quoted(tool.name)}: models cannot tell it from {other}")
                    room.add(tool.name, tool.description, tool.parameters)
                    found[form], owners[form] = tool, name
                except InvalidTool as error:
                    left_out.append(error)
            if left_out:
                others = len(left_out) - 1 + more
                self._warn(name, f"left out: {left_out[0]}" + (f" (and {others:,} more)" if others else ""))
        return list(found.values())

    def status(self) -> list[ServerStatus]:
        """The state of the servers, in the order of the configuration."""
        if not self._servers:
            return [ServerStatus(config.name, "closed") for config in self._configs]
        return [server.status for server in self._servers.values()]

    def restart(self, name: str) -> None:
        """End a server and start it again. Raises McpFailed."""
        portal, server = self._portal, self._servers.get(name)
        if name not in {config.name for config in self._configs}:
            raise UsageError(f"no MCP server is called {name!r:.80}")
        if portal is None or server is None:
            raise UsageError(CLOSED)
        portal.call(server.restart)

    def _offered(self, server: McpServer) -> tuple[Sequence[Tool | InvalidTool], int]:
        """The tools of a server, built once for each of its lists, and how many more it has."""
        listing, config, first = server.listing, server.config, server.first or {}
        known = self._made.get(config.name)
        if known is not None and known[0] is listing:
            return known[1], known[2]
        made: list[Tool | InvalidTool] = []
        offered = [listed for listed in listing if config.offers(listed.name)]
        for listed in offered[: BOUNDS.count + 1]:
            try:
                tool = offered_tool(config, listed, first.get(listed.name), self._prefix, self._call)
                shown_to_models(tool)  # two of its parameters may become the same
                made.append(tool)
            except InvalidTool as error:
                made.append(error)
        more = len(offered) - len(made)
        self._made[config.name] = listing, made, more
        return made, more

    def _warn(self, name: str, said: str) -> None:
        """Report what is wrong with a server that goes on, once."""
        if (name, said) in self._warned:
            return
        self._warned.add((name, said))
        problem = failure(name, said)
        if self._on_problem is None:
            log.warning("%s", problem)
        else:
            self._on_problem(name, problem)

    def _call(
        self, name: str, tool: ListedTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolOutput:
        """Call a tool and wait until it ends or the call is cancelled."""
        news: SimpleQueue[tuple[str, float | None] | None] = SimpleQueue()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            share = min(max(progress / total, 0.0), 1.0) if total and total > 0 else None
            news.put((message or "", share))

        portal = self._portal
        if portal is None:
            raise ToolError(CLOSED)
        try:
            future = portal.start_task_soon(self._servers[name].call, tool, arguments, on_progress)
        except RuntimeError:  # closed at this moment
            raise ToolError(CLOSED) from None
        future.add_done_callback(lambda _: news.put(None))
        try:
            while not context.cancel.is_set():
                try:
                    said = news.get(timeout=GLANCE)
                except Empty:
                    continue
                if said is None:
                    return as_output(name, tool.name, future.result())
                context.progress(*said)
        except CancelledError:
            raise ToolError(CLOSED) from None
        finally:
            future.cancel()
        raise ToolError(f"the call to the MCP server {name} was cancelled; it may have done part of it")

    def _start_all(self, portal: BlockingPortal) -> None:
        starts = {name: portal.start_task_soon(server.start) for name, server in self._servers.items()}
        waiting = set(starts.values())
        while waiting:  # Python hears Ctrl-C between the waits; a wait without end may not be woken by it
            waiting = wait(waiting, GLANCE).not_done
        failed = [(name, error) for name, start in starts.items() if (error := start.exception())]
        for name, error in failed:
            if self._on_problem is None or not isinstance(error, McpFailed):
                more = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
                raise McpFailed(f"{error}{more}") from error
            self._on_problem(name, error)

    def _report(self, name: str, problem: McpFailed) -> None:
        """Call `on_problem` in a new thread, since it may wait, restart and close servers."""
        if self._on_problem is None:
            return
        hear = partial(self._on_problem, name, problem)
        threading.Thread(target=hear, name="localagent-mcp-problem", daemon=True).start()

    async def _supervise(self, *, task_status: TaskStatus[tuple[dict[str, McpServer], anyio.Event]]) -> None:
        """The task that owns all connections."""
        import anyio

        async with anyio.create_task_group() as tasks:
            servers = {
                config.name: McpServer(config, tasks, self._start_timeout, self._report)
                for config in self._configs
            }
            stop = anyio.Event()
            task_status.started((servers, stop))
            await stop.wait()
            for server in servers.values():
                server.close()

    def _end(self, portal: BlockingPortal, supervisor: Future[None], stop: anyio.Event) -> None:
        self._portal = None
        portal.call(stop.set)
        try:
            supervisor.result()
        finally:
            self._servers = {}
            self._made = {}
            self._warned = set()

    def _interrupt(self) -> None:
        """Make an `open` that is running in another thread fail soon."""
        portal = self._portal
        if portal is not None:
            for server in list(self._servers.values()):
                portal.start_task_soon(server.close)
