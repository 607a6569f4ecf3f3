"""JSON as editors keep their settings: with comments, and commas before a closing bracket."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, line_start, position, shown

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN = re.compile(r"[-+.\w]+")
_DEEPEST = 100


@dataclass(slots=True)
class _Member:
    """A name and its value in an object; `comma`: where the comma after it stands."""

    key: str
    start: int
    value: _Node
    comma: int | None = None


@dataclass(slots=True)
class _Node:
    """A value: where it is written, and what is in it."""

    start: int
    end: int = 0
    value: Any = None
    members: list[_Member] | None = None
    items: list[_Node] = field(default_factory=list)

    def member(self, key: str) -> _Member | None:
        """The member that counts: the last of that name."""
        return next((each for each in reversed(self.members or ()) if each.key == key), None)


class Jsonc(Document):
    """A JSON file, with or without comments."""

    kind = "JSON"

    def parse(self) -> Any:
        """As `Document.parse`."""
        at = self._skip(0)
        if at == len(self.text):
            self._root = None
            return None
        self._root = self._value(at, 0)
        if (rest := self._skip(self._root.end)) < len(self.text):
            raise ValueError(f"{position(self.text, rest)}: something follows its end")
        return self._root.value

    def raw(self, keys: Keys) -> str | None:
        """As `Document.raw`."""
        found = self._find(keys)
        return None if found is None else self.text[found.value.start : found.value.end]

    def _find(self, keys: Keys) -> _Member | None:
        node, found = self._root, None
        for key in keys:
            found = None if node is None else node.member(key)
            node = None if found is None else found.value
        return found

    def _with(self, keys: Keys, value: Any, raw: str | None) -> str:
        text = self.text
        if (found := self._find(keys)) is not None:
            new = self._write(value, _indent(text, found.start)) if raw is None else raw
            return text[: found.value.start] + new + text[found.value.end :]
        there = self.depth(keys)
        for key in reversed(keys[there + 1 :]):
            value = {key: value}
        if (node := self._root) is None:
            body = self._write({keys[0]: value}, "")
            return text + body + self.newline
        for key in keys[:there]:
            member = node.member(key)
            assert member is not None
            node = member.value
        if node.members is None:
            raise CannotEdit(f"{shown(keys)} cannot be set: {keys[there - 1]} holds something else")
        return self._insert(node, keys[there], value)

    def _insert(self, node: _Node, key: str, value: Any) -> str:
        text, outer = self.text, _indent(self.text, node.start)
        close = node.end - 1
        at = self._last_word(node)
        if not node.members:
            inner = outer + self._unit()
            new = f"{self.newline}{inner}{json.dumps(key)}: {self._write(value, inner)}"
            bare = not text[at:close].strip() and "\n" not in text[at:close]
            return text[:at] + new + (f"{self.newline}{outer}" if bare else text[at:close]) + text[close:]
        last = node.members[-1]
        if "\n" not in text[node.start : node.end]:
            new = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        else:
            inner = _indent(text, node.members[0].start)
            new = f"{self.newline}{inner}{json.dumps(key)}: {self._write(value, inner)}"
        if last.comma is not None:
            return text[:at] + new + "," + text[at:]
        return text[: last.value.end] + "," + text[last.value.end : at] + new + text[at:]

    def _without(self, keys: Keys) -> str:
        text, found = self.text, self._find(keys)
        assert found is not None
        node = self._root if len(keys) == 1 else self._find(keys[:-1]).value  # type: ignore[union-attr]
        assert node is not None and node.members is not None
        place = node.members.index(found)
        start = len(text[: found.start].rstrip())  # comments before it are not ours
        if found.comma is not None:
            return text[:start] + text[found.comma + 1 :]
        end = found.value.end
        if place:
            comma = node.members[place - 1].comma
            assert comma is not None
            return text[:comma] + text[comma + 1 : start] + text[end:]
        if not (text[node.start + 1 : start] + text[end : node.end - 1]).strip():
            return text[: node.start + 1] + text[node.end - 1 :]
        return text[:start] + text[end:]

    def _last_word(self, node: _Node) -> int:
        """Where the last thing inside an object ends, be it a comment."""
        return node.start + 1 + len(self.text[node.start + 1 : node.end - 1].rstrip())

    def _write(self, value: Any, indent: str) -> str:
        """A value whose first line stands at `indent`."""
        written = json.dumps(value, indent=self._unit(), ensure_ascii=False)
        return written.replace("\n", self.newline + indent)

    def _unit(self) -> str:
        """What one level is indented by."""
        found = re.search(r"\n([ \t]+)\"", self.text)
        return found[1] if found else "  "

    def _skip(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        assert found is not None
        return found.end()

    def _value(self, at: int, depth: int) -> _Node:
        text = self.text
        if depth > _DEEPEST:
            raise ValueError(f"{position(text, at)}: nested too deeply")
        opening = text[at : at + 1]
        if opening == "{":
            return self._object(_Node(at), depth)
        if opening == "[":
            return self._array(_Node(at), depth)
        found = (_STRING if opening == '"' else _PLAIN).match(text, at)
        if found is None:
            raise ValueError(f"{position(text, at)}: a value is missing")
        return _Node(at, found.end(), self._scalar(found))

    def _scalar(self, found: re.Match[str]) -> Any:
        try:
            return json.loads(found[0])
        except ValueError:
            raise ValueError(f"{position(self.text, found.start())}: {found[0]:.40} is no value") from None

    def _object(self, node: _Node, depth: int) -> _Node:
        node.members, node.value = [], {}
        at = self._skip(node.start + 1)
        while self.text[at : at + 1] != "}":
            if node.members and node.members[-1].comma is None:
                raise ValueError(f"{position(self.text, at)}: a comma or }} is missing")
            if (found := _STRING.match(self.text, at)) is None:
                raise ValueError(f"{position(self.text, at)}: a name in quotes or }} is missing")
            colon = self._skip(found.end())
            if self.text[colon : colon + 1] != ":":
                raise ValueError(f"{position(self.text, colon)}: a colon is missing")
            member = _Member(self._scalar(found), at, self._value(self._skip(colon + 1), depth + 1))
            node.members.append(member)
            node.value[member.key] = member.value.value
            at, member.comma = self._comma(member.value.end)
        node.end = at + 1
        return node

    def _array(self, node: _Node, depth: int) -> _Node:
        at, comma = self._skip(node.start + 1), 0
        while self.text[at : at + 1] != "]":
            if comma is None:
                raise ValueError(f"{position(self.text, at)}: a comma or ] is missing")
            node.items.append(self._value(at, depth + 1))
            at, comma = self._comma(node.items[-1].end)  # type: ignore[assignment]
        node.value = [each.value for each in node.items]
        node.end = at + 1
        return node

    def _comma(self, at: int) -> tuple[int, int | None]:
        """Where to read on, and where the comma is, if there is one."""
        at = self._skip(at)
        return (self._skip(at + 1), at) if self.text[at : at + 1] == "," else (at, None)


def _indent(text: str, at: int) -> str:
    """The white space that the line of a position begins with."""
    line = text[line_start(text, at) : at]
    return line[: len(line) - len(line.lstrip())]
