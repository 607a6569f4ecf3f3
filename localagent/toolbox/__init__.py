"""The tools that ship. None is given to a model unless somebody names it.

Knows their names and what they are for. Contract: importing this loads none of them.
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
    """Tools that go together, by the name that people ask for."""

    description: str
    make: Callable[[Path], list[Tool]]
    """The tools; those for files reach what is below the folder, the others do not look at it."""


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
"""What there is, by name."""


def shipped(names: Iterable[str], root: Path | str) -> list[Tool]:
    """The tools of those names, each once. `root` is the folder that file tools are kept in.

    Raises UsageError for a name that is none, and for a folder that is none where one is needed.
    """
    found: dict[str, Tool] = {}
    for name in names:
        if name not in SHIPPED:
            raise UsageError(f"no tools called {name!r}: there are {', '.join(SHIPPED)}")
        for item in SHIPPED[name].make(Path(root)):
            found.setdefault(item.name, item)
    return list(found.values())
