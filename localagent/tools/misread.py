"""Values that pydantic reads as something else than whoever wrote them meant.

Knows the JSON Schema of a parameter. Does not know pydantic's types. Contract: `misread` finds only what the
schema does not allow either, so that no right value is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
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
