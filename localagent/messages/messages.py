"""Messages: who said what. Frozen, with an exact JSON form; order of parts is the order of writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from localagent.messages.parts import (
    AssistantPart,
    MalformedToolCallPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from localagent.messages.usage import Timings, Usage

StopReason = Literal["stop", "length", "cancelled"]


def _as_parts(content: Any) -> Any:
    """A plain string is one text part."""
    return (TextPart(text=content),) if isinstance(content, str) else content


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    timestamp: AwareDatetime | None = None


class SystemMessage(_Message):
    """Instructions that hold for the whole conversation."""

    role: Literal["system"] = "system"
    content: tuple[TextPart, ...]

    _parts = field_validator("content", mode="before")(_as_parts)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content)


class UserMessage(_Message):
    """What the user said."""

    role: Literal["user"] = "user"
    content: tuple[TextPart, ...]

    _parts = field_validator("content", mode="before")(_as_parts)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content)


class AssistantMessage(_Message):
    """What the model wrote, in the order in which it wrote it."""

    role: Literal["assistant"] = "assistant"
    content: tuple[AssistantPart, ...] = ()
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop_reason: StopReason = "stop"
    model: str | None = None
    raw: str | None = None
    """The model's output byte for byte, markers included."""

    _parts = field_validator("content", mode="before")(_as_parts)

    @property
    def text(self) -> str:
        """The text parts, joined with nothing between them."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined with nothing between them."""
        return "".join(part.text for part in self.content if isinstance(part, ReasoningPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The complete calls."""
        return tuple(part for part in self.content if isinstance(part, ToolCallPart))

    @property
    def malformed_tool_calls(self) -> tuple[MalformedToolCallPart, ...]:
        """What was meant as a call and is none."""
        return tuple(part for part in self.content if isinstance(part, MalformedToolCallPart))

    @property
    def malformed_tool_call_blocks(self) -> tuple[str, ...]:
        """The raw text of every malformed call."""
        return tuple(part.raw for part in self.malformed_tool_calls)


class ToolMessage(_Message):
    """The results of the calls of one assistant turn, in the order of the calls."""

    role: Literal["tool"] = "tool"
    content: tuple[ToolResultPart, ...] = Field(min_length=1)

    @classmethod
    def from_results(cls, results: Iterable[ToolResultPart]) -> ToolMessage:
        """One message for a batch of results."""
        return cls(content=tuple(results))

    @classmethod
    def from_result(cls, call: ToolCallPart, content: str, *, is_error: bool = False) -> ToolMessage:
        """One message for the result of one call."""
        result = ToolResultPart(call_id=call.id, name=call.name, content=content, is_error=is_error)
        return cls(content=(result,))


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def dump_messages(messages: Sequence[Message]) -> str:
    """A conversation as a JSON list."""
    return _MESSAGES.dump_json(list(messages)).decode()


def load_messages(text: str | bytes) -> list[Message]:
    """The inverse of `dump_messages`. Raises pydantic.ValidationError."""
    return _MESSAGES.validate_json(text)
