"""Reads the header of a safetensors file and checks that the file holds what the header promises.

The file is eight bytes of length, a JSON table of that length, and the data that the table's offsets point
to. MLX trusts the table and reads wherever it points. So `read_tensors` returns the table or raises
InvalidWeights in one line, whatever the bytes are. Only the standard library is used.
Source: github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from localagent.errors import InvalidWeights
from localagent.hosts.weights import reading, regular_size

MOST_HEADER: Final = 64 << 20
"""Bytes. The format allows 100 MB; of the largest models they have a few."""
_MOST_SIZE: Final = (1 << 31) - 1  # of a dimension: MLX counts them in 32 bits
_MOST_DIMENSIONS: Final = 16
# Bytes of a value. Types not listed are left for the engine to judge.
_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that mlx-lm loads, by name: a repository may have others beside them.

    Raises InvalidWeights where there are none.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InvalidWeights(f"{folder}: no model*.safetensors in it")
    return files


def read_tensors(path: Path) -> dict[str, dict[str, Any]]:
    """The table of tensors: name to `dtype`, `shape` and `data_offsets`. Raises InvalidWeights."""
    header, room = _read_header(path)
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    spans = []
    for name, entry in tensors.items():
        if wrong := _fault(entry, room):
            raise InvalidWeights(f"{path}: cut short or broken: {wrong.format(repr(name[:80]))}")
        spans.append(tuple(entry["data_offsets"]))
    spans = sorted(span for span in spans if span[0] < span[1])
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        raise InvalidWeights(f"{path}: broken: the data of two tensors overlap")
    return tensors


def data_begin(path: Path) -> int:
    """Where the data begin, in bytes. Raises InvalidWeights."""
    size = regular_size(path)
    with reading(path), path.open("rb") as file:
        head = file.read(8)
    end = 8 + int.from_bytes(head, "little")
    if len(head) < 8 or end > size or end > MOST_HEADER:
        raise InvalidWeights(f"{path}: cut short, or not a safetensors file")
    return end


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON object, and how many bytes of data there are."""
    end = data_begin(path)
    try:
        with reading(path), path.open("rb") as file:
            file.seek(8)
            header = json.loads(file.read(end - 8), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, _Twice) else "its header is not JSON"
        raise InvalidWeights(f"{path}: not a safetensors file: {what}") from error
    if not isinstance(header, dict):
        raise InvalidWeights(f"{path}: not a safetensors file: its header is not a JSON object")
    return header, regular_size(path) - end


class _Twice(ValueError):
    """A key appears twice in one object; readers differ in which value they take."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _Twice(f"{twice[:80]!r} is in it twice")
    return found


def _fault(entry: Any, room: int) -> str | None:
    """What is wrong with a tensor, {} for its name, where there are `room` bytes of data."""
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            return "the data of {} lie nowhere"
    sizes = len(shape) <= _MOST_DIMENSIONS and all(type(size) is int for size in shape)
    if not sizes or not all(0 <= size <= _MOST_SIZE for size in shape):
        return "tensor {} has an impossible shape"
    if not 0 <= begin <= end <= room:
        return "the data of {} lie outside the file"
    width = _BYTES.get(kind)
    if width is not None and math.prod(shape) * width != end - begin:
        return "the data of {} do not fit its shape"
    return None
