"""Strings between special tokens: what stands there is the value, byte for byte, without escapes.

Gemma and Kimi K3 write strings so. A string streams as it arrives, until a token of its block stands in it:
that is data if the string is closed behind it, and shows otherwise that the string never was. Until then what
follows waits, so that the calls behind an unclosed string can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from json.encoder import encode_basestring as quote_json

from parsers.engine.faults import Fault
from parsers.engine.writer import CallWriter
from parsers.events import Reason
from parsers.literals.strings import whole_characters

FIRST = "<"
"""With which every token of these formats begins."""

Closing = Callable[[str, bool], Generator[None, None, int | None]]
"""Takes a token that comes next, and whether tokens stood in the string before.

Says how long the end of the string is that begins there: 0 if the token is data, None if it shows that the
string was never closed.
"""


class Verbatim:
    """One string, from behind what opens it to behind what closes it. Its quotes are not written."""

    def __init__(self, writer: CallWriter, tokens: tuple[str, ...], closing: Closing) -> None:
        """`writer`: whose JSON text the string is part of. `tokens`: those that may stand in it or end it."""
        self._writer = writer
        self._source = writer.source
        self._tokens = tokens
        self._closing = closing
        self._parts: list[str] = []
        self._high = ""  # a high surrogate waiting for its other half
        self._held: int | None = None  # where the JSON text waits that follows the first token
        self._held_from = 0

    def read(self) -> Generator[None, None, str]:
        """Read to behind the end; returns the value. Raises Fault."""
        source = self._source
        while True:
            text, start = source.text, source.pos
            end = text.find(FIRST, start)
            source.pos = len(text) if end < 0 else end
            self._take(text[start : source.pos])
            if end >= 0:
                if (yield from self._closed()):
                    break
            elif source.ended:
                raise self._abandon(Reason.TRUNCATED)
            else:
                yield
        if self._high:
            self._high = ""
            self._take("\ufffd")
        if self._held is not None:
            self._writer.settle(self._held)
        return "".join(self._parts)

    def _take(self, text: str) -> None:
        """Add text, read up to the current position."""
        text, self._high = whole_characters(self._high + text)
        if text:
            self._parts.append(text)
            self._writer.write(quote_json(text)[1:-1], self._source.offset - len(self._high))

    def _closed(self) -> Generator[None, None, bool]:
        """Read what begins with the character at hand: the end of the string, or data."""
        source = self._source
        token = yield from source.marker(self._tokens)
        if token:
            length = yield from self._closing(token, self._held is not None)
            if length:
                source.pos += length
                return True
            if length is None or source.is_special(source.pos):
                raise self._abandon(Reason.UNCLOSED_STRING)
            if self._held is None:
                self._held = self._writer.hold()
                self._held_from = source.offset
        data = token or FIRST
        source.pos += len(data)
        self._take(data)
        return False

    def _abandon(self, reason: Reason) -> Fault:
        """Give the string up, back at the first token in it if there was one."""
        if self._held is not None:
            self._source.rewind(self._held_from)
            reason = Reason.UNCLOSED_STRING
        return Fault(reason, balanced=False)
