"""Where a run reads the conversation from and adds to it: a list, a session, or anything alike.

Knows messages and sessions. Contract: what is appended is kept before the run goes on, so that a program that
is killed leaves a conversation that can be continued.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from localagent.errors import UsageError
from localagent.messages import BaseMessage, CompactionSummaryMessage, FlushMessage, Message, SystemMessage
from localagent.session import Session


@runtime_checkable
class History(Protocol):
    """A conversation that grows."""

    def messages(self) -> list[Message]:
        """What the model is to be told, oldest first."""

    def append(self, message: Message) -> None:
        """Add a message behind the last one. Raises SaveFailed."""

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Let `summary` stand for all but the last `kept` messages; system messages stay in front."""


class ListHistory:
    """A conversation in a list of the caller's, which grows with it."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def messages(self) -> list[Message]:
        """A copy of the list."""
        return list(self._messages)

    def append(self, message: Message) -> None:
        """Add to the list."""
        self._messages.append(message)

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Replace the older messages in the list."""
        start = len(self._messages) - kept
        flushes = (at for at in range(start) if isinstance(self._messages[at], FlushMessage))
        told = self._messages[max(flushes, default=-1) + 1 : start]
        systems = [message for message in told if isinstance(message, SystemMessage)]
        summarised = CompactionSummaryMessage(content=summary)
        self._messages[:] = [*systems, summarised, *self._messages[start:]]


class SessionHistory:
    """A conversation in a session, whose file keeps everything."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def messages(self) -> list[Message]:
        """The context of the session at its head."""
        return self._session.context()

    def append(self, message: Message) -> None:
        """Write the message to the session."""
        self._session.append(message)

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Write the summary to the session; what it stands for stays in the file."""
        first_kept = self._session.context_entries()[-kept].id if kept else None
        self._session.compact(summary, first_kept=first_kept, tokens_before=tokens_before)


def as_history(history: History | Session | list[Message] | None) -> History:
    """The history that is meant; None begins one. Raises UsageError."""
    match history:
        case None:
            return ListHistory([])
        case list():
            for message in history:
                if not isinstance(message, BaseMessage):
                    raise UsageError(f"{message!r:.60} in the history is no message: see localagent.messages")
            return ListHistory(history)
        case Session():
            return SessionHistory(history)
        case History():
            return history
    raise UsageError(f"history must be a list of messages or a session, not {type(history).__name__}")
