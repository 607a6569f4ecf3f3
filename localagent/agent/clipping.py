"""Long texts made short for a request: the head and the tail, and between them how much was left out.

Knows messages. Never changes one: what it returns are copies for a model, and say where something is missing.
"""

from __future__ import annotations

from typing import Any

from localagent.messages import (
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

LEFT_OUT = "\n[... {:,} characters left out here ...]\n"


def clip_text(text: str, limit: int) -> str:
    """The text in at most `limit` characters, or in as many as the note takes."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(LEFT_OUT.format(len(text))))
    tail = room // 3
    head = room - tail
    clipped = text[:head] + LEFT_OUT.format(len(text) - room) + text[len(text) - tail :]
    return min(clipped, text, key=len)


def clip_result(result: ToolResultPart, limit: int) -> ToolResultPart:
    """The result with its texts clipped, which share the limit by their lengths. Other parts stay."""
    length = len(result.text)
    if length <= limit:
        return result
    if isinstance(result.content, str):
        return result.model_copy(update={"content": clip_text(result.content, limit)})
    parts = tuple(
        _clip(part, limit * len(part.text) // length) if isinstance(part, TextPart) else part
        for part in result.content
    )
    return result.model_copy(update={"content": parts})


def clip_message(message: Message, limit: int) -> Message:
    """The message with each of its parts clipped: texts, reasoning, calls and results.

    A call whose arguments are too long has one argument instead, which is the clipped text of all.
    """
    content = tuple(_clip(part, limit) for part in message.content)
    if all(new is old for new, old in zip(content, message.content, strict=True)):
        return message
    return message.model_copy(update={"content": content, **_without_raw(message)})


def _clip(part: Any, limit: int) -> Any:
    match part:
        case TextPart() | ReasoningPart() if len(part.text) > limit:
            return type(part)(text=clip_text(part.text, limit))
        case ToolResultPart():
            return clip_result(part, limit)
        case ToolCallPart() if len(part.arguments_text) > limit:
            shown = {"arguments": clip_text(part.arguments_text, limit)}
            return ToolCallPart(id=part.id, name=part.name, arguments=shown)
        case MalformedToolCallPart() if len(part.raw) > limit:
            return part.model_copy(update={"raw": clip_text(part.raw, limit)})
    return part


def _without_raw(message: Message) -> dict[str, None]:
    """What the model wrote byte for byte would go out in place of the clipped parts."""
    return {"raw": None} if getattr(message, "raw", None) is not None else {}
