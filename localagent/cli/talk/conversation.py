"""The conversation of `localagent chat` and the session that saves it, as the agent's history.

The conversation goes on whatever happens to its session; if the session can no longer be written, the user
is told once. A user message is saved only when its answer begins, so that a refused turn leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable

from localagent.agent import ListHistory, SessionHistory
from localagent.errors import LocalAgentError, UsageError
from localagent.messages import (
    CustomMessage,
    Message,
    RescueMessage,
    SystemMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.session import Entry, MessageEntry, Session, SessionStore


class Conversation:
    """The agent's `History`, saved to a session if there is one."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        system: str | None = None,
        store: SessionStore | None = None,
        session: Session | None = None,
    ) -> None:
        self.system = system
        self._messages: list[Message] = session.context() if session else _instructions(system)
        self._asked: list[Message] = []
        self.say = say
        """Tells the user what happens to the session."""
        self._store = store
        self._session = session
        self._saved = len(self._messages) if session else 0

    @classmethod
    def open(
        cls, say: Callable[[str], None], *, system: str | None, resume: str | None, save: bool
    ) -> Conversation:
        """A new conversation, or the resumed one. Raises UnknownSession, UsageError."""
        if resume is None:
            return cls(say, system=system, store=SessionStore() if save else None)
        if system is not None:
            raise UsageError(
                "a resumed session has its own instructions: leave out --system, or use /system in the chat"
            )
        store = SessionStore()
        session = store.open(resume)
        if problems := len(session.problems):
            lines = "line" if problems == 1 else "lines"
            say(f"({problems:,} {lines} of {session.id} could not be read: see `localagent sessions show`)")
        say(f"(continuing {session.id}: {session.title or 'nothing said yet'}; /history shows it)")
        if _step_back(session):
            say("(your last message in it has no answer: it stays in the session and is not sent)")
        told = [message.text for message in session.context() if isinstance(message, SystemMessage)]
        system = "\n\n".join(told) or None
        return cls(say, system=system, store=store if save else None, session=session)

    def messages(self) -> list[Message]:
        """The messages that are sent to the model."""
        return [*self._messages, *self._asked]

    def append(self, message: Message) -> None:
        """Add a message, and save it unless it still waits for an answer."""
        self._asked.append(message)
        if not isinstance(message, UserMessage):
            self._answered()

    def forget_unanswered(self) -> None:
        """Remove the user's message if no answer came."""
        self._asked.clear()

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Replace all but the last `kept` messages by `summary`; an unanswered one stays pending if kept."""
        if kept < len(self._asked):
            self._answered()
        else:
            kept -= len(self._asked)
        if self._store is None or self._session is None:
            ListHistory(self._messages).compact(summary, kept, tokens_before)
            self._saved = 0
            return
        try:
            SessionHistory(self._session).compact(summary, kept, tokens_before)
        except LocalAgentError as error:
            self._give_up(error)
            ListHistory(self._messages).compact(summary, kept, tokens_before)
        else:
            self._messages = self._session.context()
            self._saved = len(self._messages)

    def _answered(self) -> None:
        self._messages += self._asked
        self._asked.clear()
        self._save()

    def restart(self, system: str | None) -> None:
        """Start again with the instructions only; the old messages stay in the session."""
        self.system = system
        self._messages = _instructions(system)
        self._saved = 0
        if self._session is not None and self._session.head is not None:
            self._save(flush=True)

    def _save(self, *, flush: bool = False) -> None:
        if self._store is None:
            return
        try:
            if self._session is None:
                self._session = self._store.create()
                self.say(
                    f"(saved in {self._session.file}; "
                    f"continue with: localagent chat --resume {self._session.id})"
                )
            if flush:
                self._session.flush()
            for message in self._messages[self._saved :]:
                self._session.append(message)
                self._saved += 1
        except LocalAgentError as error:
            self._give_up(error)

    def _give_up(self, error: LocalAgentError) -> None:
        self._store = self._session = None
        self.say(f"localagent: {error}; this conversation goes on and is no longer saved")


def _instructions(system: str | None) -> list[Message]:
    return [SystemMessage(content=system)] if system else []


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
