"""Summaries: the model itself tells in short what was said, in pieces where all at once does not fit.

Knows requests and their tokens. Does not know where a conversation is cut, or what becomes of a summary.
Contract: tokens are counted by the model's own tokenizer, calls that it writes are not run, and what comes
back is text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from localagent.agent.boundaries import beginning, blocks
from localagent.agent.clipping import clip_message
from localagent.errors import ContextOverflow
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    Message,
    SystemMessage,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from localagent.agent.run import Run

AGAIN = " Write the summary and nothing else, in plain words. What you wrote a moment ago was no summary."
"""Added to the instructions when the model is asked a second time."""
WORDS = "{words}"
"""Stands in the instructions for how long the summary may be."""
MOST_CONTEXTS = 64
"""A conversation of more contexts than this is not counted: it would take as many summaries."""


class NoSummary(Exception):
    """Why there is none, in one line."""


class Outlook:
    """What a run would send of a conversation, and how many tokens that is."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.context: int = run.agent.model.host.context
        self.tools = tuple(run.tools.schemas)
        self._instructions = run.instructions()

    def request(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation as a request tells it, behind the instructions."""
        return [*self._instructions, *self.run.rewrite(messages)]

    def count(self, messages: Sequence[Message], *behind: Message) -> int:
        """The tokens of that request, with `behind` at its end.

        Raises what rendering raises, and ContextOverflow for a request of a great many contexts.
        """
        request, most = [*self.request(messages), *behind], MOST_CONTEXTS * self.context
        return self.run.agent.model.count_tokens(request, tools=self.tools or None, limit=most)


class Summariser:
    """Asks for summaries of up to `limit` tokens. `usage` is what they cost."""

    def __init__(self, outlook: Outlook, instructions: str, limit: int) -> None:
        self.usage = Usage()
        self._outlook = outlook
        self._limit = limit
        words = max(10, limit * 3 // 5)
        self._instructions = instructions.replace(WORDS, f"{words:,}")

    def summarise(self, messages: Sequence[Message]) -> str:
        """A summary of all messages, earlier summaries included.

        What does not fit into one request is told oldest first, each piece together with the summary so far.
        Raises NoSummary, and what a turn raises.
        """
        told = messages[beginning(messages) :]
        front: list[Message] = [message for message in told if isinstance(message, SystemMessage)]
        systems = len(front)
        rest = blocks([message for message in told if not isinstance(message, SystemMessage)])
        summary = ""
        while rest:
            number, piece = self._next_piece(front, rest)
            summary = self._ask_twice(piece)
            front[systems:] = [CompactionSummaryMessage(content=summary)]
            rest = rest[number:]
        return summary

    def _next_piece(
        self, front: Sequence[Message], rest: Sequence[Sequence[Message]]
    ) -> tuple[int, list[Message]]:
        """As many blocks as fit into one request, and these messages; a single one may have to be clipped."""

        def joined(number: int) -> list[Message]:
            return [*front, *chain.from_iterable(rest[:number])]

        if self._fits(everything := joined(len(rest))):
            return len(rest), everything
        counts = range(1, len(rest))
        number = bisect_left(counts, True, key=lambda number: not self._fits(joined(number)))
        return (number, joined(number)) if number else (1, self._clipped(front, rest[0]))

    def _clipped(self, front: Sequence[Message], block: Sequence[Message]) -> list[Message]:
        """The block with its long texts clipped, as little as need be. Raises NoSummary."""

        def clipped(limit: int) -> list[Message]:
            return [*front, *(clip_message(message, limit) for message in block)]

        limits = [0, *(int(100 * 1.1**step) for step in range(120))]  # up to nine million characters
        number = bisect_left(limits, True, key=lambda limit: not self._fits(clipped(limit)))
        if number == 0:
            raise NoSummary("the request for a summary does not fit into the context, even of a single turn")
        return clipped(limits[number - 1])

    def _fits(self, messages: Sequence[Message]) -> bool:
        asking = _asking(self._instructions + AGAIN)
        try:
            return self._outlook.count(messages, asking) + self._limit <= self._outlook.context
        except ContextOverflow:
            return False

    def _ask_twice(self, messages: Sequence[Message]) -> str:
        """What the model tells; the second time it is told what was wrong, and offered no tools."""
        outlook, wrong = self._outlook, ""
        for text, tools in ((self._instructions, outlook.tools), (self._instructions + AGAIN, ())):
            run = outlook.run
            sampling = {**run.options, "stop": None, "logprobs": None}
            answer = run.agent.model.respond(
                [*outlook.request(messages), _asking(text)],
                tools=tools or None,
                cancel=run.cancel,
                **{**sampling, "max_tokens": self._limit},
            )
            run.usage += answer.usage
            self.usage += answer.usage
            if answer.stop_reason == "cancelled":
                break
            if not (wrong := _what_is_wrong(answer)):
                return answer.text.strip()
        raise NoSummary(wrong or "it was stopped")


def _asking(text: str) -> UserMessage:
    return UserMessage(content=text, source="compaction", mode="tool")


def _what_is_wrong(answer: AssistantMessage) -> str:
    """Why this is no summary; empty if it is one."""
    if answer.tool_calls or any(part.lost_call for part in answer.malformed_tool_calls):
        return "the model called a tool in place of summarising"
    return "" if answer.text.strip() else "the model wrote an empty summary"
