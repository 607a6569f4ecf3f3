"""Cancelling, and awaiting from threads: what the loop, plain code in a thread, needs of both worlds.

The loop is one generator. `Agent.run` steps it in the caller's thread, `Agent.arun` in a thread of its own.
Whatever somebody wrote as a coroutine runs on an event loop: that of the caller in `arun`, else one that all
runs of this process share, in a thread that starts when it is first needed. None of these threads keeps a
program from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

POLL = 0.05
"""Seconds between two looks at whether somebody has cancelled."""
GRACE = 0.5
"""Seconds in which what is cancelled may still come to an end of its own."""

T = TypeVar("T")


class Cancelled(Exception):
    """What was awaited was given up."""


class Cancel(threading.Event):
    """An event that is set when it is set itself, or when the one it depends on is."""

    def __init__(self, parent: threading.Event | None = None) -> None:
        super().__init__()
        self._parent = parent

    def is_set(self) -> bool:
        """Whether anybody has cancelled."""
        return super().is_set() or (self._parent is not None and self._parent.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until anybody cancels, at most `timeout` seconds; whether somebody has."""
        end = None if timeout is None else monotonic() + timeout
        while not self.is_set():
            left = POLL if end is None else min(POLL, end - monotonic())
            if left <= 0:
                return False
            super().wait(left)
        return True


class Coroutines:
    """Runs what is to be awaited on an event loop, from threads that are not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: a running loop of another thread; None is one that this process shares.

        It is to be made in the thread that starts the run.
        """
        self._loop = loop
        self._level = _level()

    def settle(self, value: Any, cancel: threading.Event, grace: float = 0.0) -> Any:
        """The value itself, or what comes of awaiting it.

        When `cancel` is set, what is awaited has `grace` seconds left, and is then cancelled, too. Raises
        Cancelled.
        """
        if not inspect.isawaitable(value):
            return value
        outcome = _wait(_start(value, self._loop or _shared_loop(self._level)), cancel, grace)
        if isinstance(outcome, _Exit):
            raise outcome.error
        return outcome

    def ask(self, function: Callable[..., Any], *arguments: Any, cancel: threading.Event) -> Any:
        """What a function says that may take its time, such as one that asks a person. Raises Cancelled.

        Within `arun`, where nobody sees the thread of the run, it has a thread of its own to take it in.
        """
        if self._loop is None or inspect.iscoroutinefunction(function):
            return self.settle(function(*arguments), cancel)
        return self.settle(
            _wait(in_thread(partial(function, *arguments), "localagent-approver"), cancel), cancel
        )


class _Exit:
    """An exception that would end the event loop with everything on it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _start(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[Any]:
    async def run() -> T | _Exit:
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:
            return _Exit(error)

    return asyncio.run_coroutine_threadsafe(run(), loop)


def _wait(future: concurrent.futures.Future[T], cancel: threading.Event, grace: float = 0.0) -> T:
    """The result of the future, or Cancelled; whoever is interrupted here cancels it as well."""
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
"""The loops that runs share: one, and more only where a coroutine on one of them runs an agent itself."""


def _level() -> int:
    """The number of the first loop that the present thread can wait for without waiting for itself."""
    threads = [thread for _, thread in _loops]
    here = threading.current_thread()
    return threads.index(here) + 1 if here in threads else 0


def _shared_loop(level: int) -> asyncio.AbstractEventLoop:
    with _starting:
        if level == len(_loops):
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="localagent-coroutines", daemon=True)
            _loops.append((loop, thread))
            thread.start()
        return _loops[level][0]


def in_thread(work: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Begin `work` in a thread of its own, with the context variables of this one."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from now on nobody can cancel it
    context = contextvars.copy_context()
    arguments = (context, work, future)
    threading.Thread(target=_work, args=arguments, name=name, daemon=True).start()
    return future


def _work(
    context: contextvars.Context, work: Callable[[], Any], future: concurrent.futures.Future[Any]
) -> None:
    try:
        result = context.run(work)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


async def through(future: concurrent.futures.Future[T]) -> T:
    """Await a future to its end, however often the task is cancelled meanwhile; then it is cancelled."""
    waiting, cancelled = asyncio.wrap_future(future), False
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return waiting.result()
