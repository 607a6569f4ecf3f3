"""MLX chooses tokens as llama.cpp's samplers do."""

from __future__ import annotations

import collections
import itertools

import numpy
import pytest

from localagent.hosts.mlx.library import library
from localagent.hosts.mlx.sampling import Sampler
from localagent.hosts.sampling import PENALTY_WINDOW, Sampling

pytestmark = pytest.mark.engine

SIZE = 1000
lib = library()
mx = lib.mx


def random_logits(seed: int, scale: float = 3.0) -> numpy.ndarray:
    return numpy.random.default_rng(seed).normal(0, scale, SIZE).astype(numpy.float32)


def draw(sampler: Sampler, logits: numpy.ndarray) -> int:
    return sampler.draw(mx.array(logits)[None]).item()


def survivors(logits: numpy.ndarray, sampling: Sampling) -> set[int]:
    ids, left = Sampler(lib, sampling, []).truncate(mx.array(logits)[None])
    ids = numpy.arange(SIZE)[None] if ids is None else numpy.array(ids)
    return set(ids[numpy.array(left) > -numpy.inf].tolist())


def native_candidates(logits: numpy.ndarray, make) -> dict[int, float]:
    """What a chain of llama.cpp's samplers leaves, with its logits. `make(native)` gives the samplers."""
    native = pytest.importorskip("llama_cpp.llama_cpp")
    data = (native.llama_token_data * SIZE)(*((n, value, 0.0) for n, value in enumerate(logits.tolist())))
    array = native.llama_token_data_array(data, SIZE, -1, False)
    for sampler in make(native):
        native.llama_sampler_apply(sampler, native.ctypes.byref(array))
        native.llama_sampler_free(sampler)
    return {array.data[n].id: array.data[n].logit for n in range(array.size)}


def truncations(options: Sampling):
    def make(native):
        if options.top_k is not None:
            yield native.llama_sampler_init_top_k(options.top_k)
        if options.top_p is not None:
            yield native.llama_sampler_init_top_p(options.top_p, 1)
        if options.min_p is not None:
            yield native.llama_sampler_init_min_p(options.min_p, 1)

    return make


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        *[(k, None, None) for k in (1, 2, 40, SIZE - 1, SIZE, SIZE + 5)],
        *[(None, p, None) for p in (0.001, 0.3, 0.9, 0.999, 1.0)],
        *[(None, None, p) for p in (0.0, 0.01, 0.2, 0.99)],
        (40, 0.8, None),
        (40, None, 0.05),
        (None, 0.9, 0.05),
        (100, 0.95, 0.02),
        (3, 0.5, 0.5),
    ],
)
def test_what_is_left_is_what_llama_cpp_leaves(seed, top_k, top_p, min_p):
    options = Sampling(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = random_logits(seed)
    expected = native_candidates(logits, truncations(options))
    assert survivors(logits, options) == set(expected)
    assert top_k is None or len(expected) <= top_k


@pytest.mark.parametrize("count", [0, 1, 30, 64, 200])
def test_the_penalty_is_llama_cpps(count):
    logits = random_logits(9)
    history = numpy.random.default_rng(5).integers(0, 90, count).tolist()

    def make(native):
        sampler = native.llama_sampler_init_penalties(SIZE, PENALTY_WINDOW, 1.3, 0.0, 0.0)
        for token in history:
            native.llama_sampler_accept(sampler, token)
        yield sampler

    expected = native_candidates(logits, make)
    sampler = Sampler(lib, Sampling(repetition_penalty=1.3), history)
    found = numpy.array(sampler._penalise(mx.array(logits)[None]))[0]
    assert numpy.allclose(found, [expected[n] for n in range(SIZE)], rtol=1e-6)
    assert (found != logits).sum() == len(set(history[-PENALTY_WINDOW:]))


def test_the_penalty_sees_what_was_drawn():
    logits = numpy.zeros(SIZE, numpy.float32)
    logits[:70] = numpy.linspace(5, 4.9, 70)
    sampler = Sampler(lib, Sampling(repetition_penalty=10.0), [])
    # Each of the best once; when the window of 64 has gone by, the first is new again.
    assert [draw(sampler, logits) for _ in range(66)] == [*range(64), 64, 0]


def test_greedy_is_the_first_of_equals():
    logits = numpy.zeros(SIZE, numpy.float32)
    logits[[300, 7, 900]] = 2
    for options in (Sampling(), Sampling(repetition_penalty=1.0), Sampling(top_k=2, top_p=0.1)):
        assert draw(Sampler(lib, options, [7]), logits) == 7
    assert draw(Sampler(lib, Sampling(repetition_penalty=1.1), [7]), logits) == 300


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 20}, {"top_p": 0.8}, {"repetition_penalty": 1.2, "min_p": 0.01}]
)
def test_a_seed_repeats_and_another_does_not(options):
    def drawn(seed):
        sampler = Sampler(lib, Sampling(temperature=1.0, seed=seed, **options), [3])
        return [draw(sampler, random_logits(number)) for number in range(20)]

    first = drawn(1)
    mx.random.seed(12345)
    assert drawn(1) == first
    assert drawn(2) != first
    assert len({*map(tuple, (drawn(seed) for seed in (-1, 2**64 + 5, 2**200)))}) == 3
    assert drawn(None) != drawn(None)


def test_the_global_seed_is_left_alone():
    mx.random.seed(3)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(3)
    draw(Sampler(lib, Sampling(temperature=1.0, seed=1), []), random_logits(1))
    assert mx.random.uniform(shape=(4,)).tolist() == expected


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.99}])
def test_draws_follow_the_tempered_probabilities(options):
    logits = numpy.full(SIZE, -100, numpy.float32)
    logits[[10, 500, 999]] = [2, 1, 0]
    sampler = Sampler(lib, Sampling(temperature=2.0, seed=6, **options), [])
    counts = collections.Counter(draw(sampler, logits) for _ in range(2000))
    expected = numpy.exp(numpy.array([2, 1, 0]) / 2)
    expected /= expected.sum()
    for token, share in zip([10, 500, 999], expected, strict=True):
        assert abs(counts[token] / 2000 - share) < 0.04
    assert set(counts) == {10, 500, 999}


def test_extreme_temperatures_draw_numbers():
    logits = random_logits(1)
    best = int(logits.argmax())
    for heat, top_k in itertools.product((1e-300, 1e-45, 1e-7), (None, 5)):
        sampler = Sampler(lib, Sampling(temperature=heat, seed=1, top_k=top_k), [])
        assert [draw(sampler, logits) for _ in range(5)] == [best] * 5
    few = survivors(logits, Sampling(temperature=1, top_k=5, top_p=0.9, min_p=0.1))
    for heat in (1e30, 1e39, 1e300):
        sampler = Sampler(lib, Sampling(temperature=heat, seed=1, top_k=5, top_p=0.9, min_p=0.1), [])
        drawn = {draw(sampler, logits) for _ in range(40)}
        assert drawn <= few
        assert len(drawn) > 1 or len(few) == 1


def test_ties_in_half_precision_do_not_add_candidates():
    logits = mx.zeros((1, SIZE), dtype=mx.bfloat16)
    ids, left = Sampler(lib, Sampling(temperature=1, top_k=40), []).truncate(logits)
    assert ids.shape == left.shape == (1, 40)
    assert survivors(numpy.zeros(SIZE, numpy.float32), Sampling(temperature=1, top_p=0.1)).__len__() in (
        100,
        101,
    )


@pytest.mark.parametrize(
    ("sampling", "plain"),
    [
        (Sampling(), True),
        (Sampling(top_k=5, repetition_penalty=1.0), True),
        (Sampling(repetition_penalty=1.1), False),
        (Sampling(temperature=1.0), False),
        (Sampling(temperature=1.0, repetition_penalty=1.1), False),
    ],
)
def test_which_samplers_only_take_the_likeliest(sampling, plain):
    """Those of a batch are drawn at once."""
    assert Sampler(lib, sampling, [1, 2]).plain is plain


def test_a_redraw_leaves_no_trace_of_what_was_drawn_before():
    sampler = Sampler(lib, Sampling(repetition_penalty=9.0), [])
    logits = mx.array([[5.0, 4.0, 3.0]])
    assert sampler.draw(logits).item() == 0
    assert sampler.redraw(mx.where(mx.array([False, True, True]), logits, -numpy.inf)).item() == 1
    assert sampler.draw(logits).item() == 0, "0 did not come, so it is not penalised"
    sampler.replace([2])
    assert sampler.draw(logits).item() == 0, "nor now"
    assert sampler.draw(logits).item() == 0, "and 1 and 2 did"
