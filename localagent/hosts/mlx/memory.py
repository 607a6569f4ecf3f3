"""What MLX allocates for a folder of safetensors with mlx-lm's caches.

The keys of `config.json` are those that mlx-lm reads. No engine is loaded, nor the safetensors package.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from localagent.hosts.memory.estimate import STEP, Estimate, whole
from localagent.hosts.mlx.safetensors import read_tensors, weight_files
from localagent.hosts.tokenizer_files import read_json
from localagent.hosts.weights import total_size

F32: Final = 4
_BYTES: Final = {"BF16": 2, "F16": 2, "F32": 4}
_FUSED_HEADS: Final = (64, 80, 128)
"""Head sizes for which Metal has an attention kernel that keeps no scores."""
Config = Mapping[str, Any]


def estimate_mlx(
    folder: Path, config: Config, context: int, *, chunk: int = 256, fused: bool | None = None
) -> Estimate:
    """What the weights in `folder` take with one lane of `context` tokens.

    `config`: the contents of its config.json. `chunk`: tokens of a prefill step.
    Counted: the safetensors files, a KV cache for every attention layer in the type of the weights' own
    floating numbers, at most its window for a sliding one; the state of convolution and linear-attention
    layers; one prefill step with logits for every token, and with attention scores where they are not `fused`
    (None: fused on a Mac, for the head sizes that Metal's kernel has). Not counted: saved prefixes, and freed
    buffers that MLX keeps until memory is short.
    Raises InvalidWeights.
    """
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, Mapping) else config
    files = weight_files(folder)
    width = _float_bytes(files[0])
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    size = _number(config, "head_dim", "v_head_dim") or (hidden // heads if heads else 0)
    kv_heads = _number(config, "num_key_value_heads") or heads
    kinds = _layers(config)
    per_layer = 2 * kv_heads * size * width
    window = min(_number(config, "sliding_window"), context) + STEP
    if fused is None:
        fused = sys.platform == "darwin" and size in _FUSED_HEADS
    chunk = max(1, min(chunk, context))
    logits = chunk * width * _number(config, "vocab_size")
    return Estimate(
        context=context,
        longest=_number(config, "max_position_embeddings") or context,
        weights=total_size(files),
        state=kinds["sliding"] * window * per_layer
        + kinds["conv"] * max(_number(config, "conv_L_cache") - 1, 0) * hidden * width
        + kinds["linear"] * _linear_state(config, width),
        kv_per_token=kinds["attention"] * per_layer,
        logits=0,
        # Lazy evaluation may hold the logits, the activations and a layer's scores at the same time.
        activations=logits + chunk * width * (2 * _feed_forward(config) + 7 * hidden),
        activations_per_token=0 if fused else chunk * heads * width,
    )


def estimate_folder(folder: Path, context: int) -> Estimate:
    """The same for a folder whose config.json nobody has read yet. Raises InvalidWeights."""
    return estimate_mlx(folder, read_json(folder / "config.json", "not a folder with MLX weights"), context)


def _layers(config: Config) -> Counter[str]:
    """How many layers are of each kind: attention, sliding, conv, linear."""
    count = min(_number(config, "num_hidden_layers"), 1 << 16)
    types, indices = config.get("layer_types"), config.get("full_attn_idxs")
    interval = _number(config, "full_attention_interval")
    if isinstance(indices, list) and not isinstance(types, list):
        return Counter("attention" if number in indices else "conv" for number in range(count))
    if isinstance(types, list):
        return Counter(_kind(str(name), config) for name in types[:count])
    if interval > 1:
        full = ((number + 1) % interval == 0 for number in range(count))
        return Counter("attention" if each else "linear" for each in full)
    return Counter({"attention": count})


def _kind(name: str, config: Config) -> str:
    if "conv" in name:
        return "conv"
    if "linear" in name:
        return "linear"
    return "sliding" if "sliding" in name and _number(config, "sliding_window") else "attention"


def _linear_state(config: Config, width: int) -> int:
    """Bytes of one layer of gated linear attention: the state in f32 and its convolution's last inputs."""
    keys, values = _number(config, "linear_num_key_heads"), _number(config, "linear_num_value_heads")
    key, value = _number(config, "linear_key_head_dim"), _number(config, "linear_value_head_dim")
    taps = max(_number(config, "linear_conv_kernel_dim") - 1, 0)
    return values * key * value * F32 + taps * (2 * keys * key + values * value) * width


def _feed_forward(config: Config) -> int:
    dense = _number(config, "intermediate_size", "block_ff_dim")
    experts = _number(config, "num_experts_per_tok")
    each = _number(config, "moe_intermediate_size") or dense
    return max(dense, experts * (each + _number(config, "hidden_size") // 2))


def _number(config: Config, *names: str) -> int:
    """The first of `names` that is there and a size, else 0."""
    return next((whole(config[name]) for name in names if whole(config.get(name))), 0)


def _float_bytes(path: Path) -> int:
    """Bytes of the floating type that most tensors have: quantized weights keep their scales in it."""
    types = Counter(entry.get("dtype") for entry in read_tensors(path).values())
    known = [(count, _BYTES[str(name)]) for name, count in types.items() if str(name) in _BYTES]
    return max(known, default=(0, 2))[1]
