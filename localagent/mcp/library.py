"""The `mcp` package, loaded when it is needed.

Knows how the extra is installed and what the package logs. Every other module of `localagent.mcp` imports
from the package inside its functions, after `require` has run.
"""

from __future__ import annotations

import logging

from localagent.distribution import install_command, version
from localagent.errors import McpFailed


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


def client_version() -> str:
    """The version that servers are told."""
    return version() or "0"
