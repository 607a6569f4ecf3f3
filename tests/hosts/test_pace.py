"""The number of threads follows what else the machine does: on machines that are simulated, and on this one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.hosts.llamacpp.cores import Cores, Team, available_cores
from localagent.hosts.llamacpp.engine import LlamaCppEngine, Options
from localagent.hosts.llamacpp.pace import PERIOD, Others, Pace
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF

SLICE = 0.003
BARRIERS = 0.0015
"""Seconds that the barriers of one token take where several threads compute."""


@dataclass
class Machine:
    """Cores of some speeds, on which `busy` programs compute as well. Threads that share their core with one
    get on in the slices of time in which all of them have it.
    """

    speeds: Sequence[float]
    work: float
    seed: int = 1

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.now = self.left = 0.0
        self.seen = (0.0, 0.0)

    def shared(self, threads: int, busy: int) -> tuple[int, float]:
        """How many threads share their core, and the part of it that each has."""
        cores = len(self.speeds)
        if threads + busy <= cores:
            return 0, 1.0
        if busy >= cores or threads == 1:
            return threads, cores / (threads + busy)
        return min(threads, threads + busy - cores), 0.5

    def step(self, threads: int, busy: int) -> float:
        """Seconds that a token takes."""
        speeds = self.speeds[:threads]
        left = self.work / ((sum(speeds) + threads * min(speeds)) / 2) + BARRIERS * (threads > 1)
        sharing, part = self.shared(threads, busy)
        began, slice_left = self.now, self.chance.random() * SLICE
        while left > 0:
            if all(self.chance.random() < part for _ in range(sharing)):
                used = min(slice_left, left)
                left -= used
                self.now += used
            else:
                self.now += slice_left
            slice_left = SLICE
        seconds = self.now - began
        theirs = min(busy, len(self.speeds) - threads + sharing * (1 - part))
        self.left += seconds * (len(self.speeds) - theirs)
        return seconds

    def best(self, busy: int) -> float:
        """Seconds of a token with the best number of threads."""
        trial = Machine(self.speeds, self.work, self.seed + 1)
        times = []
        for threads in range(1, len(self.speeds) + 1):
            times.append(sum(trial.step(threads, busy) for _ in range(60)) / 60)
        return min(times)

    def free(self) -> int:
        """See `Pace`."""
        (now, left), self.seen = self.seen, (self.now, self.left)
        return int((self.left - left) / (self.now - now) + 0.2)


@pytest.mark.parametrize("work", [0.0185, 0.15], ids=["135M", "1B"])
@pytest.mark.parametrize("seed", [1, 2])
def test_two_cores_are_used_as_well_as_by_the_best_number(work: float, seed: int) -> None:
    """Ten seconds beside each number of busy programs: 95 percent of the best after a second, at every load."""
    machine = Machine([1, 1], work, seed)
    pace = Pace(2, machine.free, lambda: machine.now)
    for busy in (0, 1, 0, 2, 4, 0, 3, 8, 1):
        began, settled, steps = machine.now, 0.0, 0
        while machine.now < began + 10:
            seconds = machine.step(pace.threads, busy)
            pace.took(seconds, kind=1)
            assert seconds < 1.5
            if machine.now > began + 1:
                settled += seconds
                steps += 1
        assert machine.best(busy) / (settled / steps) > (0.93 if work > 0.1 else 0.95), busy


@pytest.mark.parametrize(
    ("speeds", "loads"),
    [([1] * 4, (0, 1, 0, 2, 4, 0, 3)), ([1] * 8, (0, 1, 0, 2, 4, 0)), ([1] * 4 + [0.5] * 4, (0, 1, 0, 2, 0))],
    ids=["4", "8", "4 fast and 4 slow"],
)
def test_more_cores_are_shared_with_others(speeds: list[float], loads: Sequence[int]) -> None:
    machine = Machine(speeds, 0.02)
    pace = Pace(len(speeds), machine.free, lambda: machine.now)
    for busy in loads:
        began, settled, steps = machine.now, 0.0, 0
        while machine.now < began + 10:
            seconds = machine.step(pace.threads, busy)
            pace.took(seconds, kind=1)
            if machine.now > began + 1:
                settled += seconds
                steps += 1
        assert machine.best(busy) / (settled / steps) > 0.9, busy


def walk(pace: Pace, clock: list[float], seconds: float, steps: int, kind: int = 1) -> list[int]:
    """The threads after each of some steps."""
    threads = []
    for _ in range(steps):
        clock[0] += seconds
        pace.took(seconds, kind)
        threads.append(pace.threads)
    return threads


def test_a_change_that_slows_down_is_taken_back_and_not_tried_again_at_once() -> None:
    """As where the others compute on cores that this process does not use."""
    clock, free = [0.0], [1]
    pace = Pace(4, lambda: free[0], lambda: clock[0])
    assert walk(pace, clock, 0.05, 8)[-1] == 1  # after two periods
    assert walk(pace, clock, 0.09, 1) == [4]
    assert set(walk(pace, clock, 0.05, 38)) == {4}
    assert 1 in walk(pace, clock, 0.05, 6)  # two seconds later
    assert walk(pace, clock, 0.09, 1) == [4]
    free[0] = 2  # something has changed: at once
    assert walk(pace, clock, 0.05, 8)[-1] == 2
    assert walk(pace, clock, 0.051, 4)[-1] == 4  # as slow as that costs little, and shows in the end
    free[0] = 9
    assert set(walk(pace, clock, 0.05, 20)) == {4}


def test_steps_of_different_kinds_are_not_compared() -> None:
    clock = [0.0]
    pace = Pace(2, lambda: 1, lambda: clock[0])
    walk(pace, clock, 0.05, 8)
    assert pace.threads == 1
    assert set(walk(pace, clock, 9.0, 5, kind=2)) == {1}


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many, for as long as this lasts."""
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(program.kill)
        yield


def test_what_others_compute_is_seen_and_what_this_process_computes_is_not() -> None:
    cores = available_cores()
    with busy_programs(cores):
        time.sleep(0.2)
        others, end = Others(), time.perf_counter() + 1
        while time.perf_counter() < end:  # on one core of this process's own
            pass
        assert others.free_cores() < max(2, cores)


def test_a_team_that_does_not_adapt_has_the_threads_that_were_asked_for() -> None:
    told: list[int] = []
    native = SimpleNamespace(
        _lib=SimpleNamespace(), llama_set_n_threads=lambda _, threads, __: told.append(threads)
    )
    team = Team(native, None, 2, Cores(4))
    with busy_programs(4):
        end = time.perf_counter() + 4 * PERIOD
        while time.perf_counter() < end:
            team.compute(1, lambda: time.sleep(0.01) or 0)
    assert told == [2]


def test_where_nobody_tells_what_others_compute_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(percpu: bool) -> None:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr("psutil.cpu_times", hidden)
    native = SimpleNamespace(_lib=SimpleNamespace(), llama_set_n_threads=lambda *_: None)
    team = Team(native, None, 2, Cores(4), adapts=True)
    assert team.compute(1, lambda: 0) == 0
    assert team.threads == 2


@pytest.mark.engine
@pytest.mark.parametrize("flash", [False, True], ids=["plain", "flash"])
@pytest.mark.parametrize("model", ["nano", "smollm2"])
def test_the_number_of_threads_changes_no_logit(model: str, flash: bool, gguf: Path) -> None:
    """Bit for bit, with 1, 2 and 4 threads; but with flash attention only below 512 cells: see `pace`."""
    path = GGUF if model == "nano" else gguf
    logits = []
    for threads in (1, 2, 4):
        engine = LlamaCppEngine(path, Options(512, threads, flash_attention=flash, chunk=64))
        try:
            lane = engine.lanes[0]
            assert lane.evaluate(range(10, 74), lambda: False)
            assert lane.evaluate(range(74, 90), lambda: False)
            lane.begin(Sampling(temperature=0), ())
            drawn = [engine.advance([lane])[0] for _ in range(20)]
            logits.append((drawn, lane.logprobs().tobytes()))
        finally:
            engine.close()
    assert logits[0] == logits[1] == logits[2]
