"""One session: a tree of entries in a file, and the head after which new entries are added.

An entry is on the disk when the call that made it returns. Several processes may have a session open: each
has its own head, so their entries form branches, and each reads the others' entries before it appends. Only
one thread at a time may use a Session. Whoever adds a whole exchange, as a run does, holds the session
meanwhile with `alone`, and then goes on where the others ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from localagent.errors import InvalidMessage, UnknownSession, UsageError
from localagent.files.jsonl import Line, LineProblem
from localagent.messages import CustomMessage, FlushMessage, Message, RescueMessage, UserMessage, explained
from localagent.session.context import build_context, check_first_kept
from localagent.session.entries import (
    VERSION,
    BranchSummaryEntry,
    CompactionEntry,
    Damaged,
    Entry,
    Header,
    KnownEntry,
    MessageEntry,
    dump_line,
    load_line,
)
from localagent.session.file import Item, Memory, SessionFile, create_file, given_title
from localagent.session.mending import mended
from localagent.session.tree import Tree
from localagent.wording import one_line

TITLE = 80
"""Characters of a title taken from the user's first message."""
MENDED = "mended"
"""The type of the custom message in front of a conversation that was put in order; see `Session.alone`."""


class Session:
    """A conversation with all its branches. Make one with `create`, `open` or `in_memory`."""

    def __init__(self, file: SessionFile | Memory) -> None:
        self.header: Header | None = None
        """The file's first line; None if it was lost."""
        self._file = file
        self._head: str | None = None
        self._tree = Tree()
        self._problems: list[LineProblem] = []
        self._load()
        self._check()
        self._head = next(reversed(self._tree.entries), None)

    @classmethod
    def create(cls, folder: Path | str, *, title: str | None = None) -> Session:
        """A new session in a file of its own in `folder`. Raises SaveFailed, InvalidMessage."""
        return cls.open(create_file(Path(folder).absolute(), None if title is None else one_line(title)))

    @classmethod
    def open(cls, path: Path | str) -> Session:
        """The session in that file, with the head on its last entry.

        Raises UnknownSession if there is no file, UsageError if it cannot be read or has a newer version.
        """
        return cls(SessionFile(Path(path).absolute()))

    @classmethod
    def in_memory(cls) -> Session:
        """A new session that no file keeps; `copy_from` keeps it later, in one that has a file."""
        return cls(Memory())

    # -- reading --------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id, which is also the name of its file."""
        return self._file.id

    @property
    def file(self) -> Path:
        """The session's file; the null device for one in memory."""
        return self._file.path

    @property
    def title(self) -> str | None:
        """The given title, or else the user's first words, or None."""
        if renamed := given_title(self.file):
            return renamed
        if self.header is not None and self.header.title:
            return one_line(self.header.title)
        return next(filter(None, map(first_words, self._tree.entries.values())), None)

    @property
    def head(self) -> str | None:
        """The entry that the next one will follow; None if that will be the first."""
        return self._head

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries of all branches, in the order in which they were written."""
        return tuple(self._tree.entries.values())

    @property
    def problems(self) -> tuple[LineProblem, ...]:
        """The lines that could not be read."""
        return (*self._problems, self._file.torn) if self._file.torn else tuple(self._problems)

    def entry(self, entry_id: str) -> Entry:
        """The entry of that id. Raises UnknownSession."""
        return self._tree.entries[self._known(entry_id)]

    def path(self, entry_id: str | None = None) -> list[Entry]:
        """The entries from the beginning to this one, by default the head. Raises UnknownSession."""
        return self._tree.path(self._head if entry_id is None else self._known(entry_id))

    def children(self, entry_id: str | None) -> tuple[Entry, ...]:
        """The entries that follow this one; for None, the first entries. Raises UnknownSession."""
        return self._tree.children(None if entry_id is None else self._known(entry_id))

    @property
    def leaves(self) -> tuple[Entry, ...]:
        """The ends of all branches."""
        return self._tree.leaves()

    def context(self, entry_id: str | None = None) -> list[Message]:
        """The messages that a model is sent at this entry (default: the head); see `context.py`.

        Custom messages are among them: the request builder leaves them out. Raises UnknownSession.
        """
        return [message for _, message in build_context(self.path(entry_id))]

    def context_entries(self, entry_id: str | None = None) -> list[Entry]:
        """The entries of these messages, one for each. Raises UnknownSession."""
        return [entry for entry, _ in build_context(self.path(entry_id))]

    def refresh(self) -> tuple[Entry, ...]:
        """Read and return the entries of other processes. The head stays. Raises UnknownSession."""
        before = len(self._tree.entries)
        self._load()
        return self.entries[before:]

    # -- writing --------------------------------------------------------------------------------------

    def append(self, message: Message) -> str:
        """Add a message after the head, and make it the head. Returns the id of its entry.

        Raises SaveFailed, and UnknownSession if the session was removed; so do the methods below.
        """
        return self._append(_entry_of(message))

    def append_custom(self, custom_type: str, payload: JsonValue = None, **fields: Any) -> str:
        """Add data of the application's own, which is never sent to a model."""
        with explained("message"):
            message = CustomMessage(custom_type=custom_type, payload=payload, **fields)
        return self.append(message)

    def flush(self) -> str:
        """Start over: earlier messages stay in the file but are no longer sent."""
        return self.append(FlushMessage())

    def rescue(self, text: str) -> str:
        """Add a message that prompts the model again after unusable output."""
        with explained("message"):
            message = RescueMessage(content=text)
        return self.append(message)

    def branch(self, entry_id: str | None, summary: str | None = None) -> str | None:
        """Go back or switch to another branch: the next entry follows `entry_id`. Returns the new head.

        A `summary` of the branch being left is written as an entry, which becomes the head; without one,
        nothing is written. Raises UnknownSession, and UsageError if there is no branch to summarise.
        """
        target = None if entry_id is None else self._known(entry_id)
        if summary is None:
            self._head = target
            return target
        left = self._head
        if left is None:
            raise UsageError("there is no branch to summarise: nothing was said yet")
        return self._append(
            lambda new_id, _, now: BranchSummaryEntry(
                id=new_id, parent=target, timestamp=now, summary=summary, branch=left
            )
        )

    def compact(self, summary: str, *, first_kept: str | None, tokens_before: int | None = None) -> str:
        """Replace the messages before the entry `first_kept` by `summary`; None: the whole context.

        Raises UsageError if that entry is not in the context, or if results would lose their calls.
        """
        if first_kept is not None:
            self._known(first_kept)
        check_first_kept(self.path(), first_kept)
        return self._append(
            lambda entry_id, head, now: CompactionEntry(
                id=entry_id, parent=head, timestamp=now, summary=summary,
                first_kept=first_kept, tokens_before=tokens_before,
            )
        )  # fmt: skip

    def copy_from(self, other: Session) -> None:
        """Take the entries of another session, all branches with their ids, and its head.

        This session must be new. Raises UsageError, SaveFailed, UnknownSession.
        """
        if self._tree.entries:
            raise UsageError(f"session {self.id} has entries of its own: copy into a new one")
        with self._file.alone() as write:
            for entry in other.entries:
                write(dump_line(entry))
            self._load()
        self._head = other.head

    @contextmanager
    def alone(self) -> Iterator[str | None]:
        """Hold the session for a run, so that no other one adds to it meanwhile, in any thread or process.

        A head at the end of the session moves to its present end. Where several runs at once have mixed the
        conversation up, it is appended anew and in order, and this yields a sentence that says so. Raises
        ConversationBusy, UnknownSession, SaveFailed.
        """
        with self._file.held():
            self._follow()
            yield self._mend()

    def _follow(self) -> None:
        """Move the head to the end of what others have added behind it."""
        end = next(reversed(self._tree.entries), None)
        if self._head == end and (added := self.refresh()):
            last = added[-1].id
            if end is None or any(entry.id == end for entry in self.path(last)):
                self._head = last

    def _mend(self) -> str | None:
        messages = mended(self.context())
        if messages is None:
            return None
        # In one write: a part of it would stand for the whole if the program were killed in between.
        note = CustomMessage(custom_type=MENDED, payload={"mixed_up": self._head})
        self._append(*map(_entry_of, [FlushMessage(), note, *messages]))
        return f"{self.id} had been mixed up by several runs at once: its messages were put in order again"

    # -- the file -------------------------------------------------------------------------------------

    def _append(self, *makes: Callable[[str, str | None, datetime], KnownEntry]) -> str:
        """Append entries, made from an id, the entry before and the time. The last one becomes the head."""
        with self._file.alone() as write:
            self._load()  # so that ids are unique and every process sees the entries in one order
            head, lines = self._head, dict[str, bytes]()
            for make in makes:
                entry_id = secrets.token_hex(4)
                while entry_id in self._tree.entries or entry_id in lines:
                    entry_id = secrets.token_hex(4)
                with explained("entry"):
                    line = dump_line(make(entry_id, head, datetime.now(UTC)))
                # A message may have been made without validation, and could then not be read again.
                if isinstance(loaded := load_line(line), Damaged):
                    raise InvalidMessage(loaded.reason)
                lines[entry_id] = line
                head = entry_id
            write(b"\n".join(lines.values()))
            self._load()
        self._head = head
        return entry_id

    def _load(self) -> None:
        """Read what was appended since the last read."""
        for item in self._file.read():
            self._take(item)

    def _take(self, item: Item) -> None:
        if isinstance(item, LineProblem):
            self._problems.append(item)
            return
        match item.value:
            case Header() as header:
                if item.line == 1:
                    self.header = header
                else:
                    self._problem(item, "a second session header: skipped")
            case Damaged(entry=entry, reason=reason):
                self._problem(item, f"{reason}: kept only as a link in the tree")
                self._add(item, entry)
            case entry:
                self._add(item, entry)

    def _add(self, line: Line[Any], entry: Entry) -> None:
        if reason := self._tree.add(entry):
            self._problem(line, reason)

    def _problem(self, line: Line[Any], reason: str) -> None:
        self._problems.append(LineProblem(line.line, line.offset, reason))

    def _check(self) -> None:
        """Check that it is a session, and note a problem with its first line."""
        if self.header is not None:
            if self.header.version != VERSION:
                raise UsageError(
                    f"{self.file} is a session of version {self.header.version!r:.40}, "
                    f"but this localagent reads version {VERSION}: update localagent"
                )
        elif not self._tree.entries and not self._file.begins_like_one():
            raise UnknownSession(f"{self.file} is not a session")
        elif not any(problem.line == 1 for problem in self.problems):
            self._problems.insert(0, LineProblem(1, 0, "the line that says what the file is was lost"))

    def _known(self, entry_id: str) -> str:
        if not isinstance(entry_id, str) or entry_id not in self._tree.entries:
            raise UnknownSession(f"session {self.id} has no entry {entry_id!r:.80}")
        return entry_id


def _entry_of(message: Message) -> Callable[[str, str | None, datetime], MessageEntry]:
    return lambda entry_id, head, now: MessageEntry(id=entry_id, parent=head, timestamp=now, message=message)


def first_words(item: object) -> str | None:
    """The first words of a user's entry, on one line; None for any other entry."""
    if isinstance(item, MessageEntry) and isinstance(item.message, UserMessage):
        return one_line(item.message.text, TITLE) or None
    return None
