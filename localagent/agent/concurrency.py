"""Threads and event loops: cancelling, awaiting from a thread, and following a generator from a loop.

The loop of a run is one plain generator. `Agent.run` steps it in the caller's thread, `Agent.arun` in a
thread of its own. What somebody wrote as a coroutine is awaited on an event loop: the caller's in `arun`,
else one that all runs of this process share, in a thread that starts when it is first needed. All threads
here are daemons, so that no tool that hangs keeps a program from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from localagent.hosts.protocol import POLL, Cancelled

GRACE = 0.5
"""Seconds in which a cancelled coroutine may still end by itself."""
AHEAD = 64
"""Pieces of what a model writes that a stepped generator may be ahead of its reader."""

T = TypeVar("T")
E = TypeVar("E")


# -- awaiting from a thread -------------------------------------------------------------------------------


class Coroutines:
    """Awaits things on an event loop, for threads that are not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: a running loop of another thread; None is one that this process shares.

        Make it in the thread that starts the run: from a shared loop itself it is the next loop that is used.
        """
        self._loop = loop
        threads = [thread for _, thread in _loops]
        here = threading.current_thread()
        self._level = threads.index(here) + 1 if here in threads else 0

    def settle(self, value: Any, cancel: threading.Event, grace: float = 0.0) -> Any:
        """The value itself, or what comes of awaiting it.

        When `cancel` is set, what is awaited has `grace` seconds left and is then cancelled. Raises
        Cancelled.
        """
        if not inspect.isawaitable(value):
            return value
        loop = self._loop or _shared_loop(self._level)
        result = _wait(asyncio.run_coroutine_threadsafe(_contained(value), loop), cancel, grace)
        if isinstance(result, _Exit):
            raise result.error
        return result

    def ask(self, function: Callable[..., Any], *arguments: Any, cancel: threading.Event) -> Any:
        """What a function answers that may take its time, such as one that asks a person. Raises Cancelled.

        In `run` it is called here, in the thread that the caller sees. In `arun` this thread is none of the
        caller's, and has to notice when the run is cancelled; so the function has another one.
        """
        if self._loop is None or inspect.iscoroutinefunction(function):
            return self.settle(function(*arguments), cancel)
        asked = in_thread(partial(function, *arguments), "localagent-approver")
        return self.settle(_wait(asked, cancel), cancel)


class _Exit:
    """An exception that would end the event loop, and everything on it with it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _contained(awaitable: Awaitable[T]) -> T | _Exit:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)


def _wait(future: concurrent.futures.Future[T], cancel: threading.Event, grace: float = 0.0) -> T:
    """The result of the future. Raises Cancelled; whatever is raised here cancels the future as well."""
    give_up: float | None = None
    try:
        while True:
            concurrent.futures.wait([future], timeout=POLL)
            if future.done():
                return future.result()
            if give_up is None and cancel.is_set():
                give_up = monotonic() + grace
            if give_up is not None and monotonic() >= give_up:
                raise Cancelled
    finally:
        future.cancel()


_starting = threading.Lock()
_loops: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []
"""The loops that runs share. One is enough, until a coroutine on it runs an agent itself: that run would wait
for its own thread, so it awaits on the next loop, which is made for it."""


def _shared_loop(level: int) -> asyncio.AbstractEventLoop:
    with _starting:
        if level == len(_loops):
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="localagent-coroutines", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there is no thread left: whoever comes next tries again
                loop.close()
                raise
            _loops.append((loop, thread))
        return _loops[level][0]


# -- threads ----------------------------------------------------------------------------------------------


def in_thread(work: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Begin `work` in a thread of its own, with the context variables of this one."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # a thread cannot be cancelled, so neither can its future

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return future


class Stepper(Generic[E]):
    """Steps a generator in a thread of its own, for a reader on an event loop. Made and used on that loop.

    As with a plain generator, nothing happens after an event until the reader has taken it and asks for the
    next one. Pieces of what a model writes are the exception: up to `AHEAD` of them may wait to be taken, so
    that a token does not cost a change of threads.
    """

    def __init__(self, steps: Generator[E, None, None], is_piece: Callable[[E], bool], name: str) -> None:
        """`is_piece`: whether the generator may go on before somebody has taken this event."""
        self._steps = steps
        self._is_piece = is_piece
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._changed = threading.Condition()  # guards the next three
        self._ready: deque[E | BaseException] = deque()
        self._wanted = False  # the reader waits for an event, and none is ready
        self._leaving = False
        self._ended = in_thread(self._run, name)

    async def next(self) -> E | None:
        """The next event; None after the last. Raises what the generator raises."""
        while (event := self._take()) is None:
            await self._arrived.wait()
        if isinstance(event, _Ended):
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    async def close(self) -> None:
        """Leave the generator and wait until it has ended, however often the task is cancelled meanwhile."""
        with self._changed:
            self._leaving = True
            self._changed.notify()
        waiting, cancelled = asyncio.wrap_future(self._ended), False
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    def _take(self) -> E | BaseException | None:
        with self._changed:
            if self._ready:
                return self._ready.popleft()
            self._arrived.clear()
            self._wanted = True
            self._changed.notify()
            return None

    def _run(self) -> None:
        """The thread: wait for the reader, step, tell, and wait again after what is no piece."""
        try:
            self._rest()
            for event in () if self._leaving else self._steps:
                self._tell(event)
                if not self._is_piece(event) or len(self._ready) >= AHEAD:
                    self._rest()
                if self._leaving:
                    break
            self._steps.close()
        except BaseException as error:
            self._tell(error)
        self._tell(_Ended())

    def _tell(self, event: E | BaseException) -> None:
        with self._changed:
            self._ready.append(event)
            if not self._wanted:
                return
            self._wanted = False
        with suppress(RuntimeError):  # the loop is closed: nobody will come for it
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _rest(self) -> None:
        """Wait until everything was taken and more is wanted."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._wanted or self._leaving, GRACE):
                self._leaving = self._loop.is_closed()  # then nobody can say that they leave


class _Ended(Exception):
    """There is nothing more to come."""
