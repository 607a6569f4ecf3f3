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
    """One step, and where the program goes on: so many steps from here, both ways of a FORK."""

    op: Op
    text: str = ""  # the class of ONE as `re` writes it, the token, or the group
    test: Callable[[str], object] = bool
    next: int = 1
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

    @property
    def is_one_token(self) -> bool:
        """Whether it matches a single token, and nothing around it but white space."""
        return len(self.tokens) == 1 and all(_is_space(step) for step in self.steps if step.op is Op.ONE)

    def written(self, groups: Mapping[str, str]) -> str | None:
        """The shortest text that it matches with these groups, None if no single text is."""
        return _written(self.node, groups)


def compile_pattern(node: Node, *, tokens: bool = True) -> Pattern:
    """The program of what `parse` or `literals` has read.

    `tokens`: whether the tags in it are markers, whose places the source knows. If there are none, the
    longest text in it is one.
    """
    tags = TAG if tokens else re.compile("(?!)")
    texts = [text.strip() for text in _literals(node)]
    if tokens and not any(map(TAG.search, texts)) and (longest := max(texts, key=len, default="")):
        tags = re.compile(re.escape(longest))
    steps = [*_steps(node, tags), Step(Op.MATCH)]
    steps = [
        step._replace(next=place + step.next, other=place + step.other) for place, step in enumerate(steps)
    ]
    reached, beyond = (_reached(steps, edges=True, spaces=spaces) for spaces in (False, True))
    spaced = any(map(_is_space, reached)) and not any(step.op is Op.MATCH for step in beyond)
    if spaced:
        reached = [step for step in beyond if not _is_space(step)]
    first = {step.text for step in reached if step.op is Op.ONE}
    first |= {re.escape(step.text[0]) for step in reached if step.op is Op.TOKEN}
    return Pattern(
        node,
        tuple(steps),
        tuple(dict.fromkeys(step.text for step in steps if step.op is Op.TOKEN)),
        "|".join(sorted(first)) or "(?!)",
        spaced,
        not any(step.op is Op.ONE for step in reached),
    )


def _steps(node: Node, tags: re.Pattern[str]) -> list[Step]:
    """The program of `node`, from its first step to behind its last. What matches `tags` is a token."""
    match node:
        case Literal(text):
            pieces = re.split(f"({tags.pattern})", text)
            return [
                step for number, piece in enumerate(pieces) for step in _text(piece, token=number % 2 == 1)
            ]
        case OneOf(expression):
            return [Step(Op.ONE, expression, re.compile(expression).match)]
        case Row(items):
            return [step for item in items for step in _steps(item, tags)]
        case Choice(items):
            # `(?:^|<think>)` means that the marker may be missing, not that it may be text.
            *others, steps = (_steps(item, tags) for item in sorted(items, key=may_be_empty))
            for first in reversed(others):
                behind = len(steps) + 1
                steps = [_fork(1, len(first) + 2), *first, _fork(behind, behind), *steps]
            return steps
        case Repeat(item, optional, many, lazy):
            body = _steps(item, tags)
            size = len(body)
            if not optional:
                return [*body, _fork(-size, 1, lazy=lazy)]
            if not many:
                return [_fork(1, size + 1, lazy=lazy), *body]
            return [_fork(1, size + 2, lazy=lazy), *body, _fork(-size - 1, -size - 1)]
        case Group(name, item):
            return [Step(Op.SAVE, name), *_steps(item, tags), Step(Op.SAVE, name)]
    return [Step(Op.BEGIN if node is Edge.BEGIN else Op.END)]


def _text(text: str, *, token: bool) -> list[Step]:
    if token:
        return [Step(Op.TOKEN, text), *(Step(Op.REST) for _ in text[1:])]
    return [Step(Op.ONE, re.escape(char), char.__eq__) for char in text]


def _fork(first: int, second: int, *, lazy: bool = False) -> Step:
    return Step(Op.FORK, next=second if lazy else first, other=first if lazy else second)


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
