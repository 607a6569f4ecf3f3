"""Gemini's JSON to messages."""

from __future__ import annotations

from typing import Any

from localagent.messages import (
    AssistantMessage,
    ModelMessage,
    StopReason,
    SystemMessage,
    ToolCallPart,
    Usage,
)
from localagent.wire.extras import keep, sign
from localagent.wire.folded import Waiting, unfold
from localagent.wire.gemini.parts import MODEL, SYSTEM, USER, fields_of, list_of, read_parts
from localagent.wire.payload import Fields, at
from localagent.wording import quoted

_FILTERED = (
    "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR ESCALATION "
    "IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION"
)
_STOP_REASONS: dict[str, StopReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(_FILTERED.split(), "content_filter"),
}


def from_wire(payload: object) -> list[ModelMessage]:
    """The messages in `systemInstruction` and `contents` of a request. Raises InvalidMessage, UnpairedResult.

    A string may stand for the instruction, for the contents and for any content.
    """
    body = fields_of(payload, "payload")
    messages: list[ModelMessage] = []
    system = body.take("systemInstruction")
    if system is not None:
        content = _content(system, "systemInstruction")
        content.maybe_text("role")  # of no meaning here; SDKs write "user" or "system"
        if parts := read_parts(content, SYSTEM):
            with at(content.where):
                messages.append(keep(SystemMessage(content=tuple(parts)), content, "google"))
    waiting = Waiting()
    for turn in _contents(body.take("contents")):
        with at(turn.where):
            first, *others = _turn(turn, waiting)
            messages += [keep(first, turn, "google"), *others]
    return messages


def _turn(turn: Fields, waiting: Waiting) -> list[ModelMessage]:
    role = turn.maybe_text("role") or "user"
    match role:
        case "model":
            message = AssistantMessage(content=tuple(read_parts(turn, MODEL)))
            waiting.call(message)
            return [message]
        case "user" | "function" | "tool":
            return list(unfold(read_parts(turn, USER), waiting, f"{turn.where}.parts"))
    raise turn.wrong(f"{role!r:.60} is no role: user, model", "role")


def read_response(payload: object) -> AssistantMessage:
    """The first candidate of a response, with usage, stop reason and model. Raises InvalidMessage."""
    body = fields_of(payload, "response")
    if (failed := body.take("error")) is not None:
        said = fields_of(failed, "response.error").text("message")
        raise body.wrong(f"the API answered with an error: {quoted(said, 300)}")
    candidates, feedback, used = (body.take(k) for k in ("candidates", "promptFeedback", "usageMetadata"))
    parts: list[Any] = []
    if candidates:
        candidate = list_of(candidates, "response.candidates")[0]
        if (content := candidate.take("content")) is not None:
            inner = fields_of(content, f"{candidate.where}.content")
            parts = read_parts(inner, MODEL, required=False)
        stop_reason, error = _stop(candidate, parts)
    elif feedback is not None:
        blocked = fields_of(feedback, "response.promptFeedback")
        why = blocked.maybe_text("blockReason") or "no reason given"
        stop_reason, error = "content_filter", f"the prompt was blocked: {_plain(why)}"
    else:
        raise body.wrong("no candidate in it", "candidates")
    with at("response"):
        return AssistantMessage(
            content=sign(parts, "google"),
            id=body.maybe_text("responseId"),
            model=body.maybe_text("modelVersion"),
            stop_reason=stop_reason,
            error=error,
            usage=Usage() if used is None else _usage(fields_of(used, "response.usageMetadata")),
        )


def _stop(candidate: Fields, parts: list[Any]) -> tuple[StopReason, str | None]:
    """Whatever is neither a stop, a limit nor a filter is an error that is named, and loses no content."""
    reason = _plain(candidate.maybe_text("finishReason") or "STOP")
    stop_reason = _STOP_REASONS.get(reason, "error")
    if stop_reason == "stop":
        return "tool_calls" if any(isinstance(part, ToolCallPart) for part in parts) else "stop", None
    message = candidate.maybe_text("finishMessage")
    if stop_reason == "length":
        return stop_reason, None
    return stop_reason, f"{reason}: {message}" if message else reason


def _usage(used: Fields) -> Usage:
    return Usage(
        input=used.count("promptTokenCount") + used.count("toolUsePromptTokenCount"),
        output=used.count("candidatesTokenCount") + used.count("thoughtsTokenCount"),
        cache_read=used.count("cachedContentTokenCount"),
    )


def _content(value: object, where: str) -> Fields:
    return fields_of({"parts": [{"text": value}]} if isinstance(value, str) else value, where)


def _contents(value: object) -> list[Fields]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise Fields({}, "contents").wrong("not a list")
    return [_content(item, f"contents[{number}]") for number, item in enumerate(value)]


def _plain(text: str) -> str:
    """The SDK's names of reasons are enums, which print otherwise than they compare."""
    return str.__str__(text)
