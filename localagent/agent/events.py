"""What a run tells: the model's own events as they are, and everything the loop does about them.

A run ends in exactly one `RunDone` or `RunFailed`. Everything is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localagent.agent.approvals import ApprovalRequest, Decision
from localagent.errors import LocalAgentError
from localagent.hosts.protocol import Prefilled
from localagent.messages import AssistantMessage, Message, ToolCallPart, ToolResultPart, Usage
from localagent.prompt.request import RequestWarning
from parsers import ArgumentEnd, ArgumentsDelta, CallStart, Event, Markup, Reasoning, Text

RunStop = Literal["answer", "terminated", "turn_limit", "repeated", "rescues", "length", "cancelled"]
"""Why a run ended.

"answer"; "terminated" by a tool; with an answer that was forced, because of the "turn_limit", because the
model "repeated" itself, or because nobody could use what it wrote even after "rescues"; by the token limit
("length"); "cancelled" by whoever started it.
"""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model is asked. `turn` counts from 0, `tools` says whether it is offered any."""

    turn: int
    agent_name: str | None = None
    tools: bool = True


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model has written `message`, which is kept unless it was stopped before its first word.

    `token_ids` are those it generated.
    """

    turn: int
    message: AssistantMessage
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """Somebody is being asked about these calls of the turn, all at once."""

    requests: tuple[ApprovalRequest, ...]


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """What was decided about one call: by whoever was asked, or by a rule that denies, or a "never".

    What runs because no rule is against it has none. `call` is as the model wrote it; with a second event, of
    a rule that denies what an `Edit` made of it, as it was changed.
    """

    call: ToolCallPart
    decision: Decision


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call begins: the arguments that it has after the approval are bound, and if they fit, it runs."""

    call: ToolCallPart


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A running tool tells how far it is; `share` is of the whole, from 0 to 1."""

    call: ToolCallPart
    text: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call has its result, also when it never ran. `seconds` is how long it did."""

    call: ToolCallPart
    result: ToolResultPart
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Retried:
    """The model is told `text`, and asked again; the last three: a last time, without tools.

    "same_calls": it made the calls of the round before once more, and reads their results.
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
    """What the older turns were replaced by. Without a `summary` nothing changed, and `problem` says why."""

    summary: str | None
    tokens_before: int
    tokens_after: int
    problem: str | None = None
    usage: Usage = field(default_factory=Usage)
    """What the model was asked for it; a run counts it in its own."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another agent goes on with the conversation."""

    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class RunDone:
    """The last event of a run that came to an end.

    `message` is the model's last, None when it wrote none; `messages` are all that the run added to the
    conversation, the user's first; `usage` adds up every call of a model, compaction included.
    """

    message: AssistantMessage | None
    messages: tuple[Message, ...]
    usage: Usage
    turns: int
    stop_reason: RunStop
    agent_name: str | None = None
    """Whose turn it was last, after hand-overs."""

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
AgentEvent = Event | RequestWarning | Prefilled | LoopEvent
"""Everything that a run may yield."""


def is_piece(event: AgentEvent) -> bool:
    """Whether it is only a piece of what the model is writing, which commits nobody to anything."""
    return isinstance(event, Text | Reasoning | Markup | CallStart | ArgumentsDelta | ArgumentEnd | Prefilled)
