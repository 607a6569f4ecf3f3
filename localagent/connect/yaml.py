"""YAML: names at the top, and lists whose entries have a name. `("models", "x")` is the entry named x."""

from __future__ import annotations

import json
import re
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, line_end, line_start, shown, without_lines
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
        return {key: _by_name(each) for key, each in value.items()}

    def raw(self, keys: Keys) -> str | None:
        """As `Document.raw`: the lines of an entry, or of a name with its value."""
        span = self._span(keys)
        return None if span is None else self.text[span[0] : span[1]]

    def _node(self, name: str) -> tuple[Any, Any] | None:
        pairs = getattr(self._root, "value", ())
        return next(((key, value) for key, value in pairs if key.value == name), None)

    def _span(self, keys: Keys) -> tuple[int, int] | None:
        """The whole lines of something."""
        if (pair := self._node(keys[0])) is None:
            return None
        if len(keys) == 1:
            key, value = pair
            return line_start(self.text, key.start_mark.index), self._end(value)
        for entry in self._entries(pair[1]):
            if entry.flow_style:
                continue
            if any((key.value, value.value) == ("name", keys[1]) for key, value in entry.value):
                return line_start(self.text, entry.start_mark.index), self._end(entry)
        return None

    def _with(self, keys: Keys, value: Any, raw: str | None) -> str:
        text = self.text
        if (span := self._span(keys)) is not None:
            dash = re.match(r"[ \t]*", text[span[0] :])
            new = raw if raw is not None else self._lines(keys, value, dash[0] if dash else "")
            return text[: span[0]] + new + text[span[1] :]
        if (pair := self._node(keys[0])) is None:
            head = "" if len(keys) == 1 else f"{keys[0]}:{self.newline}"
            return self._after(len(text), head + (raw or self._lines(keys, value, "  ")))
        sequence = pair[1]
        if entries := self._entries(sequence):
            if sequence.flow_style:
                raise CannotEdit(f"the list {keys[0]} is written in brackets: write one entry a line")
            indent = " " * sequence.start_mark.column
            return self._after(self._end(entries[-1]), raw or self._lines(keys, value, indent))
        if text[sequence.start_mark.index : sequence.end_mark.index].strip() not in ("", "[]"):
            raise CannotEdit(f"{keys[0]} holds something else than a list")
        start, end = pair[0].end_mark.index + 1, line_end(text, pair[0].end_mark.index)
        ended = text[:end].endswith("\n")
        comment = text[start:end].strip().removeprefix("[]").strip()
        head = text[:start] + (f" {comment}" if comment else "") + self.newline
        lines = self._lines(keys, value, "  ")
        return head + (lines + text[end:] if ended else lines.removesuffix(self.newline))

    def _without(self, keys: Keys) -> str:
        span, pair = self._span(keys), self._node(keys[0])
        if span is None or pair is None:
            raise CannotEdit(f"{shown(keys)} is written in a way that cannot be taken out")
        text = without_lines(self.text, *span)
        if len(keys) == 2 and len(self._entries(pair[1])) == 1:
            at = pair[0].end_mark.index + 1
            text = f"{text[:at]} []{text[at:]}"
        return text

    def _lines(self, keys: Keys, value: Any, indent: str) -> str:
        if len(keys) == 1:
            return f"{keys[0]}: {_scalar(value)}{self.newline}"
        lines = [f"{key}: {_scalar(each)}" for key, each in value.items()]
        marks = [f"{indent}- ", *([f"{indent}  "] * (len(lines) - 1))]
        return "".join(mark + line + self.newline for mark, line in zip(marks, lines, strict=True))

    def _after(self, at: int, lines: str) -> str:
        text = self.text
        if at == 0 or text[:at].endswith("\n"):
            return text[:at] + lines + text[at:]
        return text[:at] + self.newline + lines.removesuffix(self.newline) + text[at:]

    def _entries(self, sequence: Any) -> list[Any]:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        if not isinstance(sequence, SequenceNode):
            return []
        if not all(isinstance(each, MappingNode) for each in sequence.value):
            raise CannotEdit("the entries of the list have no names")
        return list(sequence.value)

    def _end(self, node: Any) -> int:
        """Where the lines of a node end: the parser's mark comes only after what follows it."""
        while not getattr(node, "flow_style", False) and isinstance(node.value, list) and node.value:
            last = node.value[-1]
            node = last[1] if isinstance(last, tuple) else last
        at = node.end_mark.index
        while at > node.start_mark.index and self.text[at - 1] in "\r\n":  # of a block of text
            at -= 1
        return line_end(self.text, at)


def _by_name(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: each for each in value}
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
