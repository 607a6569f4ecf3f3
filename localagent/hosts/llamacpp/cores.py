"""How the contexts of one process share the processor.

Every thread that calls OpenMP has a team of its own. As soon as all teams together have more threads than
there are cores, libgomp lets those that wait for each other sleep at once instead of waiting in a loop, and
every model runs at a third of its speed, also where only one of them computes. So contexts that are at work
at the same time divide the cores among them, and one that rests gives its team up. How many threads compute
a number does not change it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

_SOFT = 1  # omp_pause_soft: threads are made again when they are needed


class Cores:
    """The cores of this process, and who computes on them. Any thread may call."""

    def __init__(self, count: int | None = None) -> None:
        """`count`: by default as many as the process may use."""
        self._count = count
        self._lock = threading.Lock()
        self._wanted: dict[int, int] = {}
        self.changes = 0
        """Grows whenever the shares change."""

    def enter(self, who: int, wanted: int) -> None:
        """`who` begins to compute; alone it would use `wanted` threads."""
        with self._lock:
            self._wanted[who] = wanted
            self.changes += 1

    def leave(self, who: int) -> None:
        """`who` computes nothing for a while."""
        with self._lock:
            if self._wanted.pop(who, None) is not None:
                self.changes += 1

    def share(self, who: int) -> int:
        """How many threads `who` may use now, which has entered."""
        with self._lock:
            wanted, together = self._wanted[who], sum(self._wanted.values())
            count = self._count or available_cores()
            if together <= count or len(self._wanted) == 1:
                return wanted
            return max(1, wanted * count // together)


class Team:
    """The threads of one context, whose owner thread alone calls this."""

    def __init__(self, native: Any, context: Any, threads: int, cores: Cores) -> None:
        self._native = native
        self._context = context
        self._threads = threads
        self._cores = cores
        self._working = False
        self._seen = -1
        self._pause: Callable[[int], int] | None = getattr(native._lib, "omp_pause_resource_all", None)

    def work(self) -> None:
        """A computation follows: have it run on as many threads as there are cores for."""
        if not self._working:
            self._working = True
            self._cores.enter(id(self), self._threads)
        if self._seen != self._cores.changes:
            self._seen = self._cores.changes
            threads = self._cores.share(id(self))
            self._native.llama_set_n_threads(self._context, threads, threads)

    def rest(self) -> None:
        """Nothing is computed for a while: the others may have the cores."""
        if not self._working:
            return
        self._working = False
        self._cores.leave(id(self))
        if self._pause is not None and self._threads > 1:
            self._pause(_SOFT)


def available_cores() -> int:
    """The processors that this process may run on, as libgomp counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CORES = Cores()
