"""What is put on the disk for good, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Durable:
    """Records, for paths below `root`, what was synced and what was renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.done: list[tuple[str, str]] = []
        self._root = root
        fsync, replace = os.fsync, Path.replace

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self._note("sync", Path(f"/proc/self/fd/{descriptor}").readlink())

        def replaced(path: Path, target: Path) -> Path:
            self._note("rename", Path(target))
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", replaced)

    def _note(self, what: str, path: Path) -> None:
        if path.is_relative_to(self._root):
            self.done.append((what, path.relative_to(self._root).as_posix()))
