"""How many lanes a model gets, what is refused before it is loaded, and what the refusal suggests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import CannotBatch, ContextOverflow, NotEnoughMemory, UsageError
from localagent.hosts.host import Reuse
from localagent.hosts.llamacpp.header import Array, Header, Tensor
from localagent.hosts.llamacpp.memory import estimate_gguf
from localagent.hosts.memory import Estimate, Lanes, admit, default_lanes, require_memory
from localagent.hosts.memory.estimate import whole
from localagent.hosts.prefix import SnapshotFolder
from localagent.hosts.protocol import Prompt
from localagent.hosts.replay import ReplayHost
from localagent.hosts.sampling import Sampling
from localagent.model import Model, load
from parsers import DIALECTS

GB = 10**9
MB = 10**6


def an_estimate(context: int = 32_768, weights: int = GB, **fields: Any) -> Estimate:
    values = {
        "longest": 32_768, "state": 1000, "kv_per_token": 100_000, "logits": 50_000_000,
        "activations": 10_000_000, "activations_per_token": 512, **fields,
    }  # fmt: skip
    return Estimate(context=context, weights=weights, **values)


# -- arithmetic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "available", [GB, 1_090_000_000, 1_101_201_000, 1_101_201_001, 2 * GB, 4 * GB, 10 * GB]
)
def test_largest_context_fits_and_the_next_does_not(available: int, lanes: int) -> None:
    estimate = an_estimate(lanes=lanes)
    found = estimate.largest_context(available)
    fitting = [
        size for size in range(256, 32_769, 256) if size >= 512 and estimate.at(size).total <= available
    ]
    assert found == max(fitting, default=None)


def test_largest_context_of_odd_models() -> None:
    assert an_estimate(longest=300, context=300).largest_context(GB * 9) == 300
    assert an_estimate(longest=300, context=300).largest_context(GB) is None
    assert an_estimate(longest=1000).largest_context(GB + 140_000_000) == 768
    assert an_estimate(kv_per_token=0, activations_per_token=0).largest_context(GB * 2) == 32_768


def test_each_lane_holds_a_context_and_a_state() -> None:
    one = an_estimate(1000, state=77)
    four = one.shared(4)
    assert (one.tokens, four.tokens, one.shared(4, 1500).tokens) == (1000, 4000, 1500)
    assert (one.kv_cache, four.kv_cache) == (1024 * 100_000, 4096 * 100_000)
    assert (one.states, four.states) == (77, 4 * 77)
    assert four.compute == one.compute
    assert four.total == one.total + 3072 * 100_000 + 3 * 77
    assert four.at(500).tokens == 2000
    assert one.shared(4, 1500).at(500).tokens == 2000, "a whole context for each"


def test_a_step_looks_at_the_whole_pool() -> None:
    grown = an_estimate(100_000, logits=0)
    pooled = an_estimate(100_000, logits=0, pooled=True)
    assert grown.shared(4).compute == grown.compute == pooled.compute == pooled.shared(4).compute
    assert pooled.shared(4, 400_000).compute - pooled.compute == 512 * (400_128 - 100_096)
    assert grown.shared(4, 400_000).compute == grown.compute


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), (7, 7), ((1 << 40) - 1, (1 << 40) - 1), (1 << 40, 5), (-1, 5), (True, 5), (7.0, 5), ("7", 5), (None, 5)],
)  # fmt: skip
def test_headers_hold_anything(value: Any, size: int) -> None:
    assert whole(value, 5) == size
    assert whole(value) == (0 if size == 5 else size)


def test_a_model_may_limit_what_lanes_hold_together() -> None:
    assert an_estimate(1000, most=2500).shared(8).tokens == 8000, "each has its own"
    assert an_estimate(1000, most=2500).shared(8, 2000).tokens == 2000
    assert an_estimate(1000, most=2500).shared(8, 8000).tokens == 2500
    assert an_estimate(1000, most=10).shared(8, 8000).tokens == 1000, "never less than a context"


@given(st.integers(0, 60 * GB), st.integers(1, 12), st.booleans())
def test_what_is_said_to_fit_fits(available: int, lanes: int, pooled: bool) -> None:
    estimate = an_estimate(pooled=pooled)
    count = estimate.most_lanes(available, lanes)
    assert 0 <= count <= lanes
    assert not count or estimate.shared(count).total <= available
    assert count == lanes or estimate.shared(count + 1).total > available
    capacity = estimate.shared(lanes).largest_capacity(available)
    assert estimate.context <= capacity <= lanes * estimate.context
    if capacity > estimate.context:
        assert estimate.shared(lanes, capacity).total <= available
    if capacity < lanes * estimate.context:
        assert estimate.shared(lanes, capacity + 256).total > available


PHI = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 131_072}


@pytest.mark.parametrize(
    ("own", "factors", "context", "together"),
    [
        ({"rope.scaling.original_context_length": 4096}, True, 1000, 4096),
        ({"rope.scaling.original_context_length": 4096}, True, 4096, 4096),
        ({"rope.scaling.original_context_length": 4096}, True, 4097, 8 * 4097),  # the long factors, however many
        ({"rope.scaling.original_context_length": 4096}, False, 1000, 8000),
        ({"rope.scaling.original_context_length": 4000}, True, 1000, 3840),  # llama.cpp rounds up to 256 cells
        ({"rope.scaling.original_context_length": 100}, True, 90, 90),
        ({"context_length": 2048}, True, 1000, 2048),
    ],
)  # fmt: skip
def test_lanes_do_not_change_the_rope_factors(
    tmp_path: Path, own: dict[str, int], factors: bool, context: int, together: int
) -> None:
    """Phi has two sets, and llama.cpp chooses by the number of cells, whoever they belong to."""
    (tmp_path / "m.gguf").write_bytes(bytes(1000))
    keys = {f"phi3.{key}": value for key, value in {**PHI, **own}.items()}
    tensors = (Tensor("rope_factors_long.weight", (16,), 0, 0),) if factors else ()
    header = Header(
        {"general.architecture": "phi3", "tokenizer.ggml.tokens": Array(8, 10, None), **keys}, tensors
    )
    estimate = estimate_gguf(tmp_path / "m.gguf", header, context)
    assert estimate.shared(8, 8 * context).tokens == together
    assert estimate.shared(8).tokens == admit("phi", estimate, 8, None).capacity == 8 * context


# -- the default ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [True, False])
def test_the_default_is_eight_lanes_with_a_context_each(pooled: bool) -> None:
    found = default_lanes(an_estimate(pooled=pooled), 64 * GB)
    assert found == Lanes(8, 32_768, 8 * 32_768, "default")
    assert str(found) == "8 lanes of 32,768 tokens each (the default)"


@pytest.mark.parametrize("pooled", [True, False])
def test_half_of_the_memory_decides(pooled: bool) -> None:
    one = an_estimate(pooled=pooled, state=100 * MB)
    five = 2 * one.shared(5).total
    assert default_lanes(one, five) == Lanes(5, 32_768, 5 * 32_768, "memory")
    assert default_lanes(one, five - 1).count == 4
    assert str(default_lanes(one, five)) == "5 lanes of 32,768 tokens each (limited by memory)"


@pytest.mark.parametrize("pooled", [True, False])
def test_where_two_contexts_are_too_many_lanes_share_what_there_is(pooled: bool) -> None:
    one = an_estimate(pooled=pooled)
    found = default_lanes(one, 2 * one.total + 300 * MB)
    assert (found.count, found.limit) == (8, "memory")
    assert found.context < found.capacity < found.context + 2000
    assert one.shared(8, found.capacity).total <= one.total + 150 * MB
    assert one.shared(8, found.capacity + 256).total > one.total + 150 * MB
    assert str(found) == f"8 lanes that share {found.capacity:,} tokens (limited by memory)"
    states = an_estimate(pooled=pooled, state=100 * MB)
    assert default_lanes(states, 2 * (states.total + 350 * MB)).count == 4


def test_one_lane_where_only_one_fits_or_where_there_can_be_only_one() -> None:
    tight = an_estimate()
    assert default_lanes(tight, tight.total) == Lanes(1, 32_768, 32_768, "memory")
    assert str(default_lanes(tight, tight.total)) == "1 lane (limited by memory)"
    alone = admit("m", tight, None, 64 * GB, "its caches are chunked")
    assert alone == Lanes(1, 32_768, 32_768, "model", "its caches are chunked")
    assert str(alone) == "1 lane (its caches are chunked)"


def test_the_memory_of_a_graphics_card_is_not_known() -> None:
    """So what one context takes is all that may be asked for."""
    assert admit("m", an_estimate(weights=1 << 60), None, None) == Lanes(8, 32_768, 32_768, "default")
    assert admit("m", an_estimate(weights=1 << 60), 2, None) == Lanes(2, 32_768, 65_536, "asked")


# -- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [0, -1, True, False, 1.0, 2.5, "2", 65, 1 << 70])
def test_what_is_no_number_of_lanes_is_refused(lanes: Any) -> None:
    with pytest.raises(UsageError, match=r"lanes is .*: it must be a whole number from 1 to 64"):
        admit("m", an_estimate(), lanes, None)
    with pytest.raises(UsageError, match="lanes is"):  # before it is even known whether the model is there
        load("no-such-model", lanes=lanes)


def test_a_model_that_cannot_be_batched() -> None:
    with pytest.raises(
        CannotBatch, match=r"^m can have only one lane, not 2: its caches are chunked$"
    ) as caught:
        admit("m", an_estimate(), 2, None, "its caches are chunked")
    assert caught.value.exit_code == 2
    assert admit("m", an_estimate(), 1, None, "its caches are chunked").limit == "asked"


def test_more_cells_than_can_be_counted() -> None:
    with pytest.raises(UsageError, match="4 lanes of 536,870,912 tokens"):
        admit("m", an_estimate(1 << 29), 4, None)


def test_lanes_with_a_context_each_look_at_no_more_than_that() -> None:
    """What needs memory for a step is a pool that they share, and only where they do."""
    pooled = an_estimate(logits=0, pooled=True, activations_per_token=100_000)
    assert admit("m", pooled, 4, pooled.shared(4).total).capacity == 4 * 32_768
    with pytest.raises(NotEnoughMemory):
        admit("m", pooled, 4, pooled.shared(4).total - 1)
    sharing = admit("m", pooled, None, 2 * pooled.total + 500 * MB)
    assert sharing.context < sharing.capacity < sharing.count * sharing.context


def refusal(estimate: Estimate, available: int) -> str:
    with pytest.raises(NotEnoughMemory) as caught:
        require_memory("lfm2-1.2b", estimate, available)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 1
    return text


def test_refusals_say_what_would_fit() -> None:
    estimate = an_estimate()
    require_memory("fits", estimate, estimate.total)
    assert refusal(estimate, 2 * GB) == (
        "lfm2-1.2b needs about 4.3 GB of memory with a context of 32,768 tokens (weights 1.0 GB, KV cache "
        "3.3 GB, state 1,000 bytes, compute 50 MB), but only 2.0 GB are available: a context of 9,472 tokens would "
        "fit: context=9472 or --context 9472 (LOCALAGENT_MEMORY_CHECK=0 loads it anyway)"
    )
    assert "the weights alone do not fit: choose a smaller model" in refusal(estimate, GB // 2)
    assert "not even a short context fits" in refusal(estimate, GB + 60_000_000)


def test_refusals_say_how_many_lanes_would_fit() -> None:
    estimate = an_estimate().shared(8)
    assert refusal(estimate, 12 * GB) == (
        "lfm2-1.2b needs about 27.3 GB of memory with 8 lanes, each with a context of 32,768 tokens (weights "
        "1.0 GB, KV cache 26.2 GB, state 8,000 bytes, compute 50 MB), but only 12.0 GB are available: 3 lanes "
        "would fit: lanes=3, or lanes=8 with context=13568 (LOCALAGENT_MEMORY_CHECK=0 loads it anyway)"
    )
    assert "1 lane would fit: lanes=1, or lanes=8 with context=" in refusal(estimate, 5 * GB)
    assert "not even one lane fits; with one, a context of 9,472 tokens would fit" in refusal(
        estimate, 2 * GB
    )
    assert "not even one lane fits; with one, the weights alone do not" in refusal(estimate, GB // 2)
    deep = an_estimate(state=4 * GB).shared(2)
    assert "1 lane would fit: lanes=1 (LOCALAGENT" in refusal(deep, 9 * GB), (
        "no context is short enough for 2"
    )


def test_the_environment_turns_the_check_off(monkeypatch: pytest.MonkeyPatch) -> None:
    large = an_estimate(4096, weights=1 << 60)
    for lanes in (None, 1, 3):
        with pytest.raises(NotEnoughMemory):
            admit("m", large, lanes, GB)
        for value in ("0", "off"):
            monkeypatch.setenv("LOCALAGENT_MEMORY_CHECK", value)
            assert admit("m", large, lanes, GB).count == (lanes or 1)
        monkeypatch.setenv("LOCALAGENT_MEMORY_CHECK", "1")
        with pytest.raises(NotEnoughMemory, match="context of 4,096 tokens"):
            admit("m", large, lanes, GB)


# -- loaded models --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nano_model() -> Iterator[Model]:
    with load("lfm2-nano", backend="llamacpp", threads=1, context=512, lanes=3) as model:
        yield model


@pytest.mark.engine
def test_a_model_says_how_many_run_at_once(nano_model: Model) -> None:
    assert nano_model.lanes == nano_model.host.lanes == 3
    assert nano_model.host._engine.capacity == 3 * 512  # type: ignore[attr-defined]
    with pytest.raises(ContextOverflow, match="the context window holds 512"):
        nano_model.host.generate(Prompt(tuple(range(5, 1005)), ""), Sampling())
    with load("lfm2-nano", backend="llamacpp", threads=1) as model:
        assert model.lanes == 8
    assert Model(ReplayHost([[]], lanes=5), DIALECTS["lfm2"]).lanes == 5


@pytest.mark.engine
def test_more_lanes_than_memory_holds_are_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, nano: dict[str, Path], tmp_path: Path
) -> None:
    from localagent.hosts.llamacpp import host

    def never(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(host, "available_memory", lambda: 32 * MB)
    monkeypatch.setattr(host, "LlamaCppEngine", never)
    with pytest.raises(
        NotEnoughMemory, match=r"lfm2-nano needs .* with 8 lanes.* \d lanes would fit: lanes=\d"
    ):
        load("lfm2-nano", backend="llamacpp", lanes=8)
    with pytest.raises(NotEnoughMemory, match=r"^Mine needs"):  # and not the title that its makers gave it
        load(shutil.copy(nano["llamacpp"], tmp_path / "Mine.gguf"), lanes=8)


@pytest.mark.engine
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (1, 8), (8, 3)])
def test_a_snapshot_fits_the_same_number_of_lanes(
    tmp_path: Path, before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A state says how many lanes there were: with another number it is not looked at."""
    from localagent.hosts.llamacpp.host import LlamaCppHost
    from localagent.nano import GGUF

    def answers(
        prompts: list[tuple[int, ...]], lanes: int, reuse: Reuse
    ) -> tuple[list[tuple[int, ...]], list[int]]:
        """The tokens, and how many of each prompt were found on disk."""
        with LlamaCppHost.load(GGUF, context=512, threads=1, lanes=lanes, reuse=reuse) as host:
            running = [host.generate(Prompt(ids, ""), Sampling(max_tokens=8)) for ids in prompts]
            tokens = [tuple(token.id for token in each) for each in running]
            return tokens, [each.finish.cached for each in running if each.finish]

    asked = [tuple(5 + (start + step) % 900 for step in range(60)) for start in (1, 333, 666)]
    said, cached = answers(asked, before, Reuse(snapshots=SnapshotFolder(tmp_path)))
    assert cached == [0, 0, 0]
    more = [(*ids, *tokens, 7, 8, 9) for ids, tokens in zip(asked, said, strict=True)]
    again, cached = answers(more, after, Reuse(snapshots=SnapshotFolder(tmp_path)))
    # llama.cpp has not evaluated the last token that it drew.
    assert cached == [60 + len(tokens) - 1 if before == after else 0 for tokens in said]
    assert again == answers(more, 1, Reuse(0))[0]
    assert not caplog.records
