"""One call of a turn, from what the model wrote to its result.

Everything that happens to a call is written here: the tool it means, the arguments a person changed, whether
it was started, and its result. The order of the slots is the order of the calls, whichever ends first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from localagent.control import Control
from localagent.messages import TextPart, ToolCallPart, ToolResultPart
from localagent.tools import Tool, ToolSet
from localagent.tools.names import normal_name

P = TypeVar("P")

ANY: Final = Control()
"""Allows every call."""

NOT_RUN = "Not run: the run was stopped before this call."
STOPPED = "No result: the run was stopped while this call was running. It may have done part of its work."
TOO_MANY = "Not run: only the first {:,} calls of a message run. Make this call again if it is still needed."
ONE = "Not run: only the first call of this message may run. Make this call again if it is still needed."
ONLY = "Not run: only the tool {!r} may be called now."
NONE = "Not run: no tool may be called now. Answer in plain words."
EDITED = "(The user changed the arguments to: {})\n"


@dataclass(slots=True)
class Slot:
    """One call of a turn and what becomes of it."""

    asked: ToolCallPart
    """As the model wrote it."""
    call: ToolCallPart
    """As it runs."""
    tool: Tool | None = None
    """The tool it means, looked up once; None where there is none of that name."""
    result: ToolResultPart | None = None
    started: bool = False
    too_many: bool = False
    """The turn had so many calls that this one was not looked at, or its options did not allow it."""

    @property
    def edited(self) -> bool:
        """Whether a person changed the arguments."""
        return self.call is not self.asked

    @property
    def went_well(self) -> bool:
        """Whether it ran, without an error."""
        return self.started and self.result is not None and not self.result.is_error

    def refuse(self, text: str) -> ToolResultPart:
        """Give the call an error result in place of running it."""
        return self.finish(self.asked.result(text, is_error=True))

    def finish(self, result: ToolResultPart) -> ToolResultPart:
        """Give the call its result. Where a person changed the arguments, the result says so first."""
        note = EDITED.format(self.call.described_arguments)
        self.result = prefixed(result, note) if self.edited else result
        return self.result


def open_slots(
    calls: Sequence[ToolCallPart], tools: ToolSet, most: int, control: Control = ANY
) -> list[Slot]:
    """A slot for every call. Calls of unknown tools, all after the first `most`, and those that the turn's
    `control` does not allow, have their results: no grammar keeps every model from making them.
    """
    slots = []
    for place, call in enumerate(calls):
        slot = Slot(call, call, tools.find(call.name))
        text = TOO_MANY.format(most) if place >= most else _refusal(slot, control)
        slot.too_many = bool(text)
        if text:
            slot.refuse(text)
        elif slot.tool is None:
            slot.refuse(tools.unknown(call.name))
        slots.append(slot)
    return slots


def refuse_others(slots: Iterable[Slot], control: Control) -> None:
    """Where the options of the turn allow one call, refuse all behind the first that has no result yet."""
    if control.named is not None or not control.parallel_tool_calls:
        for slot in [slot for slot in slots if slot.result is None][1:]:
            slot.too_many = True
            slot.refuse(ONE)


def _refusal(slot: Slot, control: Control) -> str:
    """Why the options of the turn never allow this call, "" if they may."""
    named = control.named
    if control.choice == "none":
        return NONE
    if named is not None and named != (slot.asked.name if slot.tool is None else slot.tool.name):
        return ONLY.format(named)
    return ""


def settled(part: P, tools: ToolSet | None) -> P:
    """A call that nobody can change any more, with the kind of its tool; any other part as it is.

    Raises InvalidMessage for arguments that are no JSON.
    """
    if not isinstance(part, ToolCallPart):
        return part
    call = part.fixed()
    tool = tools.find(call.name) if tools is not None and call.tool_kind is None else None
    return call if tool is None or tool.kind is None else call.model_copy(update={"tool_kind": tool.kind})


def ends_run(slots: Iterable[Slot], stop_after: Collection[str]) -> bool:
    """Whether a result says that the run ends, or a tool that ends it, by its name, ran without an error."""
    forms = {normal_name(name) for name in stop_after}
    return any(
        slot.result.terminate
        or (slot.went_well and slot.tool is not None and normal_name(slot.tool.name) in forms)
        for slot in slots
        if slot.result is not None
    )


def refused(calls: Iterable[ToolCallPart], text: str) -> list[Slot]:
    """Slots of calls that are not to run, each with the same error result."""
    slots = [Slot(call, call) for call in calls]
    for slot in slots:
        slot.refuse(text)
    return slots


def abandon(slots: Iterable[Slot]) -> None:
    """Give a result to every call that has none, because the run is left."""
    for slot in slots:
        if slot.result is None:
            slot.refuse(STOPPED if slot.started else NOT_RUN)


def prefixed(result: ToolResultPart, text: str) -> ToolResultPart:
    """The result with `text` in front of all its parts."""
    content = result.content
    told = text + content if isinstance(content, str) else (TextPart(text=text), *content)
    return result.model_copy(update={"content": told})
