"""Messages to Anthropic's JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any
from zlib import crc32

from localagent.errors import Unsupported
from localagent.messages import (
    AssistantMessage,
    ImagePart,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.wire.extras import attach, verbatim
from localagent.wire.folded import fold

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
DOCUMENT_TYPES = frozenset({"application/pdf", "text/plain"})
_THINKING = frozenset({"thinking", "redacted_thinking"})
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")

Block = dict[str, Any]


def to_wire(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """`system`, where there is one, and `messages` of a request.

    Raises Unsupported, which names the message.
    """
    payload: dict[str, Any] = {}
    turns: list[dict[str, Any]] = []
    for message, blocks in fold(messages, _blocks_of):
        if isinstance(message, SystemMessage):
            plain = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
            payload["system"] = blocks[0]["text"] if plain else blocks
        else:
            turns.append({"role": "user" if message.role == "tool" else message.role, "content": blocks})
    payload["messages"] = turns
    return payload


def _blocks_of(message: ModelMessage) -> list[Block]:
    match message:
        case SystemMessage():
            return _blocks(message.content, _text)
        case UserMessage():
            return _blocks(message.content, _shown)
        case AssistantMessage():
            blocks = _blocks(message.content, _said)
            if blocks and blocks[0]["type"] not in _THINKING:
                # Only then: thinking between other blocks belongs where the model put it.
                blocks.sort(key=lambda block: block["type"] not in _THINKING)
            return blocks
        case ToolMessage():
            return _blocks(message.content, _result)
        case _:
            raise Unsupported(f"the Anthropic wire cannot carry a message of role {message.role!r}")


def _blocks(parts: Iterable[Any], write: Callable[[Any], Block]) -> list[Block]:
    """A block for every part; white space alone is refused by the API, in any text block."""
    return [
        verbatim(part, "anthropic")
        or attach(write(part), part, "anthropic", nested=("source",), reserved=("is_error",))
        for part in parts
        if not (isinstance(part, TextPart) and not part.text.strip())
    ]


def _text(part: Any) -> Block:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
    raise _refused(part)


def _shown(part: Any) -> Block:
    return _media(part) if isinstance(part, ImagePart) else _text(part)


def _said(part: Any) -> Block:
    match part:
        case ReasoningPart():
            return _thinking(part)
        case ToolCallPart(id=""):
            raise Unsupported(
                f"the Anthropic wire needs an id for the call of {part.name!r}; build_request gives one"
            )
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            return {"type": "tool_use", "id": _clean(call_id), "name": name, "input": deepcopy(arguments)}
    return _text(part)


def _thinking(part: ReasoningPart) -> Block:
    if part.signature and part.encrypted is None and not part.redacted:
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if part.encrypted and part.redacted and not part.text and not part.signature:
        return {"type": "redacted_thinking", "data": part.encrypted}
    what = "encrypted" if part.encrypted is not None else "redacted" if part.redacted else "unsigned"
    raise Unsupported(
        f"the Anthropic wire cannot carry {what} reasoning: it has signed text or redacted_thinking"
    )


def _result(part: Any) -> Block:
    if not isinstance(part, ToolResultPart):
        raise _refused(part)
    content = part.content if isinstance(part.content, str) else _blocks(part.content, _shown)
    block: Block = {"type": "tool_result", "tool_use_id": _clean(part.call_id), "content": content}
    return {**block, "is_error": True} if part.is_error else block


def _media(part: ImagePart) -> Block:
    kind = part.media_type or None
    block = "document" if kind in DOCUMENT_TYPES else "image"
    if kind is not None and kind not in IMAGE_TYPES | DOCUMENT_TYPES:
        raise Unsupported(f"the Anthropic wire takes no {kind}")
    if part.file_id is not None:
        return {"type": block, "source": {"type": "file", "file_id": part.file_id}}
    if part.url is not None:
        if kind == "text/plain":
            raise Unsupported("the Anthropic wire takes no text/plain by URL, only its text")
        return {"type": block, "source": {"type": "url", "url": part.url}}
    data = part.data or b""
    if kind is None:
        raise Unsupported("bytes of unknown media type, which the Anthropic wire needs: give `media_type`")
    if kind == "text/plain":
        try:
            return {"type": block, "source": {"type": "text", "media_type": kind, "data": data.decode()}}
        except UnicodeDecodeError as error:
            raise Unsupported(
                f"the Anthropic wire takes text/plain in UTF-8, which this is not: {error}"
            ) from None
    return {"type": block, "source": {"type": "base64", "media_type": kind, "data": part.to_base64()}}


def _clean(call_id: str) -> str:
    """The id in the characters that the API accepts; Kimi's `functions.get_weather:0` has others."""
    clean = _NOT_IN_ID.sub("_", call_id)
    # The checksum keeps ids apart that differ in such characters only.
    return clean if clean == call_id else f"{clean}_{crc32(call_id.encode()):08x}"


def _refused(part: Any) -> Unsupported:
    return Unsupported(f"the Anthropic wire cannot carry a part of kind {part.kind!r} here")
