"""The values in parts: text and JSON that every provider's format and every file can hold.

Both survive saving and loading unchanged: lone surrogates, NaN and infinities are refused when a part is
made, not only when a conversation is saved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, AwareDatetime, JsonValue, ValidationError
from pydantic_core import PydanticCustomError, PydanticSerializationError

from localagent.errors import InvalidMessage
from localagent.parsers.events import MAX_DEPTH
from localagent.wording import one_line, quoted

MAX_REQUEST_DEPTH = 200
"""Levels in a whole request, where arguments of MAX_DEPTH lie some levels down in a message."""
_LONGEST_INTEGER = 14_280
"""Bits, or 4,298 digits: Python refuses to read integers of more than 4,300 digits from text."""


def refuse(kind: str, message: str) -> NoReturn:
    """Raise the error that pydantic turns into one line of a ValidationError."""
    raise PydanticCustomError(kind, message)


class NotJson(ValueError):
    """A value that strict JSON cannot hold. `path`: the keys and indices that lead to it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: tuple[str | int, ...] = ()


def _check_text(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise NotJson(f"lone surrogate U+{code:04X} at character {error.start:,}: not Unicode text") from None
    return text


def check_json(value: Any, most: int = MAX_DEPTH) -> Any:
    """The value, if it is strict JSON with at most so many levels. Raises NotJson."""
    _check(value, most, most)
    return value


def _check(value: Any, levels: int, most: int) -> None:
    match value:
        case str():
            _check_text(value)
        case bool() | None:
            pass
        case int():
            if value.bit_length() > _LONGEST_INTEGER:
                raise NotJson("an integer of more than 4,298 digits")
        case float():
            if not math.isfinite(value):
                raise NotJson(f"{value} is not JSON")
        case dict() | list():
            if levels == 0:
                raise NotJson(f"JSON nested more than {most} deep")
            for key in value if isinstance(value, dict) else ():
                _check_text(key)
            for step, item in value.items() if isinstance(value, dict) else enumerate(value):
                try:
                    _check(item, levels - 1, most)
                except NotJson as fault:
                    fault.path = (step, *fault.path)
                    raise
        case _:
            raise NotJson(f"{type(value).__name__} is not JSON")


def _check_object(value: dict[str, Any]) -> dict[str, Any]:
    _check(value, MAX_DEPTH + 1, MAX_DEPTH)  # the object itself is not counted
    return value


def _refuse_change(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "the arguments of a call are read-only: make another call with changed(arguments=...), or change a "
        "copy.deepcopy of them"
    )


class FrozenObject(dict[str, Any]):
    """A JSON object that stays as it is, with all that is in it. Its deep copy is a plain dict."""

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: deepcopy(item, memo) for key, item in self.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self),)  # by default the items would be set one by one


class FrozenList(list[Any]):
    """The same for a list."""

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (list(self),)


for _kind, _changes in (
    (FrozenObject, "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update"),
    (
        FrozenList,
        "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort",
    ),
):
    for _change in _changes.split():
        setattr(_kind, _change, _refuse_change)


def frozen(value: Any) -> Any:
    """A copy of a JSON value that nobody can change, whoever holds it."""
    match value:
        case dict():
            return FrozenObject({key: frozen(item) for key, item in value.items()})
        case list():
            return FrozenList(map(frozen, value))
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Unlike `==`, tells 1 from true and from 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return type(one) is type(other) and bool(one == other)


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that `text` spells. Raises ValueError for anything else, a repeated key included."""
    try:
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {_NAMES[type(value)]}, not an object")
    return _check_object(value)


_NAMES = {list: "list", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def refuse_constant(name: str) -> NoReturn:
    """What `json.loads` is given, so that NaN and Infinity are errors. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.60} is repeated")
            seen.add(key)
    return found


def _in_utc(moment: datetime) -> datetime:
    """The same moment; offsets with seconds in them would not survive JSON."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        refuse("no_such_year", "outside the years 1 to 9999 in UTC")


def explain(error: ValidationError, root: str = "", names: Mapping[str, str] = {}) -> str:
    """The first finding of a failed validation, in one line.

    `root` names what was validated; `names` are those that a user knows its fields by, where they differ.
    """
    first, *others = error.errors(include_url=False, include_input=False)
    where = root
    for number, step in enumerate(first["loc"]):
        name = quoted(str(step) if number else names.get(str(step), str(step)))
        where += f"[{step}]" if isinstance(step, int) else f".{name}"
    reason = one_line(first["msg"].removeprefix("Value error, "))
    reason = reason.replace("a valid dictionary", "an object").replace("a valid tuple", "a list")
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]
        name = "role" if "role" in tag["discriminator"] else "kind of part"
        reason = f"{tag['tag']!r:.60} is not a {name} here; there are {tag['expected_tags']}"
    more = f" (and {len(others)} more)" if others else ""
    return f"{where.removeprefix('.') or 'value'}: {reason}{more}"


@contextmanager
def explained(root: str, kind: type[Exception] = InvalidMessage) -> Iterator[None]:
    """Raise `kind`, with one line, for what pydantic refuses to read or to write."""
    try:
        yield
    except ValidationError as error:
        raise kind(explain(error, root)) from None
    except PydanticSerializationError as error:  # a dict in it was changed since it was validated
        raise kind(f"{root}: {one_line(str(error), 300)}") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A point in time, in UTC."""
Text = Annotated[str, AfterValidator(_check_text)]
"""A string that UTF-8 can write."""
Json = Annotated[JsonValue, AfterValidator(check_json)]
"""Any strict JSON value."""
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_object)]
"""A strict JSON object."""
FrozenJsonObject = Annotated[JsonObject, AfterValidator(frozen)]
"""A strict JSON object that nobody can change."""
