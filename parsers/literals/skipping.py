"""Passing over a string literal without reading it: to look behind it, or to get away from a fault."""

from __future__ import annotations

import re
from collections.abc import Generator
from enum import Enum, auto
from functools import cache

from ..engine.source import Source
from ..engine.spans import Span

QUOTES = ("'", '"')


@cache
def _body(quote: str, starts: str) -> re.Pattern[str]:
    """A run of text in a literal. `starts`: the characters with which markers begin."""
    return re.compile(f"[^{re.escape(quote + starts)}\\\\]*")


class Passed(Enum):
    """Where passing over a literal ended."""

    CLOSED = auto()
    """Behind its closing quote."""
    CUT = auto()
    """At the marker that ends the block the literal stands in [marker-in-string]."""
    OUTPUT_ENDED = auto()
    """At the end of the output, without a marker on the way."""


def opening_quote(source: Source) -> Generator[None, None, str]:
    """Read the quote that opens a literal: one character, or three of them."""
    quote = yield from source.char()
    if source.text[source.pos + 1 : source.pos + 2] not in ("", quote):
        source.pos += 1
        return quote
    start = source.offset
    for _ in range(2):
        source.pos += 1
        if (yield from source.char()) != quote:
            source.rewind(start + 1)
            return quote
    source.pos += 1
    return quote * 3


def pass_literal(source: Source, span: Span) -> Generator[None, None, Passed]:
    """Pass over the literal whose opening quote comes next, up to the first quote that may close it.

    Markers in it are data, except special tokens, and except that an end marker followed by a start marker
    or by the end of the output shows that the literal was never closed.
    """
    quote = yield from opening_quote(source)
    body, run = _body(quote[0], source.starts), 0
    first_end: int | None = None
    while run < len(quote):
        if not run:
            yield from source.run(body)
        char = yield from source.char()
        marker = (yield from source.marker()) if char and char in source.starts else ""
        special = marker != "" and source.is_special(source.pos)
        if not char or special or (marker == span.open and first_end is not None):
            if first_end is not None:
                source.rewind(first_end)
            return Passed.CUT if special or first_end is not None else Passed.OUTPUT_ENDED
        if first_end is None and (marker == span.close or marker in span.closes):
            first_end = source.offset
        source.pos += 1
        run = run + 1 if char == quote[0] else 0
        if char == "\\" and (yield from source.char()) in ("\\", *QUOTES):
            source.pos += 1
    return Passed.CLOSED
