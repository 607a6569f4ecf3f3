"""The built-in tools, by name. A model gets only those that the caller names.

Importing this package does not import them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING

from localagent.errors import UsageError

if TYPE_CHECKING:
    from localagent.tools import Tool

__all__ = ["SHIPPED", "Shipped", "shipped"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A group of tools under one name. `home`: a module here, and in it the tool or what makes several."""

    description: str
    home: str

    def make(self, root: Path) -> list[Tool]:
        """The tools. Those for files work below the folder `root`, which others ignore. Raises UsageError."""
        module, _, name = self.home.partition(".")
        tool = getattr(import_module(f"localagent.toolbox.{module}"), name)
        return tool(root) if isinstance(tool, FunctionType) else [tool]


SHIPPED: Mapping[str, Shipped] = MappingProxyType(
    {
        "time": Shipped("tell the date and time, in any time zone", "clock.current_time"),
        "calculator": Shipped(
            "calculate, with exact integers and the usual functions", "calculator.calculate"
        ),
        "files": Shipped("list, read and search the files of a folder", "files.files"),
        "write": Shipped("files, and write them: asks before it does", "files.write"),
        "web": Shipped("get pages and images from the public internet: asks before it does", "web.web"),
        "notes": Shipped("keep notes from one conversation to the next", "notes.kept"),
    }
)
"""By the names that people ask for."""


def shipped(names: Iterable[str], root: Path | str) -> list[Tool]:
    """The tools of those names, each once. File tools cannot leave the folder `root`.

    Raises UsageError for an unknown name, a missing package, and a missing folder where one is needed.
    """
    tools: dict[str, Tool] = {}
    for name in names:
        if name not in SHIPPED:
            raise UsageError(f"no tools called {name!r}: choose {', '.join(SHIPPED)}")
        for tool in SHIPPED[name].make(Path(root)):
            tools.setdefault(tool.name, tool)
    return list(tools.values())
