"""Who may call what: rules first, then somebody who is asked.

Knows tools and calls. Does not know the loop or terminals. Contract: nothing is allowed by accident. A tool
that declares side effects is asked about unless a rule says otherwise, and where nobody can be asked it does
not run.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from localagent.errors import UsageError
from localagent.messages import ToolCallPart
from localagent.tools import Tool

Action = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call runs as the model wrote it. `always`: so do all later calls of this tool."""

    always: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run, and the model reads why. `always`: nor do later calls of this tool."""

    reason: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments instead, and the model reads that it did."""

    arguments: Mapping[str, Any]


Decision = Allow | Deny | Edit


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that somebody is to decide about. `call.described_arguments` is one line for a prompt."""

    call: ToolCallPart
    tool: Tool


Approver = Callable[[Sequence[ApprovalRequest]], Sequence[Decision] | Awaitable[Sequence[Decision]]]
"""Decides about all calls of a turn at once, in their order. May be async."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about calls of the tools that `tool` names, where the arguments look like `arguments`.

    All are patterns of the shell: `*`, `?` and `[...]`. An argument that is no text is compared as JSON; one
    that the call does not have fits no pattern. The name is the tool's own, letter by letter.
    """

    action: Action
    tool: str = "*"
    arguments: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    """Of a "deny", for the model."""

    def __post_init__(self) -> None:
        """Raise UsageError for a rule that could never mean what was meant."""
        if self.action not in ("allow", "deny", "ask"):
            raise UsageError(f"a rule's action is {self.action!r:.40}: it must be allow, deny or ask")
        if not isinstance(self.tool, str) or not self.tool:
            raise UsageError(f"a rule's tool is {self.tool!r:.40}: it must be a name, or * for all")
        for name, pattern in self.arguments.items():
            if not isinstance(pattern, str):
                raise UsageError(f"a rule's pattern for {name!r:.40} is {pattern!r:.40}: it must be text")

    def fits(self, tool: Tool, call: ToolCallPart) -> bool:
        """Whether the rule is about this call."""
        return fnmatchcase(tool.name, self.tool) and all(
            name in call.arguments and fnmatchcase(_text(call.arguments[name]), pattern)
            for name, pattern in self.arguments.items()
        )


class Approvals:
    """Rules in their order, whoever is asked, and what was answered with "always".

    What was answered counts before the rules, except that it cannot undo a rule that denies. One object may
    serve several agents and runs, which then remember together.
    """

    def __init__(self, rules: Iterable[Rule] = (), approver: Approver | None = None) -> None:
        self.rules = tuple(rules)
        self.approver = approver
        self._remembered: dict[str, Allow | Deny] = {}

    def decide(self, tool: Tool, call: ToolCallPart) -> Allow | Deny | None:
        """What the rules say of a call; None when somebody has to be asked."""
        rule = next((rule for rule in self.rules if rule.fits(tool, call)), None)
        if rule is not None and rule.action == "deny":
            return Deny(rule.reason or "a rule forbids this call")
        if (remembered := self._remembered.get(tool.name)) is not None:
            return remembered
        if rule is not None:
            return Allow() if rule.action == "allow" else None
        return None if tool.side_effects else Allow()

    def remember(self, tool: Tool, decision: Decision) -> None:
        """Keep an answer that was given for good."""
        if isinstance(decision, Allow | Deny) and decision.always:
            self._remembered[tool.name] = decision

    def forget(self) -> None:
        """Ask again about everything."""
        self._remembered.clear()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_decisions(requests: Sequence[ApprovalRequest], decisions: object) -> Sequence[Decision]:
    """The answer of an approver. Raises UsageError for anything but a decision for each request."""
    if not isinstance(decisions, Sequence) or len(decisions) != len(requests):
        raise UsageError(
            f"the approver was asked about {len(requests)} calls and answered {decisions!r:.80}: "
            "it must return a list with one Allow, Deny or Edit for each"
        )
    for decision in decisions:
        if not isinstance(decision, Decision):
            raise UsageError(f"the approver answered {decision!r:.80}: it must be Allow, Deny or Edit")
    return decisions
