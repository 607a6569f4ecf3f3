"""The formats that can be read, as data: which markers a model writes, and the grammar between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from parsers.emitter import Emitter
from parsers.grammars.bare import BareList
from parsers.grammars.block import Block
from parsers.render import Calls, render_pythonic
from parsers.source import Reading, Source
from parsers.spans import Span
from parsers.tools import Tool


class Grammar(Protocol):
    """A reader for a payload of calls."""

    def read(self) -> Reading:
        """Read to behind everything that belongs to the payload."""


GrammarFactory = Callable[[Source, Emitter, Span, tuple[str, ...], Mapping[str, Tool]], Grammar]
Render = Callable[[Span, Iterable[str], Calls], str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One output format: a table of markers, and the grammar of the call payload.

    `reasoning` and `calls` are None where the format has none; `ends` are the markers with which the
    model ends its turn. `grammar` reads the payload of a call span, `bare` a list of calls of declared tools
    without markers, if the format's models are known to leave them out.
    """

    name: str
    reasoning: Span | None
    calls: Span | None
    ends: tuple[str, ...]
    grammar: GrammarFactory | None = None
    bare: GrammarFactory | None = None
    renderer: Render | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker of the format."""
        spans = [span for span in (self.reasoning, self.calls) if span is not None]
        return (*(marker for span in spans for marker in (span.open, span.close)), *self.ends)

    def render(self, calls: Calls) -> str:
        """Calls, as (name, arguments), the way the model itself would write them; "" for none.

        Parsing the result gives the calls back. Raises ValueError for a dialect without calls and for
        what it cannot express.
        """
        calls = list(calls)
        if not calls:
            return ""
        if self.renderer is None or self.calls is None:
            raise ValueError(f"dialect {self.name} has no tool calls")
        return self.renderer(self.calls, self.markers, calls)


_THINK = Span("<think>", "</think>")
_ENDS = ("<|im_end|>", "<|endoftext|>")

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="lfm2",
            reasoning=_THINK,
            calls=Span("<|tool_call_start|>", "<|tool_call_end|>"),
            ends=_ENDS,
            grammar=Block,
            bare=BareList,
            renderer=render_pythonic,
        ),
        Dialect(name="plain", reasoning=_THINK, calls=None, ends=_ENDS),
    )
}
"""Every dialect by its name."""
