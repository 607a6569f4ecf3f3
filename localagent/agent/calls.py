"""Running the approved calls of a turn, beside each other where they may.

A running call has a thread of its own; what was written as a coroutine is awaited from there. A turn has its
own places for running calls, so that an agent inside a tool never waits for the place that the tool holds.
Each slot has a result in the end, whatever its tool does: raise, hang, exit, or return what cannot be told.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from localagent.agent.approvals import Approvals, denial
from localagent.agent.concurrency import GRACE, Coroutines, in_thread
from localagent.agent.events import ToolEnded, ToolProgress, ToolStarted
from localagent.agent.middleware import Hooks
from localagent.agent.recovery import with_reasons
from localagent.agent.slot import NOT_RUN, STOPPED, Slot
from localagent.hosts.protocol import POLL, Cancel, Cancelled
from localagent.messages import ToolCallPart, ToolResultPart
from localagent.tools import Report, Tool, ToolContext, ToolSet
from localagent.tools.results import as_error, as_result
from localagent.tools.tool import Bound

NO_THREAD = "Not run: the system has no thread left for this call. Make it again if it is still needed."
TIMED_OUT = "No result: the tool did not answer within {:g} seconds. It may still be at work."

Execute = Callable[[Slot, threading.Event, Report], ToolResultPart]
"""Runs one call in the present thread: its slot, when to give up, and where to tell of progress."""


# -- one call, in its thread ------------------------------------------------------------------------------


def run_call(
    slot: Slot,
    context: ToolContext,
    tools: ToolSet,
    approvals: Approvals,
    hooks: Hooks,
    coroutines: Coroutines,
) -> ToolResultPart:
    """Bind the call's arguments, and run it with the middleware around it.

    Middleware sees only calls whose arguments fit. It may proceed with another call, or more than once.
    """
    own = slot.tool
    assert own is not None, "calls of unknown tools have their results already"
    bound = _bind(own, slot.call, context)
    if isinstance(bound, ToolResultPart):
        return bound
    once = iter([bound])  # what is bound runs once; a hook that proceeds again has the call bound again

    def proceed(call: ToolCallPart) -> ToolResultPart:
        ready: Bound | ToolResultPart | None
        if call is slot.call:
            if (ready := next(once, None)) is None:
                ready = _bind(own, call, context)
        # What the rules see is what runs, even if the hook goes on to change what it made.
        elif (tool := tools.find((call := call.fixed()).name)) is None:
            return call.result(tools.unknown(call.name), is_error=True)
        elif (ruled := approvals.denied(tool, call)) is not None:
            return call.result(denial(ruled), is_error=True)
        else:
            ready = _bind(tool, call, context)
        return ready if isinstance(ready, ToolResultPart) else _execute(ready, call, context, coroutines)

    return hooks.around_tool(proceed, context.cancel)(slot.call)


def _bind(tool: Tool, call: ToolCallPart, context: ToolContext) -> Bound | ToolResultPart:
    """The tool with the call's arguments, ready to run once, or an error result if they do not fit."""
    try:
        bound = tool.bind(deepcopy(call.arguments))  # the tool's own, to change as it likes
    except BaseException as error:  # InvalidArguments, or anything from somebody else's tool
        return as_error(call, error)
    if context.cancel.is_set():  # it was given up meanwhile: nobody would hear of what it does
        return call.result(STOPPED, is_error=True)
    return bound


def _execute(
    bound: Bound, call: ToolCallPart, context: ToolContext, coroutines: Coroutines
) -> ToolResultPart:
    """Run it in this thread."""
    try:
        value = bound(dataclasses.replace(context, call=call))
        value = coroutines.settle(value, context.cancel)
    except Cancelled:
        return call.result(STOPPED, is_error=True)
    except BaseException as error:  # a tool may even say sys.exit()
        return with_reasons(call, as_error(call, error))
    return with_reasons(call, as_result(call, value))


# -- the calls of a turn ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Running:
    slot: Slot
    cancel: threading.Event
    """Set when nobody waits for the result any more."""
    started: float
    deadline: float | None
    """On the clock of `monotonic`; None: no time limit."""
    finished: bool = False
    """Its result is on the way. A slow reader may take it after the deadline, and it still counts."""


@dataclass(slots=True)
class RunningCalls:
    """The calls of one turn while they run."""

    execute: Execute
    cancel: Cancel
    timeout: float | None
    """Seconds, for tools without a time limit of their own."""
    sequential: bool
    most: int
    """Calls at once; the others wait in their order."""
    _told: queue.SimpleQueue[tuple[_Running, ToolProgress | ToolResultPart]] = field(
        default_factory=queue.SimpleQueue
    )
    """What the threads of the calls tell."""

    def run(self, slots: Sequence[Slot]) -> Iterator[ToolStarted | ToolProgress | ToolEnded]:
        """Run every slot that has no result yet, and tell of all results."""
        for slot in slots:
            if slot.result is not None:
                yield ToolEnded(slot.asked, slot.result)
        group: list[Slot] = []
        for slot in slots:
            if slot.result is not None:
                continue
            if self.sequential or (slot.tool is not None and slot.tool.sequential):
                yield from self._run_group(group)
                yield from self._run_group([slot])
                group = []
            else:
                group.append(slot)
        yield from self._run_group(group)

    def _run_group(self, group: Sequence[Slot]) -> Iterator[ToolStarted | ToolProgress | ToolEnded]:
        """Run these beside each other."""
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
            if self.cancel.is_set():  # perhaps by the reader, on that event
                yield ToolEnded(slot.call, slot.refuse(NOT_RUN))
            else:
                running.append(self._start(slot))

    def _start(self, slot: Slot) -> _Running:
        limit = self.timeout
        if slot.tool is not None and slot.tool.timeout is not None:
            limit = slot.tool.timeout
        now = monotonic()
        slot.started = True
        running = _Running(slot, threading.Event(), now, None if limit is None else now + limit)
        try:
            in_thread(partial(self._work, running), f"localagent-{slot.call.name:.20}")
        except RuntimeError:  # a limit of the system, which other programs may have used up
            slot.started, running.finished = False, True
            self._told.put((running, slot.call.result(NO_THREAD, is_error=True)))
        return running

    def _work(self, running: _Running) -> None:
        """The thread of a call."""
        call = running.slot.call

        def report(text: str, share: float | None) -> None:
            if not running.cancel.is_set():  # else the queue of a run that is long over would grow
                self._told.put((running, ToolProgress(call, text, share)))

        try:
            result = self.execute(running.slot, running.cancel, report)
        except Cancelled:
            result = call.result(STOPPED, is_error=True)
        except BaseException as error:  # of a hook around the tool
            result = as_error(call, error)
        running.finished = True
        self._told.put((running, result))

    def _next(self, running: list[_Running]) -> Iterator[ToolProgress | ToolEnded]:
        """What the tools tell next, if they do so before a deadline or the next look at `cancel`."""
        now = monotonic()
        left = (max(0.0, each.deadline - now) for each in running if each.deadline is not None)
        try:
            teller, told = self._told.get(timeout=min([POLL, *left]))
        except queue.Empty:
            return
        if teller not in running:
            return  # it was given up before
        if isinstance(told, ToolProgress):
            yield told
            return
        running.remove(teller)
        yield _ended(teller, told)

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
            yield _ended(late, late.slot.call.result(text, is_error=True))


def _ended(running: _Running, result: ToolResultPart) -> ToolEnded:
    return ToolEnded(running.slot.call, running.slot.finish(result), monotonic() - running.started)
