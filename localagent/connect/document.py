"""A configuration file as its text, in which single values are set and removed.

Libraries that write a whole file anew do not give back the bytes of what they removed: a blank line more, a
quote less. So each format only finds where a value stands, the text is cut there, and the result is read
by the format's own parser: if that finds anything but the change that was meant, the change is refused.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

from localagent.errors import UsageError
from localagent.wording import quoted

Keys = tuple[str, ...]
"""Where a value stands: the names of the tables or objects that lead to it, and its own."""


class CannotEdit(UsageError):
    """The file is broken, or is written in a way that is not understood well enough to change it."""


class Document(ABC):
    """One file. `text` is what it says now, `value` what that means."""

    kind: str

    def __init__(self, text: str) -> None:
        """Raise CannotEdit if the text is broken."""
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.value: dict[str, Any] = {}
        self._read()

    @abstractmethod
    def parse(self) -> Any:
        """What the text means: None if it is empty. Raises ValueError."""

    @abstractmethod
    def raw(self, keys: Keys) -> str | None:
        """A value as it is written; None if there is none."""

    @abstractmethod
    def _with(self, keys: Keys, value: Any, raw: str | None) -> str:
        """The text with this value; `raw`: how it is written, if that is known."""

    @abstractmethod
    def _without(self, keys: Keys) -> str:
        """The text without this value."""

    def get(self, keys: Keys) -> Any:
        """A value; None if there is none."""
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def depth(self, keys: Keys) -> int:
        """How many of the tables that lead to a value are there."""
        return next((n for n in range(len(keys) - 1) if self.get(keys[: n + 1]) is None), len(keys) - 1)

    def set(self, keys: Keys, value: Any) -> None:
        """Set a value. Raises CannotEdit."""
        expected = copy.deepcopy(self.value)
        inside = expected
        for key in keys[:-1]:
            if inside.get(key) is None:
                inside[key] = {}
            inside = inside[key]
            if not isinstance(inside, dict):
                raise CannotEdit(f"{shown(keys)} cannot be set: {key} holds something else")
        inside[keys[-1]] = value
        self._change(self._with(keys, value, None), expected, keys)

    def restore(self, keys: Keys, raw: str) -> None:
        """Write a value as `raw` gave it. Raises CannotEdit."""
        self._change(self._with(keys, None, raw), None, keys)

    def remove(self, keys: Keys) -> None:
        """Remove a value that is there. Raises CannotEdit."""
        expected = copy.deepcopy(self.value)
        inside = expected
        for key in keys[:-1]:
            inside = inside[key]
        del inside[keys[-1]]
        self._change(self._without(keys), expected, keys)

    def _change(self, text: str, expected: Any, keys: Keys) -> None:
        before, self.text = self.text, text
        try:
            self._read()
        except CannotEdit as error:
            self.text = before
            raise CannotEdit(f"{shown(keys)} cannot be changed safely: {error}") from None
        if expected is not None and _bare(self.value) != _bare(expected):
            self.text = before
            self._read()
            raise CannotEdit(f"{shown(keys)} cannot be changed without changing something else")

    def _read(self) -> None:
        try:
            value = self.parse()
        except (ValueError, RecursionError) as error:
            raise CannotEdit(f"not valid {self.kind}: {error}") from None
        if value is not None and not isinstance(value, dict):
            raise CannotEdit(f"not the {self.kind} of a configuration: it holds no names")
        self.value = value or {}


def _bare(value: Any) -> Any:
    """The value without empty tables at its top, which some formats cannot write."""
    return {key: each for key, each in value.items() if each != {}}


def shown(keys: Keys) -> str:
    """Keys in a message."""
    return ".".join(quoted(key) for key in keys)


def line_start(text: str, at: int) -> int:
    """Where the line of a position begins."""
    return text.rfind("\n", 0, at) + 1


def line_end(text: str, at: int) -> int:
    """Where the next line begins."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def position(text: str, at: int) -> str:
    """A position for a message."""
    return f"line {text.count(chr(10), 0, at) + 1}"


def without_lines(text: str, start: int, end: int) -> str:
    """The text without whole lines. The last line of a file without an end takes the one before it along."""
    if end == len(text) and not text.endswith("\n") and start:
        start -= 2 if text[:start].endswith("\r\n") else 1
    return text[:start] + text[end:]
