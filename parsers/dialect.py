"""What a dialect is: a table of markers, the grammars of its payloads, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from .engine.emitter import Emitter
from .engine.source import Reading, Source
from .engine.spans import NOWHERE, Span
from .engine.tools import Tool

Inside = Literal["reasoning"]
"""The stretch that a prompt may leave open."""


class InvalidDialect(ValueError):
    """What is wrong with a file that describes a dialect, in one line."""


class Grammar(Protocol):
    """A reader for a payload of calls."""

    def read(self) -> Reading:
        """Read to behind everything that belongs to the payload."""


class Turn(Protocol):
    """A reader for everything a model writes in one turn."""

    def read(self, inside: Inside | None) -> Reading:
        """Read to the end of the output."""


Calls = Iterable[tuple[str, Mapping[str, Any]]]
"""Calls to write: names and arguments."""

GrammarFactory = Callable[["Context"], Grammar]
TurnFactory = Callable[["Context"], Turn]
Render = Callable[[Span, Iterable[str], Calls], str]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One output format: the markers that its models write, and what reads and writes calls between them.

    The first two groups of fields are the format as its template has it, and all that most formats need. The
    others are empty unless models, their messages or their vocabularies have a peculiarity.
    """

    name: str
    reasoning: Span | None = None
    """None where the format has no reasoning."""
    calls: Span | None = None
    """A block of calls; None where calls have no markers, and where there are none."""
    ends: tuple[str, ...] = ()
    """The markers with which the model ends its turn."""
    turn: TurnFactory | None = None
    """Reads a turn that is more than stretches between the markers of this table; None for `MarkedTurn`."""

    # Calls: how they are read and written, and the markers that come with them.

    grammar: GrammarFactory | None = None
    """Reads a block of calls, from its first marker on, which is one of `openers`."""
    opening: Callable[[Mapping[str, Tool]], Opening | None] | None = None
    """Finds and reads calls that begin without a marker, given the declared tools; None where none do."""
    bare: GrammarFactory | None = None
    """Reads calls without a marker that are all that a turn says, or leaves the position where it was. It is
    used only where tools are declared: without them, nothing tells such calls from content. No table names
    one: `formats` gives it to all in which calls have markers, except LFM2."""
    slips: tuple[str, ...] = ()
    """Other texts than `calls.open` with which models begin a block of calls, mostly by mistake."""
    inner: tuple[str, ...] = ()
    """The markers that only stand within a block of calls."""
    interrupts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The markers of calls that end a reasoning left open, if nothing but such calls and the end of the turn
    follows [open-reasoning]; elsewhere a call in reasoning is a draft. Each with the texts of which one must
    follow it, over white space, to begin a call; empty if any may."""
    renderers: Mapping[str, Render] = field(default_factory=dict)
    """Write calls, each in one notation of the format. The first is the one that its models use unasked."""

    # Messages: where a turn is more than reasoning, content and calls.

    answers: tuple[Span, ...] = ()
    """What frames the answer: the markers are markup, the text between them is content."""
    header: str = ""
    """The marker with which a message begins, where a turn is a sequence of messages."""

    # Reasoning: what models write in place of its markers.

    spellings: Mapping[str, Literal["open", "close", ""]] = field(default_factory=dict)
    """Other markers, and which of the reasoning's they stand for; "" for those that mean nothing."""
    phrases: Mapping[str, Literal["open", "close"]] = field(default_factory=dict)
    """The same in plain words, which are text in a call [reasoning-in-words]."""

    # Vocabularies: which markers are not one special token.

    cores: Mapping[str, str] = field(default_factory=dict)
    """Of the markers that are no token of their own, the token in them; "" if there is none."""
    shown: tuple[str, ...] = ()
    """The markers that vocabularies hold as text, or as tokens that they do not flag as special. While the
    vocabulary is not known, flags say nothing about them."""
    tags: tuple[str, ...] = ()
    """Ordinary text of the format, which some vocabularies hold as tokens all the same."""

    aliases: tuple[str, ...] = ()
    """Other names that the format goes by: of models, or of parsers elsewhere."""

    @property
    def frames_content(self) -> bool:
        """Whether what is content stands between markers, where no calls can stand."""
        return bool(self.answers or self.header)

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker of the format."""
        return _markers(self)

    def means(self, marker: str) -> str:
        """The marker of the reasoning that `marker` stands for, "" for nothing, else itself."""
        meaning = self.spellings.get(marker, self.phrases.get(marker))
        if meaning is None or self.reasoning is None or marker == self.reasoning.close:
            return marker
        return {"open": self.reasoning.open, "close": self.reasoning.close, "": ""}[meaning]

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers with which a block of calls begins."""
        return (*((self.calls.open,) if self.calls else ()), *self.slips)

    def render(self, calls: Calls, notation: str | None = None) -> str:
        """Calls, as (name, arguments), the way the model itself would write them; "" for none.

        `notation`: a name in `renderers`, by default the first. Parsing the result gives the calls back.
        Raises ValueError for a dialect without calls, an unknown notation, and what it cannot express.
        """
        calls = list(calls)
        if not calls:
            return ""
        if not self.renderers:
            raise ValueError(f"dialect {self.name} has no tool calls")
        if notation is not None and notation not in self.renderers:
            known = ", ".join(self.renderers)
            raise ValueError(f"dialect {self.name} has no notation {notation!r}: there are {known}")
        renderer = self.renderers[notation] if notation else next(iter(self.renderers.values()))
        return renderer(self.calls or NOWHERE, self.markers, calls)


@lru_cache(64)
def _markers(dialect: Dialect) -> tuple[str, ...]:
    """Those of a dialect, which every parser asks for."""
    spans = [span for span in (dialect.reasoning, dialect.calls, *dialect.answers) if span is not None]
    around = (marker for span in spans for marker in span.markers)
    return tuple(dict.fromkeys((*around, *dialect.slips, *dialect.inner, *dialect.ends, *dialect.spellings)))


@dataclass(frozen=True, slots=True)
class Context:
    """What a reader works with. `source` and `emit` are its input and output."""

    source: Source
    emit: Emitter
    dialect: Dialect
    tools: Mapping[str, Tool]


class Opening(Protocol):
    """Where calls without markers may begin."""

    first: str
    """The characters with which they can begin."""

    def at(self, text: str, index: int) -> bool | None:
        """Whether calls may begin at `index`, which holds one of `first`; None while more text decides."""

    def read(self, context: Context) -> Reading:
        """Read the calls, or leave the position where it was when they are content."""
