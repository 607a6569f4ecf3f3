"""The tools of a command: built-in tools, tools of MCP servers, and the rules for calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from localagent.agent import Rule
from localagent.cli.options import ToolOptions
from localagent.cli.permissions import Permissions
from localagent.cli.terminal import show_json, show_line
from localagent.errors import LocalAgentError, UsageError
from localagent.toolbox import shipped
from localagent.tools import Tool, ToolSet, as_tool
from localagent.wording import listed, one_line, quoted


def rules(options: ToolOptions) -> list[Rule]:
    """The rules, first match wins: --deny before --allow before --ask."""
    return [
        *(Rule("deny", name) for name in options.deny or ()),
        *(Rule("allow", name) for name in options.allow or ()),
        *(Rule("ask", name) for name in options.ask or ()),
    ]


def permissions(options: ToolOptions) -> Permissions | None:
    """What is always allowed for these tools. With --ask nothing is: it is there to be asked."""
    return None if options.ask else Permissions(options.root or Path())


def open_tools(options: ToolOptions, stack: ExitStack, say: Callable[[str], None]) -> list[Any]:
    """The tools, open as long as `stack` is. Reports a server that fails. Raises LocalAgentError."""
    names = [name.strip() for given in options.tools or () for name in given.split(",") if name.strip()]
    present = shipped(names, options.root or Path())
    present += [read_function(named) for named in options.functions or ()]
    tools: list[Any] = list(present)
    if options.mcp is not None:
        from localagent.mcp import McpServers

        def complain(name: str, error: LocalAgentError) -> None:
            say(f"localagent: {error}")

        servers = McpServers.from_file(options.mcp, on_problem=complain)
        if sys.stderr.isatty():  # starting them may take a while
            say(f"(starting the MCP servers of {options.mcp})")
        tools.append(stack.enter_context(servers))
        present += servers.tools()
    _check_patterns(options, ToolSet(present).names, say)
    return tools


def read_function(named: str) -> Tool:
    """The tool MODULE:FUNCTION, of a module in the current folder or an installed one. Raises UsageError."""
    module, _, name = named.partition(":")
    if not module or not name:
        raise UsageError(f"--tool {quoted(named)}: name a module and a function in it, as MODULE:FUNCTION")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except Exception as error:  # a module may raise anything
        said = one_line(f"{type(error).__name__}: {error}", 300)
        raise UsageError(f"--tool {quoted(named)} cannot be imported: {said}") from error
    return as_tool(found)


def _check_patterns(options: ToolOptions, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Refuse a pattern that matches no tool: a misspelt --deny would protect nothing. Raises UsageError.

    With MCP servers it is only a warning: one may have failed to start, or list the tool later.
    """
    for rule in rules(options):
        if any(rule.names(name) for name in names):
            continue
        problem = f"--{rule.action} {quoted(rule.tool)} fits none of the tools: {listed(names)}"
        if options.mcp is None:
            raise UsageError(problem)
        say(f"warning: {problem}")


def list_tools(*, as_json: bool) -> None:
    """Print the built-in tools, under the names that `--tools` takes."""
    from localagent.toolbox import SHIPPED, shipped

    if as_json:
        schemas = {name: [tool.schema for tool in shipped([name], Path())] for name in SHIPPED}
        show_json(schemas)
        return
    for name, entry in SHIPPED.items():
        show_line(f"{name:<12}{entry.description}")
        for tool in shipped([name], Path()):
            asks = " (asks)" if tool.side_effects else ""
            show_line(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))}){asks}")
