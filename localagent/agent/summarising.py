"""Summaries: the model itself says in short what was said, in pieces where all at once does not fit.

Tokens are counted by the model's own tokenizer, in the very request that would be sent. Calls that the model
writes here are not run: a summary is text.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

from localagent.agent.boundaries import beginning, blocks
from localagent.agent.builtin import clip_result, clip_text
from localagent.agent.history import History
from localagent.chat_model import ChatModel
from localagent.control import prompt_options, prose_options
from localagent.errors import ContextOverflow, Unsupported
from localagent.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    UserMessage,
)
from localagent.prompt.rendering import ToolSchema
from localagent.tools import ToolSet

AGAIN = " Write the summary and nothing else, in plain words. What you wrote a moment ago was no summary."
"""Added to the instructions when the model is asked again."""
CALLED = "the model called a tool instead of summarising"
WORDS = "{words}"
"""Stands in the instructions where their reader is told how long the summary may be."""
MOST_CONTEXTS = 64
"""A longer conversation, in contexts, is not counted to its end: it would take as many summaries."""


class NoSummary(Exception):
    """Why there is no summary, in one line."""


class CompactedRun(Protocol):
    """What compaction needs of a run: what its next request would be, and whom to ask."""

    history: History
    usage: Usage
    """Grows by what a summary costs."""

    @property
    def model(self) -> ChatModel:
        """The model that summarises: the one whose turn it is."""

    @property
    def tools(self) -> ToolSet:
        """The tools in the request. Raises InvalidTool, and what their sources raise."""

    @property
    def options(self) -> dict[str, Any]:
        """Sampling options of the next turn."""

    @property
    def cancel(self) -> threading.Event:
        """Set when the run is cancelled."""

    def instructions(self) -> list[Message]:
        """What stands in front of the conversation."""

    def keep_summary(self, summary: str, kept: int, tokens_before: int) -> None:
        """Put a summary in place of all but the last `kept` messages. Raises SaveFailed."""

    def rewrite(self, messages: Sequence[Message]) -> list[Message]:
        """What a request would tell of these messages."""


class Outlook:
    """What a run would send of a conversation, and how many tokens that is."""

    def __init__(self, run: CompactedRun) -> None:
        self.run = run
        self.context: int = run.model.host.context
        self.tools = tuple(run.tools.schemas)
        self._instructions = run.instructions()

    def request(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation as a request tells it, after the instructions."""
        return [*self._instructions, *self.run.rewrite(messages)]

    def count(self, messages: Sequence[Message], *more: Message) -> int:
        """The tokens of that request, with `more` at its end.

        Raises what rendering raises, and ContextOverflow for a request of a great many contexts.
        """
        request, most = [*self.request(messages), *more], MOST_CONTEXTS * self.context
        told = prompt_options(self.run.options)
        return self.run.model.count_tokens(request, tools=self.tools or None, limit=most, **told)


class Summariser:
    """Asks for summaries. `usage` is what they cost so far."""

    def __init__(self, outlook: Outlook, instructions: str) -> None:
        self.usage = Usage()
        self._outlook = outlook
        self._limit = 0
        self._instructions = instructions

    def summarise(self, messages: Sequence[Message], limit: int) -> str:
        """A summary of all messages, earlier summaries included, in up to `limit` tokens.

        What does not fit into one request is summarised piece by piece, from the oldest on, each together
        with the summary so far. Raises NoSummary, and what a turn raises.
        """
        self._limit = limit
        words = max(10, limit * 3 // 5)  # some four tokens to three words, and room to spare
        self._instructions = self._instructions.replace(WORDS, f"{words:,}")
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
        """How many blocks fit into one request, and its messages; a single block may have to be clipped."""

        def joined(number: int) -> list[Message]:
            return [*front, *chain.from_iterable(rest[:number])]

        if self._fits(everything := joined(len(rest))):
            return len(rest), everything
        counts = range(1, len(rest))
        number = bisect_left(counts, True, key=lambda number: not self._fits(joined(number)))
        return (number, joined(number)) if number else (1, self._clipped(front, rest[0]))

    def _clipped(self, front: Sequence[Message], block: Sequence[Message]) -> list[Message]:
        """The block with its long texts clipped no more than necessary. Raises NoSummary."""

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
        """The model's summary, asked for again after a bad one. Raises NoSummary.

        The tools are offered although none may be called: so the request begins as the turns before it did,
        and the prefix cache has most of it. A model that calls all the same is asked again without them.
        """
        run, tools, wrong = self._outlook.run, self._outlook.tools, ""
        for text in (self._instructions, self._instructions + AGAIN):
            answer = self._ask([*self._outlook.request(messages), _asking(text)], tools)
            run.usage += answer.usage
            self.usage += answer.usage
            if answer.stop_reason == "cancelled":
                break
            if not (wrong := _what_is_wrong(answer)):
                return answer.text.strip()
            if wrong == CALLED:
                tools = ()
        raise NoSummary(wrong or "it was stopped")

    def _ask(self, request: Sequence[Message], tools: Sequence[ToolSchema]) -> AssistantMessage:
        run = self._outlook.run
        sampling = {**prose_options(run.options), "stop": None, "logprobs": None, "max_tokens": self._limit}

        def ask(**bounds: Any) -> AssistantMessage:
            return run.model.respond(request, tools=tools or None, cancel=run.cancel, **sampling, **bounds)

        if not tools:
            return ask()
        try:
            return ask(tool_choice="none")
        except Unsupported:  # not every dialect, nor every server, can be kept from calls
            return ask()


def _asking(text: str) -> UserMessage:
    return UserMessage(content=text, source="compaction", mode="tool")


def _what_is_wrong(answer: AssistantMessage) -> str:
    """Why this is no summary; nothing if it is one."""
    if answer.tool_calls or any(part.lost_call for part in answer.malformed_tool_calls):
        return CALLED
    return "" if answer.text.strip() else "the model wrote an empty summary"


def clip_message(message: Message, limit: int) -> Message:
    """The message with each part clipped to `limit` characters: texts, reasoning, calls and results."""
    content = tuple(_clip(part, limit) for part in message.content)
    if all(new is old for new, old in zip(content, message.content, strict=True)):
        return message
    # A request prefers `raw`, what the model wrote byte for byte, to the parts, and that is not clipped.
    unsaid = {"raw": None} if getattr(message, "raw", None) is not None else {}
    return message.model_copy(update={"content": content, **unsaid})


def _clip(part: Any, limit: int) -> Any:
    match part:
        case TextPart() | ReasoningPart() if len(part.text) > limit:
            return type(part)(text=clip_text(part.text, limit))
        case ToolResultPart():
            return clip_result(part, limit)
        case ToolCallPart() if len(part.arguments_text) > limit:
            shown = {"arguments": clip_text(part.arguments_text, limit)}  # one argument in place of all
            return ToolCallPart(id=part.id, name=part.name, arguments=shown)
        case MalformedToolCallPart() if len(part.raw) > limit:
            return part.model_copy(update={"raw": clip_text(part.raw, limit)})
    return part
