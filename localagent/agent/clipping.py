"""Long texts made short, for a request or a history: head and tail, and between them how much was left out.

No message is changed: what is returned are copies, which say where something is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from localagent.messages import (
    MalformedToolCallPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from localagent.wording import listed

LEFT_OUT = "\n[... {:,} characters left out here ...]\n"
_NOTE = re.compile(r"\n\[\.\.\. ([\d,]{1,20}) characters left out here \.\.\.\]\n")
PARTS_LEFT_OUT = "[... {:,} parts left out here ...]"
MOST_PARTS = 1000
"""Of one result, that are kept."""


def clip_text(text: str, limit: int) -> str:
    """The text in at most `limit` characters, or in as many as the note takes.

    Where something was left out before, the note counts that as well.
    """
    if len(text) <= limit:
        return text
    room = max(0, limit - len(LEFT_OUT.format(len(text) + _left_out(text))))
    tail = room // 3
    head = room - tail
    removed = text[head : len(text) - tail]
    clipped = text[:head] + LEFT_OUT.format(len(removed) + _left_out(removed)) + text[len(text) - tail :]
    return min(clipped, text, key=len)


def _left_out(text: str) -> int:
    """How much more is missing than the notes in the text take."""
    return sum(int(note[1].replace(",", "") or 0) - len(note[0]) for note in _NOTE.finditer(text))


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


def bounded(result: ToolResultPart, limit: int) -> ToolResultPart:
    """The result as a history can keep it: its texts in `limit` characters, and its metadata as well.

    Metadata that has no room is named under "left_out".
    """
    clipped = clip_result(result, limit)
    if not isinstance(clipped.content, str) and (over := len(clipped.content) - MOST_PARTS) > 0:
        head = MOST_PARTS // 2
        note = TextPart(text=PARTS_LEFT_OUT.format(over))
        parts = (*clipped.content[:head], note, *clipped.content[head + over :])
        clipped = clipped.model_copy(update={"content": parts})
    fitting = dict(_fitting(result.metadata, limit))
    if len(fitting) < len(result.metadata):
        fitting["left_out"] = listed(name for name in result.metadata if name not in fitting)
        clipped = clipped.model_copy(update={"metadata": fitting})
    return clipped


def _fitting(metadata: Mapping[str, Any], room: int) -> Iterator[tuple[str, Any]]:
    for name, value in metadata.items():
        size = len(name) + len(json.dumps(value, ensure_ascii=False))
        if size <= room:
            room -= size
            yield name, value


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
