"""Where localagent keeps its files, and the error for one that cannot be written."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

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


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file by `replacing`, until it is on the disk. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with suppress(OSError):  # not every file system lets folders be synced
        sync(path.parent)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the `with`: readers see the old content or the new.

    `mode`: its permissions; None for those of any new file. A process that is killed leaves a file
    `.NAME.PID-XXXX.new`, which the next one removes that writes this file. Raises OSError.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*-*.new"):
        import psutil  # type: ignore[import-untyped]

        process = left.name.removeprefix(f".{path.name}.").partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            left.unlink(missing_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(fresh, flags, 0o666 if mode is None else 0o600), "wb") as file:
            yield file
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
