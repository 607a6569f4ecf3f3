"""Values written as raw text, which the tool's schema gives their types. Pure functions on whole texts.

`true` and Python's `True` are both a boolean, `{'k': [1]}` is an object, and a string is what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from typing import Any

from ..engine.emitter import Emitter
from ..engine.faults import Fault
from ..engine.source import Source
from ..engine.spans import NOWHERE
from ..engine.tools import kind_of
from ..engine.words import CONSTANTS, literal
from ..engine.writer import CallWriter
from ..events import Reason
from .strings import whole_characters
from .values import JsonReader

Kinds = frozenset[str] | None
"""The JSON types that a value may have, None if nobody says so."""

STRING: Kinds = frozenset({"string"})
ANY_JSON: Kinds = frozenset({"json"})
"""Not a type: what the format itself says is written as JSON, whatever type it has."""
OR_TEXT = frozenset({"text"})
"""Besides other kinds: what is of none of them is a string."""

_CONTAINERS = {"[": list, "{": dict}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_STARTS = frozenset("-0123456789")
CONTAINERS = frozenset({"object", "array"})
"""The JSON types that hold values."""
_QUOTE = re.compile(r'(?<!\\)"')
_IN_ANY_CASE = {"true": True, "false": False, "null": None}
_SCALARS = frozenset({"integer", "number", "boolean", "null"})
LONGEST_CONSTANT = max(map(len, CONSTANTS))
"""How much of a text shows whether it begins with a constant."""
_NO_VALUE = (Reason.NOT_FINITE, Reason.TOO_LARGE, Reason.TOO_DEEP)


def read_literal(text: str) -> tuple[Any, bool]:
    """The value of a whole text in JSON or Python notation, and whether reading it took a repair.

    Raises Fault when it is none.
    """
    source = Source((), None)
    source.feed(f"{text.strip()} ", None)  # a word may only be complete when something follows it
    source.ended = True
    writer = CallWriter(source, Emitter(), {})
    reading = _Whole(writer).read()
    try:
        next(reading)
    except StopIteration as stop:
        return stop.value, writer.repaired
    raise AssertionError("a reader asked for input behind the end")


class _Whole(JsonReader):
    """One value and nothing else."""

    def __init__(self, writer: CallWriter) -> None:
        super().__init__(writer, NOWHERE, self.nothing_follows)

    def read(self) -> Generator[None, None, Any]:
        """The value. Raises Fault."""
        place = self.writer.hold()
        value = yield from self.value()
        self.writer.settle(place, "")
        if (yield from self.source.space()):
            raise Fault(Reason.SYNTAX)
        return value

    def nothing_follows(self, inner: bool) -> Generator[None, None, bool]:
        """Whether the text ends here."""
        return not (yield from self.source.space())

    def bare_word(self, word: str) -> Generator[None, None, str]:
        """No name stands for its text here. Raises Fault."""
        literal(word)
        raise AssertionError(f"{word} is a literal")
        yield


def untyped(text: str) -> tuple[Any, bool]:
    """The value of raw text of which no type is known, and whether that took a repair.

    Templates write strings raw and the rest as JSON, or as Python has it. So it is a value only if it is
    written exactly as they write one: `007`, `+49` and `1_000` are text.
    """
    stripped = text.strip()
    if stripped in CONSTANTS:
        return CONSTANTS[stripped], False
    container = _CONTAINERS.get(stripped[:1])
    try:
        if container is not None:
            value, repaired = read_literal(stripped)
            return (value, repaired) if isinstance(value, container) else (text, False)
        if _NUMBER.fullmatch(stripped):
            return literal(stripped)
    except Fault:
        pass
    return text, False


def typed_text(text: str, kinds: Kinds) -> tuple[Any, bool]:
    """The value that raw text stands for, and whether that took a repair.

    A value of another type than those stays what it is, and counts as repaired. Raises Fault for text where
    none is allowed, and for a number that cannot be one in JSON.
    """
    if kinds == STRING:
        return text, False
    if kinds is None:
        return untyped(text)
    if kinds >= OR_TEXT:
        try:
            return typed_text(text, kinds - OR_TEXT)
        except Fault:
            return text, True
    reading = untyped(text) if "string" in kinds else _literal_of(text, kinds)
    if reading is None:
        raise Fault(Reason.NOT_A_LITERAL)
    value, repaired = reading
    kind = kind_of(value)
    if kinds == ANY_JSON:
        return value, repaired
    if kind == "string":
        return text, False
    if kind == "integer" and kind not in kinds:
        kind = "number"
    if kind == "number" and kind not in kinds and "integer" in kinds and value == math.floor(value):
        return int(value), True
    if value is None and "string" not in kinds:
        return None, repaired or kind not in kinds  # a null stands for itself where no text is allowed
    if kind == "array" and kind not in kinds and text.lstrip()[0] == "{":
        raise Fault(Reason.NOT_A_LITERAL)  # `{"a"}` is no set where an object is declared
    if "string" in kinds and kind not in kinds:
        return text, False
    return value, repaired or kind not in kinds


def _literal_of(text: str, kinds: frozenset[str]) -> tuple[Any, bool] | None:
    """What `typed_text` returns where no text is allowed; None for text that can be no value."""
    word = text.strip()
    if word.lower() in _IN_ANY_CASE and (word[0] in "nN" or kinds == ANY_JSON or "boolean" in kinds):
        return _IN_ANY_CASE[word.lower()], word not in CONSTANTS  # `TRUE`, `NULL` [loose-tags]
    if kinds <= CONTAINERS and '\\"' in text and not _QUOTE.search(text):
        return read_literal(text.replace('\\"', '"'))[0], True  # every quote is escaped: `[\"a\"]`
    try:
        value, repaired = read_literal(text)
    except Fault as fault:
        if fault.reason in _NO_VALUE:
            raise
        return None
    if isinstance(value, str) and kinds & CONTAINERS:
        try:
            inner, _ = read_literal(value)  # a list or an object, written into a JSON string [loose-tags]
        except Fault:
            return None
        return (inner, True) if kind_of(inner) in CONTAINERS else None
    return None if isinstance(value, str) and kinds != ANY_JSON else (value, repaired)


def holds_no_tags(kinds: Kinds) -> bool:
    """Whether a value of these types never has a tag in it: it is a number or a constant."""
    return kinds is not None and kinds <= _SCALARS


def may_be_a_value(text: str) -> bool:
    """Whether raw text of unknown type that begins like this may turn out to be more than text."""
    start = text.lstrip()[:LONGEST_CONSTANT]
    if not start or start[0] in _CONTAINERS or start[0] in _NUMBER_STARTS:
        return True
    return any(word.startswith(start) or start.startswith(word) for word in CONSTANTS)


def replace_lone(text: str) -> str:
    """`text` as JSON can hold it: pairs of surrogates joined, lone ones replaced."""
    return whole_characters(f"{text} ")[0][:-1]
