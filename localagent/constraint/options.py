"""The normal form of a schema: the choices that a model has.

A value is valid if one of several options holds it, each of one JSON type. `merging` intersects them,
`schema` reads them from a schema, `values` writes them in the notation of a dialect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Constant:
    """One value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds, `low` and `high` included. `multiple`: of which it is a multiple."""

    integer: bool
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    multiple: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A string. `patterns` are ECMA regular expressions that it must match somewhere."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class List:
    """An array: the items of `lead`, then any number of `items`."""

    lead: tuple[Options, ...] = ()
    items: Options | None = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An object. `extra`: the values of other properties, None if the schema does not say.

    `patterns`: regular expressions for names, each with the values of the properties that it fits. `names`:
    what the names of properties that are not declared must be.
    """

    properties: Mapping[str, Options] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    extra: Options | None = None
    patterns: tuple[tuple[str, Options], ...] = ()
    names: Text | None = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the schema at a JSON pointer allows, so that schemas may be recursive."""

    pointer: str


@dataclass(frozen=True, slots=True)
class Any_:  # noqa: N801  (`Any` is taken)
    """Any JSON value."""


Option = Constant | Number | Text | List | Record | Reference | Any_
Options = tuple[Option, ...]
"""A value is valid if one of these holds it; none: no value is."""

ANYTHING: Final[Options] = (Any_(),)
KINDS: Final[Mapping[str, Options]] = {
    "string": (Text(),),
    "integer": (Number(True),),
    "number": (Number(False),),
    "boolean": (Constant(True), Constant(False)),
    "null": (Constant(None),),
    "array": (List(),),
    "object": (Record(extra=ANYTHING),),
}
"""What is left of a schema of which only the type is known."""
_ANY_KIND: Final[Options] = tuple(
    option for kind in ("string", "number", "boolean", "null", "array", "object") for option in KINDS[kind]
)


def number_schema(number: Number) -> dict[str, Any]:
    """A number as JSON Schema again."""
    bounds = {
        "minimum": number.low,
        "maximum": number.high,
        "exclusiveMinimum": number.above,
        "exclusiveMaximum": number.below,
        "multipleOf": number.multiple,
    }
    kept = {keyword: value for keyword, value in bounds.items() if value is not None}
    return {"type": "integer" if number.integer else "number", **kept}


def fallback(schema: Any) -> Options:
    """Any value of the type that a schema names, or any at all."""
    given = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return (
        unique(option for kind in kinds if isinstance(kind, str) for option in KINDS.get(kind, ()))
        or ANYTHING
    )


def expanded(options: Options) -> Options:
    """The options with "any value" as its types."""
    return unique(
        kind for option in options for kind in (_ANY_KIND if isinstance(option, Any_) else (option,))
    )


def item(option: List, number: int) -> Options:
    """The options of an item, by its number."""
    if number < len(option.lead):
        return option.lead[number]
    return ANYTHING if option.items is None else option.items


def size(options: Options) -> int:
    """How many options these are, with all that are within them."""
    count = len(options)
    for option in options:
        match option:
            case List(lead, items):
                count += sum(map(size, (*lead, items or ())))
            case Record():
                inner = (*option.properties.values(), option.extra or (), *(of for _, of in option.patterns))
                count += sum(map(size, inner))
    return count


class Unreadable(Exception):
    """A schema that becomes "any value of its type". Its arguments: keyword and reason."""


def fits(number: Number, value: float) -> bool:
    """Whether a number is within the bounds."""
    if number.integer and value != math.floor(value):
        return False
    if number.multiple is not None and abs(value / number.multiple - round(value / number.multiple)) > 1e-9:
        return False
    return (
        (number.low is None or value >= number.low)
        and (number.high is None or value <= number.high)
        and (number.above is None or value > number.above)
        and (number.below is None or value < number.below)
    )


def sound(number: Number) -> Options:
    """The number, unless its bounds leave none."""
    low, high = highest(number.low, number.above), lowest(number.high, number.below)
    if low is None or high is None:
        return (number,)
    if low > high or (low == high and not fits(number, low)):
        return ()
    step = number.multiple or (1 if number.integer else None)
    if step is not None and high - low < step * 4:
        first = math.ceil(low / step - 1e-9)
        if not any(fits(number, (first + n) * step) for n in range(6)):
            return ()
    return (number,)


def lowest(left: Any, right: Any) -> Any:
    """The lower one; None is no bound."""
    return right if left is None else left if right is None else min(left, right)


def highest(left: Any, right: Any) -> Any:
    """The higher one; None is no bound."""
    return right if left is None else left if right is None else max(left, right)


def unique(options: Iterable[Option]) -> Options:
    """Without repetitions, in order. Constants are compared as JSON: True is not 1."""
    options = tuple(options)
    if len(options) < 2:  # `repr` writes out all that is nested in one, at every level again
        return options
    distinct: dict[Any, Option] = {}
    for option in options:
        distinct.setdefault(repr(option), option)
    return tuple(distinct.values())
