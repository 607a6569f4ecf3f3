"""The built-in tools, by name. A model gets only those that the caller names.

Importing this package does not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from localagent.errors import UsageError

if TYPE_CHECKING:
    from localagent.tools import Tool

__all__ = ["SHIPPED", "Shipped", "shipped"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A group of tools under one name."""

    description: str
    make: Callable[[Path], list[Tool]]
    """Makes the tools. Those for files work below the folder that is passed; the others ignore it."""


def _time(root: Path) -> list[Tool]:
    from localagent.toolbox.clock import current_time

    return [current_time]


def _calculator(root: Path) -> list[Tool]:
    from localagent.toolbox.calculator import calculate

    return [calculate]


def _files(root: Path) -> list[Tool]:
    from localagent.toolbox.files import files

    return files(root)


def _write(root: Path) -> list[Tool]:
    from localagent.toolbox.files import files

    return files(root, write=True)


def _web(root: Path) -> list[Tool]:
    from localagent.toolbox.fetching import require
    from localagent.toolbox.web import http_get

    require()
    return [http_get]


def _notes(root: Path) -> list[Tool]:
    from localagent.toolbox.notes import notes

    return notes()


SHIPPED: Mapping[str, Shipped] = MappingProxyType(
    {
        "time": Shipped("tell the date and time, in any time zone", _time),
        "calculator": Shipped("calculate, with exact integers and the usual functions", _calculator),
        "files": Shipped("list, read and search the files of a folder", _files),
        "write": Shipped("files, and write them: asks before it does", _write),
        "web": Shipped("get pages and images from the public internet: asks before it does", _web),
        "notes": Shipped("keep notes from one conversation to the next", _notes),
    }
)
"""By the names that people ask for."""


def shipped(names: Iterable[str], root: Path | str) -> list[Tool]:
    """The tools of those names, each once. File tools cannot leave the folder `root`.

    Raises UsageError for an unknown name, a missing package, and a missing folder where one is needed.
    """
    found: dict[str, Tool] = {}
    for name in names:
        if name not in SHIPPED:
            raise UsageError(f"no tools called {name!r}: choose {', '.join(SHIPPED)}")
        for item in SHIPPED[name].make(Path(root)):
            found.setdefault(item.name, item)
    return list(found.values())
