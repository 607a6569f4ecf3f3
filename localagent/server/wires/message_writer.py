"""The answers and errors of Anthropic's Messages API.

A call is held back until it is complete: a block that is open cannot be taken back, and a call that turns out
to be malformed must never have been a `tool_use`. It comes in `malformed_tool_calls`, which stands with
`unfit_tool_calls` and the other fields of ours (see `openai.own_fields`) in the message, and in
`message_delta`. What the model writes beside its calls, white space included, is in the blocks byte for byte,
so that the next request renders to the same prompt.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from localagent.errors import ContextOverflow
from localagent.hosts.protocol import Prefilled
from localagent.messages import Usage
from localagent.parsers import CallEnd, Malformed, Reasoning, Text
from localagent.server.exchange import Answer, BadRequest, Frame, message_of, status_of
from localagent.server.wires.openai import malformed_entry, own_fields, unfit_entries, worth_telling
from localagent.turn import Done, TurnEvent

SIGNATURE = "localagent"
"""What thinking is signed with. Nobody checks it, but clients drop thinking whose signature is empty."""
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cancelled": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(problem: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error."""
    status = status_of(problem)
    kind = problem.type if isinstance(problem, BadRequest) else None
    if kind is None:
        kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = message_of(problem)
    if isinstance(problem, ContextOverflow):
        # In the words of Claude's own API, which clients look for: then they compact the conversation.
        message = f"prompt is too long: {problem.prompt_tokens} tokens > {problem.context} maximum"
    error: dict[str, Any] = {"type": kind, "message": message}
    if isinstance(problem, BadRequest) and problem.details is not None:
        error["details"] = problem.details
    return status, {"type": "error", "error": error}


class MessagesWriter:
    """One answer. Everything that is streamed is kept, and is the content of the whole message."""

    def __init__(self, answer: Answer) -> None:
        self._key = answer.key
        self._message: dict[str, Any] = {
            "id": f"msg_{answer.key}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": _usage(Usage()),
        }
        self._started = False
        self._texts: list[str] = []  # of the block that is open
        self._malformed: list[dict[str, Any]] = []
        self._unfit: list[dict[str, Any]] = []
        self._called = 0  # calls so far

    def begin(self) -> list[Frame]:
        """Nothing: `message_start` says how long the prompt is, so it waits until that is known."""
        return []

    def feed(self, event: TurnEvent) -> list[Frame]:
        """The frames of the next event."""
        match event:
            case Prefilled():
                return self._start(Usage(input=event.total, cache_read=event.cached))
            case Text(text=text) if text:
                return self._write("text", text)
            case Reasoning(text=text) if text:
                return self._write("thinking", text)
            case CallEnd():
                return self._call(event)
            case Malformed() if worth_telling(event):
                self._malformed.append(malformed_entry(event, len(self._malformed), None, ""))
            case Done():
                return self._finish(event)
        return []

    def keep_alive(self) -> list[Frame]:
        """An event, since clients do not count comments as a sign of life. No event may come before
        `message_start`, which then goes out without numbers; those in `message_delta` take their place.
        """
        return [*self._start(Usage()), _frame("ping")]

    def fail(self, error: Exception) -> list[Frame]:
        """The last frame of a stream that broke off."""
        return [Frame(error_body(error)[1], "error")]

    def whole(self) -> dict[str, Any]:
        """The message as one object."""
        return self._message

    @property
    def _content(self) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = self._message["content"]
        return content

    def _start(self, usage: Usage) -> list[Frame]:
        """The frame that opens the message, unless that is open."""
        if self._started:
            return []
        self._started = True
        self._message["usage"] = _usage(usage)
        return [_frame("message_start", message={**self._message, "content": []})]

    def _write(self, kind: Literal["text", "thinking"], text: str) -> list[Frame]:
        frames: list[Frame] = []
        if not self._texts or self._content[-1]["type"] != kind:
            block = {"type": kind, kind: ""}
            if kind == "thinking":
                block["signature"] = ""
            frames = [*self._close(), *self._open(block)]
        self._texts.append(text)
        return [*frames, self._delta(type=f"{kind}_delta", **{kind: text})]

    def _call(self, call: CallEnd) -> list[Frame]:
        block = {"type": "tool_use", "id": f"toolu_{self._key}_{call.index}", "name": call.name, "input": {}}
        frames = [*self._close(), *self._open(block)]
        block["input"] = call.arguments
        self._unfit += unfit_entries(self._called, call.fits)
        self._called += 1
        text = json.dumps(call.arguments, ensure_ascii=False)
        return [*frames, self._delta(type="input_json_delta", partial_json=text), self._stop()]

    def _finish(self, done: Done) -> list[Frame]:
        message = done.message
        frames = [*self._start(Usage()), *self._close()]
        reason = _STOP_REASONS.get(message.stop_reason, "end_turn")
        stopped = {"stop_reason": reason, "stop_sequence": None, "stop_details": None}
        if done.stop is not None and reason == "end_turn":
            stopped |= {"stop_reason": "stop_sequence", "stop_sequence": done.stop}
        usage = _usage(message.usage)
        more = own_fields(done)
        if self._malformed:
            more["malformed_tool_calls"] = self._malformed
        if self._unfit:
            more["unfit_tool_calls"] = self._unfit
        self._message |= {**stopped, "usage": usage, **more}
        return [*frames, _frame("message_delta", delta=stopped, usage=usage, **more), _frame("message_stop")]

    # -- blocks -----------------------------------------------------------------------------------------

    def _open(self, block: dict[str, Any]) -> list[Frame]:
        started = self._start(Usage())  # a recording has no prompt to be read
        self._content.append(block)
        return [
            *started,
            _frame("content_block_start", index=len(self._content) - 1, content_block=dict(block)),
        ]

    def _delta(self, **delta: Any) -> Frame:
        return _frame("content_block_delta", index=len(self._content) - 1, delta=delta)

    def _stop(self) -> Frame:
        return _frame("content_block_stop", index=len(self._content) - 1)

    def _close(self) -> list[Frame]:
        """End the block of text or thinking that is open, if one is."""
        if not self._texts:
            return []
        block, frames = self._content[-1], []
        block[block["type"]] = "".join(self._texts)
        self._texts.clear()
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            frames.append(self._delta(type="signature_delta", signature=SIGNATURE))
        return [*frames, self._stop()]


def _usage(usage: Usage) -> dict[str, int]:
    """`input_tokens` counts only what was not reused, as the API does."""
    return {
        "input_tokens": usage.prefilled,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def _frame(kind: str, **fields: Any) -> Frame:
    return Frame({"type": kind, **fields}, kind)
