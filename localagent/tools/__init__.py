"""Tools: typed functions that models may call, and their results."""

from localagent.tools.function import FunctionTool, as_tool, tool
from localagent.tools.tool import FileChange, Report, Tool, ToolContext, ToolOutput
from localagent.tools.toolset import ToolSet

__all__ = [
    "FileChange",
    "FunctionTool",
    "Report",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolSet",
    "as_tool",
    "tool",
]
