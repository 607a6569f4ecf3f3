"""What the loop says to a model that has lost its way, and when it stops saying it.

Knows messages. Holds the counters of one run: turns, rescues, rounds that repeat the one before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from localagent.agent.gate import Slot
from localagent.messages import AssistantMessage, MalformedToolCallPart, ToolResultPart
from localagent.tools.toolset import normal_name

Lost = Literal["turn_limit", "repeated", "rescues"]
"""Why a last answer is forced."""

REPEATED = "This call is the same as the one before it and was not run again. Its result was:\n"
LAST_WORDS: dict[Lost, str] = {
    "turn_limit": "No more tool calls are possible. Answer now, with what you know.",
    "repeated": "These calls were made already. Do not call tools again: answer now, with what you know.",
    "rescues": "Do not call tools any more. Answer now, in plain words, with what you know.",
}
"""What the model is told before it is asked a last time, without tools."""
EMPTY = "Your answer was empty. Answer in plain words, or call a tool."
UNREADABLE = "could not be read and was not run"
REASONS = {
    "truncated": "it was cut off before it was complete",
    "not_a_call": "something stands among the calls that is no call",
    "positional_argument": "an argument has no name: write every argument with its name",
    "missing_value": "an argument has no value",
    "not_a_literal": "a value is an expression: write plain values only",
    "not_finite": "a number is too large",
    "syntax": "a character stands where none can stand",
    "unclosed_string": "a string is not closed",
    "ambiguous_quote": "a quote within a string can be read in two ways: escape it",
    "unclosed": "the list of calls is not closed",
    "call_in_reasoning": "it stands in your reasoning, which never ended: end it before you call",
    "too_deep": "its values are nested too deep",
    "too_large": "a number has too many digits",
}
"""Reasons of the parser (see `parsers.Reason`) in words for a model."""


def what_was_wrong(message: AssistantMessage, *, had_tools: bool) -> str | None:
    """What a model is to be told of a message that nobody can use as it is, or None.

    Without tools, and at the token limit, an empty answer is what there is to have.
    """
    lost = [part for part in message.malformed_tool_calls if part.lost_call]
    if lost:
        told = [_explain(part) for part in lost]
        return "\n".join(["Write each of these calls again, complete and well formed:", *told])
    empty = not message.tool_calls and not message.text.strip()
    return EMPTY if empty and had_tools and message.stop_reason == "stop" else None


def _explain(part: MalformedToolCallPart) -> str:
    name = f"The call of {part.name!r:.80}" if part.name else "A tool call"
    return f"{name} {UNREADABLE}: {REASONS.get(part.reason, part.reason)}."


@dataclass(slots=True)
class Rounds:
    """How often the model was asked, corrected, or did the same again."""

    max_turns: int
    max_rescues: int
    turn: int = -1
    """The present turn, from 0."""
    rescues: int = 0
    """In a row."""
    repeats: int = 0
    """In a row."""
    _last: tuple[tuple[str, str], ...] = ()
    _results: tuple[ToolResultPart, ...] = field(default=())

    @property
    def is_last(self) -> bool:
        """Whether the present turn was the last one with tools."""
        return self.turn + 1 >= self.max_turns

    def repeats_last(self, slots: Sequence[Slot]) -> bool:
        """Whether these are once more the calls of the round before, which then get its results."""
        asked = tuple(_identity(slot) for slot in slots)
        same = asked == self._last and not all(slot.tool and slot.tool.repeatable for slot in slots)
        self.repeats = self.repeats + 1 if same else 0
        if same:
            for slot, before in zip(slots, self._results, strict=True):
                slot.result = slot.asked.result(REPEATED + before.text, is_error=before.is_error)
        self._last = asked
        return same

    def keep_results(self, slots: Sequence[Slot]) -> None:
        """Remember what came of a round that was run."""
        self._results = tuple(slot.result for slot in slots if slot.result is not None)

    def may_rescue(self, *, wrong: bool) -> bool:
        """Count a message; whether the model may be corrected once more."""
        self.rescues = self.rescues + 1 if wrong else 0
        return self.rescues <= self.max_rescues


def _identity(slot: Slot) -> tuple[str, str]:
    name = slot.tool.name if slot.tool is not None else normal_name(slot.asked.name)
    return name, json.dumps(slot.asked.arguments, sort_keys=True)
