"""Files that are no models are refused in one line, before the engine sees them, and never crash it."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.gguf import _BLOCKS, read_header
from localagent.hosts.llamacpp.host import LlamaCppHost

HEAD = 4096


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def small(
    entries: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), version: int = 3, data: bytes = b""
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    body = head + b"".join(entries) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data


ARCHITECTURE = string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")
TENSOR = string(b"t") + struct.pack("<IQIQ", 1, 32, 0, 0)


def integer(key: bytes, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def test_header_of_real_weights(gguf: Path) -> None:
    header = read_header(gguf)
    assert header.architecture == "llama"
    assert header.context_length == 8192
    assert header.name
    assert "<|im_start|>" in (header.chat_template or "")
    assert header.metadata["tokenizer.ggml.tokens"].length == 49152


def test_header_of_a_small_file(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(small((ARCHITECTURE, integer(b"llama.block_count", 2)), (TENSOR,), data=b"\0" * 128))
    assert read_header(file).metadata == {"general.architecture": "llama", "llama.block_count": 2}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # so that a reader that opens it does not wait
    try:
        for path in (pipe, tmp_path):
            with pytest.raises(InvalidWeights, match="not a regular file"):
                read_header(path)
    finally:
        os.close(writer)


BROKEN = {
    "empty": (b"", "empty"),
    "text": (b"Hello, I am a model, honestly.", "not a GGUF"),
    "html": (b"<!DOCTYPE html><title>404</title>", "not a GGUF"),
    "magic only": (b"GGUF", "truncated"),
    "version 1": (small(version=1), "version 1"),
    "version 99": (small(version=99), "version 99"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + b"\0" * 64, "big-endian"),
    "huge counts": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "corrupt"),
    "long key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40) + b"\0" * 64, "corrupt"),
    "no architecture": (small((), (TENSOR,), data=b"\0" * 128), "architecture"),
    "no tensors": (small((ARCHITECTURE,)), "no tensors"),
    "same key twice": (small((ARCHITECTURE, ARCHITECTURE), data=b"\0" * 99), "twice"),
    "unknown type": (small((string(b"k") + struct.pack("<I", 77),), data=b"\0" * 99), "type 77"),
    "long array": (small((string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 50),), data=b"\0" * 99), "array"),
    "nested arrays": (small((string(b"k") + struct.pack("<IIQ", 9, 9, 1),), data=b"\0" * 99), "arrays"),
    "bad alignment": (small((ARCHITECTURE, integer(b"general.alignment", 33)), data=b"\0" * 99), "alignment"),
    "tokens spelled alike": (
        small(
            (
                ARCHITECTURE,
                string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + string(b"a") + string(b"a"),
            ),
            (TENSOR,),
            data=b"\0" * 128,
        ),
        "alike",
    ),
    "zero blocks": (
        small((ARCHITECTURE, integer(b"llama.block_count", 0)), (TENSOR,), data=b"\0" * 128),
        "block_count is 0",
    ),
    "tensor cut off": (small((ARCHITECTURE,), (TENSOR,), data=b"\0" * 100), "28 more"),
    "tensor shape": (
        small((ARCHITECTURE,), (string(b"t") + struct.pack("<IQIQ", 1, 1 << 63, 0, 0),), data=b"\0" * 128),
        "shape",
    ),
    "only a frame": (
        small((ARCHITECTURE, integer(b"llama.block_count", 2)), (TENSOR,), data=b"\0" * 128),
        "unsupported",
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, says = BROKEN[name]
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(InvalidWeights) as refused:
        LlamaCppHost.load(file)
    message = str(refused.value)
    assert str(file) in message
    assert says in message
    assert "\n" not in message


@pytest.mark.engine
def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(InvalidWeights, match="cannot be read"):
            LlamaCppHost.load(path)


@pytest.mark.parametrize("keep", [3, 20, 300, 5_000, 1_000_000, 50_000_000, -1])
def test_weights_cut_off_anywhere_are_refused(keep: int, gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    size = keep if keep >= 0 else gguf.stat().st_size + keep
    with gguf.open("rb") as source, file.open("wb") as target:
        target.write(source.read(min(size, 4_000_000)))
        target.truncate(size)
    with pytest.raises(InvalidWeights, match=r"truncated|not a GGUF|more entries than the file can hold"):
        LlamaCppHost.load(file)


@given(st.integers(0, HEAD - 1), st.integers(0, 7))
@settings(max_examples=200)
def test_header_cut_and_flipped(beginning: bytes, scratch: Path, at: int, bit: int) -> None:
    content = bytearray(beginning)
    content[at] ^= 1 << bit
    scratch.write_bytes(content)
    with pytest.raises(InvalidWeights):
        read_header(scratch)


@pytest.fixture(scope="module")
def flipped(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    shutil.copyfile(gguf, file)
    return file


# Where a flipped bit in the real header must be noticed: llama.cpp would abort on the tokens.
FLIPS = {
    b"GGUF": 0,
    b"general.architecture": 4,
    b"llama.block_count": 3,
    b"llama.attention.head_count\x04": 5,
    b"tokenizer.ggml.tokens": 2,
    b"\x01\0\0\0\0\0\0\0A": 8,
    b"tokenizer.ggml.token_type": 29,
    b"blk.0.attn_k.weight": 6,
}


@pytest.mark.parametrize("mark", FLIPS)
def test_flipped_bit_in_whole_weights(mark: bytes, flipped: Path) -> None:
    with flipped.open("r+b") as file:
        at = file.read(3_000_000).index(mark) + FLIPS[mark]
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ 2]))
    try:
        with pytest.raises(InvalidWeights) as refused:
            LlamaCppHost.load(flipped, context=64)
        assert "\n" not in str(refused.value)
    finally:
        with flipped.open("r+b") as file:
            file.seek(at)
            file.write(before)


@pytest.fixture(scope="module")
def beginning(gguf: Path) -> bytes:
    with gguf.open("rb") as file:
        return file.read(HEAD)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "flipped.gguf"


@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(b"GGUF\x03\0\0\0" + content)
    with pytest.raises(InvalidWeights):
        read_header(scratch)


@pytest.mark.engine
def test_types_of_tensors_are_as_large_as_the_engine_has_them() -> None:
    from llama_cpp._ggml import libggml as ggml

    ggml.ggml_blck_size.restype, ggml.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    assert len(_BLOCKS) == 35
    assert {kind: (ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind)) for kind in _BLOCKS} == _BLOCKS
