"""llama-server's `POST /infill`, by which editors have the code at the cursor completed.

The model fills the gap between `input_prefix`, with `prompt` at its end, and `input_suffix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localagent.parsers import Text
from localagent.prompt.segments import Gap
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    Answer,
    Frame,
    Limits,
    Option,
    TurnRequest,
    Wire,
    opened,
)
from localagent.server.wires.openai import (
    NO_PENALTY,
    OF_OTHER_SERVERS,
    SAMPLING,
    error_body,
    own_fields,
    read_sampling,
)
from localagent.turn import Done, TurnEvent

OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(SAMPLING, "taken"),
    **dict.fromkeys(("model", "input_prefix", "input_suffix", "input_extra", "prompt"), "taken"),
    **dict.fromkeys(("n_predict", "max_tokens", "stream"), "taken"),
    "frequency_penalty": NO_PENALTY,
    "presence_penalty": NO_PENALTY,
    **OF_OTHER_SERVERS,
}
"""Every field that changes the answer. All else is a hint."""


def _read(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    """With `n_predict` 0 the prompt is only evaluated, for later requests: one token is drawn and dropped."""
    with opened(body, OPTIONS) as (fields, ignored):
        before, after = (fields.maybe_text(f"input_{name}") or "" for name in ("prefix", "suffix"))
        others = [
            (each.maybe_text("filename") or "", each.text("text")) for each in fields.objects("input_extra")
        ]
        only_reads = body.get("n_predict") == 0
        if only_reads:
            fields.take("n_predict")
        options = read_sampling(fields, "n_predict", "max_tokens")
        if only_reads:
            options["max_tokens"] = 1
        gap = Gap(before + (fields.maybe_text("prompt") or ""), after, others=tuple(others))
        return TurnRequest(
            model=fields.maybe_text("model") or "",
            raw_prompts=(gap,),
            options=options,
            stream=fields.flag("stream"),
            ignored=tuple(ignored),
            details={"only_reads": only_reads},
        )


class InfillWriter:
    """One text that fills a gap."""

    def __init__(self, request: TurnRequest, answer: Answer) -> None:
        self._model = answer.model
        self._only_reads: bool = request.details["only_reads"]
        self._text: list[str] = []
        self._end: dict[str, Any] = {}

    def begin(self) -> list[Frame]:
        """As `Writer.begin`."""
        return []

    def feed(self, event: TurnEvent) -> list[Frame]:
        """As `Writer.feed`."""
        match event:
            case Text(text=text) if text and not self._only_reads:
                self._text.append(text)
                return [Frame({"index": 0, "content": text, "stop": False, "model": self._model})]
            case Done():
                self._end = _ended(event)
                return [Frame({"index": 0, "content": "", "model": self._model, **self._end})]
        return []

    def keep_alive(self) -> list[Frame]:
        """As `Writer.keep_alive`."""
        return [Frame(comment="working")]

    def fail(self, error: Exception) -> list[Frame]:
        """As `Writer.fail`."""
        return [Frame(error_body(error)[1])]

    def whole(self) -> dict[str, Any]:
        """As `Writer.whole`."""
        return {"index": 0, "content": "".join(self._text), "model": self._model, **self._end}


def _ended(done: Done) -> dict[str, Any]:
    usage = done.message.usage
    limited = done.message.stop_reason == "length"
    return {
        "stop": True,
        "stop_type": "limit" if limited else "word" if done.stop is not None else "eos",
        "stopping_word": done.stop or "",
        "tokens_predicted": usage.output,
        "tokens_evaluated": usage.input,
        "tokens_cached": usage.cache_read,
        "truncated": False,
        **own_fields(done),
    }


INFILL_WIRE = Wire("/infill", _read, InfillWriter, error_body)
