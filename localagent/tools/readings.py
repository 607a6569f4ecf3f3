"""Guards against two ways in which pydantic mistreats a model's arguments.

It accepts some values of the wrong type, such as a number for a date. `misread` finds those, but only if the
parameter's JSON Schema does not allow the value either, so that no valid value is refused.

It tries every alternative of a union at every level. For a type such as `Add | Mul`, each with operands of
that same type, validation takes twice as long for each level of nesting: minutes at twenty levels, while no
other thread runs. `too_many` estimates that work beforehand, counting each pair of type and value once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from localagent.tools.findings import FORMATS
from localagent.tools.schema import Schema
from localagent.wording import quoted

_MOMENTS = frozenset({"date", "date-time", "time"})
"""Formats in which a number would be seconds since 1970, or of the day: the year 2026 would be in 1970."""
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d*)?\s*")


def misread(schema: Any, value: Any, path: str, definitions: Schema) -> Iterator[tuple[str, str, Any]]:
    """For each place: its path, what should be there, and the value that is."""
    schema = _referred(schema, definitions)
    if not isinstance(schema, dict):
        return
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            known = [_referred(each, definitions) for each in choices]
            found = [list(misread(each, value, path, definitions)) for each in known if _may_be(each, value)]
            if found and all(found):
                yield from found[0]
    match value:
        case dict():
            properties, others = schema.get("properties", {}), schema.get("additionalProperties")
            for name, item in value.items():
                yield from misread(properties.get(name, others), item, f"{path}.{quoted(name)}", definitions)
        case list():
            first = schema.get("prefixItems", [])
            for at, item in enumerate(value):
                inner = first[at] if at < len(first) else schema.get("items")
                yield from misread(inner, item, f"{path}[{at}]", definitions)
        case str() | int() | float() if not isinstance(value, bool):
            if (wanted := _instead(schema, value)) is not None:
                yield path, wanted, value


def _referred(schema: Any, definitions: Schema) -> Any:
    """The schema, or the definition that it refers to."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return definitions.get(reference.rpartition("/")[2], {}) if isinstance(reference, str) else schema


def _instead(schema: Schema, value: str | int | float) -> str | None:
    """What should be there instead of a number, or of text that is one."""
    if (kind := schema.get("format")) in _MOMENTS:
        return FORMATS[kind] if not isinstance(value, str) or _NUMBER.fullmatch(value) else None
    if schema.get("type") == "number" and isinstance(value, str):
        with suppress(ValueError):  # no number at all, which pydantic has refused already
            return None if math.isfinite(float(value)) else "a finite number"
    return None


def _may_be(schema: Any, value: Any) -> bool:
    """Whether pydantic could take the value for this alternative."""
    if not isinstance(schema, dict) or "type" not in schema:
        return True
    if isinstance(value, dict) and any(
        "const" in said and value.get(name, said["const"]) != said["const"]
        for name, said in schema.get("properties", {}).items()
    ):
        return False  # the tag of another alternative
    kinds = {dict: "object", list: "array", type(None): "null", bool: "boolean"}
    if (kind := kinds.get(type(value))) is not None:
        return bool(kind == schema["type"])
    if schema["type"] == "string":
        return isinstance(value, str) or schema.get("format") in _MOMENTS
    return schema["type"] in ("integer", "number") or isinstance(schema["type"], list)


MOST = 20_000
"""Readings of one argument: about a second's worth, where all of them fail."""
MOST_PER_CHARACTER = 3
"""Further readings for each character of the argument, since long flat values have many."""


def too_many(schema: Schema, value: Any, text: str, definitions: Mapping[str, Schema]) -> bool:
    """Whether it is too much work to read the value, which is `text` in JSON, as what the schema says."""
    try:
        return _Count(definitions).of(schema, value) > MOST + MOST_PER_CHARACTER * len(text)
    except RecursionError:
        return True


class _Count:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._known: dict[tuple[int, int], int] = {}

    def of(self, schema: Any, value: Any) -> int:
        """How often the value, and all that is in it, would be read."""
        if not isinstance(schema, dict):
            return 1
        pair = id(schema), id(value)
        if pair not in self._known:
            self._known[pair] = 1  # for a type that is itself one of its alternatives
            inner = (self.of(each, item) for each, item in self._tried(schema, value))
            self._known[pair] = 1 + sum(inner)
        return self._known[pair]

    def _tried(self, schema: Schema, value: Any) -> Iterator[tuple[Any, Any]]:
        """What one reading reads in turn: types, and the values that they are tried on."""
        if isinstance(reference := schema.get("$ref"), str):
            yield self._definitions.get(reference.rpartition("/")[2]), value
        for key in ("anyOf", "oneOf", "allOf"):
            for choice in schema.get(key, ()):
                if not _is_ruled_out(choice, schema.get("discriminator"), value):
                    yield choice, value
        match value:
            case dict():
                properties, others = schema.get("properties", {}), schema.get("additionalProperties")
                for name, item in value.items():
                    yield properties.get(name, others), item
            case list():
                first = schema.get("prefixItems", [])
                for at, item in enumerate(value):
                    yield first[at] if at < len(first) else schema.get("items"), item


def _is_ruled_out(choice: Any, discriminator: Any, value: Any) -> bool:
    """Whether a tag in the value names another alternative."""
    if not isinstance(discriminator, dict) or "mapping" not in discriminator:
        return False
    tag = value.get(discriminator["propertyName"]) if isinstance(value, dict) else None
    return bool(choice.get("$ref") != discriminator["mapping"].get(str(tag)))
