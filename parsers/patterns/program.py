"""The program of an expression: what is done with one character after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from .expression import (
    SPACE,
    Choice,
    Edge,
    Group,
    Literal,
    Node,
    OneOf,
    Repeat,
    Row,
    may_be_empty,
)

TAG = re.compile(r"<[^<>\s][^<>]*>|\[/?[A-Z_]+\]")
"""What in a literal text looks like a token of its own, such as `<tool_call>`."""

_NEVER = re.compile("(?!)")


class Op(Enum):
    """What a step does."""

    ONE = auto()  # a character that the test takes
    TOKEN = auto()  # the first character of a token, where the source has it
    REST = auto()  # a further character of that token
    FORK = auto()  # go on at two places, the first of them preferred
    SAVE = auto()  # a group begins or ends
    BEGIN = auto()
    END = auto()
    MATCH = auto()


class Step(NamedTuple):
    """One step, and the places in the program at which it goes on."""

    op: Op
    text: str = ""  # the class of ONE as `re` writes it, the token, or the group
    test: Callable[[str], object] = bool
    next: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The program of an expression.

    `tokens` are the markers in it, whose places the source knows. `first` is an expression for `re`, of the
    characters with which a match may begin; if it is `spaced`, of those that come first after any white space
    with which it begins. `begins_with_token`: all of these begin a token.
    """

    node: Node
    steps: tuple[Step, ...]
    tokens: tuple[str, ...]
    first: str
    spaced: bool
    begins_with_token: bool

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of its groups."""
        return tuple(dict.fromkeys(step.text for step in self.steps if step.op is Op.SAVE))

    @property
    def matches_anywhere(self) -> bool:
        """Whether it matches without any text, and not only where the output begins or ends."""
        return any(step.op is Op.MATCH for step in _reached(self.steps, edges=False))

    def written(self, groups: Mapping[str, str]) -> str | None:
        """The shortest text that it matches with these groups, None if no single text is."""
        return _written(self.node, groups)


def compile_pattern(node: Node, *, tokens: bool = True) -> Pattern:
    """The program of what `parse` or `literals` has read.

    `tokens`: whether the tags in it are markers, of which the source says where they stand. If there are
    none, the longest text in it is one.
    """
    writer = _Writer(node, tokens=tokens)
    reached, beyond = (_reached(writer.steps, edges=True, spaces=spaces) for spaces in (False, True))
    spaced = any(map(_is_space, reached)) and not any(step.op is Op.MATCH for step in beyond)
    if spaced:
        reached = [step for step in beyond if not _is_space(step)]
    first = {step.text for step in reached if step.op is Op.ONE}
    first |= {re.escape(step.text[0]) for step in reached if step.op is Op.TOKEN}
    return Pattern(
        node,
        tuple(writer.steps),
        tuple(dict.fromkeys(writer.tokens)),
        "|".join(sorted(first)) or "(?!)",
        spaced,
        not any(step.op is Op.ONE for step in reached),
    )


def _is_space(step: Step) -> bool:
    """Whether the step reads white space and nothing else."""
    return step.op is Op.ONE and (step.text == SPACE or (step.text[:1] == "\\" and step.text[1:].isspace()))


def _reached(steps: Sequence[Step], *, edges: bool, spaces: bool = False) -> list[Step]:
    """The steps that are reached without reading anything, or nothing but white space.

    `edges`: also across the edges of the output.
    """
    seen: set[int] = set()
    places = [0]
    while places:
        place = places.pop()
        if place in seen:
            continue
        seen.add(place)
        step = steps[place]
        if step.op is Op.FORK:
            places += [step.next, step.other]
        elif step.op is Op.SAVE or (edges and step.op in (Op.BEGIN, Op.END)) or (spaces and _is_space(step)):
            places.append(step.next)
    return [steps[place] for place in sorted(seen)]


class _Writer:
    """Writes the program of one expression."""

    def __init__(self, node: Node, *, tokens: bool) -> None:
        self.steps: list[Step] = []
        self.tokens: list[str] = []
        texts = [text.strip() for text in _literals(node)]
        self._tokens = TAG if tokens else _NEVER
        if tokens and not any(map(TAG.search, texts)) and (longest := max(texts, key=len, default="")):
            self._tokens = re.compile(re.escape(longest))
        self._write(node)
        self._add(Op.MATCH)

    def _write(self, node: Node) -> None:
        match node:
            case Literal(text):
                self._text(text)
            case OneOf(expression):
                self._add(Op.ONE, expression, re.compile(expression).match)
            case Row(items):
                for item in items:
                    self._write(item)
            case Choice(items):
                self._choice(items)
            case Repeat(item, optional, many, lazy):
                start = self._add(Op.FORK) if optional else len(self.steps)
                self._write(item)
                fork = start
                if not optional:
                    fork = self._add(Op.FORK)
                elif many:
                    self._fork(self._add(Op.FORK), start, start)
                ways = (start + 1 if optional else start, len(self.steps))
                self._fork(fork, *(reversed(ways) if lazy else ways))
            case Group(name, item):
                self._add(Op.SAVE, name)
                self._write(item)
                self._add(Op.SAVE, name)
            case Edge():
                self._add(Op.BEGIN if node is Edge.BEGIN else Op.END)

    def _choice(self, items: tuple[Node, ...]) -> None:
        ends = []
        # `(?:^|<think>)` means that the marker may be missing, not that it is text where it stands.
        *ordered, last = sorted(items, key=may_be_empty)
        for item in ordered:
            fork = self._add(Op.FORK)
            self._write(item)
            ends.append(self._add(Op.FORK))
            self._fork(fork, fork + 1, len(self.steps))
        self._write(last)
        for end in ends:
            self._fork(end, len(self.steps), len(self.steps))

    def _text(self, text: str) -> None:
        at = 0
        for found in self._tokens.finditer(text):
            self._characters(text[at : found.start()])
            self.tokens.append(found[0])
            self._add(Op.TOKEN, found[0])
            for _ in found[0][1:]:
                self._add(Op.REST)
            at = found.end()
        self._characters(text[at:])

    def _characters(self, text: str) -> None:
        for char in text:
            self._add(Op.ONE, re.escape(char), char.__eq__)

    def _fork(self, place: int, first: int, second: int) -> None:
        self.steps[place] = Step(Op.FORK, next=first, other=second)

    def _add(self, op: Op, text: str = "", test: Callable[[str], object] = bool) -> int:
        self.steps.append(Step(op, text, test, len(self.steps) + 1))
        return len(self.steps) - 1


def _literals(node: Node) -> Iterator[str]:
    match node:
        case Literal(text):
            yield text
        case Row(items) | Choice(items):
            for item in items:
                yield from _literals(item)
        case Repeat(item) | Group(_, item):
            yield from _literals(item)


def _written(node: Node, groups: Mapping[str, str]) -> str | None:
    match node:
        case Literal(text):
            return text
        case Row(items):
            texts = [_written(item, groups) for item in items]
            return None if None in texts else "".join(filter(None, texts))
        case Choice(items):
            return _written(min(items, key=may_be_empty), groups)
        case Repeat(item, optional):
            return "" if optional else _written(item, groups)
        case Group(name, _):
            return groups.get(name)
        case Edge():
            return ""
    return None
