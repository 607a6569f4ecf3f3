"""Stepping a run in a thread of its own, for those who follow it on an event loop.

Knows threads and event loops. Does not know what a run does. Contract: as with a plain generator, nothing
happens behind an event before whoever follows has taken it and asked for the next, except that the pieces of
what a model writes come as they are written, up to `AHEAD` of them; so a token costs no change of threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Generic, TypeVar

from localagent.agent.concurrency import through

E = TypeVar("E")
AHEAD = 64
"""Pieces that may wait to be taken."""


class _Ended(Exception):
    """There is nothing more to come."""


class Stepper(Generic[E]):
    """Steps a generator in a thread that keeps no program from ending. Made and used on an event loop."""

    def __init__(self, steps: Generator[E, None, None], is_piece: Callable[[E], bool], name: str) -> None:
        """`is_piece`: whether the generator may go on behind this event before somebody has taken it."""
        self._steps = steps
        self._is_piece = is_piece
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended.set_running_or_notify_cancel()  # whoever gives up waiting for it does not cancel it
        self._changed = threading.Condition()  # guards what follows
        self._ready: deque[E | BaseException] = deque()
        self._wanted = False
        """Somebody waits for an event, and none is ready."""
        self._leaving = False
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True).start()

    async def next(self) -> E | None:
        """The next event; None behind the last. Raises what the generator raises."""
        while (event := self._take()) is None:
            await self._arrived.wait()
        if isinstance(event, _Ended):
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    async def close(self) -> None:
        """Leave the generator, and wait until it has ended, however often the task is cancelled."""
        with self._changed:
            self._leaving = True
            self._changed.notify()
        await through(self._ended)

    def _take(self) -> E | BaseException | None:
        with self._changed:
            if self._ready:
                return self._ready.popleft()
            self._arrived.clear()
            self._wanted = True
            self._changed.notify()
            return None

    def _run(self) -> None:
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
        self._ended.set_result(None)

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
            self._changed.wait_for(lambda: self._wanted or self._leaving)
