"""Messages to OpenAI's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localagent.errors import Unsupported
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    UserMessage,
)
from localagent.wire.extras import attach, verbatim
from localagent.wording import quoted

AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
NAMELESS = "file.pdf"
"""The API wants a name for a file; this one is not read back."""
DETAIL = "openai.reasoning"
"""The prefix of unknown entries of `reasoning_details`."""
FIELD = "openai.message"
"""The prefix of objects that stand beside the content, in the field that the rest of the kind names."""
_OBJECTS = frozenset({"image_url", "input_audio", "file", "function"})


def to_wire(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """The value of `messages` in a request. Raises Unsupported for what the wire cannot carry."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case SystemMessage() | UserMessage():
                turns.append({"role": message.role, "content": _content(message.content)})
            case AssistantMessage():
                turns.append(_assistant(message))
            case ToolMessage():
                turns += (_attach(_result(part), part) for part in message.content)
            case _:
                raise Unsupported(
                    f"the OpenAI wire cannot carry a message of role {message.role!r}: build_request makes "
                    "one of it that can be sent"
                )
    return turns


def _content(parts: Sequence[Any]) -> str | list[dict[str, Any]]:
    """One text part is a plain string, as every server takes it; so is none, since lists may not be empty."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not _extra(parts[0]):
        return parts[0].text
    return [verbatim(part, "openai") or _attach(_part(part), part) for part in parts]


def _part(part: Any) -> dict[str, Any]:
    match part:
        case TextPart(text=text) if "refusal" in _extra(part):
            return {"type": "refusal", "refusal": text}
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ImagePart(url=str(url)) if part.is_picture:
            return {"type": "image_url", "image_url": {"url": url}}
        case ImagePart(data=bytes()) if part.media_type and part.is_picture:
            return {"type": "image_url", "image_url": {"url": part.data_url()}}
        case ImagePart(data=bytes(), media_type="application/pdf"):
            named = _extra(part).get("file")
            name = {} if isinstance(named, dict) and "filename" in named else {"filename": NAMELESS}
            return {"type": "file", "file": {**name, "file_data": part.data_url()}}
        case ImagePart(file_id=str(file_id)):
            return {"type": "file", "file": {"file_id": file_id}}
        case AudioPart(data=bytes(), media_type=kind) if kind in AUDIO_FORMATS:
            sound = {"data": part.to_base64(), "format": AUDIO_FORMATS[kind]}
            return {"type": "input_audio", "input_audio": sound}
        case ImagePart() | AudioPart():
            source = "a URL" if part.url else "a file id" if part.file_id else "bytes"
            what = quoted(part.media_type) if part.media_type else "media of unknown type"
            raise Unsupported(f"the OpenAI wire cannot carry {what} as {part.kind} from {source}")
    raise Unsupported(f"the OpenAI wire cannot carry a part of kind {part.kind!r:.60} here")


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    reasoning: list[Any] = []
    calls: list[ToolCallPart] = []
    fields: dict[str, Any] = {}
    others: list[Any] = []
    for part in message.content:
        if isinstance(part, ReasoningPart) or verbatim(part, DETAIL) is not None:
            reasoning.append(part)
        elif isinstance(part, ToolCallPart):
            calls.append(part)
        elif (field := verbatim(part, FIELD)) is not None:
            fields[part.kind.removeprefix(f"{FIELD}:")] = field
        else:
            others.append(part)
    for part in others:
        if not isinstance(part, TextPart) and verbatim(part, "openai") is None:
            raise Unsupported(
                f"the OpenAI wire cannot carry a part of kind {part.kind!r:.60} from an assistant"
            )
    turn: dict[str, Any] = {"role": "assistant", "content": _content(others)}
    if len(reasoning) > 1 or any(map(_needs_details, reasoning)):
        turn["reasoning_details"] = [
            verbatim(part, DETAIL) or _attach(_detail(part), part) for part in reasoning
        ]
    elif message.reasoning:  # one form or the other: a server that reads both would show it twice
        turn["reasoning_content"] = message.reasoning
    if calls:
        turn["tool_calls"] = [_attach(_call(call), call) for call in calls]
    return fields | turn


def _needs_details(part: ReasoningPart | UnknownPart) -> bool:
    """Whether it is more than its text."""
    if isinstance(part, UnknownPart):
        return True
    return part.redacted or bool(_extra(part)) or (part.signature, part.encrypted) != (None, None)


def _detail(part: ReasoningPart) -> dict[str, Any]:
    if _extra(part).get("type") == "reasoning.summary":
        detail: dict[str, Any] = {"type": "reasoning.summary", "summary": part.text}
    elif part.redacted:
        detail = {"type": "reasoning.redacted", **({"text": part.text} if part.text else {})}
    elif part.opaque:
        detail = {"type": "reasoning.encrypted"}
    else:
        detail = {"type": "reasoning.text", "text": part.text}
    given = {"signature": part.signature, "data": part.encrypted}
    return detail | {name: value for name, value in given.items() if value is not None}


def _call(call: ToolCallPart) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_text}
    return {"id": call.id, "type": "function", "function": function}


def _result(part: Any) -> dict[str, Any]:
    if not isinstance(part, ToolResultPart):
        raise Unsupported(f"the OpenAI wire cannot carry a part of kind {part.kind!r:.60} in a tool message")
    content = part.content
    if isinstance(content, str):
        return {"role": "tool", "tool_call_id": part.call_id, "content": content}
    for item in content:
        if not isinstance(item, TextPart) and verbatim(item, "openai") is None:
            raise Unsupported(
                f"the OpenAI wire cannot carry a part of kind {item.kind!r:.60} "
                f"in the result of {part.name!r:.60}: it takes text"
            )
    parts = [verbatim(item, "openai") or _attach(_part(item), item) for item in content]
    return {"role": "tool", "tool_call_id": part.call_id, "content": parts or ""}


def _extra(part: Any) -> dict[str, Any]:
    extra = part.provider_metadata.get("openai")
    return extra if isinstance(extra, dict) else {}


def _attach(block: dict[str, Any], part: Any) -> dict[str, Any]:
    return attach(block, part, "openai", nested=_OBJECTS)
