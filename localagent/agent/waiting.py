"""Cancelling, and awaiting from a thread: what the loop, which is plain code in a thread, needs of both
worlds.

The loop is one generator. `Agent.run` steps it in the caller's thread, `Agent.arun` in a thread of its own.
Whatever somebody wrote as a coroutine runs on an event loop: that of the caller in `arun`, else one that all
runs of this process share, in a thread that starts when it is first needed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

POLL = 0.05
"""Seconds between two looks at whether somebody has cancelled."""

T = TypeVar("T")
_starting = threading.Lock()
_shared: asyncio.AbstractEventLoop | None = None


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


class Coroutines:
    """Runs what is to be awaited on an event loop, from threads that are not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: a running loop of another thread; None is the one that this process shares."""
        self._loop = loop

    def start(self, awaitable: Awaitable[T]) -> concurrent.futures.Future[T]:
        """Begin to await; the future can be cancelled."""
        loop = self._loop or _shared_loop()

        async def run() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), loop)

    def settle(self, value: Any, cancel: threading.Event | None = None) -> Any:
        """The value itself, or what comes of awaiting it.

        When `cancel` is set before that, what is awaited is cancelled, too. Raises Cancelled.
        """
        if not inspect.isawaitable(value):
            return value
        future = self.start(value)
        while cancel is not None:
            concurrent.futures.wait([future], timeout=POLL)
            if future.done():
                break
            if cancel.is_set():
                future.cancel()
                raise Cancelled
        return future.result()


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _shared  # noqa: PLW0603  the one loop of the process
    with _starting:
        if _shared is None:
            _shared = asyncio.new_event_loop()
            threading.Thread(target=_shared.run_forever, name="localagent-coroutines", daemon=True).start()
        return _shared


def in_thread(work: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Begin `work` in a thread of its own, which keeps no program from ending."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
