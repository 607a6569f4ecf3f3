"""Anthropic's Messages API: `POST /v1/messages` and its `count_tokens`. `message_writer` has the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localagent.hosts.sampling import Numbers
from localagent.messages import AssistantMessage, Message, SystemMessage, TextPart, ToolMessage, UserMessage
from localagent.prompt.rendering import ToolSchema
from localagent.server.exchange import (
    DEFAULT_LIMITS,
    STATELESS,
    BadRequest,
    Limits,
    Option,
    Refused,
    TurnRequest,
    Wire,
    header_word,
    opened,
)
from localagent.server.wires.message_writer import MessagesWriter, error_body
from localagent.server.wires.offer import read_list, read_schema, take_tool
from localagent.server.wires.openai import EFFORTS, SAMPLING, read_sampling, read_stops
from localagent.tools.bounds import ToolRoom
from localagent.wire import anthropic
from localagent.wire.payload import Fields

# fmt: off
OPTIONS: Mapping[str, Option] = {
    **dict.fromkeys(
        (*SAMPLING, "model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences",
         "thinking", "output_config", "output_format", "stream"),
        "taken",
    ),
    **dict.fromkeys(
        ("betas", "billing_policy", "cache_control", "context_management", "diagnostics", "inference_geo",
         "mcp_servers", "metadata", "service_tier", "speed", "user_profile_id", "workspace_id"),
        "hint",
    ),
    # The official clients try this first, and after exactly this error send the whole conversation.
    "thread": replace(
        STATELESS, details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    ),
    "container": Refused("the server runs no code and keeps no containers", ({},)),
    "fallbacks": Refused("the server asks no other model than the one that is named", ("default", [])),
    "fallback_credit_token": Refused("the server never gave one"),
    "compaction": Refused("the server writes no compaction blocks: ask the model for a summary"),
}
# fmt: on
"""What becomes of the fields of a request. All others are hints, too: Claude Code sends several that change
from one version to the next, and an error would lock it out."""

_BILLING = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that Claude Code puts into its system prompt. It changes with every request, and so would keep any
prompt from being reused."""
_BUDGET = Numbers(whole=True, least=1)
"""The API asks for 1,024 or more. Fewer are a bound like any other; none at all is the type "disabled"."""
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
_OF_SERVER_TOOLS = re.compile(r"\w+_tool_(?:use|result)|container_upload")
"""Blocks of tools that Anthropic's servers run. They may stand in a conversation that began there."""


def _read(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    with opened(body, OPTIONS) as (fields, ignored):
        return _Request(fields, limits, ignored).read()


def _read_counted(body: Any, limits: Limits = DEFAULT_LIMITS) -> TurnRequest:
    with opened(body, {**OPTIONS, "compaction": "hint"}) as (fields, ignored):
        return _Request(fields, limits, ignored).read()


def _count(model: Any, request: TurnRequest, prompting: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_tokens": model.count_tokens(request.messages, **prompting)}


MESSAGES_WIRE = Wire("/v1/messages", _read, lambda _, answer: MessagesWriter(answer), error_body)
COUNT_TOKENS_WIRE = replace(MESSAGES_WIRE, path="/v1/messages/count_tokens", read=_read_counted, tell=_count)
"""A request like any other, of which only the prompt is counted."""


# -- requests -----------------------------------------------------------------------------------------------


class _Request:
    """A request while it is read."""

    def __init__(self, body: Fields, limits: Limits, ignored: Sequence[str]) -> None:
        self._body = body
        self._limits = limits
        self._ignored = dict.fromkeys(ignored)  # a set that keeps its order
        self._not_offered: set[str] = set()  # tools that were left out

    def read(self) -> TurnRequest:
        """The turn."""
        body = self._body
        messages = self._messages()
        tools, strict = self._tools()
        choice, parallel = self._tool_choice([tool["function"]["name"] for tool in tools])
        thinking, budget, response_format = self._output()
        options = read_sampling(body, "max_tokens")
        if stops := read_stops(body, "stop_sequences"):
            options["stop"] = stops
        return TurnRequest(
            model=body.maybe_text("model") or "",
            messages=messages,
            # One that ends in calls cannot be: then the turn says so, as the API does.
            continue_final_message=any(isinstance(each, AssistantMessage) for each in messages[-1:]),
            tools=tools,
            options=options,
            tool_choice=choice,
            parallel_tool_calls=parallel,
            response_format=response_format,
            strict=strict,
            thinking=thinking,
            thinking_budget=budget,
            thinking_field="thinking",
            stream=body.flag("stream"),
            ignored=tuple(self._ignored),
        )

    def _messages(self) -> list[Message]:
        turns = self._body.take("messages")
        if isinstance(turns, list):
            if not turns:
                raise self._body.wrong("at least one message is needed", "messages")
            if len(turns) > (most := self._limits.messages):
                raise self._body.wrong(f"{len(turns):,} of them, and the server takes {most:,}", "messages")
            turns = [
                {**turn, "content": self._readable(turn.get("content"), f"messages[{at}].content")}
                if isinstance(turn, Mapping)
                else turn
                for at, turn in enumerate(turns)
            ]
        system = self._readable(self._body.take("system"), "system")
        messages = anthropic.from_wire({"system": system or None, "messages": turns})
        return [_in_lines(message) for message in map(_without_billing, messages) if message is not None]

    def _readable(self, content: Any, where: str, shown: bool = False) -> Any:
        """Content in the blocks that the reader of messages takes and models can be shown.

        What has no blocks is left to that reader, which says what is wrong with it. `shown`: by a tool.
        """
        if not isinstance(content, list):
            return content
        blocks = enumerate(content)
        return [each for at, block in blocks for each in self._block(block, f"{where}[{at}]", shown)]

    def _block(self, block: Any, where: str, shown: bool) -> Iterator[Any]:
        if isinstance(block, Mapping) and block.get("cache_control") is not None:
            self._ignored["cache_control"] = None
        match block:
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                yield {"type": "text", "text": text}
            case {"type": "image"} if self._limits.images:
                yield block
            case {"type": "image" | "document" as kind} if shown:
                # An error would end the conversation: the next request has this result in it, too.
                self._ignored[kind] = None
                yield {"type": "text", "text": f"[Not shown: this model reads no {kind}s.]"}
            case {"type": "image" | "document" as kind}:
                raise BadRequest(f"{where}: this model reads text, and no {kind}s", where)
            case {"type": "search_result", "content": list(texts)}:
                title, source = block.get("title"), block.get("source")
                yield from (
                    {"type": "text", "text": each} for each in (title, source) if isinstance(each, str)
                )
                yield from self._readable(texts, f"{where}.content", shown)
            case {"type": "tool_reference", "tool_name": str(name)}:
                yield {"type": "text", "text": name}
            case {"type": "tool_result"}:
                yield {**block, "content": self._readable(block.get("content"), f"{where}.content", True)}
            case {"type": str(kind)} if _OF_SERVER_TOOLS.fullmatch(kind):
                self._ignored[header_word(kind)] = None
            case {"type": str(kind)} if kind not in _BLOCKS:
                raise BadRequest(
                    f"{where}.type: {kind!r:.60} is no block that can be read here", f"{where}.type"
                )
            case _:
                yield block

    def _tools(self) -> tuple[list[ToolSchema], bool]:
        """The tools that the model can be offered, and whether any of them wants exact arguments."""
        tools: dict[str, ToolSchema] = {}
        strict = False
        room = ToolRoom(self._limits.tools)
        for tool in read_list(self._body.take("tools"), "tools", self._limits):
            kind, name = tool.maybe_text("type"), tool.maybe_text("name")
            if kind not in (None, "custom"):  # Anthropic's servers run it, or it has a schema only they know
                self._ignored[header_word(name or kind)] = None
                self._not_offered.add(name or kind)
                continue
            if not name or name in tools:
                raise tool.wrong("a tool needs a name, which no other tool has", "name")
            schema = read_schema(tool, "input_schema", self._limits)
            if schema is None:
                raise tool.wrong("missing", "input_schema")
            strict |= tool.flag("strict")
            tools[name] = take_tool(tool, room, name, tool.maybe_text("description") or "", schema)
        return list(tools.values()), strict

    def _tool_choice(self, names: Sequence[str]) -> tuple[str | Mapping[str, Any], bool]:
        """Which calls the model may or must make, and whether it may make several at once.

        A choice that only tools could meet that were left out is left out with them.
        """
        choice = self._body.maybe_object("tool_choice")
        if choice is None:
            return "auto", True
        parallel = not choice.flag("disable_parallel_tool_use")
        kind = choice.word("type", ("auto", "any", "tool", "none"))
        if kind is None:
            raise choice.wrong("missing", "type")
        if kind == "tool":
            name = choice.text("name")
            if name in names:  # as an object, since a tool may be called "none"
                return {"type": "function", "function": {"name": name}}, parallel
            if name not in self._not_offered:
                raise choice.wrong(f"there is no tool {name!r:.60}", "name")
        elif kind != "any" or names:
            return "required" if kind == "any" else kind, parallel
        elif not self._not_offered:
            raise choice.wrong("a call is asked for, and there is no tool to call", "type")
        self._ignored["tool_choice"] = None
        return "auto", parallel

    def _output(self) -> tuple[bool | str | None, int | None, Mapping[str, Any] | None]:
        """How the model thinks, its budget for that, and the format of its answer."""
        config = self._body.maybe_object("output_config") or Fields({}, "output_config")
        effort = config.take("effort")
        thinking: bool | str | None = None
        budget = None
        given = self._body.maybe_object("thinking")
        if given is not None:
            match given.text("type"):
                case "enabled":
                    thinking, budget = True, given.number("budget_tokens", _BUDGET)
                case "disabled":
                    thinking = False
                case "adaptive":
                    thinking = EFFORTS.get(effort) if isinstance(effort, str) else None
                    effort = None if thinking else effort
                case _:
                    self._ignored["thinking.type"] = None
            self._ignored |= dict.fromkeys(header_word(f"thinking.{name}") for name in given.rest())
        if effort is not None:  # alone, it asks for fewer words, and not for thinking
            self._ignored["output_config.effort"] = None
        wanted = config.maybe_object("format") or self._body.maybe_object("output_format")
        self._ignored |= dict.fromkeys(header_word(f"output_config.{name}") for name in config.rest())
        if wanted is None:
            return thinking, budget, None
        if wanted.text("type") != "json_schema":
            raise wanted.wrong("json_schema is the only format", "type")
        schema = read_schema(wanted, "schema", self._limits)
        if schema is None:
            raise wanted.wrong("missing", "schema")
        described = {"name": "answer", "schema": schema, "strict": True}
        return thinking, budget, {"type": "json_schema", "json_schema": described}


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
            results = (part.model_copy(update={"content": _lines(part.parts)}) for part in message.results)
            return message.model_copy(update={"content": tuple(results)})
    return message


def _lines(parts: Sequence[Any]) -> tuple[Any, ...]:
    lines: list[Any] = []
    for part in parts:
        if lines and isinstance(part, TextPart) and isinstance(lines[-1], TextPart):
            lines.append(TextPart(text="\n"))
        lines.append(part)
    return tuple(lines)
