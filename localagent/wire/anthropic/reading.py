"""Anthropic's JSON to messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localagent.messages import (
    AssistantMessage,
    ImagePart,
    MalformedToolCallPart,
    ModelMessage,
    ReasoningPart,
    StopReason,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
    Usage,
)
from localagent.wire.extras import collect, keep, sign
from localagent.wire.folded import Waiting, unfold
from localagent.wire.payload import Fields, at, objects
from localagent.wording import quoted

# A paused turn is one that can be gone on with, as after max_tokens.
_STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "refusal": "content_filter",
}


def from_wire(payload: object) -> list[ModelMessage]:
    """The messages in `system` and `messages` of a request. Raises InvalidMessage, UnpairedResult."""
    body = Fields(payload, "payload")
    messages: list[ModelMessage] = []
    system = body.take("system")
    if system is not None and (parts := _parts(system, "system", _SYSTEM)):
        messages.append(SystemMessage(content=tuple(parts)))
    waiting = Waiting()
    for turn in objects(body.take("messages"), "messages"):
        with at(turn.where):
            first, *others = _turn(turn, waiting)
            messages += [keep(first, turn, "anthropic"), *others]
    return messages


def _turn(turn: Fields, waiting: Waiting) -> list[ModelMessage]:
    role, where = turn.text("role"), f"{turn.where}.content"
    readers = _READERS.get(role)
    if readers is None:
        raise turn.wrong(f"{role!r:.60} is no role: {', '.join(_READERS)}", "role")
    parts = _parts(turn.take("content"), where, readers)
    match role:
        case "user":
            return list(unfold(parts, waiting, where))
        case "system":
            return [SystemMessage(content=tuple(parts))]
    message = AssistantMessage(content=tuple(parts))
    waiting.call(message)
    return [message]


def read_response(payload: object) -> AssistantMessage:
    """The message that the API answered, with usage, stop reason and model. Raises InvalidMessage."""
    body = Fields(payload, "response")
    if (kind := body.text("type")) == "error":
        raise body.wrong(
            f"the API answered with an error: {quoted(body.object('error').text('message'), 300)}"
        )
    if kind != "message":
        raise body.wrong(f"{kind!r:.60} is no message", "type")
    reason = body.maybe_text("stop_reason") or "end_turn"
    details, used = body.maybe_object("stop_details"), body.maybe_object("usage")
    error = details.maybe_text("explanation") if details else None
    if reason not in _STOP_REASONS:
        error = f"the API stopped for a reason that is not known here: {reason}"
    with at("response"):
        return AssistantMessage(
            content=sign([_part(block, _ASSISTANT) for block in _content(body)], "anthropic"),
            id=body.maybe_text("id"),
            model=body.maybe_text("model"),
            stop_reason=_STOP_REASONS.get(reason, "error"),
            error=error,
            usage=_usage(used) if used else Usage(),
        )


def _content(body: Fields) -> Any:
    return objects(body.take("content"), "response.content")


def _usage(used: Fields) -> Usage:
    """`input_tokens` counts what was neither read from the cache nor written to it."""
    read, written = used.count("cache_read_input_tokens"), used.count("cache_creation_input_tokens")
    return Usage(
        input=used.count("input_tokens") + read + written,
        output=used.count("output_tokens"),
        cache_read=read,
        cache_write=written,
    )


# -- blocks -----------------------------------------------------------------------------------------------

Reader = Callable[[Fields], Any]


def _parts(content: object, where: str, readers: Mapping[str, Reader]) -> list[Any]:
    """A plain string is one block of text."""
    if isinstance(content, str):
        with at(where):
            return [TextPart(text=content)]
    return [_part(block, readers) for block in objects(content, where)]


def _part(block: Fields, readers: Mapping[str, Reader]) -> Any:
    kind = block.text("type")
    if kind not in _KNOWN:
        return block.unknown("anthropic", kind)
    if kind not in readers:
        raise block.wrong(f"{kind!r:.60} is no block that can stand here: {', '.join(readers)}", "type")
    with at(block.where):
        return readers[kind](block)


def _text(block: Fields) -> TextPart:
    return TextPart(text=block.text("text"), provider_metadata=collect(block, "anthropic"))


def _thinking(block: Fields) -> ReasoningPart:
    """Servers that imitate the API sign with an empty string, and some clients drop the field."""
    text, signature = block.text("thinking"), block.maybe_text("signature")
    return ReasoningPart(
        text=text, signature=signature or None, provider_metadata=collect(block, "anthropic")
    )


def _redacted(block: Fields) -> ReasoningPart:
    data = block.text("data")
    return ReasoningPart(encrypted=data, redacted=True, provider_metadata=collect(block, "anthropic"))


def _call(block: Fields) -> ToolCallPart | MalformedToolCallPart:
    call_id, name, given = block.text("id"), block.text("name"), block.take("input")
    if not isinstance(given, dict):
        raw = block.spell({"name": name, "input": given})
        return MalformedToolCallPart(raw=raw, reason="syntax", name=name, id=call_id)
    return ToolCallPart(id=call_id, name=name, arguments=given, provider_metadata=collect(block, "anthropic"))


def _result(block: Fields) -> ToolResultPart:
    content, failed = block.take("content"), block.take("is_error")
    if not isinstance(failed, bool | None):
        raise block.wrong("neither true nor false", "is_error")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = tuple(_parts(content, f"{block.where}.content", _SHOWN))
    return ToolResultPart(
        call_id=block.text("tool_use_id"),
        content=content,
        is_error=bool(failed),
        provider_metadata=collect(block, "anthropic"),
    )


def _image(block: Fields) -> ImagePart | UnknownPart:
    source = block.object("source")
    given: dict[str, Any]
    match source.text("type"):
        case "base64":
            given = {"data": source.text("data"), "media_type": source.text("media_type")}
        case "url":
            given = {"url": source.text("url")}
        case "file":
            given = {"file_id": source.text("file_id")}
        case _:
            return block.unknown("anthropic", "image")
    with at(source.where):
        return ImagePart(**given, provider_metadata=collect(block, "anthropic", source=source))


def _document(block: Fields) -> ImagePart | UnknownPart:
    source = block.object("source")
    given: dict[str, Any] = {"media_type": "application/pdf"}
    match source.text("type"):
        case "base64":
            given = {"data": source.text("data"), "media_type": source.text("media_type")}
        case "text":
            given = {"data": _encoded(source), "media_type": source.text("media_type")}
        case "url":
            given["url"] = source.text("url")
        case "file":
            given["file_id"] = source.text("file_id")
        case _:
            return block.unknown("anthropic", "document")  # such as one made of blocks
    with at(source.where):
        return ImagePart(**given, provider_metadata=collect(block, "anthropic", source=source))


def _encoded(source: Fields) -> bytes:
    try:
        return source.text("data").encode()
    except UnicodeEncodeError as error:
        raise source.wrong(f"not Unicode text: {error}", "data") from None


_SYSTEM: dict[str, Reader] = {"text": _text}
_SHOWN: dict[str, Reader] = {"text": _text, "image": _image, "document": _document}
_ASSISTANT: dict[str, Reader] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _call,
}
_READERS: dict[str, dict[str, Reader]] = {
    "user": {**_SHOWN, "tool_result": _result},
    "assistant": _ASSISTANT,
    "system": _SYSTEM,
}
_KNOWN = frozenset().union(*_READERS.values())
