"""The sessions on this machine: the folder they are in, found by id.

    ROOT/ID.jsonl        one session
    ROOT/ID.jsonl.lock   locked while a process appends to it
    ROOT/ID.jsonl.run    locked while a run adds to the conversation
    ROOT/ID.jsonl.title  another title that it was given

A file that is broken, or is not a session, does not keep the others from being listed. Nothing is cached:
every answer is read from the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from localagent.errors import LocalAgentError, UnknownSession, UsageError
from localagent.files.paths import user_path
from localagent.messages import CustomMessage
from localagent.session.entries import (
    VERSION,
    BranchSummaryEntry,
    CompactionEntry,
    Header,
    MessageEntry,
    load_line,
)
from localagent.session.file import MOST_TITLE, SUFFIX, given_title, remove_file, rename_file
from localagent.session.session import TITLE, Session, first_words
from localagent.wording import one_line

GLANCE = 64 << 10
"""Bytes at the start of a file in which `list` looks for the title."""
PASSAGE = 160
"""Characters around what was sought."""
LATEST = 32_503_680_000
"""The year 3000, in seconds: a file's time may be later than datetime can express."""


def default_root() -> Path:
    """`$LOCALAGENT_HOME/sessions`, else `sessions` in the user's data folder. Raises UsageError."""
    return user_path("data", "sessions")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as `list` shows it. `problem` says why its beginning cannot be read, if so."""

    id: str
    path: Path
    title: str | None
    created: datetime | None
    changed: datetime
    size: int
    """Bytes."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A session that a search found, and the words around what was sought."""

    info: SessionInfo
    passage: str


class SessionStore:
    """The sessions below `root`."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = default_root() if root is None else Path(root).absolute()

    def create(self, title: str | None = None) -> Session:
        """A new session. Raises SaveFailed."""
        return Session.create(self.root, title=title)

    def list(self) -> list[SessionInfo]:
        """All sessions, the last changed first. Raises UsageError when the folder cannot be read."""
        sessions = []
        for path in self._paths():
            try:
                sessions.append((path.stat().st_mtime_ns, path.name, glance(path)))
            except FileNotFoundError:
                continue  # removed while we look
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        return [info for _, _, info in sorted(sessions, key=lambda item: item[:2], reverse=True)]

    def find(self, name: str) -> Path:
        """The file of a session, by its id, the unique beginning of one, or "last" for the one changed last.

        Raises UnknownSession if there is none, UsageError if several match.
        """
        paths = {path.name.removesuffix(SUFFIX): path for path in self._paths()}
        if name == "last" and name not in paths:
            return self._latest()
        fitting = [name] if name in paths else sorted(key for key in paths if name and key.startswith(name))
        if not fitting:
            raise UnknownSession(f"no session {name!r:.80} in {self.root}: see `localagent sessions list`")
        if len(fitting) > 1:
            more = f" and {len(fitting) - 5:,} more" if len(fitting) > 5 else ""
            raise UsageError(f"several sessions begin with {name}: {', '.join(fitting[:5])}{more}")
        return paths[fitting[0]]

    def _latest(self) -> Path:
        for info in self.list():
            return info.path
        raise UnknownSession(f"there are no sessions in {self.root} yet")

    def open(self, name: str) -> Session:
        """The session of that id or prefix. Raises as `find` and `Session.open` do."""
        return Session.open(self.find(name))

    def remove(self, session: str | Path) -> Path:
        """Delete a session, by id or by file; returns the file. Raises as `find` does, and SaveFailed."""
        path = session if isinstance(session, Path) else self.find(session)
        remove_file(path)
        return path

    def rename(self, session: str | Path, title: str | None) -> Path:
        """Give a session another title, found by id or by file; None takes it back. Returns the file.

        Raises as `find` does, SaveFailed, and UsageError for a title without words.
        """
        path = session if isinstance(session, Path) else self.find(session)
        words = None if title is None else one_line(title, MOST_TITLE)
        if words == "":
            raise UsageError("the title is empty")
        rename_file(path, words)
        return path

    def search(self, text: str) -> Iterator[Found]:
        """The sessions in which all words of `text` occur, in any letter case, the last changed first.

        The title counts, and what was said on any branch. Sessions that cannot be read are passed over.
        """
        words = text.casefold().split()
        for info in self.list():
            try:
                passages = [info.title or "", *_said(Session.open(info.path))]
            except LocalAgentError:
                continue
            whole = "\n".join(passages).casefold()
            if words and all(word in whole for word in words):
                # The passage that has most of the words, and of several the last.
                best = max(
                    reversed(passages),
                    key=lambda passage: sum(word in passage.casefold() for word in words),
                )
                yield Found(info, _around(best, words))

    def _paths(self) -> Iterator[Path]:
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    with suppress(OSError):  # a link that leads nowhere
                        if entry.name.endswith(SUFFIX) and entry.is_file():
                            yield Path(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:  # a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot read {str(self.root)!r}: {reason}") from error


def _said(session: Session) -> Iterator[str]:
    """All that was said, on all branches."""
    for entry in session.entries:
        match entry:
            case MessageEntry(message=message) if not isinstance(message, CustomMessage):
                yield message.text
            case CompactionEntry(summary=summary) | BranchSummaryEntry(summary=summary):
                yield summary


def _around(passage: str, words: Sequence[str]) -> str:
    """The part of the passage around the first of the words, on one line."""
    line = one_line(passage)
    low = line.casefold()
    first = min((place for word in words if (place := low.find(word)) >= 0), default=0)
    start = max(0, first - PASSAGE // 3)
    return f"{'...' if start else ''}{one_line(line[start:], PASSAGE)}"


def glance(path: Path) -> SessionInfo:
    """What the beginning of a session's file shows. Raises FileNotFoundError."""
    state = path.stat()
    title, created, problem = None, None, None
    try:
        with path.open("rb") as file:
            start = file.read(GLANCE)
    except FileNotFoundError:
        raise
    except OSError as error:
        start, problem = b"", f"cannot be read: {error.strerror or error}"
    for number, line in enumerate(start.split(b"\n")):
        try:
            item = load_line(line)
        except ValueError:
            item = None
        if isinstance(item, Header) and number == 0:
            title, created = item.title and one_line(item.title, TITLE), item.created
            if item.version != VERSION:
                problem = "of another version of localagent"
        title = title or first_words(item)
        if title is not None or problem is not None:
            break
    title = given_title(path) or title
    if created is None and problem is None:
        problem = "its first line is lost"
    return SessionInfo(
        path.name.removesuffix(SUFFIX), path, title, created,
        datetime.fromtimestamp(min(max(state.st_mtime, 0), LATEST), UTC), state.st_size, problem,
    )  # fmt: skip
