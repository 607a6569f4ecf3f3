"""Lanes that draw together draw what each draws alone, whoever joins, rests, leaves or breaks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy
import pytest

from localagent.errors import CannotBatch, EngineFailed
from localagent.hosts.mlx.batch import advance
from localagent.hosts.mlx.engine import MlxEngine
from localagent.hosts.mlx.lanes import Context, MlxLane
from localagent.hosts.mlx.library import library
from localagent.hosts.sampling import Sampling
from tests.conftest import schedules
from tests.hosts.mlx.drawing import GREEDY, PROMPT, never, step
from tests.hosts.mlx.folders import write_folder

pytestmark = pytest.mark.engine

KINDS = ("lfm2", "llama", "gemma3_text", "nano")
mx = library().mx


@pytest.fixture(scope="module")
def served(engines, nano):
    """The engine of a kind, its lanes empty; "nano" is trained."""
    trained = []

    def get(kind):
        if kind == "nano" and not trained:
            trained.append(MlxEngine.load(nano["mlx"], 1024, lanes=4))
        engine = trained[0] if kind == "nano" else engines(kind)
        for lane in engine.lanes:
            lane.clear()
        return engine

    yield get
    for engine in trained:
        engine.close()


@pytest.fixture(params=KINDS)
def each(request, served):
    return served(request.param)


@dataclass
class Request:
    """A prompt in chunks, how to draw, and how many tokens."""

    chunks: list[list[int]]
    sampling: Sampling
    count: int
    lane: MlxLane | None = None
    drawn: list[int] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk]

    def enter(self, lane: MlxLane, held: int = 0) -> None:
        """Evaluate all but the first `held` tokens, which the lane holds, and begin."""
        self.lane = lane
        for chunk in self.chunks:
            if held <= 0:
                assert lane.evaluate(chunk, never)
            held -= len(chunk)
        lane.begin(self.sampling, self.prompt)

    def alone(self, lane: MlxLane) -> list[int]:
        lane.clear()
        self.enter(lane)
        found = [step(lane)[0] for _ in range(self.count)]
        lane.clear()
        return found


def make_request(rng: random.Random, head: list[int]) -> Request:
    """`head`: a first chunk that many share."""
    chunks = [
        [rng.randrange(5, 290) for _ in range(rng.randrange(1, 24))] for _ in range(rng.randrange(1, 4))
    ]
    sampling = rng.choice(
        [
            GREEDY,
            GREEDY,
            Sampling(temperature=1.0, seed=rng.randrange(100)),
            Sampling(temperature=0.7, seed=rng.randrange(100), top_k=20, top_p=0.9),
            Sampling(repetition_penalty=1.3),
            Sampling(temperature=1.2, seed=rng.randrange(100), min_p=0.05, repetition_penalty=1.1),
        ]
    )
    return Request([head, *chunks] if rng.random() < 0.5 else chunks, sampling, rng.randrange(1, 40))


def schedule(engine: MlxEngine, rng: random.Random, count: int) -> list[Request]:
    """Serve `count` requests with random arrivals, rests, forks, copies, cancels; those that came to their end."""
    head = [rng.randrange(5, 290) for _ in range(20)]
    waiting = [make_request(rng, head) for _ in range(count)]
    running: list[Request] = []
    whole: list[Request] = []
    while waiting or running:
        free = [lane for lane in engine.lanes if all(lane is not each.lane for each in running)]
        if waiting and free and (not running or rng.random() < 0.3):
            request = waiting.pop()
            arrive(request, free[0], head, [each for each in running if each.chunks[0] is head])
            request.drawn += step(free[0])
            running.append(request)
        awake = [each for each in running if rng.random() < 0.9] or running
        for request, token in zip(awake, step(*(each.lane for each in awake)), strict=True):
            request.drawn.append(token)
        if rng.random() < 0.1:
            rng.choice(running).lane.save()
        for request in list(running):
            assert request.lane.ids == request.prompt + request.drawn
            if len(request.drawn) >= request.count:
                whole.append(request)
            elif rng.random() > 0.01:
                continue
            running.remove(request)
            request.lane.end()
            if rng.random() < 0.5:
                request.lane.clear()
    return whole


def arrive(request: Request, lane: MlxLane, head: list[int], kin: list[Request]) -> None:
    """With what the lane holds already, or a running lane of its kin, if that begins in the same way."""
    if request.chunks[0] is not head:
        lane.clear()
        request.enter(lane)
        return
    if kin:
        lane.clear()
        assert lane.fork(kin[0].lane, len(head), POINTS[kin[0].lane])
        POINTS[lane] = POINTS[kin[0].lane]
    elif not (lane in POINTS and lane.ids[: len(head)] == head and lane.rewind(len(head), POINTS[lane])):
        lane.clear()
        lane.evaluate(head, never)
        POINTS[lane] = lane.checkpoint()
    request.enter(lane, len(head))


POINTS: dict[MlxLane, object] = {}
"""The checkpoints taken after the head."""


@pytest.mark.parametrize("seed", schedules(200, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_alone_or_together_the_same_tokens(served, kind, seed):
    POINTS.clear()
    engine = served(kind)
    found = schedule(engine, random.Random(seed), 8)
    assert found
    for lane in engine.lanes:
        lane.clear()
    for request in found:
        assert request.drawn[: request.count] == request.alone(engine.lanes[0]), request.sampling


def running(engine, lengths=(3, 40, 11), sampling=GREEDY):
    """Lanes that draw together after prompts of these lengths, and what they draw alone."""
    requests = [Request([PROMPT[:length]], sampling, 30) for length in lengths]
    expected = [request.alone(engine.lanes[-1]) for request in requests]
    lanes = engine.lanes[: len(lengths)]
    for request, lane in zip(requests, lanes, strict=True):
        request.enter(lane)
    return lanes, expected


def test_the_logits_of_a_row_are_those_of_the_lane_alone(each):
    """Whatever the padding is: positions, masks, sliding windows and convolutions."""
    lanes, _ = running(each)
    other = each.lanes[-1]
    for _ in range(30):
        step(*lanes)
    for lane in lanes:
        row = lane.logprobs()
        ids = list(lane.ids)
        # The last token was drawn from what follows the one before it.
        other.clear()
        for token in ids[:-1]:
            other.evaluate([token], never)
        other.begin(GREEDY, ids)
        step(other)
        assert numpy.abs(row - other.logprobs()).max() < 2e-3


def test_a_batch_goes_on_undisturbed_while_another_lane_arrives(each):
    (first, second, third), expected = running(each)
    found = [[*step(first)], [*step(second)], []]
    for lane, token in zip((0, 1), step(first, second), strict=True):
        found[lane].append(token)
    rows = first.rows
    assert rows is second.rows
    assert rows.joined
    found[2] += step(third)
    assert first.rows is second.rows is rows
    assert not third.rows.joined
    for _ in range(5):
        for lane, token in zip((2, 0, 1), step(third, first, second), strict=True):
            found[lane].append(token)
    assert first.rows is second.rows is third.rows is rows
    assert found == [tokens[: len(each)] for tokens, each in zip(expected, found, strict=True)]


def test_a_lane_alone_has_caches_of_its_own(each):
    lanes, expected = running(each, (3, 40))
    found = [step(*lanes) for _ in range(4)]
    lanes[0].end()
    alone = [step(lanes[1])[0] for _ in range(4)]
    assert not lanes[1].rows.joined
    assert [tokens[1] for tokens in found] + alone == expected[1][:8]
    # The lane that ended is still whole.
    assert lanes[0].ids == PROMPT[:3] + expected[0][:4]
    again = Request([lanes[0].ids, [60]], GREEDY, 5)
    expected = again.alone(each.lanes[-1])
    again.enter(lanes[0], len(lanes[0].ids))
    assert [step(*lanes)[0] for _ in range(5)] == expected


def test_forked_saved_and_rewound_while_others_draw(each):
    first, second, third, fourth = each.lanes
    one, other = Request([PROMPT[:20], PROMPT[20:30]], GREEDY, 20), Request([PROMPT[:9]], GREEDY, 20)
    fork = Request([PROMPT[:20], PROMPT[33:40]], GREEDY, 20)
    expected = [request.alone(first) for request in (one, other, fork)]
    first.evaluate(PROMPT[:20], never)
    point = first.checkpoint()
    one.enter(first, 20)
    other.enter(second)
    one.drawn, other.drawn = step(first), step(second)

    def go_on(count):
        for _ in range(count):
            tokens = step(first, second)
            one.drawn.append(tokens[0])
            other.drawn.append(tokens[1])

    go_on(5)
    assert third.fork(first, 20, point)
    assert third.ids == PROMPT[:20]
    copied = [cache.keys for cache in third.rows.caches if type(cache) is each._lib.KVCache]
    assert {keys.shape[2] for keys in copied} == {20}, "no more of the other lane than is used"
    ids, saved = list(second.ids), second.save()
    assert fourth.fork(second, len(ids), None)
    assert fourth.ids == ids
    assert first.rows is second.rows, "copies are no reason to leave the batch"
    fork.enter(third, 20)
    fork.drawn = step(third)
    for _ in range(5):
        go_on(1)
        fork.drawn += step(third)
    assert first.rewind(20, point)  # it leaves the batch
    assert fork.drawn == expected[2][:6]
    for _ in range(3):
        tokens = step(third, second)
        fork.drawn.append(tokens[0])
        other.drawn.append(tokens[1])
    assert (one.drawn, other.drawn) == (expected[0][:11], expected[1][:14])
    assert fork.drawn == expected[2][:9]
    one.enter(first, 20)
    assert [step(first, second)[0] for _ in range(4)] == expected[0][:4]
    # What was copied goes on as the lane did.
    assert fourth.restore(ids, saved)
    fourth.evaluate([60], never)
    again = Request([[*PROMPT[:9]], *([token] for token in expected[1][:6]), [60]], GREEDY, 5)
    assert ids == again.prompt[:-1]
    fourth.begin(GREEDY, ids)
    assert [step(fourth)[0] for _ in range(5)] == again.alone(third)


def test_a_fork_that_cannot_be(each):
    first, second = each.lanes[:2]
    first.evaluate(PROMPT[:20], never)
    point = first.checkpoint()
    first.evaluate(PROMPT[20:30], never)
    assert not second.fork(first, 20, None), "no checkpoint there"
    assert not second.fork(first, 10, point), "a checkpoint of another place"
    assert not second.fork(first, 40, None), "longer than the other lane"
    assert second.ids == []
    assert second.fork(first, 20, point)


def test_as_mlx_lm_itself_draws_in_batches(served):
    from mlx_lm.generate import BatchGenerator

    engine = served("nano")
    rng = random.Random(3)
    prompts = [[rng.randrange(20, 900) for _ in range(length)] for length in (5, 60, 23)]
    lanes = engine.lanes[:3]
    for lane, prompt in zip(lanes, prompts, strict=True):
        lane.evaluate(prompt, never)
        lane.begin(GREEDY, prompt)
    found = [step(*lanes) for _ in range(40)]
    generator = BatchGenerator(engine._context.model, max_tokens=40)
    numbers = generator.insert(prompts)
    reference = {number: [] for number in numbers}
    while any(len(tokens) < 40 for tokens in reference.values()):
        _, responses = generator.next()
        for response in responses:
            reference[response.uid].append(response.token)
    generator.close()
    assert [list(tokens) for tokens in zip(*found, strict=True)] == [reference[number] for number in numbers]


# -- what breaks --------------------------------------------------------------------------------------


def poison(lane):
    """Have what the lane draws from now on come from NaN."""
    cache = lane.leave()[0]
    if hasattr(cache, "cache"):
        cache.cache = [array * float("nan") for array in cache.cache]
    else:
        cache.values = cache.values * float("nan")


@pytest.mark.parametrize("row", [0, 1, 2])
def test_numbers_that_are_none_end_their_own_lane_only(each, row):
    lanes, expected = running(each)
    found = [step(*lanes) for _ in range(3)]
    poison(lanes[row])
    # Drawn before from good numbers: the token that was one ahead.
    found.append(step(*lanes))
    tokens = advance(each._context, lanes)
    assert isinstance(tokens[row], EngineFailed)
    assert "no logits that are numbers" in str(tokens[row])
    lanes[row].clear()
    others = [number for number in range(3) if number != row]
    left = [[tokens[number] for number in others]]
    left += [step(*(lanes[number] for number in others)) for _ in range(6)]
    for place, number in enumerate(others):
        drawn = [tokens[number] for tokens in found] + [tokens[place] for tokens in left]
        assert drawn == expected[number][: len(drawn)]
    # And the lane is as good as new.
    again = Request([PROMPT[:12]], GREEDY, 5)
    again.enter(lanes[row])
    assert [step(*lanes)[row] for _ in range(5)] == again.alone(each.lanes[-1])


def test_a_lane_alone_notices_them_too(each):
    lane = each.lanes[0]
    lane.evaluate(PROMPT, never)
    lane.begin(GREEDY, PROMPT)
    poison(lane)
    step(lane)
    with pytest.raises(EngineFailed, match="no logits that are numbers: are the weights damaged"):
        step(lane)


def test_a_batch_that_mlx_refuses_is_served_one_by_one(each, monkeypatch):
    lanes, expected = running(each, sampling=Sampling(temperature=1.0, seed=5))
    found = [step(*lanes) for _ in range(3)]
    model = type(each._context.model)
    call = model.__call__
    broken = False

    def refuse(self, tokens, cache):
        logits = call(self, tokens, cache=cache)  # by then the caches have been written
        if tokens.shape[0] > 1 or (broken and cache is lanes[1].rows.caches):
            raise ValueError("no broadcast")
        return logits

    monkeypatch.setattr(model, "__call__", refuse)
    found += [step(*lanes) for _ in range(2)]
    broken = True
    tokens = advance(each._context, lanes)
    assert [type(token) for token in tokens] == [int, EngineFailed, int]
    assert lanes[1].ids == []
    monkeypatch.undo()
    left = [[tokens[0], tokens[2]], *(step(lanes[0], lanes[2]) for _ in range(4))]
    for place, number in ((0, 0), (1, 2)):
        drawn = [tokens[number] for tokens in found] + [tokens[place] for tokens in left]
        assert drawn == expected[number][:10]
    assert [tokens[1] for tokens in found] == expected[1][:5]


def test_a_batch_that_fails_while_it_is_computed_is_lost_and_no_other_lane(each, monkeypatch):
    lanes, expected = running(each)
    first = [step(lane)[0] for lane in lanes]
    step(*lanes[:2])

    def fail(*_):
        raise RuntimeError("[metal] out of memory")

    with monkeypatch.context() as patch, pytest.raises(EngineFailed, match="out of memory"):
        patch.setattr(mx, "async_eval", fail)
        step(*lanes[:2])
    assert [lane.ids for lane in lanes[:2]] == [[], []]
    assert [first[2], *(step(lanes[2])[0] for _ in range(5))] == expected[2][:6]


def test_padding_takes_no_more_than_the_lanes_may_hold(each, monkeypatch):
    """The longest draws alone where the others, as long as it is, would be too much."""
    lanes, expected = running(each)
    monkeypatch.setattr(each._context, "capacity", 80)
    found = [step(*lanes) for _ in range(4)]
    assert [lane.rows.joined for lane in lanes] == [True, False, True]
    monkeypatch.setattr(each._context, "capacity", 60)
    found.append(step(*lanes))
    monkeypatch.setattr(each._context, "capacity", 3 * 60)
    found += [step(*lanes) for _ in range(4)]
    assert all(lane.rows.joined for lane in lanes)
    assert [list(drawn) for drawn in zip(*found, strict=True)] == [tokens[:9] for tokens in expected]


# -- memory -------------------------------------------------------------------------------------------


def test_a_hundred_requests_leave_no_memory_behind(served):
    engine = served("lfm2")
    rng = random.Random(1)

    def used():
        for lane in engine.lanes:
            lane.clear()
        POINTS.clear()
        mx.synchronize(engine._lib.generation_stream)
        return mx.get_active_memory()

    schedule(engine, rng, 10)
    before = used()
    for _ in range(5):
        schedule(engine, rng, 20)
        assert used() <= before + 1024


def test_what_leaves_a_batch_does_not_keep_it(served):
    engine = served("lfm2")
    mx.clear_cache()
    empty = mx.get_active_memory()
    lanes = engine.lanes
    for lane in lanes:
        lane.evaluate([5] * 600, never)
        lane.begin(GREEDY, [5])
    step(*lanes)
    rows = 601 * 2 * 2 * 2 * 16 * 4  # keys and values of two layers, two heads of 16
    assert mx.get_active_memory() - empty > 4 * rows
    lanes[0].end()
    lanes[0].leave()
    for lane in lanes[1:]:
        lane.clear()
    mx.synchronize(engine._lib.generation_stream)
    assert rows < mx.get_active_memory() - empty < 1.5 * rows


@pytest.mark.parametrize("clear", [True, False])
def test_a_batch_in_which_no_lane_draws_is_taken_apart(each, clear):
    """Its rows are as long as the longest, and nothing else would make it smaller."""
    lanes, expected = running(each)
    step(*lanes)
    for lane in lanes:
        lane.end()
    assert all(lane.rows.joined for lane in lanes), "the next step may be with the same lanes"
    if clear:
        lanes[0].clear()
    else:
        lanes[0].leave()
    assert not any(lane.rows.joined for lane in lanes)
    assert [lane.ids for lane in lanes[1:]] == [
        PROMPT[:length] + tokens[:1] for length, tokens in zip((40, 11), expected[1:], strict=True)
    ]


def test_a_row_of_recurrent_state_is_copied(served):
    """mlx-lm gives a view of it, which would keep all rows in memory."""
    engine = served("lfm2")
    size = 1000 * 2560 * 4  # bytes of a row: far more than what else comes and goes meanwhile
    before = mx.get_active_memory()
    batch = [engine._lib.ArraysCache(1)]
    batch[0].cache = [mx.ones((4, 1000, 2560))]
    row = engine._context.caches.extract(batch, 2)
    del batch
    mx.eval(row[0].cache)
    mx.synchronize()
    assert 0.5 * size < mx.get_active_memory() - before < 2 * size


# -- models that cannot -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "tiny", "gemma3_text")


def test_models_that_can_be_joined(each):
    assert each._context.caches.obstacle == ""
    assert (len(each.lanes), each.capacity) == (4, 4 * each.context_size)


def test_a_model_that_cannot_be_joined_has_one_lane_and_says_why(folder, monkeypatch):
    from mlx_lm.models import cache, gemma3_text

    def obstacle(make):
        monkeypatch.setattr(gemma3_text.Model, "make_cache", lambda self: [make() for _ in range(4)])
        engine = MlxEngine.load(folder)
        assert (len(engine.lanes), engine.capacity) == (1, engine.context_size)
        engine.close()
        with pytest.raises(CannotBatch, match=r"^tiny can have only one lane, not 2: ") as caught:
            MlxEngine.load(folder, lanes=2)
        return str(caught.value).partition(": ")[2]

    chunked = obstacle(lambda: cache.ChunkedKVCache(64))
    assert chunked == "caches of the kind ChunkedKVCache cannot be joined"
    kept = obstacle(lambda: cache.RotatingKVCache(64, keep=4))
    assert kept == "sliding windows that keep the first tokens cannot be joined"


def test_a_model_that_fails_in_batches_is_found_out_before_its_weights_are_read(folder, monkeypatch):
    from mlx_lm.models import gemma3_text

    call = gemma3_text.Model.__call__

    def positions(self, inputs, cache=None):
        int(cache[0].offset)
        return call(self, inputs, cache)

    monkeypatch.setattr(gemma3_text.Model, "__call__", positions)
    monkeypatch.setattr(Context, "read_weights", lambda self: pytest.fail("read"))
    with pytest.raises(CannotBatch, match=r"mlx-lm cannot join its caches: .*conver"):
        MlxEngine.load(folder, lanes=2)
