"""Append-only files of JSON lines, as logs, sessions and notes keep them.

A line is written by one system call, so a killed process leaves at most one torn line, at the end; the next
append starts a new line after it. Reading skips and reports lines that it cannot read. Nothing is ever
deleted. The caller's `load` gives the lines their meaning.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from localagent.files.paths import cannot_save
from localagent.wording import one_line

T = TypeVar("T")

LONGEST_REASON = 300
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A line that could not be read. `line` counts from 1; `offset` is that of its first byte."""

    line: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line:,} (byte {self.offset:,}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Line(Generic[T]):
    """A line that was read, and its position."""

    line: int
    offset: int
    value: T


class LineReader(Generic[T]):
    """Reads a file from its start; each later read returns what was appended since.

    `load` turns the bytes of a line into a value, or raises ValueError with a reason in one line.
    """

    def __init__(self, path: Path, load: Callable[[bytes], T]) -> None:
        self.offset = 0
        """Bytes read so far."""
        self.torn: LineProblem | None = None
        """The last line, if it has no "\\n": its process was killed, or is still writing it."""
        self._path = path
        self._load = load
        self._line = 1

    def read(self) -> list[Line[T] | LineProblem]:
        """The lines since the last call, without `torn`, which is read again next time. Raises OSError."""
        self.torn = None
        found: list[Line[T] | LineProblem] = []
        with self._path.open("rb") as file, _no_collector():
            file.seek(self.offset)
            for data in file:
                item = self._read_line(data)
                ended = data.endswith(b"\n")
                # A complete object lacks only its "\n", which the next append adds.
                if isinstance(item, LineProblem) and not ended:
                    self.torn = LineProblem(
                        item.line, item.offset, "cut off: the process that wrote it was stopped"
                    )
                    break
                self.offset += len(data)
                self._line += ended
                if item is not None:
                    found.append(item)
        return found

    def _read_line(self, data: bytes) -> Line[T] | LineProblem | None:
        if data.isspace():
            return None
        try:
            return Line(self._line, self.offset, self._load(data))
        except ValueError as error:
            return LineProblem(self._line, self.offset, _reason(data, error))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pause garbage collection: scanning the growing list of values took two thirds of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _reason(data: bytes, error: ValueError) -> str:
    if nuls := data.count(b"\0"):
        return f"{nuls:,} NUL bytes: the system stopped before the data reached the disk"
    try:
        data.decode()
    except UnicodeDecodeError as bad:
        return f"not UTF-8: byte 0x{data[bad.start]:02x} at {bad.start:,} in the line"
    return one_line(str(error), LONGEST_REASON)


def open_lines(path: Path, *, create: bool) -> int:
    """A descriptor for `append_line`. `create` makes the file, readable by its owner alone, and its folder.

    Raises FileExistsError if `create` finds a file, FileNotFoundError if there is none to open.
    """
    if not create:
        return os.open(path, _FLAGS)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)


def append_line(descriptor: int, line: bytes, path: Path, *, sync: bool = False) -> None:
    """Append a line without "\\n", whole or not at all; `sync` waits until it is on the disk.

    Only one writer at a time may do this. If it raises SaveFailed, the file is as before.
    """
    size = None
    try:
        size = os.fstat(descriptor).st_size
        data = (b"\n" if _is_torn(descriptor, size) else b"") + line + b"\n"
        written = os.write(descriptor, data)
        if written < len(data):
            raise OSError(f"the disk took {written:,} of {len(data):,} bytes")
        if sync:
            os.fsync(descriptor)
    except OSError as error:
        if size is not None:
            with suppress(OSError):  # then the torn line stays, and readers skip it
                os.ftruncate(descriptor, size)
        raise cannot_save(path, error) from error


def _is_torn(descriptor: int, size: int) -> bool:
    if size == 0:
        return False
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1) != b"\n"
