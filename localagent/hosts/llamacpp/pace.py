"""How many threads compute, while other programs want the processor, too.

Threads wait for each other some hundred times in every token. So as soon as one of them shares its core, all
of them wait for that one: on two cores beside one busy program two threads write half as fast as one. How
much of the processor the others take is what the operating system counts; whether fewer threads are faster
then is what the steps say. Where a change slows them down, it is taken back.

How many threads compute does not change what they compute, but for one case: flash attention divides the
cells of a lane that is alone among the threads once there are 512 of them, and so adds in another order.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Final

PERIOD: Final = 0.15
"""Seconds for which steps are timed before they are judged, or `_LONG` if these are fewer than `_STEPS`."""
_STEPS = 3
_LONG = 0.6
_LOSS = 0.5  # of a step: a change that has cost so much is taken back before its period ends
_PATIENCE = 2.0  # seconds before a change that was no gain is tried again, if the others compute as before
_SLIGHT = 0.2  # of a core's time: others may take that much of it, and using it is still a gain


class Pace:
    """The number of threads for one kind of work. Its owner calls `took` after every step, on one thread."""

    def __init__(
        self, most: int, free: Callable[[], int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`most`: threads that are used if nothing else computes. `free`: the cores for which nobody else
        has had a use since it was called last.
        """
        self.threads = most
        self._most = most
        self._free = free
        self._clock = clock
        self._kind: object = None
        self._wanted = most
        self._before: tuple[int, float] | None = None  # while a change is tried: threads, seconds of a step
        self._patient_until = 0.0
        self._begin()

    def took(self, seconds: float, kind: object) -> None:
        """A step of this kind took so long. Only steps of one kind are compared."""
        if kind != self._kind:  # what is being tried stays, unjudged
            self._kind, self._before = kind, None
            self._steps, self._seconds = 0, 0.0
        self._steps += 1
        self._seconds += seconds
        now = self._clock()
        over = now >= self._began + (PERIOD if self._steps >= _STEPS else _LONG)
        if self._before is not None:
            threads, step = self._before
            if self._seconds / step - self._steps > (0 if over else _LOSS):
                self.threads, self._before = threads, None
                self._patient_until = now + _PATIENCE
                self._begin()
                return
        if over:
            self._look(now)

    def _look(self, now: float) -> None:
        """A period is over. A change is wanted when two in a row found the same cores free: a period in
        which another program came or left has steps of both kinds.
        """
        wanted, self._wanted = self._wanted, min(max(1, self._free()), self._most)
        self._before = None
        if wanted != self._wanted:
            self._patient_until = now
        elif wanted != self.threads and now >= self._patient_until:
            self._before = self.threads, self._seconds / self._steps
            self.threads = wanted
        self._begin()

    def _begin(self) -> None:
        self._steps, self._seconds, self._began = 0, 0.0, self._clock()


class Others:
    """The processor's time that other programs leave, from the operating system's counts."""

    def __init__(self) -> None:
        self._seen = _left()

    def free_cores(self) -> int:
        """The cores that nobody else has used since the last call, but for a little."""
        (before, left_before), self._seen = self._seen, _left()
        now, left = self._seen
        return math.floor((left - left_before) / max(now - before, 1e-3) + _SLIGHT)


def _left() -> tuple[float, float]:
    """Now, and the seconds for which cores of this process had nothing to do, or worked for it. Programs that
    have said that they are less important (nice) give way, so their time is left, too.
    """
    import psutil  # type: ignore[import-untyped]

    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        cores = [cores[number] for number in os.sched_getaffinity(0) if number < len(cores)]
    idle = sum(getattr(core, name, 0.0) for core in cores for name in ("idle", "iowait", "nice"))
    return time.perf_counter(), idle + time.process_time()
