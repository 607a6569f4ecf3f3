"""The LFM2 network in torch, as functions of a dictionary of weights.

The arithmetic is what llama.cpp and mlx-lm do for this architecture, so that trained weights mean the same
there.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (everybody's name for it)

from localagent_bench.training.shape import Shape, matrices

Weights = dict[str, torch.Tensor]


def fresh_weights(shape: Shape, seed: int) -> Weights:
    """Random weights: norms one, projections of unit gain, outputs into the residual smaller by depth."""
    source = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, size in matrices(shape).items():
        if "norm" in name:
            weights[name] = torch.ones(size)
            continue
        deviation = 0.02 if "embed" in name else 1 / math.sqrt(size[-1])
        if name.endswith(("out_proj.weight", "w2.weight")):
            deviation /= math.sqrt(2 * len(shape.layers))
        weights[name] = torch.randn(size, generator=source) * deviation
    return weights


def hidden_states(weights: Weights, shape: Shape, ids: torch.Tensor) -> torch.Tensor:
    """The state of the network after every token, normed: what `logits` reads.

    `ids`: (batch, length), padded on the right: no token sees a later one. Returns (batch, length, hidden).
    """
    rotation = rope(shape, ids.shape[1])
    x = F.embedding(ids, weights["model.embed_tokens.weight"])
    for number, kind in enumerate(shape.layers):
        prefix = f"model.layers.{number}."
        layer = {name[len(prefix) : -7]: w for name, w in weights.items() if name.startswith(prefix)}
        normed = _norm(x, layer["operator_norm"], shape)
        x = x + (
            _conv(normed, layer, shape) if kind == "conv" else _attention(normed, layer, shape, rotation)
        )
        normed = _norm(x, layer["ffn_norm"], shape)
        gated = F.silu(normed @ layer["feed_forward.w1"].T) * (normed @ layer["feed_forward.w3"].T)
        x = x + gated @ layer["feed_forward.w2"].T
    return _norm(x, weights["model.embedding_norm.weight"], shape)


def logits(weights: Weights, states: torch.Tensor) -> torch.Tensor:
    """(…, hidden) to (…, vocabulary): the output matrix is the embedding."""
    return states @ weights["model.embed_tokens.weight"].T


def rope(shape: Shape, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the positions' angles, each (length, head size): halves, not pairs, turn."""
    half = shape.head_size // 2
    frequencies = shape.rope_theta ** (-torch.arange(half) / half)
    angles = torch.arange(length)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _norm(x: torch.Tensor, weight: torch.Tensor, shape: Shape) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), shape.norm_eps)


def _turn(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _attention(
    x: torch.Tensor, layer: Weights, shape: Shape, rotation: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    batch, length, hidden = x.shape

    def heads(name: str) -> torch.Tensor:
        projected = x @ layer[f"self_attn.{name}_proj"].T
        return projected.view(batch, length, -1, shape.head_size).transpose(1, 2)

    query = _turn(_norm(heads("q"), layer["self_attn.q_layernorm"], shape), rotation)
    key = _turn(_norm(heads("k"), layer["self_attn.k_layernorm"], shape), rotation)
    groups = shape.heads // shape.kv_heads
    key, value = (kv.repeat_interleave(groups, dim=1) for kv in (key, heads("v")))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, hidden) @ layer["self_attn.out_proj"].T


def _conv(x: torch.Tensor, layer: Weights, shape: Shape) -> torch.Tensor:
    """A gated convolution over the last few tokens of each channel."""
    length = x.shape[1]
    before, after, values = (x @ layer["conv.in_proj"].T).chunk(3, dim=-1)
    padded = F.pad(before * values, (0, 0, shape.conv_taps - 1, 0))
    taps = layer["conv.conv"][:, 0, :]
    mixed = sum(padded[:, tap : tap + length] * taps[:, tap] for tap in range(shape.conv_taps))
    return (after * mixed) @ layer["conv.out_proj"].T
