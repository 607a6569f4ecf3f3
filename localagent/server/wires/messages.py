"""Anthropic's Messages API: `POST /v1/messages`, and its `count_tokens`.

A call is held back until it is complete: a block, once it is open, cannot be taken back, and one that turns
out to be malformed must never have been a `tool_use`. Claude's own API streams in this way, too, a parameter
at a time. A malformed call comes back in `malformed_tool_calls`, beside the fields of the API.

What the model writes between its calls, white space included, is in the blocks byte for byte, so that the
next request renders to the same prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from localagent.errors import ContextOverflow
from localagent.hosts.sampling import SamplingOptions
from localagent.messages import (
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    UnknownPart,
    Usage,
    UserMessage,
)
from localagent.prompt.rendering import ToolSchema
from localagent.server.exchange import (
    Answer,
    BadRequest,
    Frame,
    Framing,
    Limits,
    Option,
    TurnRequest,
    Writer,
    message_of,
    refusing,
    sort_options,
    status_of,
)
from localagent.server.wires.reading import (
    NUMBERS,
    check_strict,
    check_tools,
    function_tool,
    read_schema,
)
from localagent.turn import Done, TurnEvent
from localagent.wire import anthropic
from localagent.wire.payload import Fields
from parsers import CallEnd, Malformed, Reasoning, Text

# fmt: off
OPTIONS: Mapping[str, Option] = dict.fromkeys(
    ("model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "temperature",
     "top_p", "top_k", "thinking", "output_config", "output_format", "stream"),
    "taken",
)
# fmt: on
"""What becomes of the fields of a request. All others are hints: Claude Code sends several that change from
one version to the next, and an error would lock it out."""
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}

SIGNATURE = "localagent"
"""What thinking is signed with. Nobody checks it, but clients drop thinking whose signature is empty."""
_BILLING = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that Claude Code puts into its system prompt. It changes with every request, and so would keep any
prompt from being reused."""
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
_OF_SERVER_TOOLS = re.compile(r"\w+_tool_(?:use|result)|container_upload")
"""Blocks of tools that Anthropic's servers run. They may stand in a conversation that began there."""

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


class MessagesWire:
    """`POST /v1/messages`."""

    path = "/v1/messages"
    framing: Framing = "sse"

    def read(self, body: Any, limits: Limits = Limits()) -> TurnRequest:
        """The turn that a request asks for. Raises BadRequest."""
        with refusing():
            return _Request(body, limits).read()

    def writer(self, request: TurnRequest, answer: Answer) -> Writer:
        """What writes the answer to this request."""
        return MessagesWriter(answer)

    def error(self, problem: Exception) -> tuple[int, dict[str, Any]]:
        """The status and the body that say what went wrong."""
        status = status_of(problem)
        kind = problem.type if isinstance(problem, BadRequest) else None
        if kind is None:
            kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        message = message_of(problem)
        if isinstance(problem, ContextOverflow):
            # In the words of Claude's own API, which clients look for: then they compact the conversation.
            message = f"prompt is too long: {problem.prompt_tokens} tokens > {problem.context} maximum"
        return status, {"type": "error", "error": {"type": kind, "message": message}}


class CountTokensWire(MessagesWire):
    """`POST /v1/messages/count_tokens`: a request like any other, that is only counted."""

    path = "/v1/messages/count_tokens"

    def read(self, body: Any, limits: Limits = Limits()) -> TurnRequest:
        """The turn whose prompt is to be counted. Raises BadRequest."""
        with refusing():
            return _Request(body, limits).read(counted=True)


def counted(tokens: int) -> dict[str, Any]:
    """The answer of count_tokens."""
    return {"input_tokens": tokens}


# -- requests -----------------------------------------------------------------------------------------------


class _Request:
    """A request while it is read. Raises BadRequest, and what `refusing` makes one of."""

    def __init__(self, body: Any, limits: Limits) -> None:
        if not isinstance(body, Mapping):
            raise BadRequest("the body of a request is a JSON object")
        self._body = body
        check_strict(body, OPTIONS.keys() - {"messages", "system"})
        self._fields = Fields(body, "")
        self._limits = limits
        self._ignored = dict.fromkeys(sort_options(body, OPTIONS))  # a set that keeps its order

    def read(self, counted: bool = False) -> TurnRequest:
        """The turn. One that is only counted may end with words of the assistant."""
        fields = self._fields
        messages = self._messages(counted)
        tools, strict = self._tools()
        choice, parallel = self._tool_choice(tools)
        thinking, budget, response_format = self._output()
        return TurnRequest(
            model=fields.maybe_text("model") or "",
            messages=messages,
            tools=tools,
            options=self._options(),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            response_format=response_format,
            strict=strict,
            thinking=thinking,
            thinking_budget=budget,
            stream=fields.flag("stream"),
            ignored=tuple(self._ignored),
        )

    def _messages(self, counted: bool) -> list[Message]:
        turns = self._fields.take("messages")
        if isinstance(turns, list):
            if not turns:
                raise BadRequest("messages: at least one message is needed", "messages")
            if len(turns) > self._limits.messages:
                raise BadRequest(f"messages: more than {self._limits.messages:,} of them", "messages")
            if not counted and isinstance(turns[-1], Mapping) and turns[-1].get("role") == "assistant":
                raise BadRequest(
                    "messages: the last one is the assistant's, and models here cannot go on with words that "
                    "were put into their mouth: the conversation must end with a user message",
                    "messages",
                )
            turns = [
                {**turn, "content": self._readable(turn.get("content"), f"messages[{at}].content")}
                if isinstance(turn, Mapping)
                else turn
                for at, turn in enumerate(turns)
            ]
        system = self._readable(self._fields.take("system"), "system")
        messages = anthropic.from_wire({"system": system or None, "messages": turns})
        return [_in_lines(message) for message in map(_without_billing, messages) if message is not None]

    def _readable(self, content: Any, where: str) -> Any:
        """Content in the blocks that the reader of messages takes and models can be shown.

        What has no blocks is left to that reader, which says what is wrong with it.
        """
        if not isinstance(content, list):
            return content
        return [each for at, block in enumerate(content) for each in self._block(block, f"{where}[{at}]")]

    def _block(self, block: Any, where: str) -> Iterator[Any]:
        if isinstance(block, Mapping) and block.get("cache_control") is not None:
            self._ignored["cache_control"] = None
        match block:
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                yield {"type": "text", "text": text}
            case {"type": "image" | "document" as kind}:
                raise BadRequest(f"{where}: the model reads only text, and this is an {kind}", where)
            case {"type": "search_result", "content": list(texts)}:
                title, source = block.get("title"), block.get("source")
                yield from (
                    {"type": "text", "text": each} for each in (title, source) if isinstance(each, str)
                )
                yield from self._readable(texts, f"{where}.content")
            case {"type": "tool_reference", "tool_name": str(name)}:
                yield {"type": "text", "text": name}
            case {"type": "tool_result"}:
                yield {**block, "content": self._readable(block.get("content"), f"{where}.content")}
            case {"type": str(kind)} if _OF_SERVER_TOOLS.fullmatch(kind):
                self._ignored[kind] = None
            case {"type": str(kind)} if kind not in _BLOCKS:
                raise BadRequest(
                    f"{where}.type: {kind!r:.60} is no block that can be read here", f"{where}.type"
                )
            case _:
                yield block

    def _tools(self) -> tuple[list[ToolSchema], bool]:
        """The tools that the model can be offered, and whether any of them asks for exact arguments."""
        tools: list[ToolSchema] = []
        strict = False
        for tool in self._fields.objects("tools"):
            kind, name = tool.maybe_text("type"), tool.maybe_text("name")
            if kind not in (None, "custom"):  # one that Anthropic's servers run, or describe themselves
                self._ignored[name or kind] = None
                continue
            if name is None:
                raise tool.wrong("missing", "name")
            strict |= tool.flag("strict")
            described, schema = (
                tool.maybe_text("description"),
                read_schema(tool, "input_schema", self._limits),
            )
            tools.append(function_tool(name, described, schema))
        check_tools(tools, self._limits)
        return tools, strict

    def _tool_choice(self, tools: list[ToolSchema]) -> tuple[str | Mapping[str, Any], bool]:
        """Which calls the model may or must make, and whether it may make several at once."""
        choice = self._fields.maybe_object("tool_choice")
        if choice is None:
            return "auto", True
        kind = choice.word("type", ("auto", "any", "tool", "none"))
        parallel = not choice.flag("disable_parallel_tool_use")
        if kind is None:
            raise choice.wrong("missing", "type")
        if kind == "any" and not tools:
            raise choice.wrong("a call is asked for, and there is no tool to call", "type")
        if kind == "tool":
            name = choice.text("name")
            if not any(name == tool["function"]["name"] for tool in tools):
                raise choice.wrong(f"no tool is called {name!r:.60}", "name")
            return {"type": "function", "function": {"name": name}}, parallel
        return {"auto": "auto", "any": "required", "none": "none"}[kind], parallel

    def _output(self) -> tuple[bool | str | None, int | None, Mapping[str, Any] | None]:
        """How the model thinks, its budget for that, and the format of its answer."""
        config = self._fields.maybe_object("output_config") or Fields({}, "output_config")
        effort = config.take("effort")
        thinking: bool | str | None = None
        budget = None
        given = self._fields.maybe_object("thinking")
        if given is not None:
            match given.text("type"):
                case "enabled":
                    thinking, budget = True, given.count("budget_tokens") or None
                case "disabled":
                    thinking = False
                case "adaptive":
                    thinking = _EFFORTS.get(effort) if isinstance(effort, str) else None
                    effort = None if thinking else effort
                case _:
                    self._ignored["thinking.type"] = None
            self._ignored |= dict.fromkeys(f"thinking.{name}" for name in given.rest())
        if effort is not None:  # alone, it asks for fewer words, and not for thinking
            self._ignored["output_config.effort"] = None
        wanted = config.maybe_object("format") or self._fields.maybe_object("output_format")
        self._ignored |= dict.fromkeys(f"output_config.{name}" for name in config.rest())
        if wanted is None:
            return thinking, budget, None
        if wanted.text("type") != "json_schema":
            raise wanted.wrong("only json_schema is known here", "type")
        described = {"name": "answer", "schema": read_schema(wanted, "schema", self._limits), "strict": True}
        return thinking, budget, {"type": "json_schema", "json_schema": described}

    def _options(self) -> SamplingOptions:
        fields, options = self._fields, SamplingOptions()
        for name in ("max_tokens", "temperature", "top_p", "top_k"):
            value = fields.number(name, NUMBERS[name])
            if value is not None:
                options[name] = value
        stops = fields.take("stop_sequences")
        if stops is not None:
            if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
                raise fields.wrong("a list of texts belongs here, none of them empty", "stop_sequences")
            options["stop"] = stops
        return options


def _without_billing(message: Message) -> Message | None:
    """The message without the lines that only Anthropic's servers read; None if it has no others."""
    if not isinstance(message, SystemMessage):
        return message
    texts = (_BILLING.sub("", part.text) for part in message.content if isinstance(part, TextPart))
    content = tuple(TextPart(text=text) for text in texts if text)
    return SystemMessage(content=content) if content else None


def _in_lines(message: Message) -> Message:
    """Each block of text of a prompt begins a new line; templates would run them together."""
    match message:
        case SystemMessage() | UserMessage():
            return message.model_copy(update={"content": _lines(message.content)})
        case ToolMessage():
            results = (
                part
                if isinstance(part, UnknownPart) or isinstance(part.content, str)
                else part.model_copy(update={"content": _lines(part.content)})
                for part in message.content
            )
            return message.model_copy(update={"content": tuple(results)})
    return message


def _lines(parts: Sequence[Any]) -> tuple[Any, ...]:
    lines: list[Any] = []
    for part in parts:
        if lines and isinstance(part, TextPart) and isinstance(lines[-1], TextPart):
            lines.append(TextPart(text="\n"))
        lines.append(part)
    return tuple(lines)


# -- answers ------------------------------------------------------------------------------------------------


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
            "usage": _usage(Usage(input=answer.prompt_tokens or 0)),
        }
        self._texts: list[str] = []  # of the block that is open
        self._malformed: list[dict[str, Any]] = []

    def begin(self) -> list[Frame]:
        """The frame that opens the message."""
        return [_frame("message_start", message={**self._message, "content": []})]

    def feed(self, event: TurnEvent) -> list[Frame]:
        """The frames of the next event."""
        match event:
            case Text(text=text) if text:
                return self._write("text", text)
            case Reasoning(text=text) if text:
                return self._write("thinking", text)
            case CallEnd():
                return self._call(event)
            case Malformed():
                self._malformed.append(malformed_entry(event, len(self._malformed)))
            case Done():
                return self._finish(event)
        return []

    def keep_alive(self) -> list[Frame]:
        """An event, since clients do not count comments as a sign of life."""
        return [_frame("ping")]

    def fail(self, error: Exception) -> list[Frame]:
        """The last frame of a stream that broke off."""
        _, body = MESSAGES.error(error)
        return [Frame(body, "error")]

    def whole(self) -> dict[str, Any]:
        """The message as one object."""
        return self._message

    @property
    def _content(self) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = self._message["content"]
        return content

    def _write(self, kind: Literal["text", "thinking"], text: str) -> list[Frame]:
        frames = []
        if not self._texts or self._content[-1]["type"] != kind:
            frames = self._close()
            frames += self._open(
                {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            )
        self._texts.append(text)
        return [*frames, self._delta(type=f"{kind}_delta", **{kind: text})]

    def _call(self, call: CallEnd) -> list[Frame]:
        frames = self._close()
        block = {"type": "tool_use", "id": f"toolu_{self._key}_{call.index}", "name": call.name, "input": {}}
        frames += self._open(block)
        block["input"] = call.arguments
        frames.append(
            self._delta(type="input_json_delta", partial_json=json.dumps(call.arguments, ensure_ascii=False))
        )
        return [*frames, self._stop()]

    def _finish(self, done: Done) -> list[Frame]:
        frames = self._close()
        message = done.message
        reason = _STOP_REASONS.get(message.stop_reason, "end_turn")
        stopped = {"stop_reason": reason, "stop_sequence": None, "stop_details": None}
        if done.stop is not None and reason == "end_turn":
            stopped |= {"stop_reason": "stop_sequence", "stop_sequence": done.stop}
        usage = _usage(message.usage)
        more = {"malformed_tool_calls": self._malformed} if self._malformed else {}
        self._message |= {**stopped, "usage": usage, **more}
        return [*frames, _frame("message_delta", delta=stopped, usage=usage, **more), _frame("message_stop")]

    # -- blocks -----------------------------------------------------------------------------------------

    def _open(self, block: dict[str, Any]) -> list[Frame]:
        self._content.append(block)
        return [_frame("content_block_start", index=len(self._content) - 1, content_block=dict(block))]

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


def malformed_entry(event: Malformed, index: int) -> dict[str, Any]:
    """An entry of `malformed_tool_calls`, the field of ours in which every API gets them."""
    return {"index": index, "name": event.name, "reason": str(event.reason), "raw": event.raw}


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


MESSAGES = MessagesWire()
COUNT_TOKENS = CountTokensWire()
