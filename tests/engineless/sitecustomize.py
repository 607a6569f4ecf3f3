"""Hides the engines from a process whose PYTHONPATH has this folder, as if none were installed.

Python imports a module of this name as it starts. The tests' own process hides and shows them as it goes on:
what a test without the mark `engine` starts, or imports itself, finds none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ENGINES = ("llama_cpp", "mlx", "mlx_lm")
_imported: dict[str, ModuleType] = {}


def _is_engine(name: str) -> bool:
    return name.partition(".")[0] in ENGINES


class Hiding(PathFinder):
    """The finder of installed packages, with some left out."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if _is_engine(fullname) else super().find_spec(fullname, path, target)


def hide() -> None:
    """Nothing that is called now finds an engine, not even one that was imported before."""
    sys.meta_path[:] = [Hiding if each is PathFinder else each for each in sys.meta_path]
    _imported.update({name: sys.modules.pop(name) for name in [*sys.modules] if _is_engine(name)})


def show() -> None:
    """Undo `hide`."""
    sys.meta_path[:] = [PathFinder if each is Hiding else each for each in sys.meta_path]
    sys.modules.update(_imported)
    _imported.clear()


if __name__ == "sitecustomize":
    hide()
