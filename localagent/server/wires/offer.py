"""The tools and formats of a request to OpenAI's API, in the words of `Model.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localagent.errors import InvalidTool
from localagent.messages import Message, UserMessage
from localagent.parsers import CallEnd
from localagent.prompt.rendering import ToolSchema
from localagent.server.exchange import BadRequest, Limits, dump, header_word
from localagent.tools.bounds import ToolRoom, json_size
from localagent.wire.openai.items import CUSTOM_INPUT, full_name
from localagent.wire.payload import Fields


@dataclass(slots=True)
class Offer:
    """The tools of a request, and which of them the model may or must call."""

    tools: list[ToolSchema] = field(default_factory=list)
    choice: str | dict[str, Any] = "auto"
    """Or "none", "required", or one tool, in the form of chat completions: its name may be any of these."""
    strict: bool = False
    ignored: list[str] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    """Functions that stand for custom tools."""
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Functions from a namespace, with its name and theirs."""

    @property
    def names(self) -> list[str]:
        """The names by which the model knows them."""
        return [tool["function"]["name"] for tool in self.tools]


def custom_input(call: CallEnd) -> str:
    """The text that a call gives to a custom tool; what the model wrote, where it wrote something else."""
    text = call.arguments.get(CUSTOM_INPUT)
    return text if isinstance(text, str) else dump(call.arguments)


def read_tools(body: Fields, limits: Limits) -> Offer:
    """The tools, and the choice among them.

    The fields of a tool may stand in an object named like its type, or beside the type: chat completions have
    the one form, responses the other.
    """
    offer, room = Offer(), ToolRoom(limits.tools)
    given = body.take("tools")
    for tool in read_list(given, "tools", limits):
        _add_tool(offer, tool, limits, room)
    if len(set(offer.names)) < len(offer.tools):
        twice = next(name for name in offer.names if offer.names.count(name) > 1)
        raise BadRequest(f"tools: two tools are named {twice!r:.60}", "tools")
    _choose(offer, body, limits, dropped=bool(given))
    return offer


def read_list(value: Any, where: str, limits: Limits) -> Iterator[Fields]:
    """The objects of a list of tools; none when there is no list."""
    items = [] if value is None else value
    if not isinstance(items, list):
        raise BadRequest(f"{where}: it must be a list", where)
    if len(items) > (most := limits.tools.count):
        raise BadRequest(f"{where}: {len(items):,} of them, and the server takes {most:,}", where)
    return (Fields(item, f"{where}[{at}]") for at, item in enumerate(items))


def _add_tool(offer: Offer, tool: Fields, limits: Limits, room: ToolRoom, space: str | None = None) -> None:
    kind = tool.text("type")
    if kind == "namespace" and space is None:
        name = tool.text("name")
        for inner in read_list(tool.take("tools"), tool.path("tools"), limits):
            _add_tool(offer, inner, limits, room, name)
        return
    if kind not in ("function", "custom"):
        offer.ignored.append(header_word(kind))
        return
    inner = tool.maybe_object(kind) or tool
    short = inner.text("name")
    name = full_name(space, short)
    description = inner.maybe_text("description") or ""
    schema: Mapping[str, Any]
    if kind == "custom":
        schema = _CUSTOM_SCHEMA
        offer.custom.add(name)
        if (form := inner.maybe_object("format")) and form.maybe_text("type") == "grammar":
            offer.ignored.append(inner.path("format"))
    else:
        schema = read_schema(inner, "parameters", limits) or _NO_PARAMETERS
        offer.strict |= inner.flag("strict")
    if space:
        offer.spaces[name] = (space, short)
    offer.tools.append(take_tool(inner, room, name, description, schema))


def take_tool(
    fields: Fields, room: ToolRoom, name: str, description: str, schema: Mapping[str, Any]
) -> ToolSchema:
    """A tool as `Model.stream` takes it. Raises InvalidMessage for what `room` does not take."""
    try:
        room.add(name.strip() and name, description, schema)
    except InvalidTool as error:
        raise fields.wrong(str(error), error.part or None) from None
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_CUSTOM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
}


def read_schema(fields: Fields, name: str, limits: Limits) -> dict[str, Any] | None:
    """A JSON Schema, which must be an object; None when there is none."""
    value = fields.take(name)
    if value is not None and not isinstance(value, dict):
        raise fields.wrong("it must be a JSON Schema, which is an object", name)
    if value is not None and (size := json_size(value)) > (most := limits.tools.schema):
        raise fields.wrong(f"a schema of {size:,} characters, and the server takes {most:,}", name)
    return value


def _choose(offer: Offer, body: Fields, limits: Limits, dropped: bool) -> None:
    """Read `tool_choice`. A choice among tools that were all left out is ignored with them."""
    value = body.take("tool_choice")
    mode: str | None = None
    if isinstance(value, dict):
        choice = Fields(value, "tool_choice")
        kind = choice.text("type")
        if kind in ("function", "custom"):
            name = _named(choice, kind)
            if name not in offer.names:
                raise BadRequest(f"tool_choice: there is no tool {name!r:.60}", "tool_choice")
            offer.choice = {"type": "function", "function": {"name": name}}
            return
        if kind == "allowed_tools":
            inner = choice.maybe_object(kind) or choice
            mode = inner.word("mode", ("auto", "required")) or "auto"
            entries = read_list(inner.take("tools"), inner.path("tools"), limits)
            kinds = {_named(entry, kind): kind for entry in entries if (kind := entry.text("type"))}
            allowed = kinds.keys()
            for name, kind in kinds.items():  # those of other kinds are left out, as the tools are
                if kind in ("function", "custom") and name not in offer.names:
                    raise BadRequest(f"tool_choice: there is no tool {name!r:.60}", "tool_choice")
            offer.tools = [tool for tool in offer.tools if tool["function"]["name"] in allowed]
        else:
            offer.ignored.append("tool_choice")
    else:
        mode = Fields({"tool_choice": value}, "").word("tool_choice", ("none", "auto", "required"))
    offer.choice = mode or "auto"
    if mode == "required" and not offer.tools:
        if not dropped:
            raise BadRequest("tool_choice: a tool is required, and there are none", "tool_choice")
        offer.choice = "auto"
        offer.ignored.append("tool_choice")


def _named(choice: Fields, kind: str) -> str:
    inner = choice.maybe_object(kind) or choice
    name = inner.maybe_text("name") or ""  # tools of other types have none, and are not offered
    return full_name(inner.maybe_text("namespace"), name)


def read_format(fields: Fields, name: str, limits: Limits) -> dict[str, Any] | None:
    """A response format, as `Model.stream` takes it; None for plain text."""
    form = fields.maybe_object(name)
    if form is None:
        return None
    kind = form.word("type", ("text", "json_object", "json_schema"))
    inner = (form.maybe_object("json_schema") or form) if kind == "json_schema" else form
    schema = read_schema(inner, "schema", limits)
    if kind is None:
        raise form.wrong("missing", "type")
    if kind == "text":
        return None
    if schema is None:
        if kind == "json_schema":
            raise inner.wrong("missing", "schema")
        return {"type": "json_object"}
    named = inner.maybe_text("name") or "answer"
    return {
        "type": "json_schema",
        "json_schema": {"name": named, "schema": schema, "strict": inner.flag("strict")},
    }


def refuse_images(messages: Sequence[Message], limits: Limits, where: str) -> None:
    """Raise BadRequest for an image of the user's that the model cannot see.

    Those in the results of tools are left out later: what a tool shows must not end the conversation.
    """
    if limits.images:
        return
    if any(isinstance(message, UserMessage) and message.images for message in messages):
        raise BadRequest(f"{where}: there is an image, and the model cannot see", where, "unsupported_value")
