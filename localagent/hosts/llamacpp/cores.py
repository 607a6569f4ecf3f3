"""How the contexts of one process share the processor.

Every thread that calls OpenMP has a team of its own. As soon as all teams together have more threads than
there are cores, libgomp lets those that wait for each other sleep at once instead of waiting in a loop, and
every model runs at a third of its speed, also where only one of them computes. So contexts that are at work
at the same time divide the cores among them, and one that rests gives its team up. Other programs are what
`pace` looks at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from localagent.hosts.llamacpp.pace import Others, Pace

_PROMPT = 32  # tokens in one computation; with fewer it draws
_SOFT = 1  # omp_pause_soft: threads are made again when they are needed


class Cores:
    """The cores of this process, and who computes on them. Any thread may call."""

    def __init__(self, count: int | None = None) -> None:
        """`count`: by default as many as the process may use."""
        self._count = count
        self._lock = threading.Lock()
        self._wanted: dict[int, int] = {}

    def enter(self, who: int, wanted: int) -> None:
        """`who` begins to compute; alone it would use `wanted` threads."""
        with self._lock:
            self._wanted[who] = wanted

    def leave(self, who: int) -> None:
        """`who` computes nothing for a while."""
        with self._lock:
            self._wanted.pop(who, None)

    def share(self, who: int) -> int:
        """How many threads `who`, which has entered, may use now."""
        with self._lock:
            wanted, together = self._wanted[who], sum(self._wanted.values())
        if together == wanted or together <= (count := self._count or available_cores()):
            return wanted
        return max(1, wanted * count // together)


class Team:
    """The threads of one context, whose owner thread alone calls this."""

    def __init__(
        self, native: Any, context: Any, threads: int, cores: Cores, *, adapts: bool = False
    ) -> None:
        """`threads`: how many compute when nothing else does. `adapts`: fewer beside busy programs."""
        self._native = native
        self._context = context
        self._most = threads
        self._cores = cores
        self._working = False
        self._in_force = 0
        self._paces: tuple[Pace, Pace] | None = None
        if adapts and threads > 1:
            with suppress(OSError, RuntimeError):  # some sandboxes hide what others compute
                self._paces = Pace(threads, Others().free_cores), Pace(threads, Others().free_cores)
        self._pause: Callable[[int], int] | None = getattr(native._lib, "omp_pause_resource_all", None)

    @property
    def threads(self) -> int:
        """How many computed last, or would compute now."""
        return self._in_force or self._most

    def compute(self, tokens: int, decode: Callable[[], int]) -> int:
        """Call `decode`, which evaluates so many tokens, with as many threads as there are cores for. Returns
        what it returns.
        """
        if not self._working:
            self._working = True
            self._cores.enter(id(self), self._most)
        pace = self._paces and self._paces[tokens >= _PROMPT]
        threads = min(self._cores.share(id(self)), pace.threads if pace else self._most)
        if threads != self._in_force:
            self._in_force = threads
            self._native.llama_set_n_threads(self._context, threads, threads)
        started = perf_counter()
        code = decode()
        if pace and code == 0:
            pace.took(perf_counter() - started, tokens)
        return code

    def rest(self) -> None:
        """Nothing is computed for a while: the others may have the cores."""
        if not self._working:
            return
        self._working = False
        self._cores.leave(id(self))
        if self._pause is not None and self._in_force > 1:
            self._pause(_SOFT)


def available_cores() -> int:
    """The processors that this process may run on, as libgomp counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CORES = Cores()
