"""One process at a time for each model and backend.

Knows the lock files below ROOT/.locks. Does not know what is done under a lock. The system frees a lock when
its process ends, however it ends; the empty files stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.errors import UsageError
from localagent.store import disk

if TYPE_CHECKING:
    from filelock import BaseFileLock


@contextmanager
def alone(root: Path, model: str, backend: str, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Alone with a model on this machine: waits for its turn, and tells `waiting` once that it does.

    Without `waiting`, raises UsageError in place of waiting. Raises UsageError when the store is read-only.
    """
    from filelock import FileLock

    lock = FileLock(root / ".locks" / f"{model}.{backend}.lock")
    if not _acquired(lock, root, 0):
        if waiting is None:
            raise UsageError(f"another process is pulling {model} ({backend}): stop it first")
        waiting()
        _acquired(lock, root, -1)
    try:
        with disk.forbidden_is_usage_error(root):
            yield
    finally:
        lock.release()


def _acquired(lock: BaseFileLock, root: Path, seconds: float) -> bool:
    """Whether the lock was free within `seconds`; -1 waits for ever."""
    from filelock import Timeout

    try:
        (root / ".locks").mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=seconds, poll_interval=0.2)
    except Timeout:
        return False
    except OSError as error:
        raise disk.unwritable(root, error) from error
    return True
