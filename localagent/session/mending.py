"""Conversations to which several runs added at once: each result goes back behind its call. Pure.

Nothing else moves, and only results are left out: those that answer no call, those that might answer several,
and those that one run made up for calls whose results another had still to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localagent.errors import UnpairedResult
from localagent.messages import (
    AssistantMessage,
    MalformedToolCallPart,
    Message,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
)
from localagent.prompt.pairing import has_results, pair
from localagent.session.context import without_results


@dataclass(slots=True)
class _Turn:
    """A message of the model, or none at the beginning, and what comes before the next one."""

    message: AssistantMessage | None = None
    followers: list[Message] = field(default_factory=list)
    answers: dict[int, tuple[Message, ToolResultPart]] = field(default_factory=dict)
    """By the place of the call: its result, and the message that has it."""
    mixed: bool = False

    @property
    def asked(self) -> list[ToolCallPart | MalformedToolCallPart]:
        parts = self.message.content if self.message is not None else ()
        return [part for part in parts if isinstance(part, ToolCallPart | MalformedToolCallPart)]

    def open_places(self, result: ToolResultPart) -> list[int]:
        """The calls that the result may answer. One that the agent made up gives its place to it."""
        return [
            place
            for place, part in enumerate(self.asked)
            if part.id == result.call_id != ""
            and part.name == result.name
            and (place not in self.answers or self.answers[place][0].source == "agent")
        ]

    def messages(self) -> Iterator[Message]:
        """The turn, with its results directly behind its calls if they were mixed up."""
        if self.message is not None:
            yield self.message
        if not self.mixed:
            yield from self.followers
            return
        origins = {id(origin): origin for origin, _ in self.answers.values()}
        for origin in origins.values():
            results = tuple(result for source, result in self.answers.values() if source is origin)
            if isinstance(origin, ToolMessage):
                yield origin.model_copy(update={"content": results})
            else:
                yield ToolMessage.from_results(results)
        yield from filter(None, map(without_results, self.followers))


def mended(messages: Sequence[Message]) -> list[Message] | None:
    """The messages in order; None if they are so already."""
    turns = [_Turn()]
    for message in messages:
        if isinstance(message, AssistantMessage):
            turns.append(_Turn(message))
        else:
            turns[-1].followers.append(message)
    strays = list[tuple[int, Message, ToolResultPart]]()
    for number, turn in enumerate(turns):
        results = [
            (message, part)
            for message in turn.followers
            if has_results(message)
            for part in message.content
            if isinstance(part, ToolResultPart)
        ]
        try:
            slots = pair(turn.asked, [result for _, result in results])
        except UnpairedResult:
            turn.mixed = True
            strays += ((number, message, result) for message, result in results)
        else:
            homes = {id(result): message for message, result in results}
            turn.answers = {
                place: (homes[id(result)], result) for place, result in enumerate(slots) if result is not None
            }
    if not strays:
        return None
    for number, message, result in strays:
        fitting = [(turn, place) for turn in turns[: number + 1] for place in turn.open_places(result)]
        if len(fitting) == 1:
            ((turn, place),) = fitting
            turn.answers[place] = message, result
            turn.mixed = True
    return [message for turn in turns for message in turn.messages()]
