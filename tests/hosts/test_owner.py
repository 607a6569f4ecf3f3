"""The owner thread: one thread, in order, cancelled when nobody listens, and never in the way of the exit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator

import pytest

from localagent.hosts.owner import OwnerClosed, OwnerThread, Stream


@pytest.fixture
def owner() -> Iterator[OwnerThread]:
    made = OwnerThread("test-owner")
    yield made
    made.close()


class Counter:
    """A stream of numbers that says how far it came and when it ended."""

    def __init__(self, count: int = 10**9) -> None:
        self.count = count
        self.made = 0
        self.thread: threading.Thread | None = None
        self.ended = threading.Event()

    def __call__(self, cancelled: Callable[[], bool]) -> Generator[int, None, str]:
        self.thread = threading.current_thread()
        try:
            while self.made < self.count:
                if cancelled():
                    return "cancelled"
                self.made += 1
                yield self.made
            return "done"
        finally:
            self.ended.set()


def settle(counter: Counter) -> int:
    """How far the counter came once it no longer moves."""
    made = -1
    while made != counter.made:
        made = counter.made
        time.sleep(0.05)
    return made


def test_everything_runs_on_the_one_thread(owner: OwnerThread) -> None:
    counter = Counter(5)
    stream = owner.stream(counter)
    assert list(stream) == [1, 2, 3, 4, 5]
    assert stream.result == "done"
    assert list(stream) == []
    assert counter.thread is owner.run(threading.current_thread) is not threading.current_thread()
    assert not counter.thread.daemon
    assert owner.run(lambda: owner.run(lambda: 3)) == 3


def test_a_stream_runs_a_little_ahead(owner: OwnerThread) -> None:
    counter = Counter()
    stream = owner.stream(counter)
    assert settle(counter) == 4
    assert next(stream) == 1
    assert settle(counter) == 5
    stream.close()


def test_calls_are_made_between_items(owner: OwnerThread) -> None:
    stream = owner.stream(Counter())
    assert next(stream) == 1
    assert owner.run(lambda: "now") == "now"
    assert next(stream) == 2
    stream.close()


def test_two_streams_consumed_in_the_wrong_order(owner: OwnerThread) -> None:
    first, second = owner.stream(Counter(50)), owner.stream(Counter(3))
    assert list(second) == [1, 2, 3]
    assert len(list(first)) == 50


def test_streams_of_many_threads_keep_their_order(owner: OwnerThread) -> None:
    started: list[int] = []
    results: dict[int, list[int]] = {}

    def run(number: int, stream: Stream[int, str]) -> None:
        results[number] = list(stream)

    def numbered(number: int) -> Callable[[Callable[[], bool]], Generator[int, None, str]]:
        def start(cancelled: Callable[[], bool]) -> Generator[int, None, str]:
            started.append(number)
            return Counter(20)(cancelled)

        return start

    threads = [threading.Thread(target=run, args=(n, owner.stream(numbered(n)))) for n in range(8)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(10)
    assert started == list(range(8))
    assert results == {n: list(range(1, 21)) for n in range(8)}


def test_close_waits_for_the_generator(owner: OwnerThread) -> None:
    counter = Counter()
    stream = owner.stream(counter)
    next(stream)
    stream.close()
    stream.close()
    assert counter.ended.is_set()
    assert stream.result == "cancelled"
    assert list(stream) == []


def test_a_dropped_stream_is_cancelled(owner: OwnerThread) -> None:
    counter = Counter()
    stream = owner.stream(counter)
    next(stream)
    del stream
    gc.collect()
    assert counter.ended.wait(5)
    assert owner.run(lambda: 1) == 1


def test_the_collector_on_the_owner_thread_closes_a_stream(owner: OwnerThread) -> None:
    """As an abandoned turn does: a suspended generator in a cycle, whose `finally` closes its stream."""
    counter = Counter()

    def turn() -> Iterator[int]:
        stream = owner.stream(counter)
        try:
            yield from stream
        finally:
            stream.close()

    def abandon() -> None:
        turning = turn()
        next(turning)
        cycle: list[object] = [turning]
        cycle.append(cycle)

    gc.disable()  # so that no other thread collects it first
    try:
        abandon()
        collected = threading.Thread(target=lambda: owner.run(gc.collect), daemon=True)
        collected.start()
        collected.join(10)
    finally:
        gc.enable()
    stuck = collected.is_alive()
    if stuck:
        owner._worker.inbox.put(None)
        counter.count = 0
    assert not stuck
    assert counter.ended.wait(5)


def test_after_a_fork_the_child_is_refused(owner: OwnerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = owner.stream(Counter())
    next(stream)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        for ask in (lambda: owner.run(fail), lambda: owner.stream(Counter()), lambda: next(stream)):
            with pytest.raises(OwnerClosed, match="another process"):
                ask()
        stream.close()
        owner.close()
    assert owner.run(lambda: 1) == 1, "the child ended nothing"
    stream.close()


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def test_a_queued_stream_can_be_closed(owner: OwnerThread) -> None:
    first, second = owner.stream(Counter(1000)), owner.stream(Counter())
    second.close()
    assert second.result == "cancelled"
    assert len(list(first)) == 1000


def fail() -> int:
    raise ZeroDivisionError("as asked")


def test_exceptions_arrive_with_their_traceback(owner: OwnerThread) -> None:
    def start(_: Callable[[], bool]) -> Generator[int, None, None]:
        yield 1
        yield fail()

    stream = owner.stream(start)
    assert next(stream) == 1
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert "in fail" in "".join(traceback.format_exception(caught.value))
    assert list(stream) == []
    with pytest.raises(ZeroDivisionError):
        owner.run(fail)
    assert owner.run(lambda: 2) == 2


def test_close_cancels_what_runs_and_refuses_what_comes() -> None:
    owner = OwnerThread("test-close")
    ended: list[threading.Thread] = []
    owner.at_end(lambda: ended.append(threading.current_thread()))
    owner.at_end(fail)
    counter = Counter()
    running, waiting = owner.stream(counter), owner.stream(Counter())
    next(running)
    owner.close()
    owner.close()
    assert ended == [counter.thread]
    list(running)
    assert running.result == "cancelled"
    assert (list(waiting), waiting.result) == ([], "cancelled")
    running.close()
    with pytest.raises(OwnerClosed):
        owner.run(fail)
    with pytest.raises(OwnerClosed):
        owner.stream(Counter())


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
    stream = owner.stream(Counter())
    next(stream)
    del owner
    gc.collect()
    assert thread.is_alive(), "a stream keeps its owner"
    del stream
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


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
            thread.join(5)
            assert not thread.is_alive()
        assert answers.count(None) == 4


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "stream = None", "t.start()"])
def test_the_interpreter_exits_with_an_owner_open(ending: str) -> None:
    program = (
        "import itertools, threading\n"
        "from localagent.hosts.owner import OwnerThread\n"
        "def count(cancelled):\n"
        "    for n in itertools.count():\n"
        "        if cancelled(): return\n"
        "        yield n\n"
        "owner = OwnerThread('x'); owner.at_end(lambda: print('freed', flush=True))\n"
        "stream = owner.stream(count); next(stream)\n"
        "t = threading.Thread(target=lambda: list(stream))\n" + ending
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "freed\n", done.stderr
    assert done.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(ending, 0)
