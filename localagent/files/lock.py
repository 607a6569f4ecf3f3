"""Locks between processes and between runs. The system frees a lock when its process ends, even if killed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from localagent.errors import ConversationBusy

PATIENCE = 10.0
"""Seconds to wait for another process that only writes a line."""
MOMENT = 2.0
"""Seconds to wait for another run, which may be about to end: one that was cancelled takes half a second."""

_held: set[int] = set()
"""The identities of what `alone` holds in this process."""
_changed = threading.Condition()


def take(path: Path, seconds: float, *, mode: int = 0o600) -> AbstractContextManager[object]:
    """Take the lock whose file is `path`, and release it at the end of a `with`, in whatever thread that is.

    Waits up to `seconds` for another holder; -1 waits as long as it takes. The empty file stays: removing it
    would let two processes lock two files with the same name. `mode` is that of a new file.
    Raises TimeoutError if others keep the lock, OSError if there can be no lock here.
    """
    from filelock import FileLock

    try:
        # A wait of minutes need not poll a hundred times a second.
        lock = FileLock(path, mode=mode, thread_local=False)
        return lock.acquire(seconds, 0.2 if seconds < 0 else 0.005)
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "its file system has no locks") from error


@contextmanager
def alone(thing: object, name: str) -> Iterator[None]:
    """Hold a conversation for one run. A path is locked for all processes, anything else within this one.

    Raises ConversationBusy, OSError.
    """
    with ExitStack() as held:
        try:
            if isinstance(thing, Path):
                held.enter_context(take(thing, MOMENT))
            else:
                held.enter_context(_take_object(thing))
        except TimeoutError:
            raise ConversationBusy(
                f"another run is adding to {name}: ask again when it has ended, or close its iterator"
            ) from None
        yield


@contextmanager
def _take_object(thing: object) -> Iterator[None]:
    with _changed:
        if not _changed.wait_for(lambda: id(thing) not in _held, MOMENT):
            raise TimeoutError
        _held.add(id(thing))
    try:
        yield
    finally:
        with _changed:
            _held.remove(id(thing))
            _changed.notify_all()
