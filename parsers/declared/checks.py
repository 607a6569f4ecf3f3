"""The checks that every key of a `response_template` passes. What fails is one line of InvalidDialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ..dialect import InvalidDialect
from ..patterns.expression import InvalidPattern, Node, parse


class Checks:
    """Checks the values of one file. `where` names it."""

    def __init__(self, where: str) -> None:
        self._where = where

    def table(self, key: str, value: object, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
        """An object, with no other keys than the `known` ones."""
        if not isinstance(value, dict):
            self.refuse(key, "missing" if value is None else "must be an object")
        for name in value:
            if known is not None and name not in known:
                there = f"there are {', '.join(known)}" if known else "there are none"
                self.refuse(f"{key}.{name}", f"no such key: {there}")
        return value

    def flag(self, key: str, table: Mapping[str, Any], name: str, *, default: bool) -> bool:
        """True or false."""
        value = table.get(name, default)
        if not isinstance(value, bool):
            self.refuse(f"{key}.{name}", "must be true or false")
        return value

    def text(self, key: str, value: object) -> str:
        """A text with something in it."""
        if not isinstance(value, str) or not value:
            self.refuse(key, "missing" if value is None else "must be a text, and not empty")
        return value

    def expression(self, key: str, value: object) -> Node:
        """The tree of a regular expression."""
        try:
            return parse(self.text(key, value))
        except InvalidPattern as error:
            self.refuse(key, str(error))

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise InvalidDialect: what is wrong with `key`, and what to do."""
        raise InvalidDialect(f"{self._where}: {key}: {reason}")
