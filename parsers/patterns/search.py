"""The search for several patterns in the output of a model, as it arrives."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from ..engine.source import Reading, Source
from .program import Op, Pattern


class Match(NamedTuple):
    """A match: which of the patterns, where in the output, and the text of its groups."""

    number: int
    start: int
    end: int
    groups: Mapping[str, str]


class Patterns:
    """Several patterns that are looked for at once. Of matches at one place the longest counts."""

    def __init__(self, source: Source, patterns: tuple[Pattern, ...]) -> None:
        self._source = source
        self._patterns = patterns
        self._first = _any_of(tuple(pattern.first for pattern in patterns))
        self._spaced = any(pattern.spaced for pattern in patterns)

    def here(self) -> Generator[None, None, Match | None]:
        """Read the match that begins at the current offset, if there is one. The caller retains the text."""
        start = self._source.offset
        run = yield from self._from_here()
        if (best := run.best()) is not None:
            return run.take(best)
        self._source.rewind(start)
        return None

    def cut_off(self) -> Generator[None, None, bool]:
        """Whether the output ends in the beginning of a match from here on. The caller retains the text."""
        start = self._source.offset
        run = yield from self._from_here()
        self._source.rewind(start)
        return run.cut and run.best() is None

    def _from_here(self) -> Generator[None, None, _Run]:
        """Read until it is decided what begins at the current offset."""
        run = _Run(self._source, self._patterns)
        run.enter()
        while run.best() is None and run.held is not None:
            yield from run.advance()
        return run

    def find(self, write: Callable[[str, int], None]) -> Generator[None, None, Match | None]:
        """Read up to behind the next match, from whose beginning on the text is kept; None if there is none.

        `write` gets the text before it, each piece with the offset at which it ends, as soon as no match can
        begin there.
        """
        source = self._source
        run = _Run(source, self._patterns, write)
        run.enter()  # some match where the output begins, whatever it begins with
        while True:
            if run.best() is None:
                yield from run.advance()
            if (best := run.best()) is not None:
                return run.take(best)
            if run.ended:
                run.flush(source.offset)
                return None
            if run.held is None:
                yield from self._skip(run)
            char = source.text[source.pos : source.pos + 1]
            if self._first.match(char) or not char or (self._spaced and char.isspace()):
                run.enter()

    def _skip(self, run: _Run) -> Reading:
        """Read up to where a match may begin."""
        source = self._source
        while True:
            text = source.text
            hit = self._first.search(text, source.pos)
            end = len(text) if hit is None else hit.start()
            if self._spaced:  # the white space in front of it is part of the match
                end = source.pos + len(text[source.pos : end].rstrip())
            source.pos = end
            if hit is not None or source.ended or len(text) - end >= _SHORT:
                return
            yield from run.pause()  # to look at white space again costs less than to follow it


_SHORT = 64
"""So much text may stay unread although it is copied then with the next piece."""


@cache
def _any_of(expressions: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(("(?!)", *dict.fromkeys(expressions))))


class _Run:
    """One search for several patterns. `ended`: the output is; `cut`: a thread could have gone on there."""

    def __init__(
        self,
        source: Source,
        patterns: Iterable[Pattern],
        write: Callable[[str, int], None] | None = None,
    ) -> None:
        self._source = source
        self._searches = [_Search(pattern) for pattern in patterns]
        self._write = write
        self._written = source.offset
        self._kept = False
        self.ended = self.cut = False

    @property
    def held(self) -> int | None:
        """The offset from which on a match may have begun that is not decided yet."""
        return min((search.threads[0].start for search in self._searches if search.threads), default=None)

    def best(self) -> int | None:
        """The number of the pattern whose match nothing can outdo: the earliest, then the longest."""
        decided = (
            (match[0].start, -match[1], number)
            for number, search in enumerate(self._searches)
            if (match := search.match) is not None and not search.threads
        )
        best, held = min(decided, default=None), self.held
        return best[2] if best is not None and (held is None or best[0] < held) else None

    def enter(self) -> None:
        """A match may begin at the current offset."""
        for search in self._searches:
            search.enter(self._source.offset)

    def advance(self) -> Reading:
        """Read a character, or find that there is none."""
        source = self._source
        while source.pos == len(source.text) and not source.ended:
            yield from self.pause()
        if source.pos == len(source.text):
            self.ended = True
            self.cut |= self.held is not None
            for search in self._searches:
                search.step("", (), source.offset)
            return
        present = set()
        for token in {token for search in self._searches for token in search.tokens()}:
            while (marker := source.marker_at(source.pos, (token,))) is None:
                yield from self.pause()
            present.add(marker)
            self.cut |= not marker and source.cut_marker(token)
        source.pos += 1
        for search in self._searches:
            if search.threads:
                search.step(source.text[source.pos - 1], present, source.offset)

    def pause(self) -> Reading:
        """Wait for more input, once everything is written that no match can begin in."""
        source, held = self._source, self.held
        self.flush(source.offset if held is None else held)
        if self._write is not None and self._kept != (held is not None):
            self._kept = held is not None
            source.keep_from(held)
        yield

    def flush(self, end: int) -> None:
        """Write what is not written yet, up to `end`."""
        if self._write is not None and end > self._written:
            self._write(self._source.since(self._written)[: end - self._written], end)
            self._written = end

    def take(self, number: int) -> Match:
        """Write what comes before the match of that pattern, and read up to behind it."""
        source, match = self._source, self._searches[number].match
        assert match is not None
        thread, end = match
        start = thread.start
        self.flush(start)
        text = source.since(start)
        opened: dict[str, int] = {}
        groups: dict[str, str] = {}
        for name, offset in thread.saved:
            if name in opened:
                groups[name] = text[opened.pop(name) - start : offset - start]
            else:
                opened[name] = offset
        if self._write is not None:
            source.rewind(start)
            source.keep_from(start)
        source.rewind(end)
        return Match(number, start, end, groups)


class _Thread(NamedTuple):
    """One way to go on. `saved`: where groups began and ended, in turn."""

    place: int
    start: int
    saved: tuple[tuple[str, int], ...]


class _Search:
    """One pattern on its way through the text. `threads`: preferred ones first, none once all is decided."""

    def __init__(self, pattern: Pattern) -> None:
        self._steps = pattern.steps
        self.threads: list[_Thread] = []
        self.match: tuple[_Thread, int] | None = None  # the best match so far, and where it ends

    def tokens(self) -> Iterator[str]:
        """The tokens that count if they begin at the current offset."""
        for thread in self.threads:
            if (step := self._steps[thread.place]).op is Op.TOKEN:
                yield step.text

    def enter(self, offset: int) -> None:
        """A match may begin at `offset`; what began earlier is preferred."""
        if self.match is None:
            seen = {thread.place for thread in self.threads}
            self._follow(self.threads, seen, _Thread(0, offset, ()), offset)
            self._settle(offset)

    def step(self, char: str, present: Collection[str], offset: int) -> None:
        """Read `char`, "" where the output ends, up to `offset`. `present`: the tokens that begin here."""
        threads: list[_Thread] = []
        seen: set[int] = set()
        for thread in self.threads:
            op, text, test, following, _ = self._steps[thread.place]
            if (
                (op is Op.ONE and test(char))
                or (op is Op.TOKEN and text in present)
                or (op is Op.REST and char)
                or (op is Op.END and not char)
            ):
                self._follow(threads, seen, thread._replace(place=following), offset, ended=not char)
        self.threads = threads
        self._settle(offset)
        if not char:
            self.threads = []

    def _follow(
        self, threads: list[_Thread], seen: set[int], thread: _Thread, offset: int, *, ended: bool = False
    ) -> None:
        """Add to `threads` what `thread` becomes before it reads anything, waits for the end, or matches."""
        waiting = [thread]
        while waiting:
            thread = waiting.pop()
            if thread.place in seen:
                continue
            seen.add(thread.place)
            op, text, _, following, other = self._steps[thread.place]
            if op is Op.FORK:
                waiting += [thread._replace(place=other), thread._replace(place=following)]
            elif op is Op.SAVE:
                waiting.append(_Thread(following, thread.start, (*thread.saved, (text, offset))))
            elif (op is Op.BEGIN and offset == 0) or (op is Op.END and ended):
                waiting.append(thread._replace(place=following))
            elif op is not Op.BEGIN:
                threads.append(thread)

    def _settle(self, offset: int) -> None:
        """A thread that has matched outdoes those after it."""
        for number, thread in enumerate(self.threads):
            if self._steps[thread.place].op is Op.MATCH:
                self.match = (thread, offset)
                del self.threads[number:]
                return
