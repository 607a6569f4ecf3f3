"""Whether a quote that does not fit was meant to close its string, since one character behind it is broken.

To read on would make the string swallow the arguments that come next, so its call is refused [torn-string].
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from ..engine.source import Source
from ..engine.writer import NAME
from .skipping import QUOTES
from .strings import PREFIXES

_BETWEEN_CALLS = re.compile(r"[\s,)\]]*")


def is_torn(source: Source, closers: Iterable[str], assigns: tuple[str, ...]) -> Generator[None, None, bool]:
    """Whether what comes next looks like structure in which one character is broken.

    `closers`: what closes the open brackets, from the innermost one on. `assigns`: what assigns an argument.
    Looks ahead to the next quote, or to a name behind that; the caller goes back.
    """
    for closer in closers:
        char = yield from source.space()
        if char != closer:
            # A quote is lost, `["a", b"]`, or a comma, `["a" "b"]`, or that is changed, `["a"x "b"]`.
            source.pos += char not in ("", ",", *QUOTES)
            return char == "," or (yield from source.space()) in QUOTES
        source.pos += 1
    char = yield from source.space()
    if char == ",":
        return (yield from _behind_comma(source, assigns))
    if char == ")":
        return (yield from _behind_call(source, assigns))
    if char in QUOTES:  # a quote is doubled, `a="x"" b="y"`; three in a row are those of a docstring
        source.pos += 1
        return (yield from source.char()) != char
    source.pos += (
        char != "" and not char.isalnum()
    )  # the comma is lost, `a="x" b=1`, or changed, `a="x"; b=1`
    yield from source.space()
    return (yield from _assigned(source, (yield from source.run(NAME)), assigns))


def _behind_comma(source: Source, assigns: tuple[str, ...]) -> Generator[None, None, bool]:
    """Whether the comma that comes next is one between two arguments."""
    source.pos += 1
    if (yield from source.space()) in (",", "\\", *QUOTES):
        return True  # the comma is doubled, `a="x",, b=1`, or a quote is too many, `a="x", "b=1`
    name = yield from source.run(NAME)
    if name and (yield from source.char()) in QUOTES:
        return name not in PREFIXES  # the equals sign is lost: `a="x", unit"y"`
    return (yield from _assigned(source, name, assigns))


def _assigned(source: Source, name: str, assigns: tuple[str, ...]) -> Generator[None, None, bool]:
    """Whether a value is assigned to `name`, which has been read as far as it is one."""
    end = source.offset
    char = yield from source.space()
    if len(name) == 1 and source.offset > end:  # it stands in place of the comma: `a="x"n b=1`
        yield from source.run(NAME)
        char = yield from source.space()
    elif char not in ("", *assigns, *QUOTES) and source.offset == end:
        source.pos += 1  # a character of the name is changed, `a="x", n}me=1`, or the comma: `a="x", b1, c=2`
        yield from source.space()
        rest = yield from source.run(NAME)
        if name and not rest and (yield from source.char()) in QUOTES:
            return True  # it is the equals sign that is changed: `a="x", unit>"y"`
        char = yield from source.space()
    if char not in assigns:
        return False
    source.pos += 1
    return (yield from source.char()) not in assigns  # `==` is a comparison


def _behind_call(source: Source, assigns: tuple[str, ...]) -> Generator[None, None, bool]:
    """Whether a call or argument comes next: `f(a="x")k g(b=1)`, `f(a="x"), n}me(b=1)`, `f(a="x") b=1)`."""
    yield from source.run(_BETWEEN_CALLS)
    source.pos += (yield from source.char()) in QUOTES  # in place of the blank or of a letter
    name = yield from source.run(NAME)
    char = yield from source.char()
    if char not in ("", "(", *assigns, *QUOTES) and (len(name) == 1 or not char.isspace()):
        source.pos += 1
        name = yield from source.run(NAME)
    return name != "" and (yield from source.space()) in ("(", *assigns)
