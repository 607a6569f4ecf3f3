"""The variables of Hugging Face chat templates: dicts with `role` and string `content`.

`to_wire` writes them, in `localagent.prompt`, since every prompt begins with them. `from_wire` reads them
back.

What this shape cannot carry, and what becomes of it:
- several reasoning parts, or reasoning after text: one `reasoning_content` in front;
- calls that stand between no markers: text on the way back;
- call ids, where nothing answers the call; `arguments_text` that is not in json.dumps' notation;
- several text parts next to each other in a system or user message, or a result: joined;
- images, audio and unknown parts: refused by name;
- everything that `request.build_request` leaves out or turns into something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from localagent.errors import InvalidMessage, UnpairedResult
from localagent.messages import (
    AssistantMessage,
    ModelMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.parsers import CallPart, Dialect, MalformedPart
from localagent.parsers import TextPart as ParsedText
from localagent.prompt.notation import read_marked
from localagent.prompt.pairing import pair
from localagent.prompt.probe import TemplateSupport, probe
from localagent.prompt.segments import Mixed, Trusted
from localagent.prompt.variables import TARGET, join_users, to_wire
from localagent.wire.extras import keep
from localagent.wire.payload import Fields, at, objects

__all__ = ["TARGET", "TemplateSupport", "from_wire", "join_users", "probe", "to_wire"]


def from_wire(turns: Sequence[Mapping[str, Any]], dialect: Dialect) -> list[ModelMessage]:
    """The messages that template variables spell: what `to_wire` made, or anybody else's.

    Calls are read from `tool_calls`, and from `Mixed` content, where markers are known to be meant. In a
    plain string they are text, and so they are where they stand between no markers. Raises InvalidMessage.
    """
    messages: list[ModelMessage] = []
    for turn in objects(turns, "messages"):
        with at(turn.where):
            message = _turn(turn, dialect)
            before = messages[-1] if messages else None
            if not isinstance(message, ToolMessage):
                messages.append(keep(message, turn, "chat_template"))
            elif isinstance(before, ToolMessage):  # results of one turn share a message
                messages[-1] = ToolMessage(content=(*before.content, *message.content))
            else:
                messages.append(message)
    for number, message in enumerate(messages):
        if number and isinstance(message, ToolMessage):
            messages[number - 1] = _with_ids(messages[number - 1], message)
    return messages


def _turn(turn: Fields, dialect: Dialect) -> ModelMessage:
    content = turn.take("content")
    content = "" if content is None else content
    if not isinstance(content, str | Mixed):
        raise turn.wrong("no string", "content")
    match turn.text("role"):
        case "system":
            return SystemMessage.text(str(content))
        case "user":
            return UserMessage.text(str(content))
        case "assistant":
            return _read_assistant(turn, content, dialect)
        case "tool":
            call_id, name = turn.maybe_text("tool_call_id") or "", turn.maybe_text("name") or ""
            return ToolMessage.from_result(ToolResultPart(call_id=call_id, name=name, content=str(content)))
        case role:
            raise turn.wrong(f"{role!r:.60} is no role of a chat template")


def _read_assistant(turn: Fields, content: str | Mixed, dialect: Dialect) -> AssistantMessage:
    thoughts = (turn.maybe_text("reasoning_content"), turn.maybe_text("thinking"))
    thought = thoughts[0] or thoughts[1]
    parts: list[Any] = [ReasoningPart(text=thought)] if thought else []
    parts += _read_pieces(content if isinstance(content, Mixed) else [content] if content else [], dialect)
    for call in turn.objects("tool_calls"):
        function = call.object("function")
        arguments = function.take("arguments")
        arguments = {} if arguments is None else arguments
        key = "arguments_text" if isinstance(arguments, str) else "arguments"
        name = function.text("name")
        with at(function.where):
            parts.append(ToolCallPart(id=call.maybe_text("id") or "", name=name, **{key: arguments}))
    return AssistantMessage(content=tuple(parts))


def _read_pieces(pieces: Iterable[str], dialect: Dialect) -> Iterator[TextPart | ToolCallPart]:
    """Text pieces as they are; a block of calls, from marker to marker, through the parser."""
    rest = deque(pieces)
    while rest:
        if not _begins_block(rest):
            yield TextPart(text=rest.popleft())
            continue
        block: list[str] = []
        while rest and (not block or block[-1] != _closing(dialect) or _begins_block(rest)):
            block.append(rest.popleft())
        for part in read_marked(block, dialect):
            match part:
                case CallPart():
                    yield ToolCallPart(id="", name=part.name, arguments=part.arguments)
                case ParsedText():
                    yield TextPart(text=part.text)
                case MalformedPart(reason="missing_end", raw=""):
                    pass  # the closing marker is one that ends the turn, which the template writes
                case _:
                    raise InvalidMessage(f"a block of calls that cannot be read: {part}")


def _begins_block(pieces: Sequence[str]) -> bool:
    """Whether a marker comes next, perhaps after white space, which the parser then judges."""
    first = pieces[0]
    space = len(pieces) > 1 and first.isspace() and isinstance(pieces[1], Trusted)
    return isinstance(first, Trusted) or space


def _closing(dialect: Dialect) -> str | None:
    """The marker that closes a block; where the turn's end does so, a block goes on to it."""
    calls = dialect.calls
    return None if calls is None or calls.close in dialect.ends else Trusted(calls.close)


def _with_ids(message: ModelMessage, answers: ToolMessage) -> ModelMessage:
    """The turn with the ids that its results name, where its calls have none: native notation has no ids."""
    if not isinstance(message, AssistantMessage) or any(call.id for call in message.tool_calls):
        return message
    nameless = [result.model_copy(update={"call_id": ""}) for result in answers.results]
    try:
        slots = pair(message.tool_calls, nameless)
    except UnpairedResult:
        return message  # sending it will raise this again
    found = {id(slot): result.call_id for slot, result in zip(nameless, answers.results, strict=True)}
    ids = iter(found.get(id(slot), "") for slot in slots)
    content = (
        part.model_copy(update={"id": next(ids)}) if isinstance(part, ToolCallPart) else part
        for part in message.content
    )
    return message.model_copy(update={"content": tuple(content)})
