"""Reads the header of a GGUF file, versions 2 and 3, and checks that the file holds what the header promises.

llama.cpp trusts these files and aborts the process on some broken ones. So `read_header` returns a `Header`
or raises InvalidWeights in one line, whatever the bytes are, in time and memory bounded by the size of the
file. Which values the numbers may have is decided in `hyperparameters`. Only the standard library is used.
Source: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.llamacpp.hyperparameters import ALIGNMENT, SPEECHLESS, fault
from localagent.hosts.weights import regular_size

MAX_ARRAY_KEPT = 8_192
_MAX_KEY = 65_535
_TOKENS = "tokenizer.ggml.tokens"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Final = {
    code: struct.Struct("<" + letter)
    for code, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# ggml type -> values per block, bytes per block. Types not listed are left for the engine to judge.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip


class _Broken(Exception):
    """What is wrong, without the name of the file."""


def weight_files(path: Path) -> list[Path]:
    """The files of the model at `path`, in order: that one, or all of a split set. Raises InvalidWeights."""
    split = _SPLIT.fullmatch(path.name)
    if split is None or int(split[3]) < 1:
        return [path]
    count = int(split[3])
    parts = [path.with_name(f"{split[1]}-{number:05d}-of-{split[3]}.gguf") for number in range(1, count + 1)]
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None:
        raise InvalidWeights(f"{path}: one of {count} files, of which {missing.name} is missing")
    return parts


def read_header(path: Path) -> Header:
    """Read and check the header of the file at `path`. Raises InvalidWeights."""
    with _reader(path) as reader:
        header = reader.read(keep=True)
        if header.architecture in SPEECHLESS:
            raise _Broken(f"unsupported: models of the architecture {header.architecture!r} write no text")
        if wrong := fault(header):
            raise _Broken(f"the header is corrupt: {wrong}")
        if not header.architecture:
            raise _Broken("unsupported: the header names no architecture")
        if not header.tensors:
            raise _Broken("the file holds no tensors: a vocabulary or an adapter, not a model")
        reader.check_size(header)
        return header


def header_size(path: Path) -> int:
    """Where the header of the file at `path` ends, in bytes.

    Judges no more than the way there, and so also reads the later parts of a split set, which name no
    architecture. Raises InvalidWeights.
    """
    with _reader(path) as reader:
        reader.read(keep=False)
        return reader.at


@contextmanager
def _reader(path: Path) -> Iterator[_Reader]:
    try:
        regular_size(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise _Broken("the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield _Reader(data, size)
    except (OSError, ValueError) as error:
        raise InvalidWeights(f"{path}: cannot be read: {error}") from error
    except _Broken as error:
        raise InvalidWeights(f"{path}: {error}") from None


class _Reader:
    """A cursor over the file. `at`: the offset of the next byte."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self.at = 0

    def read(self, keep: bool) -> Header:
        """All of the header, not yet judged. Without `keep` arrays are passed over."""
        self._check_magic()
        tensors, entries = self._unpack(_U64), self._unpack(_U64)
        # Smallest possible entry and tensor record; a garbage count must not become a long loop.
        if entries * 13 + tensors * 32 > self._size:
            raise _Broken("the header is corrupt: it counts more entries than the file can hold")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string(_MAX_KEY).decode("utf-8", "replace")
            if key in metadata:
                raise _Broken(f"the header is corrupt: the key {key[:80]!r} appears twice")
            metadata[key] = self._value(self._unpack(_U32), keep, distinct=keep and key == _TOKENS)
        return Header(metadata, tuple(self._tensor() for _ in range(tensors)))

    def check_size(self, header: Header) -> None:
        """Every tensor must lie inside the file."""
        alignment = header.metadata.get("general.alignment", ALIGNMENT)
        start = -(-self.at // alignment) * alignment
        needed = start + max(map(_tensor_end, header.tensors))
        if needed > self._size:
            missing = needed - self._size
            raise _Broken(f"truncated: {self._size:,} bytes, and {missing:,} more belong to it")

    def _check_magic(self) -> None:
        magic = self._data[:4]
        if magic != b"GGUF":
            raise _Broken(f"not a GGUF file: it begins with {magic!r}")
        self.at = 4
        version = self._unpack(_U32)
        if version & 0xFFFF == 0 and version:
            raise _Broken("unsupported GGUF file: big-endian")
        if version not in (2, 3):
            raise _Broken(f"unsupported GGUF version {version}: versions 2 and 3 can be read")

    def _unpack(self, layout: struct.Struct) -> Any:
        end = self.at + layout.size
        if end > self._size:
            raise _Broken(f"truncated: the header goes on past the end at byte {self._size:,}")
        value = layout.unpack_from(self._data, self.at)[0]
        self.at = end
        return value

    def _string(self, limit: int | None = None) -> bytes:
        length = self._unpack(_U64)
        if limit is not None and length > limit:
            raise _Broken(f"the header is corrupt: a key of {length:,} bytes")
        end = self.at + length
        if end > self._size:
            raise _Broken(f"truncated or corrupt: a string in the header ends past byte {self._size:,}")
        value = self._data[self.at : end]
        self.at = end
        return value

    def _value(self, kind: int, keep: bool, distinct: bool = False) -> Any:
        if kind == _STRING:
            return self._string().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(keep, distinct)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise _Broken(f"the header is corrupt: unknown value type {kind}")
        value = self._unpack(layout)
        return bool(value) if kind == _BOOL else value

    def _array(self, keep: bool, distinct: bool) -> Array:
        kind, length = self._unpack(_U32), self._unpack(_U64)
        if kind == _ARRAY:
            raise _Broken("unsupported: an array of arrays in the header")
        layout = _SCALARS.get(kind)
        if layout is None and kind != _STRING:
            raise _Broken(f"the header is corrupt: unknown value type {kind}")
        width = layout.size if layout else _U64.size
        if length * width > self._size - self.at:
            raise _Broken(f"truncated or corrupt: an array of {length:,} values ends past the file")
        if layout is None:
            return self._strings(length, keep, distinct)
        begin = self.at
        self.at += length * width
        if not keep or not length:
            return Array(kind, length, () if keep else None)
        numbers = array(layout.format[-1:], self._data[begin : self.at])
        return Array(kind, length, tuple(numbers) if length <= MAX_ARRAY_KEPT else None, _span(numbers))

    def _strings(self, count: int, keep: bool, distinct: bool) -> Array:
        if distinct:
            return self._vocabulary(count)
        if keep and count <= MAX_ARRAY_KEPT:
            texts = (self._string().decode("utf-8", "replace") for _ in range(count))
            return Array(_STRING, count, tuple(texts))
        self._skip_strings(count)
        return Array(_STRING, count, None)

    def _skip_strings(self, count: int) -> None:
        """Vocabularies hold 10^5 strings: no call and no copy for each."""
        data, cursor, size = self._data, self.at, self._size
        unpack: Callable[[Any, int], tuple[Any, ...]] = _U64.unpack_from
        for _ in range(count):
            if cursor + 8 > size:
                break
            cursor += 8 + unpack(data, cursor)[0]
        if cursor > size:
            raise _Broken(f"truncated or corrupt: a string in the header ends past byte {size:,}")
        self.at = cursor

    def _vocabulary(self, count: int) -> Array:
        """The tokens, which must differ: llama.cpp aborts the process when two are spelled alike."""
        texts = {self._string() for _ in range(count)}
        if len(texts) < count:
            raise _Broken("the header is corrupt: two tokens of the vocabulary are spelled alike")
        lengths = set(map(len, texts))
        span = (min(lengths), max(lengths)) if lengths else None
        spelled = (bytes((byte,)) in texts or b"<0x%02X>" % byte in texts for byte in range(256))
        unspelled = next((byte for byte, is_spelled in enumerate(spelled) if not is_spelled), None)
        return Array(_STRING, count, None, span, unspelled)

    def _tensor(self) -> Tensor:
        name = self._string(_MAX_KEY).decode("utf-8", "replace")
        dimensions = self._unpack(_U32)
        if not 0 < dimensions <= 4:
            raise _Broken(f"the header is corrupt: tensor {name[:80]!r} has {dimensions:,} dimensions")
        shape = tuple(self._unpack(_U64) for _ in range(dimensions))
        return Tensor(name, shape, self._unpack(_U32), self._unpack(_U64))


def _tensor_end(tensor: Tensor) -> int:
    """Where a tensor ends, counted from where the data begin."""
    per_block, width = _BLOCKS.get(tensor.kind, (1, 0))
    values = math.prod(tensor.shape)
    if not 0 < values < 1 << 62 or tensor.shape[0] % per_block:
        shape = list(tensor.shape)
        raise _Broken(f"the header is corrupt: tensor {tensor.name[:80]!r} has the shape {shape}")
    return tensor.offset + values // per_block * width


def _span(numbers: array[Any]) -> tuple[float, float]:
    """The least and the greatest; both NaN where one is NaN or infinite, since nothing compares with NaN."""
    if numbers.typecode in "fd" and not math.isfinite(sum(numbers)):
        return (math.nan, math.nan)
    return (min(numbers), max(numbers))
