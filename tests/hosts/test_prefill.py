"""How many tokens of a prompt are computed at once, and with which attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localagent.hosts.host import Reuse
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.gguf import read_header
from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.hosts.llamacpp.prefill import (
    ALONE,
    LEAST,
    LEAST_FLASH,
    MOST,
    Prefill,
    choose_prefill,
)
from localagent.hosts.sampling import Sampling
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
    assert choose_prefill(quantized(model(parameters), 2), 1024) == Prefill(
        flash, MOST, True, False, LEAST_FLASH
    )
    assert LEAST <= chunk <= MOST


def test_chunks_fill_the_distance_between_checkpoints() -> None:
    for exponent in range(10, 40):
        assert MOST % choose_prefill(model(1 << exponent), 1024).chunk == 0


def test_scores_of_many_heads_over_a_long_context_are_not_kept() -> None:
    small, large = model(1_000_000_000, 32), model(1_000_000_000, Array(5, 3, (8, 64, 0)))
    flash = Prefill(LEAST_FLASH, MOST, flash=True, divisible=False, short=LEAST_FLASH)
    assert choose_prefill(small, 16_384) == Prefill(32, ALONE, flash=False, divisible=True)
    assert choose_prefill(small, 16_385) == Prefill(32, 32, flash=False, divisible=True)
    assert choose_prefill(small, 131_072) == flash
    assert choose_prefill(large, 32_768) == Prefill(32, 32, flash=False, divisible=True)
    assert choose_prefill(large, 32_769) == flash


def test_what_is_asked_for_is_taken() -> None:
    assert choose_prefill(model(1 << 30), 1024, 7) == Prefill(7, 7, flash=False, divisible=True)
    assert choose_prefill(model(1 << 30, 64), 1 << 20, 7) == Prefill(7, 7, True, False, LEAST_FLASH)


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
    assert choose_prefill(read_header(gguf), 8192) == Prefill(64, MOST, True, False, short=64)
    assert choose_prefill(read_header(gguf), 8192, exact=True) == Prefill(
        32, 128, flash=False, divisible=True
    )


@pytest.mark.engine
@pytest.mark.parametrize("before", [0, 600], ids=["few", "many"])
def test_short_chunks_have_the_same_logits_however_they_are_divided(gguf: Path, before: int) -> None:
    """With flash attention, alone and beside another lane; at 64 tokens another kernel computes them."""
    options = Options(1024, 2, lanes=2, capacity=2048, chunk=64, batch=256, short=64)
    engine = LlamaCppEngine(gguf, options)
    lane, other = engine.lanes
    try:

        def logits(*sizes: int, beside: bool = False) -> bytes:
            for each in (lane, other):
                each.clear()
            for begin in range(0, before, 60):
                assert lane.evaluate(range(begin + 10, begin + 70), lambda: False)
            begin = 10
            for size in sizes:
                chunk = range(begin, begin + size)
                if beside:
                    assert engine.evaluate([lane, other], [chunk, range(100, 100 + size)], lambda: False)
                else:
                    assert lane.evaluate(chunk, lambda: False)
                begin += size
            return engine._shared.logits(2 if beside else 1)[0].tobytes()

        whole = logits(63)
        assert whole == logits(2, 61) == logits(30, 33) == logits(20, 20, 20, 3)
        assert whole == logits(30, 33, beside=True) == logits(63, beside=True)
        assert logits(80) != logits(40, 40)  # else this would show nothing
    finally:
        engine.close()


@pytest.mark.engine
def test_prompts_have_the_same_logits_alone_and_together_and_again(gguf: Path) -> None:
    """Eight conversations of 50 to 270 tokens with one system prompt, at once, and once more from what is kept."""
    sampling = Sampling(max_tokens=1, temperature=0, logprobs=5)

    def outcomes(host: LlamaCppHost, together: bool) -> list[Any]:
        prompts = []
        for number, word in enumerate(
            ("roses", "oak trees", "fence", "pond", "birds", "gate", "heap " * 9, "snow")
        ):
            asked = {"role": "user", "content": f"Tell me about the {word} in the garden."}
            answer = {"role": "assistant", "content": "Gladly. " * 7 * number}
            prompts.append(host.render([asked, answer, {"role": "user", "content": f"And the {word}?"}]))
        if together:
            running = [host.generate(prompt, sampling) for prompt in prompts]
            return [next(iter(generation)).logprobs for generation in running]
        return [next(iter(host.generate(prompt, sampling))).logprobs for prompt in prompts]

    with LlamaCppHost.load(gguf, context=1024, lanes=8, threads=1, reuse=Reuse(0)) as host:
        alone = outcomes(host, together=False)
    with LlamaCppHost.load(gguf, context=1024, lanes=8, threads=1) as host:
        assert outcomes(host, together=True) == alone
        assert outcomes(host, together=True) == alone
