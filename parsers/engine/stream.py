"""The incremental parser: pieces of output in, events out.

There is one code path: a whole text is one piece. All state is the position of one suspended reader, which
the dialect makes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from ..dialect import Context, Dialect, Inside
from ..events import Event, Finish
from .emitter import Emitter, Place
from .source import Reading, Source
from .tools import declared
from .turn import MarkedTurn


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
        self._source = Source(dialect.markers, atomic, dialect.cores, dialect.shown, dialect.tags)
        self._emit = Emitter()
        self._emit.place = inside or "text"
        context = Context(self._source, self._emit, dialect, {} if strict else declared(tools))
        self._closed = False
        turn = dialect.turn or MarkedTurn
        self._reader = _started(turn(context).read(inside))
        next(self._reader)

    @property
    def place(self) -> Place:
        """Where the output fed so far has come to: "text", "reasoning", or "calls", which is a block of calls
        that a marker has opened. What may yet be part of a marker counts as what comes before it, and calls
        without a marker as text.
        """
        return self._emit.place

    @property
    def since(self) -> int:
        """The offset in the output at which that `place` begins: a block of calls begins with its marker."""
        return self._emit.since

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


def _started(reading: Reading) -> Reading:
    """`reading`, which first waits at a yield until the first piece has been fed."""
    yield
    yield from reading
