"""Shared by wires with two roles, one slot for the system message, and tool results in user turns.

On reading, a run of results becomes a ToolMessage and what stands around it becomes user messages. Calls wait
for their results until the next assistant turn; `prompt.pairing` decides which result answers which call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from localagent.errors import UnpairedResult, Unsupported
from localagent.messages import (
    AssistantMessage,
    ModelMessage,
    SystemMessage,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.prompt.pairing import Asked, pair


def fold(
    messages: Sequence[ModelMessage], write: Callable[[ModelMessage], list[dict[str, Any]]]
) -> Iterator[tuple[ModelMessage, list[dict[str, Any]]]]:
    """Every message with what `write` makes of it, except those of which it makes nothing.

    Raises Unsupported, which names the message.
    """
    for at, message in enumerate(messages):
        try:
            if at and isinstance(message, SystemMessage):
                raise Unsupported(
                    "a system message after others: build_request joins them into one, in front"
                )
            written = write(message)
        except Unsupported as error:
            raise Unsupported(f"message {at}: {error}") from None
        if written:
            yield message, written


class Waiting:
    """The calls that have no result yet, malformed ones included."""

    def __init__(self) -> None:
        self._calls: list[Asked] = []

    def call(self, message: AssistantMessage) -> None:
        """Begin anew with the calls of an assistant turn."""
        self._calls = [part for part in message.content if isinstance(part, Asked)]

    def answer(self, results: Sequence[ToolResultPart], where: str) -> ToolMessage:
        """The results, in their order, with the names of their calls where they have none.

        Raises UnpairedResult.
        """
        try:
            slots = pair(self._calls, results)
        except UnpairedResult as error:
            raise UnpairedResult(f"{where}: {error}") from None
        names = {id(slot): call.name or "" for call, slot in zip(self._calls, slots, strict=True)}
        self._calls = [call for call, slot in zip(self._calls, slots, strict=True) if slot is None]
        named = (part.model_copy(update={"name": part.name or names[id(part)]}) for part in results)
        return ToolMessage(content=tuple(named))


def unfold(parts: Sequence[Any], waiting: Waiting, where: str) -> Iterator[UserMessage | ToolMessage]:
    """The messages that one user turn holds. Raises UnpairedResult."""
    if not parts:
        yield UserMessage(content=())
    for are_results, group in groupby(parts, lambda part: isinstance(part, ToolResultPart)):
        run = tuple(group)
        yield waiting.answer(run, where) if are_results else UserMessage(content=run)
