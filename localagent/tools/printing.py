"""What tools print, kept out of the answer: an answer that is piped must not have a tool's output in it.

Knows `sys.stdout` and contexts. Does not know tools. Contract: within `captured` what is printed goes to its
function, also from threads and tasks that were started with a copy of the context; everybody else writes
where they did before. stderr is left alone. What a child process prints, or what goes to a stream that
somebody took out of `sys.stdout` before, is not seen here.
"""

from __future__ import annotations

import codecs
import io
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_lock = threading.Lock()
_active = 0
"""How many captures there are, in all contexts."""
_numbers = itertools.count()
"""Says which of two captures began first."""
_held: deque[_Routed] = deque(maxlen=64)
"""The last that were installed. `print` only borrows `sys.stdout`, and Python before 3.14 crashes when that
is freed while a thread prints (python/cpython#130163), such as one that was given up."""
_capture: ContextVar[_Capture | None] = ContextVar("capture", default=None)


@contextmanager
def captured(write: Callable[[str], object]) -> Iterator[None]:
    """In this context `write` gets what goes to `sys.stdout`, piece by piece, in the thread that prints."""
    token = _capture.set(_install(write))
    try:
        yield
    finally:
        _capture.reset(token)
        _uninstall()


def _install(write: Callable[[str], object]) -> _Capture:
    global _active  # noqa: PLW0603 - there is one sys.stdout
    with _lock:
        _active += 1
        capture = _Capture(write, next(_numbers))
        if not isinstance(sys.stdout, _Routed):
            sys.stdout = _Routed(sys.stdout, capture.number)
            _held.append(sys.stdout)
        return capture


def _uninstall() -> None:
    global _active  # noqa: PLW0603
    with _lock:
        _active -= 1
        if not _active and isinstance(sys.stdout, _Routed):  # else somebody has put their own there
            sys.stdout = sys.stdout.stream


class _Capture:
    """Where the output of one context goes, and in which state its bytes are."""

    def __init__(self, write: Callable[[str], object], number: int) -> None:
        self.number = number
        self.write = write
        self.buffer = _Bytes(write)


class _Bytes(io.BufferedIOBase):
    """The binary side of a capture. A character may come in several writes."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        if text := self._decoder.decode(piece):
            self._write(text)
        return len(piece)


class _Routed:
    """Stands for `sys.stdout` while there are captures: asks for every operation whose output it is.

    A capture that began before this was installed found another stream on top since, such as that of a tool
    which redirects its own output: its writes go on to that stream.
    """

    def __init__(self, stream: Any, number: int) -> None:
        self.stream = stream
        self._number = number

    def _capture(self) -> _Capture | None:
        capture = _capture.get()
        return capture if capture is not None and capture.number >= self._number else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str, /) -> int:
        capture = self._capture()
        if capture is None:
            return self.stream.write(text) if self.stream is not None else len(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            capture.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._capture() is None and self.stream is not None:
            self.stream.flush()

    def close(self) -> None:
        if self._capture() is None:
            self.stream.close()

    def detach(self) -> Any:
        if self._capture() is None:
            return self.stream.detach()
        raise io.UnsupportedOperation("detach: the stream is not the tool's")

    def reconfigure(self, **options: Any) -> None:
        if self._capture() is None:
            self.stream.reconfigure(**options)

    def isatty(self) -> bool:
        return self._capture() is None and self.stream is not None and bool(self.stream.isatty())

    def fileno(self) -> int:
        if self._capture() is None:
            return int(self.stream.fileno())
        raise io.UnsupportedOperation("fileno: what a tool prints goes to no file")

    @property
    def encoding(self) -> Any:
        return self.stream.encoding if self._capture() is None else "utf-8"

    @property
    def errors(self) -> Any:
        return self.stream.errors if self._capture() is None else "strict"

    @property
    def buffer(self) -> Any:
        capture = self._capture()
        return self.stream.buffer if capture is None else capture.buffer
