"""How many tokens of a prompt are computed at once, and with which attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.llamacpp.prefill import (
    ALONE,
    LEAST,
    LEAST_FLASH,
    MOST,
    TOGETHER,
    Prefill,
    choose_prefill,
)
from localagent.nano import GGUF


def model(parameters: int, heads: object = 9) -> Header:
    tensors = (Tensor("a", (parameters // 4, 2), 0, 0), Tensor("b", (parameters // 4, 2), 0, 0))
    return Header({"general.architecture": "llama", "llama.attention.head_count": heads}, tensors)


def quantized(header: Header, kind: int) -> Header:
    return Header(header.metadata, (*header.tensors, Tensor("c", (4, 4), kind, 0)))


@pytest.mark.parametrize(
    ("parameters", "chunk"),
    [
        (1_000_000, 256),
        (19_000_000, 256),
        (20_000_000, 128),
        (40_000_000, 64),
        (134_000_000, 32),
        (1_200_000_000, 32),
        (70_000_000_000, 32),
    ],
)
def test_a_larger_model_has_smaller_chunks(parameters: int, chunk: int) -> None:
    assert choose_prefill(model(parameters), 1024) == Prefill(chunk, max(chunk, ALONE), False, True)
    flash = max(chunk, LEAST_FLASH)
    assert choose_prefill(quantized(model(parameters), 2), 1024) == Prefill(flash, TOGETHER, True, False)
    assert LEAST <= chunk <= MOST


def test_chunks_fill_the_distance_between_checkpoints() -> None:
    for exponent in range(10, 40):
        assert MOST % choose_prefill(model(1 << exponent), 1024).chunk == 0


def test_scores_of_many_heads_over_a_long_context_are_not_kept() -> None:
    small, large = model(1_000_000_000, 32), model(1_000_000_000, Array(5, 3, (8, 64, 0)))
    flash = Prefill(LEAST_FLASH, TOGETHER, flash=True, divisible=False)
    assert choose_prefill(small, 16_384) == Prefill(32, ALONE, flash=False, divisible=True)
    assert choose_prefill(small, 16_385) == Prefill(32, 32, flash=False, divisible=True)
    assert choose_prefill(small, 131_072) == flash
    assert choose_prefill(large, 32_768) == Prefill(32, 32, flash=False, divisible=True)
    assert choose_prefill(large, 32_769) == flash


def test_what_is_asked_for_is_taken() -> None:
    assert choose_prefill(model(1 << 30), 1024, 7) == Prefill(7, 7, flash=False, divisible=True)
    assert choose_prefill(model(1 << 30, 64), 1 << 20, 7) == Prefill(7, 7, flash=True, divisible=False)


def test_a_graphics_card_computes_more_at_once() -> None:
    assert choose_prefill(model(1 << 30), 1024, gpu=True) == Prefill(MOST, MOST, flash=True, divisible=False)
    assert choose_prefill(model(1 << 30), 1024, 16, gpu=True) == Prefill(16, 16, flash=True, divisible=False)


@pytest.mark.parametrize("kind", [12, 14, 10, 23])
def test_exact_models_with_k_quants_are_always_cut_in_the_same_places(kind: int) -> None:
    exact = Prefill(LEAST, LEAST, flash=False, divisible=False)
    assert choose_prefill(quantized(model(1 << 30), kind), 1024, exact=True) == exact
    assert choose_prefill(quantized(model(1 << 30), 2), 1024, exact=True).divisible


@pytest.mark.parametrize("key", ["expert_count", "ssm.state_size", "wkv.head_size"])
def test_so_are_mixtures_and_state_spaces_and_what_an_unknown_build_computes(key: str) -> None:
    header = model(1 << 30)
    assert choose_prefill(header, 1024, measured=False) == Prefill(32, 32, flash=False, divisible=False)
    recurrent = Header({**header.metadata, f"llama.{key}": 8}, header.tensors)
    assert choose_prefill(recurrent, 1024) == Prefill(32, 32, flash=False, divisible=False)


@pytest.mark.parametrize("heads", [None, "many", -1, True, 1 << 40, Array(5, 2, None)])
def test_a_header_that_does_not_tell_is_no_error(heads: object) -> None:
    assert choose_prefill(model(1 << 30, heads), 1 << 30) == Prefill(32, 128, False, True)
    assert choose_prefill(Header({}), 1024) == Prefill(MOST, MOST, flash=False, divisible=True)


def test_the_models_at_hand(gguf: Path) -> None:
    assert choose_prefill(read_header(GGUF), 4096) == Prefill(256, 256, flash=False, divisible=True)
    assert choose_prefill(read_header(gguf), 8192) == Prefill(64, 256, flash=True, divisible=False)
    assert choose_prefill(read_header(gguf), 8192, exact=True) == Prefill(
        32, 128, flash=False, divisible=True
    )
