"""OpenAI's older completions: `POST /v1/completions`. Text in, text out, without a chat template.

The turn must have been run with a dialect that has no markers, so that all of its output is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localagent.hosts.sampling import MOST_LOGPROBS, Numbers
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    Answer,
    Frame,
    Framing,
    Limits,
    Option,
    Refused,
    TurnRequest,
    opened,
)
from localagent.server.wires.openai import (
    NO_BIAS,
    NO_PENALTY,
    OF_OTHER_SERVERS,
    ONE,
    SAMPLING,
    Spans,
    chat_usage,
    error_body,
    logprobs_of,
    own_fields,
    read_sampling,
)
from localagent.turn import Done, TurnEvent
from localagent.wire.payload import Fields
from parsers import Text

OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(SAMPLING, "taken"),
    **dict.fromkeys(("model", "prompt", "stream", "stream_options", "max_tokens", "logprobs"), "taken"),
    "user": "hint",
    "n": ONE,
    "best_of": ONE,
    "response_format": Refused("a format needs /v1/chat/completions", ({"type": "text"},)),
    "suffix": Refused("the server continues text; it cannot fill a gap", ("",)),
    "logit_bias": NO_BIAS,
    "frequency_penalty": NO_PENALTY,
    "presence_penalty": NO_PENALTY,
    **OF_OTHER_SERVERS,
}
"""Every field of the API, and those of other servers that change the answer. All else is a hint."""


class Completions:
    """The endpoint."""

    path = "/v1/completions"
    framing: Framing = "sse"

    def read(self, body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
        """As `Wire.read`."""
        with opened(body, limits, OPTIONS) as (fields, ignored):
            prompt = fields.take("prompt")
            if isinstance(prompt, list) and len(prompt) == 1:
                prompt = prompt[0]
            if not isinstance(prompt, str) or not prompt:
                raise fields.wrong("it must be one text, and not empty", "prompt")
            options = read_sampling(fields, "max_tokens")
            if (
                most := fields.number("logprobs", Numbers(whole=True, least=0, most=MOST_LOGPROBS))
            ) is not None:
                options["logprobs"] = most
            stream_options = fields.maybe_object("stream_options") or Fields({}, "stream_options")
            return TurnRequest(
                model=fields.maybe_text("model") or "",
                raw_prompt=prompt,
                options=options,
                stream=fields.flag("stream"),
                ignored=tuple(ignored),
                details={
                    "include_usage": stream_options.flag("include_usage"),
                    "logprobs": options.get("logprobs"),
                },
            )

    def writer(self, request: TurnRequest, answer: Answer) -> CompletionWriter:
        """As `Wire.writer`."""
        return CompletionWriter(request, answer)

    def error(self, problem: Exception) -> tuple[int, dict[str, Any]]:
        """As `Wire.error`."""
        return error_body(problem)

    def fails_in_stream(self, problem: Exception) -> bool:
        """As `Wire.fails_in_stream`."""
        return False


class CompletionWriter:
    """One completion."""

    def __init__(self, request: TurnRequest, answer: Answer) -> None:
        self._answer = answer
        self._with_usage: bool = request.details["include_usage"]
        self._tops: int | None = request.details["logprobs"]
        self._text: list[str] = []
        self._spans = Spans()
        self._end: dict[str, Any] = {}

    def begin(self) -> list[Frame]:
        """As `Writer.begin`."""
        return []

    def feed(self, event: TurnEvent) -> list[Frame]:
        """As `Writer.feed`."""
        match event:
            case Text(text=text) if text:
                self._text.append(text)
                self._spans.add(event.start, event.end)
                return [Frame(self._body([_choice(text)]))]
            case Done():
                return self._finish(event)
        return []

    def keep_alive(self) -> list[Frame]:
        """As `Writer.keep_alive`."""
        return [Frame(comment="working")]

    def fail(self, error: Exception) -> list[Frame]:
        """As `Writer.fail`."""
        return [Frame(error_body(error)[1])]

    def whole(self) -> dict[str, Any]:
        """As `Writer.whole`."""
        choice = {**_choice("".join(self._text)), **self._end["choice"]}
        return {**self._body([choice]), **self._end["numbers"]}

    def _finish(self, done: Done) -> list[Frame]:
        reason = "length" if done.message.stop_reason == "length" else "stop"
        usage, own = {"usage": chat_usage(done, Spans())}, own_fields(done)
        scores = None if self._tops is None else self._scores(done)
        self._end = {"choice": {"logprobs": scores, "finish_reason": reason}, "numbers": usage | own}
        frames = [] if scores is None else [Frame(self._body([_choice("", logprobs=scores)]))]
        last = self._body([_choice("", finish_reason=reason)])
        if self._with_usage:
            frames += [Frame(last), Frame(self._body([]) | usage | own)]
        else:
            frames.append(Frame(last | own))
        return [*frames, Frame("[DONE]")]

    def _scores(self, done: Done) -> dict[str, Any]:
        """Log-probabilities in this API's shape: a list for each property."""
        positions = self._spans.tokens(done)
        entries = logprobs_of(done, positions, self._answer)
        tops = [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": tops if self._tops else None,
            "text_offset": [done.ends[position - 1] if position else 0 for position in positions],
        }

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._answer.key}",
            "object": "text_completion",
            "created": int(self._answer.created),
            "model": self._answer.model,
            "choices": choices,
        }


def _choice(text: str, **fields: Any) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": None, **fields}
