"""The gate: every call of a turn is looked at once, together, before any of them runs.

What leaves the gate either has its result, because there is no such tool or it was denied, or it may run as
it stands. Nothing is run here, and no arguments are bound: checking them against a schema may take long, and
is not worth it for a call that is denied. They are bound in the thread of the call, and within its time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from localagent.agent.approvals import (
    Allow,
    ApprovalRequest,
    Approvals,
    Decision,
    Deny,
    Edit,
    check_decisions,
)
from localagent.agent.concurrency import Cancel, Cancelled, Coroutines
from localagent.agent.events import ApprovalAsked, ApprovalGiven
from localagent.errors import InvalidMessage
from localagent.messages import TextPart, ToolCallPart, ToolResultPart
from localagent.tools import Tool, ToolSet

DENIED = "Denied{}. The call was not run."
NOBODY = "this tool asks before it runs, and nobody is there to be asked"
TOO_MANY = "Not run: only the first {:,} calls of a message run. Make this call again if it is still needed."
EDITED = "(The user changed the arguments to: {})\n"


@dataclass(slots=True)
class Slot:
    """One call of a turn and what becomes of it."""

    asked: ToolCallPart
    """As the model wrote it."""
    call: ToolCallPart
    """As it runs."""
    tool: Tool | None = None
    result: ToolResultPart | None = None
    started: bool = False
    too_many: bool = False
    """The turn had so many calls that this one was not looked at."""

    @property
    def edited(self) -> bool:
        """Whether a person changed the arguments."""
        return self.call is not self.asked

    def refuse(self, text: str) -> None:
        """Give the call an error result in place of running it."""
        self.finish(self.asked.result(text, is_error=True))

    def finish(self, result: ToolResultPart) -> ToolResultPart:
        """Give the call its result, with a word about arguments that somebody has changed."""
        note = EDITED.format(self.call.described_arguments)
        self.result = prefixed(result, note) if self.edited else result
        return self.result


def prefixed(result: ToolResultPart, text: str) -> ToolResultPart:
    """The result with a word in front of it, which it keeps all its parts behind."""
    content = result.content
    told = text + content if isinstance(content, str) else (TextPart(text=text), *content)
    return result.model_copy(update={"content": told})


def refused(calls: Iterable[ToolCallPart], text: str) -> list[Slot]:
    """Slots of calls that are not to run, each with the same error result."""
    slots = [Slot(call, call) for call in calls]
    for slot in slots:
        slot.refuse(text)
    return slots


def open_slots(calls: Sequence[ToolCallPart], tools: ToolSet, most: int) -> list[Slot]:
    """A slot for every call. Calls of unknown tools, and all after the first `most`, have their results."""
    slots = []
    for place, call in enumerate(calls):
        slot = Slot(call, call, tools.find(call.name), too_many=place >= most)
        if slot.too_many:
            slot.refuse(TOO_MANY.format(most))
        elif slot.tool is None:
            slot.refuse(tools.unknown(call.name))
        slots.append(slot)
    return slots


def approve(
    slots: Sequence[Slot], approvals: Approvals, coroutines: Coroutines, cancel: Cancel
) -> Generator[ApprovalAsked | ApprovalGiven, None, None]:
    """Decide about all open slots at once. Raises UsageError when the approver answers nonsense.

    Of what is decided, all is told but that a call may run since no rule is against it. Rules that deny are
    asked again about arguments that somebody has changed.
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
    for (slot, request), decision in zip(asking, decisions, strict=True):
        approvals.remember(request.tool, decision)
        _apply(slot, decision)
        yield ApprovalGiven(slot.asked, decision)
        if slot.edited and slot.result is None and (ruled := approvals.denied(request.tool, slot.call)):
            _apply(slot, ruled)
            yield ApprovalGiven(slot.call, ruled)


def _ask(
    requests: Sequence[ApprovalRequest], approvals: Approvals, coroutines: Coroutines, cancel: Cancel
) -> Sequence[Decision]:
    if approvals.approver is None:
        return [Deny(NOBODY)] * len(requests)
    decisions = None
    with suppress(Cancelled):
        decisions = coroutines.ask(approvals.approver, list(requests), cancel=cancel)
    if cancel.is_set():  # whatever was answered, nothing is to run any more
        return [Deny("the run was stopped")] * len(requests)
    return check_decisions(requests, decisions)


def _apply(slot: Slot, decision: Decision) -> None:
    match decision:
        case Allow():
            pass
        case Deny():
            slot.refuse(_denial(decision))
        case Edit(arguments=arguments):
            call = slot.asked
            try:
                slot.call = ToolCallPart.model_validate(
                    {"id": call.id, "name": call.name, "tool_kind": call.tool_kind, "arguments": arguments}
                )
            except ValueError as error:
                raise InvalidMessage(
                    f"the changed arguments of {call.name!r:.60} are no JSON: {error}"
                ) from None


def denied(call: ToolCallPart, tools: ToolSet, approvals: Approvals) -> ToolResultPart | None:
    """The error result of a call that middleware made and that a rule denies; None if it may run."""
    tool = tools.find(call.name)
    ruled = approvals.denied(tool, call) if tool is not None else None
    return call.result(_denial(ruled), is_error=True) if ruled is not None else None


def _denial(decision: Deny) -> str:
    reason = decision.reason.rstrip(".")
    return DENIED.format(f": {reason}" if reason else " by the user")
