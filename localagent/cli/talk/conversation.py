"""The conversation of `localagent chat`: a session, as the agent's history, with its branches and settings.

It is in memory until the first answer, or for good with `--no-save`; then a file keeps it. The conversation
goes on whatever happens to that file; if it can no longer be written, the user is told once. A user message
is added only when its answer begins, so that a refused turn leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from localagent.agent import SessionHistory
from localagent.cli.attaching import typed_of
from localagent.errors import ConversationBusy, LocalAgentError, UsageError
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    FlushMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session import Entry, MessageEntry, Session, SessionStore
from localagent.session.entries import SETTINGS
from localagent.wording import one_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """One way that the conversation took: the entry it ends in, and what tells it from the others."""

    end: str
    asked: str
    answered: str
    turns: int
    """How many messages of the user's are on it."""
    here: bool
    """The conversation goes on from here."""


class Conversation:
    """The agent's `History`, kept by a session."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        system: str | None = None,
        store: SessionStore | None = None,
        session: Session | None = None,
    ) -> None:
        """`store`: where it is saved; None for a conversation in memory. `session`: one that is resumed."""
        self.system = system
        self.say = say
        """Tells the user what happens to the session."""
        self.settings: dict[str, Any] | None = None if session is None else recorded(session)
        """What to record of the model and its tools, with the next message."""
        self._recorded = self.settings
        self._store = store
        self._saved = store is not None and session is not None
        self._asked: list[Message] = []
        self._held: ExitStack | None = None
        """What the run holds that goes on."""
        self._session = Session.in_memory()
        if session is not None and self._saved:
            self._session = session
        elif session is not None:
            self._session.copy_from(session)
        else:
            self._instruct()

    @classmethod
    def open(
        cls, say: Callable[[str], None], *, system: str | None, resume: str | None, save: bool
    ) -> Conversation:
        """A new conversation, or the resumed one. Raises UnknownSession, UsageError."""
        if resume is None:
            return cls(say, system=system, store=SessionStore() if save else None)
        if system is not None:
            raise UsageError(
                "a resumed session has its own instructions: leave out --system and --role, "
                "or use /system in the chat"
            )
        store = SessionStore()
        session = store.open(resume)
        if problems := len(session.problems):
            lines = "line" if problems == 1 else "lines"
            say(f"({problems:,} {lines} of {session.id} could not be read: see `localagent sessions show`)")
        say(f"(continuing {session.id}: {session.title or 'nothing said yet'})")
        if _step_back(session):
            say("(your last message in it has no answer: it stays in the session and is not sent)")
        told = [message.text for message in session.context() if isinstance(message, SystemMessage)]
        system = "\n\n".join(told) or None
        return cls(say, system=system, store=store if save else None, session=session)

    @property
    def where(self) -> str | None:
        """The file that keeps it, if one does."""
        return str(self._session.file) if self._saved else None

    # -- the agent's history --------------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """The messages that are sent to the model."""
        return [*self._session.context(), *self._asked]

    def append(self, message: Message) -> None:
        """Add a message, and save it unless it still waits for an answer."""
        self._asked.append(message)
        if not isinstance(message, UserMessage):
            self._answered()

    @contextmanager
    def alone(self) -> Iterator[str | None]:
        """Hold the session for a run, also one in which the conversation is first saved meanwhile."""
        with ExitStack() as held:
            mended = self._write(lambda session: held.enter_context(session.alone()))
            self._held = held
            try:
                yield mended
            finally:
                self._held = None

    def forget_unanswered(self) -> None:
        """Remove the user's message if no answer came."""
        self._asked.clear()

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Replace all but the last `kept` messages by `summary`; an unanswered one stays pending if kept."""
        if kept < len(self._asked):
            self._answered()
        else:
            kept -= len(self._asked)
        self._write(lambda session: SessionHistory(session).compact(summary, kept, tokens_before))

    def _answered(self) -> None:
        self._keep(self._asked)
        self._asked.clear()

    # -- branches -------------------------------------------------------------------------------------

    def last_asked(self) -> UserMessage | None:
        """The user's last message of this conversation."""
        asked = self._last_asked()
        return asked.message if asked is not None else None  # type: ignore[return-value]

    def last_answer(self) -> AssistantMessage | None:
        """The model's last message of this conversation."""
        found = (m for m in reversed(self.messages()) if isinstance(m, AssistantMessage))
        return next(found, None)

    @property
    def place(self) -> str | None:
        """The entry that the next one will follow."""
        return self._session.head

    def return_to(self, place: str | None) -> None:
        """Go on from an entry as if nothing had come after it."""
        self._session.branch(place)

    def reopen(self) -> bool:
        """Go back to the user's last message, for another answer to it; False if there is none."""
        asked = self._last_asked()
        if asked is not None:
            self._session.branch(asked.id)
        return asked is not None

    def rewind(self) -> UserMessage | None:
        """Go back to before the user's last message, which is returned. It stays in the session."""
        asked = self._last_asked()
        if asked is None:
            return None
        self._session.branch(asked.parent)
        return asked.message  # type: ignore[return-value]

    def branches(self) -> list[Branch]:
        """All ways that the conversation took, the oldest first."""
        paths = [_unmarked(self._session.path(leaf.id)) for leaf in self._session.leaves]
        current = _unmarked(self._session.path())
        # After /undo the conversation stands within another branch; a branch of its own is where one ends.
        inner = {entry.id for path in paths for entry in path[:-1]}
        ends = {path[-1].id: path for path in paths if path and path[-1].id not in inner}
        if current:
            ends[current[-1].id] = current
        branches = []
        for end in (entry.id for entry in self._session.entries if entry.id in ends):
            path = ends[end]
            said = [entry.message for entry in path if isinstance(entry, MessageEntry)]
            asked = [typed_of(entry.message) for entry in path if _is_asked(entry)]  # type: ignore[union-attr,arg-type]
            answered = [message.text for message in said if isinstance(message, AssistantMessage)]
            if asked:
                words = one_line(asked[-1], 60), one_line(answered[-1], 60) if answered else ""
                branches.append(Branch(end, *words, len(asked), path == current))
        return branches

    def switch(self, end: str) -> None:
        """Go on from the end of another branch."""
        self._session.branch(end)
        self.mark()

    def mark(self) -> None:
        """Record where the conversation stands now, so that it is resumed here."""
        if self._saved:
            self._record()

    def _last_asked(self) -> MessageEntry | None:
        for entry in reversed(self._session.path()):
            if not isinstance(entry, MessageEntry):
                continue
            if isinstance(entry.message, FlushMessage):
                return None
            if _is_asked(entry):
                return entry
        return None

    # -- the session ----------------------------------------------------------------------------------

    def restart(self, system: str | None) -> None:
        """Start again with the instructions only; the old messages stay in the session."""
        self.system = system
        self._asked.clear()
        if not self._saved and not self._last_asked():
            self._session = Session.in_memory()
        elif self._session.head is not None:
            self._write(lambda session: session.flush())
        self._instruct()

    def save(self) -> None:
        """Save a conversation that was in memory so far. Raises SaveFailed."""
        if not self._saved:
            self._store = self._store or SessionStore()
            kept = self._store.create()
            kept.copy_from(self._session)
            if self._held is not None:
                self._held.enter_context(kept.alone())
            self._session, self._saved = kept, True
            self.say(f"(saved in {kept.file}; continue with: localagent chat --resume {kept.id})")

    def _instruct(self) -> None:
        if self.system:
            message = SystemMessage(content=self.system)
            self._write(lambda session: session.append(message))

    def _keep(self, messages: Iterable[Message]) -> None:
        if self._store is not None and not self._saved:
            try:
                self.save()
            except LocalAgentError as error:
                self._give_up(error)
        if self.settings != self._recorded:
            self._record()
        for message in messages:
            self._write(partial(Session.append, message=message))

    def _record(self) -> None:
        self._recorded = self.settings
        self._write(lambda session: session.append_custom(SETTINGS, self.settings))

    def _write(self, change: Callable[[Session], T]) -> T:
        """Change the session. If its file cannot be written, go on in memory."""
        try:
            return change(self._session)
        except LocalAgentError as error:
            if not self._saved or isinstance(error, ConversationBusy):
                raise
            self._give_up(error)
            return change(self._session)

    def _give_up(self, error: LocalAgentError) -> None:
        if self._saved:
            lost, self._session = self._session, Session.in_memory()
            self._session.copy_from(lost)
        self._store, self._saved = None, False
        self.say(f"localagent: {error}; this conversation goes on and is no longer saved")


def recorded(session: Session) -> dict[str, Any] | None:
    """The settings that a session recorded last, on whatever branch."""
    for entry in reversed(session.entries):
        if isinstance(entry, MessageEntry) and isinstance(entry.message, CustomMessage):
            message = entry.message
            if message.custom_type == SETTINGS and isinstance(message.payload, dict):
                return message.payload
    return None


def _unmarked(path: list[Entry]) -> list[Entry]:
    """A path without the settings at its end, which may be there only to mark the place."""
    end = len(path)
    while end and _is_custom(path[end - 1]):
        end -= 1
    return path[:end]


def _is_custom(entry: Entry) -> bool:
    return isinstance(entry, MessageEntry) and isinstance(entry.message, CustomMessage)


def _is_asked(entry: Entry) -> bool:
    """Whether it is a message of the user's, and not only tool results."""
    return (
        _is_unanswered(entry) and isinstance(entry, MessageEntry) and isinstance(entry.message, UserMessage)
    )


def _step_back(session: Session) -> bool:
    """Go back to before an unanswered message: two user turns in a row confuse models."""
    path = session.path()
    start = len(path)
    while start and _is_unanswered(path[start - 1]):
        start -= 1
    if not any(
        isinstance(entry.message, UserMessage) for entry in path[start:] if isinstance(entry, MessageEntry)
    ):
        return False
    session.branch(path[start - 1].id if start else None)
    return True


def _is_unanswered(entry: Entry) -> bool:
    """Whether it is a message that neither the model nor a tool wrote."""
    if not isinstance(entry, MessageEntry):
        return False
    message = entry.message
    if isinstance(message, UserMessage):
        return not any(isinstance(part, ToolResultPart) for part in message.content)
    return isinstance(message, CustomMessage | RescueMessage)
