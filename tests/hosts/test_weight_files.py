"""Weight files before an engine reads them: which belong together, and what a safetensors header may say."""

from __future__ import annotations

import json
import os
import struct

import pytest

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.gguf import weight_files
from localagent.hosts.mlx import safetensors as module
from localagent.hosts.mlx.safetensors import data_begin, read_tensors
from localagent.hosts.protocol import Finish
from localagent.hosts.weights import regular_size, total_size


def refused(function, *arguments) -> str:
    with pytest.raises(InvalidWeights) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Which files


def test_all_parts_of_a_split_set_in_order(tmp_path):
    parts = [tmp_path / f"big-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for size, part in enumerate(parts, 10):
        part.write_bytes(bytes(size))
    for part in parts:
        assert weight_files(part) == parts
        assert total_size(weight_files(part)) == 33
    parts[2].unlink()
    assert (
        refused(weight_files, parts[0]) == f"{parts[0]}: one of 3 files, of which {parts[2].name} is missing"
    )
    parts[2].mkdir()
    assert parts[2].name in refused(weight_files, parts[0])


@pytest.mark.parametrize(
    "name",
    ["a.gguf", "a-00001-of-00000.gguf", "a-1-of-2.gguf", "a-00001-of-00002.bin", "00001-of-00002.gguf"],
)
def test_a_file_by_itself(tmp_path, name):
    (tmp_path / name).write_bytes(b"abc")
    assert weight_files(tmp_path / name) == [tmp_path / name]
    assert total_size([tmp_path / name]) == 3


def test_a_folder_has_the_safetensors_that_are_loaded_and_nothing_else(tmp_path):
    for name, size in (
        ("model-b.safetensors", 1),
        ("model-a.safetensors", 2),
        ("consolidated.safetensors", 8),
        ("config.json", 4),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    assert [file.name for file in module.weight_files(tmp_path)] == [
        "model-a.safetensors",
        "model-b.safetensors",
    ]
    assert total_size(module.weight_files(tmp_path)) == 3
    (tmp_path / "none").mkdir()
    assert (
        refused(module.weight_files, tmp_path / "none") == f"{tmp_path / 'none'}: no model*.safetensors in it"
    )


def test_a_size_is_that_of_a_regular_file(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abcd")
    assert regular_size(file) == regular_size(file, 4) == 4
    assert refused(regular_size, file, 3) == f"{file}: 4 bytes: at most 3 are read"
    assert refused(regular_size, tmp_path) == f"{tmp_path}: cannot be read: not a regular file"
    assert (
        refused(regular_size, tmp_path / "gone")
        == f"{tmp_path / 'gone'}: cannot be read: No such file or directory"
    )
    os.mkfifo(tmp_path / "pipe")
    assert (
        refused(regular_size, tmp_path / "pipe") == f"{tmp_path / 'pipe'}: cannot be read: not a regular file"
    )


# What a header may say


def tensor(begin: int = 0, end: int = 4, shape: object = (2,), kind: object = "F16") -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def read(tmp_path):
    """Reads a file with this header and so many bytes of data."""

    def read(header, data=8):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        file = tmp_path / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
        assert data_begin(file) == 8 + len(text)
        return read_tensors(file)

    return read


def test_tensors_without_the_words_about_them(read):
    named = {"a": tensor(0, 4, [2]), "b": tensor(4, 8, [1, 2])}
    assert read({"__metadata__": {"format": "mlx"}, **named}) == named
    assert read({}) == {}


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        *((kind, 1) for kind in ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0")),
        *((kind, 2) for kind in ("U16", "I16", "F16", "BF16")),
        *((kind, 4) for kind in ("U32", "I32", "F32")),
        *((kind, 8) for kind in ("U64", "I64", "F64", "C64")),
    ],
)
def test_each_type_has_its_width(read, tmp_path, kind, width):
    assert read({"a": tensor(0, 6 * width, [2, 3], kind)}, 6 * width)
    for wrong in (6 * width - 1, 6 * width + 1):
        said = refused(read, {"a": tensor(0, wrong, [2, 3], kind)}, 64)
        assert said.endswith("cut short or broken: the data of 'a' do not fit its shape")


def test_types_that_are_not_known_are_left_to_the_engine(read):
    assert read({"a": tensor(0, 3, [100], "F4")})


def test_empty_tensors_and_scalars(read):
    assert read({"a": tensor(0, 0, [0, 7]), "b": tensor(0, 2, []), "c": tensor(8, 8, [0])})


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (tensor(0, 9, [9], "U8"), "the data of 'a' lie outside the file"),
        (tensor(-2, 2), "the data of 'a' lie outside the file"),
        (tensor(4, 2), "the data of 'a' lie outside the file"),
        (tensor(shape=[-1]), "tensor 'a' has an impossible shape"),
        (tensor(shape=[True, 2]), "tensor 'a' has an impossible shape"),
        (tensor(shape=[1.0]), "tensor 'a' has an impossible shape"),
        (tensor(shape=[1 << 31]), "tensor 'a' has an impossible shape"),
        (tensor(shape=[(1 << 31) - 1, 0]), "the data of 'a' do not fit its shape"),
        (tensor(shape=[1] * 17), "tensor 'a' has an impossible shape"),
        (tensor(shape=7), "the data of 'a' lie nowhere"),
        (tensor(kind=None), "the data of 'a' lie nowhere"),
        ({"dtype": "F16", "shape": [2]}, "the data of 'a' lie nowhere"),
        ({"dtype": "F16", "shape": [2], "data_offsets": [0]}, "the data of 'a' lie nowhere"),
        ({"dtype": "F16", "shape": [2], "data_offsets": ["0", 4]}, "the data of 'a' lie nowhere"),
        ([], "the data of 'a' lie nowhere"),
    ],
)
def test_tensors_that_are_refused(read, tmp_path, entry, says):
    assert refused(read, {"a": entry}) == f"{tmp_path / 'model.safetensors'}: cut short or broken: {says}"


def test_as_many_dimensions_as_there_may_be(read):
    assert read({"a": tensor(0, 2, [1] * 16)})


def test_a_name_of_any_length_makes_a_short_complaint(read):
    assert len(refused(read, {"{}" * 1000: []})) < 300


def test_no_two_share_their_data(read, tmp_path):
    assert read({"b": tensor(4, 8), "a": tensor(0, 4), "empty": tensor(2, 2, [0])})
    said = refused(read, {"b": tensor(2, 6), "a": tensor(0, 4)})
    assert said == f"{tmp_path / 'model.safetensors'}: broken: the data of two tensors overlap"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "its header is not JSON"),
        (b"\xff\xfe", "its header is not JSON"),
        (b"[" * 100_000, "its header is not JSON"),
        (b"[]", "its header is not a JSON object"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is in it twice"),
    ],
)
def test_headers_that_are_refused(read, tmp_path, header, says):
    assert refused(read, header) == f"{tmp_path / 'model.safetensors'}: not a safetensors file: {says}"


def test_where_the_header_must_end(tmp_path, monkeypatch):
    file = tmp_path / "m"
    says = f"{file}: cut short, or not a safetensors file"
    for content in (b"", b"\2\0\0\0\0\0\0", b"\2\0\0\0\0\0\0\0{", struct.pack("<Q", 1 << 63) + b"{}"):
        file.write_bytes(content)
        assert refused(data_begin, file) == says
    file.write_bytes(struct.pack("<Q", 2) + b"{}")
    monkeypatch.setattr(module, "MOST_HEADER", 10)
    assert data_begin(file) == 10
    monkeypatch.setattr(module, "MOST_HEADER", 9)
    assert refused(data_begin, file) == says


def test_what_was_reused_was_not_evaluated():
    assert Finish("stop", prompt=10, cached=7, generated=2).prefilled == 3
