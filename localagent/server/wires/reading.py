"""What the wires have in common when they read a request: its tools, its schemas and its sampling options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from localagent.hosts.sampling import Numbers, Sampling
from localagent.messages.values import check_json
from localagent.prompt.rendering import ToolSchema
from localagent.server.exchange import BadRequest, Limits
from localagent.wire.payload import Fields

NUMBERS: Mapping[str, Numbers] = {
    field.name: field.metadata["numbers"] for field in dataclasses.fields(Sampling) if field.metadata
}
"""The range of each sampling option that is a number."""


def check_strict(body: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise BadRequest for a field that is not strict JSON: NaN, half a character, or very deep.

    Messages need no such check: the message model makes it.
    """
    for name in names:
        try:
            check_json(body.get(name))
        except PydanticCustomError as error:
            raise BadRequest(f"{name}: {error.message()}", name) from None


def read_schema(fields: Fields, name: str, limits: Limits) -> Mapping[str, Any]:
    """A field that holds a JSON Schema. Raises InvalidMessage."""
    schema = fields.take(name)
    if not isinstance(schema, Mapping):
        raise fields.wrong("a JSON Schema belongs here", name)
    values, waiting = 0, [schema]
    while waiting:
        value = waiting.pop()
        values += 1
        if values > limits.schema:
            raise fields.wrong(f"a schema of more than {limits.schema:,} values", name)
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return schema


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any]) -> ToolSchema:
    """A tool as chat templates know it."""
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def check_tools(tools: Sequence[ToolSchema], limits: Limits) -> None:
    """Raise BadRequest for too many tools, and for two that a call could not tell apart."""
    if len(tools) > limits.tools:
        raise BadRequest(f"tools: more than {limits.tools:,} of them", "tools")
    names: set[str] = set()
    for at, tool in enumerate(tools):
        name = tool["function"]["name"]
        if not name:
            raise BadRequest(f"tools[{at}]: a tool needs a name", f"tools[{at}]")
        if name in names:
            raise BadRequest(f"tools[{at}]: two tools are called {name!r:.60}", f"tools[{at}]")
        names.add(name)
