"""Who decides about the calls of a turn: rules first, then the approver.

All calls of a turn are decided at once, before any of them runs. Nothing is allowed by accident: a tool that
declares side effects is asked about unless a rule says otherwise, and without an approver it does not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress

from localagent.agent.concurrency import Coroutines
from localagent.agent.events import ApprovalAsked, ApprovalGiven
from localagent.agent.rules import Allow, ApprovalRequest, Decision, Deny, Edit, Rule
from localagent.agent.slot import Slot
from localagent.errors import InvalidMessage, UsageError
from localagent.hosts.protocol import Cancel, Cancelled
from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolSet

DENIED = "Denied{}. The call was not run."
NOBODY = "this tool asks before it runs, and nobody is there to be asked"

Approver = Callable[[list[ApprovalRequest]], Sequence[Decision] | Awaitable[Sequence[Decision]]]
"""Decides about all calls of a turn at once, in their order. May be async."""


class Approvals:
    """Rules in their order, the approver, and what it answered with "always".

    The first rule that fits a call decides. Two answers change that for a tool. After `Deny(always=True)` its
    calls are denied where a rule would allow them or ask. After `Allow(always=True)` the rules that ask about
    every call of the tool are passed over, and so is the default. A rule that denies, or that asks about
    certain arguments, always holds. Where no rule fits, tools with side effects ask.

    `Allow(always=True)` is about the tool as it was then: another of the same name, or the same one with a
    new description, asks again. `Deny(always=True)` is about the name, whatever tool comes to have it.

    One object may serve several agents and runs, which then share what was answered.
    """

    def __init__(self, rules: Iterable[Rule] = (), approver: Approver | None = None) -> None:
        """Raises UsageError for a rule that is none, and for an approver that cannot be called."""
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
        # By identity, with the tool: that may hold its id(), which is only its own while it lives.
        self._allowed: dict[Hashable, tuple[Tool, Allow]] = {}
        self._denied: dict[str, Deny] = {}

    def decide(self, tool: Tool, call: ToolCallPart) -> Allow | Deny | None:
        """What rules and earlier answers say of a call; None when the approver has to be asked."""
        rule = self._rule(tool, call)
        if rule is not None and rule.action == "deny":
            return rule.denial
        if (remembered := self._denied.get(tool.name)) is not None:
            return remembered
        if rule is not None:
            return Allow() if rule.action == "allow" else None
        if self._allowed and (known := self._allowed.get(tool.identity)) is not None:
            return known[1]
        return None if tool.side_effects else Allow()

    def has_changed(self, tool: Tool) -> bool:
        """Whether another tool of this name was always allowed, and this one was not."""
        named = any(other.name == tool.name for other, _ in self._allowed.values())
        return named and tool.identity not in self._allowed

    def denied(self, tool: Tool, call: ToolCallPart) -> Deny | None:
        """The denial of a rule, for a call whose arguments were changed after it was decided."""
        rule = self._rule(tool, call)
        return rule.denial if rule is not None and rule.action == "deny" else None

    def _rule(self, tool: Tool, call: ToolCallPart) -> Rule | None:
        """The first rule that fits and that no `Allow(always=True)` has answered."""
        answered = bool(self._allowed) and tool.identity in self._allowed
        for rule in self.rules:
            passed_over = answered and rule.action == "ask" and not rule.arguments
            if not passed_over and rule.fits(tool, call):
                return rule
        return None

    def unknown_rules(self, tools: ToolSet) -> list[Rule]:
        """The rules that fit no call of these tools, whatever its arguments: for callers who warn of them.

        A name that none of the tools has, or an argument that none of the tools named has, is likely
        misspelled. A pattern that fits no name is not counted: it may be about tools that come later.
        """
        return [rule for rule in self.rules if not rule.may_fit(tools)]

    def remember(self, tool: Tool, decision: Decision) -> None:
        """Remember an answer if it was given with "always"."""
        match decision:
            case Allow(always=True):
                self._allowed[tool.identity] = tool, decision
            case Deny(always=True):
                self._denied[tool.name] = decision

    def forget(self) -> None:
        """Forget every "always"."""
        self._allowed.clear()
        self._denied.clear()


def as_approvals(value: Approvals | Approver | Sequence[Rule] | None) -> Approvals:
    """Approvals as they are, or made of a list of rules or of an approver. Raises UsageError."""
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


def approve(
    slots: Sequence[Slot], approvals: Approvals, coroutines: Coroutines, cancel: Cancel
) -> Generator[ApprovalAsked | ApprovalGiven, None, None]:
    """Decide about all open slots at once. Raises UsageError when the approver answers nonsense.

    Every decision is told, except that a call may run without being asked about. After an `Edit` the rules
    that deny are applied again, to the new arguments.
    """
    asking: list[tuple[Slot, ApprovalRequest]] = []
    for slot in () if cancel.is_set() else slots:
        if slot.result is not None or slot.tool is None:
            continue
        ruled = approvals.decide(slot.tool, slot.call)
        if ruled is None:
            changed = approvals.has_changed(slot.tool)
            asking.append((slot, ApprovalRequest(slot.call, slot.tool, changed)))
        elif isinstance(ruled, Deny):
            _apply(slot, ruled)
            yield ApprovalGiven(slot.asked, ruled)
    if not asking:
        return
    requests = tuple(request for _, request in asking)
    yield ApprovalAsked(requests)
    decisions = _ask(requests, approvals, coroutines, cancel)
    given: list[ApprovalGiven] = []  # not told before all is decided: an `Edit` could be changed meanwhile
    for (slot, request), decision in zip(asking, decisions, strict=True):
        approvals.remember(request.tool, decision)
        _apply(slot, decision)
        given.append(ApprovalGiven(slot.asked, decision))
        if slot.edited and slot.result is None and (ruled := approvals.denied(request.tool, slot.call)):
            _apply(slot, ruled)
            given.append(ApprovalGiven(slot.call, ruled))
    yield from given


def _ask(
    requests: Sequence[ApprovalRequest], approvals: Approvals, coroutines: Coroutines, cancel: Cancel
) -> Sequence[Decision]:
    """The approver's decisions, one for each request. Raises UsageError for anything else."""
    if approvals.approver is None:
        return [Deny(NOBODY)] * len(requests)
    decisions = None
    with suppress(Cancelled):
        decisions = coroutines.ask(approvals.approver, list(requests), cancel=cancel)
    if cancel.is_set():  # nothing is to run any more, whatever was answered
        return [Deny("the run was stopped")] * len(requests)
    if not isinstance(decisions, Sequence) or len(decisions) != len(requests):
        raise UsageError(
            f"the approver was asked about {len(requests)} calls and answered {decisions!r:.80}: "
            "it must return a list with one Allow, Deny or Edit for each"
        )
    for decision in decisions:
        if not isinstance(decision, Decision):
            raise UsageError(f"the approver answered {decision!r:.80}: it must be Allow, Deny or Edit")
    return decisions


def _apply(slot: Slot, decision: Decision) -> None:
    match decision:
        case Allow():
            pass
        case Deny():
            slot.refuse(denial(decision))
        case Edit(arguments=arguments):
            call = slot.asked
            try:
                slot.call = ToolCallPart.model_validate(
                    {"id": call.id, "name": call.name, "tool_kind": call.tool_kind, "arguments": arguments}
                )
            except ValueError as error:
                said = f"the changed arguments of {call.name!r:.60} are not JSON: {error}"
                raise InvalidMessage(said) from None


def denial(decision: Deny) -> str:
    """What the model reads of a call that was denied."""
    reason = decision.reason.rstrip(".")
    return DENIED.format(f": {reason}" if reason else " by the user")
