"""Strings between special tokens: what stands there is the value, byte for byte, without escapes.

Gemma and Kimi K3 write strings so. A string streams as it arrives, until a token of its block stands in it:
that is data if the string is closed behind it, and shows otherwise that the string never was. Until then what
follows waits, so that the calls behind an unclosed string can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from json.encoder import encode_basestring as quote_json
from typing import NamedTuple

from ..engine.faults import Fault
from ..engine.writer import CallWriter
from ..events import Reason
from .strings import whole_characters

FIRST = "<"
"""With which every token of these formats begins."""

Closing = Callable[[str, bool], Generator[None, None, int | None]]
"""Takes a token that comes next, and whether tokens stood in the string before.

Says how long the end of the string is that begins there: 0 if the token is data, None if it shows that the
string was never closed.
"""


class Unclosed(NamedTuple):
    """Where a string that is never closed ends: before `brackets` and `marker`, if its text passes `fits`."""

    brackets: str
    marker: str
    fits: Callable[[str], bool]


class Verbatim:
    """One string, from behind what opens it to behind what closes it. Its quotes are not written."""

    def __init__(
        self,
        writer: CallWriter,
        tokens: tuple[str, ...],
        closing: Closing,
        unclosed: Unclosed | None = None,
    ) -> None:
        """`writer`: whose JSON text the string is part of. `tokens`: those that may stand in it or end it.
        `unclosed`: where it may end all the same, None if it must be closed.
        """
        self._writer = writer
        self._source = writer.source
        self._tokens = tokens
        self._closing = closing
        self._parts: list[str] = []
        self._high = ""  # a high surrogate waiting for its other half
        self._held: int | None = None  # where the JSON text waits that follows the first token
        self._held_from = 0
        self._unclosed = unclosed
        self._tail = ""  # brackets that may stand behind the string, not in it
        self._ending = ("", "", 0)  # the first token, the tail before it, the parts before that

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
            elif not source.ended:
                yield
            elif self._ends_unclosed():
                break
            else:
                raise self._abandon(Reason.TRUNCATED)
        rest = "\ufffd" * len(self._high) + self._tail
        self._high = self._tail = ""
        self._write(rest)
        if self._held is not None:
            self._writer.settle(self._held)
        return "".join(self._parts)

    def _take(self, text: str) -> None:
        """Add text, read up to the current position, but for brackets at its end."""
        text = self._tail + text
        most = 0 if self._unclosed is None or self._held is not None else len(self._unclosed.brackets)
        end = text[-most:] if most else ""
        self._tail = end[len(end.rstrip(")]}")) :]
        text, self._high = whole_characters(self._high + text[: len(text) - len(self._tail)])
        self._write(text)

    def _write(self, text: str) -> None:
        if text:
            self._parts.append(text)
            waiting = len(self._high) + len(self._tail)
            self._writer.write(quote_json(text)[1:-1], self._source.offset - waiting)

    def _closed(self) -> Generator[None, None, bool]:
        """Read what begins with the character at hand: the end of the string, or data."""
        source = self._source
        token = yield from source.marker(self._tokens)
        if token:
            length = yield from self._closing(token, self._held is not None)
            if length:
                source.pos += length
                return True
            first = self._held is None
            if first:
                self._ending = (token, "" if self._high else self._tail, len(self._parts))
            if length is None or source.is_special(source.pos):
                if self._ends_unclosed():
                    return True
                raise self._abandon(Reason.UNCLOSED_STRING)
            if first:
                self._held = self._writer.hold()
                self._held_from = source.offset
        data = token or FIRST
        source.pos += len(data)
        self._take(data)
        return False

    def _ends_unclosed(self) -> bool:
        """Whether the string, which is not closed, ends in front of the brackets before its first token.

        Then that is where reading goes on.
        """
        marker, brackets, count = self._ending
        if self._unclosed is None or (brackets, marker) != self._unclosed[:2]:
            return False
        if not self._unclosed.fits("".join(self._parts[:count])):
            return False
        start = self._source.offset
        if self._held is not None:
            start = self._held_from
            self._writer.settle(self._held, "")
            self._held = None
        del self._parts[count:]
        self._high = self._tail = ""
        self._source.rewind(start - len(brackets))
        self._writer.repaired = True
        return True

    def _abandon(self, reason: Reason) -> Fault:
        """Give the string up, back at the first token in it if there was one."""
        if self._held is not None:
            self._source.rewind(self._held_from)
            reason = Reason.UNCLOSED_STRING
        return Fault(reason, balanced=False)
