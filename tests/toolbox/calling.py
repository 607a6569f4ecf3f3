"""Calls a tool as the agent loop does: what it returns, or the ToolError that it raises."""

from __future__ import annotations

import threading
from typing import Any

from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolContext


def call(tool: Tool, cancel: threading.Event | None = None, **arguments: Any) -> Any:
    part = ToolCallPart(id="1", name=tool.name, arguments=arguments)
    return tool.bind(part.arguments)(ToolContext(call=part, cancel=cancel or threading.Event()))


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}
