"""What lfm2-nano looks like: its sizes, and the names and shapes of its matrices. No engine is needed.

The names are those of the Hugging Face form; `GGUF_NAMES` says what llama.cpp calls the same matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAME = "lfm2-nano"
VOCABULARY = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of an LFM2 network. `layers` says of each layer whether it is "conv" or "attention"."""

    vocabulary: int = VOCABULARY
    hidden: int = 128
    feed_forward: int = 256
    heads: int = 4
    kv_heads: int = 2
    conv_taps: int = 3
    layers: tuple[str, ...] = ("conv", "attention") * 3
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-5
    context: int = 4096

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


def matrices(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its Hugging Face name."""
    hidden, wide, kv = shape.hidden, shape.feed_forward, shape.kv_heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, hidden),
        "model.embedding_norm.weight": (hidden,),
    }
    operators: dict[str, dict[str, tuple[int, ...]]] = {
        "conv": {
            "conv.conv": (hidden, 1, shape.conv_taps),
            "conv.in_proj": (3 * hidden, hidden),
            "conv.out_proj": (hidden, hidden),
        },
        "attention": {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.out_proj": (hidden, hidden),
            "self_attn.q_layernorm": (shape.head_size,),
            "self_attn.k_layernorm": (shape.head_size,),
        },
    }
    for number, kind in enumerate(shape.layers):
        layer = {
            "operator_norm": (hidden,),
            "ffn_norm": (hidden,),
            "feed_forward.w1": (wide, hidden),
            "feed_forward.w3": (wide, hidden),
            "feed_forward.w2": (hidden, wide),
            **operators[kind],
        }
        sizes |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
    return sizes


def config(shape: Shape, special: dict[str, int]) -> dict[str, Any]:
    """The `config.json` of the Hugging Face form. `special`: the ids of "bos", "eos" and "pad"."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": len(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context,
        "norm_eps": shape.norm_eps,
        "conv_bias": False,
        "conv_L_cache": shape.conv_taps,
        "block_dim": shape.hidden,
        "block_ff_dim": shape.feed_forward,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "rope_theta": shape.rope_theta,
        "layer_types": ["conv" if kind == "conv" else "full_attention" for kind in shape.layers],
        "tie_embedding": True,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": special["bos"],
        "eos_token_id": special["eos"],
        "pad_token_id": special["pad"],
    }


GGUF_NAMES = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
}


def gguf_name(name: str) -> str:
    """What GGUF files call the weight with this Hugging Face name."""
    match name.removeprefix("model.").removesuffix(".weight"):
        case "embed_tokens":
            return "token_embd.weight"
        case "embedding_norm":
            return "token_embd_norm.weight"
        case inner:
            _, number, rest = inner.split(".", 2)
            return f"blk.{number}.{GGUF_NAMES[rest]}.weight"
