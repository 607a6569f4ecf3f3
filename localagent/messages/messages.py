"""Messages: who said what. They are frozen and have an exact JSON form; parts are in the order of writing.

`system`, `user`, `assistant` and `tool` are for models. The others are for sessions: `request.build_request`
turns them into messages for models, or leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator

from localagent.messages.calls import MalformedToolCallPart, ToolCallPart, ToolResultPart
from localagent.messages.parts import (
    AudioPart,
    Frozen,
    ImagePart,
    ReasoningPart,
    TextPart,
    UnknownPart,
    as_parts,
    is_absent,
    require_tag,
    tag_of,
)
from localagent.messages.usage import Timings, Usage
from localagent.messages.values import Json, Moment, Text

StopReason = Literal["stop", "length", "tool_calls", "content_filter", "cancelled", "error"]
M = TypeVar("M", bound="BaseMessage")
M_co = TypeVar("M_co", bound="BaseMessage", covariant=True)

_TextTag = Annotated[TextPart, Tag("text")]
_ReasoningTag = Annotated[ReasoningPart, Tag("reasoning")]
_ImageTag = Annotated[ImagePart, Tag("image")]
_AudioTag = Annotated[AudioPart, Tag("audio")]
_CallTag = Annotated[ToolCallPart, Tag("tool_call")]
_MalformedTag = Annotated[MalformedToolCallPart, Tag("malformed_tool_call")]
_ResultTag = Annotated[ToolResultPart, Tag("tool_result")]
_UnknownTag = Annotated[UnknownPart, Tag("unknown")]

SystemPart = Annotated[_TextTag | _UnknownTag, Discriminator(tag_of)]
UserPart = Annotated[_TextTag | _ImageTag | _AudioTag | _ResultTag | _UnknownTag, Discriminator(tag_of)]
AssistantPart = Annotated[
    _TextTag | _ReasoningTag | _CallTag | _MalformedTag | _ImageTag | _AudioTag | _UnknownTag,
    Discriminator(tag_of),
]
ToolPart = Annotated[_ResultTag | _UnknownTag, Discriminator(tag_of)]
AnyPart = Annotated[
    _TextTag | _ReasoningTag | _CallTag | _MalformedTag | _ImageTag | _AudioTag | _ResultTag | _UnknownTag,
    Discriminator(tag_of),
]


class _Factory(Protocol[M_co]):
    def __call__(self, text: str, **fields: Any) -> M_co: ...


class TextAccess(Generic[M]):
    """`message.text` is the text of a message; `UserMessage.text("hi")` makes a message of text."""

    @overload
    def __get__(self, message: None, owner: type[M]) -> _Factory[M]: ...
    @overload
    def __get__(self, message: BaseMessage, owner: type[M]) -> str: ...
    def __get__(self, message: BaseMessage | None, owner: type[M]) -> _Factory[M] | str:
        if message is not None:
            return "".join(part.text for part in message.content if isinstance(part, TextPart))

        def make(text: str, **fields: Any) -> M:
            return owner(content=text, **fields)

        return make


class BaseMessage(Frozen):
    """The fields that all messages share. Only `content` is ever sent to a model."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        ignored_types=(TextAccess,),
        json_schema_extra=require_tag("role"),
    )

    role: str
    content: tuple[AnyPart, ...]
    id: Text | None = None
    timestamp: Moment | None = None
    source: Text | None = Field(None, exclude_if=is_absent)
    """The part of the program that wrote it, such as "compaction"; None: a person, a model or a tool."""
    agent_name: Text | None = Field(None, exclude_if=is_absent)
    mode: Literal["user", "tool"] | None = Field(None, exclude_if=is_absent)
    """Whether it came from a person or from tools and the program."""
    payload: Json = Field(None, exclude_if=is_absent)
    """The application's own data."""

    @field_validator("content", mode="before")
    @classmethod
    def _as_parts(cls, content: Any) -> Any:
        """A plain string is one text part, also in a list."""
        return (TextPart(text=content),) if isinstance(content, str) else as_parts(content)

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The images, in order."""
        return tuple(part for part in self.content if isinstance(part, ImagePart))


class SystemMessage(BaseMessage):
    """Instructions for the whole conversation."""

    role: Literal["system"] = "system"
    content: tuple[SystemPart, ...]
    text: ClassVar[TextAccess[SystemMessage]] = TextAccess()


class UserMessage(BaseMessage):
    """The user's text and media. Tool results in it belong to the assistant turn before."""

    role: Literal["user"] = "user"
    content: tuple[UserPart, ...]
    text: ClassVar[TextAccess[UserMessage]] = TextAccess()

    @classmethod
    def with_images(cls, text: str, images: Iterable[object], **fields: Any) -> UserMessage:
        """Text and then images, of whatever `ImagePart.of` takes. Raises InvalidMedia."""
        return cls(content=(TextPart(text=text), *map(ImagePart.of, images)), **fields)

    @classmethod
    def with_audio(cls, text: str, audio: Iterable[object], **fields: Any) -> UserMessage:
        """Text and then recordings, of whatever `AudioPart.of` takes. Raises InvalidMedia."""
        return cls(content=(TextPart(text=text), *map(AudioPart.of, audio)), **fields)


class AssistantMessage(BaseMessage):
    """What the model wrote, in the order in which it wrote it."""

    role: Literal["assistant"] = "assistant"
    content: tuple[AssistantPart, ...] = ()
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop_reason: StopReason = "stop"
    error: Text | None = Field(None, exclude_if=is_absent)
    """Why the turn failed, when `stop_reason` is "error"."""
    model: Text | None = None
    raw: Text | None = None
    """The model's output byte for byte, markers included."""
    text: ClassVar[TextAccess[AssistantMessage]] = TextAccess()

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined with nothing between them."""
        return "".join(part.text for part in self.content if isinstance(part, ReasoningPart))

    @property
    def reasoning_parts(self) -> tuple[ReasoningPart, ...]:
        """The reasoning parts, in order, with their signatures."""
        return tuple(part for part in self.content if isinstance(part, ReasoningPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The complete calls."""
        return tuple(part for part in self.content if isinstance(part, ToolCallPart))

    @property
    def malformed_tool_calls(self) -> tuple[MalformedToolCallPart, ...]:
        """The output that was meant as a call but could not be read as one."""
        return tuple(part for part in self.content if isinstance(part, MalformedToolCallPart))

    @property
    def malformed_tool_call_blocks(self) -> tuple[str, ...]:
        """The raw text of every malformed call."""
        return tuple(part.raw for part in self.malformed_tool_calls)


class ToolMessage(BaseMessage):
    """The results of the calls of one assistant turn, in the order of the calls."""

    role: Literal["tool"] = "tool"
    content: tuple[ToolPart, ...] = Field(min_length=1)

    @property
    def results(self) -> tuple[ToolResultPart, ...]:
        """The results."""
        return tuple(part for part in self.content if isinstance(part, ToolResultPart))

    @property
    def text(self) -> str:
        """The text of the results, a line each."""
        return "\n".join(result.text for result in self.results)

    @classmethod
    def from_results(cls, results: Iterable[ToolResultPart], **fields: Any) -> ToolMessage:
        """One message for a batch of results; see `ToolCallPart.result`."""
        return cls(content=tuple(results), **fields)

    @classmethod
    def from_result(cls, result: ToolResultPart, **fields: Any) -> ToolMessage:
        """One message for one result; see `ToolCallPart.result`."""
        return cls(content=(result,), **fields)


class CustomMessage(BaseMessage):
    """An application's own data in a session; never sent to a model. `custom_type` names its kind."""

    role: Literal["custom"] = "custom"
    custom_type: Text
    content: tuple[AnyPart, ...] = ()
    text: ClassVar[TextAccess[CustomMessage]] = TextAccess()


class BranchSummaryMessage(BaseMessage):
    """A summary of another branch of the conversation, which ended in the session entry `branch`."""

    role: Literal["branch_summary"] = "branch_summary"
    content: tuple[SystemPart, ...]
    branch: Text | None = None
    text: ClassVar[TextAccess[BranchSummaryMessage]] = TextAccess()


class CompactionSummaryMessage(BaseMessage):
    """A summary that replaces earlier messages, which no longer fit into the context."""

    role: Literal["compaction_summary"] = "compaction_summary"
    content: tuple[SystemPart, ...]
    source: Text | None = "compaction"  # always written: its default is not None
    text: ClassVar[TextAccess[CompactionSummaryMessage]] = TextAccess()


class RescueMessage(BaseMessage):
    """Text that prompts the model again after unusable output."""

    role: Literal["rescue"] = "rescue"
    content: tuple[SystemPart, ...]
    text: ClassVar[TextAccess[RescueMessage]] = TextAccess()


class FlushMessage(BaseMessage):
    """The history starts over here: nothing before this is sent, instructions included."""

    role: Literal["flush"] = "flush"
    content: tuple[SystemPart, ...] = ()
    text: ClassVar[TextAccess[FlushMessage]] = TextAccess()


ModelMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""The messages that a model can be sent."""
SessionMessage = (
    CustomMessage | BranchSummaryMessage | CompactionSummaryMessage | RescueMessage | FlushMessage
)
"""The messages that only sessions hold."""
Message = ModelMessage | SessionMessage


def _right_role(message: Any) -> Any:
    """Accept "resque", which one other message format writes for "rescue"."""
    misspelled = isinstance(message, dict) and message.get("role") == "resque"
    return {**message, "role": "rescue"} if misspelled else message


AnyMessage = Annotated[Message, Field(discriminator="role"), BeforeValidator(_right_role)]
"""For validation: any message, chosen by its role."""
