"""The grammar of a whole turn, for a server that is to hold to it, and a check of whether it did.

Where tokens are drawn here, each gets a mask. A server gets one grammar, before the first token, so that has
all that a `guide` decides on the way: the reasoning that comes first, text in which calls may be made, what
may follow them. It is written for llguidance, in the part of its language that XGrammar reads as well. Text
is described by the tokens that it may not hold: where markers are tokens of their own, nothing else opens a
call.

Servers differ in what they make of a grammar, and some leave out, without a word, what they cannot read. So
all that comes back is held against the guide that would have bounded it here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from localagent.constraint.grammar import Grammar
from localagent.constraint.guide import Guide
from localagent.constraint.schema import Relaxed
from localagent.constraint.validation import violations
from localagent.errors import ConstraintFailed, Unsupported
from localagent.hosts.protocol import Form
from localagent.hosts.utf8 import Piece, TokenText
from localagent.parsers import Collector, StreamParser, TextPart

_RANGES = ("lark", "core")
"""Forms that know ranges of tokens."""


@dataclass(frozen=True, slots=True)
class Thought:
    """The reasoning in front of what is bounded, by its markers' ids. `open` is None where the prompt has
    opened it; otherwise the model may do so.
    """

    open: int | None
    close: int


class Turns:
    """Writes the grammars of turns for one vocabulary. `ends`: the tokens that end a turn. `form`: what is
    made of them afterwards.
    """

    def __init__(self, size: int, ends: Collection[int], form: Form) -> None:
        self._size = size
        self._ends = ends
        self._form = form

    def required(self, grammars: Sequence[Grammar], thought: Thought | None = None) -> str:
        """A turn that is what one of these says, and nothing else."""
        lines = [f"turn: {' | '.join(f'way{number}' for number in range(len(grammars)))}"]
        for number, grammar in enumerate(grammars):
            lines += grammar.text.replace("start:", f"way{number}:", 1).splitlines()
        if thought is None:
            return _text(["start: turn", *lines])
        before = "thought" if thought.open is None else f"(<[{thought.open}]> thought)?"
        lines.append(f"thought: {self._free([thought.close])} <[{thought.close}]>")
        return _text([f"start: {before} turn", *lines])

    def offered(self, grammar: Grammar, openers: Collection[int], parallel: bool) -> str:
        """Text in which the model may make calls; without `parallel`, one. They begin with an opener."""
        calls = "(block free)*" if parallel else "(block free)?"
        block = grammar.text.replace("start:", "block:", 1).splitlines()
        return _text([f"start: free {calls}", f"free: {self._free(openers)}", *block])

    def barred(self, tokens: Collection[int], openers: Collection[int]) -> str:
        """Text without any of these tokens; at least without the openers, if more cannot be said."""
        return _text([f"start: {self._free(tokens if self._form in _RANGES else openers)}"])

    def _free(self, tokens: Collection[int]) -> str:
        """Any tokens but these and those that end the turn. Raises Unsupported."""
        if self._form not in _RANGES:  # the ends are no part of those grammars at all
            others = set(tokens).difference(self._ends)
            if len(others) != 1:
                raise Unsupported("a server without llguidance cannot be told to leave out several markers")
            return f"(<[^{others.pop()}]>)*"
        # What is allowed is said, since not all versions can read what is not.
        bounds = sorted({-1, *tokens, *self._ends, self._size})
        kept = [(left + 1, right - 1) for left, right in pairwise(bounds) if right - left > 1]
        return f"(<[{','.join(f'{first}-{last}' for first, last in kept)}]>)*"


def _text(lines: Iterable[str]) -> str:
    # Rules that two grammars share are named by what they say, so they are the same.
    return "\n".join(dict.fromkeys(filter(None, lines))) + "\n"


class Passed:
    """A `protocol.PassedOn`: a grammar, or the guide of the same turn, by which the tokens are judged."""

    def __init__(self, guide: Guide, form: Form, said: str, name: str, piece: Callable[[int], Piece]) -> None:
        """`name`: of the model. `piece`: of a token."""
        self.form = form
        self.said = said
        self._guide = guide
        self._name = name
        self._piece = piece
        # What may come next is what the guide allows.
        self.forced, self.mask, self.otherwise = guide.forced, guide.mask, guide.otherwise

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What the guide does not enforce."""
        return self._guide.relaxed

    def accept(self, token: int) -> None:
        """This token came. Raises ConstraintFailed for one that may not."""
        # A matcher's mask may have one of the ways to spell what must come; a server may have taken another.
        mask = None if self._guide.bounded else self._guide.mask()
        allowed = mask is None or bool(int(mask[token // 32]) >> (token % 32) & 1)
        try:
            if allowed:
                self._guide.accept(token)
        except ConstraintFailed:
            allowed = False
        if not allowed:
            text = self._piece(token).data.decode("utf-8", "replace")
            raise _unheld(self._name, f"wrote {text!r:.40}, which may not come there")

    def end(self) -> None:
        """The server ended the turn. Raises ConstraintFailed where more had to come."""
        if not self._guide.whole:
            raise _unheld(self._name, "ended the turn before the grammar does")


class PassedSchema:
    """A `protocol.PassedOn`: the JSON Schema of the answer, which is read when the turn is over.

    White space, and the order of properties, are the server's own.
    """

    form: Form = "schema"
    relaxed: tuple[Relaxed, ...] = ()

    def __init__(self, parser: StreamParser, piece: Callable[[int], Piece], schema: Any, name: str) -> None:
        """`parser`: tells the answer from reasoning. `schema`: None for any object."""
        self.said = {"type": "object"} if schema is None else schema if isinstance(schema, Mapping) else {}
        self._parser = parser
        self._text = TokenText(piece)
        self._collector = Collector()
        self._name = name

    def forced(self) -> Sequence[int]:
        """None: what must come is not known before the end."""
        return ()

    def mask(self) -> None:
        """None: any token may come."""

    otherwise = mask

    def accept(self, token: int) -> None:
        """This token came. Nothing is refused before the end."""
        for part in self._text.feed(token):
            for event in self._parser.feed(part.text, part.special):
                self._collector.add(event)

    def end(self) -> None:
        """The server ended the turn. Raises ConstraintFailed for an answer that does not fit the schema."""
        for event in self._parser.close("stop"):
            self._collector.add(event)
        answer = "".join(part.text for part in self._collector.parts if isinstance(part, TextPart))
        try:
            mistakes = violations(self.said, json.loads(answer))
        except ValueError:
            raise _unheld(self._name, f"answered {answer!r:.40}, which is no JSON") from None
        if mistakes:
            path, message = mistakes[0].path, mistakes[0].message
            raise _unheld(self._name, f"answered what does not fit the schema ({path} {message:.80})")


def _unheld(name: str, what: str) -> ConstraintFailed:
    return ConstraintFailed(
        f"the server of {name} did not hold to what it was told: it {what}: leave tool_choice, strict and "
        "response_format out, or have it draw with another grammar backend"
    )
