"""The memory estimate, against what llama.cpp says it allocates and against shapes worked out by hand."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import InvalidWeights
from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.header import Array, Header
from localagent.hosts.llamacpp.memory import estimate_gguf
from localagent.hosts.llamacpp.prefill import Prefill
from localagent.hosts.memory import (
    Machine,
    available_memory,
    read_machine,
)
from localagent.hosts.memory import machine as machine_module
from localagent.hosts.mlx.memory import estimate_mlx
from localagent.nano import GGUF

GB = 10**9

# Prints, for every number of lanes and context, the bytes of the buffers that llama.cpp logs and by how much the process grew.
MEASURE = """
import ctypes, json, re, sys
import psutil
import llama_cpp.llama_cpp as native
path, chunk, flash, *sizes = sys.argv[1:]
chunk = int(chunk)
lines = []
callback = native.llama_log_callback(lambda level, text, data: lines.append(text.decode("utf-8", "replace")))
native.llama_log_set(callback, ctypes.c_void_p(0))
native.llama_backend_init()
process = psutil.Process()
before = process.memory_info().rss
model = native.llama_model_load_from_file(path.encode(), native.llama_model_default_params())
loaded = list(lines)
for size in sizes:
    lanes, context = map(int, size.split("x"))
    lines[:] = loaded
    settings = native.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = lanes * context, lanes, False
    settings.n_batch, settings.n_ubatch, settings.swa_full = chunk, chunk, True
    settings.flash_attn_type = int(flash)
    settings.n_threads = settings.n_threads_batch = 1  # two that spin on one core take ten times as long
    made = native.llama_init_from_model(model, settings)
    ids = (ctypes.c_int32 * chunk)(*range(5, 5 + chunk))
    assert native.llama_decode(made, native.llama_batch_get_one(ids, chunk)) == 0
    sizes = re.findall(r"(KV|compute|RS|model|output) buffer size = +([\\d.]+) MiB", "".join(lines))
    told = {}
    for kind, size in sizes:
        told[kind] = told.get(kind, 0) + float(size) * 2**20
    print(json.dumps({"told": told, "grown": process.memory_info().rss - before}))
    native.llama_free(made)
"""


@pytest.mark.parametrize("chunk", [64, 256])
@pytest.mark.parametrize(("heads", "flash"), [("wide", True), ("wide", False), ("narrow", False)])
def test_against_llama_cpp(gguf: Path, heads: str, flash: bool, chunk: int) -> None:
    gguf, allowed = (gguf, 0.06) if heads == "wide" else (GGUF, 0.2)
    header, longest = read_header(gguf), 8192 if heads == "wide" else 4096
    sizes = ((1, 512), (1, longest), (4, 512), (8, 2048))
    prefill = Prefill(chunk, chunk, flash, divisible=False)
    options = (chunk, int(prefill.flash), *(f"{lanes}x{context}" for lanes, context in sizes))
    command = [sys.executable, "-c", MEASURE, str(gguf), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (lanes, context), line in zip(sizes, done.stdout.splitlines(), strict=True):
        measured = json.loads(line)
        estimate = estimate_gguf(gguf, header, context, prefill).shared(lanes)
        told = measured["told"]
        assert estimate.kv_cache == pytest.approx(told["KV"], abs=6000)  # logged in hundredths of a MiB
        assert estimate.states == pytest.approx(told.get("RS", 0), abs=6000)
        assert estimate.compute - estimate.overhead == pytest.approx(told["compute"], rel=allowed)
        assert 1 <= estimate.total / sum(told.values()) < 1.15
        if heads == "narrow" or not flash:
            continue  # a few MB are lost among other things, and of scores only those that are computed show
        # Mapped weights and the cache are resident; of the logits only the rows that are asked for.
        assert 0.9 < estimate.total / measured["grown"] < 1.25


def header_of(architecture: str, tokens: int = 65_536, **keys: Any) -> Header:
    metadata = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    listed = {"tokenizer.ggml.tokens": Array(8, tokens, None)}
    return Header({"general.architecture": architecture, **listed, **metadata})


# The numbers of LFM2-1.2B: 16 layers, 6 of them attention.
LFM2 = header_of(
    "lfm2",
    block_count=16,
    context_length=128_000,
    embedding_length=2048,
    feed_forward_length=8192,
    attention__head_count=32,
    attention__head_count_kv=Array(5, 16, (0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0)),
    shortconv__l_cache=3,
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(1000))
    return path


def test_hybrid_with_convolutions(weights: Path) -> None:
    estimate = estimate_gguf(weights, LFM2, 32_768)
    assert estimate.weights == 1000
    assert estimate.kv_cache == 32_768 * 6 * 8 * (64 + 64) * 2
    assert estimate.state == 163_840  # 10 layers; what a checkpoint of that model measures
    assert estimate.total == 1000 + estimate.kv_cache + 163_840 + estimate.compute


@pytest.mark.parametrize(
    ("header", "kv_per_token", "state"),
    [
        (
            header_of("llama", block_count=4, embedding_length=64, attention__head_count=4),
            4 * 4 * (16 + 16) * 2, 0,
        ),
        (
            header_of(
                "gemma", block_count=2, embedding_length=64, attention__head_count=4, attention__head_count_kv=1,
                attention__key_length=32, attention__value_length=24, attention__sliding_window=128,
            ),
            2 * 1 * (32 + 24) * 2, 0,
        ),
        (
            header_of(
                "mamba", block_count=3, embedding_length=64, attention__head_count=0, ssm__state_size=16,
                ssm__inner_size=128, ssm__conv_kernel=4,
            ),
            0, 3 * 4 * (3 * 128 + 128 * 16),
        ),
        (
            header_of(
                "qwen3next", block_count=8, embedding_length=64, attention__head_count=4,
                attention__head_count_kv=2, full_attention_interval=4, ssm__state_size=16, ssm__inner_size=128,
                ssm__conv_kernel=4, ssm__group_count=2,
            ),
            2 * 2 * (16 + 16) * 2, 6 * 4 * (3 * (128 + 2 * 2 * 16) + 128 * 16),
        ),
        (
            header_of("every", block_count=4, embedding_length=64, attention__head_count=4, full_attention_interval=1),
            4 * 4 * (16 + 16) * 2, 0,
        ),
        (
            header_of("second", block_count=5, embedding_length=64, attention__head_count=4, full_attention_interval=2),
            2 * 4 * (16 + 16) * 2, 0,
        ),
        (
            header_of(
                "beside", block_count=3, embedding_length=64, attention__head_count=4, ssm__state_size=16,
                ssm__inner_size=128,
            ),
            3 * 4 * (16 + 16) * 2, 3 * 4 * 128 * 16,
        ),
        (
            header_of(
                "short", block_count=3, embedding_length=64, attention__head_count=4,
                attention__head_count_kv=Array(5, 2, (0, 2)), shortconv__l_cache=1,
            ),
            (2 + 2) * (16 + 16) * 2, 0,
        ),
        (header_of("odd", block_count="many", embedding_length=-1), 0, 0),
    ],
    ids=lambda value: value.architecture if isinstance(value, Header) else "",
)  # fmt: skip
def test_the_kv_cache_follows_from_the_shape_in_the_header(
    weights: Path, header: Header, kv_per_token: int, state: int
) -> None:
    estimate = estimate_gguf(weights, header, 1024)
    assert (estimate.kv_per_token, estimate.state) == (kv_per_token, state)


@pytest.mark.parametrize(
    ("heads", "own", "feed_forward", "pair"),
    [
        (2, {"feed_forward_length": 512}, 512, 2),  # flash attention keeps no scores
        (4, {"feed_forward_length": 512}, 512, 4 + 4 * 4),
        (
            2,
            {"expert_used_count": 2, "expert_feed_forward_length": 300, "feed_forward_length": 512},
            2 * 364,
            2,
        ),
        (2, {"expert_used_count": 1, "expert_feed_forward_length": 300, "feed_forward_length": 512}, 512, 2),
        (2, {"expert_used_count": 2, "feed_forward_length": 512}, 2 * 576, 2),
    ],
)
def test_the_buffer_of_a_step(
    weights: Path, heads: int, own: dict[str, int], feed_forward: int, pair: int
) -> None:
    header = header_of("llama", 1000, block_count=2, embedding_length=128, attention__head_count=heads, **own)
    for chunk, context, step in ((64, 1024, 64), (256, 100, 100), (0, 100, 1)):
        estimate = estimate_gguf(
            weights, header, context, Prefill(chunk, chunk, flash=heads == 2, divisible=False)
        )
        assert estimate.logits == step * (4 * 1000 + 8 * 128)
        assert estimate.activations == step * 4 * (2 * feed_forward + 7 * 128)
        assert estimate.activations_per_token == step * pair
        assert estimate.overhead == 1000 * 128
        padded = 1024 if context == 1024 else 256
        layers = estimate.activations + padded * step * pair
        assert estimate.compute == max(estimate.logits, layers) + 128_000


def test_a_vocabulary_that_is_only_counted(weights: Path) -> None:
    counted = Header({"general.architecture": "llama", "llama.vocab_size": 50, "llama.embedding_length": 8})
    estimate = estimate_gguf(weights, counted, 300, Prefill(2, 2, flash=True, divisible=False))
    assert (estimate.logits, estimate.overhead) == (2 * (4 * 50 + 8 * 8), 50 * 128)
    assert (estimate.longest, LFM2.context_length) == (300, 128_000), "as far as the header says"
    assert estimate_gguf(weights, LFM2, 300).longest == 128_000


def test_split_sets_count_all_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(bytes(100 * number))
    first = tmp_path / "m-00001-of-00003.gguf"
    assert estimate_gguf(first, LFM2, 1024).weights == 600
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(InvalidWeights, match="missing"):
        estimate_gguf(first, LFM2, 1024)
    with pytest.raises(InvalidWeights, match="cannot be read"):
        estimate_gguf(tmp_path / "absent.gguf", LFM2, 1024)


def test_a_long_context_needs_a_large_mask(weights: Path) -> None:
    """131,072 tokens, steps of 256: llama.cpp's compute buffer grows only when the mask outgrows the logits."""
    short, long, longest = (
        estimate_gguf(weights, LFM2, size, Prefill(256, 256, flash=True, divisible=False))
        for size in (1024, 8192, 524_288)
    )
    assert short.compute == long.compute < longest.compute
    assert longest.compute > 524_288 * 256 * 2


def mlx_folder(path: Path, dtype: str = "BF16", size: int = 5000) -> Path:
    path.mkdir()
    table = {
        "packed": {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]},
        "scales": {"dtype": dtype, "shape": [1], "data_offsets": [4, 8 if dtype == "F32" else 6]},
    }
    header = json.dumps(table).encode()
    (path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(size - 8 - len(header))
    )
    return path


LFM2_CONFIG = {
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65_536,
    "conv_L_cache": 3,
    "max_position_embeddings": 128_000,
    "block_ff_dim": 12_288,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}
TYPES = ["full_attention" if number in LFM2_CONFIG["full_attn_idxs"] else "conv" for number in range(16)]  # type: ignore[operator]


@pytest.mark.parametrize(("dtype", "width"), [("BF16", 2), ("F16", 2), ("F32", 4)])
def test_a_hybrid_model_on_mlx_is_estimated(tmp_path: Path, dtype: str, width: int) -> None:
    folder = mlx_folder(tmp_path / "m", dtype)
    estimate = estimate_mlx(folder, LFM2_CONFIG, 1000)
    assert estimate.weights == 5000
    assert estimate.kv_cache == 1024 * 6 * 8 * 64 * 2 * width  # 1,000 tokens in steps of 256
    assert estimate.state == 10 * 2 * 2048 * width
    typed = {**LFM2_CONFIG, "full_attn_idxs": None, "layer_types": TYPES}
    assert estimate_mlx(folder, typed, 1000) == estimate
    nested = {"text_config": LFM2_CONFIG, "hidden_size": 1}
    assert estimate_mlx(folder, nested, 1000) == estimate
    fused, not_fused = (estimate_mlx(folder, LFM2_CONFIG, 8192, fused=each) for each in (True, False))
    assert not_fused.compute - fused.compute == 256 * 32 * 8192 * width


def test_the_buffer_of_a_step_on_mlx(tmp_path: Path) -> None:
    folder = mlx_folder(tmp_path / "m")
    plain = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000, "intermediate_size": 200}  # fmt: skip
    mixed = {**plain, "num_experts_per_tok": 3, "moe_intermediate_size": 100}
    for config, wide in ((plain, 200), ({**plain, "num_experts_per_tok": 1}, 232), (mixed, 3 * 132)):
        for chunk, context, step in ((64, 1024, 64), (256, 100, 100), (0, 100, 1)):
            estimate = estimate_mlx(folder, config, context, chunk=chunk, fused=False)
            assert estimate.activations == step * 2 * (1000 + 2 * wide + 7 * 64)
            assert estimate.activations_per_token == step * 4 * 2
            assert (estimate.logits, estimate.longest) == (0, context)
            assert estimate_mlx(folder, config, context, chunk=chunk, fused=True).activations_per_token == 0


@pytest.mark.parametrize(
    ("platform", "size", "fused"),
    [
        ("darwin", 64, True),
        ("darwin", 80, True),
        ("darwin", 128, True),
        ("darwin", 96, False),
        ("linux", 64, False),
    ],
)
def test_metal_keeps_no_scores_of_some_heads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, size: int, fused: bool
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": size}
    assert (estimate_mlx(mlx_folder(tmp_path / "m"), config, 512).activations_per_token == 0) is fused


def test_mlx_windows_and_linear_attention(tmp_path: Path) -> None:
    folder = mlx_folder(tmp_path / "m")
    plain = {"num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16}
    assert estimate_mlx(folder, plain, 1024).kv_per_token == 4 * 2 * 16 * 2 * 2
    sliding = {**plain, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 512}
    estimate = estimate_mlx(folder, sliding, 8192)
    assert estimate.kv_per_token == 1 * 2 * 16 * 2 * 2
    assert estimate.state == 3 * (512 + 256) * 2 * 16 * 2 * 2
    linear = {
        **plain, "full_attention_interval": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    estimate = estimate_mlx(folder, linear, 1024)
    assert estimate.kv_per_token == 1 * 2 * 16 * 2 * 2
    assert estimate.state == 3 * (2 * 8 * 8 * 4 + 3 * (2 * 8 + 2 * 8) * 2)
    with pytest.raises(InvalidWeights, match=r"no model\*\.safetensors in it"):
        estimate_mlx(tmp_path, plain, 1024)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(folder: str, limit: int, usage: int, files: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"cache 1\ntotal_inactive_file {files}\n",
    }


def v2(folder: str, limit: object, usage: int, files: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {files}\n",
    }


MB = 10**6
CGROUPS: dict[str, tuple[dict[str, str], tuple[int, int] | None]] = {
    "v2": ({"proc/self/cgroup": "0::/a/b\n", **v2("sys/fs/cgroup/a/b", 9 * MB, 5 * MB, 2 * MB)}, (9, 6)),
    "v2, the parent is tighter": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            **v2("sys/fs/cgroup/a/b", 9 * MB, 1 * MB),
            **v2("sys/fs/cgroup/a", 7 * MB, 6 * MB),
        },
        (7, 1),
    ),
    "v2 in a container": ({"proc/self/cgroup": "0::/\n", **v2("sys/fs/cgroup", 8 * MB, 3 * MB)}, (8, 5)),
    "v2, the path is the host's": (
        {"proc/self/cgroup": "0::/../docker/x\n", **v2("sys/fs/cgroup", 8 * MB, 3 * MB)},
        (8, 5),
    ),
    "v2, no limit": ({"proc/self/cgroup": "0::/a\n", **v2("sys/fs/cgroup/a", "max", 3)}, None),
    "v1": (
        {"proc/self/cgroup": "3:cpu:/\n2:memory:/x\n", **v1("sys/fs/cgroup/memory/x", 9 * MB, 8 * MB, MB)},
        (9, 2),
    ),
    "v1, the path is the host's": (
        {"proc/self/cgroup": "2:cpuset,memory:/x:y\n", **v1("sys/fs/cgroup/memory", 9 * MB, 8 * MB)},
        (9, 1),
    ),
    "v1, no limit": (
        {"proc/self/cgroup": "2:memory:/x\n", **v1("sys/fs/cgroup/memory/x", (1 << 63) - 4096, 8)},
        None,
    ),
    "more used than allowed": (
        {"proc/self/cgroup": "0::/\n", **v2("sys/fs/cgroup", 8 * MB, 9 * MB)},
        (8, 0),
    ),
    "nothing": ({}, None),
    "nonsense": ({"proc/self/cgroup": "hello\n\n::\n"}, None),
}


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux")
@pytest.mark.parametrize("case", CGROUPS)
def test_the_limit_of_a_control_group_counts(tmp_path: Path, case: str) -> None:
    files, expected = CGROUPS[case]
    found, whole = read_machine(write(tmp_path, files)), read_machine(tmp_path / "none")
    assert found.total == whole.total
    if expected is None:
        assert found.limit is None
        assert found.available > 20 * MB
    else:
        assert (found.limit, found.available) == (expected[0] * MB, expected[1] * MB)


def test_apples_gpu_may_use_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module.sys, "platform", "darwin")
    monkeypatch.setattr(machine_module.platform, "machine", lambda: "arm64")
    found = read_machine()
    assert found.gpu_share == int(found.total * 0.75)
    tight = Machine(total=16, available=14, gpu_share=12)
    assert available_memory(gpu=True, machine=tight) == 12
    assert available_memory(gpu=False, machine=tight) == 14
    assert available_memory(gpu=True, machine=Machine(total=16, available=3, gpu_share=12)) == 3
    assert available_memory(gpu=True, machine=Machine(total=16, available=14)) == 14


def test_the_memory_of_this_machine_is_read() -> None:
    machine: Machine = read_machine()
    assert 0 < machine.available <= machine.total
    ask: Callable[[], int] = available_memory
    assert ask() > 0
