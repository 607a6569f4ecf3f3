"""Regular expressions as trees."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

_QUANTIFIER = re.compile(r"([*+?])([?+]?)")
_GROUP = re.compile(r"\((?:\?:|\?P<(\w+)>|(?!\?))")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_SET_IN_SET = re.compile(r"(?<!\\)\[|--|&&|~~|\|\|")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
_LONGEST = 2_000
"""How long an expression may be: one character of the text costs at most so much work."""

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
    """The same, not at all if `optional`, again and again if `many`, as few times as possible if `lazy`."""

    item: Node
    optional: bool
    many: bool
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
    """The tree of `expression`, as `re` reads it with DOTALL. Raises InvalidPattern."""
    if len(expression) > _LONGEST:
        raise InvalidPattern("too long")
    tree = None
    try:
        with suppress(IndexError):  # `re` has the better message for what is missing
            tree = _Parser(expression).choice()
        re.compile(expression, re.DOTALL)
    except re.error as error:
        raise InvalidPattern(f"no regular expression: {error}") from error
    except RecursionError as error:
        raise InvalidPattern("nested too deep") from error
    assert tree is not None
    return tree


class _Parser:
    """Reads an expression; that it is one is for `re` to say."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._place = 0

    def choice(self) -> Node:
        """Alternatives, up to the end or a closing parenthesis."""
        items = [self._row()]
        while self._text.startswith("|", self._place):
            self._place += 1
            items.append(self._row())
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _row(self) -> Node:
        items: list[Node] = []
        while self._place < len(self._text) and self._text[self._place] not in "|)":
            item = self._item()
            if quantifier := _QUANTIFIER.match(self._text, self._place):
                self._place = quantifier.end()
                items.append(_repeated(item, quantifier[1], quantifier[2]))
            elif isinstance(item, Literal) and items and isinstance(last := items[-1], Literal):
                items[-1] = Literal(last.text + item.text)
            else:
                items.append(item)
        return Row(tuple(items))

    def _item(self) -> Node:
        text, start = self._text, self._place
        char = text[start]
        self._place += 1
        match char:
            case "(":
                return self._group(start)
            case "[":
                return self._class(start)
            case ".":
                return OneOf(ANY)
            case "^":
                return Edge.BEGIN
            case "$":  # before a last newline as well for `re`, but nobody means that
                return Edge.END
            case "\\":
                self._place += 1
                return _escaped(text[start + 1])
            case "{":
                raise InvalidPattern("write '{' as '\\{' where it is text: counts are not read")
        return Literal(char)

    def _group(self, start: int) -> Node:
        opening = _GROUP.match(self._text, start)
        if opening is None:
            raise InvalidPattern(f"{self._text[start : start + 3]!r} cannot be matched as text arrives")
        self._place = opening.end()
        item = self.choice()
        self._place += 1
        return Group(opening[1], item) if opening[1] else item

    def _class(self, start: int) -> Node:
        whole = _CLASS.match(self._text, start)
        if whole is None:
            raise IndexError
        if _SET_IN_SET.search(whole[0], 1):
            raise InvalidPattern(f"{whole[0]!r} is a set in a set for some: write '\\[', '\\-', '\\&'")
        self._place = whole.end()
        return OneOf(whole[0])


def _escaped(char: str) -> Node:
    """What a backslash and `char` mean."""
    if char in "wWdDsS":
        return OneOf(f"[\\{char}]")
    if char in _CONTROLS:
        return Literal(_CONTROLS[char])
    if char.isalnum():
        raise InvalidPattern(f"'\\{char}' is not read: there are \\w \\d \\s \\W \\D \\S \\n \\t \\r")
    return Literal(char)


def _repeated(item: Node, quantifier: str, suffix: str) -> Node:
    if suffix == "+":
        raise InvalidPattern(f"'{quantifier}+' cannot be matched as text arrives")
    if quantifier != "?" and may_be_empty(item):
        raise InvalidPattern(f"{quantifier!r} repeats what may be empty")
    return Repeat(item, optional=quantifier != "+", many=quantifier != "?", lazy=suffix == "?")


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
        case Repeat(item, optional):
            return optional or may_be_empty(item)
        case Group(_, item):
            return may_be_empty(item)
    return True
