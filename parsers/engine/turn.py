"""A turn as most formats have it: content, stretches of reasoning and blocks of calls, told apart by markers.

Everything between the markers is content, byte exact, except the white space that the dialect's table says is
part of a marker. What a block holds is the business of its grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ..dialect import Context, Dialect, Inside, Opening
from ..events import Reason
from .emitter import Emitter
from .faults import Fault
from .source import Reading, Source
from .spans import Span

_CALLS = "calls without a marker"
_BLANKS = re.compile(r"[ \t\r\n]{0,16}")
"""The white space over which `Stops.begins` looks ahead; bounded, so that no marker is held back for long."""


class Stops:
    """Markers that end a stretch, each with the white space that may stand in front of it as part of it.

    `phrases`: those among them that are plain words, which the input does not know as markers.

    `follows`: what must follow a marker, as `Dialect.interrupts` has it; without that, the white space in
    front of it is text.
    """

    def __init__(
        self,
        markers: Mapping[str, tuple[str, ...]],
        opening: Opening | None = None,
        follows: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        phrases: tuple[str, ...] = (),
    ) -> None:
        self.markers = markers
        self._phrases = tuple(phrase for phrase in phrases if phrase in markers)
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
        for phrase in () if marker else self._phrases:
            if text.startswith(phrase, index):
                marker = phrase
            elif not source.ended and phrase.startswith(text[index:]):
                return None
        if marker is None or self.begins(source, index, marker) is None:
            return None
        if marker or self._opening is None or text[index] not in self._opening.first:
            return marker, index
        begins = self._opening.at(text, index)
        if begins is None and not source.ended:
            return None
        return (_CALLS if begins else "", index)

    def begins(self, source: Source, index: int, marker: str) -> bool | None:
        """Whether `marker`, at window index `index`, is followed by one of the texts that it requires.

        None while more input may bring one. At the end of the output, the beginning of one is enough.
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


class Trial(Emitter):
    """Collects events of calls, and gives up at the first fault; but the output may cut off the last call."""

    def __init__(self, emit: Emitter) -> None:
        super().__init__(emit)
        self.amiss = emit.amiss

    def broken(self, fault: Fault, *, ended: bool) -> None:
        """Refuse the calls at once, without looking for the end of the one that broke."""
        if not ended:
            raise fault

    def malformed(self, raw: str, reason: Reason, *rest: Any) -> None:
        """Refuse the calls, unless this is one that is cut off. Raises Fault."""
        if reason is not Reason.TRUNCATED:
            raise Fault(Reason.NOT_A_CALL)
        super().malformed(raw, reason, *rest)


class _Stretches:
    """The markers that end each kind of stretch of a dialect. They depend on no tools, and are made once."""

    def __init__(self, dialect: Dialect) -> None:
        markers = dict.fromkeys(dialect.markers, ())
        before = {} if dialect.calls is None else dict.fromkeys(dialect.openers, dialect.calls.before)
        in_text: dict[str, tuple[str, ...]] = markers | before
        self.answers: dict[str, tuple[str, ...]] = {}  # the white space after the markers of the answer
        for span in dialect.answers:
            in_text |= {span.open: span.before, span.close: span.before_close}
            self.answers |= {span.open: span.after_open, span.close: span.after_close}
        self.closing = self.in_reasoning = Stops({})
        if dialect.reasoning is not None:
            span = dialect.reasoning
            closes = {span.close: span.before_close}
            for marker in (*dialect.spellings, *dialect.phrases):
                means = dialect.means(marker)
                if means and marker in dialect.spellings:
                    in_text[marker] = span.before
                if means == span.close:
                    closes[marker] = span.before_close
            in_text[span.open] = span.before
            for marker in closes:
                if dialect.spellings.get(marker) != "":
                    in_text.pop(marker, None)  # outside reasoning it is content [stray-think]
            drafts: dict[str, tuple[str, ...]] = dict.fromkeys(dialect.openers, ())
            interrupts = {marker: before[marker] for marker in dialect.interrupts}
            phrases = (*dialect.phrases,)
            self.closing = Stops(closes | interrupts, follows=dialect.interrupts, phrases=phrases)
            self.in_reasoning = Stops(
                drafts | closes | interrupts, follows=dialect.interrupts, phrases=phrases
            )
        self.in_text = in_text


_stretches = lru_cache(64)(_Stretches)


class MarkedTurn:
    """Reads one turn, as the top of this file describes it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._source = context.source
        self._emit = context.emit
        dialect = self._dialect = context.dialect
        self._opening = dialect.opening(context.tools) if dialect.opening else None
        self._bare = dialect.bare(context) if dialect.bare and context.tools else None
        stretches = _stretches(dialect)
        self._answers = stretches.answers
        self._closing, self._in_reasoning = stretches.closing, stretches.in_reasoning
        self._in_text = Stops(stretches.in_text, self._opening)

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn. `inside`: what the prompt has left open."""
        dialect, source, emit = self._dialect, self._source, self._emit
        if inside == "reasoning":
            yield from self.reasoning()
        elif dialect.phrases:
            yield from self._phrase()
        while True:
            yield from self.bare_calls()
            marker = yield from self._stretch(emit.text, self._in_text)
            if not marker:
                return
            if marker is _CALLS:
                self.has_content()
                yield from self._unmarked()
                continue
            start = source.offset
            if marker in dialect.openers and dialect.grammar is not None:
                with emit.within("calls", start):
                    yield from dialect.grammar(self._context).read()
                continue
            source.pos += len(marker)
            means = dialect.means(marker)
            if dialect.reasoning is not None and means == dialect.reasoning.open:
                yield from self.reasoning()
            elif marker in self._answers:
                self.has_content()  # JSON in an answer is content, and no bare call
                yield from source.either(self._answers[marker])
                emit.markup(source.offset)
            elif marker in dialect.ends or dialect.spellings.get(marker) == "":
                emit.markup(source.offset)
            else:
                rest = source.text[start - source.base :]
                # The output may end within a longer marker, which begins like this one and opens calls.
                cut = source.ended and any(opener.startswith(rest) for opener in dialect.openers)
                source.pos = len(source.text) if cut else source.pos
                reason = Reason.TRUNCATED if cut else Reason.STRAY_END
                emit.malformed(source.text[start - source.base : source.pos], reason, source.offset)

    def _phrase(self) -> Reading:
        """Read reasoning that plain words open. They do so only as a turn begins; later they are content."""
        source, phrases = self._source, self._dialect.phrases
        if (yield from source.either(tuple(phrase for phrase in phrases if phrases[phrase] == "open"))):
            self._emit.markup(source.offset)
            yield from self.reasoning()

    def bare_calls(self) -> Reading:
        """Read calls without markers, where the turn's first content or call is due [bare-object]."""
        bare, source = self._bare, self._source
        if bare is None:
            return
        start = source.offset
        source.keep_from(start)
        char = yield from source.space()
        marker = (yield from source.marker()) if char else ""
        source.rewind(start)
        source.keep_from(None)
        if char and not marker:
            self.has_content()
            yield from bare.read()

    def has_content(self) -> None:
        """Note that the turn has content or calls: bare calls, which are all of a turn, cannot follow."""
        self._bare = None

    def _unmarked(self) -> Reading:
        """Calls without markers, or a character that is content."""
        source, start = self._source, self._source.offset
        assert self._opening is not None
        yield from self._opening.read(self._context)
        if source.offset == start:
            source.pos += 1
            self._emit.text(source.text[source.pos - 1], source.offset)

    def reasoning(self) -> Reading:
        """Reasoning up to its closing marker.

        A call in it is a draft [draft-call], unless the reasoning never closes and nothing else follows
        [open-reasoning].
        """
        span = self._dialect.reasoning
        assert span is not None
        with self._emit.within("reasoning", self._emit.end):
            closed = yield from self._reasoning(span)
        if closed:
            yield from self._source.either(span.after_close)
            self._emit.markup(self._source.offset)
        self._source.keep_from(None)

    def _reasoning(self, span: Span) -> Generator[None, None, bool]:
        """Read reasoning to the end of its closing marker; returns whether there is one."""
        dialect, source, emit = self._dialect, self._source, self._emit
        again = True
        while again:
            yield from source.either(span.after_open)
            if source.offset > emit.end:
                emit.markup(source.offset)
            # Models repeat a tag that the prompt or they themselves have just written [repeated-think].
            again = (yield from source.char()) != "" and (yield from source.marker((span.open,))) != ""
            source.pos += len(span.open) * again
        stops, draft, tried = self._in_reasoning, None, 0
        while marker := (yield from self._stretch(emit.reasoning, stops, waiting=dialect.interrupts)):
            if dialect.means(marker) == span.close:
                break
            # Between the two offsets lies white space that belongs to the marker, if the call is a real one.
            start, place = emit.end, source.offset
            if place >= tried and marker in dialect.interrupts and stops.begins(source, source.pos, marker):
                source.retain(start)
                real, tried = yield from self._calls_to_the_end()
                source.release()
                if real:
                    return False
                source.rewind(place)
            source.pos += len(marker)
            emit.reasoning(source.since(start), source.offset)
            if draft is None:
                emit.amiss |= bool(dialect.header)  # a message within the one that reasons
                draft = place
                source.keep_from(draft)
            stops = self._closing
        source.pos += len(marker)
        if not marker and draft is not None:
            emit.malformed(source.since(draft), Reason.CALL_IN_REASONING, source.offset)
        return marker != ""

    def _calls_to_the_end(self) -> Generator[None, None, tuple[bool, int]]:
        """Read calls in the reasoning; they count if only the end of the turn follows [open-reasoning].

        Returns whether that is so, and up to where it read: calls that begin before that are drafts, too.
        """
        dialect, source = self._dialect, self._source
        assert dialect.grammar is not None
        attempt = Trial(self._emit)
        context = replace(self._context, emit=attempt)
        with suppress(Fault):
            while True:
                yield from dialect.grammar(context).read()
                end = source.offset
                marker = (yield from source.marker()) if (yield from source.space()) else ""
                # Nothing follows, or the beginning of a marker.
                ended = source.ended and any(map(source.cut_marker, dialect.markers))
                if ended or marker in dialect.ends:
                    source.rewind(end)
                    self._emit.adopt(attempt)
                    return True, end
                if marker not in dialect.interrupts:
                    break
        return False, source.offset

    def _stretch(
        self, write: Callable[[str, int], None], stops: Stops, waiting: Container[str] = ()
    ) -> Generator[None, None, str]:
        """Write everything up to the next stop; returns it unread, "" at the end of the output.

        The white space in front of a stop is markup, except in front of those in `waiting`, which the caller
        has yet to judge.
        """
        source = self._source
        while True:
            text = source.text
            stop: tuple[str, int] | None = ("", 0)
            hit = stops.first.search(text, source.pos)
            while hit is not None and (stop := stops.at(source, hit.start())) and not stop[0]:
                hit = stops.first.search(text, hit.end())
            end = len(text) if hit is None else hit.start()
            if end > source.pos:
                piece = text[source.pos : end]
                source.pos = end
                write(piece, source.offset)
            if stop is not None and stop[0]:
                marker, source.pos = stop
                if source.offset > self._emit.end and marker not in waiting:
                    self._emit.markup(source.offset)
                return marker
            if source.ended:
                return ""
            yield
