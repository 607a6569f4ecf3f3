"""The caches hold the same bits however a prompt was cut, rewound or restored."""

from __future__ import annotations

import itertools
import json

import numpy
import pytest

from localagent.errors import EngineFailed
from localagent.hosts.engine import Packed, State
from localagent.hosts.sampling import Sampling

pytestmark = pytest.mark.engine

GREEDY = Sampling()
PROMPT = [1, *range(20, 60)]
CUTS = (7, 8, 15, 30)
"""Where the prompt is cut in chunks; the sliding windows of 12 tokens are full from the third on."""


def never() -> bool:
    return False


def prefill(sequence, ids, cuts=CUTS):
    """Evaluate `ids` in chunks; returns a checkpoint for every cut."""
    checkpoints = {0: sequence.checkpoint()} if not sequence.ids else {}
    for begin, end in itertools.pairwise(
        [len(sequence.ids), *(cut for cut in cuts if len(sequence.ids) < cut <= len(ids))]
    ):
        assert sequence.evaluate(ids[begin:end], never)
        checkpoints[end] = sequence.checkpoint()
    return checkpoints


def follow(sequence, ids, count=12, sampling=GREEDY):
    """Decode `ids`; the tokens and the exact log-probabilities that they were drawn from."""
    draws = sequence.decode(ids, sampling, ids, never)
    found = [(token, sequence.logprobs().tobytes()) for token in itertools.islice(draws, count)]
    draws.close()
    return found


def cold(sequence, ids, tail, cuts=CUTS):
    sequence.clear()
    prefill(sequence, ids, cuts)
    return follow(sequence, tail)


def test_the_caches_are_those_that_the_tests_are_for(engines):
    names = {kind: set(engines(kind).sequence._caches.kinds) for kind in ("lfm2", "llama", "gemma3_text")}
    assert names == {
        "lfm2": {"ArraysCache", "KVCache"},
        "llama": {"KVCache"},
        "gemma3_text": {"RotatingKVCache", "KVCache"},
    }
    assert engines("lfm2-bf16").sequence._caches._forms[0][0].dtype == engines("lfm2")._lib.mx.bfloat16


def test_what_comes_depends_on_all_that_was_before(engine):
    sequence = engine.sequence
    first = cold(sequence, PROMPT, [60, 61])
    other = cold(sequence, [1, 99, *PROMPT[2:]], [60, 61])
    assert first[0][1] != other[0][1]
    assert len({token for token, _ in first}) > 1


def test_ids_end_with_the_token_drawn_last(engine):
    sequence = engine.sequence
    sequence.evaluate(PROMPT, never)
    assert sequence.ids == PROMPT
    draws = sequence.decode([60, 61], GREEDY, PROMPT, never)
    assert sequence.ids == PROMPT
    drawn = []
    for token in itertools.islice(draws, 9):
        drawn.append(token)
        assert sequence.ids == [*PROMPT, 60, 61, *drawn]
    draws.close()
    offsets = {cache.offset for cache in sequence._caches.all if hasattr(cache, "offset")}
    assert offsets == {len(sequence.ids)}


@pytest.mark.parametrize("length", [7, 8, 15, 30])
def test_rewound_is_cold(engine, length):
    sequence = engine.sequence
    expected = cold(sequence, PROMPT, [60, 61], cuts=tuple(cut for cut in CUTS if cut <= length))
    sequence.clear()
    checkpoints = prefill(sequence, PROMPT)
    follow(sequence, [90, 91, 92], count=20)
    assert sequence.rewind(length, checkpoints[length])
    assert sequence.ids == PROMPT[:length]
    assert follow(sequence, [60, 61]) == expected
    assert sequence.rewind(length, checkpoints[length])  # and once more: a checkpoint is not used up
    assert follow(sequence, [60, 61]) == expected


def test_rewound_to_a_checkpoint_taken_while_decoding(engine):
    sequence = engine.sequence
    sequence.evaluate(PROMPT, never)
    draws = sequence.decode([60], GREEDY, PROMPT, never)
    tokens = [token for token, _ in zip(draws, range(5), strict=False)]
    length, checkpoint = len(sequence.ids), sequence.checkpoint()
    ids = list(sequence.ids)
    more = [next(draws) for _ in range(6)]
    draws.close()
    assert sequence.ids == ids + more
    assert sequence.rewind(length, checkpoint)
    rest = follow(sequence, [70, 71])
    sequence.clear()
    sequence.evaluate(PROMPT, never)
    draws = sequence.decode([60], GREEDY, PROMPT, never)
    assert [token for token, _ in zip(draws, range(5), strict=False)] == tokens
    draws.close()
    assert follow(sequence, [70, 71]) == rest


@pytest.mark.parametrize("drawn", [1, 2, 7])
def test_closed_on_the_way_goes_on_as_if_it_was_decoded(engine, drawn):
    """The step computed ahead leaves no trace: single tokens evaluated one by one give the same."""
    sequence = engine.sequence
    sequence.evaluate(PROMPT, never)
    tokens = [token for token, _ in follow(sequence, [60], count=drawn)]
    rest = follow(sequence, [70])
    sequence.clear()
    sequence.evaluate(PROMPT, never)
    for token in [60, *tokens]:
        sequence.evaluate([token], never)
    assert follow(sequence, [70]) == rest


def test_restored_after_other_sequences(engine):
    sequence = engine.sequence
    checkpoints = prefill(sequence, PROMPT)
    sequence.evaluate(list(range(20, 280)), never)  # beyond one block of the KV cache
    follow(sequence, [60])
    ids, saved = list(sequence.ids), sequence.save()
    expected = follow(sequence, [61, 62])
    for _ in range(2):
        cold(sequence, [2, 3, 5, 7], [11])
        assert sequence.restore(ids, saved)
        assert sequence.ids == ids
        assert follow(sequence, [61, 62]) == expected
    assert sequence.restore(ids, saved)
    assert sequence.rewind(15, checkpoints[15])
    assert follow(sequence, [61]) == cold(sequence, PROMPT, [61], cuts=(7, 8, 15))


def test_a_checkpoint_holds_only_what_cannot_be_cut(engines):
    for kind in ("lfm2", "llama"):
        sequence = engines(kind).sequence
        sequence.clear()
        prefill(sequence, PROMPT)
        few, many = sequence.checkpoint(), sequence.save()
        # 2 layers of convolution, 2 positions of 64 channels in float32
        assert few.nbytes == {"lfm2": 2 * 2 * 64 * 4, "llama": 0}[kind]
        # keys and values: 2 heads of 16, 30 tokens
        layers = {"lfm2": 2, "llama": 4}[kind]
        assert many.nbytes == few.nbytes + layers * 2 * 2 * 16 * 30 * 4


def test_a_checkpoint_keeps_no_more_memory_than_it_says(lfm2):
    sequence, mx = lfm2.sequence, lfm2._lib.mx
    sequence.evaluate([5] * 600, never)
    taken = [sequence.checkpoint()]
    sequence.clear()
    mx.clear_cache()
    before = mx.get_active_memory()
    assert taken.pop().nbytes == 1024
    freed = before - mx.get_active_memory()
    assert 0 < freed <= 2 * (16384 + 1024)


def test_packed_and_unpacked(engine):
    sequence = engine.sequence
    checkpoints = prefill(sequence, PROMPT)
    sequence.evaluate(PROMPT[30:], never)
    saved, ids = sequence.save(), list(sequence.ids)
    expected = follow(sequence, [61, 62])
    from_15 = cold(sequence, PROMPT, [61], cuts=(7, 8, 15))

    def travel(state: State) -> State:
        packed = sequence.pack(state)
        layout = json.loads(json.dumps(packed.layout))
        found = sequence.unpack(Packed(layout, tuple(memoryview(bytes(data)) for data in packed.buffers)))
        assert found.nbytes == state.nbytes == sum(len(data) for data in packed.buffers)
        return found

    sequence.clear()
    assert sequence.restore(ids, travel(saved))
    assert follow(sequence, [61, 62]) == expected
    assert sequence.rewind(15, travel(checkpoints[15]))
    assert follow(sequence, [61]) == from_15


def broken(packed: Packed):
    """Every way to damage a packed state a little, by name."""
    yield "no layout", Packed(None, packed.buffers)
    yield "a list", Packed([packed.layout], packed.buffers)
    yield "no buffers", Packed(packed.layout, ())
    yield "one more", Packed(packed.layout, (*packed.buffers, b"x"))
    yield "cut short", Packed(packed.layout, (packed.buffers[0][:-1], *packed.buffers[1:]))
    yield "longer", Packed(packed.layout, (bytes(packed.buffers[0]) + b"x", *packed.buffers[1:]))

    def changed(**values):
        return Packed(packed.layout | values, packed.buffers)

    yield "format", changed(format="mlx-0")
    yield "length", changed(length=packed.layout["length"] + 1)
    yield "negative", changed(length=-1)
    yield "a text", changed(length="1")
    yield "caches", changed(caches=packed.layout["caches"][::-1][1:])
    yield "more keys", changed(more=1)
    yield "no entries", changed(entries=[])
    yield "fewer entries", changed(entries=packed.layout["entries"][:-1])
    yield "odd entries", changed(entries=[1] * len(packed.layout["entries"]))
    for change in (
        {"counters": [3]},
        {"counters": [True]},
        {"counters": [-1, 2]},
        {"arrays": []},
        {"arrays": [1]},
        {"x": 1},
    ):
        entries = [dict(entry) for entry in packed.layout["entries"]]
        entries[1] |= change
        yield f"entry {change}", changed(entries=entries)
    for change in (
        {"dtype": "float64"},
        {"dtype": "array"},
        {"dtype": "int32"},
        {"shape": [1]},
        {"shape": "1"},
        {"shape": [-1, -2]},
        {"y": 2},
    ):
        entries = json.loads(json.dumps(packed.layout["entries"]))
        entries[0]["arrays"][0] |= change
        yield f"array {change}", changed(entries=entries)
    entries = json.loads(json.dumps(packed.layout["entries"]))
    entries[0]["arrays"][0]["shape"].reverse()
    yield "shape reversed", changed(entries=entries)


def test_broken_states_are_refused(engine):
    sequence = engine.sequence
    prefill(sequence, PROMPT)
    packed = sequence.pack(sequence.save())
    assert sequence.restore(PROMPT[:30], sequence.unpack(packed))
    for name, damaged in broken(packed):
        with pytest.raises(ValueError, match=r"state|array|bytes"):
            pytest.fail(f"{name}: {sequence.unpack(damaged)}")


def test_states_of_other_models_are_refused(engines):
    packed = {}
    kinds = ("lfm2", "llama", "gemma3_text", "lfm2-bf16")
    for kind in kinds:
        sequence = engines(kind).sequence
        sequence.clear()
        prefill(sequence, PROMPT)
        packed[kind] = sequence.pack(sequence.save())
    for kind, other in itertools.permutations(kinds, 2):
        with pytest.raises(ValueError, match="state"):
            engines(kind).sequence.unpack(packed[other])


def test_states_are_refused_where_they_do_not_belong(engine):
    sequence = engine.sequence
    checkpoints = prefill(sequence, PROMPT)
    whole = sequence.save()
    assert not sequence.rewind(8, checkpoints[15])
    assert not sequence.rewind(31, checkpoints[30])
    assert not sequence.restore(PROMPT[:29], whole)
    assert sequence.ids == PROMPT[:30]
    if "KVCache" in sequence._caches.kinds:
        assert not sequence.restore(PROMPT[:30], checkpoints[30])
    sequence.clear()
    assert not sequence.rewind(15, checkpoints[15])
    assert sequence.rewind(0, checkpoints[0])
    assert sequence.restore([], checkpoints[0])
    assert sequence.restore(PROMPT[:30], whole)


def test_an_unknown_cache_is_never_reused(lfm2, monkeypatch):
    from localagent.hosts.mlx.sequence import MlxSequence

    class Odd(lfm2._lib.ArraysCache):
        pass

    lib, model = lfm2._lib, lfm2.sequence._model
    monkeypatch.setattr(
        type(model), "make_cache", lambda self: [Odd(1) if i % 2 == 0 else lib.KVCache() for i in range(4)]
    )
    sequence = MlxSequence(lib, model)
    expected = cold(sequence, PROMPT, [60])
    sequence.clear()
    prefill(sequence, PROMPT)
    checkpoint, saved = sequence.checkpoint(), sequence.save()
    assert checkpoint.nbytes == saved.nbytes == 0
    assert not sequence.rewind(30, checkpoint)
    assert not sequence.restore(PROMPT[:30], saved)
    assert not sequence.restore(PROMPT[:30], sequence.unpack(sequence.pack(saved)))
    assert cold(sequence, PROMPT, [60]) == expected


def test_cancelled_within_the_prompt(engine):
    sequence = engine.sequence
    checkpoints = prefill(sequence, PROMPT)
    assert not sequence.evaluate([60, 61], lambda: True)
    answers = iter([False, True])
    assert list(sequence.decode([60, 61, 62], GREEDY, PROMPT, lambda: next(answers))) == []
    assert sequence.rewind(30, checkpoints[30])
    assert list(sequence.decode([60], GREEDY, PROMPT, lambda: True)) == []
    assert sequence.ids == PROMPT[:30]
    assert follow(sequence, [60, 61]) == cold(sequence, PROMPT, [60, 61])


def test_a_generator_ends_when_the_sequence_goes_elsewhere(engine):
    sequence = engine.sequence
    sequence.evaluate(PROMPT, never)
    draws = sequence.decode([60], GREEDY, PROMPT, never)
    next(draws)
    sequence.clear()
    assert list(draws) == []
    assert sequence.ids == []


def test_logprobs_are_those_of_the_token_drawn(engine):
    sequence = engine.sequence
    hot = Sampling(temperature=1.5, seed=4, repetition_penalty=2.0, top_k=200)
    draws = sequence.decode([1, 20, 30], GREEDY, [1, 20, 30], never)
    for token in itertools.islice(draws, 8):
        logprobs = sequence.logprobs()
        assert logprobs.dtype == numpy.float32
        assert logprobs.shape == (engine.vocabulary.size,)
        assert abs(numpy.exp(logprobs.astype(float)).sum() - 1) < 1e-4
        assert logprobs.argmax() == token
    draws.close()
    # The same model, asked with everything on: its probabilities are the same before the first draw.
    first = follow(sequence, [40], count=1)[0][1]
    sequence.clear()
    draws = sequence.decode([1, 20, 30], GREEDY, [1, 20, 30], never)
    assert len(list(itertools.islice(draws, 8))) == 8
    draws.close()
    assert follow(sequence, [40], count=1, sampling=hot)[0][1] == first


def test_a_failure_is_one_line_and_leaves_an_empty_sequence(lfm2, monkeypatch):
    sequence = lfm2.sequence
    checkpoints = prefill(sequence, PROMPT)
    draws = sequence.decode([60], GREEDY, PROMPT, never)
    next(draws)

    def fail(*_args, **_options):
        raise RuntimeError("[malloc] no memory\nat line 3")

    monkeypatch.setattr(type(sequence._model), "__call__", fail)
    with pytest.raises(EngineFailed, match=r"^MLX gave up computing: \[malloc\] no memory$"):
        next(draws)
    assert sequence.ids == []
    with pytest.raises(EngineFailed):
        sequence.evaluate([1], never)
    monkeypatch.undo()
    assert not sequence.rewind(15, checkpoints[15])
    assert sequence.evaluate(PROMPT, never)
