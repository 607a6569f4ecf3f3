"""The identity of weights, from a small part of their bytes.

`fingerprint` depends on contents only, never on the place, the name or the times of files, and costs
milliseconds however large the weights are.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from localagent.errors import InvalidWeights
from localagent.hosts.weights import reading, regular_size

SAMPLES: Final = 64
SAMPLE_BYTES: Final = 4096
_MOST_HEADER: Final = 256 << 20
_PIECE: Final = 1 << 20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def fingerprint(
    files: Sequence[Path], header_size: Callable[[Path], int], beside: Sequence[Path] = ()
) -> str:
    """A stable identity of the weights in `files`: 32 hexadecimal digits.

    `header_size`: the bytes of a file before its tensor data. `beside`: further files that change what a
    model computes or how text becomes tokens, if they are there; the names of the files then count, too.
    Hashed are every file's size, its whole header (metadata, names, types, shapes and offsets of the tensors)
    and 64 evenly spread blocks of 4 KiB of its tensor data, including the last bytes; all of what is beside.
    So it changes with the model, quantization, tokenizer, template or revision, and if a file is cut or
    extended. It misses a change that lies between two samples: it tells versions apart, but only the store's
    hashes detect damage or malice.
    Raises InvalidWeights if a file or its header cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"la-weights-1")
    digest.update(_U32.pack(len(files)))
    for side in beside:
        _add(digest, side.name.encode(), _read_whole(side) if side.is_file() else b"\0absent")
    for file in files:
        if beside:
            _add(digest, file.name.encode())
        _add_file(digest, file, header_size(file))
    return digest.hexdigest()


def _add_file(digest: hashlib.blake2b, path: Path, end: int) -> None:
    if end > _MOST_HEADER:
        raise InvalidWeights(f"{path}: the header is corrupt: it has {end:,} bytes")
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        _add(digest, _U64.pack(size), _U64.pack(end))
        _add_range(digest, file, 0, end)
        for start in _samples(end, size):
            _add_range(digest, file, start, min(start + SAMPLE_BYTES, size))


def _samples(begin: int, size: int) -> list[int]:
    """Where the samples of the data from `begin` to `size` begin: the first block and the last among them."""
    room = size - begin
    if room <= SAMPLES * SAMPLE_BYTES:
        return list(range(begin, size, SAMPLE_BYTES))
    last = room - SAMPLE_BYTES
    return [begin + last * number // (SAMPLES - 1) for number in range(SAMPLES)]


def _add(digest: hashlib.blake2b, *pieces: bytes) -> None:
    """Length first, so that no two lists of pieces read the same."""
    for piece in pieces:
        digest.update(_U64.pack(len(piece)))
        digest.update(piece)


def _add_range(digest: hashlib.blake2b, file: BinaryIO, start: int, end: int) -> None:
    file.seek(start)
    while start < end:
        piece = file.read(min(_PIECE, end - start))
        if not piece:
            return
        digest.update(piece)
        start += len(piece)


def _read_whole(path: Path) -> bytes:
    regular_size(path, _MOST_HEADER)
    with reading(path):
        return path.read_bytes()
