"""What a regular expression says, as a tree."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

_QUANTIFIER = re.compile(r"([*+?]|\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\})([?+]?)")
_GROUP = re.compile(r"\((?:\?:|\?P<(\w+)>|(?!\?))")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_CODE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_SET_IN_SET = re.compile(r"(?<!\\)\[|--|&&|~~|\|\|")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


ANY = r"[\s\S]"
"""The class of every character."""
SPACE = r"[\s]"
"""The class of white space."""


class InvalidPattern(ValueError):
    """What is wrong with an expression."""


@dataclass(frozen=True, slots=True)
class Literal:
    """This text."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character, which the class matches that `re` reads from `expression`."""

    expression: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several, the earlier ones preferred."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same, so many times (`most` None: any number), as few as possible if `lazy`."""

    item: Node
    least: int
    most: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A part whose text is wanted."""

    name: str
    item: Node


class Edge(Enum):
    """Where the output begins or ends."""

    BEGIN = auto()
    END = auto()


Node = Literal | OneOf | Row | Choice | Repeat | Group | Edge


def literals(texts: tuple[str, ...]) -> Node:
    """One of `texts`; of two that fit, the longer one."""
    # a text comes after those that it is the beginning of, and otherwise where it was
    ordered = sorted(texts, key=lambda text: sum(other.startswith(text) for other in texts))
    return Literal(ordered[0]) if len(ordered) == 1 else Choice(tuple(map(Literal, ordered)))


def parse(expression: str) -> Node:
    """What `expression` says, as `re` reads it with DOTALL. Raises InvalidPattern."""
    found = None
    try:
        with suppress(IndexError):  # `re` says better what is missing
            found = _Parser(expression).choice()
        re.compile(expression, re.DOTALL)
    except re.error as error:
        raise InvalidPattern(f"no regular expression: {error}") from error
    except RecursionError as error:
        raise InvalidPattern("nested too deep") from error
    assert found is not None
    return found


class _Parser:
    """Reads an expression; that it is one is for `re` to say."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0

    def choice(self) -> Node:
        """Alternatives, up to the end or a closing parenthesis."""
        items = [self._row()]
        while self._text.startswith("|", self._at):
            self._at += 1
            items.append(self._row())
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _row(self) -> Node:
        items: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            item = self._item()
            if found := _QUANTIFIER.match(self._text, self._at):
                self._at = found.end()
                item = _repeated(item, found[1], found[2])
            items.append(item)
        return Row(_joined(items))

    def _item(self) -> Node:
        text, start = self._text, self._at
        char = text[start]
        self._at += 1
        match char:
            case "(":
                found = _GROUP.match(text, start)
                if found is None:
                    raise InvalidPattern(f"{text[start : start + 3]!r} cannot be matched as text arrives")
                self._at = found.end()
                item = self.choice()
                self._at += 1
                return Group(found[1], item) if found[1] else item
            case "[":
                found = _CLASS.match(text, start)
                if found is None:
                    raise IndexError
                if _SET_IN_SET.search(found[0], 1):
                    raise InvalidPattern(
                        f"{found[0]!r} is a set in a set for some: write '\\[', '\\-', '\\&'"
                    )
                self._at = found.end()
                return OneOf(found[0])
            case ".":
                return OneOf(ANY)
            case "^":
                return Edge.BEGIN
            case "$":  # before a last newline as well for `re`, but nobody means that
                return Edge.END
            case "\\":
                return self._escape(start)
            case "{":
                raise InvalidPattern("write '{' as '\\{' where it is text")
        return Literal(char)

    def _escape(self, start: int) -> Node:
        text = self._text
        self._at += 1
        char = text[start + 1]
        if char in "wWdDsS":
            return OneOf(f"[\\{char}]")
        if char in "AZ":
            return Edge.BEGIN if char == "A" else Edge.END
        if found := _CODE.match(text, start):
            self._at = found.end()
            return Literal(chr(int(found[0][2:], 16)))
        if char in _CONTROLS:
            return Literal(_CONTROLS[char])
        if char.isalnum():
            raise InvalidPattern(f"'\\{char}' cannot be matched as text arrives")
        return Literal(char)


def _repeated(item: Node, quantifier: str, suffix: str) -> Node:
    if suffix == "+":
        raise InvalidPattern(f"'{quantifier}+' cannot be matched as text arrives")
    least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier, (0, None))
    if quantifier[0] == "{":
        low, comma, high = quantifier[1:-1].partition(",")
        least, most = int(low or 0), int(high) if high else None if comma else int(low)
    if most is None and may_be_empty(item):
        raise InvalidPattern(f"{quantifier!r} repeats what may be empty")
    return Repeat(item, least, most, suffix == "?")


def may_be_empty(node: Node) -> bool:
    """Whether the text that it matches may be empty."""
    match node:
        case Literal(text):
            return not text
        case OneOf():
            return False
        case Row(items):
            return all(map(may_be_empty, items))
        case Choice(items):
            return any(map(may_be_empty, items))
        case Repeat(item, least):
            return least == 0 or may_be_empty(item)
        case Group(_, item):
            return may_be_empty(item)
    return True


def _joined(items: list[Node]) -> tuple[Node, ...]:
    """The items, neighbouring literals made one."""
    found: list[Node] = []
    for item in items:
        if isinstance(item, Literal) and found and isinstance(last := found[-1], Literal):
            found[-1] = Literal(last.text + item.text)
        else:
            found.append(item)
    return tuple(found)
