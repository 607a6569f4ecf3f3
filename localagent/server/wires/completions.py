"""OpenAI's older completions: `POST /v1/completions`. Text in, text out, without a chat template.

The turn must have been run with a dialect that has no markers, so that all of its output is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localagent.hosts.sampling import MOST_LOGPROBS, Numbers
from localagent.parsers import Text
from localagent.prompt.segments import Gap, Raw
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    Answer,
    Limits,
    Option,
    Refused,
    TurnRequest,
    Wire,
    opened,
)
from localagent.server.wires.choices import ChoiceWriter, read_choices
from localagent.server.wires.openai import (
    NO_PENALTY,
    OF_OTHER_SERVERS,
    SAMPLING,
    Scores,
    error_body,
    read_sampling,
)
from localagent.turn import Done, Scored, TurnEvent
from localagent.wire.payload import Fields

OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(SAMPLING, "taken"),
    **dict.fromkeys(("model", "prompt", "suffix", "echo", "stream", "stream_options"), "taken"),
    **dict.fromkeys(("max_tokens", "logprobs", "n", "best_of"), "taken"),
    "user": "hint",
    "response_format": Refused("a format needs /v1/chat/completions", ({"type": "text"},)),
    "frequency_penalty": NO_PENALTY,
    "presence_penalty": NO_PENALTY,
    **OF_OTHER_SERVERS,
}
"""Every field of the API, and those of other servers that change the answer. All else is a hint."""
DEFAULT_LENGTH = 16
"""The most tokens of an answer where no limit is given: the API's own default. -1 is none."""


def _read(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    with opened(body, OPTIONS) as (fields, ignored):
        prompts = _prompts(fields, limits)
        options = read_sampling(fields, "max_tokens")
        if body.get("max_tokens") is None:
            options["max_tokens"] = DEFAULT_LENGTH
        most = fields.number("logprobs", Numbers(whole=True, least=0, most=MOST_LOGPROBS))
        if most is not None:
            options["logprobs"] = most
        echo, stream = fields.flag("echo"), fields.flag("stream")
        if echo and most is not None:
            raise fields.wrong("the prompt has no log-probabilities here: leave out logprobs", "echo")
        wanted, made = read_choices(fields, options, stream)
        stream_options = fields.maybe_object("stream_options") or Fields({}, "stream_options")
        return TurnRequest(
            model=fields.maybe_text("model") or "",
            raw_prompts=prompts,
            choices=made,
            echo=echo,
            options=options,
            stream=stream,
            ignored=tuple(ignored),
            details={
                "include_usage": stream_options.flag("include_usage"),
                "logprobs": most,
                "wanted": wanted,
            },
        )


COMPLETIONS_WIRE = Wire(
    "/v1/completions",
    _read,
    lambda request, answer: ChoiceWriter(
        request, answer, Completion, "cmpl", ("text_completion", "text_completion")
    ),
    error_body,
)


def _prompts(fields: Fields, limits: Limits) -> tuple[Raw, ...]:
    """A text or ids, or a list of such; with `suffix`, what is between each and that is to be filled."""
    given, suffix = fields.take("prompt"), fields.maybe_text("suffix")
    several = given if isinstance(given, list) and not _are_ids(given) else [given]
    if len(several) > limits.prompts:
        raise fields.wrong(f"{len(several):,} of them, and the server takes {limits.prompts}", "prompt")
    prompts: list[Raw] = []
    for prompt in several:
        if suffix and isinstance(prompt, str):
            prompts.append(Gap(prompt, suffix))
        elif suffix:
            raise fields.wrong("with a suffix, it must be a text", "prompt")
        elif _are_ids(prompt):
            prompts.append(tuple(prompt))
        elif isinstance(prompt, str) and prompt:
            prompts.append(prompt)
        else:
            raise fields.wrong("it must be a text or token ids, or a list of them, and none empty", "prompt")
    if not prompts:
        raise fields.wrong("it must not be empty", "prompt")
    return tuple(prompts)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


class Completion:
    """One choice of a completion."""

    reasoning_tokens = 0

    def __init__(self, request: TurnRequest, answer: Answer, number: int) -> None:
        self._answer = answer
        self._number = number
        self._prompt = number // request.choices if request.echo else None  # while it is still to be echoed
        self._tops: int | None = request.details["logprobs"]
        self._text: list[str] = []
        self._scores = Scores(answer)
        self._scored: list[tuple[int, dict[str, Any]]] = []
        self._end: dict[str, Any] = {}

    def begin(self) -> list[dict[str, Any]]:
        """As `Choice.begin`."""
        return []

    def feed(self, event: TurnEvent) -> list[dict[str, Any]]:
        """As `Choice.feed`."""
        match event:
            case Text(text=text) if text:
                if self._tops is None:
                    return [*self._echoed(), self._write(text)]
                scored = self._scores.beside(event.start, event.end)
                self._scored += scored
                return [self._write(text, logprobs=self._lists(scored))]
            case Scored() if self._tops is not None:
                self._scores.note(event)
            case Done():
                return [*self._echoed(), self._finish(event)]
        return []

    def whole(self) -> dict[str, Any]:
        """As `Choice.whole`."""
        return self._choice("".join(self._text)) | self._end

    def _echoed(self) -> list[dict[str, Any]]:
        prompt, self._prompt = self._prompt, None
        return [] if prompt is None else [self._write(self._answer.prompts[prompt])]

    def _write(self, text: str, **fields: Any) -> dict[str, Any]:
        self._text.append(text)
        return self._choice(text, **fields)

    def _finish(self, done: Done) -> dict[str, Any]:
        reason = "length" if done.message.stop_reason == "length" else "stop"
        scores = None if self._tops is None else self._lists(self._scored)
        self._end = {"logprobs": scores, "finish_reason": reason}
        return self._choice("", finish_reason=reason)

    def _lists(self, scored: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        """Log-probabilities in this API's shape: a list for each property."""
        entries = [entry for _, entry in scored]
        tops = [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": tops if self._tops else None,
            "text_offset": [begin for begin, _ in scored],
        }

    def _choice(self, text: str, **fields: Any) -> dict[str, Any]:
        return {"index": self._number, "text": text, "logprobs": None, "finish_reason": None, **fields}
