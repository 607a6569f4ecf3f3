"""Who may call what: rules first, then somebody who is asked.

Knows tools and calls. Does not know the loop or terminals; how a rule compares is in `rules`. Contract:
nothing is allowed by accident. A tool that declares side effects is asked about unless a rule says otherwise,
and where nobody can be asked it does not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localagent.agent.rules import Rule
from localagent.errors import UsageError
from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolSet


@dataclass(frozen=True, slots=True)
class Allow:
    """The call runs as the model wrote it. `always`: so do later calls of this very tool, see `Approvals`."""

    always: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run, and the model reads why. `always`: nor do later calls of this tool."""

    reason: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments instead, unless a rule denies them; the model reads that it did."""

    arguments: Mapping[str, Any]


Decision = Allow | Deny | Edit


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that somebody is to decide about. `call.described_arguments` is one line for a prompt."""

    call: ToolCallPart
    tool: Tool
    changed: bool = False
    """An "always" was said of a tool of this name, but this one is not the same; see `Tool.identity`."""


Approver = Callable[[list[ApprovalRequest]], Sequence[Decision] | Awaitable[Sequence[Decision]]]
"""Decides about all calls of a turn at once, in their order. May be async."""


class Approvals:
    """Rules in their order, whoever is asked, and what was answered with "always".

    The first rule that fits a call decides, with two exceptions for what was answered for good about its
    tool. A `Deny(always=True)` denies whatever a rule would allow or ask. An `Allow(always=True)` answers the
    rules that ask about every call of the tool, and the default: those are passed over. A rule that denies,
    or that asks about certain arguments, is never undone. Without a rule, tools with side effects ask.

    Rules are about names. What is allowed for good is a tool as it was when that was said: one of the same
    name that does something else, or says something else of itself, asks anew. What is denied for good is
    the name, whatever becomes of it.

    One object may serve several agents and runs, which then remember together.
    """

    def __init__(self, rules: Iterable[Rule] = (), approver: Approver | None = None) -> None:
        """Raises UsageError for what is no rule and what cannot be called."""
        if not isinstance(rules, Iterable) or isinstance(rules, str | Mapping):
            raise UsageError(f"the rules of approvals are a list of Rule(...), not {rules!r:.60}")
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise UsageError(f"{rule!r:.60} among the rules of approvals is no Rule(...)")
        if approver is not None and (not callable(approver) or isinstance(approver, type)):
            raise UsageError(
                f"the approver is {approver!r:.60}: it must be a function that takes a list of "
                "ApprovalRequest and returns an Allow, Deny or Edit for each"
            )
        self.approver = approver
        self._allowed: dict[Hashable, tuple[Tool, Allow]] = {}
        """By the identities of the tools, which are kept so that these stay theirs."""
        self._denied: dict[str, Deny] = {}

    def decide(self, tool: Tool, call: ToolCallPart) -> Allow | Deny | None:
        """What the rules say of a call; None when somebody has to be asked."""
        rule = self._rule(tool, call)
        if rule is not None and rule.action == "deny":
            return _denied(rule)
        if (remembered := self._denied.get(tool.name)) is not None:
            return remembered
        if rule is not None:
            return Allow() if rule.action == "allow" else None
        if self._allowed and (known := self._allowed.get(tool.identity)) is not None:
            return known[1]
        return None if tool.side_effects else Allow()

    def has_changed(self, tool: Tool) -> bool:
        """Whether an "always" was said of another tool of this name, and none of this one."""
        named = any(other.name == tool.name for other, _ in self._allowed.values())
        return named and tool.identity not in self._allowed

    def denied(self, tool: Tool, call: ToolCallPart) -> Deny | None:
        """What a rule that denies says of a call whose arguments somebody has changed."""
        rule = self._rule(tool, call)
        return _denied(rule) if rule is not None and rule.action == "deny" else None

    def _rule(self, tool: Tool, call: ToolCallPart) -> Rule | None:
        """The first rule that fits, but for those that an "always" has answered."""
        answered = bool(self._allowed) and tool.identity in self._allowed
        for rule in self.rules:
            passed_over = answered and rule.action == "ask" and not rule.arguments
            if not passed_over and rule.fits(tool, call):
                return rule
        return None

    def unknown_rules(self, tools: ToolSet) -> list[Rule]:
        """The rules that can fit no call of these tools, for callers who warn of a misspelling.

        A pattern may be about tools that come later; a name that is none of these, or an argument that none
        of the tools it names has, is likely a mistake.
        """
        return [rule for rule in self.rules if not rule.may_fit(tools)]

    def remember(self, tool: Tool, decision: Decision) -> None:
        """Keep an answer that was given for good."""
        match decision:
            case Allow(always=True):
                self._allowed[tool.identity] = tool, decision
            case Deny(always=True):
                self._denied[tool.name] = decision

    def forget(self) -> None:
        """Ask again about everything."""
        self._allowed.clear()
        self._denied.clear()


def as_approvals(value: Approvals | Approver | Sequence[Rule] | None) -> Approvals:
    """The approvals that are meant: an object of them, a list of rules, or whoever is asked.

    Raises UsageError for anything else.
    """
    match value:
        case Approvals():
            return value
        case list() | tuple():
            return Approvals(value)
        case None:
            return Approvals()
    if callable(value) and not isinstance(value, type):
        return Approvals(approver=value)
    raise UsageError(
        f"approvals is {value!r:.60}: it must be Approvals(...), a list of Rule(...), or a function that "
        "decides about a list of ApprovalRequest"
    )


def _denied(rule: Rule) -> Deny:
    return Deny(rule.reason or "a rule forbids this call")


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
