"""What a run tells: the model's own events as they are, and everything that the loop does about them.

A run ends in exactly one `RunDone` or `RunFailed`. All events are frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localagent.agent.rules import ApprovalRequest, Decision
from localagent.errors import LocalAgentError
from localagent.hosts.protocol import Prefilled, Queued
from localagent.messages import AssistantMessage, Message, ToolCallPart, ToolResultPart, Usage
from localagent.parsers import ArgumentEnd, ArgumentsDelta, CallStart, Event, Markup, Reasoning, Text
from localagent.prompt.request import RequestWarning

RunStop = Literal["answer", "terminated", "turn_limit", "repeated", "rescues", "length", "cancelled"]
"""Why a run ended.

"answer": the model answered. "terminated": a tool ended the run. "turn_limit", "repeated", "rescues": an
answer was forced, since there had been too many turns, the model repeated itself, or rescues did not help.
"length": the token limit cut the answer off. "cancelled": the caller stopped the run.
"""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model is asked. `turn` counts from 0; `tools`: whether it is offered any."""

    turn: int
    agent_name: str | None = None
    tools: bool = True


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model has written `message`, which is kept unless it was stopped before its first word.

    `token_ids`: what it generated.
    """

    turn: int
    message: AssistantMessage
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The approver is asked about these calls of the turn, all at once."""

    requests: tuple[ApprovalRequest, ...]


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """What was decided about one call: by the approver, or by a denial of a rule or of an earlier answer.

    A call that runs without being asked about has no such event. `call` is as the model wrote it. Where a
    rule denies what an `Edit` made of it, there is a second event, with the call as it was changed.
    """

    call: ToolCallPart
    decision: Decision


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call begins, with the arguments that it has after the approval. If they fit the tool, it runs."""

    call: ToolCallPart


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far a running tool is; `share` is of the whole, from 0 to 1."""

    call: ToolCallPart
    text: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call has its result, even if it never ran. `seconds`: how long it ran."""

    call: ToolCallPart
    result: ToolResultPart
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Retried:
    """The model is told `text` and asked again; for the last three of `why` a last time, without tools.

    "same_calls": it repeated the calls of the round before, and is given their results.
    """

    why: Literal["malformed", "empty", "same_calls", "turn_limit", "repeated", "rescues"]
    text: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class CompactionStarted:
    """The conversation has become too long: older turns are being summarised."""

    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class CompactionEnded:
    """What the older turns were replaced with. Without a `summary` nothing changed; `problem` says why.

    With both, older turns were left out, since there was no room for them and no summary of them; then the
    `summary` says so, after what an earlier one says.
    """

    summary: str | None
    tokens_before: int
    tokens_after: int
    problem: str | None = None
    usage: Usage = field(default_factory=Usage)
    """What the summary cost; the usage of the run includes it."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another agent goes on with the conversation."""

    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class RunDone:
    """The last event of a run that came to an end.

    `message`: the model's last one, None if it wrote none. `messages`: all that the run added to the
    conversation, the user's first. `usage`: of every turn of a model, compaction included.
    """

    message: AssistantMessage | None
    messages: tuple[Message, ...]
    usage: Usage
    turns: int
    stop_reason: RunStop
    agent_name: str | None = None
    """The agent whose turn it was last."""

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.message.text if self.message is not None else ""


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The last event of a run that could not go on. What was said until then is in the conversation."""

    error: LocalAgentError
    messages: tuple[Message, ...]
    usage: Usage
    turns: int


LoopEvent = (
    TurnStarted | TurnEnded | ApprovalAsked | ApprovalGiven | ToolStarted | ToolProgress | ToolEnded
    | Retried | CompactionStarted | CompactionEnded | HandedOver | RunDone | RunFailed
)  # fmt: skip
"""What the loop itself tells."""
AgentEvent = Event | RequestWarning | Queued | Prefilled | LoopEvent
"""Everything that a run may yield."""


def is_piece(event: AgentEvent) -> bool:
    """Whether this is only a piece of what the model is writing, before anything is done about it."""
    return isinstance(
        event, Text | Reasoning | Markup | CallStart | ArgumentsDelta | ArgumentEnd | Queued | Prefilled
    )
