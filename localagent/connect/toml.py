"""TOML: names before the first table, and whole tables."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, line_end, line_start, shown, without_lines

_HEADER = re.compile(r"[ \t]*\[(\[?)([^\n]*?)\](\]?)[ \t]*(?:#[^\n]*)?\r?$")
_STRINGS = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)
_KEY = re.compile(r"[ \t]*((?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*'|[ \t]*\.[ \t]*)+?)[ \t]*=[ \t]*")


@dataclass(frozen=True, slots=True)
class _Statement:
    """A table's head (`value` is None), or a name with its value. `keys` begin at the root of the file."""

    keys: Keys
    start: int
    end: int
    value: tuple[int, int] | None = None


class Toml(Document):
    """A TOML file in which values at the root and tables are set."""

    kind = "TOML"

    def parse(self) -> Any:
        """As `Document.parse`."""
        value = tomllib.loads(self.text)
        self._statements = self._split()
        return value

    def raw(self, keys: Keys) -> str | None:
        """As `Document.raw`."""
        span = self._span(keys)
        return None if span is None else self.text[span[0] : span[1]]

    def _span(self, keys: Keys) -> tuple[int, int] | None:
        """Where a value at the root stands, or a table with its head and what is below it."""
        for each in self._statements:
            if each.keys == keys and each.value is not None:
                return each.value
        block = [n for n, each in enumerate(self._statements) if each.keys[: len(keys)] == keys]
        if not block or self._statements[block[0]].value is not None:
            return None
        if block != list(range(block[0], block[-1] + 1)):
            raise CannotEdit(f"{shown(keys)} stands in several places")
        return self._statements[block[0]].start, self._statements[block[-1]].end

    def _with(self, keys: Keys, value: Any, raw: str | None) -> str:
        new = (
            raw
            if raw is not None
            else self._table(keys, value)
            if isinstance(value, dict)
            else _scalar(value)
        )
        if (span := self._span(keys)) is not None:
            return self.text[: span[0]] + new + self.text[span[1] :]
        if isinstance(value, dict) or (raw or "").lstrip().startswith("["):
            return self._append(new)
        return self._at_root(f"{keys[0]} = {new}")

    def _append(self, table: str) -> str:
        text, ending = self.text, self.newline
        if not text:
            return table
        if text.endswith("\n"):
            return text + ending + table
        return text + ending * 2 + table.removesuffix(ending)

    def _at_root(self, line: str) -> str:
        text = self.text
        root = [each for each in self._statements if each.value is not None and self._table_of(each) == ()]
        if not root:  # comments at the top may belong to the first table
            return line + self.newline + (self.newline + text if text else "")
        at = root[-1].end
        if text[:at].endswith("\n"):
            return text[:at] + line + self.newline + text[at:]
        return text + self.newline + line

    def _without(self, keys: Keys) -> str:
        text, span = self.text, self._span(keys)
        if span is None:
            raise CannotEdit(f"{shown(keys)} is written in a way that cannot be taken out")
        if any(each.value == span for each in self._statements):
            start, end = line_start(text, span[0]), line_end(text, span[1])
            if len([e for e in self._statements if e.value and self._table_of(e) == ()]) == 1:
                end = line_end(text, end) if not text[end : line_end(text, end)].strip() else end
            return without_lines(text, start, end)
        start, end = span
        blank = line_start(text, start - 1) if start else 0
        if start and not text[blank:start].strip():  # the empty line that sets it off
            start = blank
        return without_lines(text, start, end)

    def _table(self, keys: Keys, value: dict[str, Any]) -> str:
        lines = [f"[{'.'.join(keys)}]", *(f"{key} = {_scalar(each)}" for key, each in value.items())]
        return self.newline.join([*lines, ""])

    def _table_of(self, statement: _Statement) -> Keys:
        return next(
            (
                each.keys
                for each in reversed(self._statements)
                if not each.value and each.start < statement.start
            ),
            (),
        )

    def _split(self) -> list[_Statement]:
        """The statements of a text that is known to be valid."""
        text, at, found = self.text, 0, list[_Statement]()
        table: Keys = ()
        while at < len(text):
            end = line_end(text, at)
            if head := _HEADER.match(text[at:end].removesuffix("\n")):
                table = _keys(head[2])
                found.append(_Statement(table, at, end))
            elif name := _KEY.match(text, at, end):
                stop = self._end_of_value(name.end())
                end = line_end(text, stop)
                found.append(_Statement((*table, *_keys(name[1])), at, end, (name.end(), stop)))
            at = end
        return found

    def _end_of_value(self, at: int) -> int:
        text, depth, last = self.text, 0, at
        while at < len(text):
            char = text[at]
            if char in "\"'" and (string := _STRINGS.match(text, at)):
                at = last = string.end()
                continue
            if char == "#":
                at = text.find("\n", at) if "\n" in text[at:] else len(text)
                continue
            if char == "\n" and depth == 0:
                break
            depth += (char in "[{") - (char in "]}")
            at += 1
            if not char.isspace():
                last = at
        return last


def _keys(written: str) -> Keys:
    """The names in a dotted key."""
    value: Any = tomllib.loads(f"{written.strip()} = 0")
    keys: list[str] = []
    while isinstance(value, dict):
        ((key, value),) = value.items()
        keys.append(key)
    return tuple(keys)


def _scalar(value: Any) -> str:
    # JSON's strings are TOML's, but for the delete character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
