"""Tools that keep short notes from one conversation to the next, in one file of JSON lines.

    {"id": 1, "at": "2026-01-31T12:00:00Z", "text": "..."}    a note
    {"removed": 1, "at": "2026-01-31T12:00:00Z"}              that note was removed

A note is on the disk when `add_note` returns. Any number of processes may share a file, and one that is
killed loses at most the note that it was writing. Nothing is erased: a note that was removed by mistake can
still be read in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from localagent.errors import SaveFailed, ToolError
from localagent.files.jsonl import LineProblem, LineReader, append_line, open_lines
from localagent.files.lock import PATIENCE, take
from localagent.files.paths import cannot_save, user_path
from localagent.messages import explained
from localagent.messages.values import Text
from localagent.tools import Tool, tool

MAX_NOTE = 4_000
"""Characters of a note."""
MAX_TEXT = 20_000
"""Characters that one call returns."""
MAX_FILE = 50_000_000
"""Bytes of a file of notes."""


class Note(BaseModel):
    """A note. Ids count from 1, and none is used twice."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: int = Field(ge=1, le=10**12)
    at: AwareDatetime
    text: Text


class Removed(BaseModel):
    """The line that removes a note."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    removed: int
    at: AwareDatetime


_LINE: TypeAdapter[Note | Removed] = TypeAdapter(Note | Removed)


def default_path() -> Path:
    """`$LOCALAGENT_HOME/notes.jsonl`, else `notes.jsonl` in the user's data folder. Raises UsageError."""
    return user_path("data", "notes.jsonl")


def kept(_: Path) -> list[Tool]:
    """The tools for the notes of this user."""
    return notes()


def notes(path: Path | str | None = None) -> list[Tool]:
    """Tools to add, find and remove notes in the file at `path`; by default see `default_path`."""
    book = NoteBook(default_path() if path is None else Path(path).absolute())

    @tool(kind="edit")
    def add_note(text: str) -> str:
        """Keep a note for later conversations.

        Args:
            text: What to remember.
        """
        return f"kept as note {book.add(text).id}"

    @tool(kind="read")
    def find_notes(query: str = "") -> str:
        """Find notes that were kept, the newest first.

        Args:
            query: Words that the note must contain, all of them; without any, every note is found.
        """
        return _listed(book.find(query))

    @tool(side_effects=True, kind="edit")
    def remove_note(id: int) -> str:
        """Remove a note.

        Args:
            id: The number of the note, which find_notes lists.
        """
        return f"removed note {id}: {book.remove(id).text}"

    return [add_note, find_notes, remove_note]


def _listed(found: list[Note]) -> str:
    lines: list[str] = []
    size = 0
    for note in found:
        line = f"{note.id} ({note.at:%Y-%m-%d}): {note.text}"
        size += len(line) + 1
        if size > MAX_TEXT:
            lines.append(f"({len(found) - len(lines):,} older notes: use more words)")
            break
        lines.append(line)
    return "\n".join(lines) or "no notes found"


class NoteBook:
    """The notes in one file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, text: str) -> Note:
        """Keep a note. Raises ToolError."""
        text = text.strip()
        if not text:
            raise ToolError("the note is empty: say what to remember")
        if len(text) > MAX_NOTE:
            raise ToolError(f"the note has {len(text):,} characters: at most {MAX_NOTE:,} are kept")
        with self._alone():
            known, last = self._read()
            for note in known:
                if note.text == text:
                    return note
            with explained("note", ToolError):
                note = Note(id=last + 1, at=datetime.now(UTC), text=text)
            self._append(note)
            return note

    def find(self, query: str) -> list[Note]:
        """The notes with every word of the query in them, the newest first. Raises ToolError."""
        words = query.casefold().split()
        known, _ = self._read()
        return [note for note in reversed(known) if all(word in note.text.casefold() for word in words)]

    def remove(self, number: int) -> Note:
        """Remove a note and return it. Raises ToolError when there is none of that number."""
        with self._alone():
            known, _ = self._read()
            for note in known:
                if note.id == number:
                    self._append(Removed(removed=number, at=datetime.now(UTC)))
                    return note
        raise ToolError(f"there is no note {number!s:.20}: find_notes lists the numbers")

    def _read(self) -> tuple[list[Note], int]:
        """The notes by id, and the highest id that was ever used. Raises ToolError."""
        try:
            if not self.path.exists():
                return [], 0
            if not self.path.is_file() or self.path.stat().st_size > MAX_FILE:
                raise ToolError(f"{self.path.name} is not a file of notes, or it is too large")
            items = LineReader(self.path, _load).read()
        except (OSError, ValueError) as error:  # a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise ToolError(f"the notes cannot be read: {reason}") from error
        found: dict[int, Note] = {}
        last = 0
        for item in items:
            if isinstance(item, LineProblem):
                continue  # a process was killed while it wrote that line
            match item.value:
                case Note() as note:
                    found.setdefault(note.id, note)
                    last = max(last, note.id)
                case Removed(removed=number):
                    found.pop(number, None)
        return [found[number] for number in sorted(found)], last

    def _append(self, line: Note | Removed) -> None:
        """Write a line at the end. Only inside `_alone`. Raises ToolError."""
        data = line.model_dump_json().encode()
        try:
            try:
                descriptor = open_lines(self.path, create=False)
            except FileNotFoundError:
                descriptor = open_lines(self.path, create=True)
            try:
                append_line(descriptor, data, self.path, sync=True)
            finally:
                os.close(descriptor)
        except SaveFailed as error:
            raise ToolError(str(error)) from error
        except OSError as error:
            raise ToolError(str(cannot_save(self.path, error))) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads and processes from writing. Raises ToolError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = take(self.path.with_name(f"{self.path.name}.lock"), PATIENCE)
        except TimeoutError as error:
            raise ToolError(
                f"the notes are in use: another process has held them for {PATIENCE:g} seconds"
            ) from error
        except (OSError, ValueError) as error:  # a NUL in the path
            raise ToolError(str(cannot_save(self.path, error))) from error
        with lock:
            yield


def _load(data: bytes) -> Note | Removed:
    with explained("note", ValueError):
        return _LINE.validate_json(data)
