"""Where localagent keeps its files, and the error for one that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from localagent.errors import SaveFailed, UsageError

HOME = "LOCALAGENT_HOME"


def user_path(kind: Literal["cache", "config", "data", "log", "state"], name: str) -> Path:
    """`$LOCALAGENT_HOME/name`, else `name` in the user's folder of that kind. Raises UsageError.

    The platform decides where these folders are; its log folder belongs to us alone and gets no `name`.
    """
    if home := os.environ.get(HOME):
        try:
            return (Path(home).expanduser() / name).absolute()
        except RuntimeError as error:  # ~ of a user that does not exist
            raise UsageError(f"{HOME}={home}: no such home folder") from error
    from platformdirs import PlatformDirs

    folders = PlatformDirs("localagent", appauthor=False)
    if kind == "log":
        return folders.user_log_path
    parent: Path = getattr(folders, f"user_{kind}_path")
    return parent / name


def cannot_save(path: Path, error: OSError | ValueError) -> SaveFailed:
    """The error for a file that cannot be written."""
    shown = path if str(path).isprintable() else repr(str(path))
    return SaveFailed(
        f"cannot write to {shown} ({getattr(error, 'strerror', None) or error}): "
        f"free some space, or set {HOME} to a writable folder"
    )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders, and needs no sync for renames
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
