"""Failures of a server in one line, with its name and the end of its standard error, if it wrote any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localagent.errors import McpFailed
from localagent.messages import explain
from localagent.wording import one_line, quoted

if TYPE_CHECKING:
    from localagent.mcp.transport import Traces

LONGEST = 300
"""Characters to show of a message from outside."""
_HTTP = {
    401: "it requires authentication: put a token under headers",
    403: "it denies access: check the headers",
    404: "nothing is there: check the url",
    405: "nothing there speaks MCP: check the url",
    407: "the proxy requires authentication",
}

_STANDING_FOR_A_STATUS = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
"""Messages of the package that hide the HTTP status."""
_NO_MCP = "Unexpected content type: "


def failure(name: str, said: str, traces: Traces | None = None) -> McpFailed:
    """The error for a server that failed."""
    stderr = f" [it wrote: {traces.stderr}]" if traces is not None and traces.stderr else ""
    return McpFailed(f"MCP server {name!r:.80}: {said}{stderr}")


def describe(error: BaseException, traces: Traces) -> str:
    """What an error of the package or the transport means, in plain words."""
    import httpx2
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED
    from pydantic import ValidationError

    error = _first(error)
    match error:
        case McpFailed():
            return str(error)
        case MCPError(message=message) if traces.status is not None and message in _STANDING_FOR_A_STATUS:
            return f"HTTP {traces.status}: {_HTTP.get(traces.status, 'it failed')}"
        case MCPError(message=message) if message.startswith(_NO_MCP):
            return f"it answered with {quoted(message.removeprefix(_NO_MCP)) or 'no type'}: check the url"
        case httpx2.TransportError():
            return f"it cannot be reached: {one_line(str(error), LONGEST) or type(error).__name__}"
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            return "the server ended before it answered"
        case ValidationError():
            return f"its answer is not valid MCP: {explain(error, error.title)}"
        case OSError() if error.strerror and error.filename is not None:
            return f"{quoted(str(error.filename), 200)} cannot be started: {error.strerror}"
    return one_line(str(error), LONGEST) or type(error).__name__


def _first(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
