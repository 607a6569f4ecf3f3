"""Weights with one thing wrong run or are refused in one line; none ends the process, hangs or eats memory.

Models are loaded in a child process, a few tokens are drawn, and the child is watched. Daily a part of the
rows is tried: those that ended the process once, and one of many among the others. With
HYPOTHESIS_PROFILE=long all are, which takes some minutes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.hyperparameters import (
    LONGEST_TOKEN,
    MOST_EXPERTS,
    MOST_LAYERS,
    POSITIVE,
    RANGES,
)
from localagent.hosts.mlx.folder import RANGES as MLX_RANGES
from localagent.hosts.mlx.folder import fault as mlx_fault
from localagent.hosts.mlx.folder import read_folder
from tests.hosts import folder_rows, gguf_rows
from tests.hosts.gguf_rows import ARRAY, BOOL, F32, I32, STRING, U32, Entry, File
from tests.hosts.loading import Loader, Outcome

T = TypeVar("T")
WHOLE = os.environ.get("HYPOTHESIS_PROFILE") == "long"
GGUF_PART, FOLDER_PART = 97, 101
"""One row of so many is tried daily."""


@pytest.fixture(scope="module")
def sound(nano: dict[str, Path]) -> File:
    return gguf_rows.read(nano["llamacpp"])


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    with Loader() as child:
        yield child


def part(rows: Iterable[T], step: int) -> Iterator[T]:
    return islice(rows, 0, None, 1 if WHOLE else step)


def tried(
    loader: Loader, rows: Iterable[tuple[str, T]], path: Path, write: Callable[[T], object]
) -> dict[str, Outcome]:
    """What became of each."""
    outcomes = {}
    for name, row in rows:
        write(row)
        outcomes[name] = loader.load(path)
    return outcomes


def unsound(outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    return {name: outcome for name, outcome in outcomes.items() if not outcome.sound}


# -- GGUF ---------------------------------------------------------------------------------------------

OWN = "lfm2."
NAN, INF = float("nan"), float("inf")
# What ended the process when llama.cpp saw it, or took memory without bound, and what the refusal names.
DEADLY: dict[str, tuple[tuple[Entry, ...], str]] = {
    "epsilon below zero": ((Entry(OWN + "attention.layer_norm_rms_epsilon", F32, -1.0),), "rms_epsilon is -1.0"),
    "epsilon no number": ((Entry(OWN + "attention.layer_norm_rms_epsilon", F32, NAN),), "rms_epsilon is nan"),
    "epsilon infinite": ((Entry(OWN + "attention.layer_norm_rms_epsilon", F32, -INF),), "rms_epsilon is -inf"),
    "experts unused": ((Entry(OWN + "expert_count", U32, 8),), "expert_used_count is 0 of 8"),
    "too many experts": ((Entry(OWN + "expert_count", U32, 1025),), "expert_count is 1025"),
    "more experts used than there are": ((Entry(OWN + "expert_used_count", U32, 2),), "2 of 0 experts"),
    "used in one layer": (
        (Entry(OWN + "expert_used_count", ARRAY, [0, 0, 1, 0, 0, 0], U32),),
        "expert_used_count is 1 of 0",
    ),
    "groups without experts": ((Entry(OWN + "expert_group_count", U32, 1),), "expert_group_count is 1"),
    "groups chosen": (
        (
            Entry(OWN + "expert_count", U32, 8),
            Entry(OWN + "expert_used_count", U32, 2),
            Entry(OWN + "expert_group_count", U32, 4),
            Entry(OWN + "expert_group_used_count", U32, 4),
        ),
        "expert_group_used_count is 4 of 4",
    ),
    "more to predict than layers": ((Entry(OWN + "nextn_predict_layers", U32, 7),), "nextn_predict_layers is 7"),
    "rope of nothing": ((Entry(OWN + "rope.dimension_count", U32, 0),), "rope.dimension_count is 0"),
    "rope odd": ((Entry(OWN + "rope.dimension_count", U32, 3),), "rope.dimension_count is 3"),
    "rope wider than a head": ((Entry(OWN + "rope.dimension_count", U32, 64),), "rope.dimension_count is 64"),
    "rope scaled anyhow": ((Entry(OWN + "rope.scaling.type", STRING, "x"),), "rope.scaling.type is 'x'"),
    "alignment": ((Entry("general.alignment", U32, 8),), "general.alignment is 8"),
    "no vocabulary": ((Entry("tokenizer.ggml.model", STRING, "none"),), "no vocabulary"),
    "bytes that no token spells": ((Entry("tokenizer.ggml.model", STRING, "llama"),), "token for the byte 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEADLY)
def test_what_ends_llama_cpp_is_refused_before(
    name: str, sound: File, loader: Loader, tmp_path: Path
) -> None:
    entries, says = DEADLY[name]
    for entry in entries:
        sound = sound.with_entry(entry)
    sound.write(tmp_path / "m.gguf")
    outcome = loader.load(tmp_path / "m.gguf")
    assert outcome.kind == "InvalidWeights", outcome
    assert says in outcome.text
    assert "\n" not in outcome.text


def test_a_token_of_great_length(sound: File, loader: Loader, tmp_path: Path) -> None:
    """The shield against forged tokens once kept each beginning of each special token."""
    tokens = sound.get("tokenizer.ggml.tokens")
    for length, kind in ((LONGEST_TOKEN, "ran"), (LONGEST_TOKEN + 1, "InvalidWeights")):
        long = Entry(tokens.key, ARRAY, ["a" * length, *tokens.value[1:]], STRING)
        sound.with_entry(long).write(tmp_path / "m.gguf")
        assert loader.load(tmp_path / "m.gguf").kind == kind


@pytest.mark.parametrize("kind", range(24, 29))
def test_weights_of_whole_numbers(kind: int, sound: File, tmp_path: Path) -> None:
    """Multiplied with, they ended the process by a signal."""
    number = next(at for at, tensor in enumerate(sound.tensors) if tensor.name == "blk.0.ffn_gate.weight")
    tensor = sound.tensors[number]
    other = gguf_rows.Tensor(tensor.name, (1, 1), kind, tensor.offset)
    sound.with_tensor(number, other).write(tmp_path / "m.gguf")
    with pytest.raises(InvalidWeights, match=f"ffn_gate.weight' has the type {kind}"):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("key", RANGES)
def test_each_number_of_the_table_is_judged(key: str, sound: File, tmp_path: Path) -> None:
    """Also under the name of an architecture that nobody has heard of."""
    file, allowed = gguf_rows.renamed(sound, "unheard_of"), RANGES[key]
    wrong: list[tuple[int, object]] = [(STRING, "1"), (BOOL, 1), (F32, NAN), (F32, INF), (F32, -INF)]
    wrong += [(I32, -2), (U32, (1 << 32) - 1), (F32, 1.0)] if allowed.whole else [(F32, 3e30), (F32, -3e30)]
    for kind, value in wrong:
        file.with_entry(Entry(f"unheard_of.{key}", kind, value)).write(tmp_path / "m.gguf")
        with pytest.raises(InvalidWeights, match=key.replace(".", r"\.")):
            read_header(tmp_path / "m.gguf")
    array = Entry(f"unheard_of.{key}", ARRAY, [max(1, int(allowed.least))] * 5, U32)
    file.with_entry(array).write(tmp_path / "m.gguf")
    with pytest.raises(InvalidWeights, match=rf"{key}.* (5 numbers for 6 layers|is an array)"):
        read_header(tmp_path / "m.gguf")


def test_an_unknown_number_must_be_finite(sound: File, tmp_path: Path) -> None:
    for kind, value in ((F32, NAN), (F32, INF), (ARRAY, [1.0, NAN])):
        entry = Entry("lfm2.novel.factor", kind, value, F32 if kind == ARRAY else None)
        sound.with_entry(entry).write(tmp_path / "m.gguf")
        with pytest.raises(InvalidWeights, match=r"lfm2\.novel\.factor is .* finite"):
            read_header(tmp_path / "m.gguf")
    sound.with_entry(Entry("other.novel.factor", F32, NAN)).write(tmp_path / "m.gguf")
    assert read_header(tmp_path / "m.gguf").architecture == "lfm2"


@pytest.mark.parametrize(
    ("name", "entry", "says"),
    [
        ("scores", Entry("tokenizer.ggml.scores", ARRAY, [0.0] * 1023 + [NAN], F32), "scores holds numbers"),
        ("types", Entry("tokenizer.ggml.token_type", ARRAY, [1] * 1023 + [7], I32), "from 1 to 7"),
        ("fewer types", Entry("tokenizer.ggml.token_type", ARRAY, [1] * 1023, I32), "does not fit"),
        ("tokens no texts", Entry("tokenizer.ggml.tokens", ARRAY, [1] * 1024, U32), "not a list of strings"),
        ("no tokens", Entry("tokenizer.ggml.tokens", ARRAY, [], STRING), "not a list of strings"),
        ("end outside", Entry("tokenizer.ggml.eos_token_id", U32, 1024), "eos_token_id is 1024"),
        ("beginning outside", Entry("tokenizer.ggml.bos_token_id", I32, -2), "bos_token_id is -2"),
        ("layers", Entry("lfm2.block_count", U32, MOST_LAYERS + 1), "block_count is 513"),
        ("heads", Entry("lfm2.attention.head_count_kv", ARRAY, [0, 3, 0, 2, 0, 2], I32), "do not share 3"),
        ("heads a few", Entry("lfm2.attention.head_count_kv", ARRAY, [0, 2], I32), "2 numbers for 6 layers"),
        ("no heads", Entry("lfm2.attention.head_count", U32, 0), "head_count is 0"),
        ("more heads than values", Entry("lfm2.attention.head_count", U32, 130), "more than embedding_length"),
        ("rope and latent attention", Entry("lfm2.attention.kv_lora_rank", U32, 8), "rope.dimension_count is 32"),
        ("values of other length", Entry("lfm2.attention.value_length", U32, 64), "must be key_length, 32"),
        ("dense layers", Entry("lfm2.leading_dense_block_count", U32, 7), "there are 6 layers"),
    ],
)  # fmt: skip
def test_numbers_that_are_at_odds(name: str, entry: Entry, says: str, sound: File, tmp_path: Path) -> None:
    if "latent" in name:
        sound = sound.with_entry(Entry("lfm2.rope.dimension_count", U32, 32))
    sound.with_entry(entry).write(tmp_path / "m.gguf")
    with pytest.raises(InvalidWeights, match=says):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("architecture", ["grovemoe", "lfm2moe", "ernie4_5-moe", "jamba", "nanbeige", "bert"])
def test_what_one_architecture_asserts(
    architecture: str, sound: File, loader: Loader, tmp_path: Path
) -> None:
    file = gguf_rows.renamed(sound, architecture)
    for key in POSITIVE.get(architecture, ()):
        file = file.with_entry(Entry(f"{architecture}.{key}", U32, 0))
    file.write(tmp_path / "m.gguf")
    outcome = loader.load(tmp_path / "m.gguf")
    assert outcome.kind == "InvalidWeights"
    assert "llama.cpp" not in outcome.text, "it was refused before"


@pytest.mark.parametrize(
    "entries",
    [
        (Entry("tokenizer.ggml.eos_token_id", U32, (1 << 32) - 1),),  # none
        (Entry("tokenizer.ggml.padding_token_id", U32, 1024),),  # wrong in many files, and never used
        (Entry("lfm2.expert_count", U32, MOST_EXPERTS), Entry("lfm2.expert_used_count", U32, 8)),
        (Entry("lfm2.attention.head_count", U32, 0), Entry("lfm2.ssm.state_size", U32, 16)),  # no attention
        (Entry("lfm2.attention.key_length", U32, 32), Entry("lfm2.rope.dimension_count", U32, 8)),
        (Entry("lfm2.rope.scaling.type", STRING, "yarn"), Entry("lfm2.rope.scaling.factor", F32, 4.0)),
        (Entry("general.alignment", U32, 32),),
    ],
)
def test_what_real_files_hold_is_admitted(entries: tuple[Entry, ...], sound: File, tmp_path: Path) -> None:
    for entry in entries:
        sound = sound.with_entry(entry)
    sound.write(tmp_path / "m.gguf")
    assert read_header(tmp_path / "m.gguf").architecture == "lfm2"


def test_headers_with_one_thing_wrong(sound: File, loader: Loader, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    outcomes = tried(loader, part(gguf_rows.mutants(sound), GGUF_PART), path, lambda file: file.write(path))
    assert len(outcomes) > 40
    assert unsound(outcomes) == {}
    kinds = {outcome.kind for outcome in outcomes.values()}
    assert {"ran", "InvalidWeights"} <= kinds, "both are tried"


def test_the_rows_begin_with_the_file_itself(nano: dict[str, Path], sound: File, tmp_path: Path) -> None:
    sound.write(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == nano["llamacpp"].read_bytes()


# -- MLX ----------------------------------------------------------------------------------------------

pytest.importorskip("mlx_lm")


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (1_000_000, "num_hidden_layers is '1000000'"),
        (7, "num_hidden_layers is 7, and there are tensors for 6"),
    ],
)
def test_layers_without_tensors_are_not_built(
    nano: dict[str, Path], layers: int, says: str, loader: Loader, tmp_path: Path
) -> None:
    folder = folder_rows.copy(nano["mlx"], tmp_path / "m")
    folder_rows.put("config.json", "num_hidden_layers", layers)(folder)
    outcome = loader.load(folder)
    assert outcome.kind == "InvalidWeights"
    assert says in outcome.text


@pytest.mark.parametrize("key", MLX_RANGES)
def test_each_number_of_a_configuration_is_judged(key: str) -> None:
    tensors = [f"model.layers.{number}.w" for number in range(MOST_LAYERS)]
    for value in (-2, True, "1", NAN, INF, 1e38, [1, -2]):
        assert key in (mlx_fault({key: value}, tensors) or "")
        assert key in (mlx_fault({"text_config": {key: value}}, tensors) or "")
    assert mlx_fault({key: None, "vision_config": {key: -2}}, tensors) is None
    assert mlx_fault({key: 1}, tensors) is None


@pytest.mark.parametrize(
    "settings", [{"group_size": 0}, {"bits": 0}, {"layer": {"group_size": -1}}, {"a": {"b": {"bits": "x"}}}]
)
def test_quantized_by_nothing(settings: dict[str, object]) -> None:
    assert "quantization: " in (mlx_fault({"quantization": settings}, ["w"]) or "")


@pytest.mark.parametrize("name", folder_rows.FILES)
@pytest.mark.parametrize("what", ["a pipe", "a device", "a folder", "huge"])
def test_what_is_no_file_is_not_opened(
    nano: dict[str, Path], name: str, what: str, tmp_path: Path, loader: Loader
) -> None:
    folder = folder_rows.copy(nano["mlx"], tmp_path / "m")
    dict(folder_rows.of_files())[f"{name} {what}"](folder)
    outcome = loader.load(folder)
    if name in ("other.safetensors", "chat_template.json"):  # nobody reads these here
        assert outcome.kind in ("ran", "NotEnoughMemory")
        return
    assert outcome.kind == "InvalidWeights", outcome
    assert name in outcome.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 2]}}, "'a' do not fit its shape"),
        ({"a": {"dtype": "F16", "shape": [-1], "data_offsets": [0, 2]}}, "'a' has an impossible shape"),
        ({"a": {"dtype": "F16", "shape": [1 << 32, 1 << 32], "data_offsets": [0, 2]}}, "impossible shape"),
        ({"a": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}, "two tensors overlap"),
        ({"a": {"dtype": "F16", "shape": [1], "data_offsets": [2, 0]}}, "'a' lie outside"),
        ({"a": {"dtype": 7, "shape": [1], "data_offsets": [0, 2]}}, "'a' lie nowhere"),
    ],
)
def test_tensors_that_lie(
    nano: dict[str, Path], change: dict[str, object], says: str, tmp_path: Path
) -> None:
    folder = folder_rows.copy(nano["mlx"], tmp_path / "m")
    folder_rows.with_tensors(change)(folder)
    with pytest.raises(InvalidWeights, match=says):
        read_folder(folder)


def test_a_tensor_that_stands_there_twice(nano: dict[str, Path], tmp_path: Path) -> None:
    folder = folder_rows.copy(nano["mlx"], tmp_path / "m")
    entry = '"a":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}'
    header = f"{{{entry},{entry}}}".encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InvalidWeights, match="'a' is in it twice"):
        read_folder(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer model continuing_subword_prefix = '128'", "tokenizer replaces {'String': ''}"]
)
def test_a_tokenizer_that_panics(nano: dict[str, Path], name: str, loader: Loader, tmp_path: Path) -> None:
    folder = folder_rows.copy(nano["mlx"], tmp_path / "m")
    rows = folder_rows.of_tokenizer(json.loads((folder / "tokenizer.json").read_text()))
    dict(rows)[name](folder)
    outcome = loader.load(folder)
    assert outcome.kind in ("InvalidWeights", "EngineFailed"), outcome
    assert "tokenizer.json: " in outcome.text


def test_folders_with_one_thing_wrong(nano: dict[str, Path], loader: Loader, tmp_path: Path) -> None:
    path = tmp_path / "m"
    outcomes = tried(
        loader,
        part(folder_rows.rows(nano["mlx"]), FOLDER_PART),
        path,
        lambda change: change(folder_rows.copy(nano["mlx"], path)),
    )
    assert len(outcomes) > 25
    assert unsound(outcomes) == {}
    kinds = {outcome.kind for outcome in outcomes.values()}
    assert {"ran", "InvalidWeights"} <= kinds, "both are tried"
