"""Quoted strings as models write them, read while they stream.

The body is decoded as Python decodes it until an inner quote shows that the model did not escape; from
there on it is verbatim. Whether a quote closes the string is decided by what follows it [closing-quote]
[inner-quote] (`bash(command='sed -n '360,450p' f.py')` is ordinary output), whether a marker in it
is text by what comes later [marker-in-string].
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Generator
from functools import cache
from json.encoder import encode_basestring as quote_json

from ..engine.faults import Fault
from ..engine.source import Reading, Source
from ..engine.spans import Span
from ..events import Reason

PREFIXES = frozenset({"r", "u", "f", "b", "rb", "br", "rf", "fr"})

_ESCAPES = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b",
    "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_HEX = {"x": 2, "u": 4, "U": 8}
# The group "all" says that more input cannot make the match longer. The longest name has 88 characters.
_OCTAL = re.compile(r"(?P<all>[0-7]{3})|[0-7]{0,2}")
_NUMERIC = {
    kind: re.compile(rf"(?P<all>[0-9a-fA-F]{{{n}}})|[0-9a-fA-F]{{0,{n - 1}}}") for kind, n in _HEX.items()
}
_NUMERIC["N"] = re.compile(r"(?P<all>\{[A-Za-z0-9 -]{1,88}\})|(?:\{[A-Za-z0-9 -]{0,88})?")
_BEFORE_OPENING = frozenset(("", *" \t\r\n([{=:,+'\""))
"""Characters before a quote that opens, not closes: `x.join(", ")`, `{"k":"v"}`, three quotes in a row; the
empty string stands for the beginning."""
_SURROGATE = re.compile("[\ud800-\udfff]")

Fits = Callable[[bool], Generator[None, None, bool]]
"""Whether what follows `pos` fits after a closing quote; the argument: inner quotes have been seen."""
FitsAtOnce = Callable[[], bool | None]
"""Whether what is in sight shows without any doubt that what follows fits; None while more may show it."""
Torn = Callable[[], Generator[None, None, bool]]
"""Whether what follows `pos` would fit but for one broken character."""
Write = Callable[[str, int], None]
"""Takes a piece of JSON text and the offset up to which it accounts for the output."""


class String:
    """One string literal, from behind its opening quote to behind its closing one."""

    # Most strings are short and plain: what those do not change is not set for each of them.
    repaired = False
    _reopened = False  # an end marker and a start marker have been seen: the next quote must close
    _held: list[str] | None = None  # text behind an end marker that may yet end the block
    _held_from = 0
    _high = ""  # a high surrogate waiting for its other half
    _tail = ""  # the last two characters read, as they were written
    _inner = False  # an inner quote has been seen
    _pair = False  # inside a pair of inner quotes

    def __init__(
        self,
        source: Source,
        span: Span,
        opening: tuple[int, str, str],
        fits: tuple[FitsAtOnce, Fits],
        torn: Torn,
        write: Write,
        *,
        json: bool,
        json_only: bool = False,
    ) -> None:
        """`opening`: where the literal starts, its prefix in lower case, its quote, one character or three.
        `span`: the markers of the block it stands in. `json`: JSON's escapes. `json_only`: a string that is
        valid JSON is that string, whatever markers it holds.
        """
        start, prefix, quote = opening
        self._source = source
        self._span = span
        self._start = start
        self._quote = quote
        self._prefix = prefix
        self._fits_at_once, self._fits = fits
        self._torn = torn
        self._write = write
        self._json = json
        self._json_only = json_only
        self._parts: list[str] = []
        self._verbatim = "r" in prefix

    def read(self) -> Generator[None, None, str]:
        """Read to the closing quote; returns the value. Raises Fault."""
        source = self._source
        stops = _stops(self._quote[0] + ("{}" if "f" in self._prefix else ""), source.starts)
        while True:
            text, start = source.text, source.pos
            hit = stops.search(text, start)
            if hit is None or hit.start() > start:
                end = len(text) if hit is None else hit.start()
                source.pos = end
                self._take(text[start:end])
                if hit is None:
                    if source.ended:
                        raise self._abandon(Reason.TRUNCATED)
                    yield
                continue
            char = text[start]
            if char == self._quote[0]:
                if (yield from self._closes()):
                    break
            elif char == "\\":
                yield from self._escape()
            elif char in source.starts:
                yield from self._marker()
            else:
                yield from self._brace(char)
        self._release()
        return "".join(self._parts)

    # -- collecting -----------------------------------------------------------------------------------

    def _take(self, value: str) -> None:
        """Add `value`, read up to the current position."""
        self._tail = (self._tail + value)[-2:]
        if self._high or not value.isascii():
            value, self._high = whole_characters(self._high + value)
        if self._held is not None:
            self._held.append(value)
        elif value:
            self._parts.append(value)
            self._write(quote_json(value)[1:-1], self._source.offset - len(self._high))

    def _release(self) -> None:
        """Write what was held back and an unpaired surrogate."""
        if self._high:
            self._high = ""
            self._take("\ufffd")
        if self._held is not None:
            held, self._held = "".join(self._held), None
            self._take(held)

    def _abandon(self, reason: Reason) -> Fault:
        """Give the string up, back at the first end marker in it if there was one."""
        if self._held is not None:
            self._source.rewind(self._held_from)
            if reason is Reason.TRUNCATED:
                reason = Reason.UNCLOSED_STRING
        return Fault(reason, balanced=False)

    # -- what can stop the text -----------------------------------------------------------------------

    def _closes(self) -> Generator[None, None, bool]:
        """Whether the quote at hand closes the string; otherwise it is taken as an inner quote."""
        source = self._source
        quote = self._quote[0]
        start = source.offset
        source.pos += 1
        for _ in self._quote[1:]:
            if (yield from source.char()) != quote:
                source.rewind(start + 1)
                self._take(quote)  # one or two quotes inside a triple-quoted string
                return False
            source.pos += 1
        while not self._inner and (at_once := self._fits_at_once()) is not False:
            if at_once:
                return True
            yield
        after = source.offset
        fits = yield from self._fits(self._inner)
        output_ended = source.ended and source.pos == len(source.text)
        source.rewind(after)
        if fits:
            if self._pair:
                raise self._abandon(Reason.TRUNCATED if output_ended else Reason.AMBIGUOUS_QUOTE)
            return True
        if self._reopened:
            raise self._abandon(Reason.UNCLOSED_STRING)
        before = self._tail[-1:]
        follower = yield from source.char()
        apostrophe = quote == "'" and before.isalnum() and follower.isalnum()
        # The letter alone, as in `["F",, "G"]`, is a string of its own.
        lone_prefix = before.lower() in PREFIXES and len(self._tail) > 1 and not self._tail[:-1].isalnum()
        # A quote that opens or ends a pair of inner quotes is text, whatever follows it.
        text = apostrophe or lone_prefix or self._pair or before in _BEFORE_OPENING
        if not text and (yield from self._torn()):
            raise self._abandon(Reason.AMBIGUOUS_QUOTE)
        source.rewind(start + 1)
        if not apostrophe:
            self._pair = not self._pair and (not before.isalnum() or lone_prefix)
        self._inner = self._verbatim = self.repaired = True
        self._take(quote)
        return False

    def _marker(self) -> Reading:
        """A marker in the text: data, unless it is a special token or the string turns out not to close."""
        source = self._source
        marker = yield from source.marker()
        if marker and source.is_special(source.pos):
            raise self._abandon(Reason.UNCLOSED_STRING)
        if marker == self._span.open and self._held is not None:
            self._reopened = self._json_only and not self._inner
            if not self._reopened:
                raise self._abandon(Reason.UNCLOSED_STRING)
        if self._held is None and (marker == self._span.close or marker in self._span.closes):
            self._held = []
            self._held_from = source.offset
        written = marker or source.text[source.pos]
        source.pos += len(written)
        self._take(written)

    def _brace(self, char: str) -> Reading:
        """In an f-string: a doubled brace is one, a single one opens what would have to be evaluated."""
        source = self._source
        source.pos += 1
        if (yield from source.char()) != char:
            if self._inner:
                raise self._abandon(Reason.NOT_A_LITERAL)
            source.rewind(self._start)
            raise Fault(Reason.NOT_A_LITERAL)
        source.pos += 1
        self._take(char)

    def _escape(self) -> Reading:
        source = self._source
        start = source.offset
        source.pos += 1
        char = yield from source.char()
        if not char:
            raise self._abandon(Reason.TRUNCATED)
        if self._verbatim:
            # also in verbatim text a backslash keeps the quote behind it from closing the string
            width = 1 if char in "\\'\"" else 0
            source.pos += width
            self._take("\\" + char[:width])
            return
        if char in _ESCAPES:
            source.pos += 1
            self._take(_ESCAPES[char])
            if char in "'\"":
                self._tail = "\\"  # three quotes in a row are not escaped
        elif char == "/" and self._json:
            source.pos += 1
            self._take("/")
        elif char in _HEX or (char == "N" and not self._json) or char in "01234567":
            yield from self._numeric_escape(char, start)
        else:
            self._take("\\")

    def _numeric_escape(self, kind: str, start: int) -> Reading:
        """`\\xhh`, `\\uXXXX`, `\\UXXXXXXXX`, `\\ooo` or `\\N{name}`.

        An invalid number ends all decoding; an invalid name is an unknown escape [escape].
        """
        source = self._source
        source.pos += kind in _HEX or kind == "N"
        digits = yield from self._ahead(_NUMERIC.get(kind, _OCTAL))
        value = _character(kind, digits)
        if value:
            source.pos += len(digits)
            self._take(value)
            return
        source.rewind(start + 1)
        if kind != "N":
            self._verbatim = self.repaired = True
        self._take("\\")

    def _ahead(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """What `pattern` matches at the current position, without reading it."""
        source = self._source
        while True:
            match = pattern.match(source.text, source.pos)
            assert match is not None  # every pattern here matches the empty string
            if match.end() < len(source.text) or match.lastgroup == "all" or source.ended:
                return match[0]
            yield


def whole_characters(text: str) -> tuple[str, str]:
    """Text that JSON can hold, and the high surrogate at its end whose other half may follow.

    Joins the halves of pairs and replaces the lone ones.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text, ""
    high = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    text = text[: len(text) - len(high)]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), high


@cache
def _stops(special: str, starts: str) -> re.Pattern[str]:
    """The characters that stop the text. `special`: of the literal at hand; `starts`: of markers."""
    return re.compile(f"[{re.escape(special + starts)}\\\\]")


def _character(kind: str, digits: str) -> str:
    """The character of a numeric or named escape, "" if it is invalid."""
    if kind in _HEX:
        code = int(digits, 16) if len(digits) == _HEX[kind] else -1
        return chr(code) if 0 <= code <= 0x10FFFF else ""
    if kind != "N":
        return chr(int(digits, 8))
    try:
        value = unicodedata.lookup(digits[1:-1])
    except KeyError:
        return ""
    return value if digits[-1:] == "}" and len(value) == 1 else ""  # named sequences are no escapes
