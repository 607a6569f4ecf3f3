"""Arguments as raw text: in tags, on lines, or the whole of a field.

Raw text has no brackets of its own. So it makes a call only if what closes the field follows, and that counts
wherever it stands, as the template says: an argument that it cuts off is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Set
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..dialect import Context
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.writer import CallWriter, json_text
from ..events import Reason
from ..literals.strings import whole_characters
from ..literals.typed_text import ANY_JSON, STRING, Kinds, read_literal, replace_lone, typed_text
from ..patterns import Found, Pattern, Patterns, compile_pattern, literals
from .block import CallField
from .shapes import FixedArguments, LineArguments, Name, TagArguments, Value
from .template import Field

_CLOSING_TAG = re.compile(r"\s*</([\w.:-]+)>\s*")
OPENED_TAG = re.compile(r"<([\w.:-]+)")
"""A tag that may be closed before the field is."""
_TRUE, _FALSE = ("true", "1"), ("false", "0")


class RawField(CallField):
    """One call whose arguments are raw text, which what closes the field completes. It is a `Call`, too."""

    def __init__(self, context: Context, field: Field, name: Name, opening: Found) -> None:
        super().__init__(context, field, name, opening)
        self.writer = CallWriter(context.source, context.emit, context.tools)

    def closers(self) -> list[str]:
        """None: brackets in raw text are text."""
        return []

    def read_field(self) -> Reading:
        """Read the call and what closes the field."""
        yield from self.read_call(self, self.start)

    def read(self) -> Reading:
        """See `Call`."""
        self.start_call(self.writer)
        yield from self.arguments()

    def arguments(self) -> Reading:
        """Read the arguments and what closes the field. Raises Fault."""
        raise NotImplementedError

    def next(self, patterns: Patterns) -> Generator[None, None, tuple[str, Found]]:
        """The next match, and the text before it. Raises Fault at the end of the output."""
        skipped: list[str] = []
        found = yield from patterns.find(lambda text, end: skipped.append(text))
        if found is None:
            raise Fault(Reason.TRUNCATED, balanced=False)
        return "".join(skipped), found

    def refuse(self, found: Found, reason: Reason) -> Fault:
        """A fault; `found`, which may close the field, is not read."""
        self.source.rewind(found.start)
        return Fault(reason, balanced=False)

    def value(
        self, key: str, value: Value, ends: Patterns, cut: int | None = None, fits: str = ""
    ) -> Generator[None, None, Found]:
        """Read and write an argument up to the next of `ends`, which is returned. Raises Fault.

        A string goes out as it arrives. `cut`: the first of `ends` that shows that it was never closed.
        `fits`: an expression that its text must match.
        """
        writer, kinds = self.writer, self.writer.kinds_of(key)
        streams = yield from self._is_text(value, kinds)
        if streams:
            writer.key(key)
            writer.write('"')
            string = _String(writer, strip=value.strip)
            found = yield from ends.find(string.take)
            if found is None:
                raise Fault(Reason.TRUNCATED, balanced=False)
            text = string.finish(found.start)
        else:
            text, found = yield from self.next(ends)
        if cut is not None and found.number >= cut:
            raise self.refuse(found, Reason.UNCLOSED_STRING)
        if fits and not re.fullmatch(fits, text, re.DOTALL):
            raise self.refuse(found, Reason.SYNTAX)
        if streams:
            writer.write('"', found.start)
            writer.argument(key, text)
        else:
            self.put(key, self.typed(text, value, kinds, found))
        return found

    def typed(self, text: str, value: Value, kinds: Kinds, end: Found) -> tuple[Any, bool]:
        """The value of a text that ends before `end`, and whether that took a repair. Raises Fault."""
        try:
            return _typed(text.strip() if value.strip else text, value, kinds)
        except Fault as fault:
            raise self.refuse(end, fault.reason) from fault

    def put(self, key: str, result: tuple[Any, bool]) -> None:
        """Write an argument, given its value and whether that took a repair."""
        value, repaired = result
        self.writer.repaired |= repaired
        self.writer.key(key)
        self.writer.write(json_text(value))
        self.writer.argument(key, value)

    def _is_text(self, value: Value, kinds: Kinds) -> Generator[None, None, bool]:
        """Whether the text that comes next is a string, whatever it is."""
        if value.parser == "text":
            return kinds is None or kinds == STRING
        return value.text_too and kinds == STRING and (yield from self.source.space()) != '"'


class Tags(RawField):
    """A tag for each argument, with nothing between them. One in a value shows that it was never closed.

    Before the end there may be closing tags of what opened the field: `<function=f>…</function></tool_call>`.
    """

    def __init__(self, context: Context, field: Field, shape: TagArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `RawField`."""
        shape = self._shape
        heads, tails = self.patterns(shape.head), self.patterns(shape.tail, shape.head)
        merged: dict[str, list[tuple[Any, bool]]] = {}
        while True:
            between, found = yield from self.next(heads)
            if found.number == 1:
                break
            key = replace_lone(found.groups["key"])
            if between.strip() or not key or "<" in key or ">" in key:
                raise self.refuse(found, Reason.SYNTAX)
            if shape.merge:
                text, end = yield from self.next(tails)
                if end.number != 0:
                    raise self.refuse(end, Reason.UNCLOSED_STRING)
                result = self.typed(text, shape.value, self.writer.kinds_of(key), end)
                merged.setdefault(key, []).append(result)
            else:
                yield from self.value(key, shape.value, tails, 1, shape.fits)
        opened = OPENED_TAG.findall(self.written)
        while (tag := _CLOSING_TAG.match(between)) and tag[1] in opened:
            opened.remove(tag[1])
            between = between[tag.end() :]
        if between.strip():
            raise self.refuse(found, Reason.SYNTAX)
        for key, results in merged.items():
            values = [value for value, _ in results]
            self.put(
                key, (values if len(values) > 1 else values[0], any(repaired for _, repaired in results))
            )


class Lines(RawField):
    """A line for each argument. Empty lines mean nothing."""

    def __init__(self, context: Context, field: Field, shape: LineArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `RawField`."""
        shape = self._shape
        separator, line_end = (_plain(text) for text in (shape.separator, shape.line_end))
        starts, ends = self.patterns(separator, line_end), self.patterns(line_end)
        while True:
            text, found = yield from self.next(starts)
            key = replace_lone(text.strip() if shape.strip else text)
            if found.number != 0 and text.strip():
                raise self.refuse(found, Reason.SYNTAX)
            if found.number == 0:
                if not key:
                    raise self.refuse(found, Reason.POSITIONAL_ARGUMENT)
                found = yield from self.value(key, shape.value, ends)
                closed = found.number == 1
            else:
                closed = found.number == 2
            if closed:
                break
        # A line that has lost its end would make two arguments one.
        values = [value for value in self.writer.arguments.values() if isinstance(value, str)]
        for key in self._parameters() - self.writer.arguments.keys():
            if any(f"{key}{shape.separator}" in value for value in values):
                raise self.refuse(found, Reason.SYNTAX)

    def _parameters(self) -> Set[str]:
        """Those that the tool declares, if it is known."""
        return set() if self.writer.tool is None else self.writer.tool.types.keys()


class Fixed(RawField):
    """The arguments that the template names, one of which is the text."""

    def __init__(self, context: Context, field: Field, shape: FixedArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `RawField`."""
        shape = self._shape
        for key, value in shape.constants.items():
            self.put(key, (value, False))
        for key, group in shape.groups.items():
            text = replace_lone(self.opening.groups.get(group, ""))
            self.put(key, _typed(text, Value(), self.writer.kinds_of(key)))
        yield from self.value(shape.content, shape.value, self.patterns())


class _String:
    """The JSON text of a string that arrives in pieces. `strip`: without white space at its ends."""

    def __init__(self, writer: CallWriter, *, strip: bool) -> None:
        self._writer = writer
        self._strip = strip
        self._parts: list[str] = []
        self._pending = ""  # white space, or a high surrogate, of which the next piece says whether it counts

    def take(self, piece: str, end: int) -> None:
        """Add a piece, which ends at the offset `end`."""
        text = self._pending + piece
        if self._strip and not self._parts:
            text = text.lstrip()
        text, self._pending = whole_characters(text)
        if self._strip and not self._pending:
            body = text.rstrip()
            text, self._pending = body, text[len(body) :]
        if text:
            self._parts.append(text)
            self._writer.write(quote_json(text)[1:-1], end - len(self._pending))

    def finish(self, end: int) -> str:
        """The whole string, which ends at `end`."""
        if self._pending and not self._pending.isspace():
            self._parts.append("\ufffd")
            self._writer.write("\ufffd", end)
        return "".join(self._parts)


def _plain(text: str) -> Pattern:
    """A text of which nothing is a marker."""
    return compile_pattern(literals((text,)), tokens=False)


def _typed(text: str, value: Value, kinds: Kinds) -> tuple[Any, bool]:
    """The value of a whole text, and whether that took a repair. Raises Fault.

    A declared type counts for what is text otherwise, as in transformers.
    """
    match value.parser:
        case "int":
            return _number(int, text), False
        case "float":
            number = _number(float, text)
            if not math.isfinite(number):
                raise Fault(Reason.NOT_FINITE)
            return number, False
        case "bool":
            if text.lower() not in (*_TRUE, *_FALSE):
                raise Fault(Reason.NOT_A_LITERAL)
            return text.lower() in _TRUE, False
        case "json" if not value.text_too:
            return typed_text(text, ANY_JSON)
        case "json" if kinds != STRING or text.lstrip()[:1] == '"':
            if _is_json(text):
                found, _ = read_literal(text)
                if not isinstance(found, str):
                    return typed_text(text, kinds)
                text = found
    return (replace_lone(text), False) if kinds is None else typed_text(replace_lone(text), kinds)


def _number(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError as error:
        reason = Reason.TOO_LARGE if text.strip("+-").isdigit() else Reason.NOT_A_LITERAL
        raise Fault(reason) from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    except RecursionError:
        return True  # too deep to be a value here
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)
