"""Arguments as raw text in tags.

Raw text has no brackets of its own. So it makes a call only if what closes the field follows, and that counts
wherever it is, as the template has it: an argument that it cuts off is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..dialect import Context
from ..engine.driver import Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.writer import CallWriter, json_text
from ..events import Reason
from ..literals.strings import whole_characters
from ..literals.typed_text import STRING, Kinds, read_literal, replace_lone, typed_text
from ..patterns.search import Match, Patterns
from .block import CallField
from .shapes import TagArguments
from .template import Field

_CLOSING_TAG = re.compile(r"\s*</([\w.:-]+)>\s*")
OPENED_TAG = re.compile(r"<([\w.:-]+)")
"""A tag that may be closed before the field is."""


class TagsField(CallField):
    """One call with a tag for each argument."""

    def __init__(self, context: Context, field: Field, shape: TagArguments, opening: Match) -> None:
        super().__init__(context, field, shape.group, opening)
        self.shape = shape

    def call(self) -> Call:
        """A reader for the call, which what closes the field completes."""
        return _TagsCall(self)


class _TagsCall:
    """Tags with nothing between them. One in a value shows that it was never closed.

    Before the end there may be closing tags of what opened the field: `<function=f>…</function></tool_call>`.
    """

    def __init__(self, field: TagsField) -> None:
        context, self._shape = field.context, field.shape
        self._field = field
        self._source = context.source
        self.writer = CallWriter(context.source, context.emit, context.tools)

    def closers(self) -> list[str]:
        """None: brackets in raw text are text."""
        return []

    def read(self) -> Reading:
        """Read the whole field. Raises Fault."""
        field, shape = self._field, self._shape
        field.start_call(self.writer)
        heads, tails = field.patterns(shape.head), field.patterns(shape.tail, shape.head)
        while True:
            between, match = yield from self._next(heads)
            if match.number == 1:
                break
            key = replace_lone(match.groups["key"])
            if between.strip() or not key or "<" in key or ">" in key:
                raise self._refuse(match, Reason.SYNTAX)
            yield from self._value(key, tails)
        opened = OPENED_TAG.findall(field.opened)
        while (tag := _CLOSING_TAG.match(between)) and tag[1] in opened:
            opened.remove(tag[1])
            between = between[tag.end() :]
        if between.strip():
            raise self._refuse(match, Reason.SYNTAX)

    def _next(self, patterns: Patterns) -> Generator[None, None, tuple[str, Match]]:
        """The next match, and the text before it. Raises Fault at the end of the output."""
        skipped: list[str] = []
        match = yield from patterns.find(lambda text, end: skipped.append(text))
        if match is None:
            raise Fault(Reason.TRUNCATED, balanced=False)
        return "".join(skipped), match

    def _refuse(self, match: Match, reason: Reason) -> Fault:
        """A fault; `match`, which may close the field, is not read."""
        self._source.rewind(match.start)
        return Fault(reason, balanced=False)

    def _value(self, key: str, tails: Patterns) -> Reading:
        """Read and write an argument and its tail. A string goes out as it arrives. Raises Fault."""
        writer, strip, kinds = self.writer, self._shape.strip, self.writer.kinds_of(key)
        string = None
        if (yield from self._is_text(kinds)):
            writer.key(key)
            writer.write('"')
            string = _String(writer, strip=strip)
            match = yield from tails.find(string.take)
            if match is None:
                raise Fault(Reason.TRUNCATED, balanced=False)
            text = string.finish(match.start)
        else:
            text, match = yield from self._next(tails)
        if match.number != 0:
            raise self._refuse(match, Reason.UNCLOSED_STRING)
        if string is not None:
            writer.write('"', match.start)
            writer.argument(key, text)
            return
        try:
            value, repaired = _typed(text.strip() if strip else text, kinds, json=self._shape.json)
        except Fault as fault:
            raise self._refuse(match, fault.reason) from fault
        writer.repaired |= repaired
        writer.key(key)
        writer.write(json_text(value))
        writer.argument(key, value)

    def _is_text(self, kinds: Kinds) -> Generator[None, None, bool]:
        """Whether the text that comes next is a string, whatever it is."""
        if self._shape.json:
            return kinds == STRING and (yield from self._source.space()) != '"'
        return kinds is None or kinds == STRING


class _String:
    """The JSON text of a string that arrives in pieces. `strip`: without white space at its ends."""

    def __init__(self, writer: CallWriter, *, strip: bool) -> None:
        self._writer = writer
        self._strip = strip
        self._parts: list[str] = []
        self._pending = ""  # white space, or a high surrogate: the next piece decides whether it counts

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


def _typed(text: str, kinds: Kinds, *, json: bool) -> tuple[Any, bool]:
    """The value of a whole text, and whether that took a repair. Raises Fault.

    `json`: what is JSON is no text. A declared type counts for what is text otherwise, as in transformers.
    """
    if json and (kinds != STRING or text.lstrip()[:1] == '"') and _is_json(text):
        value, _ = read_literal(text)
        if not isinstance(value, str):
            return typed_text(text, kinds)
        text = value
    return (replace_lone(text), False) if kinds is None else typed_text(replace_lone(text), kinds)


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
