"""Ollama's API: `POST /api/chat` and `POST /api/generate`.

An answer is one JSON object a line. A call is written when it is complete, with its arguments as an object;
what cannot be read as one comes in `malformed_tool_calls`, a field of ours, and in `unfit_tool_calls` why a
call does not fit the declared tools. Nothing is streamed before the first word, so a line without words keeps
a waiting client patient.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localagent.hosts.sampling import SamplingOptions
from localagent.messages import ImagePart, Message, SystemMessage
from localagent.parsers import CallEnd, Malformed, Reasoning, Text
from localagent.prompt.segments import Gap, Raw
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    Answer,
    BadRequest,
    Frame,
    Limits,
    Option,
    Refused,
    TurnRequest,
    Wire,
    goes_on,
    header_word,
    message_of,
    opened,
    sort_options,
    status_of,
)
from localagent.server.wires.offer import Offer, read_schema, read_tools
from localagent.server.wires.ollama_models import moment
from localagent.server.wires.openai import (
    EFFORTS,
    SAMPLING,
    Scores,
    malformed_entry,
    own_fields,
    read_sampling,
    unfit_entries,
    worth_telling,
)
from localagent.turn import Done, Scored, TurnEvent
from localagent.wire import openai
from localagent.wire.payload import Fields, at

# fmt: off
_BOTH: Mapping[str, Option] = {
    **dict.fromkeys(
        ("model", "stream", "format", "options", "think", "keep_alive", "logprobs", "top_logprobs"), "taken",
    ),
    **dict.fromkeys(("truncate", "shift"), "hint"),
}
CHAT_OPTIONS: Mapping[str, Option] = {**_BOTH, **dict.fromkeys(("messages", "tools", "tool_choice"), "taken")}
GENERATE_OPTIONS: Mapping[str, Option] = {
    **_BOTH,
    **dict.fromkeys(("prompt", "suffix", "system", "raw", "images"), "taken"),
    "template": Refused("the model's own chat template is used; `raw` does without one", ("",)),
    "context": Refused("the server never gave one: send the conversation to /api/chat", ([],)),
    **dict.fromkeys(("width", "height", "steps"), "hint"),
}
_NO_SAMPLER = "the server has no such sampler"
MODEL_OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys((*SAMPLING, "num_predict"), "taken"),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), Refused(_NO_SAMPLER, (0,))),
    **dict.fromkeys(("typical_p", "tfs_z"), Refused(_NO_SAMPLER, (1,))),
    "mirostat": Refused(_NO_SAMPLER, (0,)),
    **dict.fromkeys(
        ("mirostat_eta", "mirostat_tau", "penalize_newline", "repeat_last_n", "num_keep"), "hint",
    ),
    **dict.fromkeys(  # how a model is loaded, which it is already
        ("num_ctx", "num_batch", "num_gpu", "num_thread", "main_gpu", "low_vram", "f16_kv", "logits_all",
         "vocab_only", "use_mmap", "use_mlock", "embedding_only", "numa"),
        "hint",
    ),
}
# fmt: on
"""What becomes of the fields of a request, and of its `options`. All others are hints."""


def _read_chat(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    """Without messages, the model is only to be loaded, or unloaded."""
    with opened(body, CHAT_OPTIONS) as (fields, ignored):
        turns = fields.take("messages")
        if isinstance(turns, list):
            if len(turns) > (most := limits.messages):
                raise fields.wrong(f"{len(turns):,} of them, and the server takes {most:,}", "messages")
            turns = [_as_openai(turn, f"messages[{n}]", limits) for n, turn in enumerate(turns)]
            _drop_unmatched_ids([turn for turn in turns if isinstance(turn, dict)])
        messages = openai.from_wire([] if turns is None else turns)
        return _request(fields, limits, ignored, messages, read_tools(fields, limits))


def _read_generate(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    """Without a prompt, the model is only to be loaded, or unloaded."""
    with opened(body, GENERATE_OPTIONS) as (fields, ignored):
        prompt, system = fields.maybe_text("prompt") or "", fields.maybe_text("system")
        turn = {"role": "user", "content": prompt, "images": fields.take("images")}
        suffix = fields.maybe_text("suffix")
        if suffix and turn["images"]:
            raise fields.wrong("there is no place for images around a gap in a text", "suffix")
        if fields.flag("raw") or suffix:
            if system:
                ignored.append("system")
            _as_openai(turn, "", DEFAULT_LIMITS)  # refuses images, for which there is no place in text
            return _request(fields, limits, ignored, raw=Gap(prompt, suffix) if suffix else prompt or None)
        if not prompt and not turn["images"]:
            return _request(fields, limits, ignored)
        messages = openai.from_wire([_as_openai(turn, "", limits)])
        if system:
            messages = [SystemMessage.text(system), *messages]
        return _request(fields, limits, ignored, messages)


OLLAMA_CHAT_WIRE = Wire(
    "/api/chat",
    _read_chat,
    lambda request, answer: OllamaWriter(request, answer, chat=True),
    lambda problem: (status_of(problem), _error(problem)),
    framing="ndjson",
)
OLLAMA_GENERATE_WIRE = replace(
    OLLAMA_CHAT_WIRE,
    path="/api/generate",
    read=_read_generate,
    writer=lambda request, answer: OllamaWriter(request, answer, chat=False),
)


# -- requests -----------------------------------------------------------------------------------------------


def _request(
    body: Fields,
    limits: Limits,
    ignored: list[str],
    messages: Iterable[Message] = (),
    offer: Offer | None = None,
    raw: Raw | None = None,
) -> TurnRequest:
    """The request, with the fields that both endpoints take."""
    offer = offer or Offer()
    given = body.maybe_object("options") or Fields({}, "options")
    table = {f"options.{name}": how for name, how in MODEL_OPTIONS.items()}
    ignored += sort_options({f"options.{name}": value for name, value in given.rest().items()}, table)
    options = _sampling(given)
    top = body.count("top_logprobs")
    if top > 20:
        raise body.wrong("it must be at most 20", "top_logprobs")
    if body.flag("logprobs"):
        options["logprobs"] = top
    messages = list(messages)
    return TurnRequest(
        model=(body.maybe_text("model") or "").removesuffix(":latest"),
        messages=messages,
        continue_final_message=goes_on(messages),
        tools=offer.tools,
        options=options,
        tool_choice=offer.choice,
        response_format=_format(body, limits),
        strict=offer.strict,
        thinking=_thinking(body),
        thinking_field="think",
        stream=body.flag("stream", True),
        ignored=tuple(map(header_word, (*ignored, *offer.ignored))),
        raw_prompts=() if raw is None else (raw,),
        keep_alive=_keep_alive(body),
    )


def _sampling(given: Fields) -> SamplingOptions:
    if given.rest().get("num_predict") == -2:  # until the context is full, which is where every answer ends
        given.take("num_predict")
    return read_sampling(given, "num_predict")


def _format(body: Fields, limits: Limits) -> Mapping[str, Any] | None:
    """`format`: "json", or a JSON Schema."""
    if isinstance(form := body.rest().get("format"), str):
        body.take("format")
        if form not in ("", "json"):
            raise body.wrong(f'{form!r:.60} is neither "json" nor a JSON Schema', "format")
        return {"type": "json_object"} if form else None
    schema = read_schema(body, "format", limits)
    if schema is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _thinking(body: Fields) -> bool | str | None:
    """`think`: whether, or how much."""
    think = body.take("think")
    if isinstance(think, str) and think in EFFORTS:
        return EFFORTS[think]
    if not isinstance(think, bool | None):
        raise body.wrong(f"it must be true, false, or one of {', '.join(EFFORTS)}", "think")
    return think


_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _keep_alive(body: Fields) -> float | None:
    """Seconds, from a number or from text such as "1h30m"; what is negative means for ever."""
    given = body.take("keep_alive")
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given) if 0 <= given < 1e300 else math.inf  # JSON has integers that no float holds
    if isinstance(given, str) and len(given) < 60:
        text = given.removeprefix("-")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
        if re.fullmatch(r"[0-9]+", text):
            seconds, text = float(text), ""
        if not _DURATION.sub("", text) and given:
            return math.inf if given.startswith("-") else seconds
    raise body.wrong('it must be seconds, or a duration such as "5m" or "1h30m"', "keep_alive")


def _as_openai(turn: Any, where: str, limits: Limits) -> Any:
    """A message as OpenAI's API has it, whose reader then says what else is wrong with it."""
    if not isinstance(turn, Mapping):
        return turn
    turn = {**turn, "content": turn.get("content") or ""}
    path = f"{where}.images".lstrip(".")
    if images := turn.pop("images", None):
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            raise BadRequest(f"{path}: it must be a list of base64 text", path)
        if not limits.images:
            raise BadRequest(f"{path}: this model reads text, and no images", path)
        shown = []
        for number, image in enumerate(images):
            with at(f"{path}[{number}]"):
                url = ImagePart.from_base64(image).data_url()
            shown.append({"type": "image_url", "image_url": {"url": url}})
        turn["content"] = [{"type": "text", "text": turn["content"]}, *shown]
    if turn.get("role") == "tool":  # clients that give no id send the results in the order of the calls
        turn["tool_call_id"] = turn.get("tool_call_id") or ""
        turn["name"] = turn.pop("tool_name", None) or turn.get("name")
    return turn


def _drop_unmatched_ids(turns: Sequence[dict[str, Any]]) -> None:
    """Drop the ids of results where no call has one: those results are in the order of the calls.

    LiteLLM leaves out the ids of the calls, and keeps those of the results.
    """
    lists = [turn.get("tool_calls") for turn in turns]
    calls = [call for each in lists if isinstance(each, list) for call in each if isinstance(call, Mapping)]
    if not any(call.get("id") for call in calls):
        for turn in turns:
            if turn.get("role") == "tool":
                turn["tool_call_id"] = ""


# -- answers ------------------------------------------------------------------------------------------------


class OllamaWriter:
    """One answer, to either endpoint."""

    def __init__(self, request: TurnRequest, answer: Answer, chat: bool) -> None:
        self._answer = answer
        self._named = {"model": answer.model, "created_at": moment(answer.created)}
        self._chat = chat
        self._unloads = request.keep_alive == 0
        self._with_logprobs = "logprobs" in request.options
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._malformed: list[dict[str, Any]] = []
        self._unfit: list[dict[str, Any]] = []
        self._scores = Scores(answer)
        self._entries: list[dict[str, Any]] = []
        self._end: dict[str, Any] | None = None

    def begin(self) -> list[Frame]:
        """As `Writer.begin`. The first line is the first word."""
        return []

    def feed(self, event: TurnEvent) -> list[Frame]:
        """As `Writer.feed`."""
        match event:
            case Text(text=text) if text:
                self._text.append(text)
                if not self._with_logprobs:
                    return [self._line(text)]
                entries = [entry for _, entry in self._scores.beside(event.start, event.end)]
                self._entries += entries
                return [Frame(self._object({}, text) | {"done": False, "logprobs": entries})]
            case Scored() if self._with_logprobs:
                self._scores.note(event)
            case Reasoning(text=text) if text:
                self._thinking.append(text)
                return [self._line(thinking=text)]
            case CallEnd():
                position = len(self._calls)
                function = {"index": position, "name": event.name, "arguments": event.arguments}
                self._calls.append({"id": f"call_{self._answer.key}{position}", "function": function})
                unfit = unfit_entries(position, event.fits)
                self._unfit += unfit
                more: dict[str, Any] = {"unfit_tool_calls": unfit} if unfit else {}
                return [self._line(tool_calls=self._calls[-1:], **more)]
            case Malformed() if worth_telling(event):
                self._malformed.append(malformed_entry(event, len(self._malformed), None, ""))
                return [self._line(malformed_tool_calls=self._malformed[-1:])]
            case Done():
                self._end = self._numbers(event)
                return [Frame(self._object({}, "") | self._end)]
        return []

    def keep_alive(self) -> list[Frame]:
        """As `Writer.keep_alive`."""
        return [self._line()]

    def fail(self, error: Exception) -> list[Frame]:
        """As `Writer.fail`."""
        return [Frame(_error(error))]

    def whole(self) -> dict[str, Any]:
        """As `Writer.whole`. Of a request that asks for no words, it says that the model is loaded or not."""
        end = self._end
        if end is None:
            end = {"done": True, "done_reason": "unload" if self._unloads else "load"}
        more: dict[str, Any] = {"thinking": "".join(self._thinking)} if self._thinking else {}
        if self._calls:
            more["tool_calls"] = self._calls
        if self._malformed:
            more["malformed_tool_calls"] = self._malformed
        if self._unfit:
            more["unfit_tool_calls"] = self._unfit
        scores = {"logprobs": self._entries} if self._with_logprobs else {}
        return self._object(more, "".join(self._text)) | end | scores

    def _line(self, text: str = "", **more: Any) -> Frame:
        return Frame(self._object(more, text) | {"done": False})

    def _object(self, more: Mapping[str, Any], text: str) -> dict[str, Any]:
        if self._chat:
            return {**self._named, "message": {"role": "assistant", "content": text, **more}}
        return {**self._named, "response": text, **more}

    def _numbers(self, done: Done) -> dict[str, Any]:
        """The end of the answer. Durations are in nanoseconds, and at least 1: clients divide by them."""
        message, load = done.message, round(self._answer.load_seconds * 1e9)
        prefill, decode = (
            max(1, round(each * 1e9)) for each in (message.timings.prefill, message.timings.decode)
        )
        numbers: dict[str, Any] = {
            "done": True,
            "done_reason": "stop" if message.stop_reason in ("stop", "tool_calls") else "length",
            "total_duration": load + prefill + decode,
            "load_duration": load,
            "prompt_eval_count": message.usage.input,
            "prompt_eval_duration": prefill,
            "eval_count": message.usage.output,
            "eval_duration": decode,
        }
        return numbers | own_fields(done)


def _error(problem: Exception) -> dict[str, Any]:
    return {"error": message_of(problem)}
