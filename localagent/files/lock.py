"""Locks between processes. The system frees a lock when its process ends, even if it was killed."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path

PATIENCE = 10.0
"""Seconds to wait for another process that only writes a line."""


def take(path: Path, seconds: float, *, mode: int = 0o600) -> AbstractContextManager[object]:
    """Take the lock whose file is `path`, and release it at the end of a `with`.

    Waits up to `seconds` for another holder; -1 waits as long as it takes. The empty file stays: removing it
    would let two processes lock two files with the same name. `mode` is that of a new file.
    Raises TimeoutError if others keep the lock, OSError if there can be no lock here.
    """
    from filelock import FileLock

    try:
        # A wait of minutes need not poll a hundred times a second.
        return FileLock(path, mode=mode).acquire(seconds, 0.2 if seconds < 0 else 0.005)
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "its file system has no locks") from error
