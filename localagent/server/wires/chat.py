"""OpenAI's chat completions: `POST /v1/chat/completions`.

Beside the API's own fields, a message may hold `reasoning_content`, and `malformed_tool_calls`: what was
meant as a call and cannot be read as one. An entry with an `id` takes back the call of that id, which had
begun to stream. `unfit_tool_calls` says of calls, by their `index`, why they do not fit the declared tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from localagent.hosts.sampling import MOST_LOGPROBS, Numbers
from localagent.messages import AssistantMessage, Message
from localagent.parsers import ArgumentsDelta, CallEnd, CallStart, Fits, Malformed, Reasoning, Text
from localagent.server.calls import HeldCalls, StreamedCalls
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    STATELESS,
    Answer,
    Limits,
    Option,
    Refused,
    TurnRequest,
    Wire,
    dump,
    goes_on,
    header_word,
    opened,
)
from localagent.server.wires.choices import ChoiceWriter, read_choices
from localagent.server.wires.offer import (
    Offer,
    custom_input,
    read_format,
    read_tools,
    refuse_images,
)
from localagent.server.wires.openai import (
    NO_PENALTY,
    OF_OTHER_SERVERS,
    SAMPLING,
    Scores,
    Spans,
    error_body,
    malformed_entry,
    read_effort,
    read_sampling,
    unfit_entries,
    worth_telling,
)
from localagent.turn import Done, Scored, TurnEvent
from localagent.wire import openai
from localagent.wire.openai.items import CUSTOM_INPUT
from localagent.wire.payload import Fields, whole

OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(SAMPLING, "taken"),
    **dict.fromkeys(("model", "messages", "stream", "stream_options"), "taken"),
    **dict.fromkeys(("max_completion_tokens", "max_tokens", "logprobs", "top_logprobs"), "taken"),
    **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "response_format"), "taken"),
    **dict.fromkeys(("reasoning_effort", "reasoning", "chat_template_kwargs"), "taken"),
    **dict.fromkeys(("thinking_budget_tokens", "stream_tool_calls"), "taken"),
    **dict.fromkeys(("user", "metadata", "store", "service_tier", "safety_identifier", "verbosity"), "hint"),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"), "hint"),
    **dict.fromkeys(("prediction", "moderation", "web_search_options"), "hint"),
    **dict.fromkeys(("n", "best_of"), "taken"),
    "echo": Refused("the answer has no prompt in it", (False,)),
    "frequency_penalty": NO_PENALTY,
    "presence_penalty": NO_PENALTY,
    "modalities": Refused("the server answers in text alone", (["text"],)),
    "audio": Refused("the server answers in text alone"),
    "functions": Refused("gone from the API: use tools", ([],)),
    "function_call": Refused("gone from the API: use tool_choice", ("none", "auto")),
    **dict.fromkeys(("continue_final_message", "add_generation_prompt"), "taken"),
    **dict.fromkeys(("previous_response_id", "conversation"), STATELESS),  # of the responses API
    **OF_OTHER_SERVERS,
}
"""Every field of the API, and those of other servers that change the answer. All else is a hint."""

_FINISH = {"stop": "stop", "length": "length", "content_filter": "content_filter"}


def _read(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    with opened(body, OPTIONS) as (fields, ignored):
        messages = body.get("messages")
        if isinstance(messages, list) and len(messages) > limits.messages:
            raise fields.wrong(
                f"{len(messages):,} of them, and the server takes {limits.messages:,}", "messages"
            )
        conversation = openai.from_wire(_with_functions(messages))
        if not conversation:
            raise fields.wrong("a conversation needs at least one message", "messages")
        refuse_images(conversation, limits, "messages")
        offer = read_tools(fields, limits)
        options = read_sampling(fields, "max_completion_tokens", "max_tokens")
        if (most := _logprobs(fields)) is not None:
            options["logprobs"] = most
        thinking, budget, asked, unread = _thinking(fields)
        stream = fields.flag("stream")
        wanted, made = read_choices(fields, options, stream)
        stream_options = fields.maybe_object("stream_options") or Fields({}, "stream_options")
        return TurnRequest(
            model=fields.maybe_text("model") or "",
            messages=conversation,
            choices=made,
            continue_final_message=_continues(fields, conversation),
            tools=offer.tools,
            options=options,
            tool_choice=offer.choice,
            parallel_tool_calls=fields.flag("parallel_tool_calls", True),
            response_format=read_format(fields, "response_format", limits),
            strict=offer.strict,
            thinking=thinking,
            thinking_budget=budget,
            thinking_field=asked,
            stream=stream,
            stream_tool_calls=fields.maybe_flag("stream_tool_calls"),
            ignored=(*ignored, *offer.ignored, *unread),
            details={
                "offer": offer,
                "include_usage": stream_options.flag("include_usage"),
                "logprobs": most is not None,
                "wanted": wanted,
            },
        )


CHAT_WIRE = Wire(
    "/v1/chat/completions",
    _read,
    lambda request, answer: ChoiceWriter(
        request, answer, ChatChoice, "chatcmpl", ("chat.completion.chunk", "chat.completion")
    ),
    error_body,
)


def _continues(body: Fields, conversation: Sequence[Message]) -> bool:
    """Whether the last message is gone on with. `add_generation_prompt` says the opposite, and need not."""
    wanted, begins = body.maybe_flag("continue_final_message"), body.maybe_flag("add_generation_prompt")
    if wanted is None and begins is not None:
        wanted = not begins
    elif wanted is not None and wanted is begins:
        raise body.wrong("the opposite of add_generation_prompt, or leave that out", "continue_final_message")
    if wanted and not isinstance(conversation[-1], AssistantMessage):
        raise body.wrong("the last message must be the assistant's", "continue_final_message")
    return goes_on(conversation) if wanted is None else wanted


def _with_functions(messages: Any) -> Any:
    """The messages with calls of custom tools as calls of the functions that stand for them."""
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "tool_calls": [_as_function(call) for call in message["tool_calls"]]}
        if isinstance(message, dict) and isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _as_function(call: Any) -> Any:
    match call:
        case {"type": "custom", "custom": {"name": str(name), "input": str(text)}, **rest}:
            function = {"name": name, "arguments": dump({CUSTOM_INPUT: text})}
            return {**rest, "type": "function", "function": function}
    return call


def _logprobs(body: Fields) -> int | None:
    """How many alternatives to return for each token; None for no log-probabilities at all."""
    wanted, top = body.flag("logprobs"), body.count("top_logprobs")
    if top > MOST_LOGPROBS:
        raise body.wrong(f"it must be at most {MOST_LOGPROBS}", "top_logprobs")
    if top and not wanted:
        raise body.wrong("it needs logprobs to be true", "top_logprobs")
    return top if wanted else None


def _thinking(body: Fields) -> tuple[bool | str | None, int | None, str, list[str]]:
    """The level of reasoning and the most tokens for it, in any of the forms that clients use; the field that
    asked for it; and the fields that have no effect. Where several do not agree, the first one counts.

    A budget of 0 tokens switches thinking off, as it does for llama-server; there, -1 is no budget.
    """
    unread: list[str] = []
    levels: dict[str, bool | str | None] = {"reasoning_effort": read_effort(body, "reasoning_effort")}
    if whole(body.rest().get("thinking_budget_tokens")) == -1:
        body.take("thinking_budget_tokens")
    budgets = {"thinking_budget_tokens": body.number("thinking_budget_tokens", _BUDGET)}
    if (reasoning := body.maybe_object("reasoning")) is not None:  # as OpenRouter has it
        levels["reasoning.effort"] = read_effort(reasoning, "effort")
        budgets["reasoning.max_tokens"] = reasoning.number("max_tokens", _BUDGET)
        if reasoning.rest().get("enabled") is not None:
            levels["reasoning.enabled"] = reasoning.flag("enabled")
        unread += map(reasoning.path, reasoning.rest())
    if (variables := body.maybe_object("chat_template_kwargs")) is not None:
        for name in ("enable_thinking", "thinking"):
            if isinstance(variables.rest().get(name), bool):
                levels[variables.path(name)] = variables.flag(name)
        unread += map(variables.path, variables.rest())
    asked, level = _first(levels)
    bounded, budget = _first(budgets)
    # True or False agrees with any level that is on or off accordingly.
    unread += (name for name, value in levels.items() if value not in (None, level, bool(level)))
    unread += (name for name, value in budgets.items() if value not in (None, budget))
    if budget == 0:
        if level:
            raise body.wrong(f"0 tokens, and {asked} asks for thinking: choose one of them", bounded)
        level, budget = False, None
    return level, budget, asked or bounded, [header_word(name) for name in unread]


_BUDGET = Numbers(whole=True, least=0)


def _first(given: Mapping[str, Any]) -> tuple[str, Any]:
    """The first field that says anything, and what it says."""
    return next(((name, value) for name, value in given.items() if value is not None), ("", None))


class ChatChoice:
    """One choice of a chat completion."""

    def __init__(self, request: TurnRequest, answer: Answer, number: int) -> None:
        self.reasoning_tokens = 0
        self._answer = answer
        self._number = number
        self._offer: Offer = request.details["offer"]
        self._with_logprobs: bool = request.details["logprobs"]
        self._passing = HeldCalls() if answer.buffer_tool_calls else StreamedCalls()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}  # by the index of their events, in the order of their positions
        self._malformed: list[dict[str, Any]] = []
        self._reasoning_spans = Spans()
        self._scores = Scores(answer)
        self._entries: list[dict[str, Any]] = []
        self._end: dict[str, Any] = {}

    def begin(self) -> list[dict[str, Any]]:
        """As `Choice.begin`."""
        return [self._chunk({"role": "assistant"})]

    def feed(self, event: TurnEvent) -> list[dict[str, Any]]:
        """As `Choice.feed`."""
        return [said for each in self._passing.feed(event) for said in self._write(each)]

    def whole(self) -> dict[str, Any]:
        """As `Choice.whole`."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text), "refusal": None}
        if calls := [call for call in self._calls.values() if call.good]:
            whole = [call.whole() for call in calls]
            message |= {"content": message["content"] or None, "tool_calls": whole}
        if unfit := [entry for at, call in enumerate(calls) for entry in unfit_entries(at, call.fits)]:
            message["unfit_tool_calls"] = unfit
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._malformed:
            message["malformed_tool_calls"] = self._malformed
        return {"index": self._number, "message": message, **self._end}

    def _write(self, event: TurnEvent) -> list[dict[str, Any]]:
        match event:
            case Text(text=text) if text:
                self._text.append(text)
                return [self._chunk({"content": text}, **self._scored(event))]
            case Scored() if self._with_logprobs:
                self._scores.note(event)
            case Reasoning(text=text) if text:
                self._reasoning.append(text)
                self._reasoning_spans.add(event.start, event.end)
                return [self._chunk({"reasoning_content": text})]
            case CallStart() if event.name not in self._offer.custom:
                return [self._start(event.index, event.name)]
            case ArgumentsDelta() if event.index in self._calls:
                return [self._go_on(event.index, event.json)]
            case CallEnd():
                return self._end_call(event)
            case Malformed() if worth_telling(event):
                return self._fail_call(event)
            case Done():
                return self._finish(event)
        return []

    def _start(self, index: int, name: str, custom: bool = False) -> dict[str, Any]:
        number = f"{self._number}_{index}" if self._number else index  # no two choices have calls of one id
        call = _Call(len(self._calls), f"call_{self._answer.key}{number}", name, custom)
        self._calls[index] = call
        return self._chunk({"tool_calls": [{"index": call.position, **call.whole()}]})

    def _go_on(self, index: int, piece: str) -> dict[str, Any]:
        call = self._calls[index]
        call.written.append(piece)
        delta = {"custom": {"input": piece}} if call.custom else {"function": {"arguments": piece}}
        return self._chunk({"tool_calls": [{"index": call.position, **delta}]})

    def _end_call(self, event: CallEnd) -> list[dict[str, Any]]:
        frames = []
        if event.name in self._offer.custom:  # only now is it known what the tool is given
            frames = [self._start(event.index, event.name, custom=True)]
            frames.append(self._go_on(event.index, custom_input(event)))
        call = self._calls[event.index]
        call.good, call.fits = True, event.fits
        if entries := unfit_entries(call.position, event.fits):
            frames.append(self._chunk({"unfit_tool_calls": entries}))
        return frames

    def _fail_call(self, event: Malformed) -> list[dict[str, Any]]:
        call = None if event.index is None else self._calls.get(event.index)
        frames = []
        if call is not None and not call.written:
            # Nothing at all would pass for a call without arguments; half an object never does.
            frames = [self._go_on(cast(int, event.index), "{")]
        call_id, sent = (None, "") if call is None else (call.id, "".join(call.written))
        entry = malformed_entry(event, len(self._malformed), call_id, sent)
        self._malformed.append(entry)
        return [*frames, self._chunk({"malformed_tool_calls": [entry]})]

    def _finish(self, done: Done) -> list[dict[str, Any]]:
        called = any(call.good for call in self._calls.values())
        reason = "tool_calls" if called else _FINISH.get(done.message.stop_reason, "stop")
        frames = [] if self._text or called else [self._chunk({"content": ""})]
        scores = {"content": self._entries, "refusal": None} if self._with_logprobs else None
        untold = {"logprobs": scores} if scores and not self._text else {}
        self.reasoning_tokens = len(self._reasoning_spans.tokens(done))
        self._end = {"logprobs": scores, "finish_reason": reason}
        return [*frames, self._chunk({}, finish_reason=reason, **untold)]

    def _scored(self, event: Text) -> dict[str, Any]:
        """What stands beside a piece of the text: its log-probabilities, if they are wanted."""
        if not self._with_logprobs:
            return {}
        entries = [entry for _, entry in self._scores.beside(event.start, event.end)]
        self._entries += entries
        return {"logprobs": {"content": entries, "refusal": None}}

    def _chunk(self, delta: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        return {"index": self._number, "delta": delta, "finish_reason": None, **fields}


@dataclass(slots=True)
class _Call:
    """A call that was announced."""

    position: int
    id: str
    name: str
    custom: bool
    written: list[str] = field(default_factory=list)
    good: bool = False
    fits: Fits = None

    def whole(self) -> dict[str, Any]:
        """The call as far as it is written."""
        text = "".join(self.written)
        if self.custom:
            return {"id": self.id, "type": "custom", "custom": {"name": self.name, "input": text}}
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text}}
