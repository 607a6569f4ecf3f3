"""OpenAI's JSON to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    MalformedToolCallPart,
    Message,
    ModelMessage,
    ReasoningPart,
    StopReason,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UnknownPart,
    Usage,
    UserMessage,
    parse_object,
)
from localagent.wire.extras import collect, keep, sign
from localagent.wire.folded import Waiting
from localagent.wire.openai.writing import DETAIL, FIELD, NAMELESS
from localagent.wire.payload import Fields, at, objects
from localagent.wording import quoted

_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_STOP_REASONS: dict[str | None, StopReason] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "stop": "stop",
    None: "stop",
}


def from_wire(payload: object, before: Sequence[Message] = ()) -> list[ModelMessage]:
    """The messages of a request's `messages`. Results may answer calls of the messages `before` them.

    Raises InvalidMessage, UnpairedResult.
    """
    messages: list[ModelMessage] = []
    waiting = Waiting()
    if asked := [message for message in before if isinstance(message, AssistantMessage)]:
        waiting.call(asked[-1])
    for turn in objects(payload, "messages"):
        with at(turn.where):
            message = _turn(turn, waiting)
            if not isinstance(message, ToolMessage):  # what else a result has, its part keeps
                message = keep(message, turn, "openai")
        last = messages[-1] if messages else None
        if isinstance(message, ToolMessage) and isinstance(last, ToolMessage):
            messages[-1] = last.model_copy(update={"content": (*last.content, *message.content)})
        else:
            messages.append(message)
    return messages


def _turn(turn: Fields, waiting: Waiting) -> ModelMessage:
    match turn.text("role"):
        case "system" | "developer":
            return SystemMessage(content=_parts(turn), agent_name=turn.maybe_text("name"))
        case "user":
            return UserMessage(content=_parts(turn), agent_name=turn.maybe_text("name"))
        case "assistant":
            message = AssistantMessage(content=_assistant(turn), agent_name=turn.maybe_text("name"))
            waiting.call(message)
            return message
        case "tool":
            return _result(turn, waiting)
        case "function":
            raise turn.wrong("the role 'function' is gone from the API: use 'tool'", "role")
        case role:
            raise turn.wrong(f"{role!r:.60} is no role: system, developer, user, assistant, tool", "role")


def read_response(payload: object) -> AssistantMessage:
    """The answer in a chat completion, with usage, stop reason and model. Raises InvalidMessage."""
    body = Fields(payload, "response")
    if (failed := body.maybe_object("error")) is not None:
        raise body.wrong(f"the API answered with an error: {quoted(failed.text('message'), 300)}")
    choice = next(body.objects("choices"), None)
    if choice is None:
        raise body.wrong("no choice in it", "choices")
    turn = choice.object("message")
    used, reason = body.maybe_object("usage"), choice.maybe_text("finish_reason")
    unknown = (
        None if reason in _STOP_REASONS else f"the API stopped for a reason not known here: {reason!r:.60}"
    )
    with at(turn.where):
        return AssistantMessage(
            content=sign(_assistant(turn, "truncated" if reason == "length" else "syntax"), "openai"),
            id=body.maybe_text("id"),
            model=body.maybe_text("model"),
            stop_reason=_STOP_REASONS.get(reason, "error"),
            error=unknown,
            usage=_usage(used) if used else Usage(),
        )


def _usage(used: Fields) -> Usage:
    details = used.maybe_object("prompt_tokens_details")
    return Usage(
        input=used.count("prompt_tokens"),
        output=used.count("completion_tokens"),
        cache_read=details.count("cached_tokens") if details else 0,
    )


# -- parts ------------------------------------------------------------------------------------------------


def _parts(turn: Fields) -> list[Any]:
    content = turn.take("content")
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [_part(block) for block in objects(content, f"{turn.where}.content")]


def _part(block: Fields) -> Any:
    match kind := block.text("type"):
        case "text":
            return TextPart(text=block.text("text"), provider_metadata=collect(block, "openai"))
        case "refusal":
            text = block.text("refusal")
            return TextPart(text=text, provider_metadata={"openai": {"refusal": text, **block.rest()}})
        case "image_url":
            inner = block.object("image_url")
            url = inner.text("url")
            with at(f"{inner.where}.url"):
                return ImagePart(url=url, provider_metadata=collect(block, "openai", image_url=inner))
        case "input_audio":
            inner = block.object("input_audio")
            data, form = inner.text("data"), inner.text("format")
            if form not in _AUDIO_TYPES:
                raise inner.wrong(f"{form!r:.60} is no format: {', '.join(_AUDIO_TYPES)}", "format")
            with at(f"{inner.where}.data"):
                metadata = collect(block, "openai", input_audio=inner)
                return AudioPart(data=data, media_type=_AUDIO_TYPES[form], provider_metadata=metadata)
        case "file":
            return _file(block, block.object("file"))
        case _:
            return block.unknown("openai", kind)


def _file(block: Fields, inner: Fields) -> ImagePart:
    data, source = inner.maybe_text("file_data"), {"file_id": inner.maybe_text("file_id")}
    if data is not None:
        source["url" if data.startswith("data:") else "data"] = data
    name = inner.maybe_text("filename")
    with at(inner.where):
        metadata = collect(block, "openai", file=inner)
        if name not in (None, NAMELESS):
            metadata.setdefault("openai", {}).setdefault("file", {})["filename"] = name
        return ImagePart(**source, provider_metadata=metadata)


# -- assistant turns and results --------------------------------------------------------------------------


def _assistant(turn: Fields, broken: str = "syntax") -> list[Any]:
    """`broken`: why a call is malformed whose arguments are no object."""
    parts: list[Any] = _reasoning(turn)
    content = turn.take("content")
    if isinstance(content, str):
        parts += [TextPart(text=content)] if content else []
    elif content is not None:
        parts += map(_part, objects(content, f"{turn.where}.content"))
    refusal = turn.maybe_text("refusal")
    if refusal:
        parts.append(TextPart(text=refusal, provider_metadata={"openai": {"refusal": refusal}}))
    if (audio := turn.maybe_object("audio")) is not None:
        parts.append(audio.unknown(FIELD, "audio"))
    malformed = [_malformed(entry) for entry in turn.objects("malformed_tool_calls")]
    # A client that streams may have kept their halves.
    taken_back = {part.id for part in malformed if part.id}
    calls = (_call(call, broken) for call in turn.objects("tool_calls"))
    parts += (call for call in calls if call.id not in taken_back)
    parts += malformed
    if (only := turn.maybe_object("function_call")) is not None:  # before there were several, with ids
        parts.append(read_function(Fields({}, only.where), only, "", broken))
    return parts


def _reasoning(turn: Fields) -> list[Any]:
    """`reasoning_details` where there are any, else the plain text under any of its names."""
    plain = [turn.maybe_text(name) for name in ("reasoning_content", "reasoning", "thinking")]
    details = [_detail(detail) for detail in turn.objects("reasoning_details")]
    text = next(filter(None, plain), None)
    if text and not any(isinstance(detail, ReasoningPart) and detail.text for detail in details):
        return [ReasoningPart(text=text), *details]
    return details


def _detail(detail: Fields) -> ReasoningPart | UnknownPart:
    kind = detail.text("type")
    if kind not in ("reasoning.text", "reasoning.encrypted", "reasoning.redacted", "reasoning.summary"):
        return detail.unknown(DETAIL, kind)
    text = detail.text("summary") if kind == "reasoning.summary" else detail.maybe_text("text") or ""
    signature, data = detail.maybe_text("signature"), detail.maybe_text("data")
    rest = detail.rest() | ({"type": kind} if kind == "reasoning.summary" else {})
    return ReasoningPart(
        text=text,
        signature=signature,
        encrypted=data,
        redacted=kind == "reasoning.redacted",
        provider_metadata={"openai": rest} if rest else {},
    )


def _call(call: Fields, broken: str) -> ToolCallPart | MalformedToolCallPart:
    kind, call_id = call.maybe_text("type") or "function", call.maybe_text("id") or ""
    if kind != "function":  # kept with its id, so that its result still has something to answer
        raw = call.spell({"type": kind, **call.rest()})
        return MalformedToolCallPart(raw=raw, reason="not_a_call", id=call_id)
    return read_function(call, call.object("function"), call_id, broken)


def _malformed(entry: Fields) -> MalformedToolCallPart:
    """An entry of the field in which this program's own server returns what it could not read."""
    return MalformedToolCallPart(
        raw=entry.text("raw"),
        reason=entry.maybe_text("reason") or "syntax",
        name=entry.maybe_text("name"),
        id=entry.maybe_text("id") or "",
    )


def read_function(
    call: Fields, function: Fields, call_id: str, broken: str = "syntax"
) -> ToolCallPart | MalformedToolCallPart:
    """The call with this function, which has a name and arguments; malformed if they are no object."""
    name, arguments = function.text("name"), function.take("arguments")
    arguments = "" if arguments is None else arguments
    if not isinstance(arguments, str):  # an object, as some servers write them, or nothing that can be read
        arguments = function.spell(arguments)
    written = arguments if arguments.strip() else ""  # some models write nothing for no arguments
    with at(f"{function.where}.arguments"):
        try:
            parsed = parse_object(written or "{}")
        except ValueError:
            raw = f'{{"name": {function.spell(name)}, "arguments": {arguments}}}'
            return MalformedToolCallPart(raw=raw, reason=broken, name=name, id=call_id)
        return ToolCallPart(
            id=call_id,
            name=name,
            arguments=parsed,
            arguments_text=written,
            provider_metadata=collect(call, "openai", function=function),
        )


def _result(turn: Fields, waiting: Waiting) -> ToolMessage:
    call_id, content = turn.text("tool_call_id"), turn.take("content")
    if not isinstance(content, str):
        content = tuple(_part(block) for block in objects(content, f"{turn.where}.content"))
    result = ToolResultPart(
        call_id=call_id,
        name=turn.maybe_text("name") or "",
        content=content,
        provider_metadata=collect(turn, "openai"),
    )
    return waiting.answer([result], turn.where)
