"""JSON as editors keep their settings: with comments, and commas before a closing bracket."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from localagent.connect.document import CannotEdit, Document, Keys, Span, line_start, shown

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]\s*,|,(?=\s*[\]}])', re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    """A name and its value in an object; `comma`: where the comma after it stands."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None


class Jsonc(Document):
    """A JSON file, with or without comments."""

    kind = "JSON"

    def parse(self) -> Any:
        # Blanks instead of what JSON does not have: every position stays.
        self._plain = _COMMENT.sub(
            lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\r\n]", " ", m[0]), self.text
        )
        self._json = _LAST_COMMA.sub(lambda m: " " if m[0] == "," else m[0], self._plain)
        if not self._json.strip():
            return None
        try:
            return json.loads(self._json)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {error.lineno}: {error.msg}") from None

    def _members(self, position: int) -> tuple[list[_Member], int]:
        """What an object holds, and where it is closed."""
        members, position = list[_Member](), self._skip(position + 1)
        while self._plain[position] != "}":
            key, end = _DECODER.raw_decode(self._json, position)
            value = self._skip(self._skip(end) + 1)
            end = _DECODER.raw_decode(self._json, value)[1]
            after = self._skip(end)
            comma = after if self._plain[after] == "," else None
            members.append(_Member(key, position, value, end, comma))
            position = after if comma is None else self._skip(after + 1)
        return members, position

    def _skip(self, position: int) -> int:
        """Where the white space and the comments from there end."""
        blank = _BLANK.match(self._plain, position)
        assert blank is not None
        return blank.end()

    def _find(self, keys: Keys) -> _Member | None:
        position, member = self._skip(0), None
        for key in keys:
            members = self._members(position)[0] if self._plain[position : position + 1] == "{" else []
            member = next(
                (other for other in reversed(members) if other.key == key), None
            )  # the last one counts
            if member is None:
                return None
            position = member.value
        return member

    def _span(self, keys: Keys) -> Span | None:
        member = self._find(keys)
        return None if member is None else (member.value, member.end)

    def _written(self, keys: Keys, value: Any, start: int) -> str:
        return self._lines(value, _indent(self.text, start))

    def _with(self, keys: Keys, value: Any) -> str:
        there = self.depth(keys)
        for key in reversed(keys[there + 1 :]):
            value = {key: value}
        if not self._json.strip():
            return self.text + self._lines({keys[0]: value}, "") + self.newline
        outer = self._find(keys[:there])
        position = self._skip(0) if outer is None else outer.value
        if self._plain[position] != "{":
            raise CannotEdit(f"{shown(keys)} cannot be set: {keys[there - 1]} holds something else")
        return self._insert(position, keys[there], value)

    def _insert(self, start: int, key: str, value: Any) -> str:
        """The text with one member more at the end of the object that begins at `start`."""
        text, outer = self.text, _indent(self.text, start)
        members, close = self._members(start)
        last = len(text[:close].rstrip())  # behind the last thing inside, be it a comment
        if not members:
            inner = outer + self._unit()
            new = f"{self.newline}{inner}{json.dumps(key)}: {self._lines(value, inner)}"
            ending = text[last:close] if "\n" in text[last:close] else self.newline + outer
            return text[:last] + new + ending + text[close:]
        before = members[-1]
        if "\n" not in text[start:close]:
            new = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        else:
            inner = _indent(text, members[0].start)
            new = f"{self.newline}{inner}{json.dumps(key)}: {self._lines(value, inner)}"
        if before.comma is not None:
            return text[:last] + new + "," + text[last:]
        return text[: before.end] + "," + text[before.end : last] + new + text[last:]

    def _without(self, keys: Keys, span: Span) -> str:
        text = self.text
        outer = self._find(keys[:-1])
        opening = self._skip(0) if outer is None else outer.value
        members, close = self._members(opening)
        place = next(n for n, member in enumerate(members) if member.value == span[0])
        start = len(text[: members[place].start].rstrip())  # comments before it are not ours
        if (comma := members[place].comma) is not None:
            return text[:start] + text[comma + 1 :]
        if place:
            comma = members[place - 1].comma
            assert comma is not None
            return text[:comma] + text[comma + 1 : start] + text[span[1] :]
        if not (text[opening + 1 : start] + text[span[1] : close]).strip():
            return text[: opening + 1] + text[close:]
        return text[:start] + text[span[1] :]

    def _lines(self, value: Any, indent: str) -> str:
        """A value whose first line stands at `indent`."""
        written = json.dumps(value, indent=self._unit(), ensure_ascii=False)
        return written.replace("\n", self.newline + indent)

    def _unit(self) -> str:
        """What one level is indented by."""
        first = re.search(r"\n([ \t]+)\"", self.text)
        return first[1] if first else "  "


def _indent(text: str, position: int) -> str:
    """The white space that the line of a position begins with."""
    line = text[line_start(text, position) : position]
    return line[: len(line) - len(line.lstrip())]
