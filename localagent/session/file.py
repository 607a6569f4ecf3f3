"""The file of a session, to which one process at a time appends.

`FILE.lock` beside it is held while a line is appended, and `FILE.run` while a run adds to the conversation.
Each append first checks that the file is still the one that was opened, since another process may have
removed or replaced it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from localagent.errors import InvalidMessage, SaveFailed, UnknownSession, UsageError
from localagent.files.jsonl import Line, LineProblem, LineReader, append_line, open_lines
from localagent.files.lock import PATIENCE, alone, take
from localagent.files.paths import cannot_save, replace_file, sync
from localagent.messages import explain
from localagent.session.entries import OPENING, Damaged, Entry, Header, dump_line, load_line
from localagent.wording import one_line

SUFFIX = ".jsonl"
WITNESS = 128
"""Bytes that are compared to recognise a file."""
MOST_TITLE = 200
"""Characters of a title."""

Item = Line[Header | Entry | Damaged] | LineProblem


class SessionFile:
    """A session's file, read as far as it has grown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = LineReader(path, load_line)
        self._identity: tuple[int, int] | None = None
        self._start = self._end = b""

    @property
    def id(self) -> str:
        """The name of the session."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def torn(self) -> LineProblem | None:
        """The last line, if it is torn."""
        return self._reader.torn

    def read(self) -> list[Item]:
        """The lines since the last call. Raises UnknownSession when the file is gone, and UsageError."""
        try:
            state = self.path.stat()
            if not self.path.is_file():
                raise UnknownSession(f"{self.path} is not a session: it is not a file")
            identity = (state.st_dev, state.st_ino)
            if self._identity not in (None, identity) or not self._begins_as_before():
                raise UnknownSession(f"session {self.id} was replaced by another file: open it again")
            self._identity = identity
            items = self._reader.read()
            self._remember()
            return items
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._gone() from error
        except (OSError, ValueError) as error:  # a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot read {self.path}: {reason}") from error

    def _begins_as_before(self) -> bool:
        """Whether the file still has the bytes that were read: a new file may have the old one's inode."""
        with self.path.open("rb") as file:
            start = file.read(len(self._start))
            file.seek(self._reader.offset - len(self._end))
            return (start, file.read(len(self._end))) == (self._start, self._end)

    def _remember(self) -> None:
        """Keep the beginning of the file, which holds the session's id, and the end of what was read."""
        offset = self._reader.offset
        with self.path.open("rb") as file:
            self._start = file.read(min(offset, WITNESS))
            file.seek(max(0, offset - WITNESS))
            self._end = file.read(min(offset, WITNESS))

    def begins_like_one(self) -> bool:
        """Whether the file may be a session whose first line was cut off."""
        with self.path.open("rb") as file:
            return OPENING.startswith(file.read(len(OPENING)))

    @contextmanager
    def alone(self) -> Iterator[Callable[[bytes], None]]:
        """Hold the lock and yield a function that appends a line, or several at once, all or none.

        Raises UnknownSession, SaveFailed.
        """
        with exclusive(self.path, self._gone):
            try:
                descriptor = open_lines(self.path, create=False)
            except FileNotFoundError as error:  # removed while we waited
                raise self._gone() from error
            except OSError as error:
                raise cannot_save(self.path, error) from error
            try:
                yield lambda line: append_line(descriptor, line, self.path, sync=True)
            finally:
                os.close(descriptor)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the session for a run. Raises ConversationBusy, UnknownSession, SaveFailed."""
        if not self.path.exists():
            raise self._gone()  # so that no lock file is made for a session that is gone
        with ExitStack() as lock:
            try:
                lock.enter_context(alone(_beside(self.path, "run"), self.id))
            except OSError as error:
                raise cannot_save(self.path, error) from error
            yield

    def _gone(self) -> UnknownSession:
        return UnknownSession(f"no session {self.id} in {self.path.parent}")


class Memory:
    """The lines of a session that is kept nowhere: they are gone with the program."""

    id = "unsaved"
    path = Path(os.devnull)
    torn: LineProblem | None = None

    def __init__(self) -> None:
        self._lines = [dump_line(Header(id=self.id, created=datetime.now(UTC)))]
        self._read = 0

    def read(self) -> list[Item]:
        """The lines since the last call."""
        new, first = self._lines[self._read :], self._read + 1
        self._read = len(self._lines)
        return [Line(number, 0, load_line(line)) for number, line in enumerate(new, first)]

    def begins_like_one(self) -> bool:
        """It has its first line from the start."""
        return True

    @contextmanager
    def alone(self) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that appends a line, or several at once."""
        yield lambda lines: self._lines.extend(lines.split(b"\n"))

    def held(self) -> AbstractContextManager[None]:
        """Hold the session for a run. Raises ConversationBusy."""
        return alone(self, "this conversation")


def create_file(folder: Path, title: str | None) -> Path:
    """A new file with its first line, named for the time. Raises SaveFailed, InvalidMessage."""
    now = datetime.now(UTC)
    while True:
        name = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = folder / f"{name}{SUFFIX}"
        try:
            line = dump_line(Header(id=name, created=now, title=title))
            descriptor = open_lines(path, create=True)
            break
        except ValidationError as error:
            raise InvalidMessage(explain(error, "session")) from None
        except FileExistsError as error:
            if not folder.is_dir():
                raise cannot_save(folder, NotADirectoryError("it is not a folder")) from error
        except (OSError, ValueError) as error:  # a NUL in the path
            raise cannot_save(path, error) from error
    try:
        append_line(descriptor, line, path, sync=True)
        with suppress(OSError):  # not every file system lets folders be synced
            sync(folder)
    except SaveFailed:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return path


def remove_file(path: Path) -> None:
    """Delete a session. A process that waits to append finds no file and makes none.

    Raises SaveFailed, UnknownSession.
    """
    with exclusive(path, lambda: UnknownSession(f"no session in {path}")):
        try:
            path.unlink(missing_ok=True)
            _title_path(path).unlink(missing_ok=True)
            for lock in ("lock", "run"):
                _beside(path, lock).unlink(missing_ok=True)
        except OSError as error:
            raise cannot_save(path, error) from error


def given_title(path: Path) -> str | None:
    """The title that `rename_file` gave the session."""
    try:
        return one_line(_title_path(path).read_text("utf-8", "replace"), MOST_TITLE) or None
    except (OSError, ValueError):
        return None


def rename_file(path: Path, title: str | None) -> None:
    """Give the session another title; None: the one that it had first. Raises SaveFailed, UnknownSession.

    It is kept in a file of its own, `FILE.title`, since lines once written are never changed.
    """
    kept = _title_path(path)
    with exclusive(path, lambda: UnknownSession(f"no session in {path}")):
        try:
            if title is None:
                kept.unlink(missing_ok=True)
                return
            replace_file(kept, f"{title}\n".encode(), 0o600)
        except (OSError, ValueError) as error:  # lone surrogates
            raise cannot_save(kept, error) from error


@contextmanager
def exclusive(path: Path, gone: Callable[[], UnknownSession]) -> Iterator[None]:
    """Hold the session's lock. Raises SaveFailed, and what `gone` makes when there is no file."""
    try:
        if not path.exists():
            raise gone()  # so that no lock file is made for a session that is gone
        lock = take(_beside(path, "lock"), PATIENCE)
    except TimeoutError as error:
        raise SaveFailed(
            f"cannot write to {path}: another process has held it for {PATIENCE:g} seconds; end that process"
        ) from error
    except OSError as error:
        raise cannot_save(path, error) from error
    with lock:
        yield


def _title_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.title")


def _beside(path: Path, suffix: str) -> Path:
    file = path.resolve()  # one lock, whatever link the file was opened by
    return file.with_name(f"{file.name}.{suffix}")
