"""The owner thread: one thread per host that makes all of its engine calls.

Engines may be called from one thread only, and a stream must not make its consumer wait. The rules:

- Everything runs on the one thread, in the order requested: calls, streams, the closing of streams and, last,
  the callables given to `at_end`. A call requested while a stream runs is made between two items.
- A stream is a generator that runs a few items ahead of its consumer, so that the next token is computed
  while the consumer works on this one. If another stream is waiting, it runs to its end without its consumer,
  so that a thread that consumes two streams in any order cannot deadlock.
- A stream is cancelled by `Stream.close`, by dropping the stream, and by the end of the owner. The generator
  sees it through its `cancelled` callable and must return soon after; its return value is kept.
- Exceptions arrive in the consumer with their traceback.
- An owner belongs to the process that made it: threads do not survive a fork, and nothing waits for them.
- The thread is not a daemon, since engines abort when the interpreter dies under them. It ends when the owner
  is closed, garbage-collected, or the main thread has ended.

The thread waits in one place, on one `SimpleQueue`, whose `put` is safe in finalizers; it never holds a lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from localagent.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 4
_CLOSED = "the host is closed: load the model again"
_here = threading.local()


@dataclass(frozen=True, slots=True)
class _Call:
    """A callable to run, and where its `_End` goes."""

    function: Callable[[], Any]
    answer: SimpleQueue[Any]


@dataclass(eq=False, slots=True)
class _Channel:
    """What a running stream and its consumer share."""

    start: Callable[[Callable[[], bool]], Generator[Any, None, Any]]
    items: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _Took:
    """The consumer of `channel` took one item, or wants no more."""

    channel: _Channel


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing in a queue of results: the outcome."""

    value: Any = None
    error: BaseException | None = None


class OwnerClosed(UsageError, RuntimeError):
    """The owner thread has ended or is ending, or belongs to another process."""


class OwnerThread:
    """A thread that makes engine calls for other threads. It starts at once."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self._worker = _Worker()
        self._thread = threading.Thread(target=self._worker.serve, name=name, daemon=False)
        self._finalizer = weakref.finalize(self, self._worker.stop)
        self._finalizer.atexit = False  # atexit runs after non-daemon threads are joined: too late
        _end_with_main_thread(self)
        self._thread.start()

    def run(self, function: Callable[[], T]) -> T:
        """Call `function` on the owner thread and return what it returns, or raise what it raises."""
        if threading.current_thread() is self._thread:
            return function()
        call = _Call(function, SimpleQueue())
        self._submit(call)
        end: _End = call.answer.get()
        if end.error is not None:
            raise end.error
        return end.value  # type: ignore[no-any-return]

    def stream(self, start: Callable[[Callable[[], bool]], Generator[T, None, R]]) -> Stream[T, R]:
        """Run the generator `start(cancelled)` on the owner thread, beginning as soon as its turn comes.

        `start` must not refer to the owner, or dropping the owner would not end the thread.
        """
        channel = _Channel(start)
        self._submit(channel)
        return Stream(self, channel)

    def at_end(self, function: Callable[[], object]) -> None:
        """Call `function` on the owner thread just before it ends; the last one registered goes first."""
        self._worker.at_end.append(function)

    def close(self) -> None:
        """Cancel everything, end the thread and wait for it. Safe to call twice and from any thread."""
        if self._foreign():
            return
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop(self) -> None:
        """Like `close`, without waiting."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def _foreign(self) -> bool:
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self._foreign():
            raise OwnerClosed(
                f"the host was loaded in another process ({self._process}), before a fork: load the model "
                "again"
            )

    def _submit(self, job: _Call | _Channel) -> None:
        self._check_process()  # before the lock, which another thread may have held at the fork
        # Under the lock, so that no job can come after the stop and wait for ever.
        with self._lock:
            if self._closed:
                raise OwnerClosed(_CLOSED)
            self._worker.inbox.put(job)


class Stream(Iterator[T], Generic[T, R]):
    """The consumer's end of a stream. Iterate it in one thread at a time."""

    def __init__(self, owner: OwnerThread, channel: _Channel) -> None:
        self._owner = owner  # a stream keeps its host alive
        self._channel = channel
        self._inbox = owner._worker.inbox
        self._took = _Took(channel)
        self._end: _End | None = None

    def __next__(self) -> T:
        if self._end is not None:
            raise StopIteration
        self._owner._check_process()
        item = self._channel.items.get()
        if type(item) is _End:
            self._end = item
            if item.error is not None:
                raise item.error
            raise StopIteration
        self._inbox.put(self._took)
        return item  # type: ignore[no-any-return]

    @property
    def result(self) -> R | None:
        """What the generator returned; None before its end and after an exception."""
        return self._end.value if self._end is not None else None

    def close(self) -> None:
        """Cancel, and wait until the generator has returned. Items not yet taken are lost.

        On an owner thread it cancels without waiting: the garbage collector also runs there and closes
        abandoned streams, and an owner that waited for itself, or two for each other, would deadlock.
        """
        if self._end is not None or self._owner._foreign():
            return
        self._cancel()
        if getattr(_here, "serving", False):
            return
        while type(item := self._channel.items.get()) is not _End:
            pass
        self._end = item

    def _cancel(self) -> None:
        self._channel.cancelled = True
        self._inbox.put(self._took)

    def __del__(self) -> None:
        # Only what is safe inside a garbage collection: no waiting, no lock.
        if getattr(self, "_end", True) is None:
            self._cancel()


class _Worker:
    """The thread's own side. It never refers to the `OwnerThread`, so that that can be collected."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[_Call | _Channel | _Took | None] = SimpleQueue()
        self.at_end: list[Callable[[], object]] = []
        self.stopped = False
        self._waiting: deque[_Channel] = deque()

    def stop(self) -> None:
        self.stopped = True
        self.inbox.put(None)

    def serve(self) -> None:
        """Do jobs until stopped, end what is left, and clean up."""
        _here.serving = True
        while not self.stopped:
            if self._waiting:
                self._drive(self._waiting.popleft())
            else:
                self._take(self.inbox.get())
        while self._waiting or not self.inbox.empty():
            if self._waiting:
                self._drive(self._waiting.popleft())
            else:
                self._take(self.inbox.get())
        while self.at_end:
            # One cleanup that fails must not keep the next one from running.
            with contextlib.suppress(Exception):
                self.at_end.pop()()

    def _take(self, message: _Call | _Channel | _Took | None, current: _Channel | None = None) -> int:
        """Act on one message; return by how many items the consumer of `current` has moved on."""
        match message:
            case _Took(channel):
                return int(channel is current)
            case _Channel():
                self._waiting.append(message)
            case _Call(function, answer):
                answer.put(_refused() if self.stopped else _outcome(function))
        return 0

    def _drive(self, channel: _Channel) -> None:
        """Run one stream to its end."""
        channel.items.put(_outcome(lambda: self._pump(channel)))

    def _pump(self, channel: _Channel) -> Any:
        def cancelled() -> bool:
            return channel.cancelled or self.stopped

        generator = channel.start(cancelled)
        ahead = 0
        inbox, put = self.inbox, channel.items.put
        try:
            while True:
                try:
                    item = next(generator)
                except StopIteration as end:
                    return end.value
                if cancelled():
                    continue
                put(item)
                ahead += 1
                while not inbox.empty() or (ahead >= _AHEAD and not self._waiting and not cancelled()):
                    ahead -= self._take(inbox.get(), channel)
        finally:
            generator.close()


def _refused() -> _End:
    return _End(error=OwnerClosed(_CLOSED))


def _outcome(function: Callable[[], Any]) -> _End:
    try:
        return _End(function())
    except BaseException as error:  # the consumer gets every exception, KeyboardInterrupt included
        return _End(error=error)


_owners: weakref.WeakSet[OwnerThread] = weakref.WeakSet()
_watching = threading.Lock()
_watcher: threading.Thread | None = None


def _end_with_main_thread(owner: OwnerThread) -> None:
    """Stop `owner` when the main thread ends.

    The interpreter joins non-daemon threads before any atexit callback, so the notice must come from a thread
    that waits for the main one. It is a daemon and touches no engine.
    """
    global _watcher  # noqa: PLW0603  (one watcher per process)
    with _watching:
        _owners.add(owner)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_watch, name="localagent-exit", daemon=True)
            _watcher.start()


def _watch() -> None:
    threading.main_thread().join()
    with _watching:
        owners = list(_owners)
    for owner in owners:
        owner.stop()
