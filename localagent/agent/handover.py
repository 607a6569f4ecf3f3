"""Hand-over: a tool by which one agent lets another go on with the same conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, overload

from localagent.agent.approvals import Approvals
from localagent.agent.middleware import Stack
from localagent.agent.slot import Slot
from localagent.chat_model import ChatModel
from localagent.control import TurnOptions
from localagent.errors import InvalidArguments, InvalidTool
from localagent.tools import Tool, ToolSet
from localagent.tools.tool import Bound

SECOND = "Not run: the conversation is already handed over by another call of this turn."
_NEEDED = "it must be an Agent"
_PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the other agent is to do, in a sentence."}
    },
    "required": [],
}


class AgentLike(Protocol):
    """What a run needs of the agent whose turn it is, and so of one that is handed over to: see `Agent`."""

    name: str | None
    model: ChatModel
    instructions: str | None
    sampling: TurnOptions
    approvals: Approvals
    stack: Stack
    max_turns: int
    max_rescues: int
    max_calls: int
    max_parallel: int
    tool_timeout: float | None
    sequential: bool
    stop_after: tuple[str, ...]

    def toolset(self) -> ToolSet:
        """The tools that there are now. Raises InvalidTool, UsageError, and what their sources raise."""


@dataclass(frozen=True, kw_only=True)
class HandOver(Tool):
    """After a turn that calls it, `target` goes on, with its own instructions, tools, model and approvals."""

    target: AgentLike


class LaterHandOver:
    """A source with one tool: the hand-over to an agent that does not exist yet. `find` is called once."""

    def __init__(self, find: Callable[[], AgentLike], description: str, name: str | None) -> None:
        self._find = find
        self._description = description
        self._name = name
        self._found: HandOver | None = None

    def tools(self) -> list[HandOver]:
        """The tool. Raises InvalidTool for what is no agent, or has no name."""
        if self._found is None:
            target = self._find()
            if not _is_agent(target):
                raise InvalidTool(f"the function given to hand_over_to returned {target!r:.60}: {_NEEDED}")
            self._found = hand_over_to(target, self._description, self._name)
        return [self._found]


@overload
def hand_over_to(target: AgentLike, description: str = "", name: str | None = None) -> HandOver: ...


@overload
def hand_over_to(
    target: Callable[[], AgentLike], description: str = "", name: str | None = None
) -> LaterHandOver: ...


def hand_over_to(
    target: AgentLike | Callable[[], AgentLike], description: str = "", name: str | None = None
) -> HandOver | LaterHandOver:
    """A tool for other agents. `description` tells their models what `target` is good at.

    Without a `name` the tool is called `hand_over_to_` and the name of the agent. `lambda: other` stands for
    an agent that does not exist yet, so that two can name each other; it is called when a run first needs it.
    Raises InvalidTool for what is no agent, and for an agent without a name.
    """
    if not _is_agent(target):
        if callable(target) and not isinstance(target, type):
            return LaterHandOver(target, description, name)
        raise InvalidTool(f"hand_over_to was given {target!r:.60}: {_NEEDED}, or a function that returns one")
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


def _is_agent(target: object) -> TypeGuard[AgentLike]:
    return not isinstance(target, type) and callable(getattr(target, "toolset", None))


def _fits(arguments: Mapping[str, Any]) -> bool:
    return isinstance(arguments.get("task", ""), str) and not arguments.keys() - {"task"}


def refuse_second(slots: Sequence[Slot]) -> None:
    """Only one agent can go on: the first call that may run decides. Call it after the approval."""
    handing = [slot for slot in slots if isinstance(slot.tool, HandOver) and slot.result is None]
    # A call whose arguments do not fit hands nothing over, so it must not stand in the way of the next.
    for slot in [slot for slot in handing if _fits(slot.call.arguments)][1:]:
        slot.refuse(SECOND)


def target_of(slots: Sequence[Slot]) -> AgentLike | None:
    """The agent that a turn's calls handed over to, if one of them ran without an error."""
    for slot in slots:
        if isinstance(slot.tool, HandOver) and slot.went_well:
            return slot.tool.target
    return None
