"""Alone or together, the same tokens: random schedules on real weights, and what may not spread between lanes.

The engine is stepped in the test's own thread, so a schedule is given by its seed. llama.cpp sums in another order where
a sequence has other cells of the pool, and where a batch has one row or several, and it rounds to 16 bits in between:
the same text has slightly other logits. Where two streams part, the test draws both tokens once more from the logits
that were recorded (see `redrawing`). It was rounding, and is counted, if the logits are at most `ROUNDING` apart, the
same draw gives each token from its own logits, and it was as near to the other token as the logits are to each other.
Anything else fails: a lane held what it should not, or its sampler was in another state.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from localagent.agent import Agent, RunDone
from localagent.errors import EngineFailed
from localagent.hosts.generation import Cuts, GenerationState
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.hosts.llamacpp.lanes import Context, LlamaCppLane
from localagent.hosts.prefix.matching import common
from localagent.hosts.protocol import Token
from localagent.hosts.sampling import Sampling
from localagent.messages import Message
from localagent.model import Model, load
from localagent.nano import GGUF
from localagent.nano.requests import make_requests
from localagent.nano.tasks import Task, make_tasks
from localagent.prompt import Trusted
from tests.agent.solving import Bench, Outcome, outcome_of, solve
from tests.conftest import LONG, schedules
from tests.hosts.redrawing import Parting, part, redraw
from tests.hosts.stepping import Asked, Stepping

pytestmark = pytest.mark.engine

ROUNDING = 0.08  # of a logit; 0.04 is the most that was seen, at temperature 0.7 and a flat distribution
LIKELY = 1e-2  # of a probability: what that may come to
CONTEXT = 1024
AS_LOADED: dict[str, Any] = {"flash_attention": False, "divisible": True}
"""Options that nano is loaded with. Chunks are smaller here than there, so that more is cut."""
MIXED = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=12),
    Sampling(max_tokens=20, temperature=0.7, top_k=20, seed=1),
    Sampling(max_tokens=20, temperature=1.0, top_p=0.9, min_p=0.05, seed=2),
    Sampling(max_tokens=20, temperature=1.3, seed=3),
    Sampling(max_tokens=20, repetition_penalty=1.2),
    Sampling(max_tokens=20, temperature=0.8, repetition_penalty=1.1, top_k=40, seed=4, logprobs=2),
    Sampling(max_tokens=20, logprobs=3),
    Sampling(max_tokens=24, stop=('"', " the", ")")),
]


# -- what is asked ------------------------------------------------------------------------------------


@cache
def prompts(seed: int) -> list[list[int]]:
    """Conversations, each up to every one of its user's messages: many begin as others do."""
    found = []
    with LlamaCppHost.load(GGUF, context=CONTEXT, threads=1) as host:
        for kind in ("third_turn", "answers", "think_call", "parallel", "greeting"):
            for request in make_requests(kind, 1, seed):
                turns: list[Any] = []
                for turn in request.messages:
                    content = Trusted(turn["content"]) if turn["role"] == "assistant" else turn["content"]
                    turns.append({**turn, "content": content})
                    if turn["role"] in ("user", "tool"):
                        found.append(list(host.render(turns, list(request.tools) or None).ids))
    return [ids for ids in found if len(ids) <= 450]


@cache
def again() -> list[int]:
    """What comes between an answer and the next one."""
    with LlamaCppHost.load(GGUF, context=CONTEXT, threads=1) as host:
        text = "<|im_end|>\n<|im_start|>user\nAnd once more, please.<|im_end|>\n<|im_start|>assistant\n"
        return list(host.tokenize(text, special=True))


class Recorder:
    """Keeps the logits and the token of every draw."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._drawn: dict[tuple[tuple[int, ...], Sampling], list[list[tuple[Any, int]]]] = {}
        begin, draw = LlamaCppLane.begin, LlamaCppLane.draw
        now: dict[int, list[tuple[Any, int]]] = {}

        def begun(lane: LlamaCppLane, sampling: Sampling, history: Sequence[int]) -> None:
            begin(lane, sampling, history)
            now[id(lane)] = []
            self._drawn.setdefault((tuple(history), sampling), []).append(now[id(lane)])

        def recorded(lane: LlamaCppLane, logits: Any, row: int) -> int:
            copied = logits[row].copy()
            token = draw(lane, logits, row)
            now[id(lane)].append((copied, token))
            return token

        patch.setattr(LlamaCppLane, "begin", begun)
        patch.setattr(LlamaCppLane, "draw", recorded)

    def of(self, ids: Sequence[int], sampling: Sampling) -> list[list[tuple[Any, int]]]:
        """The draws of every such generation."""
        return self._drawn[tuple(ids), sampling]


# -- schedules ----------------------------------------------------------------------------------------


@dataclass
class Streams:
    """The streams of schedules, and where they parted from those that ran alone."""

    streams: int = 0
    tokens: int = 0
    cached: int = 0
    cancelled: int = 0
    parted: list[tuple[int, Parting]] = field(default_factory=list)
    """With the number of the schedule."""

    def __str__(self) -> str:
        near = ", ".join(f"schedule {seed}: {parting}" for seed, parting in self.parted[:6])
        return (
            f"{self.streams} streams of {self.tokens} tokens, {self.cancelled} cancelled, {self.cached} tokens of "
            f"prompts reused; {len(self.parted)} parted: {near or '-'}"
        )

    @property
    def few(self) -> bool:
        """Whether hardly any parted."""
        return len(self.parted) <= max(1, self.streams / 100)


class Alone:
    """A request on an engine that has forgotten everything, kept for the next schedule that asks it."""

    def __init__(self, path: Path = GGUF, **options: Any) -> None:
        self._engine = LlamaCppEngine(path, Options(CONTEXT, 1, **AS_LOADED | options))
        self._known: dict[tuple[tuple[int, ...], Sampling], Asked] = {}

    def run(self, ids: Sequence[int], sampling: Sampling) -> Asked:
        key = tuple(ids), sampling
        if key not in self._known:
            stepping = Stepping(self._engine, budget=0)
            self._known[key] = stepping.ask(ids, sampling)
            stepping.run()
            assert self._known[key].finish.cached == 0
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()

    def close(self) -> None:
        self._engine.close()


def schedule(stepping: Stepping, seed: int, offered: list[list[int]]) -> list[Asked]:
    """Run a schedule to its end: what was asked."""
    draw = random.Random(seed)
    asked: list[Asked] = []
    leaving: dict[int, Asked] = {}
    left = draw.randrange(3, 8)
    for step in range(10_000):
        if left and draw.random() < draw.choice([0.05, 0.3, 1.0]):
            left -= 1
            ended = [each for each in asked if each.outcome in ("stop", "length")]
            if ended and draw.random() < 0.3:
                last = draw.choice(ended)
                ids = [
                    *last.job.generation.ids,
                    *(token.id for token in last.tokens if not token.end),
                    *again(),
                ]
            else:
                ids = draw.choice(offered)
            new = stepping.ask(ids[-CONTEXT:], draw.choice(MIXED))
            asked.append(new)
            if draw.random() < 0.15:
                leaving[step + draw.randrange(20)] = new
        if not stepping.step() and not left:
            return asked
        if step in leaving:
            leaving[step].channel.cancel()
    raise AssertionError("it does not end")


def compare(streams: Streams, seed: int, asked: list[Asked], alone: Alone, recorder: Recorder) -> None:
    """Every stream against the same request alone; where they part, look at the draw."""
    for each in asked:
        ids, sampling = each.job.generation.ids, each.job.generation.sampling
        wanted = alone.run(ids, sampling)
        streams.streams += 1
        streams.tokens += len(each.tokens)
        streams.cached += each.finish.cached
        if each.finish.stop_reason == "cancelled":
            streams.cancelled += 1
            same = each.ids == wanted.ids[: len(each.ids)]
        else:
            same = (
                same_tokens(each.tokens, wanted.tokens)
                and each.finish.stop_reason == wanted.finish.stop_reason
            )
        if same:
            continue
        said = common(each.ids, wanted.ids)
        assert said < min(len(each.ids), len(wanted.ids)), (seed, each.text, wanted.text, each.finish)
        here = next(  # the same may have been asked twice
            drawn[said][0]
            for drawn in recorder.of(ids, sampling)
            if [token for _, token in drawn[: said + 1]] == each.ids[: said + 1]
        )
        with pytest.MonkeyPatch.context() as patch:
            cold = Recorder(patch)
            alone.forget()
            alone.run(ids, sampling)
        right = cold.of(ids, sampling)[0][said][0]
        where = seed, said, each.text, wanted.text
        assert abs(here - right).max() < ROUNDING, (*where, "the logits are not those of the same text")
        drawn = [redraw(row, sampling, ids, wanted.ids[:said]) for row in (right, here)]
        assert [draw.token for draw in drawn] == [wanted.ids[said], each.ids[said]], (
            *where,
            "another sampler",
        )
        parting = part(*drawn)
        streams.parted.append((seed, parting))
        assert parting.is_rounding, (*where, parting)
        assert parting.kind != "edge" or parting.far < LIKELY, (*where, parting)


def same_tokens(left: list[Token], right: list[Token]) -> bool:
    """The same ids and texts, and log-probabilities as near as rounding lets them be."""
    if [(a.id, a.text) for a in left] != [(b.id, b.text) for b in right]:
        return False
    for a, b in zip(left, right, strict=True):
        assert (a.logprobs is None) == (b.logprobs is None)
        if a.logprobs and b.logprobs:
            values = [[each.token, *(value for _, value in each.top)] for each in (a.logprobs, b.logprobs)]
            assert numpy.exp(values[0]) == pytest.approx(numpy.exp(values[1]), abs=LIKELY)
    return True


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[list[LlamaCppEngine], Alone]]:
    """Engines of two to eight lanes, and one to ask alone."""
    together = [
        LlamaCppEngine(
            GGUF, Options(CONTEXT, 1, lanes=count, capacity=size, chunk=96, batch=200, **AS_LOADED)
        )
        for count, size in SIZES
    ]
    alone = Alone()
    yield together, alone
    for each in [*together, alone]:
        each.close()


SIZES = [(2, 1024), (3, 3072), (5, 2048), (8, 8192)]


def test_alone_or_together_the_same_tokens(
    engines: tuple[list[LlamaCppEngine], Alone],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    together, alone = engines
    streams = Streams()
    for seed in schedules(2000, 100):
        with monkeypatch.context() as patch:
            recorder = Recorder(patch)
            stepping = Stepping(together[seed % len(SIZES)])
            asked = schedule(stepping, seed, prompts(seed // 100))
        assert stepping.busy == 0
        compare(streams, seed, asked, alone, recorder)
        for lane in stepping.engine.lanes:
            lane.clear()
        if seed % 100 == 99:
            alone.forget()
            with capsys.disabled():
                print(f"\n{seed + 1} schedules: {streams}", flush=True)
    assert streams.cancelled
    assert streams.cached > streams.tokens
    assert streams.few, streams


# -- what may not spread ------------------------------------------------------------------------------


@pytest.fixture
def eight(engines: tuple[list[LlamaCppEngine], Alone]) -> Iterator[Stepping]:
    """Eight empty lanes."""
    engine = engines[0][-1]
    yield Stepping(engine)
    for lane in engine.lanes:
        lane.end()
        lane.clear()


@pytest.fixture
def alone(engines: tuple[list[LlamaCppEngine], Alone]) -> Alone:
    return engines[1]


def running(stepping: Stepping, count: int, logprobs: int | None = None) -> list[Asked]:
    """So many streams, all of which have said something."""
    asked = [stepping.ask(ids, Sampling(max_tokens=24, logprobs=logprobs)) for ids in prompts(0)[-count:]]
    while not all(each.tokens or each.end for each in asked):
        stepping.step()
    assert all(each.end is None for each in asked), "none is over yet"
    return asked


def is_right(each: Asked, alone: Alone) -> bool:
    """Whether it said what it says alone, as far as it came."""
    generation = each.job.generation
    wanted = alone.run(generation.ids, generation.sampling).tokens
    if each.finish.stop_reason != "cancelled":
        return same_tokens(each.tokens, wanted)
    return same_tokens(each.tokens, wanted[: len(each.tokens)])


def test_logits_that_are_no_numbers_end_one_stream(
    eight: Stepping, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = running(eight, 4)
    context = eight.engine._shared  # type: ignore[attr-defined]
    logits = context.logits

    def damaged(rows: int) -> Any:
        found = logits(rows).copy()
        found[1] = numpy.nan
        return found

    with monkeypatch.context() as broken:
        broken.setattr(context, "logits", damaged)
        eight.step()
    eight.run()
    assert [each.outcome is EngineFailed for each in asked] == [False, True, False, False]
    assert all(is_right(each, alone) for each in asked if each.outcome is not EngineFailed)
    again = eight.ask(asked[1].job.generation.ids, Sampling(max_tokens=24))
    eight.run()
    assert is_right(again, alone)


@pytest.mark.parametrize("failing", [None, 2])
def test_where_a_batch_finds_no_room_its_lanes_are_computed_one_by_one(
    eight: Stepping, alone: Alone, monkeypatch: pytest.MonkeyPatch, failing: int | None
) -> None:
    """And what then cannot be computed alone ends alone."""
    asked = running(eight, 4, logprobs=2)
    context = eight.engine._shared  # type: ignore[attr-defined]
    decode, counts = context._decode, []

    def no_room(count: int) -> int:
        counts.append(count)
        if count > 1:
            return 1
        if len(counts) - 2 == failing:
            raise EngineFailed("llama.cpp gave up computing")
        return int(decode(count))

    with monkeypatch.context() as broken:
        broken.setattr(context, "_decode", no_room)
        eight.step()
    assert counts == [4, 1, 1, 1, 1]
    eight.run()
    assert [each.outcome is EngineFailed for each in asked] == [number == failing for number in range(4)]
    assert all(is_right(each, alone) for each in asked if each.outcome is not EngineFailed)


def test_a_cancel_gives_room_and_lane_back_within_one_step(
    engines: tuple[list[LlamaCppEngine], Alone], alone: Alone
) -> None:
    """In a pool of one context, where the next request needs all of it."""
    engine = engines[0][0]
    stepping = Stepping(engine)
    assert engine.capacity == CONTEXT
    first, second = prompts(0)[-2:]
    for _ in range(3):
        running_one = stepping.ask(first)
        large = stepping.ask(second)
        while len(running_one.tokens) < 3:
            stepping.step()
        assert large.job.place == 1
        running_one.channel.cancel()
        stepping.step()
        assert (running_one.outcome, large.job.place) == ("cancelled", 0)
        large.channel.cancel()
        stepping.step()
        assert stepping.busy == 0
    filling = stepping.ask(second, Sampling(temperature=3.0, seed=1))
    stepping.run()
    assert filling.finish.generated == CONTEXT - len(second) + 1 or filling.tokens[-1].end
    for lane in engine.lanes:
        lane.clear()
    assert is_right(filling, alone)


def test_no_stream_waits_longer_than_one_chunk_while_a_long_prompt_arrives(eight: Stepping) -> None:
    asked = running(eight, 3)
    long = eight.ask((prompts(0)[0] * 5)[: CONTEXT - 10], Sampling(max_tokens=2))
    eight.step()
    steps = 0
    while long.end is None:
        before = [len(each.tokens) for each in asked]
        done = len(long.progress)
        eight.step()
        steps += 1
        assert len(long.progress) <= done + 1, "a chunk in a step"
        for each, count in zip(asked, before, strict=True):
            assert each.end is not None or len(each.tokens) == count + 1
    assert steps >= len(long.progress) > 4
    eight.run()


def test_a_system_prompt_that_eight_share_is_evaluated_once(eight: Stepping, alone: Alone) -> None:
    with LlamaCppHost.load(GGUF, context=CONTEXT, threads=1) as host:
        request = make_requests("answers", 1, 3)[0]
        system = {"role": "system", "content": "Answer shortly. " * 20}
        turns = [[system, {"role": "user", "content": f"Tell me about {word}."}] for word in WORDS]
        asked = [
            eight.ask(host.render(each, list(request.tools)).ids, Sampling(max_tokens=12)) for each in turns
        ]
    eight.run()
    shared = min(common(list(asked[0].job.generation.ids), list(each.job.generation.ids)) for each in asked)
    first, *others = [each.finish.cached for each in asked]
    assert first == 0
    assert len(set(others)) == 1
    assert shared - 16 < others[0] <= shared
    assert all(is_right(each, alone) for each in asked)


def test_a_step_has_the_same_logits_for_any_number_of_lanes_but_one(eight: Stepping) -> None:
    engine: Any = eight.engine
    context, seen = engine._shared, {}
    for count in (1, 2, 3, 8):
        for lane in engine.lanes[:count]:
            lane.clear()
            assert lane.evaluate(prompts(0)[lane.number][:60], lambda: False)
        assert context.decode_step([(7, len(lane.ids), lane.number) for lane in engine.lanes[:count]])
        seen[count] = context.logits(count).copy()
    assert (seen[2] == seen[3][:2]).all()
    assert (seen[3] == seen[8][:3]).all()
    assert abs(seen[1] - seen[8][:1]).max() < 0.05


def test_random_draws_from_flat_probabilities_part_only_where_a_lane_is_computed_alone(
    eight: Stepping, alone: Alone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text without sense, at temperature 1."""
    streams, draw = Streams(), random.Random(3)
    for seed in schedules(30, 2):
        with monkeypatch.context() as patch:
            recorder = Recorder(patch)
            asked = []
            for number in range(8):
                ids = [draw.randrange(300, 1000) for _ in range(draw.randrange(5, 60))]
                asked.append(eight.ask(ids, Sampling(max_tokens=40, temperature=1.0, seed=number)))
                eight.step()
            eight.run()
        compare(streams, seed, asked, alone, recorder)
        for lane in eight.engine.lanes:
            lane.clear()
    with capsys.disabled():
        print(f"\n{streams}")


def test_prompts_that_are_read_together_have_the_logits_of_each_alone(
    eight: Stepping, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lanes are no neighbours, and where one of the prompts goes on."""
    draw = random.Random(11)
    lengths = [40, 70, 25, 40, 2, 2, 300, 40]
    asked_ids = [[draw.randrange(300, 1000) for _ in range(length)] for length in lengths]
    vocabulary = eight.engine.vocabulary
    asked_ids[1][39] = next(token for token in range(vocabulary.size) if vocabulary.piece(token).end)
    sampling = Sampling(max_tokens=8, logprobs=0)
    calls = []
    decode = Context.decode_chunks

    def counted(context: Context, chunks: Any) -> int:
        calls.append(len(chunks))
        return decode(context, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode_chunks", counted)
        recorder = Recorder(patch)
        asked = [eight.ask(ids, sampling) for ids in asked_ids]
        eight.run()
        alone.forget()
        for ids in asked_ids:
            alone.run(ids, sampling)
    assert max(calls) > 4, "of many prompts at once"
    for ids, each in zip(asked_ids, asked, strict=True):
        together, single = recorder.of(ids, sampling)
        # The last matrix is multiplied by the rows that tokens are drawn from: by another kernel where it is one.
        assert abs(together[0][0] - single[0][0]).max() < 1e-5
        assert is_right(each, alone)


def test_lanes_in_any_order_are_handed_to_llama_cpp_by_their_numbers(
    eight: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes at once only those that follow one another."""
    engine: Any = eight.engine
    sequences, found = [], {}
    decode = Context.decode_chunks

    def seen(context: Context, chunks: Any) -> int:
        sequences.append([sequence for sequence, *_ in chunks])
        return decode(context, chunks)

    monkeypatch.setattr(Context, "decode_chunks", seen)
    draw = random.Random(4)
    chunks = {number: [draw.randrange(300, 1000) for _ in range(20)] for number in (0, 1, 2)}
    for order in ((0, 1, 2), (2, 0, 1)):
        lanes = [engine.lanes[number] for number in order]
        for lane in lanes:
            lane.clear()
        assert engine.evaluate(lanes, [chunks[number] for number in order], lambda: False)
        logits = engine._shared.logits(3)
        found[order] = [logits[engine.lanes[number].output].copy() for number in (0, 1, 2)]
    assert sequences == [[0, 1, 2]] * 2
    assert all((one == other).all() for one, other in zip(*found.values(), strict=True))


@pytest.mark.parametrize("name", ["nano", "smollm2"])
def test_logits_are_the_same_wherever_a_prompt_is_cut(gguf: Path, name: str) -> None:
    """Bit for bit, in chunks of two tokens and more; alone, and beside other lanes of the same length."""
    path = GGUF if name == "nano" else gguf
    length = 700 if LONG else 150
    engine = LlamaCppEngine(path, Options(CONTEXT, 2, lanes=4, capacity=4 * CONTEXT, batch=128, **AS_LOADED))
    draw = random.Random(name)
    ids = [[draw.randrange(300, 1000) for _ in range(length)] for _ in engine.lanes]

    def logits(count: int, longest: int) -> Any:
        for lane in engine.lanes:
            lane.clear()
        generation = GenerationState(ids[0], Sampling(), engine.vocabulary, CONTEXT, Cuts(None, None))
        generation.resume(0)
        while not generation.whole:
            size = generation.size(draw.randrange(2, longest + 1))
            begin = generation.position
            chunks = [each[begin : begin + size] for each in ids[:count]]
            assert engine.evaluate(engine.lanes[:count], chunks, lambda: False)
            generation.evaluated(size)
        return engine._shared.logits(count)[0].copy()

    whole = logits(1, 64)
    for count, longest in [(1, 3), (1, 9), (1, 40), (1, 128), (2, 64), (3, 33), (4, 5), (4, 32)]:
        # The last matrix is multiplied by a row for each lane, by another kernel where that is one.
        assert abs(logits(count, longest) - whole).max() <= (1e-4 if count > 1 else 0), (count, longest)
    engine.close()


def test_as_many_chunks_are_read_at_once_as_change_nothing(
    engines: tuple[list[LlamaCppEngine], Alone],
) -> None:
    pooled, *_, own = engines[0]
    assert (own.joint, own.divisible, own.spacing) == (True, True, 192)
    assert (pooled.joint, pooled.divisible) == (False, False), "in a pool the sums depend on the cells"


WORDS = ("bees", "the moon", "salt", "rivers", "chess", "wool", "Mars", "tea")


def test_many_requests_leave_memory_as_it_was(engines: tuple[list[LlamaCppEngine], Alone]) -> None:
    """A thousand through eight lanes in `make test-long`; and the saved states stay within their budget."""
    stepping = Stepping(engines[0][-1], budget=8 << 20)
    process, resident = psutil.Process(), []
    rounds, each_round = (10, 100) if LONG else (6, 25)
    draw = random.Random(5)
    offered = prompts(0)
    for _ in range(rounds):
        for number in range(each_round):
            ids = draw.choice(offered)
            asked = stepping.ask([*ids[: draw.randrange(20, len(ids))], *ids[-4:]], draw.choice(MIXED[:6]))
            if number % 7 == 0:
                asked.cancel.set()
            for _ in range(draw.randrange(6)):
                stepping.step()
        stepping.run()
        assert (stepping.busy, stepping.asked) == (0, [])
        assert stepping.prefix.nbytes <= 8 << 20
        gc.collect()
        resident.append(process.memory_info().rss)
    grown = resident[-1] - resident[len(resident) // 2 - 1]
    assert grown < 12 << 20, [f"{each >> 20} MiB" for each in resident]


# -- fifty at once ------------------------------------------------------------------------------------


ERRANDS = [
    task for kind in ("one", "two", "chain", "failing", "thinking") for task in make_tasks(kind, 10, 33)
]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(GGUF, backend="llamacpp", threads=1, context=2048, lanes=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def outcomes(model: Model) -> list[Outcome]:
    """What comes of every errand alone."""
    found = [solve(model, task) for task in ERRANDS]
    assert sum(outcome.solves(task) for outcome, task in zip(found, ERRANDS, strict=True)) >= 48
    return found


def test_fifty_agents_in_threads_find_what_each_finds_alone(model: Model, outcomes: list[Outcome]) -> None:
    found: dict[int, Outcome] = {}

    def run(number: int) -> None:
        found[number] = solve(model, ERRANDS[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(50)] == outcomes


def test_fifty_agents_in_tasks_find_what_each_finds_alone(model: Model, outcomes: list[Outcome]) -> None:
    async def run(task: Task) -> Outcome:
        bench, history = Bench(task), list[Message]()
        agent = Agent(model, bench.tools, instructions=task.system or None, temperature=0, max_tokens=600)
        *_, done = [event async for event in agent.arun(task.prompt, history=history)]
        assert isinstance(done, RunDone), done
        return outcome_of(history, bench.ran, done.stop_reason)

    async def run_all() -> list[Outcome]:
        return await asyncio.gather(*map(run, ERRANDS))

    assert asyncio.run(run_all()) == outcomes


# -- quantized weights --------------------------------------------------------------------------------

STORIES = [
    "Once upon a time there was a miller who",
    "The three largest rivers of Europe are",
    "def fibonacci(n):\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Mix the flour with the",
    "In 1969, two people",
    "Q: What is seven times eight?\nA:",
    "The sea is",
]


@pytest.mark.parametrize("flash", [True, False])
def test_quantized_weights_part_only_at_near_ties(
    gguf: Path, capsys: pytest.CaptureFixture[str], flash: bool
) -> None:
    """Eight at once, greedy. Only where the two likeliest tokens are nearer than `near` may a stream go another way."""
    near = 1e-3
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        engine = LlamaCppEngine(gguf, Options(256, 1, flash_attention=flash, lanes=8, capacity=8 * 256))
        sampling = Sampling(max_tokens=40 if LONG else 12, logprobs=0)  # which turns drafts off
        prompts = [engine.vocabulary.tokenize(text, False) for text in STORIES]
        stepping = Stepping(engine, budget=0)
        together = [stepping.ask(ids, sampling) for ids in prompts]
        stepping.run()
        stepping = Stepping(engine, budget=0)
        parted = []
        farthest = 0.0
        for ids, each in zip(prompts, together, strict=True):
            alone = stepping.ask(ids, sampling)
            stepping.run()
            rows, single = recorder.of(ids, sampling)
            for at, ((left, _), (right, _)) in enumerate(zip(rows, single, strict=False)):
                farthest = max(farthest, float(abs(left - right).max()))
                if each.ids[at] != alone.ids[at]:
                    top = numpy.sort(right)[-2:]
                    parted.append(float(top[1] - top[0]))
                    break
            else:
                assert each.text == alone.text
        engine.close()
    with capsys.disabled():
        print(
            f"\n{len(parted)} of {len(STORIES)} quantized streams parted, {parted}; logits at most {farthest:.2g} apart"
        )
    assert all(gap < near for gap in parted)
