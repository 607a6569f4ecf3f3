"""What is said in `localagent chat`, and the session that keeps it.

Knows messages and the session store. Does not know models or terminals. Contract: the conversation goes on
whatever becomes of its session; when that cannot be written any more, it is said once.
"""

from __future__ import annotations

from collections.abc import Callable

from localagent.errors import LocalAgentError, UsageError
from localagent.messages import (
    AssistantMessage,
    CustomMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session import Entry, MessageEntry, Session, SessionStore


class Conversation:
    """The messages so far, instructions included. `say` tells the user what becomes of the session."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        system: str | None = None,
        store: SessionStore | None = None,
        session: Session | None = None,
    ) -> None:
        self.system = system
        self.messages: list[Message] = session.context() if session else _instructions(system)
        self._say = say
        self._store = store
        self._session = session
        self._saved = len(self.messages) if session else 0

    @classmethod
    def open(
        cls, say: Callable[[str], None], *, system: str | None, resume: str | None, save: bool
    ) -> Conversation:
        """A new conversation, or the one to go on with. Raises UnknownSession, UsageError."""
        if resume is None:
            return cls(say, system=system, store=SessionStore() if save else None)
        if system is not None:
            raise UsageError(
                "a session has its own instructions: leave out --system, or say /system in the chat"
            )
        store = SessionStore()
        session = store.open(resume)
        if problems := len(session.problems):
            lines = "line" if problems == 1 else "lines"
            say(f"({problems:,} {lines} of {session.id} could not be read: see `localagent sessions show`)")
        say(f"(going on with {session.id}: {session.title or 'nothing said yet'}; /history shows it)")
        if _step_back(session):
            say("(your last words in it had no answer: they stay in the session and are not sent)")
        told = [message.text for message in session.context() if isinstance(message, SystemMessage)]
        system = "\n\n".join(told) or None
        return cls(say, system=system, store=store if save else None, session=session)

    def add(self, asked: UserMessage, answer: AssistantMessage) -> None:
        """Take an answered turn."""
        self.messages += (asked, answer)
        self._save()

    def restart(self, system: str | None) -> None:
        """Forget all but the instructions; the session keeps it."""
        self.system = system
        self.messages = _instructions(system)
        self._saved = 0
        if self._session is not None and self._session.head is not None:
            self._save(flush=True)

    def _save(self, *, flush: bool = False) -> None:
        if self._store is None:
            return
        try:
            if self._session is None:
                self._session = self._store.create()
                self._say(
                    f"(kept in {self._session.file}; go on with: localagent chat --resume {self._session.id})"
                )
            if flush:
                self._session.flush()
            for message in self.messages[self._saved :]:
                self._session.append(message)
                self._saved += 1
        except LocalAgentError as error:
            self._store = self._session = None
            self._say(f"localagent: {error}; this conversation goes on and is no longer kept")


def _instructions(system: str | None) -> list[Message]:
    return [SystemMessage(content=system)] if system else []


def _step_back(session: Session) -> bool:
    """Go back to before words without an answer: two turns of the user in a row confuse models."""
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
    """Whether it is what a user said, or stands in such a row without a word of the model's or a tool's."""
    if not isinstance(entry, MessageEntry):
        return False
    message = entry.message
    if isinstance(message, UserMessage):
        return not any(isinstance(part, ToolResultPart) for part in message.content)
    return isinstance(message, CustomMessage | RescueMessage)
