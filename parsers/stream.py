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
from parsers.source import Reading, Source

Inside = Literal["reasoning"]


class StreamParser:
    """Reads one turn of a model. Feed it pieces, then close it.

    `tools`: the declared tools as OpenAI function tools; names that are not declared are read all the same.
    `inside`: the stretch that the prompt has left open. `atomic`: the markers that are single special
    tokens in the vocabulary at hand; an ordinary token that spells one of them is data then.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[Mapping[str, Any]] | None = None,
        inside: Inside | None = None,
        atomic: Collection[str] | None = None,
    ) -> None:
        if inside is not None and (inside not in get_args(Inside) or dialect.reasoning is None):
            raise ValueError(f"inside={inside!r}: dialect {dialect.name} has no such stretch")
        self.dialect = dialect
        self.tools = tools
        self._source = Source(dialect.markers, atomic)
        self._emit = Emitter()
        self._first = re.compile(f"[{re.escape(''.join({marker[0] for marker in dialect.markers}))}]")
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
        while marker := (yield from self._stretch(emit.text, active)):
            start = source.offset
            source.pos += len(marker)
            if dialect.reasoning is not None and marker == dialect.reasoning.open:
                emit.markup(source.offset)
                yield from self._reasoning()
            elif dialect.calls is not None and dialect.grammar is not None and marker == dialect.calls.open:
                yield from dialect.grammar(source, emit, dialect.calls, dialect.ends).read()
            elif marker in dialect.ends:
                emit.markup(source.offset)
            else:
                emit.malformed(source.text[start - source.base : source.pos], Reason.STRAY_END, source.offset)

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
        self, write: Callable[[str, int], None], active: Collection[str]
    ) -> Generator[None, None, str]:
        """Write everything up to the next active marker; returns it unread, "" at the end of the output."""
        source, first = self._source, self._first
        while True:
            text = source.text
            marker: str | None = ""
            hit = first.search(text, source.pos)
            while hit is not None and (marker := source.marker_at(hit.start(), active)) == "":
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
