"""The values that parts hold: text and JSON as every wire and every file can carry them.

Knows what strict JSON is. Both kinds survive a dump and a load unchanged, which is why lone surrogates, NaN
and infinities are refused here and not found out when a conversation is saved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, JsonValue
from pydantic_core import PydanticCustomError

MAX_DEPTH = 128
"""Levels of lists and objects inside a JSON value, the same bound as the parser's."""


def refuse(kind: str, message: str) -> NoReturn:
    """Raise the error that pydantic turns into one line of a ValidationError."""
    raise PydanticCustomError(kind, message.replace("{", "{{").replace("}", "}}"))


def _check_text(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        refuse(
            "lone_surrogate", f"lone surrogate U+{code:04X} at character {error.start:,}: not Unicode text"
        )
    return text


def check_json(value: Any, depth: int = 0) -> Any:
    """The value, if it is strict JSON with at most MAX_DEPTH levels. Raises PydanticCustomError."""
    match value:
        case str():
            _check_text(value)
        case float():
            if not math.isfinite(value):
                refuse("not_finite", f"{value} is not JSON")
        case dict() | list():
            if depth == MAX_DEPTH:
                refuse("too_deep", f"JSON nested more than {MAX_DEPTH} deep")
            items: Iterable[Any] = value
            if isinstance(value, dict):
                items = value.values()
                for key in value:
                    _check_text(key)
            for item in items:
                check_json(item, depth + 1)
    return value


def _check_object(value: dict[str, Any]) -> dict[str, Any]:
    if value:
        check_json(value)
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Unlike `==`, tells 1 from true and from 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_json(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that `text` spells. Raises ValueError for anything else, a repeated key included."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {_NAMES[type(value)]}, not an object")
    check_json(value)
    return value


_NAMES = {list: "list", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is repeated")
            seen.add(key)
    return found


Text = Annotated[str, AfterValidator(_check_text)]
"""A string that UTF-8 can write."""
Json = Annotated[JsonValue, AfterValidator(check_json)]
"""Any strict JSON value."""
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_object)]
"""A strict JSON object."""
