"""The owner thread: one thread, in order, and never in the way of the exit; and generations that it works on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from random import random

import pytest

from localagent.errors import EngineFailed
from localagent.hosts.channel import AHEAD, EngineGeneration
from localagent.hosts.host import EngineHost
from localagent.hosts.owner import OwnerClosed, OwnerThread
from localagent.hosts.protocol import Prefilled, Prompt, Queued, Token
from localagent.hosts.sampling import Sampling
from tests.hosts.prefix.chain import spoken
from tests.hosts.speaking import Speaking, SpeakingLane, failing, speaking_host

ROOT = Path(__file__).parents[2]
SOON = 60.0  # seconds that nothing here takes, on the busiest machine


@pytest.fixture
def owner() -> Iterator[OwnerThread]:
    made = OwnerThread("test-owner")
    yield made
    made.close()


class Counting:
    """Work that counts its steps, up to `limit`."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.steps = 0
        self.errors: list[BaseException] = []
        self.threads: set[threading.Thread] = set()
        self.ended = 0
        self.rested = threading.Event()

    patience: float | None = None

    def step(self) -> bool:
        self.threads.add(threading.current_thread())
        if self.steps >= self.limit:
            self.rested.set()
            return False
        self.steps += 1
        return True

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)

    def end(self) -> None:
        self.ended += 1


def fail() -> int:
    raise ZeroDivisionError("as asked")


# -- calls --------------------------------------------------------------------------------------------


def test_everything_runs_on_the_one_thread(owner: OwnerThread) -> None:
    work, posted = Counting(5), threading.Event()
    owner.employ(work)
    owner.post(posted.set)
    assert posted.wait(SOON)
    assert work.rested.wait(SOON)
    assert work.threads == {owner.run(threading.current_thread)}
    [thread] = work.threads
    assert thread is not threading.current_thread()
    assert not thread.daemon
    assert owner.run(lambda: owner.run(lambda: 3)) == 3


def test_calls_are_made_in_order_between_two_steps(owner: OwnerThread) -> None:
    work = Counting()
    owner.employ(work)
    found: list[int] = []
    for number in range(20):
        owner.post(lambda number=number: found.append(number))
    steps = owner.run(lambda: work.steps)
    assert found == list(range(20))
    while work.steps < steps + 10:
        time.sleep(0.001)
    assert owner.run(lambda: "now") == "now"


def test_calls_without_end_do_not_hold_up_the_work(owner: OwnerThread) -> None:
    work, done = Counting(), threading.Event()
    owner.employ(work)
    calls = 0

    def again() -> None:
        nonlocal calls
        calls += 1
        if work.steps >= before + 5 or calls == 1000:
            done.set()
        else:
            owner.post(again)

    before = work.steps
    owner.post(again)
    assert done.wait(SOON)
    assert calls < 20


def test_work_that_rests_is_looked_at_again_after_a_call_and_when_it_is_woken(owner: OwnerThread) -> None:
    work = Counting(3)
    owner.employ(work)
    owner.run(int)
    assert work.rested.wait(SOON)
    for wake in (owner.wake, lambda: owner.run(int)):
        work.rested.clear()
        work.limit += 2
        wake()
        assert work.rested.wait(SOON)
    assert work.steps == 7
    time.sleep(0.05)
    assert work.steps == 7


def test_work_that_has_no_patience_is_looked_at_again_by_itself(owner: OwnerThread) -> None:
    work = Counting(3)
    work.patience = 1e-3
    owner.employ(work)
    owner.run(int)
    assert work.rested.wait(SOON)
    work.rested.clear()
    work.limit += 2
    assert work.rested.wait(SOON)
    assert work.steps == 5
    assert owner.run(lambda: 3) == 3


def test_a_step_that_raises_is_told_to_the_work_and_the_thread_goes_on(owner: OwnerThread) -> None:
    class Failing(Counting):
        def step(self) -> bool:
            self.rested.set()
            raise ZeroDivisionError("as asked")

    work = Failing()
    owner.employ(work)
    owner.run(int)
    assert work.rested.wait(SOON)
    assert owner.run(lambda: 3) == 3
    assert {str(error) for error in work.errors} == {"as asked"}


def test_exceptions_arrive_with_their_traceback(owner: OwnerThread) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        owner.run(fail)
    assert "in fail" in "".join(traceback.format_exception(caught.value))
    assert owner.run(lambda: 2) == 2


def test_after_a_fork_the_child_is_refused(owner: OwnerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking_host(Speaking(None)) as host:
        generation = host.generate(Prompt((1, 2), ""), Sampling())
        next(generation)
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            asks = (
                lambda: owner.run(fail),
                lambda: owner.post(fail),
                lambda: host.generate(Prompt((1, 2), ""), Sampling()),
                lambda: next(generation),
                lambda: asyncio.run(anext(generation.asteps())),
            )
            for ask in asks:
                with pytest.raises(OwnerClosed, match="another process"):
                    ask()
            generation.close()
            owner.close()
            host.close()
        assert owner.run(lambda: 1) == 1, "the child ended nothing"
        generation.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_hang() -> None:
    program = (
        "import os\nfrom localagent.hosts.owner import OwnerClosed, OwnerThread\n"
        "owner = OwnerThread('x')\n"
        "if os.fork() == 0:\n"
        "    try: owner.run(int)\n"
        "    except OwnerClosed: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
        "owner.close()\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stderr


def test_close_ends_the_work_and_refuses_what_comes() -> None:
    owner = OwnerThread("test-close")
    ended: list[threading.Thread] = []
    owner.at_end(lambda: ended.append(threading.current_thread()))
    owner.at_end(fail)
    work = Counting()
    owner.employ(work)
    owner.run(int)
    assert not owner.stopping()
    owner.close()
    owner.close()
    assert owner.stopping()
    assert (work.ended, set(ended)) == (1, work.threads)
    for ask in (lambda: owner.run(fail), lambda: owner.post(fail)):
        with pytest.raises(OwnerClosed):
            ask()


def test_what_others_read_is_freed_after_that() -> None:
    owner = OwnerThread("test-reading")
    freed = threading.Event()
    owner.at_end(freed.set)
    with owner.reading():
        owner.stop()
        assert not freed.wait(0.2)
        with pytest.raises(OwnerClosed), owner.reading():
            fail()
    assert freed.wait(SOON)
    owner.close()
    with pytest.raises(OwnerClosed), owner.reading():
        fail()


def test_close_from_the_thread_itself() -> None:
    owner = OwnerThread("test-inside")
    thread = owner.run(threading.current_thread)
    owner.run(owner.close)
    owner.close()
    assert not thread.is_alive()
    with pytest.raises(OwnerClosed):
        owner.run(fail)


def test_a_dropped_owner_ends() -> None:
    owner = OwnerThread("test-dropped")
    thread = owner.run(threading.current_thread)
    owner.employ(Counting())
    wake = owner.wake
    owner.run(lambda held=owner: held.alive)  # the last call refers to it, as one does that loads a model
    del owner
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
    wake()


def test_nobody_waits_for_an_abandoned_thread() -> None:
    owner = OwnerThread("test-hanging")
    hangs, comes_back, refused = threading.Event(), threading.Event(), SimpleQueue[Exception]()
    ended: list[str] = []
    owner.at_end(lambda: ended.append("end"))

    def ask(function: Callable[[], object]) -> None:
        try:
            owner.run(function)
        except OwnerClosed as error:
            refused.put(error)

    def hang() -> None:
        hangs.set()
        comes_back.wait(SOON)

    asking = [threading.Thread(target=ask, args=(function,)) for function in (hang, fail, fail)]
    asking[0].start()
    assert hangs.wait(SOON)
    for thread in asking[1:]:
        thread.start()
    owner.post(lambda: ended.append("posted"))
    closing = threading.Thread(target=owner.close)
    closing.start()
    assert owner.busy_seconds > 0
    owner.abandon()
    for thread in (*asking, closing):
        thread.join(SOON)
        assert not thread.is_alive()
    assert refused.qsize() == 3
    assert (owner.alive, owner.hangs, ended) == (False, True, [])
    with pytest.raises(OwnerClosed):
        owner.run(fail)
    comes_back.set()
    owner._thread.join(SOON)
    assert (owner.hangs, ended) == (False, ["posted", "end"])


def test_abandoning_a_thread_that_comes_back_meanwhile() -> None:
    for _ in range(50):
        owner = OwnerThread("test-back")
        answered: list[object] = []

        def ask(owner: OwnerThread = owner, answered: list[object] = answered) -> None:
            try:
                while True:
                    owner.run(int)
            except OwnerClosed as error:
                answered.append(error)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        time.sleep(random() / 500)
        owner.abandon()
        for thread in (*asking, owner._thread):
            thread.join(SOON)
            assert not thread.is_alive()
        assert len(answered) == 3


def test_closing_while_others_ask() -> None:
    """No caller may wait for ever, whichever side of the end it falls on."""
    for _ in range(20):
        owner = OwnerThread("test-race")
        answers: list[object] = []

        def ask(owner: OwnerThread = owner, answers: list[object] = answers) -> None:
            try:
                while True:
                    answers.append(owner.run(lambda: 1))
            except OwnerClosed:
                answers.append(None)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        owner.close()
        for thread in threads:
            thread.join(SOON)
            assert not thread.is_alive()
        assert answers.count(None) == 4


# -- generations --------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Speaking:
    """Two lanes that say something for as long as they are asked to."""
    return Speaking(None, lanes=2, context_size=100_000)


@pytest.fixture
def host(engine: Speaking) -> Iterator[EngineHost]:
    with speaking_host(engine) as loaded:
        yield loaded


def start(host: EngineHost, first: int = 1, most: int | None = None) -> EngineGeneration:
    return host.generate(Prompt((first, 2), ""), Sampling(max_tokens=most))


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


def settle(host: EngineHost, engine: Speaking) -> int:
    """How many tokens have been drawn once there come no more."""
    made = -1
    while made != len(engine.log):
        made = len(engine.log)
        for _ in range(2):  # a call comes after a step; only one that did nothing is between two of them
            host._owner.run(int)
    return sum(work == "draw" for work, _ in engine.log)


def wait_until_free(engine: Speaking) -> None:
    """Until no lane draws any more."""
    deadline = time.monotonic() + SOON
    while any(lane.begun for lane in engine.lanes):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_generation_runs_a_little_ahead(host: EngineHost, engine: Speaking) -> None:
    generation = start(host)
    assert settle(host, engine) == AHEAD - 1, "and the progress of the prompt"
    next(generation)
    assert settle(host, engine) == AHEAD + 1
    next(generation)
    assert settle(host, engine) == AHEAD + 2
    generation.close()


def test_calls_are_answered_while_a_generation_runs_and_while_it_rests(host: EngineHost) -> None:
    generation = start(host)
    assert next(generation)
    assert host.detokenize(tuple(b"now")) == b"now"
    assert next(generation)
    generation.close()


def test_a_long_text_is_tokenized_while_a_generation_goes_on(host: EngineHost, engine: Speaking) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly(text: str, special: bool) -> tuple[int, ...]:
        begun.set()
        assert may_end.wait(SOON)
        return tuple(text.encode())

    engine.vocabulary.tokenize = slowly  # type: ignore[method-assign]
    counted: list[int] = []
    long = [{"role": "user", "content": "long"}]
    threads = [
        threading.Thread(target=lambda: counted.append(len(host.render(long).ids))),
        threading.Thread(target=lambda: counted.append(len(host.tokenize("long", False)))),
    ]
    generation = host.generate(Prompt(tuple(b"a"), "a"), Sampling())
    for thread in threads:
        begun.clear()
        thread.start()
        assert begun.wait(SOON)
    assert len([next(generation) for _ in range(2 * AHEAD)]) == 2 * AHEAD
    assert not counted
    generation.close()
    may_end.set()
    for thread in threads:
        thread.join(SOON)
    assert sorted(counted) == [4, 13]


def test_two_generations_read_in_the_wrong_order() -> None:
    """Also where there is one lane, and the first must end before the second one begins."""
    for lanes in (1, 2):
        with speaking_host(Speaking(None, lanes=lanes)) as host:
            first, second = start(host, 1, 50), start(host, 3, 3)
            assert ids(list(second)) == spoken([3, 2], 3)
            assert ids(list(first)) == spoken([1, 2], 50)


def test_generations_of_many_threads_are_begun_in_the_order_of_the_calls() -> None:
    engine = Speaking(None, lanes=3)
    results: dict[int, list[int]] = {}

    def run(number: int, generation: EngineGeneration) -> None:
        results[number] = ids(list(generation))

    with speaking_host(engine) as host:
        threads = [threading.Thread(target=run, args=(n, start(host, n, 20))) for n in range(8)]
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert [history[0] for history in engine.histories] == list(range(8))
    assert results == {n: spoken([n, 2], 20) for n in range(8)}


def test_tasks_and_threads_read_side_by_side() -> None:
    """Fifty of each, on eight lanes: all get what each gets alone, and no task needs a thread."""
    engine = Speaking(None, lanes=8)
    results: dict[int, list[int]] = {}

    def run(number: int) -> None:
        results[number] = ids(list(start(host, number, 20)))

    async def arun(number: int) -> None:
        steps = [step async for group in start(host, number, 20).asteps() for step in group]
        results[number] = ids([step for step in steps if isinstance(step, Token)])

    async def all_tasks() -> None:
        await asyncio.gather(*(arun(number) for number in range(50)))

    with speaking_host(engine) as host:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(50, 100)]
        for thread in threads:
            thread.start()
        asyncio.run(all_tasks())
        for thread in threads:
            thread.join(SOON)
    assert results == {n: spoken([n, 2], 20) for n in range(100)}


def test_the_place_in_the_queue_can_be_read(host: EngineHost, engine: Speaking) -> None:
    running = [start(host) for _ in engine.lanes]
    for each in running:
        next(each)
    waiting = [start(host), start(host)]
    first, second = (each.steps() for each in waiting)
    assert (next(first), next(second)) == (Queued(1), Queued(2))
    waiting[0].close()
    assert next(second) == Queued(1)
    running[0].close()
    assert next(second) == Prefilled(0, 2, 0)
    for each in (running[1], waiting[1]):
        each.close()


def test_close_waits_until_the_engine_has_stopped(host: EngineHost, engine: Speaking) -> None:
    generation = start(host)
    next(generation)
    generation.close()
    generation.close()
    assert engine.ended == 1
    assert generation.finish is not None
    assert generation.finish.stop_reason == "cancelled"
    assert list(generation) == []


def test_a_flag_frees_the_lane_of_a_generation_that_nobody_reads(host: EngineHost, engine: Speaking) -> None:
    flag = threading.Event()
    with contextlib.closing(start(host)):
        settle(host, engine)
        assert host._scheduler.patience is None, "nothing is looked at again without a flag"
    engine.log.clear()
    generation = host.generate(Prompt((1, 2), ""), Sampling(), flag)
    settle(host, engine)
    flag.set()
    wait_until_free(engine)
    assert len(list(generation)) == AHEAD - 1
    assert generation.finish is not None
    assert generation.finish.stop_reason == "cancelled"


def test_a_dropped_generation_is_cancelled(host: EngineHost, engine: Speaking) -> None:
    generation = start(host)
    next(generation)
    del generation
    gc.collect()
    wait_until_free(engine)
    assert engine.ended == 1


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_a_task_that_leaves_cancels_its_generation(host: EngineHost, engine: Speaking, how: str) -> None:
    started = threading.Event()

    async def read(generation: EngineGeneration) -> None:
        steps = generation.asteps()
        async for group in steps:
            started.set()
            if how == "break" and isinstance(group[-1], Token):
                break
        await steps.aclose()  # type: ignore[attr-defined]

    async def run() -> None:
        task = asyncio.create_task(read(start(host)))
        while not started.is_set():
            await asyncio.sleep(0.001)
        if how == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    wait_until_free(engine)
    assert engine.ended == 1


def test_what_was_read_on_an_event_loop_that_is_gone_is_cancelled_when_it_is_dropped(
    host: EngineHost, engine: Speaking
) -> None:
    loop = asyncio.new_event_loop()
    steps = start(host).asteps()
    assert loop.run_until_complete(anext(steps))
    loop.close()
    assert ids(list(start(host, 5, 3))) == spoken([5, 2], 3)
    del steps
    gc.collect()
    wait_until_free(engine)


def test_the_collector_on_the_owner_thread_closes_a_generation(host: EngineHost, engine: Speaking) -> None:
    """As an abandoned turn does: a suspended generator in a cycle, whose `finally` closes its generation."""

    def turn() -> Iterator[Token]:
        generation = start(host)
        try:
            yield from generation
        finally:
            generation.close()

    def abandon() -> None:
        turning = turn()
        next(turning)
        cycle: list[object] = [turning]
        cycle.append(cycle)

    gc.disable()  # so that no other thread collects it first
    try:
        abandon()
        collected = threading.Thread(target=lambda: host._owner.run(gc.collect), daemon=True)
        collected.start()
        collected.join(SOON)
    finally:
        gc.enable()
    assert not collected.is_alive()
    wait_until_free(engine)
    assert engine.ended == 1


def test_a_queued_generation_can_be_closed() -> None:
    with speaking_host(Speaking(None)) as host:
        first, second = start(host, 1, 500), start(host, 3)
        second.close()
        assert second.finish is not None
        assert (second.finish.stop_reason, second.finish.generated) == ("cancelled", 0)
        assert ids(list(first)) == spoken([1, 2], 500)


def test_what_the_engine_raised_arrives_with_its_traceback_and_once() -> None:
    with speaking_host(Speaking(None, failing("draw", 2))) as host:
        generation = start(host)
        next(generation)
        with pytest.raises(EngineFailed) as caught:
            next(generation)
        assert "in works" in "".join(traceback.format_exception(caught.value))
        assert list(generation) == []


def test_closing_the_host_cancels_what_runs_and_what_waits() -> None:
    engine = Speaking(None, context_size=1_000_000)  # it never ends by itself
    host = speaking_host(engine)
    running, waiting = start(host, 1), start(host, 3)
    first = next(running)
    host.close()
    assert ids([first, *running]) == spoken([1, 2], len(engine.lanes[0].ids) - 2 + 1)
    assert list(waiting) == []
    for each in (running, waiting):
        assert each.finish is not None
        assert each.finish.stop_reason == "cancelled"
        each.close()
    with pytest.raises(OwnerClosed):
        start(host)


def test_a_generation_keeps_its_host() -> None:
    engine = Speaking(None, lanes=2)
    host = speaking_host(engine)
    thread = host._owner._thread
    generation = start(host)
    next(generation)
    del host
    gc.collect()
    assert next(generation)
    assert thread.is_alive()
    del generation
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive()
    assert engine.closed == 1


def test_closing_the_host_while_others_read_and_ask() -> None:
    """Nobody waits for ever, and whoever has begun is told how it ended."""
    for _ in range(10):
        host = speaking_host(Speaking(None, lanes=2, context_size=100_000))
        ends: list[object] = []

        def ask(host: EngineHost = host, ends: list[object] = ends) -> None:
            try:
                while True:
                    generation = start(host, 1, 30)
                    list(generation)
                    assert generation.finish is not None
            except OwnerClosed:
                ends.append(None)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        host.close()
        for thread in threads:
            thread.join(SOON)
            assert not thread.is_alive()
        assert len(ends) == 4


def test_a_chunk_under_way_is_told_that_the_host_is_closed() -> None:
    """An engine that asks while it computes need not compute to the end."""
    computing, asked = threading.Event(), threading.Event()

    class Patient(SpeakingLane):
        def evaluate(self, ids, cancelled):
            computing.set()
            while not cancelled():
                time.sleep(0.001)
            asked.set()
            return False

    engine = Speaking(None)
    engine.lanes[0].__class__ = Patient
    host = speaking_host(engine)
    generation = start(host)
    assert computing.wait(SOON)
    host.close()
    assert asked.is_set()
    assert list(generation) == []


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise SystemExit(3)",
        "1 / 0",
        "generation = None",
        "t.start()",
        "waiting = host.generate(prompt, Sampling())",
    ],
)
def test_the_interpreter_exits_with_a_generation_open(ending: str) -> None:
    program = (
        "import threading\n"
        "from localagent.hosts.protocol import Prompt\n"
        "from localagent.hosts.sampling import Sampling\n"
        "from tests.hosts.speaking import Speaking, speaking_host\n"
        "host = speaking_host(Speaking(None, context_size=10**9)); host._owner.at_end(lambda: print('freed', flush=True))\n"
        "prompt = Prompt((1, 2), '')\n"
        "generation = host.generate(prompt, Sampling()); next(generation)\n"
        "t = threading.Thread(target=lambda: list(generation))\n" + ending
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SOON, check=False, cwd=ROOT
    )
    assert done.stdout == "freed\n", done.stderr
    assert done.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(ending, 0)


# -- a thread that breaks --------------------------------------------------------------------------------


def test_a_thread_that_breaks_answers_everybody_first() -> None:
    owner = OwnerThread("test-owner")
    work, ended, begin = Counting(0), [], threading.Event()
    owner.employ(work)
    owner.at_end(lambda: ended.append(1))

    def leave() -> None:
        begin.wait(SOON)
        raise SystemExit

    errors: list[BaseException] = []

    def ask() -> None:
        try:
            owner.run(lambda: 1)
        except OwnerClosed as error:
            errors.append(error)

    owner.post(leave)
    callers = [threading.Thread(target=ask) for _ in range(5)]
    for caller in callers:
        caller.start()
    time.sleep(0.1)
    assert owner.alive
    begin.set()
    for caller in callers:
        caller.join(SOON)
    assert len(errors) == 5
    assert [type(error) for error in work.errors] == [EngineFailed]
    assert (work.ended, ended) == (1, [1])
    assert not owner.alive
    with pytest.raises(OwnerClosed):
        owner.run(lambda: 1)
    owner.close()


def test_a_step_that_ends_the_thread_is_an_error_for_the_readers() -> None:
    """SystemExit itself would end the reader's thread, too."""
    host = speaking_host(Speaking(None, failing("step", 20, error=SystemExit)))  # type: ignore[arg-type]
    generations = [host.generate(Prompt((1, 2, 3), ""), Sampling()) for _ in range(2)]
    for generation in generations:
        with pytest.raises(EngineFailed, match="SystemExit"):
            for _ in generation:
                pass
    assert not host.alive
    host.close()


def test_a_thread_knows_how_long_it_has_been_busy(owner: OwnerThread) -> None:
    owner.run(lambda: None)
    while owner.busy_seconds:
        time.sleep(0.001)
    begin, begun = threading.Event(), threading.Event()
    began = time.monotonic()
    owner.post(lambda: (begun.set(), begin.wait(SOON)))
    assert begun.wait(SOON)
    time.sleep(0.2)
    assert 0.2 <= owner.busy_seconds < time.monotonic() - began
    begin.set()
