"""The completion record, which proves that weights are complete.

It holds the source of the files and the size, time and hash of each. It is written once every hash has been
checked, and appears together with the files when their folder is renamed. A damaged or foreign record reads
as None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from localagent.catalog import HubSource, PathSource, WheelSource
from localagent.files.paths import replace_file
from localagent.store.disk import sha256

NAME = ".localagent.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FileProof:
    """A verified file. `path` is relative to the record's folder, or absolute for the user's own weights."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Record:
    """The verified files and their source. `commit`: the repository's commit, if there is one."""

    source: dict[str, Any]
    files: tuple[FileProof, ...]
    commit: str | None = None
    at: str | None = None
    """The file or folder to load, where it is in another program's folder."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(proof.size for proof in self.files)


def identity(source: HubSource | WheelSource | PathSource) -> dict[str, Any]:
    """The fields that identify the weights of a source.

    Sizes are only for display, and `hashes` are of files that have no record. Options with their default
    value are left out, so that a newer localagent with more options still trusts older records.
    """
    sizes = {"size", "wheel_size", "hashes"}
    return {"kind": source.kind, **source.model_dump(mode="json", exclude=sizes, exclude_defaults=True)}


def prove(folder: Path, hashes: Iterable[tuple[str, str]]) -> tuple[FileProof, ...]:
    """Proofs for files whose hashes were just checked, given as (path, sha256)."""
    stats = [(path, digest, (folder / path).stat()) for path, digest in hashes]
    return tuple(FileProof(path, stat.st_size, stat.st_mtime_ns, digest) for path, digest, stat in stats)


def write(folder: Path, record: Record) -> None:
    """Put the record into `folder`, atomically."""
    body = {"version": VERSION, **asdict(record)}
    replace_file(folder / NAME, json.dumps(body, indent=1).encode())


def read(folder: Path) -> Record | None:
    """The folder's record; None if there is none that can be read."""
    try:
        body = json.loads((folder / NAME).read_bytes())
        if body["version"] != VERSION:
            return None
        files = tuple(FileProof(**proof) for proof in body["files"])
        return Record(dict(body["source"]), files, body["commit"], body.get("at")) if files else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def altered(folder: Path, record: Record) -> str | None:
    """The first file that changed since it was verified, or None. Costs one stat per file.

    A file with the right size but a new time is hashed; if the hash is right, the record takes the new time.
    """
    touched = False
    for proof in record.files:
        try:
            stat = (folder / proof.path).stat()
        except OSError:
            return proof.path
        if stat.st_size != proof.size:
            return proof.path
        if stat.st_mtime_ns != proof.mtime_ns:
            if sha256(folder / proof.path) != proof.sha256:
                return proof.path
            touched = True
    if touched:
        with suppress(OSError):  # another user's store can be read, not written
            write(folder, replace(record, files=prove(folder, ((p.path, p.sha256) for p in record.files))))
    return None


def altered_on_disk(folder: Path, record: Record, advance: Callable[[int], None]) -> str | None:
    """Like `altered`, but reads every byte.

    The record forgets the time of a damaged file, so that the next cheap check hashes it again.
    """
    for proof in record.files:
        path = folder / proof.path
        if not path.is_file() or path.stat().st_size != proof.size or sha256(path, advance) != proof.sha256:
            files = tuple(replace(p, mtime_ns=-1) if p == proof else p for p in record.files)
            with suppress(OSError):
                write(folder, replace(record, files=files))
            return proof.path
    return None
