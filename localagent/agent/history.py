"""The conversation of a run: where it is kept, and what the run adds to it.

What is appended is kept before the run goes on, so that a program that is killed leaves a conversation that
can be continued. Whenever a run ends, or is left, every call in the history has its result.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from localagent.agent.slot import NOT_RUN, Slot, abandon, refused
from localagent.chat_model import as_conversation
from localagent.errors import UsageError
from localagent.files.lock import alone
from localagent.messages import (
    BaseMessage,
    CompactionSummaryMessage,
    FlushMessage,
    Message,
    SystemMessage,
    ToolMessage,
)
from localagent.prompt.pairing import unanswered
from localagent.session import Session

INTERRUPTED = (
    "No result: the program ended before this call's result was kept. It may have run, wholly or in part."
)
CONVERSATION = "this conversation"

M = TypeVar("M", bound=BaseMessage)


def stamped(message: M) -> M:
    """The message with an id and the present time, where it has none of its own."""
    if message.id is not None and message.timestamp is not None:
        return message
    known = {
        "id": message.id or f"msg_{secrets.token_hex(8)}",
        "timestamp": message.timestamp or datetime.now(UTC),
    }
    return message.model_copy(update=known)


@runtime_checkable
class History(Protocol):
    """A conversation that grows."""

    def messages(self) -> list[Message]:
        """What the model is to be told, oldest first."""

    def append(self, message: Message) -> None:
        """Add a message at the end. Raises SaveFailed."""

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Put `summary` in place of all but the last `kept` messages; system messages stay in front."""


@runtime_checkable
class SharedHistory(History, Protocol):
    """One of several of the same conversation, such as those that programs make of one file.

    For any other history, only the object itself is held while a run adds to it.
    """

    def alone(self) -> AbstractContextManager[str | None]:
        """Hold the conversation for one run, and give a sentence on what was wrong with it, if anything was.

        Raises ConversationBusy while another run has it.
        """


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

    def alone(self) -> AbstractContextManager[None]:
        """Hold the list, however many histories are made of it."""
        return alone(self._messages, CONVERSATION)

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Replace the older messages in the list."""
        start = len(self._messages) - kept
        flushes = (at for at in range(start) if isinstance(self._messages[at], FlushMessage))
        told = self._messages[max(flushes, default=-1) + 1 : start]
        systems = [message for message in told if isinstance(message, SystemMessage)]
        summarised = stamped(CompactionSummaryMessage(content=summary))
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

    def alone(self) -> AbstractContextManager[str | None]:
        """Hold the session, in all processes."""
        return self._session.alone()

    def compact(self, summary: str, kept: int, tokens_before: int | None = None) -> None:
        """Write the summary to the session; the messages it replaces stay in the file."""
        first_kept = self._session.context_entries()[-kept].id if kept else None
        self._session.compact(summary, first_kept=first_kept, tokens_before=tokens_before)


def as_history(history: History | Session | list[Any] | None) -> History:
    """A list or a session as a history; None makes a new one. Raises UsageError.

    Dicts in a list are read as OpenAI's messages, and the list has messages in their place.
    """
    match history:
        case None:
            return ListHistory([])
        case list():
            if any(isinstance(message, Mapping) for message in history):
                history[:] = as_conversation(history)
            for message in history:
                if not isinstance(message, BaseMessage):
                    raise UsageError(f"{message!r:.60} in the history is no message: see localagent.messages")
            return ListHistory(history)
        case Session():
            return SessionHistory(history)
        case History():
            return history
    raise UsageError(f"history must be a list of messages or a session, not {type(history).__name__}")


def for_one_run(history: History) -> AbstractContextManager[str | None]:
    """Hold the conversation for one run; see `SharedHistory.alone`."""
    return history.alone() if isinstance(history, SharedHistory) else alone(history, CONVERSATION)


class Transcript:
    """What one run adds to its history, message by message."""

    def __init__(self, history: History, hear: Callable[[Message], None]) -> None:
        """`hear` is told of each message once it is kept."""
        self.history = history
        self._added: list[Message] = []
        self._hear = hear

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that the run has added so far."""
        return tuple(self._added)

    def keep(self, message: Message) -> None:
        """Add a message to the conversation, with an id and a time.

        Raises SaveFailed, and what `hear` raises.
        """
        message = stamped(message)
        self.history.append(message)
        self._added.append(message)
        self._hear(message)

    def keep_results(self, slots: Sequence[Slot], agent_name: str | None, source: str | None = None) -> None:
        """Add the results of a turn's calls, in the order of the calls."""
        results = (
            # A hook may have given the result another id or name; it still answers the call the model wrote.
            slot.result.model_copy(update={"call_id": slot.asked.id, "name": slot.asked.name})
            for slot in slots
            if slot.result is not None
        )
        self.keep(ToolMessage.from_results(results, mode="tool", agent_name=agent_name, source=source))

    def close(self, text: str, agent_name: str | None, slots: Sequence[Slot] = ()) -> Sequence[Slot]:
        """Answer the calls at the end of the history that have no result, by `slots` if these are theirs.

        Otherwise each gets the error result `text`. Returns the slots with the results. Raises UnpairedResult
        for a history that is broken.
        """
        calls = unanswered(self.history.messages())
        if calls and [slot.asked.id for slot in slots] == [call.id for call in calls]:
            self.keep_results(slots, agent_name)
            return slots
        made_up = refused(calls, text)
        if made_up:
            self.keep_results(made_up, agent_name, source="agent")
        return made_up

    def leave(self, slots: Sequence[Slot], agent_name: str | None) -> None:
        """Leave a history that can be continued, as far as it can be written.

        `slots`: the calls of the present turn.
        """
        abandon(slots)
        unsure = INTERRUPTED if any(slot.started for slot in slots) else NOT_RUN
        # The second time without the results: one that cannot be written must not leave all calls open.
        for known in (slots, ()):
            with suppress(Exception):  # the run ends with what made us leave, not with this
                self.close(unsure, agent_name, known)
