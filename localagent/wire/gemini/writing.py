"""Messages to Gemini's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
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
    UserMessage,
    parse_object,
)
from localagent.wire.extras import attach, verbatim
from localagent.wire.folded import fold

OBJECTS = frozenset({"inlineData", "fileData", "functionCall", "functionResponse"})
"""The parts, besides text, that messages have a form for."""
OTHERS = frozenset({"executableCode", "codeExecutionResult", "toolCall", "toolResponse"})
_RESERVED = OBJECTS | OTHERS | {"text"}
ALONE = frozenset({"result", "output", "error"})
"""Members of a response that, alone in it, are the whole result."""

Wired = dict[str, Any]


def to_wire(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """`systemInstruction`, where there is one, and `contents` of a request.

    Raises Unsupported, which names the message.
    """
    payload: dict[str, Any] = {}
    contents: list[dict[str, Any]] = []
    for message, parts in fold(messages, _parts_of):
        if isinstance(message, SystemMessage):
            payload["systemInstruction"] = {"parts": parts}
        else:
            contents.append({"role": "model" if message.role == "assistant" else "user", "parts": parts})
    payload["contents"] = contents
    return payload


def _parts_of(message: ModelMessage) -> list[Wired]:
    match message:
        case SystemMessage():
            return _parts(message.content, _text)
        case UserMessage():
            return _parts(message.content, _shown)
        case AssistantMessage():
            return _parts(message.content, _said)
        case ToolMessage():
            return _parts(message.content, _result)
        case _:
            raise Unsupported(f"the Gemini wire cannot carry a message of role {message.role!r}")


def _parts(parts: Iterable[Any], write: Callable[[Any], Wired]) -> list[Wired]:
    written = (verbatim(part, "google") or _attach(write(part), part) for part in parts)
    # An empty text is sent only for what stands beside it: Gemini signs a turn with one.
    return [part for part in written if part.get("text") != "" or part.keys() - {"text", "thought"}]


def _attach(wired: Wired, part: Any) -> Wired:
    reserved = _RESERVED | {"thought"} if isinstance(part, TextPart) else _RESERVED
    return attach(wired, part, "google", nested=OBJECTS, reserved=reserved)


def _text(part: Any) -> Wired:
    match part:
        case TextPart(text=text):
            return {"text": text}
    raise _refused(part)


def _shown(part: Any) -> Wired:
    return _media(part) if isinstance(part, ImagePart | AudioPart) else _text(part)


def _said(part: Any) -> Wired:
    match part:
        case ReasoningPart():
            return _thought(part)
        case ToolCallPart(id=call_id, name=name, arguments=arguments):
            call: Wired = {"id": call_id} if call_id else {}
            return {"functionCall": {**call, "name": name, "args": deepcopy(arguments)}}
    return _shown(part)


def _thought(part: ReasoningPart) -> Wired:
    if part.encrypted is not None or part.redacted:
        what = "encrypted" if part.encrypted is not None else "redacted"
        raise Unsupported(f"the Gemini wire cannot carry {what} reasoning: it has thoughts in text")
    thought: Wired = {"text": part.text, "thought": True}
    return {**thought, "thoughtSignature": part.signature} if part.signature else thought


def _result(part: Any) -> Wired:
    if not isinstance(part, ToolResultPart):
        raise _refused(part)
    if not part.name:
        raise Unsupported(
            f"the Gemini wire needs the name of the tool in the result with call id {part.call_id!r}; "
            "build_request sets it"
        )
    content, media = (_value(part.content), []) if isinstance(part.content, str) else _split(part.content)
    answer: Wired = {"id": part.call_id} if part.call_id else {}
    # An object is the response itself where that says no less: alone in it, some members are the whole
    # result, and one named "error" says that the tool failed.
    itself = isinstance(content, dict) and not content.keys() <= ALONE and failed(content) == part.is_error
    response = content if itself else {"error" if part.is_error else "result": content}
    answer |= {"name": part.name, "response": response}
    return {"functionResponse": {**answer, "parts": media} if media else answer}


def failed(response: dict[str, Any]) -> bool:
    """Whether a response says that the tool failed."""
    return not any(response.get("error") is said for said in (None, False))


def _value(text: str) -> str | dict[str, Any]:
    """The object that a result is, if its text is the very JSON that reading one gives; else the text."""
    try:
        value = parse_object(text) if text.startswith("{") else None
    except ValueError:
        return text
    return text if value is None or json.dumps(value, ensure_ascii=False) != text else value


def _split(content: Iterable[Any]) -> tuple[list[Any], list[Wired]]:
    """Text and references in their order, and the media that they refer to."""
    items: list[Any] = []
    media: list[Wired] = []
    for part in content:
        if not isinstance(part, ImagePart | AudioPart):
            items.append(_text(part)["text"])
            continue
        name = reference(len(media))
        source = {key: {**inner, "displayName": name} for key, inner in _media(part).items()}
        media.append(_attach(source, part))
        items.append({"$ref": name})
    return items, media


def reference(number: int) -> str:
    """The name of a medium in a result."""
    return f"part_{number + 1}"


def _media(part: ImagePart | AudioPart) -> Wired:
    kind = part.media_type or None
    if isinstance(part, AudioPart) and not (kind or "").startswith("audio/"):
        said = f"is {kind}" if kind else "has no media type: give `media_type`"
        raise Unsupported(f"the Gemini wire tells audio by its media type, and this {said}")
    if part.data is None:
        source = {"mimeType": kind} if kind else {}
        return {"fileData": {**source, "fileUri": part.file_id if part.url is None else part.url}}
    if kind is None:
        raise Unsupported("bytes of unknown media type, which the Gemini wire needs: give `media_type`")
    return {"inlineData": {"mimeType": kind, "data": part.to_base64()}}


def _refused(part: Any) -> Unsupported:
    return Unsupported(f"the Gemini wire cannot carry a part of kind {part.kind!r} here")
