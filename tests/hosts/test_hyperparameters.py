"""Which numbers of a GGUF header are refused, and which are not: rule by rule, at the limits, without an engine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.llamacpp.hyperparameters import ENDS, RANGES, Range, fault

INT, FLOAT, TEXT = 5, 6, 8
NAN, INF = float("nan"), float("inf")
SOUND: dict[str, Any] = {
    "block_count": 6,
    "context_length": 4096,
    "embedding_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def header(architecture: str = "llama", general: dict[str, Any] | None = None, **own: Any) -> Header:
    """A sound header with changes; a key's dots are `__`, and None takes a key away."""
    numbers = SOUND | {key.replace("__", "."): value for key, value in own.items()}
    metadata = {f"{architecture}.{key}": value for key, value in numbers.items() if value is not None}
    return Header({"general.architecture": architecture, **(general or {}), **metadata})


def numbers(*values: float, kind: int = INT) -> Array:
    return Array(kind, len(values), values, (min(values), max(values)))


def test_a_sound_header():
    assert fault(header()) is None
    assert fault(Header({})) is None


# A number by itself


@pytest.mark.parametrize(
    ("key", "last", "first"),
    [
        ("block_count", 512, 513),
        ("context_length", (1 << 31) - 1, 1 << 31),
        ("embedding_length", 1 << 24, (1 << 24) + 1),
        ("vocab_size", (1 << 31) - 1, 1 << 31),
        ("feed_forward_length", 0, -1),
        ("feed_forward_length", 1 << 24, (1 << 24) + 1),
        ("leading_dense_block_count", 0, -1),
        ("attention.key_length", 1 << 16, (1 << 16) + 1),
        ("attention.sliding_window", 0, -1),
        ("attention.layer_norm_epsilon", 0, -1e-40),
        ("attention.layer_norm_epsilon", 1, 1.001),
        ("attention.max_alibi_bias", -1e30, -1.1e30),
        ("attention.max_alibi_bias", 1e30, 1.1e30),
        ("rope.freq_base", 1e-6, 0.9e-6),
        ("rope.freq_base", 1e30, 1.1e30),
        ("rope.scaling.factor", 0, -0.1),
        ("rope.scaling.yarn_ext_factor", -1, -1.1),
        ("ssm.time_step_rank", 0, -1),
    ],
)
def test_the_last_number_that_may_be_and_the_first_that_may_not(key, last, first):
    name = key.replace(".", "__")
    assert fault(header(**{name: last, "attention__head_count": 1, "attention__head_count_kv": 1})) is None
    said = fault(header(**{name: first}))
    assert said is not None
    assert said.startswith(f"llama.{key} is {first!r}: it must be a ")


def test_what_each_number_may_be():
    """As a refusal says it."""
    allowed: dict[str, list[str]] = {}
    for key, each in RANGES.items():
        allowed.setdefault(f"{each}{', for each layer' if each.layers else ''}", []).append(key)
    assert {said: " ".join(sorted(keys)) for said, keys in allowed.items()} == {
        "a whole number from 1 to 512": "block_count",
        "a whole number from 0 to 512": (
            "attention.shared_kv_layers leading_dense_block_count n_deepstack_layers nextn_predict_layers"
        ),
        "a whole number from 1 to 1,024": "experts_per_group",
        "a whole number from 0 to 1,024": (
            "expert_count expert_group_count expert_group_used_count expert_shared_count"
        ),
        "a whole number from 0 to 1,024, for each layer": "expert_used_count",
        "a whole number from 1 to 65,536": (
            "attention.key_length attention.key_length_mla attention.key_length_swa attention.value_length "
            "attention.value_length_mla attention.value_length_swa rope.dimension_count "
            "rope.dimension_count_swa shortconv.l_cache ssm.conv_kernel wkv.head_size"
        ),
        "a whole number from 0 to 65,536": "ssm.group_count",
        "a whole number from 0 to 65,536, for each layer": "attention.head_count attention.head_count_kv",
        "a whole number from 1 to 16,777,216": (
            "embedding_length embedding_length_out ssm.inner_size ssm.state_size"
        ),
        "a whole number from 0 to 16,777,216": (
            "attention.kv_lora_rank attention.q_lora_rank embedding_length_per_layer_input ssm.time_step_rank"
        ),
        "a whole number from 0 to 16,777,216, for each layer": (
            "expert_chunk_feed_forward_length expert_feed_forward_length expert_shared_feed_forward_length "
            "feed_forward_length"
        ),
        "a whole number from 1 to 2,147,483,647": (
            "attention.group_norm_groups context_length full_attention_interval vocab_size"
        ),
        "a whole number from 0 to 2,147,483,647": (
            "attention.relative_buckets_count attention.sliding_window rescale_every_n_layers "
            "rope.scaling.original_context_length token_shift_count"
        ),
        "a number from 0 to 1": (
            "attention.group_norm_epsilon attention.layer_norm_epsilon attention.layer_norm_rms_epsilon"
        ),
        "a number from 0 to 1e+30": "rope.scale_linear rope.scaling.factor",
        "a number from 1e-06 to 1e+30": "rope.freq_base rope.freq_base_swa",
        "a number from -1 to 1e+30": "rope.scaling.yarn_ext_factor",
        "a number from -1e+30 to 1e+30": (
            "attention.clamp_kqv attention.max_alibi_bias attention.scale attn_logit_softcapping "
            "embedding_scale expert_weights_scale final_logit_softcapping logit_scale residual_scale "
            "rope.scaling.alpha rope.scaling.attn_factor rope.scaling.yarn_attn_factor "
            "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_log_multiplier "
            "router_logit_softcapping"
        ),
    }


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "attention.key_length"])
def test_sizes_that_may_not_be_nothing(key):
    assert fault(header(**{key.replace(".", "__"): 0})).startswith(
        f"llama.{key} is 0: it must be a whole number from 1 "
    )


@pytest.mark.parametrize("key", RANGES)
def test_every_number_is_of_its_kind(key):
    name = key.replace(".", "__")
    for wrong in (True, False, "7", NAN, INF, -INF, *(() if not RANGES[key].whole else (1.5,))):
        assert fault(header(**{name: wrong})).startswith(
            f"llama.{key} is {wrong!r}: it must be {RANGES[key]}"
        )


def test_a_range_in_words():
    assert str(Range(0, 4096)) == "a whole number from 0 to 4,096"
    assert str(Range(0, 1, whole=False)) == "a number from 0 to 1"


def test_other_numbers_need_only_be_finite():
    assert fault(header(something=1e300, flag=True, name="x", many=numbers(1.0, 2.0, kind=FLOAT))) is None
    assert fault(header(something=NAN)) == "llama.something is nan: it must be a finite number"
    assert fault(header(something=INF)) == "llama.something is inf: it must be a finite number"
    many = Array(FLOAT, 2, None, (NAN, NAN))
    assert (
        fault(header(something=many))
        == "llama.something is numbers from nan to nan: it must be a finite number"
    )
    assert fault(header(something=Array(FLOAT, 0, (), None))) is None


def test_other_architectures_keys_are_nobodys_business():
    assert fault(header(general={"qwen.block_count": -1})) is None


# Lists


def test_one_number_for_each_layer():
    layers = numbers(1, 2, 3, 4, 5, 6)
    assert fault(header(feed_forward_length=layers)) is None
    assert fault(header(block_count=layers)).startswith(
        "llama.block_count is an array: it must be a whole number"
    )
    assert fault(header(feed_forward_length=Array(TEXT, 6, ("a",) * 6))).startswith(
        "llama.feed_forward_length is an array"
    )
    assert (
        fault(header(feed_forward_length=numbers(1, 2, 3, 4, 5)))
        == "llama.feed_forward_length has 5 numbers for 6 layers"
    )
    bad = numbers(1, 2, 3, 4, 5, -1)
    assert fault(header(feed_forward_length=bad)).startswith(
        "llama.feed_forward_length holds numbers from -1 to 5: each"
    )
    assert fault(header(feed_forward_length=Array(INT, 6, None))) is None, "too many to look at"


# Numbers at odds


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"leading_dense_block_count": 6}, None),
        ({"leading_dense_block_count": 7}, "leading_dense_block_count is 7 and there are 6 layers"),
        ({"attention__shared_kv_layers": 6}, None),
        ({"attention__shared_kv_layers": 7}, "shared_kv_layers is 7 and there are 6 layers"),
        ({"nextn_predict_layers": 5}, None),
        ({"nextn_predict_layers": 6}, "nextn_predict_layers is 6 and there are 6 layers"),
        ({"block_count": None, "nextn_predict_layers": 6}, None),
        ({"attention__head_count": 0}, "attention.head_count is 0"),
        ({"attention__head_count": 0, "ssm__state_size": 16}, None),
        ({"attention__head_count": 0, "wkv__head_size": 64}, None),
        ({"attention__head_count_kv": 3}, "head_count_kv: 4 heads do not share 3 evenly"),
        ({"attention__head_count_kv": 4}, None),
        ({"attention__head_count_kv": 0}, None),
        ({"attention__head_count": numbers(4, 4, 4, 4, 4, 6)}, None),
        ({"attention__head_count": numbers(4, 4, 4, 4, 4, 5)}, "5 heads do not share 2 evenly"),
        ({"attention__head_count_kv": numbers(1, 2, 4, 1, 2, 3)}, "4 heads do not share 3 evenly"),
        ({"attention__head_count_kv": numbers(0, 2, 0, 2, 0, 2)}, None),
        ({"attention__head_count": 128, "attention__head_count_kv": 1}, None),
        ({"attention__head_count": 129, "attention__head_count_kv": 1}, "head_count is 129: more than embedding_length"),
        ({"attention__head_count": 129, "attention__head_count_kv": 1, "attention__key_length": 8}, None),
        ({"rope__dimension_count": 32}, None),
        ({"rope__dimension_count": 34}, "rope.dimension_count is 34: it must be even and at most 32"),
        ({"rope__dimension_count": 31}, "rope.dimension_count is 31: it must be even and at most 32"),
        ({"rope__dimension_count": 64, "attention__key_length": 64}, None),
        ({"rope__dimension_count": 32, "attention__kv_lora_rank": 8}, "is 32: it must be even and at most 31"),
        ({"rope__dimension_count": 30, "attention__kv_lora_rank": 8}, None),
        ({"rope__dimension_count": 64, "attention__key_length_mla": 64}, None),
        ({"rope__dimension_count_swa": 34}, "rope.dimension_count_swa is 34: it must be even and at most 32"),
        ({"rope__dimension_count_swa": 64, "attention__key_length_swa": 64}, None),
        ({"rope__scaling__type": "yarn"}, None),
        ({"rope__scaling__type": "ntk"}, "rope.scaling.type is 'ntk': it must be one of none, linear, yarn, longrope"),
        ({"expert_count": 8, "expert_used_count": 8}, None),
        ({"expert_count": 8, "expert_used_count": 9}, "expert_used_count is 9 of 8 experts"),
        ({"expert_count": 8}, "expert_used_count is 0 of 8 experts"),
        ({"expert_used_count": 1}, "expert_used_count is 1 of 0 experts"),
        ({"expert_count": 8, "expert_used_count": numbers(0, 1, 2, 8, 0, 0)}, None),
        ({"expert_count": 8, "expert_used_count": numbers(0, 1, 2, 9, 0, 0)}, "expert_used_count is 9 of 8"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3}, "expert_group_count is 3 for 8 experts"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 8}, "expert_group_count is 8 for 8 experts"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 1}, None),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4},
            "expert_group_used_count is 0 of 4 groups",
        ),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 4},
            "expert_group_used_count is 4 of 4 groups",
        ),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 3}, None),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 1}, None),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other(own, says):
    said = fault(header(**own))
    assert said == says if says is None else says in (said or "")


@pytest.mark.parametrize(
    ("architecture", "own", "says"),
    [
        ("lfm2", {"attention__key_length": 32, "attention__value_length": 32}, None),
        ("lfm2", {"attention__key_length": 32, "attention__value_length": 16}, "value_length is 16: it must be key_length, 32"),
        ("lfm2", {"attention__value_length": 16}, "value_length is 16: it must be key_length, 32"),
        ("llama", {"attention__key_length": 32, "attention__value_length": 16}, None),
        ("jamba", {"ssm__inner_size": 256}, None),
        ("jamba", {"ssm__inner_size": 255}, "jamba.ssm.inner_size is 255: it must be twice embedding_length, 128"),
        ("jamba", {}, "ssm.inner_size is 0: it must be twice"),
        ("mamba", {"ssm__inner_size": 255}, None),
        ("nanbeige", {"num_loops": 2}, None),
        ("nanbeige", {"num_loops": 0}, "nanbeige.num_loops is 0"),
        ("nanbeige", {}, "nanbeige.num_loops is 0"),
        ("hrm_text", {"hrm__layers_per_stack": 1, "hrm__h_cycles": 1}, "hrm_text.hrm.l_cycles is 0"),
    ],
)  # fmt: skip
def test_what_one_architecture_asks(architecture, own, says):
    said = fault(header(architecture, **own))
    assert said == says if says is None else says in (said or "")


# The vocabulary


def words(count: int = 10, longest: int = 12, **more: Any) -> Array:
    return Array(TEXT, count, None, (1, longest), **more)


def spoken(**tokenizer: Any) -> str | None:
    given = {"tokens": words()} | tokenizer
    return fault(
        header(general={f"tokenizer.ggml.{key}": value for key, value in given.items() if value is not None})
    )


@pytest.mark.parametrize(
    ("tokenizer", "says"),
    [
        ({}, None),
        ({"tokens": None}, None),
        ({"tokens": None, "bos_token_id": 99}, None),
        ({"model": "none"}, "the file has no vocabulary"),
        ({"model": "no_vocab", "tokens": None}, "the file has no vocabulary"),
        ({"model": "gpt2"}, None),
        ({"tokens": 7}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"tokens": Array(INT, 10, None)}, "is not a list of strings"),
        ({"tokens": words(0)}, "is not a list of strings"),
        ({"tokens": words(longest=8192)}, None),
        ({"tokens": words(longest=8193)}, "has a token of 8,193 bytes: 8,192 are allowed"),
        ({"tokens": Array(TEXT, 10, None)}, None),
        ({"tokens": words(unspelled=0), "model": "llama"}, "has no token for the byte 0"),
        ({"tokens": words(unspelled=255), "model": "plamo2"}, "has no token for the byte 255"),
        ({"tokens": words(unspelled=0), "model": "gpt2"}, None),
        ({"tokens": words(), "model": "llama"}, None),
        ({"token_type": Array(INT, 10, None, (0, 6))}, None),
        ({"token_type": Array(INT, 10, None)}, None),
        ({"token_type": Array(INT, 10, None, (0, 7))}, "token_type holds numbers from 0 to 7: each must be a whole number"),
        ({"token_type": Array(INT, 10, None, (-1, 6))}, "token_type holds numbers from -1 to 6"),
        ({"token_type": Array(INT, 9, None, (0, 6))}, "token_type does not fit the vocabulary"),
        ({"token_type": Array(FLOAT, 10, None, (0, 6))}, "token_type does not fit the vocabulary"),
        ({"token_type": 1}, "token_type does not fit the vocabulary"),
        ({"scores": Array(FLOAT, 10, None, (-1e30, 1e30))}, None),
        ({"scores": Array(FLOAT, 10, None, (NAN, NAN))}, "scores holds numbers from nan to nan"),
        ({"scores": Array(INT, 10, None, (0, 1))}, "scores does not fit the vocabulary"),
    ],
)  # fmt: skip
def test_the_vocabulary(tokenizer, says):
    said = spoken(**tokenizer)
    assert said == says if says is None else says in (said or "")


@pytest.mark.parametrize("name", ENDS)
def test_ids_that_begin_and_end_an_answer(name):
    for token in (0, 9, -1, (1 << 32) - 1):
        assert spoken(**{f"{name}_token_id": token}) is None
    for token in (10, -2, "1", 1.0, (1 << 32) - 2):
        assert spoken(**{f"{name}_token_id": token}) == (
            f"tokenizer.ggml.{name}_token_id is {token!r}: there are 10 tokens"
        )


def test_other_ids_may_be_wrong():
    assert spoken(padding_token_id=10, unknown_token_id=10) is None


# Tensors


def tensors(*made: Tensor, **general: Any) -> str | None:
    return fault(Header({f"general.{key}": value for key, value in general.items()}, made))


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [(0, True), (23, True), *((kind, False) for kind in range(24, 29)), (29, True), (30, True)],
)
def test_types_that_weights_have(kind, allowed):
    said = tensors(Tensor("blk.0.w", (1,), kind, 0))
    assert said == (None if allowed else f"tensor 'blk.0.w' has the type {kind}, which no weights have")
    assert tensors(Tensor("ffn.tid2eid", (1,), kind, 0)) is None


@pytest.mark.parametrize("alignment", [32, 64, 4096, 1 << 20])
def test_where_tensors_lie(alignment):
    assert tensors(Tensor("w", (1,), 0, 3 * alignment), alignment=alignment) is None
    assert tensors(Tensor("w", (1,), 0, alignment + 16), alignment=alignment) == (
        f"tensor 'w' lies at {alignment + 16:,}, no multiple of {alignment}"
    )


def test_they_lie_at_multiples_of_32_unless_said_otherwise():
    assert tensors(Tensor("w", (1,), 0, 96)) is None
    assert "no multiple of 32" in tensors(Tensor("w", (1,), 0, 80))


@pytest.mark.parametrize("alignment", [0, 1, 16, 33, 48, 1 << 21, True, "32", 32.0])
def test_what_is_no_alignment(alignment):
    said = tensors(Tensor("w", (1,), 27, 5), alignment=alignment)
    assert said == f"general.alignment is {alignment!r}: it must be a power of two from 32 on"


def test_a_complaint_is_short():
    long = "x" * 1000
    assert len(fault(header(rope__scaling__type=long))) < 300
    assert len(tensors(Tensor(long, (1,), 0, 5))) < 200
    assert re.fullmatch(r"tensor 'x{80}' lies at 5, .*", tensors(Tensor(long, (1,), 0, 5)))


# What llama.cpp divides by, or makes tensors of: nothing may be 0 here.
NOT_NOTHING = {
    "block_count", "context_length", "embedding_length", "embedding_length_out", "vocab_size", "experts_per_group",
    "full_attention_interval", "rope.dimension_count", "rope.dimension_count_swa", "shortconv.l_cache",
    "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "wkv.head_size", "attention.group_norm_groups",
    "rope.freq_base", "rope.freq_base_swa",
    *(f"attention.{each}_length{suffix}" for each in ("key", "value") for suffix in ("", "_mla", "_swa")),
}  # fmt: skip


@pytest.mark.parametrize("key", RANGES)
def test_what_may_be_nothing_and_what_models_have(key):
    allowed = RANGES[key]
    assert allowed.admits(0) is (key not in NOT_NOTHING)
    assert allowed.admits(1)
    assert allowed.admits(512 if allowed.whole else 0.5)
    assert not allowed.admits(1 << 31 if allowed.whole else 1e38)


def test_numbers_that_nobody_could_read():
    assert "is numbers from nan to nan" in fault(header(something=Array(FLOAT, 2, None, (NAN, NAN))))
    assert "tokenizer.ggml.bos_token_id is no numbers:" in spoken(bos_token_id=Array(INT, 0, ()))
