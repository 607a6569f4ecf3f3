"""One evaluated sequence in one file.

    magic, length of the header, digest of the header, header (JSON), buffers, digest of the buffers

`read_header` and `read_states` return what `write_file` wrote. For any other bytes the first returns None and
the second raises ValueError. Every byte is covered by a digest, and even a header with the right digest has
its values checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from localagent.files.paths import replacing
from localagent.hosts.engine import Packed

Turns = Sequence[tuple[str, tuple[int, ...]]]
"""The generations that a sequence went through; see `transcripts.Transcripts.along`."""

_MAGIC = b"localagent prefix 1\n"
_LENGTH = struct.Struct("<Q")
_DIGEST = 32
_HEAD = len(_MAGIC) + _LENGTH.size + _DIGEST
_MOST_HEADER = 64 << 20


class SnapshotHeader(NamedTuple):
    """What a file holds. `lengths` are those of the checkpoints; the first of `states` is the whole sequence.

    A state is its layout and the sizes of its buffers, in bytes; `begin` is where the first buffer begins.
    """

    key: Mapping[str, str]
    ids: list[int]
    turns: list[tuple[str, tuple[int, ...]]]
    lengths: list[int]
    states: list[tuple[Any, list[int]]]
    begin: int


def digest(data: bytes | memoryview) -> bytes:
    """The hash that every check here uses."""
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def write_file(
    path: Path,
    key: Mapping[str, str],
    ids: Sequence[int],
    full: Packed,
    checkpoints: Sequence[tuple[int, Packed]],
    turns: Turns,
) -> None:
    """Write the file whole, or not at all, for nobody else to read. Raises OSError."""
    states = [full, *(packed for _, packed in checkpoints)]
    header = {
        "key": dict(key),
        "ids": list(ids),
        "turns": list(turns),
        "lengths": [length for length, _ in checkpoints],
        "states": [[p.layout, [memoryview(b).nbytes for b in p.buffers]] for p in states],
    }
    raw = json.dumps(header).encode("ascii")
    content = hashlib.blake2b(digest_size=_DIGEST)
    with replacing(path, 0o600) as file:  # unsynced: the digests tell what did not get to the disk
        file.write(_MAGIC + _LENGTH.pack(len(raw)) + digest(raw) + raw)
        for buffer in (buffer for state in states for buffer in state.buffers):
            content.update(buffer)
            file.write(buffer)
        file.write(content.digest())


def read_header(path: Path) -> SnapshotHeader | None:
    """The header of a whole file that this user wrote; None for any other."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
                return None
            head = file.read(_HEAD)
            if len(head) < _HEAD or not head.startswith(_MAGIC):
                return None
            (length,) = _LENGTH.unpack_from(head, len(_MAGIC))
            raw = file.read(min(length, _MOST_HEADER))
        if digest(raw) != head[-_DIGEST:]:
            return None
        header = _sensible(json.loads(raw), _HEAD + length)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    content = sum(size for _, sizes in header.states for size in sizes)
    return header if status.st_size == header.begin + content + _DIGEST else None


def read_states(path: Path, header: SnapshotHeader) -> list[Packed]:
    """The states that `header` lists. Raises OSError, and ValueError for damaged content."""
    with path.open("rb") as file:
        file.seek(header.begin)
        data = memoryview(file.read())
    if len(data) < _DIGEST or digest(data[:-_DIGEST]) != data[-_DIGEST:]:
        raise ValueError("its content is damaged")
    states, at = [], 0
    for layout, sizes in header.states:
        buffers = []
        for size in sizes:
            buffers.append(data[at : at + size])
            at += size
        states.append(Packed(layout, tuple(buffers)))
    return states


def _sensible(fields: Any, begin: int) -> SnapshotHeader:
    """The header, with every field checked. Raises ValueError, KeyError, TypeError."""
    key, ids, lengths, states = fields["key"], fields["ids"], fields["lengths"], fields["states"]
    turns = [(text, tuple(more)) for text, more in fields["turns"]]
    sizes = [size for _, each in states for size in each]
    good = (
        isinstance(key, dict)
        and all(isinstance(value, str) for value in key.values())
        and bool(ids)
        and _whole(ids)
        and _whole(lengths)
        and all(0 < length <= len(ids) for length in lengths)
        and all(a < b for a, b in pairwise(lengths))
        and len(states) == len(lengths) + 1
        and _whole(sizes)
        and all(isinstance(text, str) and _whole(more) for text, more in turns)
    )
    if not good:
        raise ValueError("no header of a snapshot")
    return SnapshotHeader(key, ids, turns, lengths, [(layout, list(each)) for layout, each in states], begin)


def _whole(numbers: Sequence[Any]) -> bool:
    """Whether all are whole numbers, 0 or more."""
    return isinstance(numbers, list | tuple) and all(
        type(number) is int and number >= 0 for number in numbers
    )
