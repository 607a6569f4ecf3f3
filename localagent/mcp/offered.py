"""A tool that a server lists, as a `Tool` that models are offered.

Knows the server's description of a tool. Does not know threads or connections: what runs a call is passed in.
Contract: whatever the server wrote as a schema, building the tool and binding arguments to it never fail for
that. Where a schema cannot be used, only the server checks the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from localagent.mcp.arguments import Arguments
from localagent.mcp.config import ServerConfig
from localagent.tools.tool import Bound, Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

Run = Callable[[str, str, Mapping[str, Any], ToolContext], ToolOutput]
"""Calls a tool, named by its server and its own name, and waits for the result."""
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def offered_name(server: str, tool: str, prefix: bool) -> str:
    """What models call the tool: letters, digits, "_", "-" and "."; anything else becomes "_"."""
    return _UNFIT.sub("_", f"{server}_{tool}" if prefix else tool)


def offered_tool(config: ServerConfig, listed: ListedTool, prefix: bool, run: Run) -> Tool:
    """The tool for models."""
    name = offered_name(config.name, listed.name, prefix)
    notes = listed.annotations
    arguments = Arguments(name, listed.input_schema)

    def bind(given: Mapping[str, Any]) -> Bound:
        arguments.check(given)
        return lambda context: run(config.name, listed.name, given, context)

    reads_only = notes is not None and notes.read_only_hint is True
    return Tool(
        name=name,
        description=listed.description or listed.title or (notes.title if notes else None) or "",
        parameters={"type": "object", "properties": {}, **listed.input_schema},
        bind=bind,
        # A server that says nothing of its tool may do anything.
        side_effects=not (reads_only or config.allows(listed.name)),
        timeout=config.timeout,
    )
