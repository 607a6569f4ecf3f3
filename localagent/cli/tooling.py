"""The tools that a command is given: those that ship, those of MCP servers, and the rules for calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.agent import Rule
from localagent.errors import LocalAgentError
from localagent.toolbox import shipped


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
        tools: list[Any] = list(shipped(names, self.root))
        if self.mcp is not None:
            from localagent.mcp import McpServers

            def complain(name: str, error: LocalAgentError) -> None:
                say(f"localagent: {error}")

            tools.append(stack.enter_context(McpServers.from_file(self.mcp, on_problem=complain)))
        return tools
