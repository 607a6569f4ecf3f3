"""TOML: names before the first table, and whole tables."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

from localagent.connect.document import (
    CannotEdit,
    Document,
    Keys,
    Span,
    line_end,
    line_start,
    shown,
    with_lines,
    without_lines,
)
from localagent.distribution import install_command
from localagent.errors import ServerMissing

_Body = list[tuple[Any, Any]]
"""What tomlkit keeps of a table, in order: names with their items, and None with white space or a comment."""


class Toml(Document):
    """A TOML file in which values at the root and tables are set."""

    kind = "TOML"

    def parse(self) -> Any:
        """As `Document.parse`."""
        value = tomllib.loads(self.text)
        try:
            import tomlkit
            from tomlkit.exceptions import TOMLKitError
        except ImportError as error:
            raise ServerMissing(f"TOML files need more: {install_command('server')} [{error}]") from error
        try:
            self._tree = tomlkit.parse(self.text)
        except TOMLKitError as error:
            raise ValueError(str(error)) from None
        if self._tree.as_string() != self.text:
            raise CannotEdit("a way to write TOML that cannot be kept as it is")
        return value

    def _span(self, keys: Keys) -> Span | None:
        """Where a value at the root stands, or a table with its head and what is below it."""
        from tomlkit.items import AoT, Table

        places = list(_places(self._tree.body, keys))
        if len(places) > 1:
            raise CannotEdit(f"{shown(keys)} stands in several places")
        if not places:
            return None
        body, index = places[0]
        key, item = body[index]
        start, end = self._item(body, index)
        if isinstance(item, Table) and not key.is_dotted():
            return start, end - _trailing(item)
        if len(keys) > 1 or isinstance(item, Table | AoT):
            return None
        start += len(item.trivia.indent + key.as_string() + key.sep)
        return start, start + len(item.as_string())

    def _item(self, body: _Body, index: int) -> Span:
        """Where an item stands, which tomlkit does not say: the text is written with a mark in its place."""
        from tomlkit.items import Whitespace

        kept, body[index] = body[index], (None, Whitespace("\0\n"))
        before, _, after = self._tree.as_string().partition("\0\n")
        body[index] = kept
        return len(before), len(self.text) - len(after)

    def _written(self, keys: Keys, value: Any, start: int) -> str:
        if not isinstance(value, dict):
            return _scalar(value)
        lines = [f"[{'.'.join(keys)}]", *(f"{key} = {_scalar(each)}" for key, each in value.items())]
        return self.newline.join([*lines, ""])

    def _with(self, keys: Keys, value: Any) -> str:
        text, new = self.text, self._written(keys, value, 0)
        if isinstance(value, dict):
            if text and not text.endswith("\n"):
                new = self.newline + new
            return with_lines(
                text, len(text), self.newline + new if text.endswith("\n") else new, self.newline
            )
        line = f"{keys[0]} = {new}{self.newline}"
        if root := self._root():
            return with_lines(text, self._item(self._tree.body, root[-1])[1], line, self.newline)
        return line + (self.newline + text if text else "")  # comments there may belong to the first table

    def _root(self) -> list[int]:
        """Which items of the file are names with values."""
        from tomlkit.items import AoT, Table

        return [
            index
            for index, (key, item) in enumerate(self._tree.body)
            if key is not None and (key.is_dotted() or not isinstance(item, Table | AoT))
        ]

    def _without(self, keys: Keys, span: Span) -> str:
        text, (start, end) = self.text, span
        if isinstance(self.get(keys), dict):
            blank = line_start(text, start - 1) if start else 0
            if not text[blank:start].strip():  # the empty line that sets it off
                start = blank
        else:
            start, end = line_start(text, start), line_end(text, end)
            if len(self._root()) == 1 and not text[end : line_end(text, end)].strip():
                end = line_end(text, end)
        return without_lines(text, start, end)


def _places(body: _Body, keys: Keys) -> Iterator[tuple[_Body, int]]:
    """Where a value is: in which table, and the how manieth of it."""
    from tomlkit.items import Table

    for index, (key, item) in enumerate(body):
        if key is None or key.key != keys[0]:
            continue
        if len(keys) == 1:
            yield body, index
        elif isinstance(item, Table):
            yield from _places(item.value.body, keys[1:])


def _trailing(item: Any) -> int:
    """The length of the comments and empty lines at the end of a table: they may belong to the next one."""
    from tomlkit.items import AoT, Table

    if isinstance(item, AoT):
        item = item.body[-1]
    length = 0
    for key, inner in reversed(item.value.body if isinstance(item, Table) else []):
        if key is not None:
            return length + _trailing(inner)
        length += len(inner.as_string())
    return length


def _scalar(value: Any) -> str:
    # JSON's strings are TOML's, but for the delete character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
