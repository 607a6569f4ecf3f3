"""A section of named calls, each between markers of its own."""

from __future__ import annotations

from collections.abc import Generator

from ...dialect import Context
from ...engine.source import Reading
from ...engine.spans import Span
from ...events import Reason
from .block import NamedBlock


class Section(NamedBlock):
    """A section of calls, each between markers of its own. Some models leave out the section's marker.

    `separator`: the marker between a name and its arguments.
    """

    def __init__(self, context: Context, span: Span, separator: str, closes: tuple[str, ...]) -> None:
        super().__init__(context, span, (span.close, *closes), context.dialect.openers)
        self.behind_name = separator
        self._section_closes = closes
        self._marked = False  # the section has a marker
        self._closed = True  # the last call has its closing marker
        self._empty = True

    def read(self) -> Reading:
        """Read the section and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        if not (yield from self.at_marker((self.span.open,))):
            self._marked = True
            source.pos += len((yield from source.marker()))
        end = source.offset
        while True:
            yield from source.space()
            start = source.offset
            self.opened = yield from self.passed(self.span.open)
            if not self.opened and (yield from self.passed(*self._section_closes)):
                self.emit.markup(source.offset)
                break
            if not self.opened and (yield from self._over(end)):
                break
            self.emit.markup(source.offset)
            yield from self.call(start)
            end = yield from self._call_end()
            self._empty = False
        source.keep_from(None)

    def _call_end(self) -> Generator[None, None, int]:
        """Read what closes a call; returns where the call ends if that is missing."""
        source = self.source
        end = source.offset
        ended = not (yield from source.space())
        self._closed = yield from self.passed(self.span.close)
        if self._closed or ended:
            self.emit.markup(source.offset)
            return source.offset
        source.rewind(end)
        return end

    def _over(self, end: int) -> Generator[None, None, bool]:
        """Whether the section ends here without its marker; if not, its first call has no opening marker.

        `end`: behind the last call.
        """
        source, emit = self.source, self.emit
        ends = not (yield from source.char()) or (yield from self.at_marker(self.ends))
        if any(map(source.cut_marker, self._terminators)):
            source.pos = len(source.text)
            ends = True
        if ends or (yield from self.at_terminator()):
            if self._empty:
                reason = Reason.TRUNCATED if ends else Reason.UNCLOSED
                emit.malformed(source.since(self.start), reason, source.offset)
            elif source.offset > emit.end:
                emit.markup(source.offset)
        elif self._empty:
            return False
        else:
            source.rewind(end)
            if self._marked or not self._closed:
                emit.malformed("", Reason.MISSING_END, end)
        return True
