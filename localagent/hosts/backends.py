"""The engines that there are. Importing the table imports none of them, nor anything else of weight."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localagent.hosts.backend import Backend
from localagent.hosts.llamacpp.backend import LLAMACPP
from localagent.hosts.mlx.backend import MLX

BACKENDS: dict[str, Backend] = {row.name: row for row in (LLAMACPP, MLX)}
"""By name. llama.cpp takes every file and MLX every folder; one for some of them goes below them and wins."""

if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = Literal[tuple(BACKENDS)]  # pydantic and typer check it, and list the names


def backend_for(path: Path) -> Backend:
    """The engine that loads the weights at `path`."""
    return next(row for row in reversed(BACKENDS.values()) if row.takes(path))


def preferred_backends() -> tuple[str, ...]:
    """The names of all, best first for this machine.

    One that is made for this kind of machine comes first, unless only others are installed.
    """
    # The last of its packages needs the others.
    installed = {name for name, row in BACKENDS.items() if all(map(find_spec, row.packages[-1:]))}
    first = [
        name for name, row in BACKENDS.items() if row.preferred() and (name in installed or not installed)
    ]
    return (*first, *(name for name in BACKENDS if name not in first))
