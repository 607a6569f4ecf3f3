"""The tools that a command is given: those that ship, those of MCP servers, and the rules for calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.agent import Rule
from localagent.errors import LocalAgentError, UsageError
from localagent.messages.values import quoted
from localagent.toolbox import shipped
from localagent.tools import ToolSet
from localagent.tools.names import listed


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What the options `--tools`, `--root`, `--mcp`, `--allow`, `--ask` and `--deny` say."""

    names: Sequence[str] = ()
    root: Path = Path()
    mcp: Path | None = None
    allow: Sequence[str] = ()
    ask: Sequence[str] = ()
    deny: Sequence[str] = ()

    def rules(self) -> list[Rule]:
        """The rules: what is denied, then what is allowed, then what is asked about."""
        return [
            *(Rule("deny", name) for name in self.deny),
            *(Rule("allow", name) for name in self.allow),
            *(Rule("ask", name) for name in self.ask),
        ]

    def open(self, stack: ExitStack, say: Callable[[str], None]) -> list[Any]:
        """The tools, for as long as `stack` is open; a server that fails is said. Raises LocalAgentError."""
        names = [name.strip() for given in self.names for name in given.split(",") if name.strip()]
        present = shipped(names, self.root)
        tools: list[Any] = list(present)
        if self.mcp is not None:
            from localagent.mcp import McpServers

            def complain(name: str, error: LocalAgentError) -> None:
                say(f"localagent: {error}")

            servers = McpServers.from_file(self.mcp, on_problem=complain)
            if sys.stderr.isatty():  # that may take a while
                say(f"(starting the MCP servers of {self.mcp})")
            tools.append(stack.enter_context(servers))
            present += servers.tools()
        self._check_patterns(ToolSet(present).names, say)
        return tools

    def _check_patterns(self, names: Sequence[str], say: Callable[[str], None]) -> None:
        """Whoever misspells what is denied must not believe that it is. Raises UsageError.

        With servers it is only said: one may have failed today, or list the tool later.
        """
        for option, patterns in (("--allow", self.allow), ("--ask", self.ask), ("--deny", self.deny)):
            for pattern in patterns:
                if any(Rule("deny", pattern).names(name) for name in names):
                    continue
                problem = f"{option} {quoted(pattern)} fits none of the tools: {listed(names)}"
                if self.mcp is None:
                    raise UsageError(problem)
                say(f"warning: {problem}")
