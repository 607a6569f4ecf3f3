"""A JSON Schema as the choices that a model has: what is merged, referred to and contradicted is settled here.

`Reader.read` turns a schema into options, each of one JSON type; a value is valid if one of them holds it. Options
can be intersected, which is what `allOf`, `$ref` beside other keywords, `enum` and `type` all come to. What cannot
be held while the model writes is left out and reported (`Relaxed`), or in strict mode refused. How options are
written in the notation of a dialect is in `rules`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Final

from localagent.constraint.keywords import FORMATS, KEYWORDS
from localagent.constraint.leaves import inline, refusal, unusable
from localagent.errors import SchemaRefused

DEEPEST: Final = 64
"""How deep schemas may nest; beyond that anything is allowed, and reported."""
LARGEST: Final = 20_000
"""How many options one tool may have, after merging."""
WIDEST: Final = 256
"""How many alternatives may come of merging."""
MOST_ITEMS: Final = 1_000
LONGEST_ENUM: Final = 20_000
LONGEST_MINIMUM: Final = 10_000
LONGEST_TEXT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A keyword that nothing holds while the model writes. `path`: a JSON pointer into the tool's schema."""

    tool: str
    path: str
    keyword: str
    reason: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds. `multiple`: of which it is a multiple."""

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
    """An object. `extra`: the values of other properties, None if the schema does not say."""

    properties: Mapping[str, Options] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    extra: Options | None = None
    patterns: tuple[tuple[str, Options], ...] = ()
    names: Text | None = None
    least: int = 0
    most: int | None = None

    def of(self, key: str) -> Options:
        """The values of a property that is not declared."""
        fitting = [options for pattern, options in self.patterns if _matches(pattern, key)]
        return fitting[0] if len(fitting) == 1 else ANYTHING if self.extra is None else self.extra


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
_HINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""What a schema without a type can only mean: narrower than the standard, which lets any other type pass."""


class _Unreadable(Exception):
    """A schema that becomes "any value of its type". Its arguments: keyword and reason."""


class Reader:
    """Reads the schema of one tool. `relaxed` is what was left out of it so far.

    `inlines`: strings with patterns are written as JSON by llguidance, which takes more of them.
    """

    def __init__(self, tool: str, root: Any, strict: bool, inlines: bool = True) -> None:
        self.tool = tool
        self.root = root
        self.strict = strict
        self._inlines = inlines
        self.relaxed: dict[tuple[str, str], Relaxed] = {}
        self._references: dict[str, Options] = {}
        self._budget = LARGEST

    @cached_property
    def identity(self) -> str:
        """What no other schema has, for the names of rules."""
        return f"{self.tool} {self.strict} {json.dumps(self.root, sort_keys=True, default=str)}"

    def relax(self, path: str, keyword: str, reason: str) -> None:
        """Report a keyword. Raises SchemaRefused in strict mode."""
        if self.strict:
            where = path or "/"
            raise SchemaRefused(f"the schema of {self.tool} cannot be enforced: {where}: {keyword}: {reason}")
        self.relaxed.setdefault((path, keyword), Relaxed(self.tool, path, keyword, reason))

    def read(self, schema: Any, path: str, depth: int = 0) -> Options:
        """The options of the schema at `path`. What cannot be read becomes any value of its type."""
        try:
            options = self._read(schema, path, depth)
        except _Unreadable as unreadable:
            self.relax(path, *unreadable.args)
            return fallback(schema)
        if not options and schema is not False and schema != {"not": {}}:
            self.relax(path, _contradiction(schema), "no value fits it")
            return fallback(schema)
        return options

    def resolve(self, pointer: str) -> Options:
        """The options of what a `$ref` names."""
        found = self._references.get(pointer)
        if found is None:
            self._references[pointer] = ANYTHING  # of one that refers to itself and nothing else
            found = self._references[pointer] = self.read(self._at(pointer), pointer.removeprefix("#"), 1)
        return found

    def _read(self, schema: Any, path: str, depth: int) -> Options:
        self._spend(1)
        if schema is True or schema == {}:
            return ANYTHING
        if schema is False or schema == {"not": {}}:
            return ()
        if not isinstance(schema, Mapping):
            raise _Unreadable("type", f"{schema!r:.40} is no schema")
        if depth > DEEPEST:
            raise _Unreadable("properties", f"schemas may nest {DEEPEST} deep")
        for keyword in schema:
            if KEYWORDS.get(keyword, ("", ""))[0] == "refused":
                raise _Unreadable(keyword, "it cannot be enforced")
        options = self._typed(schema, path, depth)
        if "const" in schema:
            options = self._both(options, (Constant(schema["const"]),), "const")
        if isinstance(schema.get("enum"), list):
            values = {json.dumps(value, sort_keys=True): Constant(value) for value in schema["enum"]}
            if len(values) > LONGEST_ENUM:
                raise _Unreadable("enum", f"it has more than {LONGEST_ENUM:,} values")
            options = self._both(options, tuple(values.values()), "enum")
        if "$ref" in schema:
            options = self._both(options, self._referred(schema["$ref"]), "$ref")
        for number, part in enumerate(_listed(schema, "allOf")):
            options = self._both(options, self._read(part, f"{path}/allOf/{number}", depth + 1), "allOf")
        for keyword in ("anyOf", "oneOf"):
            parts = _listed(schema, keyword)
            if parts:
                choices = [
                    self._read(part, f"{path}/{keyword}/{n}", depth + 1) for n, part in enumerate(parts)
                ]
                if keyword == "oneOf" and not self._are_apart(choices):
                    self.relax(path, "oneOf", "a value may fit more than one of its schemas")
                options = self._both(
                    options, _unique(option for choice in choices for option in choice), keyword
                )
        if schema.get("nullable") is True:
            options = _unique((*options, Constant(None)))
        self._check(schema, path)
        return options

    def _typed(self, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        said = schema.get("type")
        if said is None:
            said = [kind for kind, hints in _HINTS.items() if any(hint in schema for hint in hints)]
            if not said:
                return ANYTHING
        kinds = [said] if isinstance(said, str) else said
        if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
            raise _Unreadable("type", f"{said!r:.40} is no type")
        found: list[Option] = []
        for kind in kinds:
            match kind:
                case "string":
                    found += self._text(schema, path)
                case "integer" | "number":
                    found += self._number(schema, kind == "integer", path)
                case "array":
                    found += self._list(schema, path, depth)
                case "object":
                    found += self._record(schema, path, depth)
                case _:
                    found += KINDS[kind]
        return _unique(found)

    def _text(self, schema: Mapping[str, Any], path: str) -> Options:
        least, most = self._bounds(schema, path, "minLength", LONGEST_MINIMUM, "maxLength", LONGEST_TEXT)
        patterns = []
        if "pattern" in schema:
            reason = unusable(schema["pattern"], self._inlines)
            if reason:
                self.relax(path, "pattern", reason)
            else:
                patterns.append(schema["pattern"])
        if (known := schema.get("format")) in FORMATS and isinstance(known, str):
            patterns.append(f"^({FORMATS[known]})$")
        return () if most is not None and most < least else (Text(least, most, tuple(patterns)),)

    def _number(self, schema: Mapping[str, Any], integer: bool, path: str) -> Options:
        low, high = (self._limit(schema, path, name) for name in ("minimum", "maximum"))
        above, below = (
            # In draft 4 these are booleans, which say how the other two are meant.
            inclusive if schema.get(name) is True else self._limit(schema, path, name)
            for name, inclusive in (("exclusiveMinimum", low), ("exclusiveMaximum", high))
        )
        multiple = self._limit(schema, path, "multipleOf")
        if multiple is not None and multiple <= 0:
            self.relax(path, "multipleOf", f"{multiple} is not positive")
            multiple = None
        number = Number(integer, low, high, above, below, multiple)
        found = _sound(number)
        bounds = number_schema(number)
        if found and len(bounds) > 1 and (said := refusal(inline(bounds))):
            self.relax(path, next(name for name in bounds if name != "type"), said)
            return (Number(integer),)
        return found

    def _limit(self, schema: Mapping[str, Any], path: str, name: str) -> float | None:
        found = schema.get(name)
        if found is None or isinstance(found, bool):
            return None
        if not isinstance(found, (int, float)) or not math.isfinite(found):
            self.relax(path, name, f"{found!r:.40} is no number")
            return None
        return found

    def _bounds(
        self, schema: Mapping[str, Any], path: str, lower: str, lowest: int, upper: str, highest: int
    ) -> tuple[int, int | None]:
        least, most = self._limit(schema, path, lower), self._limit(schema, path, upper)
        if least is not None and least > lowest:
            self.relax(path, lower, f"{least:,} is more than {lowest:,}")
            least = None
        if most is not None and most > highest:
            self.relax(path, upper, f"{most:,} is more than {highest:,}")
            most = None
        return max(0, math.ceil(least or 0)), None if most is None else math.floor(most)

    def _list(self, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        least, most = self._bounds(schema, path, "minItems", MOST_ITEMS, "maxItems", MOST_ITEMS)
        items, lead, rest, name = (
            schema.get("items"),
            schema.get("prefixItems"),
            schema.get("items"),
            "prefixItems",
        )
        if isinstance(items, list):  # draft 7
            lead, rest, name = items, schema.get("additionalItems"), "items"
        first = tuple(
            self.read(part, f"{path}/{name}/{n}", depth + 1)
            for n, part in enumerate(lead if isinstance(lead, list) else ())
        )
        others = None if rest is None else self.read(rest, f"{path}/items", depth + 1)
        if others == ():
            others, most = None, min(len(first), len(first) if most is None else most)
        return () if most is not None and most < least else (List(first, others, least, most),)

    def _record(self, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        declared = schema.get("properties")
        declared = declared if isinstance(declared, Mapping) else {}
        required = frozenset(name for name in _listed(schema, "required") if isinstance(name, str))
        extra = schema.get("additionalProperties")
        if extra is None and schema.get("unevaluatedProperties") is False:
            extra = False
        others = None if extra is None else self.read(extra, f"{path}/additionalProperties", depth + 1)
        patterns = []
        said = schema.get("patternProperties")
        for pattern, part in said.items() if isinstance(said, Mapping) else ():
            if reason := unusable(pattern, False):
                self.relax(path, "patternProperties", reason)
                continue
            patterns.append(
                (pattern, self.read(part, f"{path}/patternProperties/{escaped_step(pattern)}", depth + 1))
            )
        least, most = self._bounds(schema, path, "minProperties", MOST_ITEMS, "maxProperties", MOST_ITEMS)
        record = Record({}, required, others, tuple(patterns), self._names(schema, path), least, most)
        properties = {}
        for key, part in declared.items():
            options = self.read(part, f"{path}/properties/{escaped_step(key)}", depth + 1)
            fitting = [values for pattern, values in patterns if _matches(pattern, key)]
            for values in fitting:
                options = self._both(options, values, "patternProperties")
            properties[key] = options
        for key in sorted(required - properties.keys()):  # required and not declared
            properties[key] = record.of(key)
        if (least or most is not None) and (properties.keys() - required):
            for name in ("minProperties", "maxProperties"):
                if name in schema:
                    self.relax(path, name, "with optional properties they are not counted")
            record = replace(record, least=0, most=None)
        missing = [key for key in required if not properties[key]]
        return (
            ()
            if missing or (most is not None and most < max(least, len(required)))
            else (replace(record, properties=properties),)
        )

    def _names(self, schema: Mapping[str, Any], path: str) -> Text | None:
        said = schema.get("propertyNames")
        if said is None or said is True:
            return None
        options = self.read(said, f"{path}/propertyNames", 1)
        texts = [option for option in options if isinstance(option, Text)]
        if len(options) == 1 and texts:
            return texts[0]
        if all(isinstance(option, Constant) and isinstance(option.value, str) for option in options):
            words = "|".join(re.escape(option.value) for option in options if isinstance(option, Constant))
            return Text(patterns=(f"^({words})$",))
        if options != ANYTHING:
            self.relax(path, "propertyNames", "only strings can be names")
        return None

    def _check(self, schema: Mapping[str, Any], path: str) -> None:
        """Report what nothing holds while the model writes."""
        for keyword, said in schema.items():
            if KEYWORDS.get(keyword, ("", ""))[0] != "checked" or keyword in (
                "minProperties",
                "maxProperties",
                "then",
                "else",
            ):
                continue
            if said is False and keyword in ("uniqueItems", "unevaluatedProperties"):
                continue
            if keyword in ("minContains", "maxContains") and "contains" not in schema:
                continue
            self.relax(path, keyword, "it is checked when the call is finished")

    # -- references -----------------------------------------------------------------------------------

    def _referred(self, pointer: Any) -> Options:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise _Unreadable("$ref", f"{pointer!r:.60} is not within the schema")
        self._at(pointer)
        return (Reference(pointer),)

    def _at(self, pointer: str) -> Any:
        found = self.root
        for step in pointer[2:].split("/") if pointer != "#" else ():
            name = _unquoted(step)
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise _Unreadable("$ref", f"{pointer!r:.60} names nothing") from None
        return found

    # -- merging --------------------------------------------------------------------------------------

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise _Unreadable("allOf", f"it has more than {LARGEST:,} parts")

    def _both(self, left: Options, right: Options, keyword: str, depth: int = 0) -> Options:
        """What both allow."""
        if left == ANYTHING:
            return right
        if right == ANYTHING:
            return left
        if depth > DEEPEST:
            raise _Unreadable(keyword, "it refers to itself")
        if all(isinstance(option, Constant) for option in right):
            # An enumeration may be long: it is filtered, not multiplied.
            kept = [
                option
                for option in right
                if isinstance(option, Constant) and self._admits(left, option.value, depth)
            ]
            return tuple(kept)
        if all(isinstance(option, Constant) for option in left):
            return self._both(right, left, keyword, depth)
        self._spend(len(left) * len(right))
        if len(left) * len(right) > WIDEST * 16:
            raise _Unreadable(keyword, f"merging gives more than {WIDEST} alternatives")
        found: list[Option] = []
        for one, other in product(left, right):
            found += self._merged(one, other, keyword, depth)
        if len(found) > WIDEST:
            raise _Unreadable(keyword, f"merging gives more than {WIDEST} alternatives")
        return _unique(found)

    def _merged(self, one: Option, other: Option, keyword: str, depth: int) -> Options:
        match one, other:
            case (Any_(), _):
                return (other,)
            case (_, Any_()):
                return (one,)
            case (Reference(left), Reference(right)) if left == right:
                return (one,)
            case (Reference(pointer), _):
                return self._both(self._once(pointer, keyword), (other,), keyword, depth + 1)
            case (_, Reference()):
                return self._merged(other, one, keyword, depth)
            case (Constant(value), _):
                return (one,) if self._admits((other,), value, depth) else ()
            case (_, Constant(value)):
                return (other,) if self._admits((one,), value, depth) else ()
            case (Number(), Number()):
                return self._merged_numbers(one, other)
            case (Text(), Text()):
                least, most = max(one.least, other.least), _least(one.most, other.most)
                patterns = tuple(dict.fromkeys((*one.patterns, *other.patterns)))
                return () if most is not None and most < least else (Text(least, most, patterns),)
            case (List(), List()):
                return self._merged_lists(one, other, keyword, depth)
            case (Record(), Record()):
                return self._merged_records(one, other, keyword, depth)
        return ()

    def _once(self, pointer: str, keyword: str) -> Options:
        if pointer in self._references or not self._is_open(pointer):
            return self.resolve(pointer)
        raise _Unreadable(keyword, f"{pointer!r:.60} refers to itself")

    def _is_open(self, pointer: str) -> bool:
        return False

    def _merged_numbers(self, one: Number, other: Number) -> Options:
        multiple = one.multiple
        if other.multiple is not None and multiple not in (None, other.multiple):
            raise _Unreadable("multipleOf", "several at once cannot be enforced")
        return _sound(
            Number(
                one.integer or other.integer,
                _most(one.low, other.low),
                _least(one.high, other.high),
                _most(one.above, other.above),
                _least(one.below, other.below),
                other.multiple if multiple is None else multiple,
            )
        )

    def _merged_lists(self, one: List, other: List, keyword: str, depth: int) -> Options:
        count = max(len(one.lead), len(other.lead))
        lead = tuple(
            self._both(_item(one, number), _item(other, number), keyword, depth + 1)
            for number in range(count)
        )
        items = self._both(_item(one, count), _item(other, count), keyword, depth + 1)
        least, most = max(one.least, other.least), _least(one.most, other.most)
        impossible = next((number for number, options in enumerate((*lead, items)) if not options), None)
        if impossible is not None:
            most = impossible if most is None else min(most, impossible)
        if most is not None and most < least:
            return ()
        return (List(lead, items if items else None, least, most),)

    def _merged_records(self, one: Record, other: Record, keyword: str, depth: int) -> Options:
        properties = {}
        for key in (*one.properties, *(key for key in other.properties if key not in one.properties)):
            left = one.properties[key] if key in one.properties else one.of(key)
            right = other.properties[key] if key in other.properties else other.of(key)
            properties[key] = self._both(left, right, keyword, depth + 1)
        required = one.required | other.required
        if any(not properties.get(key, ANYTHING) for key in required):
            return ()
        extra = one.extra if other.extra is None else other.extra
        if one.extra is not None and other.extra is not None:
            extra = self._both(one.extra, other.extra, keyword, depth + 1)
        names = one.names or other.names
        if one.names and other.names:
            merged = self._merged(one.names, other.names, keyword, depth)
            names = merged[0] if merged and isinstance(merged[0], Text) else None
        return (
            Record(
                properties,
                required,
                extra,
                tuple(dict((*one.patterns, *other.patterns)).items()),
                names,
                max(one.least, other.least),
                _least(one.most, other.most),
            ),
        )

    def _admits(self, options: Options, value: Any, depth: int = 0) -> bool:
        """Whether one of the options holds `value`; a pattern that cannot be tried is taken to match."""
        if depth > DEEPEST:
            return False
        return any(self._holds(option, value, depth) for option in options)

    def _holds(self, option: Option, value: Any, depth: int) -> bool:
        match option:
            case Any_():
                return True
            case Constant(own):
                return _same(own, value)
            case Reference(pointer):
                return self._admits(self.resolve(pointer), value, depth + 1)
            case Number():
                return (
                    not isinstance(value, bool) and isinstance(value, (int, float)) and _fits(option, value)
                )
            case Text(least, most, patterns):
                if not isinstance(value, str) or not least <= len(value) <= (
                    math.inf if most is None else most
                ):
                    return False
                return all(_matches(pattern, value) for pattern in patterns)
            case List(_, _, least, most):
                if not isinstance(value, list) or not least <= len(value) <= (
                    math.inf if most is None else most
                ):
                    return False
                return all(self._admits(_item(option, n), item, depth + 1) for n, item in enumerate(value))
            case Record():
                if not isinstance(value, dict) or not option.required <= value.keys():
                    return False
                return all(
                    self._admits(
                        option.properties[key] if key in option.properties else option.of(key),
                        item,
                        depth + 1,
                    )
                    for key, item in value.items()
                )

    def _are_apart(self, choices: Sequence[Options]) -> bool:
        """Whether no value can fit two of the choices, as far as that is easily told."""
        return all(
            self._apart(one, other)
            for number, left in enumerate(choices)
            for right in choices[number + 1 :]
            for one in left
            for other in right
        )

    def _apart(self, one: Option, other: Option) -> bool:
        match one, other:
            case (Reference(pointer), _):
                return all(
                    self._apart(option, other)
                    for option in self.resolve(pointer)
                    if not isinstance(option, Reference)
                ) and bool(self.resolve(pointer))
            case (_, Reference()):
                return self._apart(other, one)
            case (Any_(), _) | (_, Any_()):
                return False
            case (Constant(value), _):
                return not self._holds(other, value, 0)
            case (_, Constant(value)):
                return not self._holds(one, value, 0)
            case (Record(), Record()):
                shared = one.required & other.required
                return any(self._are_apart([one.properties[key], other.properties[key]]) for key in shared)
        return type(one) is not type(other)


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
    said = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return (
        _unique(option for kind in kinds if isinstance(kind, str) for option in KINDS.get(kind, ()))
        or ANYTHING
    )


def expanded(options: Options) -> Options:
    """The options with "any value" as its types."""
    return _unique(
        each for option in options for each in (_ANY_KIND if isinstance(option, Any_) else (option,))
    )


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError):
        return True


def _item(option: List, number: int) -> Options:
    if number < len(option.lead):
        return option.lead[number]
    return ANYTHING if option.items is None else option.items


def _fits(number: Number, value: float) -> bool:
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


def _sound(number: Number) -> Options:
    """The number, unless its bounds leave none."""
    low, high = _most(number.low, number.above), _least(number.high, number.below)
    if low is None or high is None:
        return (number,)
    if low > high or (low == high and not _fits(number, low)):
        return ()
    step = number.multiple or (1 if number.integer else None)
    if step is not None and high - low < step * 4:
        first = math.ceil(low / step - 1e-9)
        if not any(_fits(number, (first + n) * step) for n in range(6)):
            return ()
    return (number,)


def _same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _least(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else min(left, right)


def _most(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else max(left, right)


def _unique(options: Any) -> Options:
    """Without repetitions, in order. Constants are compared as JSON: True is not 1."""
    found: dict[Any, Option] = {}
    for option in options:
        found.setdefault(repr(option), option)
    return tuple(found.values())


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _contradiction(schema: Any) -> str:
    """The keyword to name where nothing fits a schema."""
    order = (
        "enum",
        "const",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "minimum",
        "exclusiveMinimum",
        "maximum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
    )
    return next((keyword for keyword in order if isinstance(schema, Mapping) and keyword in schema), "type")


def escaped_step(key: str) -> str:
    """A key as a step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _unquoted(step: str) -> str:
    from urllib.parse import unquote

    return unquote(step).replace("~1", "/").replace("~0", "~")
