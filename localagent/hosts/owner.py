"""The owner thread: one thread per host that makes all of its engine calls.

Engines may be called from one thread only, and what they compute must not make its reader wait. The rules:

- Everything runs on the one thread: calls in the order requested, between two steps of the work that the
  thread was given (see `Work`), and last the callables given to `at_end`.
- Work is done as long as it says that there is more. Then the thread waits in one place, on one
  `SimpleQueue`, whose `put` is safe in finalizers; it holds no lock, unless it breaks. It waits no longer
  than the work has patience.
- What is loaded and only read, as the vocabulary, any thread may use within `reading`: nothing is freed
  meanwhile.
- Exceptions arrive in the caller with their traceback.
- An owner belongs to the process that made it: threads do not survive a fork, and nothing waits for them.
- If the thread itself breaks, whoever waits gets an error, and `alive` is False.
- A thread that hangs in the engine cannot be ended, but abandoned: nobody waits for it any more, and what the
  engine holds stays in memory. Should it come back, it cleans up and ends.
- The thread is not a daemon, since engines abort when the interpreter dies under them. It ends when the owner
  is closed, garbage-collected, or the main thread has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any, Protocol, TypeVar

from localagent.errors import EngineFailed, UsageError

T = TypeVar("T")

log = logging.getLogger(__name__)

_CLOSED = "the host is closed: load the model again"
_HANGS = "the engine hangs and was given up: load the model again"
_READING = 0.005  # seconds between two looks at whether anybody still reads
_LOOK = 0.1  # seconds in which whoever waits for the end of a thread sees that it was abandoned
_here = threading.local()


class Work(Protocol):
    """What an owner thread does between calls."""

    def step(self) -> bool:
        """Do a little. False if there is nothing to do before a call or a `wake`."""

    @property
    def patience(self) -> float | None:
        """After how many seconds to step again all the same; None to wait for a call or a `wake`."""

    def fail(self, error: BaseException) -> None:
        """A step raised `error`: whatever was being done cannot go on."""

    def end(self) -> None:
        """The thread ends: give up all that is not done. Nothing comes after that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned or raised."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """A callable to run, and where its outcome goes; without that it is run even when the thread ends."""

    function: Callable[[], Any]
    answer: SimpleQueue[Outcome] | None = None


class OwnerClosed(UsageError, RuntimeError):
    """The owner thread has ended or is ending, or belongs to another process."""


class OwnerThread:
    """A thread that makes engine calls for other threads. It starts at once."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self._worker = _Worker(self._lock)
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
        assert call.answer is not None
        outcome = call.answer.get()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[no-any-return]

    def post(self, function: Callable[[], object]) -> None:
        """Call `function` on the owner thread without waiting; it must not raise, nor refer to the owner."""
        self._submit(_Call(function))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep what is freed at the end of the thread from being freed meanwhile: its end waits for this.

        Raises OwnerClosed.
        """
        self.check_process()
        readers, this = self._worker.readers, object()
        try:
            readers.add(this)  # first: a thread that ends after this looks for readers, and waits
            with self._lock:
                if self._closed or self._worker.stopping():
                    raise OwnerClosed(_CLOSED)
            yield
        finally:
            readers.discard(this)

    def employ(self, work: Work) -> None:
        """Give the thread its work, which must not refer to the owner, or dropping that would not end it."""
        self._worker.work = work

    @property
    def wake(self) -> Callable[[], None]:
        """Makes the thread look at its work again. Safe in finalizers; it does not refer to the owner."""
        return self._worker.wake

    @property
    def goes_on(self) -> Callable[[], None]:
        """Says within a long call that the thread does not hang: see `busy_seconds`. Called on the thread; it
        does not refer to the owner.
        """
        return self._worker.goes_on

    @property
    def stopping(self) -> Callable[[], bool]:
        """Whether the thread has been asked to end; it does not refer to the owner."""
        return self._worker.stopping

    def at_end(self, function: Callable[[], object]) -> None:
        """Call `function` on the owner thread just before it ends; the last one registered goes first."""
        self._worker.at_end.append(function)

    def close(self) -> None:
        """Give up all work, end the thread and wait for it, or until it is abandoned.

        Safe to call twice and from any thread.
        """
        if self.foreign:
            return
        self.stop()
        if threading.current_thread() is not self._thread:
            while self._thread.is_alive() and not self._worker.abandoned:
                self._thread.join(_LOOK)

    def stop(self) -> None:
        """Like `close`, without waiting."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def abandon(self) -> None:
        """Give up a thread that hangs: whoever waits for a call, or for the thread's end, waits no longer.

        Calls raise OwnerClosed from now on. A process ends only after this thread has, or by `os._exit`.
        """
        with self._lock:  # no call may come after the last look into the inbox
            self._closed = True
            self._worker.abandon()

    @property
    def hangs(self) -> bool:
        """Whether the thread was abandoned and has not come back."""
        return self._worker.abandoned and self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and may be called."""
        return not self.foreign and self._thread.is_alive() and not self._worker.stopping()

    @property
    def busy_seconds(self) -> float:
        """How long the thread has been at its present call or step, or since that said that it `goes_on`: 0
        while it waits for something to do.
        """
        since = self._worker.busy_since
        return 0.0 if since is None else perf_counter() - since

    @property
    def foreign(self) -> bool:
        """Whether this process is not the one that made the thread, but a fork of it."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise OwnerClosed in a fork: nothing answers there."""
        if self.foreign:
            raise OwnerClosed(
                f"the host was loaded in another process ({self._process}), before a fork: load the model "
                "again"
            )

    def _submit(self, call: _Call) -> None:
        self.check_process()  # before the lock, which another thread may have held at the fork
        # Under the lock, so that no call can come after the stop and wait for ever.
        with self._lock:
            if self._closed or self._worker.stopping():
                raise OwnerClosed(_CLOSED)
            self._worker.inbox.put(call)


def on_an_owner_thread() -> bool:
    """Whether this is any owner thread: one that waited for itself, or two for each other, would deadlock."""
    return getattr(_here, "serving", False)


class _Worker:
    """The thread's own side. It never refers to the `OwnerThread`, so that that can be collected."""

    def __init__(self, lock: threading.Lock) -> None:
        """`lock`: held while a call is put into the inbox."""
        self._lock = lock
        self.inbox: SimpleQueue[_Call | None] = SimpleQueue()
        self.at_end: list[Callable[[], object]] = []
        self.work: Work | None = None
        self.readers: set[object] = set()
        self.busy_since: float | None = None
        self.abandoned = False
        self._answering: _Call | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        self.inbox.put(None)

    def goes_on(self) -> None:
        self.busy_since = perf_counter()

    def stopping(self) -> bool:
        return self._stopped

    def abandon(self) -> None:
        """On another thread: answer all calls with an error. The lock is held, so none is added meanwhile."""
        self.abandoned = self._stopped = True
        refusal = Outcome(error=OwnerClosed(_HANGS))
        if (call := self._answering) is not None and call.answer is not None:
            call.answer.put(refusal)  # the thread may just be putting its own, which nobody will read
        for _ in range(self.inbox.qsize()):
            with contextlib.suppress(Empty):  # the thread has just come back
                call = self.inbox.get_nowait()
                if call is not None and call.answer is not None:
                    call.answer.put(refusal)
                    call = None
                # As many as before: the thread, should it be counting them, may wait for each of them.
                self.inbox.put(call)
        self.wake()

    def serve(self) -> None:
        """Answer calls and do the work until stopped, give up what is left, and clean up."""
        _here.serving = True
        inbox = self.inbox
        try:
            self._serve(inbox)
        except BaseException as error:  # nothing should raise here; but who waits must not wait for ever
            with self._lock:  # no call may come after the last look into the inbox
                self._stopped = True
            log.critical("the engine thread ends: %r", error)
            failed = EngineFailed(f"the engine thread has ended: {error!r}")
            if (call := self._answering) is not None and call.answer is not None:
                call.answer.put(Outcome(error=failed))  # nobody reads it if the call was answered just before
            if self.work is not None:
                self.work.fail(failed)
        if self.work is not None:
            self.work.end()
        while not inbox.empty():
            self._answer(inbox.get())
        while self.readers:  # a moment's work, and there are no new ones any more
            sleep(_READING)
        while self.at_end:
            self.goes_on()
            # One cleanup that fails must not keep the next one from running.
            with contextlib.suppress(Exception):
                self.at_end.pop()()

    def _serve(self, inbox: SimpleQueue[_Call | None]) -> None:
        more = False
        while not self._stopped:
            if not more or not inbox.empty():
                patience = None if more or self.work is None else self.work.patience
                # No more than there are now, or calls that come without end would hold up the work.
                for _ in range(inbox.qsize() or 1):
                    self.busy_since = None
                    try:
                        call = self._answering = inbox.get(timeout=patience)
                    except Empty:
                        break
                    self.goes_on()
                    self._answer(call)
                    call = self._answering = None  # what it refers to may be dropped while the thread waits
            self.goes_on()
            more = False
            if self.work is not None and not self._stopped:
                try:
                    more = self.work.step()
                except Exception as error:
                    self.work.fail(error)

    def _answer(self, call: _Call | None) -> None:
        if call is None:
            return
        if call.answer is None:
            call.function()
        elif self._stopped:
            call.answer.put(Outcome(error=OwnerClosed(_CLOSED)))
        else:
            call.answer.put(_outcome(call.function))


def _outcome(function: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(function())
    except BaseException as error:  # the caller gets every exception, KeyboardInterrupt included
        return Outcome(error=error)


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
