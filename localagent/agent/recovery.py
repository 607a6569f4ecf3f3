"""What the loop says to a model that has lost its way, and when it stops saying it.

`Rounds` holds the counters of one run: turns, rescues in a row, rounds that repeat the one before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from localagent.agent.slot import Slot, prefixed
from localagent.messages import AssistantMessage, MalformedToolCallPart, ToolCallPart, ToolResultPart
from localagent.parsers import MisfitKind, misfits
from localagent.tools.names import normal_name

ForcedBy = Literal["turn_limit", "repeated", "rescues"]
"""Why a last answer is forced."""

REPEATED = "This call is the same as the one before it and was not run again. Its result was:\n"
LAST_WORDS: dict[ForcedBy, str] = {
    "turn_limit": "No more tool calls are possible for this request. Answer it now, with what you know.",
    "repeated": "These calls were made already. Do not make them again: answer now, with what you know.",
    "rescues": "Call no more tools for this request. Answer it now, in plain words, with what you know.",
}
"""What the model is told before it is asked a last time, without tools."""
EMPTY = "Your answer was empty. Answer in plain words, or call a tool."
NO_TOOLS = "There are no tools here. Answer in plain words."
DROPPED = "A tool call that could not be read was dropped when the conversation was handed over."
ALSO_RAN = "\nThe other calls of that message were run: {}."
LONGEST = 100
"""Characters of a call's arguments where it is only named."""
REASONS = {
    "truncated": "it was cut off before it was complete",
    "not_a_call": "there is something among the calls that is not a call",
    "positional_argument": "an argument has no name: write every argument with its name",
    "missing_value": "an argument has no value",
    "not_a_literal": "a value is an expression: write plain values only",
    "not_finite": "a number is too large",
    "syntax": "there is a character where none can be",
    "unclosed_string": "a string is not closed",
    "ambiguous_quote": "a quote within a string can be read in two ways: escape it",
    "unclosed": "the list of calls is not closed",
    "call_in_reasoning": "it is in your reasoning, which never ended: end it before you call",
    "too_deep": "its values are nested too deep",
    "too_large": "a number has too many digits",
    "unfit": "it is broken: its name or its arguments are not those of the tool",
}
"""Reasons of the parser (see `parsers.Reason`) in words for a model."""


MISFITS: dict[MisfitKind, str] = {
    MisfitKind.UNDECLARED: "there is no such tool",
    MisfitKind.UNKNOWN: "there is no such parameter",
    MisfitKind.MISSING: "missing",
    MisfitKind.TYPE: "not of the type that is declared, or none of the values",
    MisfitKind.MARKUP: "holds a marker of a tool call",
}
"""The reasons why a call does not fit, in words for a model."""
UNFIT = "(The call does not fit the tool: {}.)\n"


def with_reasons(call: ToolCallPart, result: ToolResultPart) -> ToolResultPart:
    """The result of a call, which says first why the call does not fit, if the tool failed on it.

    What the tool makes something of may be meant: tools read more than their schemas say.
    """
    reasons = misfits(call.fits) if result.is_error else ()
    told = [f"{reason.path[1:] or call.name}: {MISFITS[reason.kind]}" for reason in reasons]
    return prefixed(result, UNFIT.format("; ".join(told))) if told else result


def what_was_wrong(
    message: AssistantMessage, *, had_tools: bool
) -> tuple[Literal["malformed", "empty"], str] | None:
    """Why a message cannot be used as it is, and what the model is told; None for one that can.

    An empty answer without tools, or at the token limit, is no fault: asking again would not help.
    """
    lost = [part for part in message.malformed_tool_calls if part.lost_call]
    if lost and not had_tools:
        return "malformed", NO_TOOLS
    if lost:
        told = [_explain(part) for part in lost]
        return "malformed", "\n".join(["Write each of these calls again, complete and well formed:", *told])
    empty = not message.tool_calls and not message.text.strip()
    return ("empty", EMPTY) if empty and had_tools and message.stop_reason == "stop" else None


def also_ran(slots: Sequence[Slot]) -> str:
    """What is added about good calls beside the bad ones: the model need not write them again."""
    ran = [f"{slot.asked.name}({_short(slot.asked.described_arguments)})" for slot in slots if slot.went_well]
    return ALSO_RAN.format(", ".join(ran)) if ran else ""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _explain(part: MalformedToolCallPart) -> str:
    name = f"The call of {part.name!r:.80}" if part.name else "A tool call"
    return f"{name} could not be read and was not run: {REASONS.get(part.reason, part.reason)}."


_Identity = tuple[str, str]
"""What makes two calls the same: the tool, and the arguments in a fixed order."""


@dataclass(slots=True)
class Rounds:
    """How often the model was asked, corrected, or did the same again."""

    max_turns: int
    max_rescues: int
    turn: int = -1
    """The present turn, from 0."""
    rescues: int = 0
    """Messages in a row that could not be used."""
    repeats: int = 0
    """Rounds in a row that only repeated the one before."""
    _last: list[tuple[_Identity, ToolResultPart | None]] = field(default_factory=list)
    """The calls of the last round that had any, with the results they had when they were run."""
    _last_turn: int = -1
    """When that was."""
    _rescued: list[tuple[_Identity, ToolResultPart | None]] = field(default_factory=list)
    """Calls beside malformed ones, which the model often writes again with those it is asked for."""

    @property
    def is_last(self) -> bool:
        """Whether the present turn was the last one with tools."""
        return self.turn + 1 >= self.max_turns

    def repeats_last(self, slots: Sequence[Slot]) -> bool:
        """Whether these are once more the calls of the round before; if so, they get its results.

        Repeatable calls run again all the same. After a rescue nothing counts as a repetition: a call that
        ran beside the malformed ones gets the result that it had, and the others may run.
        """
        asked = [_identity(slot) for slot in slots]
        once = [not (slot.tool and slot.tool.repeatable) for slot in slots]
        same = not self._rescued and any(once) and asked == [identity for identity, _ in self._last]
        self.repeats = self.repeats + 1 if same and all(once) else 0
        known = [result for _, result in self._last] if same else []
        if not same:
            known = [self._take(each) if alone else None for each, alone in zip(asked, once, strict=True)]
        before = [result if alone else None for result, alone in zip(known, once, strict=True)]
        for slot, result in zip(slots, before, strict=True):
            if result is not None:
                told = prefixed(result, REPEATED).content
                slot.result = slot.asked.result(told, is_error=result.is_error)
        self._last, self._last_turn = list(zip(asked, before, strict=True)), self.turn
        return same

    def _take(self, identity: _Identity) -> ToolResultPart | None:
        """The result of that call beside malformed ones. It is taken: the same call twice has two results."""
        for each in self._rescued:
            if each[0] == identity:
                self._rescued.remove(each)
                return each[1]
        return None

    def keep_results(self, slots: Sequence[Slot]) -> None:
        """Remember the results of a round. Calls beyond the limit have none: they may be made again."""
        self._last = [
            (identity, before or (None if slot.too_many else slot.result))
            for (identity, before), slot in zip(self._last, slots, strict=True)
        ]

    def may_rescue(self, *, wrong: bool) -> bool:
        """Count a message. Whether the model may be corrected once more."""
        self.rescues = self.rescues + 1 if wrong else 0
        if not wrong:
            self._rescued = []
        elif self._last_turn == self.turn:
            self._rescued += self._last
        return self.rescues <= self.max_rescues

    def change_agent(self) -> None:
        """Another agent goes on: it repeats nothing, whatever the one before did."""
        self.rescues = self.repeats = 0
        self._last, self._rescued = [], []


def _identity(slot: Slot) -> _Identity:
    name = slot.tool.name if slot.tool is not None else normal_name(slot.asked.name)
    return name, json.dumps(slot.asked.arguments, sort_keys=True)
