"""What messages are made of. Every part is a frozen value with a `kind`; identity belongs to messages."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Part):
    """Content that is meant to be read."""

    kind: Literal["text"] = "text"
    text: str


class ReasoningPart(_Part):
    """What the model thought before or between its answers, without the markers around it."""

    kind: Literal["reasoning"] = "reasoning"
    text: str


class ToolCallPart(_Part):
    """A complete call. `arguments_text` is the JSON text of `arguments` as it was streamed."""

    kind: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    arguments_text: str = ""
    """Filled from `arguments` when empty; otherwise it must hold the same object."""
    repaired: bool = False
    """The call's own text was accepted by a repair."""

    @model_validator(mode="before")
    @classmethod
    def _write_arguments(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("arguments_text"):
            return {**data, "arguments_text": json.dumps(data.get("arguments", {}), ensure_ascii=False)}
        return data

    @model_validator(mode="after")
    def _compare_arguments(self) -> ToolCallPart:
        try:
            same = json.loads(self.arguments_text) == self.arguments
        except ValueError:
            same = False
        if not same:
            raise ValueError("arguments_text is not the JSON text of arguments")
        return self

    @property
    def described_arguments(self) -> str:
        """The arguments on one readable line, for approval prompts and logs."""
        return ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in self.arguments.items()
        )


class MalformedToolCallPart(_Part):
    """Output that was meant as a call and is none. `partial`: the arguments complete before it broke."""

    kind: Literal["malformed_tool_call"] = "malformed_tool_call"
    raw: str
    reason: str
    name: str | None = None
    partial: dict[str, JsonValue] = Field(default_factory=dict)


class ToolResultPart(_Part):
    """What a tool answered to the call with id `call_id`."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    content: str
    is_error: bool = False


UserPart = TextPart
AssistantPart = Annotated[
    TextPart | ReasoningPart | ToolCallPart | MalformedToolCallPart, Field(discriminator="kind")
]
