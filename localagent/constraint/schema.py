"""A JSON Schema read as the choices that a model has.

What cannot be held while the model writes is left out and reported (`Relaxed`), or in strict mode refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from localagent.constraint.keywords import FORMATS, KEYWORDS
from localagent.constraint.leaves import Trials, inline
from localagent.constraint.merging import DEEPEST, Merging
from localagent.constraint.options import (
    ANYTHING,
    KINDS,
    Constant,
    List,
    Number,
    Option,
    Options,
    Record,
    Reference,
    Text,
    Unreadable,
    fallback,
    number_schema,
    sound,
    unique,
)
from localagent.errors import SchemaRefused

MOST_ITEMS: Final = 1_000
MOST_LEADING: Final = 200
"""Items with a schema each, of which llguidance has every one within the one before."""
MOST_PROPERTIES: Final = 1_000
MOST_REFERENCES: Final = 256
MOST_ALTERNATIVES: Final = 1_000
MOST_PATTERNS: Final = 32
"""Patterns for names of properties: each has to exclude all others."""
LARGEST_MULTIPLE: Final = 10_000
"""Remainders that have to be told apart."""
LONGEST_ENUM: Final = 20_000
LONGEST_CONSTANT: Final = 10_000
"""Characters of one constant, which are all forced at once."""
LONGEST_CONSTANTS: Final = 500_000
LONGEST_MINIMUM: Final = 10_000
LONGEST_TEXT: Final = 100_000
_CONTROL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[bf]|u00[01])")
"""Control characters as JSON escapes them, but for tabs and the ends of lines."""
_NARROWING: Final = """
    enum const allOf anyOf oneOf $ref minimum exclusiveMinimum maximum exclusiveMaximum multipleOf
    minLength maxLength minItems maxItems minProperties maxProperties required
""".split()  # noqa: SIM905  (as a list it is a page)
"""Keywords to name where nothing fits a schema, the likeliest cause first."""
_ELSEWHERE: Final = ("minProperties", "maxProperties", "then", "else")
"""Reported where they are read, or with `if`."""
_HINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""What a schema without a type can only mean: narrower than the standard, which lets any other type pass."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A keyword that nothing holds while the model writes. `path`: a JSON pointer into the tool's schema."""

    tool: str
    path: str
    keyword: str
    reason: str


class Reader:
    """Reads the schema of one tool. `relaxed` is what was left out of it so far.

    `inlines`: strings with patterns are written as JSON by llguidance, which takes more of them. `closing`:
    what ends a string in a notation that escapes nothing, so that no string can hold it.
    """

    def __init__(self, tool: str, root: Any, strict: bool, inlines: bool = True, closing: str = "") -> None:
        self.tool = tool
        self.root = root
        self.strict = strict
        self._inlines = inlines
        self._closing = json.dumps(closing)[1:-1]
        self.relaxed: dict[tuple[str, str], Relaxed] = {}
        self._references: dict[str, Options] = {}
        self._choices = Merging(self.resolve)
        self.trials = Trials()

    @cached_property
    def identity(self) -> str:
        """A text that no other schema has, for the names of rules."""
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
        except Unreadable as unreadable:
            self.relax(path, *unreadable.args)
            return fallback(schema)
        if not options and schema is not False and schema != {"not": {}}:
            self.relax(path, _contradiction(schema), "no value fits it")
            return fallback(schema)
        return options

    def resolve(self, pointer: str) -> Options:
        """The options of what a `$ref` names."""
        if pointer not in self._references:
            path = pointer.removeprefix("#")
            if len(self._references) == MOST_REFERENCES:
                self.relax(path, "$ref", f"there are more than {MOST_REFERENCES}")
                return ANYTHING
            # What a schema allows that refers to itself and nothing else.
            self._references[pointer] = ANYTHING
            self._references[pointer] = self.read(self._schema_at(pointer), path, 1)
        return self._references[pointer]

    def _read(self, schema: Any, path: str, depth: int) -> Options:
        self._choices.spend(1)
        if schema is True or schema == {}:
            return ANYTHING
        if schema is False or schema == {"not": {}}:
            return ()
        if not isinstance(schema, Mapping):
            raise Unreadable("type", f"{schema!r:.40} is no schema")
        if depth > DEEPEST:
            raise Unreadable("properties", f"schemas may nest {DEEPEST} deep")
        refused = [keyword for keyword in schema if KEYWORDS.get(keyword) == "refused"]
        if refused:
            raise Unreadable(refused[0], "it cannot be enforced")
        self._check_constants(schema)
        options = self._typed(schema, path, depth)
        if "const" in schema:
            options = self._choices.both(options, (Constant(schema["const"]),), "const")
        if isinstance(schema.get("enum"), list):
            values = {json.dumps(value, sort_keys=True): Constant(value) for value in schema["enum"]}
            if len(values) > LONGEST_ENUM:
                raise Unreadable("enum", f"it has more than {LONGEST_ENUM:,} values")
            options = self._choices.both(options, tuple(values.values()), "enum")
        if "$ref" in schema:
            options = self._choices.both(options, self._referred(schema["$ref"]), "$ref")
        options = self._combined(options, schema, path, depth)
        if schema.get("nullable") is True:
            options = unique((*options, Constant(None)))
        self._check(schema, path)
        return options

    def _check_constants(self, schema: Mapping[str, Any]) -> None:
        """Raise Unreadable for constants that cannot be written."""
        for keyword in ("const", "enum"):
            given = schema.get(keyword)
            if not _is_text(given):
                raise Unreadable(keyword, "it holds half of a surrogate pair, which no text has")
            text = json.dumps(given)
            values = given if keyword == "enum" and isinstance(given, list) else [given]
            longest = len(text) if len(values) == 1 else max(map(len, map(json.dumps, values)), default=0)
            if longest > LONGEST_CONSTANT or len(text) > LONGEST_CONSTANTS:
                raise Unreadable(keyword, f"it is too long to be enforced: it has {len(text):,} characters")
            # JSON's strings escape them; elsewhere a grammar would force a byte that no token may have.
            if not self._inlines and _CONTROL.search(text):
                raise Unreadable(keyword, "it holds a control character, which many vocabularies lack")
            if self._closing and self._closing in text:
                raise Unreadable(keyword, "it holds what ends a string, and nothing is escaped")

    def _combined(self, options: Options, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        """The options that `allOf`, `anyOf` and `oneOf` leave."""
        for number, part in enumerate(_listed(schema, "allOf")):
            others = self._read(part, f"{path}/allOf/{number}", depth + 1)
            options = self._choices.both(options, others, "allOf")
        for keyword in ("anyOf", "oneOf"):
            parts = _listed(schema, keyword)
            if len(parts) > MOST_ALTERNATIVES and not all(
                isinstance(part, Mapping) and "const" in part for part in parts
            ):
                raise Unreadable(keyword, f"it has more than {MOST_ALTERNATIVES:,} schemas")
            choices = [
                self._read(part, f"{path}/{keyword}/{number}", depth + 1) for number, part in enumerate(parts)
            ]
            if keyword == "oneOf" and choices and not self._choices.are_apart(choices):
                self.relax(path, "oneOf", "a value may fit more than one of its schemas")
            if choices:
                others = unique(option for choice in choices for option in choice)
                options = self._choices.both(options, others, keyword)
        return options

    def _typed(self, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        given = schema.get("type")
        if given is None:
            given = [kind for kind, hints in _HINTS.items() if any(hint in schema for hint in hints)]
            if not given:
                return ANYTHING
        kinds = [given] if isinstance(given, str) else given
        if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
            raise Unreadable("type", f"{given!r:.40} is no type")
        options: list[Option] = []
        for kind in kinds:
            match kind:
                case "string":
                    options += self._text(schema, path)
                case "integer" | "number":
                    options += self._number(schema, kind == "integer", path)
                case "array":
                    options += self._list(schema, path, depth)
                case "object":
                    options += self._record(schema, path, depth)
                case _:
                    options += KINDS[kind]
        return unique(options)

    def _text(self, schema: Mapping[str, Any], path: str) -> Options:
        least, most = self._bounds(schema, path, "minLength", LONGEST_MINIMUM, "maxLength", LONGEST_TEXT)
        patterns = []
        if "pattern" in schema:
            reason = self.trials.unusable_pattern(schema["pattern"], self._inlines)
            if reason:
                self.relax(path, "pattern", reason)
            else:
                patterns.append(schema["pattern"])
        if isinstance(known := schema.get("format"), str) and known in FORMATS:
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
        elif multiple is not None and (digits := _digits(multiple)) > LARGEST_MULTIPLE:
            self.relax(path, "multipleOf", f"{digits:,} remainders are too many to be enforced")
            multiple = None
        number = Number(integer, low, high, above, below, multiple)
        options, bounds = sound(number), number_schema(number)
        body = inline(bounds)
        if options and len(bounds) > 1 and (reason := self.trials.unusable_number(body)):
            self.relax(path, next(name for name in bounds if name != "type"), reason)
            return (Number(integer),)
        return options

    def _limit(self, schema: Mapping[str, Any], path: str, name: str) -> float | None:
        limit = schema.get(name)
        if limit is None or isinstance(limit, bool):
            return None
        if not isinstance(limit, (int, float)):
            self.relax(path, name, f"{limit!r:.40} is no number")
            return None
        try:
            if math.isfinite(limit):
                return limit
            self.relax(path, name, f"{limit} is no number")
        except OverflowError:
            self.relax(path, name, "it is larger than any floating-point number")
        return None

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
        lead, rest, name = schema.get("prefixItems"), schema.get("items"), "prefixItems"
        if isinstance(rest, list):  # draft 7
            lead, rest, name = rest, schema.get("additionalItems"), "items"
        if isinstance(lead, list) and len(lead) > MOST_LEADING:
            raise Unreadable(name, f"it has more than {MOST_LEADING} items")
        first = tuple(
            self.read(part, f"{path}/{name}/{n}", depth + 1)
            for n, part in enumerate(lead if isinstance(lead, list) else ())
        )
        others = None if rest is None else self.read(rest, f"{path}/items", depth + 1)
        if others == ():
            others, most = None, min(len(first), len(first) if most is None else most)
        return () if most is not None and most < least else (List(first, others, least, most),)

    def _record(self, schema: Mapping[str, Any], path: str, depth: int) -> Options:
        declared = _mapping(schema, "properties")
        if declared and len(max(declared, key=len)) > LONGEST_CONSTANT:
            raise Unreadable("properties", f"a name has more than {LONGEST_CONSTANT:,} characters")
        required = frozenset(name for name in _listed(schema, "required") if isinstance(name, str))
        if max(len(declared), len(required)) > MOST_PROPERTIES:
            raise Unreadable("properties", f"it has more than {MOST_PROPERTIES:,}")
        extra = schema.get("additionalProperties")
        if extra is None and schema.get("unevaluatedProperties") is False:
            extra = False
        others = None if extra is None else self.read(extra, f"{path}/additionalProperties", depth + 1)
        patterns = self._patterns(schema, path, depth)
        least, most = self._bounds(schema, path, "minProperties", MOST_ITEMS, "maxProperties", MOST_ITEMS)
        names = self._names(schema, path, depth)
        record = Record({}, required, others, patterns, names, least, most)
        properties = {}
        for key, part in declared.items():
            options = self.read(part, f"{path}/properties/{escaped_step(key)}", depth + 1)
            for values in [values for pattern, values in patterns if self._choices.matches(pattern, key)]:
                options = self._choices.both(options, values, "patternProperties", 1)
            properties[key] = options
        for key in sorted(required - properties.keys()):  # required and not declared
            properties[key] = self._choices.of(record, key)
        if (least or most is not None) and (properties.keys() - required):
            for name in ("minProperties", "maxProperties"):
                if name in schema:
                    self.relax(path, name, "with optional properties they are not counted")
            record = replace(record, least=0, most=None)
        if not all(properties[key] for key in required):
            return ()
        too_few = most is not None and most < max(least, len(required))
        return () if too_few else (replace(record, properties=properties),)

    def _patterns(self, schema: Mapping[str, Any], path: str, depth: int) -> tuple[tuple[str, Options], ...]:
        named, patterns = _mapping(schema, "patternProperties"), []
        if len(named) > MOST_PATTERNS:
            raise Unreadable("patternProperties", f"it has more than {MOST_PATTERNS}")
        for pattern, part in named.items():
            if reason := self.trials.unusable_pattern(pattern, False):
                self.relax(path, "patternProperties", reason)
                continue
            inner = f"{path}/patternProperties/{escaped_step(pattern)}"
            patterns.append((pattern, self.read(part, inner, depth + 1)))
        return tuple(patterns)

    def _names(self, schema: Mapping[str, Any], path: str, depth: int) -> Text | None:
        names = schema.get("propertyNames")
        if names is None or names is True:
            return None
        options = self.read(names, f"{path}/propertyNames", depth + 1)
        if len(options) == 1 and isinstance(options[0], Text):
            return options[0]
        words = [option.value for option in options if isinstance(option, Constant)]
        if len(words) == len(options) and all(isinstance(word, str) for word in words):
            return Text(patterns=(f"^({'|'.join(map(re.escape, words))})$",))
        if options != ANYTHING:
            self.relax(path, "propertyNames", "only strings can be names")
        return None

    def _check(self, schema: Mapping[str, Any], path: str) -> None:
        """Report what nothing holds while the model writes."""
        for keyword, value in schema.items():
            if KEYWORDS.get(keyword) != "checked" or keyword in _ELSEWHERE:
                continue
            if value is False and keyword in ("uniqueItems", "unevaluatedProperties"):
                continue
            if keyword in ("minContains", "maxContains") and "contains" not in schema:
                continue
            self.relax(path, keyword, "it is checked when the call is finished")

    # -- references -----------------------------------------------------------------------------------

    def _referred(self, pointer: Any) -> Options:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise Unreadable("$ref", f"{pointer!r:.60} is not within the schema")
        self._schema_at(pointer)
        return (Reference(pointer),)

    def _schema_at(self, pointer: str) -> Any:
        from urllib.parse import unquote

        schema = self.root
        for step in pointer[2:].split("/") if pointer != "#" else ():
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(name)] if isinstance(schema, list) else schema[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Unreadable("$ref", f"{pointer!r:.60} names nothing") from None
        return schema


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    given = schema.get(keyword)
    return given if isinstance(given, list) else []


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    given = schema.get(keyword)
    return given if isinstance(given, Mapping) else {}


def _digits(number: float) -> int:
    """A number without its decimal point and the zeros at its end."""
    return int("".join(map(str, Decimal(str(number)).normalize().as_tuple().digits)))


def _is_text(value: Any) -> bool:
    """Whether all strings in it can be written: JSON can spell half of a surrogate pair, UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _contradiction(schema: Any) -> str:
    """The keyword to name where nothing fits a schema."""
    return next((word for word in _NARROWING if isinstance(schema, Mapping) and word in schema), "type")


def escaped_step(key: str) -> str:
    """A key as a step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
