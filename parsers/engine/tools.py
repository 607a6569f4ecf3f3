"""The declared tools, as far as a parser may use them: their names and the types of their parameters."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .faults import Fault
from .words import literal

WRAPPERS = frozenset({"properties", "parameters", "arguments", "args", "kwargs", "input"})
"""Names under which models repeat the schema's own nesting: `f(properties={...})`."""

MAX_BARE_NAME = 256
"""Characters of a name that is looked for while it is still being written, once for each piece."""

MAX_SCHEMA_DEPTH = 8
"""How deep alternatives of alternatives are followed."""

_LOOSE = {
    "float": "number", "double": "number", "decimal": "number", "int": "integer", "long": "integer",
    "str": "string", "text": "string", "char": "string", "bool": "boolean", "dict": "object", "map": "object",
    "mapping": "object", "uint": "integer", "list": "array", "tuple": "array", "set": "array", "none": "null",
}  # fmt: skip
"""What the names of types mean that programmers write in place of JSON Schema's."""
_NAMES = {
    **{name: name for name in ("string", "integer", "number", "boolean", "array", "object", "null")},
    **_LOOSE,
}
_ANY = frozenset({"any", "json", "mixed", ""})
_NAME = re.compile(r"\s*([a-z]+?)(?:8|16|32|64)?\s*(\[\s*\])*(?:\s+of\s.*|\s*[\[<(].*)?\s*", re.DOTALL)
"""The name of a type, without its size (`int32`) or what it is made of (`list[str]`); and `[]` behind it."""
_MADE_OF = re.compile(r"[\[<(][^\[\]<>()]+[\]>)]")
"""What a type is made of: the `[str]` in `list[str]`."""
_OPTIONAL = re.compile(r"\s*optional\s*\[(.*)\]\s*", re.DOTALL)
_OPEN_BY = frozenset(("$ref", "allOf", "anyOf", "oneOf", "patternProperties"))
"""Keywords by which a schema may allow more than what is in `properties`."""
_MAPPING = (dict, Mapping)
"""What schemas are: the check against the abstract class alone takes ten times as long."""
_TYPES: Mapping[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}
"""The declared types other than strings that decide how text is read, and what Python makes of them."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared tool: the one declared type of each parameter, None where there is not exactly one.

    `kinds` has all JSON types that a parameter's schema allows, for parameters whose schema limits them, and
    `schemas` the schemas themselves, for what is nested in a value; `schema` is that of all the arguments.
    `required` are the parameters that every call must have; `tests`: what the check of calls has made of
    `schemas` so far.
    """

    name: str
    types: Mapping[str, str | None] = field(default_factory=dict)
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    schema: Any = None
    required: tuple[str, ...] = ()
    tests: dict[str, Callable[[Any, re.Pattern[str]], bool]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def closed(self) -> bool:
        """Whether it takes only the parameters in `properties`, as it does if its schema is silent."""
        schema = self.schema
        if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
            return False
        return schema.get("additionalProperties", False) is False and _OPEN_BY.isdisjoint(schema)

    def type_of(self, parameter: str) -> str | None:
        """ "integer", "number", "boolean" or "string": the types that decide how a value is read."""
        kind = self.types.get(parameter)
        return kind if kind == "string" or kind in _TYPES else None

    def wraps(self, parameter: str) -> bool:
        """Whether an argument of that name can only be meant as all the arguments."""
        return self.closed and parameter in WRAPPERS and parameter not in (*self.types, *self.required)

    def typed(self, parameter: str, value: Any, written: str | None) -> Any:
        """`value` as its declared type has it, where only the type can tell; otherwise unchanged.

        `written`: the text of a bare number. Quoted text that is exactly a literal of the type becomes that
        value, a bare number for a string its text; nothing else is coerced [declared-type].
        """
        kind = self.type_of(parameter)
        if kind == "string":
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return written if number and written is not None else value
        if kind is None or not isinstance(value, str) or not value:
            return value
        try:
            parsed, _ = literal(value)
        except Fault:
            return value
        matches = isinstance(parsed, _TYPES[kind]) and isinstance(parsed, bool) == (kind == "boolean")
        return parsed if matches else value


def declared(tools: Iterable[Mapping[str, Any]] | None) -> dict[str, Tool]:
    """Tools by name, from OpenAI function tools: {"type": "function", "function": {"name", "parameters"}}.

    Raises ValueError for what is no such tool.
    """
    by_name = {}
    for tool in tools or ():
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"{tool!r:.60} is no function tool: it needs function.name")
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        schemas = dict(properties) if isinstance(properties, Mapping) else {}
        by_name[name] = Tool(
            name,
            {key: _one_type(value) for key, value in schemas.items()},
            {key: allowed for key, value in schemas.items() if (allowed := kinds_of_schema(value))},
            schemas,
            schema,
            required_of(schema),
        )
    return by_name


def required_of(schema: Any) -> tuple[str, ...]:
    """The keys that an object with this schema must have."""
    names = schema.get("required") if isinstance(schema, _MAPPING) else None
    return tuple([name for name in names if isinstance(name, str)]) if isinstance(names, list) else ()


def begins_one(text: str, names: Sequence[str]) -> bool:
    """Whether one of the sorted `names` begins with `text`."""
    place = bisect_left(names, text)
    return place < len(names) and names[place].startswith(text)


def _one_type(schema: Any) -> str | None:
    kinds = kinds_of_type(schema.get("type")) if isinstance(schema, _MAPPING) else None
    return next(iter(kinds)) if kinds is not None and len(kinds) == 1 else None


def kinds_of_type(declared: Any) -> frozenset[str] | None:
    """The JSON types that the `type` of a schema means; None where it is any, or a name that is not known.

    Upper case, `int32`, `number|null`, `Optional[str]` and `string[]` are what they mean.
    """
    if isinstance(declared, str):
        return _kinds_named(declared)
    names = declared if isinstance(declared, list) else ()
    return _kinds_named("|".join(name for name in names if isinstance(name, str)))


@lru_cache(256)
def _kinds_named(names: str) -> frozenset[str] | None:
    """The JSON types of that name, as in `kinds_of_type`. `names`: with a `|` between them."""
    names = _MADE_OF.sub("", _OPTIONAL.sub(r"\1|null", names.lower()))
    named = [_NAME.fullmatch(word) for word in names.split("|")]
    kinds = [("array" if match[2] else _NAMES.get(match[1])) if match else None for match in named]
    return frozenset(kind for kind in kinds if kind) if all(kinds) else None


def kinds_of_schema(schema: Any, depth: int = MAX_SCHEMA_DEPTH) -> frozenset[str] | None:
    """The JSON types that a schema allows; None where it does not limit them, or by what is not followed."""
    if not isinstance(schema, _MAPPING) or depth == 0:
        return None
    kind = schema.get("type")
    if kind is not None:
        kinds = kinds_of_type(kind)
        if kinds is None and isinstance(kind, str) and kind.lower() not in _ANY:
            return frozenset(("string",))  # a name that is not known is some text's
        return kinds
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(kind_of(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            allowed = [kinds_of_schema(choice, depth - 1) for choice in choices]
            return frozenset().union(*(some for some in allowed if some)) if all(allowed) else None
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
