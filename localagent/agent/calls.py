"""Running the approved calls of a turn, beside each other where they may.

Knows tools, threads and time. Does not know models or histories. A running call has a thread of its own,
which keeps no program from ending; what was written as a coroutine is awaited there. At most `most` calls run
at once, and the others wait in their order. The places are the batch's own, so that an agent within a tool
never waits for the place that the tool holds; a call that is given up leaves its place to the next. Contract:
each slot has a result in the end, whatever a tool does: raise, hang, print, or return what nobody can read.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from localagent.agent.concurrency import GRACE, POLL, Cancel, Cancelled, in_thread
from localagent.agent.events import ToolEnded, ToolProgress, ToolStarted
from localagent.agent.executing import STOPPED
from localagent.agent.gate import Slot
from localagent.messages import ToolCallPart, ToolResultPart
from localagent.tools.results import as_error

NOT_RUN = "Not run: the run was stopped before this call."
TIMED_OUT = "No result: the tool did not answer within {:g} seconds. It may still be at work."

Execute = Callable[[ToolCallPart, threading.Event, Callable[[str, float | None], None]], ToolResultPart]
"""Runs one call in the present thread: the call, when to give up, and where to tell of progress."""


@dataclass(slots=True, eq=False)
class _Running:
    slot: Slot
    cancel: threading.Event
    """Set when nobody waits for the result any more."""
    started: float
    deadline: float | None
    """On the clock of `monotonic`; None: no time limit."""
    finished: bool = False
    """Its result is on the way, however late whoever follows the run comes to hear of it."""


@dataclass(slots=True)
class Batch:
    """The calls of one turn while they run."""

    execute: Execute
    cancel: Cancel
    timeout: float | None
    """Seconds for tools that say nothing of their own."""
    sequential: bool = False
    most: int = 32
    """Calls at once."""
    _told: queue.SimpleQueue[tuple[_Running, ToolProgress | ToolResultPart]] = field(
        default_factory=queue.SimpleQueue
    )

    def run(self, slots: Sequence[Slot]) -> Iterator[ToolStarted | ToolProgress | ToolEnded]:
        """Run every slot that has no result yet, and tell of all results."""
        for slot in slots:
            if slot.result is not None:
                yield ToolEnded(slot.asked, slot.result)
        for group in self._groups([slot for slot in slots if slot.result is None]):
            yield from self._run_group(group)

    def _groups(self, slots: Sequence[Slot]) -> Iterator[list[Slot]]:
        """The slots in their order; those of a group may run beside each other."""
        group: list[Slot] = []
        for slot in slots:
            if self.sequential or (slot.tool is not None and slot.tool.sequential):
                if group:
                    yield group
                yield [slot]
                group = []
            else:
                group.append(slot)
        if group:
            yield group

    def _run_group(self, group: Sequence[Slot]) -> Iterator[ToolStarted | ToolProgress | ToolEnded]:
        waiting, running = deque(group), list[_Running]()
        give_up: float | None = None
        try:
            while waiting or running:
                if give_up is None and self.cancel.is_set():
                    give_up = monotonic() + GRACE
                    for each in running:
                        each.cancel.set()
                yield from self._begin(waiting, running)
                if running:
                    yield from self._next(running)
                    yield from self._expired(running, give_up)
        finally:
            for late in running:  # nobody waits for these any more
                late.cancel.set()

    def _begin(self, waiting: deque[Slot], running: list[_Running]) -> Iterator[ToolStarted | ToolEnded]:
        """Start the calls that there is room for; when the run was stopped, refuse all that wait."""
        while waiting and (len(running) < self.most or self.cancel.is_set()):
            slot = waiting.popleft()
            if not self.cancel.is_set():
                yield ToolStarted(slot.call)
            if self.cancel.is_set():  # perhaps by whoever was just told of it
                slot.refuse(NOT_RUN)
                assert slot.result is not None
                yield ToolEnded(slot.call, slot.result)
            else:
                running.append(self._start(slot))

    def _start(self, slot: Slot) -> _Running:
        limit = self.timeout
        if slot.tool is not None and slot.tool.timeout is not None:
            limit = slot.tool.timeout
        now = monotonic()
        slot.started = True
        running = _Running(slot, threading.Event(), now, None if limit is None else now + limit)
        in_thread(partial(self._work, running), f"localagent-{slot.call.name:.20}")
        return running

    def _work(self, running: _Running) -> None:
        call = running.slot.call

        def report(text: str, share: float | None) -> None:
            if not running.cancel.is_set():  # else nobody listens any more
                self._told.put((running, ToolProgress(call, text, share)))

        try:
            result = self.execute(call, running.cancel, report)
        except Cancelled:
            result = call.result(STOPPED, is_error=True)
        except BaseException as error:  # of a hook around the tool
            result = as_error(call, error)
        running.finished = True
        self._told.put((running, result))

    def _next(self, running: list[_Running]) -> Iterator[ToolProgress | ToolEnded]:
        """What the tools tell next, if they do so soon."""
        try:
            teller, told = self._told.get(timeout=self._patience(running))
        except queue.Empty:
            return
        if teller not in running:
            return  # too late
        if isinstance(told, ToolProgress):
            yield told
            return
        running.remove(teller)
        yield self._ended(teller, told)

    def _patience(self, running: Sequence[_Running]) -> float:
        now = monotonic()
        return min([POLL, *(max(0.0, each.deadline - now) for each in running if each.deadline is not None)])

    def _expired(self, running: list[_Running], give_up: float | None) -> Iterator[ToolEnded]:
        """Give up on the calls whose time is over."""
        now = monotonic()
        for late in [each for each in running if not each.finished]:
            if give_up is not None and now >= give_up:
                text = STOPPED
            elif late.deadline is not None and now >= late.deadline:
                text = TIMED_OUT.format(late.deadline - late.started)
            else:
                continue
            late.cancel.set()
            running.remove(late)
            yield self._ended(late, late.slot.call.result(text, is_error=True))

    def _ended(self, running: _Running, result: ToolResultPart) -> ToolEnded:
        seconds = monotonic() - running.started
        return ToolEnded(running.slot.call, running.slot.finish(result), seconds)


def abandon(slots: Sequence[Slot]) -> None:
    """Give a result to every call that has none, because nobody follows the run any more."""
    for slot in slots:
        if slot.result is None:
            slot.refuse(STOPPED if slot.started else NOT_RUN)
