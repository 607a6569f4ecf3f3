"""Locks between processes. The system frees a lock when the process that holds it ends, however it ends."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path

PATIENCE = 10.0
"""Seconds to wait for another process that only writes a line."""


def take(path: Path, seconds: float, *, mode: int = 0o600) -> AbstractContextManager[object]:
    """Take the lock whose file is `path`, and give it back at the end of a `with`.

    Waits `seconds` for whoever has it, -1 as long as it takes. The empty file stays behind: removing it
    would let two processes lock two files of one name. `mode` is for a file that is not there yet.
    Raises TimeoutError when others keep the lock, OSError when there can be none here.
    """
    from filelock import FileLock

    try:
        # Whoever waits for minutes need not look a hundred times a second.
        return FileLock(path, mode=mode).acquire(seconds, 0.2 if seconds < 0 else 0.005)
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "its file system has no locks") from error
