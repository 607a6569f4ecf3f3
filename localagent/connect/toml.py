"""TOML: names before the first table, and whole tables.

Where a statement ends is asked of Python's own parser: it is the shortest run of whole lines that is TOML by
itself, since a string or an array that goes on in the next line is not. tomlkit, which keeps files as they
are, is not used: an array of tables `[[b]]` between `[a.x]` and `[a.y]` comes out of it behind them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, Span, line_end, line_start, shown

_NAME = re.compile(r"""[ \t]*(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w. \t-])+=[ \t]*""")
_CLOSING = re.compile(r"[]}]|\"{3}|'{3}")
"""What the last line of a statement of several lines has."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """The head of a table (`value` is None), or a name with its value."""

    keys: Keys
    """All the names, from the root of the file."""
    start: int
    end: int
    value: int | None = None
    """Where the value begins."""


class Toml(Document):
    """A TOML file in which values at the root and tables are set."""

    kind = "TOML"

    def parse(self) -> Any:
        value = tomllib.loads(self.text)
        self._statements = list(self._split())
        self._root = list(takewhile(lambda statement: statement.value is not None, self._statements))
        return value

    def _split(self) -> Iterator[_Statement]:
        """The statements of a text that is known to be valid."""
        start, table = 0, Keys()
        while start < len(self.text):
            end = self._end(start)
            statement = self.text[start:end]
            if statement.lstrip(" \t").startswith("["):
                table = _keys(statement)
                yield _Statement(table, start, end)
            elif name := _NAME.match(statement):
                yield _Statement((*table, *_keys(name[0] + "0")), start, end, start + name.end())
            start = end

    def _end(self, start: int) -> int:
        end = line_end(self.text, start)
        if _is_toml(self.text[start:end]):
            return end
        while end < len(self.text):
            line, end = end, line_end(self.text, end)
            if _CLOSING.search(self.text, line, end) and _is_toml(self.text[start:end]):
                break
        return end

    def _span(self, keys: Keys) -> Span | None:
        """Where a value stands, or a table with its head and what is below it."""
        block = [n for n, inside in enumerate(self._statements) if inside.keys[: len(keys)] == keys]
        if not block:
            return None
        first, last = self._statements[block[0]], self._statements[block[-1]]
        if first.value is not None:
            return self._value(first) if first.keys == keys else None
        if len(block) != block[-1] - block[0] + 1:
            raise CannotEdit(f"{shown(keys)} stands in several places")
        return first.start, last.end

    def _value(self, statement: _Statement) -> Span:
        """Where a value stands: up to a comment, which is where the text before it is complete."""
        start, end = statement.value or 0, statement.end
        for comment in re.finditer("#", self.text[start:end]):
            if _is_toml(self.text[statement.start : start + comment.start()]):
                end = start + comment.start()
                break
        return start, start + len(self.text[start:end].rstrip())

    def _written(self, keys: Keys, value: Any, start: int) -> str:
        if not isinstance(value, dict):
            return _scalar(value)
        lines = [f"[{'.'.join(keys)}]", *(f"{key} = {_scalar(inner)}" for key, inner in value.items())]
        return self.newline.join([*lines, ""])

    def _with(self, keys: Keys, value: Any) -> str:
        text, new = self.text, self._written(keys, value, 0)
        if isinstance(value, dict):
            return self._with_lines(len(text), self.newline + new if text else new)
        line = f"{keys[0]} = {new}{self.newline}"
        if self._root:
            return self._with_lines(self._root[-1].end, line)
        return line + (self.newline + text if text else "")  # comments there may belong to the first table

    def _without(self, keys: Keys, span: Span) -> str:
        text, (start, end) = self.text, span
        if isinstance(self.get(keys), dict):
            blank = line_start(text, start - 1) if start else 0
            if not text[blank:start].strip():  # the empty line that sets it off
                start = blank
        else:
            start, end = line_start(text, start), line_end(text, end)
            if len(self._root) == 1 and not text[end : line_end(text, end)].strip():
                end = line_end(text, end)
        return self._without_lines(start, end)


def _is_toml(text: str) -> bool:
    with suppress(ValueError):
        tomllib.loads(text)
        return True
    return False


def _keys(statement: str) -> Keys:
    """The names that a statement begins with."""
    keys, value = list[str](), tomllib.loads(statement)
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        keys.append(key)
    return tuple(keys)


def _scalar(value: Any) -> str:
    # JSON's strings are TOML's, but for the delete character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
