"""The message log: every message of a run with its context, one JSON line each, for people and for audits.

When `append` returns, the system has the line, so a killed process loses at most the line it was writing.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt

from localagent.errors import UsageError
from localagent.files.jsonl import LineProblem, LineReader, append_line, open_lines
from localagent.files.paths import cannot_save, user_path
from localagent.messages import AnyMessage, Message, Timings, explained
from localagent.messages.values import JsonObject, Text


def default_folder() -> Path:
    """`$LOCALAGENT_HOME/logs`, else the user's folder for logs. Raises UsageError."""
    return user_path("log", "logs")


class RunContext(BaseModel):
    """The run that a message belongs to, and its place in that run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iteration: NonNegativeInt | None = None
    """Number of the agent's turn, from 0."""
    model: Text | None = None
    timings: Timings | None = None
    metadata: JsonObject = Field(default_factory=dict)
    """The application's own data for the log."""


class LogRecord(BaseModel):
    """One line of a log."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    logged_at: AwareDatetime
    thread_id: Text | None = None
    context: RunContext | None = None
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class Log:
    """The content of a log: its records in order, and the lines that could not be read."""

    records: tuple[LogRecord, ...]
    problems: tuple[LineProblem, ...]


class MessageLog:
    """Appends messages to a file of its own, made with the first message. Threads may share it."""

    def __init__(self, folder: Path | str | None = None) -> None:
        """`folder`: the folder for the file, by default `default_folder()`. Raises UsageError."""
        self.folder = default_folder() if folder is None else Path(folder).absolute()
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def path(self) -> Path | None:
        """The file; None until the first message is logged."""
        return self._path

    def append(
        self, message: Message, thread_id: str | None = None, context: RunContext | None = None
    ) -> None:
        """Log a message. Raises SaveFailed, InvalidMessage, UsageError when the log is closed."""
        with explained("record"):
            record = LogRecord(
                logged_at=datetime.now(UTC), thread_id=thread_id, context=context, message=message
            )
            line = record.model_dump_json().encode()
            # A message made or changed without validation might not load again.
            LogRecord.model_validate_json(line)
        if self._owner != os.getpid():
            self._lock = threading.Lock()  # a new lock after a fork: another thread may have held the old one
        with self._lock:
            if self._closed:
                raise UsageError("the message log is closed: make a new one")
            path, descriptor = self._open()
            append_line(descriptor, line, path)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[Path, int]:
        """The open file; a new one after a fork, or if the old one was removed."""
        if self._descriptor is not None and self._path is not None:
            if self._owner == os.getpid() and os.fstat(self._descriptor).st_nlink:
                return self._path, self._descriptor
            self._release()
        self._owner = os.getpid()
        number = 0
        while True:
            number += 1
            again = f"-{number}" if number > 1 else ""
            path = self.folder / f"{_stamp()}-{self._owner}{again}.jsonl"
            try:
                self._descriptor = open_lines(path, create=True)
            except FileExistsError:
                if self.folder.is_dir():
                    continue  # another log of this process, in the same millisecond
                raise cannot_save(path, NotADirectoryError("a file is where the folder should be")) from None
            except (OSError, ValueError) as error:  # a NUL in the path
                raise cannot_save(path, error) from error
            self._path = path
            return path, self._descriptor

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _stamp() -> str:
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03}Z"


def read_log(path: Path | str) -> Log:
    """Read all that can be read of a log. Raises UsageError if there is no such file."""
    reader = LineReader(Path(path), _load)
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UsageError(f"cannot read {path}: it is not a file")
        items = reader.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {str(path)!r}: {reason}") from error
    problems = [item for item in items if isinstance(item, LineProblem)]
    records = tuple(item.value for item in items if not isinstance(item, LineProblem))
    return Log(records, (*problems, reader.torn) if reader.torn else tuple(problems))


def _load(data: bytes) -> LogRecord:
    with explained("record", ValueError):
        return LogRecord.model_validate_json(data)
