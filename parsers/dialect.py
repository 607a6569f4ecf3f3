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
    """One output format: a table of markers, and the grammars of what stands between them.

    `reasoning` and `calls` are None where the format has none; `ends` are the markers with which the
    model ends its turn, `inner` those that only stand within a block of calls, `answers` those with which it
    frames its answer: they are markup, the text between them is content.

    `turn` reads the whole turn; `grammar` reads a block of calls from its first marker on, which is
    `calls.open` or one of `slips`, other texts with which models of this format begin one by mistake.
    `cores` are of the markers that are no token of their own: for each the token in it, "" if there is none.
    `tags` are ordinary text that the grammar writes, which some vocabularies hold as tokens all the same.
    `opening` finds calls that begin without any marker; `bare` reads those that are all that a turn says, if
    tools are declared, or leaves the position where it was.

    `interrupts` are the markers of calls that end a reasoning left open, if nothing but such calls and
    the end of the turn follows [open-reasoning], each with the texts of which one must follow it, over
    white space, to begin a call; in most formats a call in reasoning is a draft. `spellings` are what
    models write in place of a marker of the reasoning, "open" or "close", or where it means nothing, "";
    `phrases` are the same in plain words, which are text in a call.

    `shown` are the markers that vocabularies hold as text, or as tokens that they do not flag as special: as
    long as the vocabulary is not known, flags say nothing about them.

    `header` is the marker with which a message begins, in formats whose turn is a sequence of messages;
    `resumed` is how an output may go on with the header that the prompt has begun.
    `aliases` are other names that the format goes by: of models, or of parsers elsewhere.

    `renderers` write calls, each in one of the format's notations; the first is the one that its models use
    unasked.
    """

    name: str
    reasoning: Span | None
    calls: Span | None
    ends: tuple[str, ...]
    turn: TurnFactory
    grammar: GrammarFactory | None = None
    opening: Callable[[Mapping[str, Tool]], Opening | None] | None = None
    bare: GrammarFactory | None = None
    slips: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    answers: tuple[Span, ...] = ()
    interrupts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spellings: Mapping[str, Literal["open", "close", ""]] = field(default_factory=dict)
    phrases: Mapping[str, Literal["open", "close"]] = field(default_factory=dict)
    cores: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    header: str = ""
    resumed: str = ""
    aliases: tuple[str, ...] = ()
    renderers: Mapping[str, Render] = field(default_factory=dict)

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
    around = (marker for span in spans for marker in (span.open, span.close))
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
