"""Whether a call fits the declared tools: the one check, behind every `fits` of an event and `ToolCheck`.

The parts of a schema that are not followed here (references, patterns, bounds, names of types that mean
nothing) are no reason against a value. The check takes at most MAX_STEPS steps for each argument, whatever
the schema, and names at most MAX_MISFITS places of a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ..events import Fits, Misfit, MisfitKind
from .tools import MAX_SCHEMA_DEPTH, Tool, declared, kind_of, kinds_of_type, required_of

MAX_MISFITS = 8
MAX_STEPS = 10_000

_NO_MARKS = re.compile(r"(?!)")
_STRUCTURE = re.compile(r"""["'\u2018-\u201f{}\[\]()<>,:=|\\\n\r]""")
"""What stands between the keys and values of every notation; no key has it."""
_QUOTE = r"""["'\u2018-\u201f]"""
_BEFORE_A_KEY = rf"(?:{_QUOTE}|[>|,(\u007b])\s*"
_BEHIND_A_KEY = rf"(?:{_QUOTE}?\s*[:=<>|]|{_QUOTE}\s+\w+=)"
"""What stands in front of a key, and behind it, in one notation or another."""
_CHOICES = frozenset(("const", "anyOf", "oneOf"))
_PLAIN: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_MEMBERS = frozenset(("properties", "required", "additionalProperties"))
_ITEMS = frozenset(("items", "prefixItems"))
_FITTING = frozenset((True,))

Test = Callable[[Any, re.Pattern[str]], bool]
"""A quick test: what passes fits, and holds no mark. What does not pass may fit all the same."""


class ArgumentCheck:
    """Looks for what an argument of a declared tool must not be, a value within a value at a step."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def of(self, tool: Tool, key: str, value: Any) -> Iterator[Misfit]:
        """What is wrong with the argument `key`."""
        path = f"/{_escaped(key)}"
        if key in tool.schemas:
            yield from self.value(value, tool.schemas[key], path)
        elif tool.closed:
            yield Misfit(MisfitKind.UNKNOWN, path)
        elif isinstance(tool.schema, Mapping) and "patternProperties" not in tool.schema:
            yield from self.value(value, tool.schema.get("additionalProperties"), path)

    def value(self, value: Any, schema: Any, path: str, depth: int = MAX_SCHEMA_DEPTH) -> Iterator[Misfit]:
        """What is wrong with a value that has this schema. `depth`: how many alternatives of alternatives
        are looked at."""
        self._left -= 1
        if self._left < 0 or not isinstance(schema, Mapping):
            if schema is False:  # nothing fits it
                yield Misfit(MisfitKind.TYPE, path)
            return
        if not _allows(schema, value) or self._fits_no_choice(value, schema, path, depth):
            yield Misfit(MisfitKind.TYPE, path)
        elif isinstance(value, dict):
            yield from self._members(value, schema, path, depth)
        elif isinstance(value, list) and "prefixItems" not in schema and "items" in schema:
            for index, item in enumerate(value):
                yield from self.value(item, schema["items"], f"{path}/{index}", depth)
                if self._left < 0:
                    return

    def _fits_no_choice(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> bool:
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, list) or depth == 0 or (value is None and schema.get("nullable") is True):
            return False
        return all(any(self.value(value, choice, path, depth - 1)) for choice in choices)

    def _members(
        self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[Misfit]:
        known, others = schema.get("properties"), schema.get("additionalProperties")
        known = known if isinstance(known, Mapping) else {}
        for key in required_of(schema):
            if key not in value:
                yield Misfit(MisfitKind.MISSING, f"{path}/{_escaped(key)}")
        for key, inner in value.items():
            below = f"{path}/{_escaped(key)}"
            if key in known:
                yield from self.value(inner, known[key], below, depth)
            elif others is False and "patternProperties" not in schema:
                yield Misfit(MisfitKind.UNKNOWN, below)
            elif isinstance(others, Mapping) and "patternProperties" not in schema:
                yield from self.value(inner, others, below, depth)


def name_fits(name: str, tools: Mapping[str, Tool]) -> Fits:
    """Whether a tool of that name is declared; None where none is at all."""
    if not tools:
        return None
    return True if name in tools else (Misfit(MisfitKind.UNDECLARED, ""),)


def argument_fits(tool: Tool | None, key: str, value: Any, marks: re.Pattern[str]) -> Fits:
    """Whether an argument of a declared tool fits. `marks`: those of the dialect that count as such."""
    if tool is None:
        return None
    if (tool.tests.get(key) or _test_of(tool, key))(value, marks):
        return True  # as most are
    return _fits((*ArgumentCheck().of(tool, key, value), *_markup(value, f"/{_escaped(key)}", marks)))


def _test_of(tool: Tool, key: str) -> Test:
    """The test of an argument, which is made once for each tool and key."""
    test = _test(tool.schemas.get(key)) or _tells_nothing
    if key in tool.schemas:
        tool.tests[key] = test
    return test


def _tells_nothing(value: Any, marks: re.Pattern[str]) -> bool:
    return False


def _test(schema: Any, depth: int = MAX_SCHEMA_DEPTH) -> Test | None:
    """The test of a schema that asks for one type, or for some texts; None for all others."""
    if not isinstance(schema, Mapping) or not _CHOICES.isdisjoint(schema) or depth == 0:
        return None
    kinds, choices = kinds_of_type(schema.get("type")), schema.get("enum")
    plain = _PLAIN.get(next(iter(kinds))) if kinds is not None and len(kinds) == 1 else None
    if plain is str and isinstance(choices, list):
        texts = frozenset(choice for choice in choices if isinstance(choice, str))
        return lambda value, marks: type(value) is str and value in texts and not marks.search(value)
    if plain is None or isinstance(choices, list):
        return None
    if plain is str:
        return lambda value, marks: type(value) is str and not marks.search(value)
    if plain not in (list, dict):
        return lambda value, marks: type(value) is plain
    if (_ITEMS if plain is list else _MEMBERS).isdisjoint(schema):
        return lambda value, marks: type(value) is plain and not _holds_marks(value, marks)
    test = _test(schema["items"], depth - 1) if plain is list and "prefixItems" not in schema else None
    return test and (lambda value, marks: type(value) is list and all(test(item, marks) for item in value))


def call_fits(
    name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool], checked: Mapping[str, Fits]
) -> Fits:
    """Whether a call fits, of whose arguments that is known."""
    tool = tools.get(name)
    if tool is None:
        return name_fits(name, tools)
    if all(map(arguments.__contains__, tool.required)) and _FITTING.issuperset(checked.values()):
        return True
    wrong = (misfit for key in arguments for misfit in misfits(checked.get(key)))
    lacking = (
        Misfit(MisfitKind.MISSING, f"/{_escaped(key)}")
        for key in dict.fromkeys(tool.required)
        if key not in arguments
    )
    return _fits(chain(wrong, lacking))


def misfits(fits: Fits) -> tuple[Misfit, ...]:
    """The reasons why something does not fit; none where it does, or nothing is declared."""
    return () if fits is None or fits is True else fits


class ToolCheck:
    """The check for calls that come from elsewhere. `tools`: the declared ones, as OpenAI function tools.

    Raises ValueError for what is no such tool.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]] | None) -> None:
        self._tools = declared(tools)

    def name(self, name: str) -> Fits:
        """Whether there is a tool of that name, as `CallStart.fits` has it."""
        return name_fits(name, self._tools)

    def argument(self, name: str, key: str, value: Any) -> Fits:
        """Whether an argument fits, as `ArgumentEnd.fits` has it. `name`: the tool's."""
        return argument_fits(self._tools.get(name), key, value, _NO_MARKS)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Fits:
        """Whether a whole call fits, as `CallEnd.fits` has it."""
        checked = {key: self.argument(name, key, value) for key, value in arguments.items()}
        return call_fits(name, arguments, self._tools, checked)


def is_torn(tool: Tool, reasons: Sequence[Misfit], arguments: Mapping[str, Any], raw: str) -> bool:
    """Whether a call does not fit in such a way as a fault makes, and no model means [torn-call].

    `raw`: its text. What a string holds counts only where that stands in the text as such, and not escaped.
    """
    kinds = {reason.kind for reason in reasons}
    unknown = [key for key in arguments if key not in tool.schemas] if MisfitKind.UNKNOWN in kinds else []
    if any(map(_STRUCTURE.search, unknown)):
        return True  # `{"li]it": 5}`: no key holds what surrounds keys
    if MisfitKind.MISSING in kinds and any(_is_spliced(key, tool.schemas) for key in unknown):
        return True  # `{"unays": 3}`: what stood between the keys `unit` and `days` is lost
    texts = {key: value for key, value in arguments.items() if isinstance(value, str) and value in raw}
    marked = {reason.path for reason in reasons if reason.kind is MisfitKind.MARKUP}
    if len(marked) < len(reasons) and any(f"/{_escaped(key)}" in marked for key in texts):
        return True  # `{"coontent": "<tool_call>"}`: a mark of the dialect is not all that is wrong
    # `{"city": "Paris, 'unit': 'celsius'"}`: the string has swallowed a parameter that is required.
    absent = "|".join(re.escape(key) for key in tool.required if key not in arguments and len(key) > 1)
    swallowed = re.compile(rf"{_BEFORE_A_KEY}(?:{absent}){_BEHIND_A_KEY}")
    return bool(absent) and any(map(swallowed.search, texts.values()))


def _is_spliced(key: str, names: Iterable[str]) -> bool:
    """Whether a key begins as one of the names and ends as another: what stood between them was lost.

    One that begins and ends as the same name is a misspelled one, which is the model's own word.
    """
    begins = ends = 0
    for name in names:
        begin, end = _in_common(key, name), _in_common(key[::-1], name[::-1])
        if begin + end >= len(key):
            return False
        begins, ends = max(begins, begin), max(ends, end)
    return begins > 1 and ends > 1 and begins + ends >= len(key)


def _in_common(one: str, other: str) -> int:
    """With how many characters both begin."""
    differs = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


def _fits(reasons: Iterable[Misfit]) -> Fits:
    return tuple(islice(reasons, MAX_MISFITS)) or True


def _holds_marks(value: Any, marks: re.Pattern[str]) -> bool:
    """Whether `_markup` would find a string."""
    waiting, left = [value], MAX_STEPS
    while waiting and (left := left - 1):
        value = waiting.pop()
        kind = type(value)
        if kind is str:
            if marks.search(value):
                return True
        elif kind is dict:
            waiting += value.values()
        elif kind is list:
            waiting += value
    return False


def _markup(value: Any, path: str, marks: re.Pattern[str]) -> Iterator[Misfit]:
    """The strings in a value that hold one of the dialect's own marks."""
    waiting, left = [(path, value)], MAX_STEPS
    while waiting and (left := left - 1):
        path, value = waiting.pop()
        if isinstance(value, str):
            if marks.search(value):
                yield Misfit(MisfitKind.MARKUP, path)
        elif isinstance(value, dict):
            waiting += [(f"{path}/{_escaped(key)}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}/{index}", inner) for index, inner in enumerate(value)]


def _allows(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether type, enumeration and constant of a schema allow the value."""
    if value is None and schema.get("nullable") is True:
        return True
    kinds = kinds_of_type(schema.get("type"))
    kind = kind_of(value)
    if kinds is not None and kind not in kinds:
        whole = kind == "number" and value.is_integer() and "integer" in kinds
        if not whole and not (kind == "integer" and "number" in kinds):
            return False
    if "const" in schema and not _is_same(schema["const"], value):
        return False
    choices = schema.get("enum")
    return not isinstance(choices, list) or any(_is_same(choice, value) for choice in choices)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same one in JSON, where 1 is 1.0 and no true."""
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case list(), list():
            return len(one) == len(other) and all(map(_is_same, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _escaped(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
