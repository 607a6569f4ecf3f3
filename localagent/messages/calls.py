"""The parts for tools: calls, malformed calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from localagent.errors import InvalidMessage
from localagent.messages.parts import (
    AudioPart,
    ImagePart,
    Part,
    TextPart,
    UnknownPart,
    as_parts,
    is_absent,
    is_empty,
    tag_of,
)
from localagent.messages.values import (
    FrozenJsonObject,
    FrozenObject,
    JsonObject,
    Text,
    parse_object,
    refuse,
    same_json,
)
from localagent.parsers.events import Fits

ResultPart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ImagePart, Tag("image")]
    | Annotated[AudioPart, Tag("audio")]
    | Annotated[UnknownPart, Tag("unknown")],
    Discriminator(tag_of),
]


class ToolCallPart(Part):
    """A complete call. `arguments_text` is the JSON text of `arguments` as the model wrote it."""

    kind: Literal["tool_call"] = "tool_call"
    id: Text
    name: Text
    arguments: FrozenJsonObject = Field(default_factory=FrozenObject)
    """Read-only to the last list in it, so that what somebody approves is what runs. A deep copy is not."""
    arguments_text: Text = ""
    """Filled from `arguments` when empty; otherwise both must be the same object."""
    tool_kind: Text | None = Field(None, exclude_if=is_absent)
    """The kind of tool, as a hint for user interfaces: "read", "edit", "execute" and the like."""
    repaired: bool = False
    """The call could be read only after a repair of its text."""
    fits: Fits = Field(None, exclude_if=is_absent)
    """Whether it fits the tools that were declared to the model: true, or the reasons why not; else None."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, data: Any) -> Any:
        """Text alone says what the arguments are."""
        text = data.get("arguments_text") if isinstance(data, dict) else None
        if text and isinstance(text, str) and "arguments" not in data:
            return {**data, "arguments": cls._parsed(text)}
        return data

    @staticmethod
    def _parsed(text: str) -> dict[str, Any]:
        try:
            return parse_object(text)
        except ValueError as error:
            refuse("arguments_text", f"arguments_text is not the JSON text of an object: {error}")

    @model_validator(mode="after")
    def _compare_arguments(self) -> Self:
        if not self.arguments_text:
            self.__dict__["arguments_text"] = json.dumps(self.arguments, ensure_ascii=False)
            return self
        if not same_json(self._parsed(self.arguments_text), self.arguments):
            refuse("arguments_text", "arguments_text is not the JSON text of arguments: another object")
        return self

    @classmethod
    def _found_from(cls, field: str) -> tuple[str, ...]:
        derived = {"name": ("fits",), "arguments": ("arguments", "arguments_text", "fits")}
        return derived.get(field.removesuffix("_text"), ())

    @property
    def described_arguments(self) -> str:
        """The arguments on one readable line, for approval prompts and logs.

        They are complete, and characters that a terminal would not show are escaped.
        """
        return describe_arguments(self.arguments)

    def fixed(self) -> Self:
        """The call with arguments that nobody can change: itself, unless it was made without validation.

        Raises InvalidMessage for arguments that are no JSON.
        """
        if isinstance(self.arguments, FrozenObject):
            return self
        return self.changed(arguments=self.arguments)

    def result(
        self, content: str | Sequence[ResultPart] | JsonValue, *, is_error: bool = False
    ) -> ToolResultPart:
        """The result of this call: text, parts, or a JSON value, which is written as JSON text.

        Raises InvalidMessage for anything else.
        """
        if not isinstance(content, str) and not _are_parts(content):
            try:
                content = json.dumps(content, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidMessage(
                    f"the result of {self.name!r:.60} is neither text, nor parts, nor JSON: {error}"
                ) from None
        return ToolResultPart(call_id=self.id, name=self.name, content=content, is_error=is_error)


class MalformedToolCallPart(Part):
    """Output that was meant as a call but could not be read as one."""

    kind: Literal["malformed_tool_call"] = "malformed_tool_call"
    raw: Text
    """What the model wrote, byte for byte."""
    reason: Text
    """Why it is not a call, in one word; see `parsers.Reason`."""
    name: Text | None = None
    partial: JsonObject = Field(default_factory=dict)
    """The arguments that were complete before the fault."""
    id: Text = Field("", exclude_if=is_empty)
    """The `call_id` of a result that answers it."""

    @property
    def lost_call(self) -> bool:
        """Whether the model meant a call; otherwise there was only a stray marker."""
        return self.reason not in ("missing_end", "stray_end", "echo")

    def result(self, content: str) -> ToolResultPart:
        """An error result that answers it and tells the model what was wrong."""
        return ToolResultPart(call_id=self.id, name=self.name or "", content=content, is_error=True)


class ToolResultPart(Part):
    """The result of the call with id `call_id`. With an empty id it is matched by position."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: Text
    name: Text = ""
    content: Text | tuple[ResultPart, ...]
    is_error: bool = False
    metadata: JsonObject = Field(default_factory=dict, exclude_if=is_empty)
    """For hooks and logs; never sent to a model."""
    terminate: bool = Field(False, exclude_if=is_empty)
    """Skip the turn that would follow; never sent to a model."""

    _parts = field_validator("content", mode="before")(as_parts)

    @property
    def text(self) -> str:
        """The text parts of the result, joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def parts(self) -> tuple[ResultPart, ...]:
        """The content as parts."""
        return (TextPart(text=self.content),) if isinstance(self.content, str) else self.content


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments on one readable line; see `ToolCallPart.described_arguments`."""
    return ", ".join(f"{_shown_key(key)}={_shown(value)}" for key, value in arguments.items())


def _are_parts(content: Any) -> bool:
    return (
        isinstance(content, Sequence)
        and bool(content)
        and all(isinstance(item, TextPart | ImagePart | AudioPart | UnknownPart) for item in content)
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _shown_key(key: str) -> str:
    return key if key.isidentifier() and key.isprintable() else _shown(key)
