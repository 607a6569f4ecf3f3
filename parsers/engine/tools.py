"""The declared tools, as far as a parser may use them: their names and the types of their parameters."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from parsers.engine.faults import Fault
from parsers.engine.words import literal

WRAPPERS = frozenset({"properties", "parameters", "arguments", "args", "kwargs", "input"})
"""Names under which models repeat the schema's own nesting: `f(properties={...})`."""

MAX_BARE_NAME = 256
"""Characters of a name that is looked for while it is still being written, once for each piece."""

MAX_SCHEMA_DEPTH = 8
"""How deep alternatives of alternatives are followed."""

_LOOSE = {
    "float": "number", "double": "number", "decimal": "number", "int": "integer", "long": "integer",
    "str": "string", "text": "string", "char": "string", "bool": "boolean", "dict": "object", "map": "object",
    "mapping": "object", "list": "array", "tuple": "array", "set": "array", "none": "null",
}  # fmt: skip
"""What the names of types mean that programmers write in place of JSON Schema's."""
_NAMES = {
    **{name: name for name in ("string", "integer", "number", "boolean", "array", "object", "null")},
    **_LOOSE,
}
_ANY = frozenset({"any", "json", "mixed", ""})
_NAME = re.compile(r"\s*([a-z]+)\s*(?:[\[<(].*)?", re.DOTALL)
"""The name of a type, without what it is made of: `list[str]`."""
_TYPES: Mapping[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared tool: the one declared type of each parameter, None where there is not exactly one.

    `kinds` has all JSON types that a parameter's schema allows, for parameters whose schema limits them, and
    `schemas` the schemas themselves, for what is nested in a value. `required` are the parameters that every
    call must have; `closed`: whether `schemas` has all that there are; `plain`: the Python types of those
    whose schema asks for nothing but that.
    """

    name: str
    types: Mapping[str, str | None] = field(default_factory=dict)
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    required: Set[str] = frozenset()
    closed: bool = False
    plain: Mapping[str, type] = field(default_factory=dict)

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
        kinds = {key: kinds_of_schema(value) for key, value in types}
        found[name] = Tool(
            name,
            {key: _one_type(value) for key, value in types},
            {key: allowed for key, allowed in kinds.items() if allowed},
            dict(types),
            dict.fromkeys(required_of(schema)).keys(),
            _is_closed(schema),
            {key: kind for key, value in types if (kind := _plain_type(value)) is not None},
        )
    return found


def required_of(schema: Any) -> tuple[str, ...]:
    """The keys that an object with this schema must have."""
    names = schema.get("required") if isinstance(schema, Mapping) else None
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


_RESTRICTING = frozenset(("enum", "const", "anyOf", "oneOf"))
_PLAIN: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool}


def _plain_type(schema: Any) -> type | None:
    """The Python type of all values that a schema allows, if that is all that it asks for."""
    if not isinstance(schema, Mapping) or not _RESTRICTING.isdisjoint(schema):
        return None
    return _PLAIN.get(schema["type"]) if isinstance(schema.get("type"), str) else None


def _is_closed(schema: Any) -> bool:
    """Whether a tool takes only the parameters in its `properties`, as it does if its schema is silent."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        return False
    open_by = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
    return schema.get("additionalProperties", False) is False and not any(key in schema for key in open_by)


def begins_one(text: str, names: Sequence[str]) -> bool:
    """Whether one of the sorted `names` begins with `text`."""
    place = bisect_left(names, text)
    return place < len(names) and names[place].startswith(text)


def _one_type(schema: Any) -> str | None:
    kinds = kinds_of_type(schema.get("type")) if isinstance(schema, Mapping) else None
    return next(iter(kinds)) if kinds is not None and len(kinds) == 1 else None


def kinds_of_type(declared: Any) -> frozenset[str] | None:
    """The JSON types that the `type` of a schema means; None where it is any, or a name that is not known.

    Upper case, `int`, `number|null` and the like are what they mean.
    """
    names = declared if isinstance(declared, list) else [declared]
    words = [word for name in names if isinstance(name, str) for word in name.lower().split("|")]
    named = [_NAME.fullmatch(word) for word in words]
    kinds = [_NAMES.get(match[1]) if match else None for match in named]
    return frozenset(kind for kind in kinds if kind) if kinds and all(kinds) else None


def kinds_of_schema(schema: Any, depth: int = MAX_SCHEMA_DEPTH) -> frozenset[str] | None:
    """The JSON types that a schema allows; None where it does not say, or says it in a way not followed."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    kind = schema.get("type")
    if kind is not None:
        named = isinstance(kind, str) and kind.lower() not in _ANY  # a name that is not known is some text's
        return kinds_of_type(kind) or (frozenset(("string",)) if named else None)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(kind_of(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            found = [kinds_of_schema(choice, depth - 1) for choice in choices]
            return frozenset().union(*(each for each in found if each)) if all(found) else None
    return None


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
    return "object"
