"""Evaluated sequences on disk: listing them, choosing one, and limiting the space that they take.

There is one folder per `SnapshotKey`, which names everything that an evaluated state depends on, and one file
per sequence, named after the hash of its ids. A file that is damaged, foreign, or not written by this user is
ignored with a warning, and replaced when the same sequence is written again. The files reveal conversations,
so only their owner may read them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from localagent.files.paths import user_path
from localagent.hosts.engine import Packed
from localagent.hosts.prefix.matching import Enter, enter_at_checkpoints
from localagent.hosts.prefix.snapshot_file import (
    SnapshotHeader,
    Turns,
    digest,
    read_header,
    read_states,
    write_file,
)

PER_MODEL = 1 << 30
TOTAL = 4 << 30
"""Bytes on disk, per key and in all; the files used least recently go first."""

_SUFFIX = ".prefix"
_TORN_AFTER = 3600  # seconds: no write takes that long

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """What an evaluated state depends on; a state is only ever used under the very same key."""

    name: str
    """The model's name, for people."""
    weights: str
    """Fingerprint of the weights."""
    template: str
    """Hash of the chat template."""
    engine: str
    """Engine and version."""
    platform: str
    """Processor and operating system: states are exact where they were computed."""
    settings: str = ""
    """Anything else that affects the arithmetic, such as the size of chunks."""
    owner: str = ""
    """Whose prompts they are, where not everybody's: how fast one is read tells that it was asked before."""

    @property
    def folder(self) -> str:
        """A folder name: readable, and different for every key."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip(".-")[:40] or "model"
        return f"{name}-{digest(json.dumps(asdict(self), sort_keys=True).encode()).hex()[:16]}"


class Snapshot(NamedTuple):
    """One sequence read back: ids, the whole state, and checkpoints as (length, state)."""

    path: Path
    ids: list[int]
    full: Packed
    checkpoints: list[tuple[int, Packed]]


def default_root() -> Path:
    """`$LOCALAGENT_HOME/prefixes`, else `prefixes` in the user's cache folder. Raises UsageError."""
    return user_path("cache", "prefixes")


class SnapshotFolder:
    """All snapshots of all models, under `root`."""

    def __init__(
        self, root: Path | None = None, per_model: int = PER_MODEL, total: int = TOTAL, owner: str = ""
    ) -> None:
        """`root`: by default `default_root()`. Limits in bytes. `owner`: see `SnapshotKey`."""
        self.root = default_root() if root is None else root
        self.owner = owner
        self.per_model = per_model
        self.total = total

    def files(self) -> list[Path]:
        """Every snapshot, the least recently used first."""
        return _by_use(self.root, f"*/*{_SUFFIX}")

    def describe(self, path: Path) -> tuple[SnapshotKey, int] | None:
        """The key of a snapshot and its number of tokens. None for a file that is no snapshot."""
        header = read_header(path)
        names = {field.name for field in fields(SnapshotKey)}
        if header is None or set(header.key) != names:  # none, or one of another version
            return None
        return SnapshotKey(**header.key), len(header.ids)

    def shrink(self, folder: Path) -> None:
        """Remove what killed processes left behind, then files until the limits hold."""
        for torn in _by_use(self.root, f"*/.*{_SUFFIX}.*.new"):
            with suppress(OSError):
                if time.time() - torn.stat().st_mtime > _TORN_AFTER:
                    torn.unlink()
        for files, limit in ((_by_use(folder, f"*{_SUFFIX}"), self.per_model), (self.files(), self.total)):
            sizes = {path: _size(path) for path in files}
            surplus = sum(sizes.values()) - limit
            for path in files:
                if surplus <= 0:
                    break
                surplus -= sizes[path]
                path.unlink(missing_ok=True)

    def clear(self) -> tuple[int, int]:
        """Remove every snapshot; returns how many there were, and their bytes."""
        count = size = 0
        for path in self.files():
            size += _size(path)
            count += 1
            path.unlink(missing_ok=True)
        for torn in _by_use(self.root, f"*/.*{_SUFFIX}.*.new"):
            torn.unlink(missing_ok=True)
        for folder in (path for path in self.root.glob("*") if path.is_dir()):
            with suppress(OSError):  # it holds something that is not ours
                folder.rmdir()
        return count, size


class Snapshots:
    """The snapshots under one key."""

    def __init__(self, folder: SnapshotFolder, key: SnapshotKey) -> None:
        self._all = folder
        self._key = asdict(key)
        self._folder = folder.root / key.folder
        self._headers: dict[Path, tuple[tuple[int, int], SnapshotHeader | None]] = {}
        """What is known of each file, as long as it is the same one: None for one not to be used."""
        self._failing: int | None = None
        """Why the last file could not be written, as the system's number."""

    def turns(self) -> Iterator[Turns]:
        """The generations that make up every stored sequence, oldest first."""
        for header in self._scan().values():
            yield header.turns

    def find(self, ids: list[int], least: int, most: int, enter: Enter = enter_at_checkpoints) -> Path | None:
        """The file of the sequence that reaches furthest into `ids`, if that is at least `least` tokens.

        `most`: the longest sequence that there is room for, in tokens. `enter`: see `matching`.
        """
        best, longest = None, least - 1
        for path, header in self._scan().items():
            if len(header.ids) <= most and (found := enter(header.ids, header.lengths, ids)) > longest:
                best, longest = path, found
        return best

    def reader(self, path: Path) -> Callable[[], Snapshot]:
        """What reads and verifies a whole file, in any thread. It raises OSError and ValueError."""
        header = self._headers[path][1]
        assert header is not None

        def read() -> Snapshot:
            full, *checkpoints = read_states(path, header)
            os.utime(path)
            return Snapshot(path, header.ids, full, list(zip(header.lengths, checkpoints, strict=True)))

        return read

    def reject(self, path: Path, why: str) -> None:
        """Do not offer this file again."""
        log.warning("%s: ignored: %s", path, why)
        if path in self._headers:
            self._headers[path] = self._headers[path][0], None

    def write(
        self,
        ids: Sequence[int],
        full: Packed,
        checkpoints: Sequence[tuple[int, Packed]],
        turns: Turns = (),
    ) -> None:
        """Store a sequence, in place of those that are a prefix of it.

        A failure is a warning, given once for many files: a disk that is full is full for all of them.
        """
        path = self._folder / (digest(struct.pack(f"<{len(ids)}q", *ids)).hex()[:24] + _SUFFIX)
        try:
            if path in self._scan():
                os.utime(path)
                return
            for folder in (self._all.root, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path, self._key, ids, full, checkpoints, turns)
            for other, header in self._scan().items():
                if other != path and list(ids[: len(header.ids)]) == header.ids:
                    other.unlink(missing_ok=True)
            self._all.shrink(self._folder)
            self._failing = None
        except OSError as error:
            if error.errno != self._failing:
                log.warning("%s: not written: %s", path, error.strerror or error)
            self._failing = error.errno

    def _scan(self) -> dict[Path, SnapshotHeader]:
        """The headers of the files that are there now; each file is read once."""
        known, self._headers = self._headers, {}
        for path in _by_use(self._folder, f"*{_SUFFIX}"):
            with suppress(OSError):  # removed by another process meanwhile
                status = path.stat()
                same = (status.st_ino, status.st_size)
                if path not in known or known[path][0] != same:
                    known[path] = same, self._check(path)
                self._headers[path] = known[path]
        return {path: header for path, (_, header) in self._headers.items() if header is not None}

    def _check(self, path: Path) -> SnapshotHeader | None:
        header = read_header(path)
        if header is None or header.key != self._key:
            log.warning("%s: ignored: not a whole snapshot of this model", path)
            return None
        return header


def _by_use(folder: Path, pattern: str) -> list[Path]:
    """The regular files that match, the least recently used first; none in a folder that cannot be read."""
    timed = []
    with suppress(OSError):
        for path in folder.glob(pattern):
            with suppress(OSError):  # removed by another process meanwhile
                status = path.stat()
                if stat.S_ISREG(status.st_mode):  # opening a pipe would wait
                    timed.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(timed)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
