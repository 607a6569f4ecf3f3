"""In how many ways pydantic reads a value whose type has alternatives that hold each other.

It tries every alternative at every level. A type such as `Add | Mul`, each with an operand of that same type,
takes twice as long for each level that a model nests: minutes at twenty levels, while no other thread runs.
The ways are counted here, each pair of a type and a value once, before pydantic begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from localagent.tools.schema import Schema

MOST = 20_000
"""Readings of one argument: about a second's worth, where all of them fail."""
MOST_PER_CHARACTER = 3
"""And so many more for each character of it, as long values without depth have."""


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
        """The readings of the value, and of all that is in it."""
        if not isinstance(schema, dict):
            return 1
        pair = id(schema), id(value)
        if pair not in self._known:
            self._known[pair] = 1  # for a type that is itself one of its alternatives
            inner = (self.of(each, item) for each, item in self._tried(schema, value))
            self._known[pair] = 1 + sum(inner)
        return self._known[pair]

    def _tried(self, schema: Schema, value: Any) -> Iterator[tuple[Any, Any]]:
        """What is read within one reading: types, and the values that they are tried on."""
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
