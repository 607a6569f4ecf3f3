"""Outputs that grow, and what reading them costs, counted in steps rather than seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from types import BuiltinMethodType
from typing import Any

import parsers.engine.stream
from parsers import DIALECTS, StreamParser
from parsers.engine.source import Source
from tests.parsers.outputs import CALLING, Call, Tools, samples, with_spaces

Grow = Callable[[int], str]
"""An output of about so many characters, or so many levels."""

LOOKING = frozenset(
    {"strip", "lstrip", "rstrip", "find", "rfind", "index", "count", "replace", "split", "isspace"}
)
"""Methods of a string that may look at all of it."""


def steps(dialect: str, raw: str, tools: Tools | None) -> int:
    """What reading `raw` in pieces costs: repeatable, unlike seconds.

    Function calls, Python's and built-in ones; the characters that string methods may look at; and those that
    the window copies when it grows or that are handed out of what it has kept.
    """
    count = 0

    def profile(_frame: object, kind: str, called: Any) -> None:
        nonlocal count
        if kind == "call":
            count += 1
        elif kind == "c_call":
            count += 1
            if isinstance(called, BuiltinMethodType) and called.__name__ in LOOKING:
                count += len(called.__self__) if isinstance(called.__self__, str) else 0

    class Counting(Source):
        """A source that counts the characters it copies."""

        __slots__ = ()

        def feed(self, piece: str, special: bool | None) -> None:
            nonlocal count
            count += len(self.text) - self.pos
            super().feed(piece, special)

        def since(self, offset: int) -> str:
            nonlocal count
            text = super().since(offset)
            count += len(text) // 8  # one copy, and mostly one for each call
            return text

        def rewind(self, offset: int) -> None:
            nonlocal count
            count += max(0, self.base - offset)
            super().rewind(offset)

    parsers.engine.stream.Source = Counting  # type: ignore[misc]
    try:
        parser = StreamParser(DIALECTS[dialect], tools)
    finally:
        parsers.engine.stream.Source = Source  # type: ignore[misc]
    gc.disable()  # what it finalizes now and then would be counted
    sys.setprofile(profile)
    try:
        for at in range(0, len(raw), 8):
            parser.feed(raw[at : at + 8])
        parser.close()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def costs_grow_linearly(dialect: str, raws: Iterable[str], tools: Tools | None) -> bool:
    """Whether what makes each of three outputs longer than the one before costs about the same per character."""
    sizes = [(steps(dialect, raw, tools), len(raw)) for raw in raws]
    one, other = ((b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(sizes))
    return other < 1.4 * one + 0.2  # twice as much, if it were the square; where pieces are cut makes a third


def repeating(make: Callable[[int], str]) -> tuple[str, str, str]:
    """What stands before, at and behind the place where the texts that `make` writes grow, one unit at a time."""
    first, second, third = make(3), make(4), make(5)
    length = len(second) - len(first)
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    head, unit, tail = first[:at], second[at : at + length], first[at:]
    assert head + unit + tail == second
    assert head + unit * 2 + tail == third, "this text does not grow evenly"
    return head, unit, tail


def around(dialect: str, value: Any, placeholder: str) -> tuple[str, str]:
    """A call whose argument is `value`, before and behind the placeholder in it."""
    head, found, tail = DIALECTS[dialect].render([("f", {"a": value})]).partition(placeholder)
    assert found
    return head, tail


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 424242
    for _ in range(depth):
        value = wrap(value)
    return value


def pumped_calls(dialect: str, kind: str, closed: bool = True) -> Grow:
    """A call with an argument nested as deep as wanted, deeper than a renderer would write it."""
    wrap: Callable[[Any], Any] = (lambda value: [value]) if kind == "lists" else (lambda value: {"k": value})

    def side(which: int) -> tuple[str, str, str]:
        return repeating(lambda depth: around(dialect, nested(depth, wrap), "424242")[which])

    (before, opened, inner), (outer, closing, behind) = side(0), side(1)

    def grow(depth: int) -> str:
        text = before + opened * (depth - 3) + inner + "424242"
        return text + outer + closing * (depth - 3) + behind if closed else text

    return grow


def by_size(grow: Grow) -> Grow:
    """As `grow`, which takes levels, for so many characters."""
    return lambda size: grow(3 + size // (len(grow(5)) - len(grow(4))))


def filled(head: str, unit: str, tail: str = "") -> Grow:
    """`unit` over and over, more often with each size that a test asks for, however long it is."""
    return lambda size: head + unit * (size // min(len(unit), 256) + 1) + tail


def families(dialect: str) -> dict[str, Grow]:
    """Outputs of a dialect that grow in the ways that make look-ahead and rewinding expensive."""
    table = DIALECTS[dialect]
    markers = table.markers
    found = {
        "text": filled("", "hello < world [x] {y}. "),
        "cut markers": filled("", " ".join(marker[:-1] for marker in markers)),
        "markers": filled("", " ".join(markers)),
        "markers without anything between": filled("", "".join(reversed(markers))),
        **{f"{marker!r} alone": filled("", marker) for marker in with_spaces(dialect)},
        "white space": filled("", " "),
        "line ends": filled("", "\n"),
    }
    if table.reasoning is not None:
        opened = table.reasoning.open
        found |= {
            "reasoning": filled(opened, "hm <x> "),
            "reasoning with cut ends": filled(opened, table.reasoning.close[:-1]),
            "reasoning with drafts": filled(
                opened, "".join(f"{opener} hm " for opener in table.openers) or "hm"
            ),
        }
    for opener in table.openers:
        found |= {
            f"{opener} and white space": filled(opener, " \n"),
            f"{opener} and words": filled(opener, "word, "),
            f"{opener} and tags": filled(opener, "<x>"),
            f"{opener} and brackets": filled(opener, "[{("),
            f"{opener} and quotes": filled(opener, "'\"x"),
        }
    return found | families_of_calls(dialect)


def families_of_calls(dialect: str) -> dict[str, Grow]:
    """Those of them that consist of calls."""
    if dialect not in CALLING:
        return {}
    table = DIALECTS[dialect]
    head, tail = around(dialect, "placeholder", "placeholder")
    number, behind = around(dialect, 424242, "424242")
    one: list[Call] = [("f", {"a": "x"})]
    items = repeating(lambda n: table.render([("f", {"a": [[1, {"k": None}]] * n})]))
    found = {
        "a string": filled(head, "hello wor ", tail),
        "a string of cut markers": filled(head, "".join(marker[:-1] for marker in table.markers), tail),
        "a string of quotes": filled(head, "'\"` ", tail),
        "a string of backslashes": filled(head, "\\", tail),
        "a string of white space": filled(head, " \n", tail),
        "a string of line ends": filled(head, "\n", tail),
        "a string of brackets": filled(head, "]})", tail),
        "a string that begins like a list": filled(head, "[1, ", tail),
        "a string that begins with white space": filled(head + " [", "1, ", tail),
        "a string of what ends it": filled(head, tail),
        "a string of its own call": filled(head, head),
        "a number": filled(number, "7", behind),
        "bare words": filled(number, "word ", behind),
        "items": filled(*items),
        "items that end in nothing": filled(items[0], items[1]),
        "open lists": by_size(pumped_calls(dialect, "lists", False)),
        "open mappings": by_size(pumped_calls(dialect, "mappings", False)),
        "arguments": lambda size: table.render([("f", {f"a{i}": i for i in range(size // 10)})]),
        "blocks": filled("", table.render(one)),
        "blocks with text between": filled("", f"{table.render(one)} and "),
    }
    if _writes_several(dialect):
        found["calls"] = lambda size: table.render(one * (size // len(table.render(one)) + 1))
    for place in (1, 2, 3):
        for count, sample in enumerate(samples(dialect)):
            found[f"notation {count} cut at {place}/4"] = filled("", sample[: len(sample) * place // 4])
    return found


def _writes_several(dialect: str) -> bool:
    try:
        return bool(DIALECTS[dialect].render([("f", {"a": "x"})] * 2))
    except ValueError:
        return False
