"""YAML: names at the top, and lists whose entries have a name. `("models", "x")` is the entry named x."""

from __future__ import annotations

import json
import re
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, Span, line_end, line_start
from localagent.distribution import install_command
from localagent.errors import ServerMissing


class Yaml(Document):
    """A YAML file whose top is a block mapping."""

    kind = "YAML"

    def parse(self) -> Any:
        """As `Document.parse`. A list of named entries is a mapping by their names."""
        try:
            from ruamel.yaml import YAML
            from ruamel.yaml.error import YAMLError
        except ImportError as error:
            raise ServerMissing(f"YAML files need more: {install_command('server')} [{error}]") from error
        try:
            self._root = YAML(typ="rt", pure=True).compose(self.text)
            value = YAML(typ="safe", pure=True).load(self.text)
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            raise ValueError(where + (getattr(error, "problem", None) or "not understood")) from None
        if not isinstance(value, dict):
            return value
        return {key: _by_name(inner) for key, inner in value.items()}

    def _node(self, name: str) -> tuple[Any, Any] | None:
        pairs = getattr(self._root, "value", ())
        return next(((key, value) for key, value in pairs if key.value == name), None)

    def _span(self, keys: Keys) -> Span | None:
        """The whole lines of an entry, or of a name with its value."""
        if (pair := self._node(keys[0])) is None:
            return None
        if len(keys) == 1:
            return line_start(self.text, pair[0].start_mark.index), self._end(pair[1])
        for entry in self._entries(keys[0]):
            names = [value.value for key, value in entry.value if key.value == "name"]
            if names == [keys[1]] and not entry.flow_style:
                return line_start(self.text, entry.start_mark.index), self._end(entry)
        return None

    def _written(self, keys: Keys, value: Any, start: int) -> str:
        return self._lines(keys, value, re.match(r"[ \t]*", self.text[start:])[0])  # type: ignore[index]

    def _with(self, keys: Keys, value: Any) -> str:
        text, lines = self.text, self._lines(keys, value, "  ")
        if (pair := self._node(keys[0])) is None:
            return self._with_lines(
                len(text), lines if len(keys) == 1 else f"{keys[0]}:{self.newline}{lines}"
            )
        key, sequence = pair
        if entries := self._entries(keys[0]):
            if sequence.flow_style:
                raise CannotEdit(f"the list {keys[0]} is written in brackets: write one entry a line")
            indent = " " * sequence.start_mark.column
            return self._with_lines(self._end(entries[-1]), self._lines(keys, value, indent))
        if text[sequence.start_mark.index : sequence.end_mark.index].strip() not in ("", "[]"):
            raise CannotEdit(f"{keys[0]} holds something else than a list")
        start, end = key.end_mark.index + 1, line_end(text, key.end_mark.index)
        comment = text[start:end].strip().removeprefix("[]").strip()
        head = text[:start] + (f" {comment}" if comment else "") + self.newline
        return head + (lines + text[end:] if text[:end].endswith("\n") else lines.removesuffix(self.newline))

    def _without(self, keys: Keys, span: Span) -> str:
        text, pair = self._without_lines(*span), self._node(keys[0])
        assert pair is not None
        if len(keys) == 2 and len(self._entries(keys[0])) == 1:
            colon = pair[0].end_mark.index + 1
            text = f"{text[:colon]} []{text[colon:]}"
        return text

    def _lines(self, keys: Keys, value: Any, indent: str) -> str:
        if len(keys) == 1:
            return f"{keys[0]}: {_scalar(value)}{self.newline}"
        lines = [f"{key}: {_scalar(inner)}" for key, inner in value.items()]
        return f"{indent}- " + f"{self.newline}{indent}  ".join(lines) + self.newline

    def _entries(self, name: str) -> list[Any]:
        """The nodes of a list whose entries have names."""
        pair = self._node(name)
        named = pair is not None and pair[1].id == "sequence" and isinstance(self.get((name,)), dict)
        return pair[1].value if pair and named else []

    def _end(self, node: Any) -> int:
        """Where the lines of a node end: the parser's mark comes only after what follows it."""
        while not getattr(node, "flow_style", False) and isinstance(node.value, list) and node.value:
            last = node.value[-1]
            node = last[1] if isinstance(last, tuple) else last
        end = node.end_mark.index
        while end > node.start_mark.index and self.text[end - 1] in "\r\n":  # of a block of text
            end -= 1
        return line_end(self.text, end)


def _by_name(value: Any) -> Any:
    """A list of named entries by their names; anything else as it is."""
    if isinstance(value, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str | int | float) for entry in value
    ):
        return {entry["name"]: entry for entry in value}
    return value


def _scalar(value: Any) -> str:
    """A value on one line. JSON is YAML, and quotes keep a name such as `no` a text."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z](?:[\w ./()-]*[\w/)])?(?::[\w./-]+)*", value)
        and not re.fullmatch(r"(?i)y|n|yes|no|on|off|true|false|null", value)
    ):
        return value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")
