"""What llama.cpp allocates for a GGUF model with the settings of our host.

Measured against the buffer sizes that llama.cpp 0.3.36 (Python package) logs. An estimate may be too large,
but never much too small: see `estimate_gguf`. No engine is loaded.
Source of the keys: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from localagent.hosts.llamacpp.gguf import weight_files
from localagent.hosts.llamacpp.header import Array, Header
from localagent.hosts.llamacpp.prefill import Prefill, choose_prefill
from localagent.hosts.memory.estimate import STEP, Estimate, whole
from localagent.hosts.weights import total_size

F16, F32 = 2, 4
VOCABULARY_ENTRY: Final = 128
"""Bytes that llama.cpp's tables take for a token of the vocabulary."""


def estimate_gguf(path: Path, header: Header, context: int, prefill: Prefill | None = None) -> Estimate:
    """What the GGUF file, or split set, at `path` takes with one lane of `context` tokens.

    `header`: that of the file, from `read_header`. `prefill`: by default what `choose_prefill` gives without
    a GPU.

    Counted: the files, whole; an f16 KV cache for every layer that has attention, windows in full since the
    host asks for that (`swa_full`); the f32 state of convolution and state-space layers; the compute buffer
    of a prefill step; the vocabulary. Not counted: saved prefixes, a second copy of weights that llama.cpp
    repacks for the CPU (their mapped pages can be given back), a row of logits for each lane, and where the
    memory lies, in RAM or on a GPU.

    Raises InvalidWeights when a part of a split set is missing or a file cannot be read.
    """
    keys = _Keys(header)
    prefill = prefill or choose_prefill(header, context)
    batch = max(1, min(prefill.batch, context))
    embedding = keys.number("embedding_length")
    vocabulary = keys.vocabulary()
    return Estimate(
        context=context,
        longest=header.context_length or context,
        weights=total_size(weight_files(path)),
        state=_state(keys),
        kv_per_token=_kv_per_token(keys),
        # The logits of every token of the step, and its hidden states before and after the last norm.
        logits=batch * (F32 * vocabulary + 2 * F32 * embedding),
        # The residual, queries, keys, values and the two halves of a gated feed-forward layer.
        activations=batch * F32 * (2 * _feed_forward(keys) + 7 * embedding),
        activations_per_token=batch * _attention(keys, prefill.flash),
        overhead=vocabulary * VOCABULARY_ENTRY,
        pooled=True,  # the host asks for one pool of cells (`kv_unified`) where lanes share them
        most=_most_cells(header, context),
    )


class _Keys:
    """The model's own keys of a header, by their names without the architecture."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.layers = self.number("block_count")

    def number(self, key: str, otherwise: int = 0) -> int:
        """The number under `key`; of an array the largest."""
        return max(self._numbers(key), default=otherwise)

    def per_layer(self, key: str, otherwise: int) -> list[int]:
        """One number for each layer: a scalar holds for all of them."""
        values = self._numbers(key) or [otherwise]
        if isinstance(self._header.own(key), Array):
            return (values + [max(values)] * self.layers)[: self.layers]
        return values * min(self.layers, 1 << 16)

    def has(self, key: str) -> bool:
        """Whether the header has the key."""
        return self._header.own(key) is not None

    def vocabulary(self) -> int:
        """Entries of the vocabulary."""
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, Array) else self.number("vocab_size")

    def _numbers(self, key: str) -> list[int]:
        value = self._header.own(key)
        values = (value.values or ()) if isinstance(value, Array) else () if value is None else (value,)
        return [whole(number) for number in values]


def _kv_per_token(keys: _Keys) -> int:
    heads = keys.number("attention.head_count")
    size = keys.number("embedding_length") // heads if heads else 0
    key, value = (keys.number(f"attention.{kind}_length", size) for kind in ("key", "value"))
    return sum(_kv_heads(keys)) * (key + value) * F16


def _kv_heads(keys: _Keys) -> list[int]:
    """KV heads of every layer, 0 for a layer without attention."""
    heads = keys.per_layer("attention.head_count_kv", keys.number("attention.head_count"))
    interval = keys.number("full_attention_interval")
    if interval > 1:  # only every so many layers have attention, the others a linear kind of it
        return [count if (number + 1) % interval == 0 else 0 for number, count in enumerate(heads)]
    return heads


def _attention(keys: _Keys, flash: bool) -> int:
    """Bytes that a pair of tokens takes: the mask, and the scores, which flash attention does not keep."""
    return F16 if flash else F32 + keys.number("attention.head_count") * F32


def _most_cells(header: Header, context: int) -> int | None:
    """The largest pool of cells in which a lane computes what it would compute alone; None for any.

    Models such as Phi come with two sets of rope factors, and llama.cpp takes the one for long contexts where
    there are more cells, of all lanes together, than the original context has tokens.
    """
    if not any(tensor.name.startswith("rope_factors_long") for tensor in header.tensors):
        return None
    original = header.own("rope.scaling.original_context_length") or header.context_length
    if not isinstance(original, int) or context > original:
        return None  # the long ones in any case
    return max(context, original // STEP * STEP)


def _state(keys: _Keys) -> int:
    """Bytes of recurrent state. LFM2: the last inputs of every convolution. Others: a state-space model's."""
    recurrent = sum(count == 0 for count in _kv_heads(keys))
    if keys.has("shortconv.l_cache"):
        window = max(keys.number("shortconv.l_cache") - 1, 0)
        return recurrent * window * keys.number("embedding_length") * F32
    if not keys.has("ssm.state_size"):
        return 0
    layers = recurrent or keys.layers  # state space beside attention in every layer
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    window = max(keys.number("ssm.conv_kernel") - 1, 0)
    return layers * F32 * (window * (inner + 2 * keys.number("ssm.group_count") * state) + inner * state)


def _feed_forward(keys: _Keys) -> int:
    """Values per token in the widest feed-forward layer, of all the experts that a token uses."""
    dense = keys.number("feed_forward_length")
    experts = keys.number("expert_used_count")
    expert = keys.number("expert_feed_forward_length", dense) + keys.number("embedding_length") // 2
    return max(dense, experts * expert)
