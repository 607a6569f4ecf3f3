"""The incremental parser: pieces of output in, events out.

Reads content and reasoning itself, from the dialect's table, and hands blocks of calls to its grammar.
There is one code path: a whole text is one piece. All state is the position of one suspended reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Literal, get_args

from parsers.dialects import Dialect
from parsers.emitter import Emitter
from parsers.events import Event, Finish, Reason
from parsers.grammars.bare import MAX_REREAD, BareOpenings
from parsers.source import Reading, Source
from parsers.tools import declared

_BARE = "["

Inside = Literal["reasoning"]


class StreamParser:
    """Reads one turn of a model. Feed it pieces, then close it.

    `tools`: the declared tools as OpenAI function tools. They settle what only they can: calls without
    markers, `f(properties={...})`, and values of another type than the declared one; each such call is marked
    `repaired`. `strict` turns that off. Names that are not declared are read all the same.
    `inside`: the stretch that the prompt has left open. `atomic`: the markers that are single special
    tokens in the vocabulary at hand; an ordinary token that spells one of them is data then.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[Mapping[str, Any]] | None = None,
        inside: Inside | None = None,
        atomic: Collection[str] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        if inside is not None and (inside not in get_args(Inside) or dialect.reasoning is None):
            raise ValueError(f"inside={inside!r}: dialect {dialect.name} has no such stretch")
        self.dialect = dialect
        self._tools = {} if strict else declared(tools)
        self._bare = BareOpenings(self._tools) if self._tools and dialect.bare else None
        self._reread = 0  # characters of bare lists that turned out to be content
        self._source = Source(dialect.markers, atomic)
        self._emit = Emitter()
        firsts = {marker[0] for marker in dialect.markers} | ({_BARE} if self._bare else set())
        self._first = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]")
        self._closed = False
        self._reader = self._read(inside)
        next(self._reader)

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        """The events that `text`, the next piece, completes.

        `special`: whether the host read it from a special token; None if that is unknown.
        Raises ValueError after `close`.
        """
        if self._closed:
            raise ValueError("this parser is closed: one parser reads one turn")
        if not text:
            return []
        self._source.feed(text, special)
        next(self._reader)
        return self._emit.take()

    def close(self, finish: Finish = "stop") -> list[Event]:
        """The events that the end of the output completes. Raises ValueError when called twice.

        `finish`: how the generation ended. The grammars here decide by the call's own syntax, so that a
        complete call counts and an incomplete one does not, whichever it was.
        """
        if self._closed:
            raise ValueError("this parser is closed: one parser reads one turn")
        if finish not in get_args(Finish):
            raise ValueError(f"finish={finish!r}: expected one of {get_args(Finish)}")
        self._closed = True
        self._source.ended = True
        for _ in self._reader:
            raise AssertionError("a reader asked for input behind the end")
        return self._emit.take()

    # -- reading --------------------------------------------------------------------------------------

    def _read(self, inside: Inside | None) -> Reading:
        dialect, source, emit = self.dialect, self._source, self._emit
        yield
        if inside == "reasoning":
            yield from self._reasoning()
        stray = "" if dialect.reasoning is None else dialect.reasoning.close
        active = [marker for marker in dialect.markers if marker != stray]
        while marker := (yield from self._stretch(emit.text, active, bare=True)):
            if marker == _BARE:
                yield from self._bare_list()
                continue
            start = source.offset
            source.pos += len(marker)
            if dialect.reasoning is not None and marker == dialect.reasoning.open:
                emit.markup(source.offset)
                yield from self._reasoning()
            elif dialect.calls is not None and dialect.grammar is not None and marker == dialect.calls.open:
                yield from dialect.grammar(source, emit, dialect.calls, dialect.ends, self._tools).read()
            elif marker in dialect.ends:
                emit.markup(source.offset)
            else:
                emit.malformed(source.text[start - source.base : source.pos], Reason.STRAY_END, source.offset)

    def _bare_list(self) -> Reading:
        """A list of calls without markers, or a bracket that is content."""
        dialect, source, emit = self.dialect, self._source, self._emit
        assert dialect.bare is not None and dialect.calls is not None
        start = source.offset
        bare = dialect.bare(source, emit, dialect.calls, dialect.ends, self._tools)
        if self._reread <= MAX_REREAD * (start + 256):
            yield from bare.read()
        if source.offset == start:
            self._reread += max(0, bare.reached - start)
            source.pos += len(_BARE)
            emit.text(_BARE, source.offset)

    def _reasoning(self) -> Reading:
        """Reasoning up to its closing marker. A call in it is a draft, unless the reasoning never closes."""
        dialect, source, emit = self.dialect, self._source, self._emit
        assert dialect.reasoning is not None
        close = dialect.reasoning.close
        active = [close] if dialect.calls is None else [close, dialect.calls.open]
        draft: int | None = None
        while (marker := (yield from self._stretch(emit.reasoning, active))) not in (close, ""):
            draft = source.offset
            source.keep_from(draft)
            source.pos += len(marker)
            emit.reasoning(marker, source.offset)
            active = [close]
        if marker:
            source.pos += len(marker)
            emit.markup(source.offset)
        elif draft is not None:
            emit.malformed(source.since(draft), Reason.CALL_IN_REASONING, source.offset)
        source.keep_from(None)

    def _stretch(
        self, write: Callable[[str, int], None], active: Collection[str], *, bare: bool = False
    ) -> Generator[None, None, str]:
        """Write everything up to the next active marker; returns it unread, "" at the end of the output.

        `bare`: what may begin a bare list counts as a marker too.
        """
        source, first = self._source, self._first
        while True:
            text = source.text
            marker: str | None = ""
            hit = first.search(text, source.pos)
            while hit is not None and (marker := self._marker_at(hit.start(), active, bare)) == "":
                hit = first.search(text, hit.end())
            end = len(text) if hit is None else hit.start()
            if end > source.pos:
                piece = text[source.pos : end]
                source.pos = end
                write(piece, source.offset)
            if marker:
                return marker
            if source.ended:
                return ""
            yield

    def _marker_at(self, index: int, active: Collection[str], bare: bool) -> str | None:
        """As `Source.marker_at`; for the beginning of a bare list its bracket."""
        source = self._source
        if not (bare and self._bare and source.text.startswith(_BARE, index)):
            return source.marker_at(index, active)
        begins = self._bare.at(source.text, index)
        if begins is None and not source.ended:
            return None
        return _BARE if begins else source.marker_at(index, active)
