"""The dialect that explains an output best, without knowing the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from localagent.errors import UnknownDialect
from localagent.parsers import (
    DIALECTS,
    CallEnd,
    CallPart,
    CallStart,
    Dialect,
    Event,
    Malformed,
    MalformedPart,
    Markup,
    Part,
    Reason,
    Reasoning,
    ReasoningPart,
    StreamParser,
    Text,
    TextPart,
)
from localagent.parsers import collect as collect_parts
from localagent.parsers.engine.spans import NOWHERE

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Explanation:
    """A text as one dialect reads it."""

    dialect: Dialect
    text: str
    events: Sequence[Event]

    @cached_property
    def parts(self) -> Sequence[Part]:
        """What the events amount to."""
        return collect_parts(self.events)

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls, as names and arguments."""
        return [(part.name, part.arguments) for part in self.parts if isinstance(part, CallPart)]

    @property
    def malformed(self) -> bool:
        """Whether something in it is no proper call."""
        return any(isinstance(part, MalformedPart) for part in self.parts)

    @property
    def repaired(self) -> bool:
        """Whether a call could only be read by a repair."""
        return any(isinstance(part, CallPart) and part.repaired for part in self.parts)

    @property
    def content(self) -> str:
        """What is left as content."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def around(self) -> tuple[str, str]:
        """The content before the first call, and after it."""
        first = next((at for at, part in enumerate(self.parts) if isinstance(part, CallPart)), 0)
        before, behind = (
            "".join(part.text for part in parts if isinstance(part, TextPart))
            for parts in (self.parts[:first], self.parts[first:])
        )
        return before, behind

    @property
    def marked(self) -> bool:
        """Whether a marker stands in the text with which the dialect opens calls."""
        return any(marker in self.text for marker in self.dialect.openers)

    @property
    def reasoning(self) -> str:
        """What was read as reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def meaning(self) -> tuple[str, str, str]:
        """All that a user would see of it."""
        return repr(self.calls), self.content, self.reasoning

    @cached_property
    def closeness(self) -> tuple[int, str]:
        """How closely the dialect would have written these calls so, and in which of its notations.

        3: to the letter, 2: but for the spaces, 1: with the same markers, 0: otherwise.
        """
        best = (0, "")
        for notation in self.dialect.renderers:
            with suppress(ValueError):
                own = self.dialect.render(self.calls, notation)
                best = max(best, (self._likeness(own), notation), key=itemgetter(0))
        return best

    def _likeness(self, own: str) -> int:
        if own in self.text:
            return 3
        if _SPACE.sub("", own) in _SPACE.sub("", self.text):
            return 2
        calls = self.dialect.calls or NOWHERE
        return int(
            all((marker in own) == (marker in self.text) for marker in (calls.open, *self.dialect.inner))
        )

    @property
    def notation(self) -> str:
        """The notation of the dialect in which these calls are written, as far as can be told."""
        return self.closeness[1] or next(iter(self.dialect.renderers), "")

    @property
    def markers(self) -> int:
        """How many of the dialect's markers stand in the text."""
        return sum(marker in self.text for marker in self.dialect.markers if marker)

    @property
    def merit(self) -> tuple[int, ...]:
        """What makes one explanation better than another: no repair, the very spelling, little left over."""
        return not self.repaired, self.closeness[0], -len(self.content), self.markers


def explain(
    text: str,
    dialect: Dialect,
    tools: Sequence[Mapping[str, Any]] | None = None,
    inside: Literal["reasoning"] | None = None,
) -> Explanation:
    """`text` as `dialect` reads it."""
    parser = StreamParser(dialect, tools=tools, inside=inside if dialect.reasoning else None)
    return Explanation(dialect, text, (*parser.feed(text), *parser.close()))


def guess_dialect(
    text: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
    inside: Literal["reasoning"] | None = None,
) -> Dialect:
    """The dialect of a raw output, from the output alone.

    It is the one that reads calls from the output, with nothing malformed, and explains it best. If several
    do so equally well, they must agree on the meaning. The guess is refused if another dialect sees these
    calls inside something that begins earlier, such as reasoning or a longer call, or if there are markers of
    any dialect beside calls without markers. Raises UnknownDialect.
    """
    every = [explain(text, dialect, tools, inside) for dialect in DIALECTS.values()]
    reading = (read for read in every if read.calls and not read.malformed)
    found = sorted(reading, key=lambda read: read.merit, reverse=True)
    if not found or _quotes_calls(found[0]) or any(_holds(rival, found[0]) for rival in every):
        raise UnknownDialect("no dialect reads calls from this output without anything malformed: name one")
    equal = [read for read in found if read.merit == found[0].merit]
    if len({read.meaning for read in equal}) > 1:
        names = ", ".join(read.dialect.name for read in equal)
        raise UnknownDialect(f"several dialects read this output, each in its own way: {names}: name one")
    return equal[0].dialect


def nearest_dialect(text: str) -> Dialect:
    """The dialect that comes nearest to an output that none reads without fault, for a person to look at.

    It is the one whose markers stand in the text and which sees most calls in it, good or broken; where no
    markers stand, plain text.
    """
    marked = [read for read in (explain(text, dialect) for dialect in DIALECTS.values()) if read.marked]
    if not marked:
        return DIALECTS["plain"]
    return max(marked, key=lambda read: (len(read.calls), read.malformed, read.markers)).dialect


def _quotes_calls(read: Explanation) -> bool:
    """Whether calls without markers stand beside the markers of other dialects."""
    others = {
        marker for dialect in DIALECTS.values() for marker in dialect.markers if marker not in dialect.ends
    }
    left = read.content + read.reasoning
    return not read.marked and any(marker in left for marker in others)


def _holds(rival: Explanation, read: Explanation) -> bool:
    """Whether the rival sees a call of `read` within something that began before the call's own marker."""
    if rival.calls == read.calls:
        return False
    held = tuple(_held(rival))
    for call in _calls(read):
        if any(begin < call.begin and start < call.end and call.start < end for begin, start, end in held):
            return True
    return False


class _Stretch(NamedTuple):
    """A stretch of the text, and where the whole begins that it belongs to."""

    begin: int
    start: int
    end: int


def _calls(read: Explanation) -> Iterator[_Stretch]:
    """The calls, which begin at the marker of their block, or of the first without text between."""
    begin: int | None = None
    start = 0
    for event in read.events:
        match event:
            case Text() | Reasoning():
                begin = None
            case CallEnd():
                yield _Stretch(start if begin is None else begin, start, event.end)
            case CallStart():
                start = event.start
        if begin is None:
            at = (read.text.find(marker, event.start, event.end) for marker in read.dialect.openers)
            begin = min((place for place in at if place >= 0), default=None)


def _held(read: Explanation) -> Iterator[_Stretch]:
    """What is reasoning, call or malformed, with where it begins: a reasoning at its marker.

    A reasoning that never ends says nothing, unless it was begun and calls were seen in it: others may know
    of a call that ends it.
    """
    close = read.dialect.reasoning.close if read.dialect.reasoning else NOWHERE.close
    begin, opened = 0, False
    thought: _Stretch | None = None
    for before, event in pairwise((None, *read.events, None)):
        match event:
            case Reasoning():
                if thought is None:
                    opened = isinstance(before, Markup)
                    place = before.start if isinstance(before, Markup) else event.start
                    thought = _Stretch(place, event.start, event.end)
                thought = thought._replace(end=event.end)
                continue
            case CallStart():
                begin = event.start
            case CallEnd():
                yield _Stretch(begin, begin, event.end)
            case Malformed():
                start = begin if event.index is not None else event.end - len(event.raw)
                yield _Stretch(start, start, event.end)
        if thought is not None:
            drafted = isinstance(event, Malformed) and event.reason is Reason.CALL_IN_REASONING
            closed = isinstance(event, Markup) and close in read.text[event.start : event.end]
            if closed or (opened and drafted):
                yield thought
            thought = None
