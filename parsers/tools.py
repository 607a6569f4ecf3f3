"""The declared tools, as far as a parser may use them: their names and the types of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parsers.grammars.faults import Fault
from parsers.grammars.words import literal

WRAPPERS = frozenset({"properties", "parameters", "arguments", "args", "kwargs"})
"""Names under which models repeat the schema's own nesting: `f(properties={...})`."""

_TYPES: Mapping[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared tool: the one declared type of each parameter, None where there is not exactly one."""

    name: str
    types: Mapping[str, str | None] = field(default_factory=dict)

    def type_of(self, parameter: str) -> str | None:
        """ "integer", "number", "boolean" or "string": the types that decide how a value is read."""
        kind = self.types.get(parameter)
        return kind if kind == "string" or kind in _TYPES else None

    def wraps(self, parameter: str) -> bool:
        """Whether an argument of that name can only be meant as all the arguments."""
        return parameter in WRAPPERS and parameter not in self.types

    def typed(self, parameter: str, value: Any, written: str | None) -> Any:
        """`value` as its declared type has it, where only the type can tell; otherwise unchanged.

        `written`: the text of a bare number. Quoted text that is exactly a literal of the type becomes that
        value, a bare number for a string its text; nothing else is coerced (policy 23).
        """
        kind = self.type_of(parameter)
        if kind == "string":
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return written if number and written is not None else value
        if kind is None or not isinstance(value, str) or not value:
            return value
        try:
            found, _ = literal(value)
        except Fault:
            return value
        matches = isinstance(found, _TYPES[kind]) and isinstance(found, bool) == (kind == "boolean")
        return found if matches else value


def declared(tools: Iterable[Mapping[str, Any]] | None) -> dict[str, Tool]:
    """Tools by name, from OpenAI function tools: {"type": "function", "function": {"name", "parameters"}}.

    Raises ValueError for what is no such tool.
    """
    found = {}
    for tool in tools or ():
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"{tool!r:.60} is no function tool: it needs function.name")
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        types = properties.items() if isinstance(properties, Mapping) else ()
        found[name] = Tool(name, {key: _one_type(value) for key, value in types})
    return found


def _one_type(schema: Any) -> str | None:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, list) and len(kind) == 1:
        kind = kind[0]
    return kind if isinstance(kind, str) else None
