"""The engines' own loops with nothing around them, the baseline of every comparison, and weights for them.

`BareLlamaCpp` is llama_decode and llama.cpp's greedy sampler; `BareMlx` is mlx-lm's generate_step with its
greedy sampler. `endless` makes copies of a model that write for as long as they are asked to.
"""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from localagent.catalog import load_catalog
from localagent.hosts.llamacpp.gguf import header_size, read_header
from localagent.hosts.llamacpp.hyperparameters import ALIGNMENT
from localagent.hosts.llamacpp.library import library
from localagent.hosts.llamacpp.prefill import choose_prefill
from localagent.hosts.mlx.safetensors import data_begin, read_tensors
from localagent.nano import GGUF, MLX
from localagent.store import WeightStore


class BareLlamaCpp:
    """One context, greedy."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        self.native = native = library()
        model = native.llama_model_default_params()
        self.model = native.llama_model_load_from_file(str(path).encode(), model)
        parameters = native.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, 512, 512
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        if not choose_prefill(read_header(path), context).flash:  # as the host does
            parameters.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = native.llama_init_from_model(self.model, parameters)
        self.memory = native.llama_get_memory(self.context)
        self.sampler = native.llama_sampler_init_greedy()

    def tokens(self, ids: Sequence[int]) -> Iterator[int]:
        """Prefill and decode, without end."""
        native, context, sampler = self.native, self.context, self.sampler
        native.llama_memory_clear(self.memory, False)
        for start in range(0, len(ids), 512):
            chunk = ids[start : start + 512]
            prompt = (ctypes.c_int32 * len(chunk))(*chunk)
            native.llama_decode(context, native.llama_batch_get_one(prompt, len(chunk)))
        one = (ctypes.c_int32 * 1)()
        batch = native.llama_batch_get_one(one, 1)
        while True:
            one[0] = native.llama_sampler_sample(sampler, context, -1)
            yield one[0]
            native.llama_decode(context, batch)

    def close(self) -> None:
        """Free everything."""
        self.native.llama_sampler_free(self.sampler)
        self.native.llama_free(self.context)
        self.native.llama_model_free(self.model)


class BareMlx:
    """The model in the folder, greedy. To be used on one thread."""

    def __init__(self, folder: Path) -> None:
        from mlx_lm.utils import load_model

        self.model: Any = load_model(folder)[0]

    def tokens(self, ids: Sequence[int]) -> Iterator[int]:
        """Prefill and decode, without end."""
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        for token, _ in generate_step(mx.array(list(ids)), self.model, max_tokens=-1):
            yield int(token)

    def close(self) -> None:
        """Free everything."""
        self.model = None


def endless_weights(name: str, folder: Path) -> Path:
    """An `endless` copy of nano, nano-mlx or smollm2; any other name is a path, used as it is."""
    match name:
        case "nano":
            return endless(GGUF, folder)
        case "nano-mlx":
            return endless(MLX, folder)
        case "smollm2":
            return endless(WeightStore().pull(load_catalog().default, "llamacpp"), folder)
    return Path(name)


def endless(weights: Path, folder: Path) -> Path:
    """A copy, in `folder`, of a GGUF file or an MLX folder, which never ends its turn.

    The end token's row of the output matrix is zeroed, and so its logit is 0, far below the likeliest one's.
    All else stays: hosts still know the token, and cut prompts where it ends a message.
    """
    copy = folder / f"endless-{weights.name}"
    if weights.is_dir():
        shutil.copytree(weights, copy)
        config = json.loads((copy / "config.json").read_text())
        path = copy / "model.safetensors"
        tensors, begin = read_tensors(path), data_begin(path)
        matrix = tensors.get("lm_head.weight") or tensors["model.embed_tokens.weight"]
        first, last = matrix["data_offsets"]
        _erase(path, begin + first, (last - first) // matrix["shape"][0], config["eos_token_id"])
        return copy
    shutil.copyfile(weights, copy)
    header = read_header(copy)
    by_name = {tensor.name: tensor for tensor in header.tensors}
    tensor = by_name.get("output.weight") or by_name["token_embd.weight"]
    begin = -(-header_size(copy) // ALIGNMENT) * ALIGNMENT
    offsets = (*(other.offset for other in header.tensors), copy.stat().st_size - begin)
    size = min(offset for offset in offsets if offset > tensor.offset) - tensor.offset
    # Zeros are zeros in every quantized type, and the padding behind a tensor is less than a byte per row.
    _erase(
        copy, begin + tensor.offset, size // tensor.shape[1], header.metadata["tokenizer.ggml.eos_token_id"]
    )
    return copy


def _erase(path: Path, begin: int, width: int, row: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin + row * width)
        file.write(bytes(width))
