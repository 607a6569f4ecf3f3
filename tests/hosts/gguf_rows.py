"""GGUF files with one thing wrong in the header, made of a sound one."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localagent.hosts.llamacpp.hyperparameters import ENDS, RANGES

U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = 4, 5, 6, 7, 8, 9, 10, 11, 12
LETTERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}
LIMITS = {code: struct.calcsize("<" + letter) * 8 for code, letter in LETTERS.items()}
NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    1 << 15,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
    1e-40,
    0.5,
    1e38,
    math.nan,
    math.inf,
    -math.inf,
)


@dataclass(frozen=True)
class Entry:
    """A key with its value; of an array, `item` is the type of its elements."""

    key: str
    kind: int
    value: Any
    item: int | None = None


@dataclass(frozen=True)
class Tensor:
    """A record of the table of tensors."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class File:
    """A GGUF file, taken apart."""

    entries: tuple[Entry, ...]
    tensors: tuple[Tensor, ...]
    data: bytes

    def with_entry(self, entry: Entry) -> File:
        """The same with this entry in place of the one of its key, or added."""
        kept = [entry if old.key == entry.key else old for old in self.entries]
        return replace(self, entries=tuple(kept if entry in kept else [*kept, entry]))

    def without(self, key: str) -> File:
        """The same without that key."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.key != key))

    def with_tensor(self, number: int, tensor: Tensor) -> File:
        """The same with another record at that place."""
        return replace(self, tensors=(*self.tensors[:number], tensor, *self.tensors[number + 1 :]))

    def get(self, key: str) -> Entry:
        """The entry of that key."""
        return next(entry for entry in self.entries if entry.key == key)

    def write(self, path: Path) -> None:
        """Put it together."""
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.entries)))
        for entry in self.entries:
            out += _string(entry.key) + struct.pack("<I", entry.kind)
            if entry.kind == ARRAY:
                out += struct.pack("<IQ", entry.item, len(entry.value))
                out += b"".join(_scalar(entry.item or 0, value) for value in entry.value)
            else:
                out += _scalar(entry.kind, entry.value)
        for tensor in self.tensors:
            out += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
            out += b"".join(struct.pack("<Q", size) for size in tensor.shape)
            out += struct.pack("<IQ", tensor.kind, tensor.offset)
        out += b"\0" * (-len(out) % 32)
        path.write_bytes(bytes(out) + self.data)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _scalar(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind in (F32, F64):
        return struct.pack("<" + LETTERS[kind], value)
    return (int(value) % (1 << LIMITS[kind])).to_bytes(LIMITS[kind] // 8, "little")


def read(path: Path) -> File:
    """Take a sound file apart."""
    stream = io.BytesIO(path.read_bytes())

    def number(letter: str) -> Any:
        return struct.unpack("<" + letter, stream.read(struct.calcsize("<" + letter)))[0]

    def value(kind: int) -> Any:
        return (
            stream.read(number("Q")).decode("utf-8", "surrogateescape")
            if kind == STRING
            else number(LETTERS[kind])
        )

    assert stream.read(8) == b"GGUF\x03\0\0\0"
    tensors, entries = number("Q"), number("Q")
    found = []
    for _ in range(entries):
        key, kind = value(STRING), number("I")
        if kind == ARRAY:
            item, length = number("I"), number("Q")
            found.append(Entry(key, ARRAY, [value(item) for _ in range(length)], item))
        else:
            found.append(Entry(key, kind, value(kind)))
    table = []
    for _ in range(tensors):
        name, shape = value(STRING), tuple(number("Q") for _ in range(number("I")))
        table.append(Tensor(name, shape, number("I"), number("Q")))
    stream.seek(-(-stream.tell() // 32) * 32)
    return File(tuple(found), tuple(table), stream.read())


def mutants(file: File) -> Iterator[tuple[str, File]]:
    """Every mutant with its name."""
    for entry in file.entries:
        yield f"{entry.key} removed", file.without(entry.key)
        for changed in _entries(entry):
            yield f"{entry.key} = {_shown(changed)}", file.with_entry(changed)
    for entry in added(file):
        yield f"{entry.key} added = {_shown(entry)}", file.with_entry(entry)
    for number, tensor in enumerate(file.tensors[:12]):
        for changed in _tensors(tensor, file):
            yield f"{tensor.name} -> {changed}"[:160], file.with_tensor(number, changed)
        yield (
            f"{tensor.name} removed",
            replace(file, tensors=file.tensors[:number] + file.tensors[number + 1 :]),
        )


def _shown(entry: Entry) -> str:
    value = entry.value
    if isinstance(value, list):
        value = f"{len(value)} of type {entry.item}: {value[:3]}..{value[-1:]}"
    return f"{value!r:.80} (type {entry.kind})"


def fits(kind: int, value: float) -> bool:
    """Whether a type can hold the number."""
    if kind in (F32, F64):
        return True
    if isinstance(value, float) and not value.is_integer():
        return False
    return abs(value) < 1 << LIMITS[kind]


def _entries(entry: Entry) -> Iterator[Entry]:
    if entry.kind == ARRAY:
        yield from _arrays(entry)
    elif entry.kind == STRING:
        yield from (
            replace(entry, value=text)
            for text in ("", "x", "\0", "\udcff", "a" * 70_000, "%s%n", entry.value[:-1])
        )
        yield from (Entry(entry.key, kind, 1) for kind in (U32, I32, F32, BOOL))
        yield Entry(entry.key, ARRAY, [entry.value], STRING)
    else:
        whole = entry.value if math.isfinite(entry.value) else 0
        for kind in LETTERS:
            values = NUMBERS if kind in (entry.kind, F32, I64, U32) else (whole,)
            yield from (Entry(entry.key, kind, value) for value in values if fits(kind, value))
        yield from (Entry(entry.key, STRING, text) for text in ("", str(entry.value)))
        yield from (Entry(entry.key, ARRAY, [entry.value] * count, entry.kind) for count in (0, 1, 6, 513))


def _arrays(entry: Entry) -> Iterator[Entry]:
    value = entry.value
    for changed in (
        value[:-1],
        value[1:],
        [],
        value[:1],
        value + value[-1:],
        value * 100,
        list(reversed(value)),
    ):
        yield replace(entry, value=changed)
    if entry.item == STRING:
        for text in ("", "x", "a b c", " ", "\udcff", "\0", "a" * 70_000):
            for at in (0, len(value) // 2, len(value) - 1):
                yield replace(entry, value=[*value[:at], text, *value[at + 1 :]])
        yield Entry(entry.key, ARRAY, [1] * len(value), U32)
        yield Entry(entry.key, STRING, "x")
        return
    kinds = [kind for kind in LETTERS if kind != entry.item]
    yield from (Entry(entry.key, ARRAY, value, kind) for kind in kinds)
    yield from (Entry(entry.key, kind, value[0]) for kind in (U32, I32, F32, BOOL))
    yield Entry(entry.key, STRING, "x")
    for number in NUMBERS:
        if fits(entry.item or 0, number):
            for at in (0, len(value) // 2, len(value) - 1):
                yield replace(entry, value=[*value[:at], number, *value[at + 1 :]])
            yield replace(entry, value=[number] * len(value))


def _tensors(tensor: Tensor, file: File) -> Iterator[Tensor]:
    shape, offset = tensor.shape, tensor.offset
    other = file.tensors[-1]
    for changed in (
        (),
        (0,),
        (*shape, 1),
        (*shape, 0),
        (*shape, 2),
        (1, *shape),
        shape[:-1],
        shape[::-1],
        shape * 4,
    ):
        yield replace(tensor, shape=changed)
    for at in range(len(shape)):
        for size in (
            0,
            1,
            shape[at] - 1,
            shape[at] + 1,
            shape[at] * 2,
            1 << 31,
            1 << 32,
            1 << 62,
            1 << 63,
            (1 << 64) - 1,
        ):
            yield replace(tensor, shape=(*shape[:at], size, *shape[at + 1 :]))
    yield from (
        replace(tensor, kind=kind) for kind in (*range(48), 99, 1 << 31, (1 << 32) - 1) if kind != tensor.kind
    )
    for moved in (
        offset + 1,
        offset + 4,
        offset + 32,
        0,
        other.offset,
        len(file.data),
        1 << 40,
        1 << 63,
        (1 << 64) - 32,
        (1 << 64) - 1,
    ):
        yield replace(tensor, offset=moved)
    for name in ("", other.name, "x", "y" * 64, "y" * 63, "y" * 70_000, "\udcff", "blk.99.attn_norm.weight"):
        yield replace(tensor, name=name)


_UNJUDGED = ("attention.causal", "attention.sliding_window_pattern", "decoder_start_token_id", "pooling_type")
"""Keys that llama.cpp reads and the table leaves to it."""
_IDS = ("unknown", "padding", "seperator", "separator", "mask", "cls", "prefix", "fim_pre", "fim_mid", *ENDS)


def added(file: File) -> Iterator[Entry]:
    """Entries of keys that the file lacks and llama.cpp reads."""
    own = file.get("general.architecture").value
    known = {entry.key for entry in file.entries}
    for key in (*RANGES, *_UNJUDGED):
        if f"{own}.{key}" in known:
            continue
        for kind in (U32, F32):
            yield from (Entry(f"{own}.{key}", kind, number) for number in NUMBERS if fits(kind, number))
        yield from (Entry(f"{own}.{key}", ARRAY, [value] * 6, U32) for value in (0, 1, 4, (1 << 32) - 1))
        yield Entry(f"{own}.{key}", ARRAY, [], U32)
    for name in _IDS:
        yield from (
            Entry(f"tokenizer.ggml.{name}_token_id", U32, value)
            for value in (0, 1023, 1024, 1 << 31, (1 << 32) - 1)
        )
        yield Entry(f"tokenizer.ggml.{name}_token_id", I32, -1)
    for model in ("none", "no_vocab", "llama", "bert", "t5", "rwkv", "plamo2", "gemma4", "hybriddna", "test"):
        yield Entry("tokenizer.ggml.model", STRING, model)
    for text in ("none", "linear", "yarn", "longrope", "", "x"):
        yield Entry(f"{own}.rope.scaling.type", STRING, text)
    for value in (0, 1, 2, 8, 31, 33, 64, 4096, 1 << 20, 1 << 31, (1 << 32) - 1):
        yield Entry("general.alignment", U32, value)
    yield Entry("general.alignment", U64, 32)
    for value in (0, 1, 2, 60_000, 65_535):
        yield Entry("split.count", 2, value)
        yield Entry("split.no", 2, value)
    for value in (0, 1, -1, 1 << 30):
        yield Entry("split.tensors.count", I32, value)
    for value in (math.nan, math.inf, -1e38):
        yield Entry("tokenizer.ggml.scores", ARRAY, [value] * 1024, F32)
    yield Entry("tokenizer.ggml.scores", ARRAY, [0.0] * 1023, F32)
    yield Entry("tokenizer.ggml.scores", ARRAY, [0] * 1024, I32)
    for blob in ([], [1], [255] * 4, [4, 0, 0, 0, 9, 9, 9, 9, 9], [0] * 9):
        yield Entry("tokenizer.ggml.precompiled_charsmap", ARRAY, blob, 0)
    for name in (
        "add_eos_token",
        "add_sep_token",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "escape_whitespaces",
    ):
        yield from (Entry(f"tokenizer.ggml.{name}", kind, 1) for kind in (BOOL, U32, F32))
    yield from (Entry("tokenizer.ggml.suppress_tokens", ARRAY, [-1, 1 << 30, 5], kind) for kind in (I32, U32))
    yield Entry("tokenizer.ggml.token_type_count", U32, (1 << 32) - 1)
    for count in (0, 3, 4, 5):
        yield Entry(f"{own}.rope.dimension_sections", ARRAY, [(1 << 31) - 1] * count, I32)
        yield Entry(f"{own}.rope.dimension_sections", ARRAY, [-1] * count, I32)


def renamed(file: File, architecture: str) -> File:
    """The same file, under the name of another architecture."""
    own = file.get("general.architecture").value
    named = [
        replace(entry, key=entry.key.replace(f"{own}.", f"{architecture}.", 1)) for entry in file.entries
    ]
    return replace(file, entries=tuple(named)).with_entry(Entry("general.architecture", STRING, architecture))
