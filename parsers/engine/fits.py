"""Whether a call fits the declared tools: the one check, which everything that tells of a call goes by.

What a schema says in a way that is not followed here (references, patterns, bounds, names of types that JSON
Schema does not have) is no reason against a value. The check takes at most MAX_STEPS steps for each argument,
whatever the schema, and names at most MAX_MISFITS places of a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from parsers.engine.tools import MAX_SCHEMA_DEPTH, Tool, declared, kind_of, required_of
from parsers.events import Fits, Misfit, MisfitKind

MAX_MISFITS = 8
MAX_STEPS = 10_000

_NO_MARKS = re.compile(r"(?!)")
_STRUCTURE = re.compile(r"""["'\u2018-\u201f{}\[\]()<>,:=|\\\n\r]""")
"""What stands between the keys and values of every notation; no key has it."""
_KINDS = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


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

    def value(self, value: Any, schema: Any, path: str, depth: int = MAX_SCHEMA_DEPTH) -> Iterator[Misfit]:
        """What is wrong with a value that has this schema. `depth`: how many alternatives of alternatives
        are looked at."""
        self._left -= 1
        if self._left < 0 or not isinstance(schema, Mapping):
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
        if not isinstance(choices, list) or depth == 0:
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
            elif isinstance(others, Mapping):
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
    return _fits((*ArgumentCheck().of(tool, key, value), *_markup(value, f"/{_escaped(key)}", marks)))


def call_fits(
    name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool], checked: Mapping[str, Fits]
) -> Fits:
    """Whether a call fits, of whose arguments that is known."""
    tool = tools.get(name)
    if tool is None:
        return name_fits(name, tools)
    wrong = (misfit for key in arguments for misfit in misfits(checked.get(key)))
    lacking = (
        Misfit(MisfitKind.MISSING, f"/{_escaped(key)}") for key in tool.required if key not in arguments
    )
    return _fits(chain(wrong, lacking))


def misfits(fits: Fits) -> tuple[Misfit, ...]:
    """The reasons why something does not fit; none where it does, or nothing is declared."""
    return () if fits is None or fits is True else fits


def check_call(name: str, arguments: Mapping[str, Any], tools: Iterable[Mapping[str, Any]] | None) -> Fits:
    """Whether a call that comes from elsewhere fits the declared tools, which are OpenAI function tools.

    Raises ValueError for what is no such tool.
    """
    known = declared(tools)
    tool = known.get(name)
    checked = {key: argument_fits(tool, key, value, _NO_MARKS) for key, value in arguments.items()}
    return call_fits(name, arguments, known, checked)


def is_torn(reasons: Sequence[Misfit]) -> bool:
    """Whether the reasons why a call does not fit are such as a fault makes, and no model means.

    That is a key that holds what stands around keys, or a mark of the dialect beside another contradiction.
    """
    kinds = {reason.kind for reason in reasons}
    if MisfitKind.MARKUP in kinds and len(kinds) > 1:
        return True
    return any(reason.kind is MisfitKind.UNKNOWN and _STRUCTURE.search(reason.path) for reason in reasons)


def _fits(reasons: Iterable[Misfit]) -> Fits:
    return tuple(islice(reasons, MAX_MISFITS)) or True


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
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(names, list) and names and all(name in _KINDS for name in names if isinstance(name, str)):
        kind = kind_of(value)
        whole = kind == "number" and value.is_integer() and "integer" in names
        if kind not in names and not whole and not (kind == "integer" and "number" in names):
            return False
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return not isinstance(choices, list) or any(
        # True is no 1 in JSON
        choice == value and isinstance(choice, bool) == isinstance(value, bool)
        for choice in choices
    )


def _escaped(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
