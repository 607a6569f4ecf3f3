"""Snapshots as plain bytes, and back.

The bytes are those of the arrays, bfloat16 included, in this machine's byte order. They are read from files
that any program may have written, so `unpack` trusts nothing and raises ValueError for everything that is not
a snapshot of this model.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from localagent.hosts.engine import Packed
from localagent.hosts.mlx.caches import CacheEntry, CacheSnapshot
from localagent.hosts.mlx.library import Library

_FORMAT = f"mlx-1-{sys.byteorder}"
_DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "int16",
    "uint16",
    "int8",
    "uint8",
)
_LARGEST = 1 << 31  # a dimension or counter beyond this is no state of any model


def pack(lib: Library, snapshot: CacheSnapshot, kinds: tuple[str, ...]) -> Packed:
    """The bytes of a snapshot. `kinds` names the class of every cache."""
    entries: list[Any] = []
    buffers: list[bytes | memoryview] = []
    for entry in snapshot.entries or ():
        entries.append(entry and _describe(lib, entry, buffers))
    layout = {"format": _FORMAT, "length": snapshot.length, "caches": list(kinds), "entries": entries}
    return Packed(layout, tuple(buffers))


def unpack(lib: Library, packed: Packed, kinds: tuple[str, ...]) -> CacheSnapshot:
    """The snapshot of caches of these `kinds`; its shapes are yet to be compared. Raises ValueError."""
    match packed.layout:
        case {
            "format": form,
            "length": int(length),
            "caches": list(caches),
            "entries": list(entries),
            **rest,
        }:
            valid = form == _FORMAT and not rest and 0 <= length < _LARGEST
        case _:
            valid = False
    if not valid or tuple(caches) != kinds or len(entries) not in (0, len(kinds)):
        raise ValueError("not a state of a sequence of this model in MLX")
    buffers = list(packed.buffers)
    read = tuple(None if entry is None else _read(lib, entry, buffers) for entry in entries)
    if buffers:
        raise ValueError("a state with more bytes than it describes")
    return CacheSnapshot(length, read)


def _describe(lib: Library, entry: CacheEntry, buffers: list[bytes | memoryview]) -> dict[str, Any]:
    arrays: list[Any] = []
    for array in entry.arrays:
        if array is None:
            arrays.append(None)
            continue
        arrays.append({"dtype": str(array.dtype).removeprefix("mlx.core."), "shape": list(array.shape)})
        # Copied: bytes may go to another thread, an MLX array may not.
        buffers.append(bytes(lib.numpy.asarray(array.reshape(-1).view(lib.mx.uint8)).data))
    return {"arrays": arrays, "counters": list(entry.counters)}


def _read(lib: Library, described: Any, buffers: list[bytes | memoryview]) -> CacheEntry:
    match described:
        case {"arrays": list(arrays), "counters": list(counters), **rest} if not rest and all(
            type(counter) is int and 0 <= counter < _LARGEST for counter in counters
        ):
            return CacheEntry(tuple(_read_array(lib, array, buffers) for array in arrays), tuple(counters))
    raise ValueError("not a state of a cache in MLX")


def _read_array(lib: Library, described: Any, buffers: list[bytes | memoryview]) -> Any:
    if described is None:
        return None
    match described:
        case {"dtype": str(name), "shape": list(shape), **rest} if name in _DTYPES and not rest:
            if not all(type(size) is int and 0 < size < _LARGEST for size in shape) or not buffers:
                raise ValueError("not an array of a state")
            dtype, buffer = getattr(lib.mx, name), memoryview(buffers.pop(0)).cast("B")
            if len(buffer) != math.prod(shape) * dtype.size:
                raise ValueError(f"an array of {len(buffer):,} bytes that is not as large as its shape says")
            flat = lib.mx.array(lib.numpy.frombuffer(buffer, lib.numpy.uint8))
            return flat.view(dtype).reshape(shape)
    raise ValueError("not an array of a state")
