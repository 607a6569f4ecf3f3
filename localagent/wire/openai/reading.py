"""OpenAI's JSON to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localagent.errors import UnpairedResult
from localagent.messages import (
    AssistantMessage,
    AudioPart,
    ImagePart,
    ModelMessage,
    ReasoningPart,
    StopReason,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
)
from localagent.pairing import pair
from localagent.wire.payload import Fields, at, objects

_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_STOP_REASONS: dict[str | None, StopReason] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def from_wire(payload: object) -> list[ModelMessage]:
    """The messages of a request's `messages`. Raises InvalidMessage, UnpairedResult."""
    messages: list[ModelMessage] = []
    for turn in objects(payload, "messages"):
        with at(turn.where):
            match turn.text("role"):
                case "system" | "developer":
                    message: ModelMessage = SystemMessage(content=_parts(turn))
                case "user":
                    message = UserMessage(content=_parts(turn), agent_name=turn.maybe_text("name"))
                case "assistant":
                    message = AssistantMessage(content=_assistant(turn), agent_name=turn.maybe_text("name"))
                case "tool":
                    _read_result(messages, turn)
                    continue
                case "function":
                    raise turn.wrong("the role 'function' is gone from the API: use 'tool'", "role")
                case role:
                    raise turn.wrong(f"{role!r} is no role: system, developer, user, assistant, tool", "role")
            rest = turn.rest()
            messages.append(message.model_copy(update={"payload": {"openai": rest}}) if rest else message)
    return messages


def read_response(payload: object) -> AssistantMessage:
    """The answer in a chat completion, with usage, stop reason and model. Raises InvalidMessage."""
    body = Fields(payload, "response")
    choice = next(body.objects("choices"), None)
    if choice is None:
        raise body.wrong("no choice in it", "choices")
    turn = choice.object("message")
    used = body.maybe_object("usage")
    with at(turn.where):
        return AssistantMessage(
            content=_assistant(turn),
            id=body.maybe_text("id"),
            model=body.maybe_text("model"),
            stop_reason=_STOP_REASONS.get(choice.maybe_text("finish_reason"), "stop"),
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
            return TextPart(text=block.text("text"), provider_metadata=_metadata(block))
        case "refusal":
            text = block.text("refusal")
            return TextPart(text=text, provider_metadata={"openai": {"refusal": text, **block.rest()}})
        case "image_url":
            inner = block.object("image_url")
            url = inner.text("url")
            with at(f"{inner.where}.url"):
                return ImagePart(url=url, provider_metadata=_metadata(block, image_url=inner))
        case "input_audio":
            inner = block.object("input_audio")
            data, form = inner.text("data"), inner.text("format")
            if form not in _AUDIO_TYPES:
                raise inner.wrong(f"{form!r} is no format: {', '.join(_AUDIO_TYPES)}", "format")
            with at(f"{inner.where}.data"):
                metadata = _metadata(block, input_audio=inner)
                return AudioPart(data=data, media_type=_AUDIO_TYPES[form], provider_metadata=metadata)
        case "file":
            return _file(block, block.object("file"))
        case _:
            raise block.wrong(f"unknown part type {kind!r}", "type")


def _file(block: Fields, inner: Fields) -> ImagePart:
    data, source = inner.maybe_text("file_data"), {"file_id": inner.maybe_text("file_id")}
    if data is not None:
        source["url" if data.startswith("data:") else "data"] = data
    name = inner.maybe_text("filename")
    with at(inner.where):
        metadata = _metadata(
            block, file=inner, **({"filename": name} if name not in (None, "file.pdf") else {})
        )
        return ImagePart(**source, provider_metadata=metadata)


def _metadata(block: Fields, **inner: Any) -> dict[str, Any]:
    """What nobody read: of the block, and of the object in it."""
    rest = block.rest()
    name, fields = next(
        ((key, value) for key, value in inner.items() if isinstance(value, Fields)), ("", None)
    )
    if fields is not None:
        kept = fields.rest() | {key: value for key, value in inner.items() if key != name}
        rest |= {name: kept} if kept else {}
    return {"openai": rest} if rest else {}


# -- assistant turns and results --------------------------------------------------------------------------


def _assistant(turn: Fields) -> list[Any]:
    parts: list[Any] = _reasoning(turn)
    content = turn.take("content")
    if isinstance(content, str):
        parts += [TextPart(text=content)] if content else []
    elif content is not None:
        parts += map(_part, objects(content, f"{turn.where}.content"))
    refusal = turn.maybe_text("refusal")
    if refusal:
        parts.append(TextPart(text=refusal, provider_metadata={"openai": {"refusal": refusal}}))
    for gone in ("function_call", "audio"):
        if turn.take(gone) is not None:
            raise turn.wrong("not read here: use tool_calls and text", gone)
    return [*parts, *map(_call, turn.objects("tool_calls"))]


def _reasoning(turn: Fields) -> list[ReasoningPart]:
    """`reasoning_details` where there are any, else the plain text under either name."""
    plain = turn.maybe_text("reasoning_content")
    other = turn.maybe_text("reasoning")
    details = [_detail(detail) for detail in turn.objects("reasoning_details")]
    text = plain or other
    return details or ([ReasoningPart(text=text)] if text else [])


def _detail(detail: Fields) -> ReasoningPart:
    kind = detail.text("type")
    if kind not in ("reasoning.text", "reasoning.encrypted", "reasoning.redacted", "reasoning.summary"):
        raise detail.wrong(f"unknown kind of reasoning {kind!r}", "type")
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


def _call(call: Fields) -> ToolCallPart:
    kind = call.maybe_text("type") or "function"
    if kind != "function":
        raise call.wrong(f"unknown type of call {kind!r}", "type")
    function = call.object("function")
    name, arguments = function.text("name"), function.text("arguments")
    with at(f"{function.where}.arguments"):
        return ToolCallPart(
            id=call.maybe_text("id") or "",
            name=name,
            arguments_text=arguments.strip() and arguments,  # some models write nothing for no arguments
            provider_metadata=_metadata(call, function=function),
        )


def _read_result(messages: list[ModelMessage], turn: Fields) -> None:
    """Results of one assistant turn share a message, as long as no other message comes between."""
    turn_id = turn.text("tool_call_id")
    content = turn.take("content")
    if not isinstance(content, str):
        content = tuple(_part(block) for block in objects(content, f"{turn.where}.content"))
    result = ToolResultPart(call_id=turn_id, name=turn.maybe_text("name") or "", content=content)
    done = messages.pop().content if messages and isinstance(messages[-1], ToolMessage) else ()
    caller = messages[-1] if messages else None
    calls: Sequence[ToolCallPart] = caller.tool_calls if isinstance(caller, AssistantMessage) else ()
    results = [*(part for part in done if isinstance(part, ToolResultPart)), result]
    try:
        slots = pair(calls, results)
    except UnpairedResult as error:
        raise UnpairedResult(f"{turn.where}: {error}") from None
    if not result.name:
        name = next(call.name for call, slot in zip(calls, slots, strict=True) if slot is result)
        results[-1] = result.model_copy(update={"name": name})
    messages.append(ToolMessage(content=tuple(results)))
