"""What one run adds to its history, message by message.

Knows histories, and which calls of them are open. Does not know models or tools. Contract: a message is in
the history before anybody hears of it; results stand in the order of their calls and answer these, whatever
was made of them on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from localagent.agent.batch import NOT_RUN, abandon
from localagent.agent.gate import Slot, refused
from localagent.agent.history import History
from localagent.messages import Message, ToolMessage
from localagent.prompt.pairing import unanswered

INTERRUPTED = (
    "No result: the program ended before this call's result was kept. It may have run, wholly or in part."
)


class Transcript:
    """The messages of a run, as far as they are kept."""

    def __init__(self, history: History, hear: Callable[[Message], None]) -> None:
        """`hear` is told of each message that was kept."""
        self.history = history
        self._added: list[Message] = []
        self._hear = hear

    @property
    def told(self) -> tuple[Message, ...]:
        """What the run added so far."""
        return tuple(self._added)

    def keep(self, message: Message) -> None:
        """Add a message to the conversation. Raises SaveFailed, and what `hear` raises."""
        self.history.append(message)
        self._added.append(message)
        self._hear(message)

    def keep_results(self, slots: Sequence[Slot], agent_name: str | None, source: str | None = None) -> None:
        """Add the results of a turn's calls."""
        results = (
            slot.result.model_copy(update={"call_id": slot.asked.id, "name": slot.asked.name})
            for slot in slots
            if slot.result is not None
        )
        self.keep(
            ToolMessage.from_results(
                results, timestamp=datetime.now(UTC), mode="tool", agent_name=agent_name, source=source
            )
        )

    def close(self, text: str, agent_name: str | None, slots: Sequence[Slot] = ()) -> Sequence[Slot]:
        """Answer the calls at the end of the history that have no result: by `slots`, if these are they.

        Returns what they are answered by. Raises UnpairedResult for a history that is broken.
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
        for known in (slots, ()):  # a result that cannot be kept must not keep others from being told
            with suppress(Exception):  # what made us leave is what counts
                self.close(unsure, agent_name, known)
