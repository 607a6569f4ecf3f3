"""Reads and checks an MLX folder before the engine sees it.

The folder is laid out as on Hugging Face: config.json, safetensors, the tokenizer's JSON files and the chat
template. `read_folder` raises InvalidWeights, in one line that names the file, if a file is missing, cut
short, not JSON or not a regular file, or if the sizes in config.json contradict the tensors. It reads the
headers of weights only, and needs no engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from localagent.errors import InvalidWeights
from localagent.hosts.fingerprint import fingerprint
from localagent.hosts.mlx.safetensors import data_begin, read_tensors, weight_files
from localagent.hosts.tokenizer_files import TokenizerFiles, read_json, read_optional, read_tokenizer_files
from localagent.hosts.weights import MOST_EXPERTS, MOST_LAYERS, Range

SIDE_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Files that change what a model computes or how text becomes tokens, if they are there."""
_MODEL_TYPE = re.compile(r"\w[\w-]*", re.ASCII)


# mlx-lm makes a Python object for every layer that config.json asks for, and only then looks whether the
# weights have as many: so these numbers are judged first. What it refuses itself, such as wrong shapes, is
# left to it.
_size = Range(0, (1 << 31) - 1)
_experts = Range(0, MOST_EXPERTS)
_epsilon = Range(0, 1, whole=False)
LAYERS: Final = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
RANGES: Final[Mapping[str, Range]] = {
    **dict.fromkeys(LAYERS, Range(1, MOST_LAYERS)),
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "head_dim", "conv_L_cache"), _size),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "max_position_embeddings"), _size),
    **dict.fromkeys(("block_dim", "block_ff_dim", "block_multiple_of", "moe_intermediate_size"), _size),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"), _experts),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_num_experts"), _experts),
    **dict.fromkeys(
        ("num_nextn_predict_layers", "mtp_num_layers", "num_dense_layers"), Range(0, MOST_LAYERS)
    ),
    **dict.fromkeys(("norm_eps", "rms_norm_eps", "layer_norm_eps", "layernorm_epsilon"), _epsilon),
    **dict.fromkeys(("layer_norm_epsilon", "norm_epsilon"), _epsilon),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq"), Range(1e-6, 1e30, whole=False)),
    "block_ffn_dim_multiplier": Range(0, 1e6, whole=False),
    "partial_rotary_factor": Range(0, 1, whole=False),
}
"""What a number may be; null stands for a default everywhere, and a list has one number for each layer."""
_INSIDE: Final = ("text_config", "rope_parameters", "rope_scaling")
"""Parts with numbers of the language model. Those of other parts, such as vision, are not computed with."""
_GROUP, _BITS = Range(1, 1 << 16), Range(1, 32)
_INDEX = re.compile(r"(?<![^.])\d{1,9}(?![^.])")


def read_folder(path: Path) -> TokenizerFiles:
    """Read and check everything but the weights themselves. Raises InvalidWeights."""
    if not path.is_dir():
        raise InvalidWeights(f"{path}: not a folder with MLX weights")
    config = read_json(path / "config.json", "not a folder with MLX weights")
    _check_config(path / "config.json", config)
    tensors = _read_weights(path)
    if wrong := fault(config, tensors):
        raise InvalidWeights(f"{path / 'config.json'}: {wrong}")
    read_optional(path / "hf_quant_config.json")  # mlx-lm reads it
    return read_tokenizer_files(path)


def fingerprint_folder(path: Path) -> str:
    """The identity of the weights, and of what is beside them. Raises InvalidWeights."""
    return fingerprint(weight_files(path), data_begin, [path / name for name in SIDE_FILES])


def _check_config(file: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise InvalidWeights(f"{file}: no model_type in it")
    if not _MODEL_TYPE.fullmatch(kind):
        raise InvalidWeights(f"{file}: unsupported: model_type is {kind[:80]!r}")
    if config.get("model_file") is not None:
        raise InvalidWeights(f"{file}: unsupported: model_file asks to run code that came with the weights")


def _read_weights(path: Path) -> list[str]:
    """The names of all tensors."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        shards = read_json(index, "").get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise InvalidWeights(f"{index}: no weight_map in it")
        missing = sorted(name for name in set(shards.values()) if not (path / name).exists())
        if missing:
            raise InvalidWeights(f"{path / missing[0][:80]}: missing, and {index.name} names it")
    tensors = [name for file in weight_files(path) for name in read_tensors(file)]
    if not tensors:
        raise InvalidWeights(f"{path}: no tensors in its safetensors files")
    return tensors


def fault(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """What is wrong with the numbers of a configuration; `tensors`: the names of those that there are."""
    return next(_faults(config, _count_layers(tensors)), None)


def _faults(config: Mapping[str, Any], layers: int) -> Iterator[str]:
    for key, value in config.items():
        allowed = RANGES.get(key)
        for number in value if isinstance(value, list) else (value,):
            if allowed is not None and number is not None and not allowed.admits(number):
                yield f"{key} is {str(number)[:80]!r}: it must be {allowed}"
        if key in LAYERS and isinstance(value, int) and value > layers:
            yield f"{key} is {value:,}, and there are tensors for {layers:,}"
        if key in ("quantization", "quantization_config") and isinstance(value, dict):
            yield from _quantization(key, value)
        elif key in _INSIDE and isinstance(value, dict):
            yield from _faults(value, layers)


def _quantization(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """The sizes of all groups, also those of single layers: MLX divides by them."""
    open_settings = [settings]
    while open_settings:
        for key, value in open_settings.pop().items():
            allowed = {"group_size": _GROUP, "bits": _BITS}.get(key)
            if isinstance(value, dict):
                open_settings.append(value)
            elif allowed is not None and value is not None and not allowed.admits(value):
                yield f"{name}: {key} is {str(value)[:80]!r}: it must be {allowed}"


def _count_layers(tensors: Iterable[str]) -> int:
    """How many layers the names count at most: one more than the largest number in them."""
    return max((int(number) + 1 for name in tensors for number in _INDEX.findall(name)), default=0)
