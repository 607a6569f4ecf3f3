"""JSON Schemas of parameters, in the form that small models read best.

A rewritten schema allows the same values, with one exception: closed objects lose `additionalProperties:
false`, which would cost prompt tokens in every tool. Unknown names are refused when the arguments are bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

Schema = dict[str, Any]

MAX_INLINED = 200
"""How many references are replaced by what they refer to; a schema with more keeps its `$defs`."""

_REFERENCE = "#/$defs/"
_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_OF_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_OF_ONE = frozenset(
    {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
)
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}

_NO_SCHEMAS = frozenset({"metadata", "config", "default"})
"""Keys of a core schema under which there are no schemas."""
_READ = (str, int, float, type(None), list, dict)
"""Values that pydantic finds again when it reads them as JSON."""


class _Generator(GenerateJsonSchema):
    """Pydantic's own schemas, without those of types that no JSON value can be checked against."""

    ignored_warning_kinds = {"non-serializable-default"}  # noqa: RUF012

    def emit_warning(self, kind: Any, detail: str) -> None:
        if kind == "skipped-choice":  # the rest of a union would hide what cannot be said
            raise PydanticInvalidForJsonSchema(detail)
        super().emit_warning(kind, detail)

    def generator_schema(self, schema: core_schema.GeneratorSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema("an iterable is checked only while it is read: use list")

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema("a class is no JSON value")

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        if not all(isinstance(each.value, _READ) for each in schema["members"]):
            raise PydanticInvalidForJsonSchema("an Enum is read from text and numbers: give it such values")
        return super().enum_schema(schema)

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        if not all(isinstance(each, _READ) for each in schema["expected"]):
            raise PydanticInvalidForJsonSchema(
                "members of an Enum in a Literal are read from no JSON: use text"
            )
        return super().literal_schema(schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        found = super().decimal_schema(schema)
        return found["anyOf"][0] if "anyOf" in found else found  # a number; text is taken as well


def schemas_of(adapters: Mapping[str, TypeAdapter[Any]]) -> tuple[Schema, Schema]:
    """The JSON Schema of each type by name, and the definitions they share. Raises what pydantic does."""
    inputs = [(name, "validation", adapter) for name, adapter in adapters.items()]
    found, shared = TypeAdapter.json_schemas(inputs, schema_generator=_Generator)  # type: ignore[arg-type]
    return {name: found[name, "validation"] for name in adapters}, shared.get("$defs", {})


def backtracking_pattern(core: Any) -> str | None:
    """The first pattern that pydantic would match with Python's `re`, not with its own engine.

    A model's text can keep `re` busy for ever, and `re` blocks every thread of the program.
    """
    waiting: list[tuple[Any, bool]] = [(core, False)]
    while waiting:
        part, inherited = waiting.pop()
        if isinstance(part, list | tuple):
            waiting += [(item, inherited) for item in part]
        elif isinstance(part, dict) and not isinstance(part.get("type"), str):
            waiting += [(item, inherited) for item in part.values()]  # fields by their names
        elif isinstance(part, dict):
            chosen = part.get("regex_engine", (part.get("config") or {}).get("regex_engine"))
            backtracks = inherited if chosen is None else chosen == "python-re"
            pattern = part.get("pattern") if part["type"] == "str" else None
            if isinstance(pattern, re.Pattern):
                return str(pattern.pattern)
            if isinstance(pattern, str) and backtracks:
                return pattern
            waiting += [(value, backtracks) for key, value in part.items() if key not in _NO_SCHEMAS]
    return None


def inlined(schema: Schema) -> Schema:
    """The schema with its `$defs` where they are referred to. Recursive ones stay, as do very many."""
    definitions = schema.get("$defs", {})
    direct = {name: set(_references(each)) for name, each in definitions.items()}
    kept = {name for name in definitions if name in _reachable(name, direct)}
    if _count_references(schema, definitions, kept) > MAX_INLINED:
        return schema

    def replace(part: Schema) -> Schema:
        name = _name(part)
        if name is None or name in kept or name not in definitions:
            return part
        beside = {key: value for key, value in part.items() if key != "$ref"}
        return {**rebuilt(definitions[name], replace), **beside}

    body = {key: value for key, value in schema.items() if key != "$defs"}
    result: Schema = rebuilt(body, replace)
    if kept:
        result["$defs"] = {name: rebuilt(definitions[name], replace) for name in sorted(kept)}
    return result


def tidied(schema: Schema) -> Schema:
    """The schema without what models need not read: titles, closed objects, nested alternatives."""
    result: Schema = rebuilt(schema, _tidy)
    return result


def rebuilt(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with `change` made to every schema in it, inner ones first. Values in it stay."""
    if not isinstance(schema, dict):
        return schema
    result: Schema = {}
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            result[key] = {name: rebuilt(each, change) for name, each in value.items()}
        elif key in _OF_LISTS and isinstance(value, list):
            result[key] = [rebuilt(each, change) for each in value]
        else:
            result[key] = rebuilt(value, change) if key in _OF_ONE else value
    return change(result)


def lets_more_through(schema: Schema) -> bool:
    """Whether an object in it, with properties of its own, takes others as well."""
    found = False

    def look(part: Schema) -> Schema:
        nonlocal found
        found = found or ("properties" in part and part.get("additionalProperties", False) is not False)
        return part

    rebuilt(schema, look)
    return found


def _tidy(schema: Schema) -> Schema:
    schema = {key: value for key, value in schema.items() if not _is_noise(key, value)}
    for key in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(key)
        if isinstance(choices, list):
            schema = _fewer(schema, key, choices)
    if "type" not in schema and (kind := _type_of_values(schema)):
        schema["type"] = kind
    if schema.get("default", ...) is None and {"type": "null"} in schema.get("anyOf", ()):
        del schema["default"]  # that it is not required says the same
    first: Schema = {key: schema[key] for key in ("type", "description") if key in schema}
    return {**first, **schema}


def _is_noise(key: str, value: Any) -> bool:
    return (
        (key == "title" and isinstance(value, str))
        or (key == "additionalProperties" and isinstance(value, bool))
        or (key == "discriminator" and isinstance(value, dict))  # OpenAPI's; its mapping names `$defs`
    )


def _fewer(schema: Schema, key: str, choices: list[Any]) -> Schema:
    """The schema with alternatives of alternatives side by side, each of them once."""
    flat: list[Any] = []
    for choice in choices:
        for each in choice[key] if isinstance(choice, dict) and choice.keys() == {key} else (choice,):
            if key == "oneOf" or each not in flat:
                flat.append(each)
    if (
        len(flat) == 1
        and isinstance(flat[0], dict)
        and not flat[0].keys() & (schema.keys() - {"description"})
    ):
        rest = {name: value for name, value in schema.items() if name != key}
        return {**flat[0], **rest}
    return {**schema, key: flat}


def _type_of_values(schema: Schema) -> str | list[str] | None:
    """The type of an enumeration, which pydantic leaves out where there are several."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values:
        return None
    kinds = list(dict.fromkeys(_TYPES.get(type(value), "object") for value in values))
    return kinds[0] if len(kinds) == 1 else kinds


def _name(schema: Schema) -> str | None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REFERENCE):
        return reference.removeprefix(_REFERENCE)
    return None


def _references(schema: Any) -> Iterator[str]:
    """The definitions that a schema refers to, as often as it does."""
    names: list[str] = []

    def note(part: Schema) -> Schema:
        if (name := _name(part)) is not None:
            names.append(name)
        return part

    rebuilt(schema, note)
    yield from names


def _reachable(name: str, direct: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = list(direct[name])
    while open_:
        each = open_.pop()
        if each not in found:
            found.add(each)
            open_ += direct.get(each, ())
    return found


def _count_references(schema: Schema, definitions: Schema, kept: set[str]) -> int:
    """How many references there are to replace, those in what replaces them included."""
    known: dict[str, int] = {}

    def inside(part: Any) -> int:
        total = 0
        for name in _references(part):
            if name in definitions and name not in kept:
                if name not in known:
                    known[name] = inside(definitions[name])
                total += 1 + known[name]
        return total

    body = {key: value for key, value in schema.items() if key != "$defs"}
    return inside(body) + sum(inside(definitions[name]) for name in kept)
