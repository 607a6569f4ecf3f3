"""One connection to a server: the handshake, the list of tools, the calls, the end.

The task that runs `live` opens and closes everything, because the cancel scopes of the `mcp` package must be
left by the task that entered them; `call` runs in the callers' tasks. `ready` is set once: either `open` is
true, or `error` says what went wrong and everything is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from localagent.distribution import version
from localagent.errors import McpFailed, ToolError
from localagent.mcp.config import ServerConfig
from localagent.mcp.failures import LONGEST, describe, failure
from localagent.mcp.incoming import Incoming
from localagent.mcp.transport import Traces, connect
from localagent.wording import one_line

if TYPE_CHECKING:
    from mcp.client.session import ClientSession, IncomingMessage
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool

GRACE = 5.0
"""Seconds for closing a connection, not counting the time that the server's program takes to exit."""
CALM = 1.0
"""Least seconds between two lists of tools, as a server may announce a change after every list."""
LISTED = 10_000
"""Tools after which no further page of a list is asked for: many more than are taken."""
PARTLY = "it may have done part of it"


class Link:
    """One start of a server, until it ends. Used only in the event loop's thread."""

    def __init__(
        self, config: ServerConfig, start_timeout: float, on_tools: Callable[[Link, McpFailed | None], None]
    ) -> None:
        import anyio

        self.config = config
        self.tools: tuple[Tool, ...] = ()
        self.error: McpFailed | None = None
        """Why it could not be started, or why it ended by itself."""
        self.ready = anyio.Event()
        self.finished = anyio.Event()
        """Set by the caller of `live` when everything is closed."""
        self.about = ""
        """The server's own name and version."""
        self._start_timeout = start_timeout
        self._on_tools = on_tools
        self._traces = Traces()
        self._incoming: Incoming | None = None
        self._session: ClientSession | None = None
        self._scope = anyio.CancelScope()
        self._changed = anyio.Event()
        self._over = anyio.Event()
        self._ended = False
        self._stopped = False

    @property
    def open(self) -> bool:
        """Whether it can be called now."""
        return self._session is not None and not self._ended and not self._stopped

    async def live(self) -> None:
        """Connect, and stay connected until the server ends or `stop` is called."""
        try:
            with self._scope:
                await self._connected()
        except Exception as error:
            self.error = self._failure(error)
        finally:
            if not self._stopped and self.error is None:
                said = "it has forgotten the session" if self._traces.lost_session else "it ended by itself"
                self.error = failure(self.config.name, said, self._traces)
            self._session = None

    def stop(self) -> None:
        """Make `live` return, and cancel a start in progress."""
        self._stopped = True
        if self._session is None:
            self._scope.cancel()
        self._over.set()

    def _on_end(self) -> None:
        self._ended = True
        self._over.set()

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> CallToolResult:
        """Call a tool. Cancelling the caller cancels the call on the server. Raises ToolError."""
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
        from pydantic import TypeAdapter

        assert self._session is not None
        answers: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        try:
            # Not the session's `call_tool`, which discards a result that breaks the tool's output schema: the
            # tool has done its work by then, and the model can read the result.
            result = await self._session.send_request(
                request,
                answers,
                request_read_timeout_seconds=self.config.timeout,
                progress_callback=on_progress,
            )
        except Exception as error:
            raise self._refusal(error) from error
        if not isinstance(result, CallToolResult):
            raise ToolError(f"the MCP server {self.config.name} asks for more input, which is not supported")
        return result

    async def _connected(self) -> None:
        import anyio
        from mcp.client.session import ClientSession
        from mcp_types import Implementation

        async with connect(self.config, self._traces) as (read, write):
            self._incoming = Incoming(read, self._on_end)
            async with ClientSession(
                self._incoming,
                write,
                message_handler=self._on_message,
                client_info=Implementation(name="localagent", version=version() or "0"),
            ) as session:
                with anyio.fail_after(self._start_timeout):
                    await _shake_hands(session)
                    self.tools = await _list_tools(session)
                info = session.server_info
                self.about = f"{info.name} {info.version}".strip() if info else ""
                self._session = session
                self._on_tools(self, None)
                self.ready.set()
                await self._stay(session)
                self._session = None
                # Over HTTP the server is told that the session is over, and may never answer that.
                self._scope.deadline = anyio.current_time() + GRACE

    async def _stay(self, session: ClientSession) -> None:
        """Wait for the end, and follow the tools until then."""
        import anyio

        async with anyio.create_task_group() as following:
            following.start_soon(self._follow_tools, session)
            await self._over.wait()
            following.cancel_scope.cancel()

    async def _follow_tools(self, session: ClientSession) -> None:
        """List the tools again whenever the server says that they changed."""
        import anyio

        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                with anyio.fail_after(self._start_timeout):
                    self.tools = await _list_tools(session)
            except Exception as error:  # the earlier list stays valid
                said = f"its tools changed and cannot be listed: {self._described(error)}"
                self._on_tools(self, failure(self.config.name, said))
            else:
                self._on_tools(self, None)
            await anyio.sleep(CALM)

    async def _on_message(self, message: IncomingMessage) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    def _described(self, error: BaseException) -> str:
        nonsense = self._incoming.nonsense if self._incoming else None
        if isinstance(error, TimeoutError):
            said = f"it did not answer within {self._start_timeout:g} s"
        else:
            said = describe(error, self._traces)
        return f"{said}; it wrote {nonsense!r}, which is not MCP" if nonsense else said

    def _failure(self, error: BaseException) -> McpFailed:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return failure(self.config.name, self._described(error), self._traces)

    def _refusal(self, error: Exception) -> ToolError:
        """The error that the model reads for a call without a result."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        server = f"the MCP server {self.config.name}"
        if self._traces.lost_session:
            self._on_end()
            return ToolError(f"{server} has forgotten the session, and did not run the call: try again")
        match error:
            case MCPError(code=code) if code == CONNECTION_CLOSED:
                return ToolError(f"{server} ended during the call; {PARTLY}")
            case MCPError(code=code) if code == REQUEST_TIMEOUT and self.config.timeout:
                return ToolError(f"{server} did not answer within {self.config.timeout:g} s; {PARTLY}")
            case MCPError():
                return ToolError(f"{server} refuses the call: {describe(error, self._traces)}")
        return ToolError(
            f"{server} gave no result: {one_line(describe(error, self._traces), LONGEST)}; {PARTLY}"
        )


async def _shake_hands(session: ClientSession) -> None:
    from mcp.shared.exceptions import MCPError
    from mcp_types import UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()  # the versions since 2026 have no handshake


async def _list_tools(session: ClientSession) -> tuple[Tool, ...]:
    """All pages of the list, but for those of a list without an end. Raises McpFailed for one in a circle."""
    from mcp_types import PaginatedRequestParams

    capabilities = session.server_capabilities
    if capabilities is None or capabilities.tools is None:
        return ()
    found: list[Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) > LISTED:
            return tuple(found)
        if cursor in seen:
            raise McpFailed("its list of tools has no end: a page leads back to an earlier one")
        seen.add(cursor)
