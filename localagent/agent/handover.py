"""Hand-over: a tool by which one agent lets another go on with the same conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localagent.errors import InvalidArguments, InvalidTool
from localagent.tools import Tool
from localagent.tools.tool import Bound

if TYPE_CHECKING:
    from localagent.agent.agent import Agent
    from localagent.agent.gate import Slot

SECOND = "Not run: the conversation is already handed over by another call of this turn."
_PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the other agent is to do, in a sentence."}
    },
    "required": [],
}


@dataclass(frozen=True, kw_only=True)
class HandOver(Tool):
    """A tool after whose turn `target` goes on: with its instructions, its tools, its model and its rules."""

    target: Agent


def hand_over_to(target: Agent, description: str = "", name: str | None = None) -> HandOver:
    """A tool for other agents. `description` tells their models what `target` is good at.

    The tool is called `hand_over_to_` and the name of the agent, unless a `name` is given. Raises InvalidTool
    for an agent without a name.
    """
    if not target.name:
        raise InvalidTool("an agent that is handed over to needs a name: Agent(..., name='...')")

    def bind(arguments: Mapping[str, Any]) -> Bound:
        if not _fits(arguments):
            raise InvalidArguments("the only argument is task, a text")
        task = arguments.get("task", "")
        return lambda context: f"{target.name} goes on from here." + (f" Task: {task}" if task else "")

    return HandOver(
        name=name or f"hand_over_to_{target.name}",
        description=description or f"Let {target.name} go on with the conversation.",
        parameters=_PARAMETERS,
        bind=bind,
        target=target,
    )


def _fits(arguments: Mapping[str, Any]) -> bool:
    return isinstance(arguments.get("task", ""), str) and not arguments.keys() - {"task"}


def refuse_second(slots: Sequence[Slot]) -> None:
    """Only one agent can go on: the first call that can run decides. To be called after the approval."""
    handing = [slot for slot in slots if isinstance(slot.tool, HandOver) and slot.result is None]
    for slot in [slot for slot in handing if _fits(slot.call.arguments)][1:]:
        slot.refuse(SECOND)


def target_of(slots: Sequence[Slot]) -> Agent | None:
    """The agent that a turn's calls handed over to, if one ran and went well."""
    for slot in slots:
        went_well = slot.started and slot.result is not None and not slot.result.is_error
        if isinstance(slot.tool, HandOver) and went_well:
            return slot.tool.target
    return None
