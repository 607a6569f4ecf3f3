"""The caches hold the same bits however a prompt was cut, rewound or restored."""

from __future__ import annotations

import itertools
import json

import numpy
import pytest

from localagent.errors import EngineFailed
from localagent.hosts.engine import Packed, State
from localagent.hosts.mlx.lanes import Context, MlxLane
from localagent.hosts.sampling import Sampling
from tests.hosts.mlx.drawing import CUTS, PROMPT, cold, draws, follow, never, prefill

pytestmark = pytest.mark.engine


def test_the_caches_are_those_that_the_tests_are_for(engines):
    names = {
        kind: set(engines(kind).lanes[0]._context.caches.kinds) for kind in ("lfm2", "llama", "gemma3_text")
    }
    assert names == {
        "lfm2": {"ArraysCache", "KVCache"},
        "llama": {"KVCache"},
        "gemma3_text": {"RotatingKVCache", "KVCache"},
    }
    assert (
        engines("lfm2-bf16").lanes[0]._context.caches._forms[0][0].dtype == engines("lfm2")._lib.mx.bfloat16
    )


def test_what_comes_depends_on_all_that_was_before(engine):
    lane = engine.lanes[0]
    first = cold(lane, PROMPT, [60, 61])
    other = cold(lane, [1, 99, *PROMPT[2:]], [60, 61])
    assert first[0][1] != other[0][1]
    assert len({token for token, _ in first}) > 1


def test_ids_end_with_the_token_drawn_last(engine):
    lane = engine.lanes[0]
    lane.evaluate(PROMPT, never)
    assert lane.ids == PROMPT
    drawing = draws(lane, [60, 61])
    assert lane.ids == PROMPT
    drawn = []
    for token in itertools.islice(drawing, 9):
        drawn.append(token)
        assert lane.ids == [*PROMPT, 60, 61, *drawn]
    drawing.close()
    offsets = {cache.offset for cache in lane.rows.caches if hasattr(cache, "offset")}
    assert offsets == {len(lane.ids)}


@pytest.mark.parametrize("length", [7, 8, 15, 30])
def test_rewound_is_cold(engine, length):
    lane = engine.lanes[0]
    expected = cold(lane, PROMPT, [60, 61], cuts=tuple(cut for cut in CUTS if cut <= length))
    lane.clear()
    checkpoints = prefill(lane, PROMPT)
    follow(lane, [90, 91, 92], count=20)
    assert lane.rewind(length, checkpoints[length])
    assert lane.ids == PROMPT[:length]
    assert follow(lane, [60, 61]) == expected
    assert lane.rewind(length, checkpoints[length])  # and once more: a checkpoint is not used up
    assert follow(lane, [60, 61]) == expected


def test_rewound_to_a_checkpoint_taken_while_decoding(engine):
    lane = engine.lanes[0]
    lane.evaluate(PROMPT, never)
    drawing = draws(lane, [60])
    tokens = [token for token, _ in zip(drawing, range(5), strict=False)]
    length, checkpoint = len(lane.ids), lane.checkpoint()
    ids = list(lane.ids)
    more = [next(drawing) for _ in range(6)]
    drawing.close()
    assert lane.ids == ids + more
    assert lane.rewind(length, checkpoint)
    rest = follow(lane, [70, 71])
    lane.clear()
    lane.evaluate(PROMPT, never)
    drawing = draws(lane, [60])
    assert [token for token, _ in zip(drawing, range(5), strict=False)] == tokens
    drawing.close()
    assert follow(lane, [70, 71]) == rest


@pytest.mark.parametrize("drawn", [1, 2, 7])
def test_closed_on_the_way_goes_on_as_if_it_was_decoded(engine, drawn):
    """The step computed ahead leaves no trace: single tokens evaluated one by one give the same."""
    lane = engine.lanes[0]
    lane.evaluate(PROMPT, never)
    tokens = [token for token, _ in follow(lane, [60], count=drawn)]
    rest = follow(lane, [70])
    lane.clear()
    lane.evaluate(PROMPT, never)
    for token in [60, *tokens]:
        lane.evaluate([token], never)
    assert follow(lane, [70]) == rest


def test_restored_after_other_sequences(engine):
    lane = engine.lanes[0]
    checkpoints = prefill(lane, PROMPT)
    lane.evaluate(list(range(20, 280)), never)  # beyond one block of the KV cache
    follow(lane, [60])
    ids, saved = list(lane.ids), lane.save()
    expected = follow(lane, [61, 62])
    for _ in range(2):
        cold(lane, [2, 3, 5, 7], [11])
        assert lane.restore(ids, saved)
        assert lane.ids == ids
        assert follow(lane, [61, 62]) == expected
    assert lane.restore(ids, saved)
    assert lane.rewind(15, checkpoints[15])
    assert follow(lane, [61]) == cold(lane, PROMPT, [61], cuts=(7, 8, 15))


def test_a_checkpoint_holds_only_what_cannot_be_cut(engines):
    for kind in ("lfm2", "llama"):
        lane = engines(kind).lanes[0]
        lane.clear()
        prefill(lane, PROMPT)
        few, many = lane.checkpoint(), lane.save()
        # 2 layers of convolution, 2 positions of 64 channels in float32
        assert few.nbytes == {"lfm2": 2 * 2 * 64 * 4, "llama": 0}[kind]
        # keys and values: 2 heads of 16, 30 tokens
        layers = {"lfm2": 2, "llama": 4}[kind]
        assert many.nbytes == few.nbytes + layers * 2 * 2 * 16 * 30 * 4


def test_a_checkpoint_keeps_no_more_memory_than_it_says(lfm2):
    lane, mx = lfm2.lanes[0], lfm2._lib.mx
    lane.evaluate([5] * 600, never)
    taken = [lane.checkpoint()]
    lane.clear()
    mx.clear_cache()
    before = mx.get_active_memory()
    assert taken.pop().nbytes == 1024
    freed = before - mx.get_active_memory()
    assert 0 < freed <= 2 * (16384 + 1024)


def test_packed_and_unpacked(engine):
    lane = engine.lanes[0]
    checkpoints = prefill(lane, PROMPT)
    lane.evaluate(PROMPT[30:], never)
    saved, ids = lane.save(), list(lane.ids)
    expected = follow(lane, [61, 62])
    from_15 = cold(lane, PROMPT, [61], cuts=(7, 8, 15))

    def travel(state: State) -> State:
        packed = lane.pack(state)
        layout = json.loads(json.dumps(packed.layout))
        found = lane.unpack(Packed(layout, tuple(memoryview(bytes(data)) for data in packed.buffers)))
        assert found.nbytes == state.nbytes == sum(len(data) for data in packed.buffers)
        return found

    lane.clear()
    assert lane.restore(ids, travel(saved))
    assert follow(lane, [61, 62]) == expected
    assert lane.rewind(15, travel(checkpoints[15]))
    assert follow(lane, [61]) == from_15


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
    lane = engine.lanes[0]
    prefill(lane, PROMPT)
    packed = lane.pack(lane.save())
    assert lane.restore(PROMPT[:30], lane.unpack(packed))
    for name, damaged in broken(packed):
        with pytest.raises(ValueError, match=r"state|array|bytes"):
            pytest.fail(f"{name}: {lane.unpack(damaged)}")


def test_states_of_other_models_are_refused(engines):
    packed = {}
    kinds = ("lfm2", "llama", "gemma3_text", "lfm2-bf16")
    for kind in kinds:
        lane = engines(kind).lanes[0]
        lane.clear()
        prefill(lane, PROMPT)
        packed[kind] = lane.pack(lane.save())
    for kind, other in itertools.permutations(kinds, 2):
        with pytest.raises(ValueError, match="state"):
            engines(kind).lanes[0].unpack(packed[other])


def test_states_are_refused_where_they_do_not_belong(engine):
    lane = engine.lanes[0]
    checkpoints = prefill(lane, PROMPT)
    whole = lane.save()
    assert not lane.rewind(8, checkpoints[15])
    assert not lane.rewind(31, checkpoints[30])
    assert not lane.restore(PROMPT[:29], whole)
    assert lane.ids == PROMPT[:30]
    if "KVCache" in lane._context.caches.kinds:
        assert not lane.restore(PROMPT[:30], checkpoints[30])
    lane.clear()
    assert not lane.rewind(15, checkpoints[15])
    assert lane.rewind(0, checkpoints[0])
    assert lane.restore([], checkpoints[0])
    assert lane.restore(PROMPT[:30], whole)


def test_an_unknown_cache_is_never_reused(lfm2, monkeypatch):
    class Odd(lfm2._lib.ArraysCache):
        pass

    lib, model = lfm2._lib, lfm2._context.model
    monkeypatch.setattr(
        type(model), "make_cache", lambda self: [Odd(1) if i % 2 == 0 else lib.KVCache() for i in range(4)]
    )
    context = Context(lib, model)
    assert context.caches.obstacle == "caches of the kind Odd cannot be joined"
    lane, other = MlxLane(context), MlxLane(context)
    expected = cold(lane, PROMPT, [60])
    lane.clear()
    prefill(lane, PROMPT)
    checkpoint, saved = lane.checkpoint(), lane.save()
    assert checkpoint.nbytes == saved.nbytes == 0
    assert not lane.rewind(30, checkpoint)
    assert not lane.restore(PROMPT[:30], saved)
    assert not lane.restore(PROMPT[:30], lane.unpack(lane.pack(saved)))
    assert not other.fork(lane, 30, None)
    assert cold(lane, PROMPT, [60]) == expected


def test_cancelled_within_the_prompt(engine):
    lane = engine.lanes[0]
    checkpoints = prefill(lane, PROMPT)
    assert not lane.evaluate([60, 61], lambda: True)
    assert lane.rewind(30, checkpoints[30])
    drawing = draws(lane, [60])
    next(drawing)
    assert not lane.evaluate([61, 62], lambda: True)
    assert lane.rewind(30, checkpoints[30])
    assert lane.ids == PROMPT[:30]
    assert follow(lane, [60, 61]) == cold(lane, PROMPT, [60, 61])


def test_what_was_drawn_ahead_is_forgotten_where_the_lane_goes_elsewhere(engine):
    lane = engine.lanes[0]
    expected = cold(lane, PROMPT, [60])
    lane.end()
    lane.end()
    drawing = draws(lane, [90])
    next(drawing)
    lane.clear()
    assert lane.ids == []
    assert (lane.rows.drawn, lane.sampler, lane.source) == (None, None, None)
    assert cold(lane, PROMPT, [60]) == expected


def test_logprobs_are_those_of_the_token_drawn(engine):
    lane = engine.lanes[0]
    hot = Sampling(temperature=1.5, seed=4, repetition_penalty=2.0, top_k=200)
    drawing = draws(lane, [1, 20, 30])
    for token in itertools.islice(drawing, 8):
        logprobs = lane.logprobs()
        assert logprobs.dtype == numpy.float32
        assert logprobs.shape == (engine.vocabulary.size,)
        assert abs(numpy.exp(logprobs.astype(float)).sum() - 1) < 1e-4
        assert logprobs.argmax() == token
    drawing.close()
    # The same model, asked with everything on: its probabilities are the same before the first draw.
    first = follow(lane, [40], count=1)[0][1]
    lane.clear()
    drawing = draws(lane, [1, 20, 30])
    assert len(list(itertools.islice(drawing, 8))) == 8
    drawing.close()
    assert follow(lane, [40], count=1, sampling=hot)[0][1] == first


def test_a_failure_is_one_line_and_leaves_an_empty_lane(lfm2, monkeypatch):
    lane = lfm2.lanes[0]
    checkpoints = prefill(lane, PROMPT)
    drawing = draws(lane, [60])
    next(drawing)

    def fail(*_args, **_options):
        raise RuntimeError("[malloc] no memory\nat line 3")

    mx = lfm2._lib.mx
    held = mx.get_active_memory()
    monkeypatch.setattr(type(lfm2._context.model), "__call__", fail)
    with pytest.raises(EngineFailed, match=r"^MLX gave up computing: \[malloc\] no memory$") as caught:
        next(drawing)
    assert lane.ids == []
    # 41 tokens in two layers, which nothing holds any more, although the error is still there.
    assert caught.value.__traceback__ is not None
    assert mx.get_active_memory() < held - 2 * 2 * 2 * 16 * 41 * 4
    with pytest.raises(EngineFailed):
        lane.evaluate([1], never)
    monkeypatch.undo()
    assert not lane.rewind(15, checkpoints[15])
    assert lane.evaluate(PROMPT, never)
