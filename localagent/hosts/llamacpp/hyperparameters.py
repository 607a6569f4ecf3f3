"""Checks the numbers in a GGUF header before llama.cpp divides, indexes or allocates by them.

A table gives the range of each key for all architectures; a few rules about several keys follow. llama.cpp
asserts most of these, and a failed assertion ends the process. Faults that it reports as errors itself, such
as a number of the wrong width or a tensor of the wrong shape, are left to it.
Source of the keys: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.weights import MOST_EXPERTS, MOST_LAYERS, Range

LONGEST_TOKEN: Final = 8_192
"""Bytes. The longest in use are some hundred spaces."""
ALIGNMENT: Final = 32
"""ggml wants tensors at multiples of this, wherever the file puts them."""
_INT, _FLOAT, _TEXT = 5, 6, 8
_MOST = (1 << 31) - 1
_NONE = (1 << 32) - 1  # -1 in 32 bits: no such token
_TOKENS = "tokenizer.ggml.tokens"


_size = Range(1, 1 << 24)
_sizes = Range(0, 1 << 24, layers=True)
_head = Range(1, 1 << 16)
_count = Range(0, _MOST)
_some = Range(1, _MOST)
_epsilon = Range(0, 1, whole=False)
_base = Range(1e-6, 1e30, whole=False)
_factor = Range(0, 1e30, whole=False)
_real = Range(-1e30, 1e30, whole=False)
_layer = Range(0, MOST_LAYERS)

RANGES: Final[Mapping[str, Range]] = {
    "block_count": Range(1, MOST_LAYERS),
    "context_length": _some,
    "embedding_length": _size,
    "embedding_length_out": _size,
    "embedding_length_per_layer_input": Range(0, 1 << 24),
    "vocab_size": _some,
    "feed_forward_length": _sizes,
    "expert_feed_forward_length": _sizes,
    "expert_shared_feed_forward_length": _sizes,
    "expert_chunk_feed_forward_length": _sizes,
    "expert_count": Range(0, MOST_EXPERTS),
    "expert_used_count": Range(0, MOST_EXPERTS, layers=True),
    "expert_shared_count": Range(0, MOST_EXPERTS),
    "expert_group_count": Range(0, MOST_EXPERTS),
    "expert_group_used_count": Range(0, MOST_EXPERTS),
    "expert_weights_scale": _real,
    "experts_per_group": Range(1, MOST_EXPERTS),
    "leading_dense_block_count": _layer,
    "nextn_predict_layers": _layer,
    "n_deepstack_layers": _layer,
    "full_attention_interval": _some,
    "token_shift_count": _count,
    "rescale_every_n_layers": _count,
    "logit_scale": _real,
    "residual_scale": _real,
    "embedding_scale": _real,
    "attn_logit_softcapping": _real,
    "router_logit_softcapping": _real,
    "final_logit_softcapping": _real,
    "attention.head_count": Range(0, 1 << 16, layers=True),
    "attention.head_count_kv": Range(0, 1 << 16, layers=True),
    "attention.key_length": _head,
    "attention.value_length": _head,
    "attention.key_length_mla": _head,
    "attention.value_length_mla": _head,
    "attention.key_length_swa": _head,
    "attention.value_length_swa": _head,
    "attention.q_lora_rank": Range(0, 1 << 24),
    "attention.kv_lora_rank": Range(0, 1 << 24),
    "attention.layer_norm_epsilon": _epsilon,
    "attention.layer_norm_rms_epsilon": _epsilon,
    "attention.group_norm_epsilon": _epsilon,
    "attention.group_norm_groups": _some,
    "attention.sliding_window": _count,
    "attention.shared_kv_layers": _layer,
    "attention.relative_buckets_count": _count,
    "attention.max_alibi_bias": _real,
    "attention.clamp_kqv": _real,
    "attention.scale": _real,
    "rope.dimension_count": _head,
    "rope.dimension_count_swa": _head,
    "rope.freq_base": _base,
    "rope.freq_base_swa": _base,
    "rope.scale_linear": _factor,
    "rope.scaling.factor": _factor,
    "rope.scaling.alpha": _real,
    "rope.scaling.attn_factor": _real,
    "rope.scaling.original_context_length": _count,
    "rope.scaling.yarn_ext_factor": Range(-1, 1e30, whole=False),
    "rope.scaling.yarn_attn_factor": _real,
    "rope.scaling.yarn_beta_fast": _real,
    "rope.scaling.yarn_beta_slow": _real,
    "rope.scaling.yarn_log_multiplier": _real,
    "shortconv.l_cache": Range(1, 1 << 16),
    "ssm.conv_kernel": Range(1, 1 << 16),
    "ssm.inner_size": _size,
    "ssm.state_size": _size,
    "ssm.time_step_rank": Range(0, 1 << 24),
    "ssm.group_count": Range(0, 1 << 16),
    "wkv.head_size": _head,
}
"""The numbers that each key may have, without the architecture in front of it."""
REQUIRED: Final = ("block_count", "embedding_length", "context_length")
"""These may not be 0; where one is missing, llama.cpp says so."""
POSITIVE: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("bailingmoe2", "glm4moe", "lfm2moe", "llada-moe", "smallthinker"), ("expert_count",)),
    "grovemoe": ("expert_count", "experts_per_group"),
    "ernie4_5-moe": ("interleave_moe_layer_step",),
    "hrm_text": ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"),
    "minimax-m3": ("attention.indexer.block_size",),
    "nanbeige": ("num_loops",),
}
"""What these architectures divide by, or assert to be there."""
DOUBLED: Final = ("granitehybrid", "jamba")
"""Architectures whose inner size is twice the width."""
ALIKE: Final = ("lfm2", "lfm2moe")
"""Architectures whose keys and values are equally long."""
SPEECHLESS: Final = frozenset((
    "bert", "clip", "dflash", "eagle3", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3",
    "llama-embed", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "pockettts", "qwen3tts",
    "t5encoder", "wavtokenizer-dec",
))  # fmt: skip
"""Architectures that do not generate text by themselves: embedders, speech models and draft models."""
ROPE_SCALING: Final = ("none", "linear", "yarn", "longrope")
BYTEWISE: Final = ("llama", "plamo2")
"""Kinds of vocabularies with which llama.cpp aborts at a byte that has no token."""
ENDS: Final = ("bos", "eos", "eot", "eom")
"""Special tokens that begin a prompt or end an answer. If such an id is outside the vocabulary, llama.cpp
uses a default one, and the model might never stop. Other ids may be wrong: in many files the padding token
is.
"""


def fault(header: Header) -> str | None:
    """What is wrong with the numbers in a header, None when nothing is."""
    return next(_faults(header), None)


def _faults(header: Header) -> Iterator[str]:
    own = _Own(header)
    yield from own.out_of_range()
    yield from own.at_odds()
    yield from _vocabulary(header.metadata)
    yield from _tensors(header.metadata, header.tensors)


class _Own:
    """The architecture's own keys, and the rules about them."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._architecture = header.architecture
        self._key, self._get = header.own_key, header.own

    def out_of_range(self) -> Iterator[str]:
        """Numbers that the table does not admit, and numbers under other keys that are not finite."""
        prefix = f"{self._architecture}."
        for key, value in self._header.metadata.items():
            if not key.startswith(prefix):
                continue
            allowed = RANGES.get(key.removeprefix(prefix))
            if allowed is None:
                if _not_finite(value):
                    yield f"{key} is {_shown(value)}: it must be a finite number"
            elif isinstance(value, Array):
                if not allowed.layers or value.kind == _TEXT:
                    yield f"{key} is an array: it must be {allowed}"
                elif value.span is not None and not all(map(allowed.admits, value.span)):
                    yield f"{key} holds {_shown(value)}: each must be {allowed}"
            elif not allowed.admits(value):
                yield f"{key} is {_shown(value)}: it must be {allowed}"

    def at_odds(self) -> Iterator[str]:
        """Numbers that contradict each other."""
        yield from self._layers()
        yield from self._heads()
        yield from self._experts()
        scaling = self._get("rope.scaling.type")
        if scaling is not None and scaling not in ROPE_SCALING:
            key, known = self._key("rope.scaling.type"), ", ".join(ROPE_SCALING)
            yield f"{key} is {_shown(scaling)}: it must be one of {known}"
        for key in POSITIVE.get(self._architecture, ()):
            if not self._number(key):
                yield f"{self._key(key)} is 0"
        inner, width = self._number("ssm.inner_size"), self._number("embedding_length")
        if self._architecture in DOUBLED and inner != 2 * width:
            yield f"{self._key('ssm.inner_size')} is {inner:,}: it must be twice embedding_length, {width:,}"

    def _layers(self) -> Iterator[str]:
        layers = self._number("block_count")
        for key in ("leading_dense_block_count", "nextn_predict_layers", "attention.shared_kv_layers"):
            if layers and self._number(key) > layers - (key == "nextn_predict_layers"):
                yield f"{self._key(key)} is {self._number(key)} and there are {layers} layers"
        for key, allowed in RANGES.items():
            value = self._get(key)
            if allowed.layers and isinstance(value, Array) and value.length != layers:
                yield f"{self._key(key)} has {value.length:,} numbers for {layers} layers"

    def _heads(self) -> Iterator[str]:
        counts, groups = self._get("attention.head_count"), self._get("attention.head_count_kv")
        stateful = self._number("ssm.state_size") or self._number("wkv.head_size")
        if counts == 0 and not stateful:  # models without attention have none
            yield f"{self._key('attention.head_count')} is 0"
        layers = max(1, self._number("block_count"))
        for heads, shared in zip(_spread(counts, layers), _spread(groups, layers), strict=False):
            if shared and heads % shared:
                yield f"{self._key('attention.head_count_kv')}: {heads} heads do not share {shared} evenly"
        share = self._number("embedding_length") // counts if isinstance(counts, int) and counts else 0
        keys, values = (self._number(f"attention.{part}_length") or share for part in ("key", "value"))
        if isinstance(counts, int) and counts and not keys:
            yield f"{self._key('attention.head_count')} is {counts:,}: more than embedding_length"
        if self._architecture in ALIKE and keys != values:
            yield f"{self._key('attention.value_length')} is {values:,}: it must be key_length, {keys:,}"
        yield from self._rope("", self._number("attention.key_length_mla") or keys)
        yield from self._rope("_swa", self._number("attention.key_length_swa") or keys)

    def _rope(self, suffix: str, size: int) -> Iterator[str]:
        """How much of a head's `size` values is turned: pairs, and with latent attention not all of them."""
        turned = self._number(f"rope.dimension_count{suffix}")
        most = size - 1 if self._number("attention.kv_lora_rank") else size
        if turned % 2 or (size and turned > most):
            key = self._key(f"rope.dimension_count{suffix}")
            yield f"{key} is {turned:,}: it must be even and at most {most:,}"

    def _experts(self) -> Iterator[str]:
        """Numbers of experts, as llama.cpp asserts them."""
        experts, used = self._number("expert_count"), self._get("expert_used_count")
        most = used.span[1] if isinstance(used, Array) and used.span else used
        most = most if isinstance(most, int | float) else 0
        groups, chosen = self._number("expert_group_count"), self._number("expert_group_used_count")
        if most > experts or (experts and not most):
            yield f"{self._key('expert_used_count')} is {most} of {experts} experts"
        if groups and (groups >= experts or experts % groups):
            yield f"{self._key('expert_group_count')} is {groups} for {experts} experts"
        if groups > 1 and not 0 < chosen < groups:
            yield f"{self._key('expert_group_used_count')} is {chosen} of {groups} groups"

    def _number(self, suffix: str) -> int:
        """The whole number under a key, 0 when there is none."""
        value = self._get(suffix)
        return value if isinstance(value, int) else 0


def _vocabulary(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The vocabulary, and what goes with each of its tokens."""
    tokens = metadata.get(_TOKENS)
    model = metadata.get("tokenizer.ggml.model")
    if model in ("none", "no_vocab"):
        yield "the file has no vocabulary"
    if tokens is None:
        return
    if not isinstance(tokens, Array) or tokens.kind != _TEXT or not tokens.length:
        yield f"{_TOKENS} is not a list of strings"
        return
    if tokens.span is not None and tokens.span[1] > LONGEST_TOKEN:
        yield f"{_TOKENS} has a token of {tokens.span[1]:,} bytes: {LONGEST_TOKEN:,} are allowed"
    if model in BYTEWISE and tokens.unspelled is not None:
        yield f"{_TOKENS} has no token for the byte {tokens.unspelled}"
    beside = {"token_type": (_INT, Range(0, 6)), "scores": (_FLOAT, _real)}
    for name, (kind, allowed) in beside.items():
        value = metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            continue
        if not isinstance(value, Array) or (value.kind, value.length) != (kind, tokens.length):
            yield f"tokenizer.ggml.{name} does not fit the vocabulary"
        elif value.span is not None and not all(map(allowed.admits, value.span)):
            yield f"tokenizer.ggml.{name} holds {_shown(value)}: each must be {allowed}"
    for name in ENDS:
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None and token not in (-1, _NONE) and not Range(0, tokens.length - 1).admits(token):
            yield f"tokenizer.ggml.{name}_token_id is {_shown(token)}: there are {tokens.length:,} tokens"


def _tensors(metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[str]:
    """What ggml does not look at before it multiplies."""
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not Range(ALIGNMENT, 1 << 20).admits(alignment) or alignment & (alignment - 1):
        yield f"general.alignment is {_shown(alignment)}: it must be a power of two from {ALIGNMENT} on"
        return
    for tensor in tensors:
        # I8 to I64 and F64: nothing computes with them but a table of token ids.
        if 24 <= tensor.kind <= 28 and "tid2eid" not in tensor.name:
            yield f"tensor {tensor.name[:80]!r} has the type {tensor.kind}, which no weights have"
        if tensor.offset % alignment:
            yield f"tensor {tensor.name[:80]!r} lies at {tensor.offset:,}, no multiple of {alignment}"


def _spread(value: Any, layers: int) -> list[int]:
    """A number for each layer, where these are known."""
    if isinstance(value, Array):
        return [number for number in value.values or () if isinstance(number, int)]
    return [value] * layers if isinstance(value, int) else []


def _not_finite(value: Any) -> bool:
    numbers = value.span or () if isinstance(value, Array) else (value,)
    return any(isinstance(number, float) and not math.isfinite(number) for number in numbers)


def _shown(value: Any) -> str:
    if isinstance(value, Array):
        return f"numbers from {value.span[0]} to {value.span[1]}" if value.span else "no numbers"
    return repr(value)[:80]
