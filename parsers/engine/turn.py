"""A turn as most formats have it: content, stretches of reasoning and blocks of calls, told apart by markers.

Everything between the markers is content, byte exact, except the white space that the dialect's table says is
part of a marker. What a block holds is the business of its grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType

from parsers.dialect import Context, Inside, Opening
from parsers.engine.source import Reading, Source
from parsers.engine.spans import Span
from parsers.events import Reason

_CALLS = "calls without a marker"
_BLANKS = re.compile(r"[ \t\r\n]{0,16}")
"""The white space over which `Stops.begins` looks ahead."""


class Stops:
    """Markers that end a stretch, each with the white space that may stand in front of it as part of it.

    `follows`: what must follow a marker, as `Dialect.interrupts` has it; without that, the white space in
    front of it is text.
    """

    def __init__(
        self,
        markers: Mapping[str, tuple[str, ...]],
        opening: Opening | None = None,
        follows: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.markers = markers
        self._opening = opening
        self._follows = follows
        spaces = {space for owned in markers.values() for space in owned}
        self._behind = {
            space: [marker for marker, owned in markers.items() if space in owned]
            for space in sorted(spaces, key=len, reverse=True)
        }
        firsts = {text[0] for text in (*markers, *spaces)} | set(opening.first if opening else "")
        self.first = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]" if firsts else "(?!)")

    def at(self, source: Source, index: int) -> tuple[str, int] | None:
        """The marker at window index `index`, behind its white space, and where in the window it begins.

        "" if there is none, None while more input may make one.
        """
        text = source.text
        for space, markers in self._behind.items():
            behind = index + len(space)
            if not text.startswith(space, index):
                if behind > len(text) and not source.ended and space.startswith(text[index:]):
                    return None
                continue
            marker = source.marker_at(behind, markers)
            if marker is None or (behind == len(text) and not source.ended):
                return None
            begins = self.begins(source, behind, marker)
            if begins is None:
                return None
            if marker and begins:
                return marker, behind
        marker = source.marker_at(index, self.markers)
        if marker is None or self.begins(source, index, marker) is None:
            return None
        if marker or self._opening is None or text[index] not in self._opening.first:
            return marker, index
        begins = self._opening.at(text, index)
        if begins is None and not source.ended:
            return None
        return (_CALLS if begins else "", index)

    def begins(self, source: Source, index: int, marker: str) -> bool | None:
        """Whether `marker`, at window index `index`, has behind it what it needs, as far as the output goes.

        None while more input may bring it.
        """
        follow = self._follows.get(marker)
        if not follow:
            return True
        text = source.text
        behind = _BLANKS.match(text, index + len(marker)).end()  # type: ignore[union-attr]
        if text.startswith(follow, behind):
            return True
        if any(wanted.startswith(text[behind:]) for wanted in follow):
            return True if source.ended else None
        return False


class MarkedTurn:
    """Reads one turn; see the module's words."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._source = context.source
        self._emit = context.emit
        dialect = self._dialect = context.dialect
        self._opening = dialect.opening(context.tools) if dialect.opening else None
        markers = dict.fromkeys(dialect.markers, ())
        before = {} if dialect.calls is None else dict.fromkeys(dialect.openers, dialect.calls.before)
        in_text: dict[str, tuple[str, ...]] = markers | before
        self._answers: dict[str, tuple[str, ...]] = {}  # the space behind the markers of the answer
        for span in dialect.answers:
            in_text |= {span.open: span.before, span.close: span.before_close}
            self._answers |= {span.open: span.after_open, span.close: span.after_close}
        self._spans = {span.open: span for span in dialect.thoughts}
        if self._spans:
            for span in dialect.thoughts:
                in_text[span.open] = span.before
                if span.close not in dialect.ends:
                    del in_text[span.close]  # content, outside reasoning
            closes = {span.close: span.before_close for span in dialect.thoughts}
            drafts: dict[str, tuple[str, ...]] = dict.fromkeys(dialect.openers, ())
            interrupts = {marker: before[marker] for marker in dialect.interrupts}
            self._closing = Stops(closes | interrupts, follows=dialect.interrupts)
            self._in_reasoning = Stops(drafts | closes | interrupts, follows=dialect.interrupts)
        self._in_text = Stops(in_text, self._opening)

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn. `inside`: what the prompt has left open."""
        dialect, source, emit = self._dialect, self._source, self._emit
        if inside == "reasoning":
            assert dialect.reasoning is not None
            yield from self._reasoning(dialect.reasoning)
        while marker := (yield from self._stretch(emit.text, self._in_text)):
            if marker is _CALLS:
                yield from self._unmarked()
                continue
            start = source.offset
            if marker in dialect.openers and dialect.grammar is not None:
                yield from dialect.grammar(self._context).read()
                continue
            source.pos += len(marker)
            if marker in self._spans:
                yield from self._reasoning(self._spans[marker])
            elif marker in self._answers:
                yield from source.either(self._answers[marker])
                emit.markup(source.offset)
            elif marker in dialect.ends:
                emit.markup(source.offset)
            else:
                rest = source.text[start - source.base :]
                cut = source.ended and any(opener.startswith(rest) for opener in dialect.openers)
                source.pos = len(source.text) if cut else source.pos  # a marker with which another begins
                reason = Reason.TRUNCATED if cut else Reason.STRAY_END
                emit.malformed(source.text[start - source.base : source.pos], reason, source.offset)

    def _unmarked(self) -> Reading:
        """Calls without markers, or a character that is content."""
        source, start = self._source, self._source.offset
        assert self._opening is not None
        yield from self._opening.read(self._context)
        if source.offset == start:
            source.pos += 1
            self._emit.text(source.text[source.pos - 1], source.offset)

    def _reasoning(self, span: Span) -> Reading:
        """Reasoning up to a closing marker. A call in it is a draft, unless the reasoning never closes."""
        dialect, source, emit = self._dialect, self._source, self._emit
        closing = {thought.close: thought for thought in dialect.thoughts}
        yield from source.either(span.after_open)
        if source.offset > emit.end:
            emit.markup(source.offset)
        stops = self._in_reasoning
        draft: int | None = None
        while (marker := (yield from self._stretch(emit.reasoning, stops))) and marker not in closing:
            if marker in dialect.interrupts and stops.begins(source, source.pos, marker):
                break
            if draft is None:
                draft = source.offset
                source.keep_from(draft)
            source.pos += len(marker)
            emit.reasoning(marker, source.offset)
            stops = self._closing
        if marker in closing:
            source.pos += len(marker)
            yield from source.either(closing[marker].after_close)
            emit.markup(source.offset)
        elif not marker and draft is not None:
            emit.malformed(source.since(draft), Reason.CALL_IN_REASONING, source.offset)
        source.keep_from(None)

    def _stretch(self, write: Callable[[str, int], None], stops: Stops) -> Generator[None, None, str]:
        """Write everything up to the next stop; returns it unread, "" at the end of the output."""
        source = self._source
        while True:
            text = source.text
            found: tuple[str, int] | None = ("", 0)
            hit = stops.first.search(text, source.pos)
            while hit is not None and (found := stops.at(source, hit.start())) and not found[0]:
                hit = stops.first.search(text, hit.end())
            end = len(text) if hit is None else hit.start()
            if end > source.pos:
                piece = text[source.pos : end]
                source.pos = end
                write(piece, source.offset)
            if found is not None and found[0]:
                marker, source.pos = found
                if source.offset > self._emit.end:
                    self._emit.markup(source.offset)  # the white space in front of it
                return marker
            if source.ended:
                return ""
            yield
