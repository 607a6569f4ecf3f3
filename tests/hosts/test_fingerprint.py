"""The weights' fingerprint: contents decide, nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from time import process_time

import pytest

from localagent.errors import InvalidWeights
from localagent.hosts import fingerprint as module
from localagent.hosts.fingerprint import SAMPLE_BYTES
from localagent.hosts.llamacpp.gguf import header_size, weight_files
from localagent.hosts.mlx.folder import fingerprint_folder
from localagent.hosts.mlx.safetensors import read_tensors
from tests.hosts.test_gguf import ARCHITECTURE, TENSOR, integer, small, string

MIB = 1 << 20


def fingerprint(path: Path) -> str:
    """As the host of such weights asks for it."""
    return fingerprint_folder(path) if path.is_dir() else module.fingerprint(weight_files(path), header_size)


def tokens(*words: bytes) -> bytes:
    listed = b"".join(map(string, words))
    return string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(words)) + listed


ENTRIES = (ARCHITECTURE, integer(b"llama.block_count", 2), tokens(b"one", b"two"))


def gguf_file(path: Path, data: bytes, entries: tuple[bytes, ...] = ENTRIES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small(entries, (TENSOR,), data=data))
    return path


def folder_of(path: Path, data: bytes = b"\1" * MIB, **config: object) -> Path:
    path.mkdir(parents=True)
    table = {"a": {"dtype": "F16", "shape": [len(data) // 2], "data_offsets": [0, len(data)]}}
    header = json.dumps({"__metadata__": {"format": "mlx"}, **table}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (path / "config.json").write_text(json.dumps({"model_type": "lfm2", **config}))
    (path / "tokenizer.json").write_text("{}")
    return path


def change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_place_name_and_time_do_not_matter(tmp_path: Path) -> None:
    one = gguf_file(tmp_path / "one.gguf", os.urandom(MIB))
    other = tmp_path / "far" / "other.gguf"
    other.parent.mkdir()
    shutil.copyfile(one, other)
    os.utime(other, (1, 1))
    assert fingerprint(one) == fingerprint(other)
    assert len(fingerprint(one)) == 32


def test_every_byte_of_the_header_counts(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", bytes(MIB))
    before, header = fingerprint(file), len(small(ENTRIES, (TENSOR,)))
    seen = {before}
    for at in (file.read_bytes().index(b"two"), file.read_bytes().index(b"llama"), header - 40):
        change(file, at)
        seen.add(fingerprint(file))
        change(file, at)
    assert len(seen) == 4
    assert fingerprint(file) == before


@pytest.mark.parametrize("at", [100, -1, -SAMPLE_BYTES])
def test_the_ends_of_the_data_are_sampled(tmp_path: Path, at: int) -> None:
    file = gguf_file(tmp_path / "m.gguf", bytes(2 * MIB))
    before, size = fingerprint(file), file.stat().st_size
    change(file, at if at < 0 else size - 2 * MIB + at)
    assert fingerprint(file) != before


def test_samples_are_spread_evenly(tmp_path: Path) -> None:
    """A stretch of three sixty-fourths cannot change unseen, wherever it lies."""
    file = gguf_file(tmp_path / "m.gguf", bytes(4 * MIB))
    before, whole = fingerprint(file), file.read_bytes()
    begin = len(whole) - 4 * MIB
    for part in range(62):
        at, stretch = begin + part * 4 * MIB // 64, 3 * 4 * MIB // 64
        file.write_bytes(whole[:at] + b"\1" * stretch + whole[at + stretch :])
        assert fingerprint(file) != before, part


def test_what_it_cannot_see(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", bytes(4 * MIB))
    before = fingerprint(file)
    change(file, file.stat().st_size - 4 * MIB + 20_000)
    assert fingerprint(file) == before


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", bytes(20_000))
    seen = {fingerprint(file)}
    for at in range(file.stat().st_size - 20_000, file.stat().st_size, 997):
        change(file, at)
        seen.add(fingerprint(file))
    assert len(seen) == 22


def test_truncated_and_extended(tmp_path: Path) -> None:
    """The samples of constant data are the same: the size must count."""
    prints = {fingerprint(gguf_file(tmp_path / "m.gguf", bytes(MIB + more))) for more in (-4096, 0, 4096)}
    assert len(prints) == 3
    file = gguf_file(tmp_path / "m.gguf", b"")
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(InvalidWeights, match="truncated"):
        fingerprint(file)


def test_what_is_no_model_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_bytes(b"hello, I am long enough to be read as a header")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "counts.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    (tmp_path / "bad.safetensors").write_bytes(struct.pack("<Q", 1 << 50) + b"{}")
    for name in ("text.gguf", "empty.gguf", "counts.gguf", "absent.gguf", "."):
        with pytest.raises(InvalidWeights):
            fingerprint(tmp_path / name)
    with pytest.raises(InvalidWeights, match="counts more entries"):
        fingerprint(tmp_path / "counts.gguf")


def test_every_file_of_a_split_set_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    gguf_file(parts[0], b"\1" * MIB)
    parts[1].write_bytes(small((integer(b"split.no", 1),), (TENSOR,), data=b"\2" * MIB))
    assert weight_files(parts[1]) == parts
    assert fingerprint(parts[0]) == fingerprint(parts[1])
    before = fingerprint(parts[0])
    change(parts[1], -1)
    assert fingerprint(parts[0]) != before
    parts[1].unlink()
    with pytest.raises(InvalidWeights, match="m-00002-of-00002\\.gguf is missing"):
        fingerprint(parts[0])


def test_every_file_of_a_folder_that_matters_counts(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "a" / "model", rope_theta=1.0)
    same = folder_of(tmp_path / "b" / "other", rope_theta=1.0)
    os.utime(same / "model.safetensors", (1, 1))
    (same / "README.md").write_text("changes nothing")
    assert fingerprint(one) == fingerprint(same)
    seen = {fingerprint(one), fingerprint(folder_of(tmp_path / "c", rope_theta=2.0))}
    seen.add(fingerprint(folder_of(tmp_path / "d", data=b"\2" * MIB, rope_theta=1.0)))
    (same / "tokenizer.json").write_text('{"a": 1}')
    seen.add(fingerprint(same))
    (same / "tokenizer.json").unlink()
    seen.add(fingerprint(same))
    (one / "model.safetensors").rename(one / "model-renamed.safetensors")
    seen.add(fingerprint(one))
    (one / "model-renamed.safetensors").write_bytes(
        (one / "model-renamed.safetensors").read_bytes().replace(b"F16", b"BF16")
    )
    with pytest.raises(InvalidWeights):
        read_tensors(one / "model-renamed.safetensors")
    assert len(seen) == 6


def test_header_of_safetensors(tmp_path: Path) -> None:
    assert read_tensors(folder_of(tmp_path / "m") / "model.safetensors") == {
        "a": {"dtype": "F16", "shape": [MIB // 2], "data_offsets": [0, MIB]}
    }


def test_real_weights_take_milliseconds(gguf: Path, tmp_path: Path) -> None:
    best, before = 1.0, fingerprint(gguf)
    for _ in range(5):
        started = process_time()
        assert fingerprint(gguf) == before
        best = min(best, process_time() - started)
    assert best < 0.05
    sparse = tmp_path / "large.gguf"  # 4 GB of nothing behind the same header
    with sparse.open("wb") as file:
        file.write(gguf.read_bytes()[: 4 * MIB])
        file.truncate(4 << 30)
    started = process_time()
    assert fingerprint(sparse) != before
    assert process_time() - started < 0.5
