"""A configuration file as its text, in which single values are set and removed.

Libraries that write a whole file anew do not give back what they read: ruamel.yaml indents all lists alike
and joins the lines of quoted text, tomlkit moves tables and takes the comments below a table out with it. So
each format only finds where a value is written, the text is cut there, and the result is read by the format's
own parser: if anything but that value has changed, the change is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from localagent.errors import UsageError
from localagent.wording import quoted

Keys = tuple[str, ...]
"""Where a value stands: the names of the tables or objects that lead to it, and its own."""
Span = tuple[int, int]
"""Where something begins and ends in the text."""


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
    def _span(self, keys: Keys) -> Span | None:
        """Where a value is written; None if there is none that could be replaced."""

    @abstractmethod
    def _written(self, keys: Keys, value: Any, start: int) -> str:
        """How a value is written instead of one that begins at `start`."""

    @abstractmethod
    def _with(self, keys: Keys, value: Any) -> str:
        """The text with a value that is not there yet."""

    @abstractmethod
    def _without(self, keys: Keys, span: Span) -> str:
        """The text without the value that is written there."""

    def raw(self, keys: Keys) -> str | None:
        """A value as it is written; None if there is none."""
        span = self._span(keys)
        return None if span is None else self.text[slice(*span)]

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
        for length in range(1, len(keys)):
            if not isinstance(self.get(keys[:length]), dict | None):
                raise CannotEdit(f"{shown(keys)} cannot be set: {keys[length - 1]} holds something else")
        if (span := self._span(keys)) is None:
            text = self._with(keys, value)
        else:
            text = self.text[: span[0]] + self._written(keys, value, span[0]) + self.text[span[1] :]
        self._change(text, keys, value)

    def restore(self, keys: Keys, raw: str) -> None:
        """Write a value that is there as `raw` gave it. Raises CannotEdit."""
        start, end = self._required(keys)
        self._change(self.text[:start] + raw + self.text[end:], keys)

    def remove(self, keys: Keys) -> None:
        """Remove a value that is there. Raises CannotEdit."""
        self._change(self._without(keys, self._required(keys)), keys, None)

    def _required(self, keys: Keys) -> Span:
        if (span := self._span(keys)) is None:
            raise CannotEdit(f"{shown(keys)} is written in a way that cannot be taken out")
        return span

    def _with_lines(self, position: int, lines: str) -> str:
        """The text with whole lines more. The last line of a file without an end keeps that."""
        before, after = self.text[:position], self.text[position:]
        if not before or before.endswith("\n"):
            return before + lines + after
        return before + self.newline + lines.removesuffix(self.newline) + after

    def _without_lines(self, start: int, end: int) -> str:
        """The text without whole lines. A last line that has no end takes the one of the line before."""
        before, after = self.text[:start], self.text[end:]
        return before + after if after or self.text.endswith("\n") else before.removesuffix(self.newline)

    def _change(self, text: str, keys: Keys, wanted: Any = ...) -> None:
        """Replace the text, unless it means something else than this value, or anything else anew."""
        before, value = self.text, self.value
        self.text = text
        try:
            self._read()
            if _but(self.value, keys) != _but(value, keys) or wanted not in (..., self.get(keys)):
                raise CannotEdit("something else would change")
        except (CannotEdit, RecursionError) as error:  # a list of YAML may hold itself
            self.text = before
            self._read()
            raise CannotEdit(f"{shown(keys)} cannot be changed safely: {error}") from None

    def _read(self) -> None:
        try:
            value = self.parse()
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            raise CannotEdit(f"not valid {self.kind}: {why}") from None
        if value is not None and not isinstance(value, dict):
            raise CannotEdit(f"not the {self.kind} of a configuration: it holds no names")
        self.value = value or {}


def _but(value: Any, keys: Keys) -> dict[str, Any]:
    """Everything but one value. A table that leads to it and is not there counts as an empty one."""
    inside = value if isinstance(value, dict) else {}
    return {**inside, keys[0]: _but(inside.get(keys[0]), keys[1:]) if keys[1:] else None}


def shown(keys: Keys) -> str:
    """Keys in a message."""
    return ".".join(quoted(key) for key in keys)


def line_start(text: str, position: int) -> int:
    """Where the line of a position begins."""
    return text.rfind("\n", 0, position) + 1


def line_end(text: str, position: int) -> int:
    """Where the next line begins."""
    return text.find("\n", position) + 1 or len(text)
