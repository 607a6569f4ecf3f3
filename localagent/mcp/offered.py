"""A tool that a server lists, as a `Tool` that models are offered.

Knows the server's description of a tool. Does not know threads or connections: what runs a call is passed in.
Contract: whatever the server wrote as a schema, building the tool and binding arguments to it never fail for
that. Where a schema cannot be used, only the server checks the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from localagent.mcp.arguments import Arguments
from localagent.mcp.config import ServerConfig
from localagent.tools.tool import Bound, Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

Run = Callable[[str, "ListedTool", Mapping[str, Any], ToolContext], ToolOutput]
"""Calls a tool of the server of that name, as it was listed, and waits for the result."""
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


def offered_name(server: str, tool: str, prefix: bool) -> str:
    """What models call the tool: letters, digits, "_", "-" and "."; anything else becomes "_"."""
    return _UNFIT.sub("_", f"{server}_{tool}" if prefix else tool)


def fingerprint(listed: ListedTool | None) -> str:
    """Equal for tools of a server that say the same of themselves: name, description, schemas and hints."""
    if listed is None:
        return ""
    said = {"name", "title", "description", "input_schema", "output_schema", "annotations"}
    return json.dumps(listed.model_dump(mode="json", include=said), sort_keys=True)


def offered_tool(
    config: ServerConfig, listed: ListedTool, first: ListedTool | None, prefix: bool, run: Run
) -> Tool:
    """The tool for models. `first`: the tool of this name in the first list that the server gave.

    A tool asks before it runs unless it says that it only reads, and does not say that it destroys, or unless
    the configuration allows it. Both count only for what the server listed at its start, when it was chosen:
    a hint that comes later, or a tool that becomes another, is nothing that anybody agreed to.
    """
    name = offered_name(config.name, listed.name, prefix)
    notes = listed.annotations
    arguments = Arguments(name, listed.input_schema)
    mark = fingerprint(listed)

    def bind(given: Mapping[str, Any]) -> Bound:
        arguments.check(given)
        return lambda context: run(config.name, listed, given, context)

    # A server that says nothing of its tool may do anything.
    reads_only = notes is not None and notes.read_only_hint is True and notes.destructive_hint is not True
    as_at_first = mark == fingerprint(first)
    allowed = config.allows(listed.name) and (first is None or as_at_first)
    return Tool(
        name=name,
        description=listed.description or listed.title or (notes.title if notes else None) or "",
        parameters={"type": "object", "properties": {}, **listed.input_schema},
        bind=bind,
        side_effects=not (allowed or (reads_only and as_at_first)),
        timeout=config.timeout,
        origin=(*config.place, mark),
    )
