"""The events a parser writes, in stream order.

Every event carries `start` and `end`: the span of raw output, in Unicode code points from the beginning
of the turn, that it accounts for. The spans of all events tile the output without gap or overlap; an
event that adds knowledge but no characters has an empty span. Events are never taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Finish = Literal["stop", "length"]
"""How the generation ended: by itself, or because a limit cut it off."""


class Reason(StrEnum):
    """Why a piece of output was kept instead of becoming a call. The set is closed."""

    TRUNCATED = "truncated"
    """The output ended before the call was complete."""
    NOT_A_CALL = "not_a_call"
    """An element of the call list is no call: a bare word, an assignment, a JSON value without a name."""
    POSITIONAL_ARGUMENT = "positional_argument"
    """An argument without a name."""
    MISSING_VALUE = "missing_value"
    """A named argument without a value."""
    NOT_A_LITERAL = "not_a_literal"
    """A value that would have to be evaluated: a call, an expression, bytes, a format placeholder."""
    NOT_FINITE = "not_finite"
    """A number that JSON cannot hold: too large for a float."""
    SYNTAX = "syntax"
    """A character that fits nowhere in the call's grammar."""
    UNCLOSED_STRING = "unclosed_string"
    """A string that is never closed, or not before a marker that ends it."""
    AMBIGUOUS_QUOTE = "ambiguous_quote"
    """An unescaped quote that can be read in two ways."""
    UNCLOSED = "unclosed"
    """The block ended inside a call or before its list was closed; its complete calls were emitted."""
    MISSING_END = "missing_end"
    """The end marker of a closed list is missing; its calls were emitted and `raw` is empty."""
    STRAY_END = "stray_end"
    """An end marker outside any block."""
    ECHO = "echo"
    """The body of the block just closed, written and closed a second time."""
    CALL_IN_REASONING = "call_in_reasoning"
    """A call marker in reasoning that never closes; the text stays in the reasoning as well."""
    TOO_DEEP = "too_deep"
    """More nesting than the parser accepts."""
    TOO_LARGE = "too_large"
    """An integer with more digits than Python converts."""
    UNFIT = "unfit"
    """A call behind a fault or with one, whose arguments or name contradict the declared tools."""


MAX_DEPTH = 128
"""Open brackets in an argument. JSON readers stop at about 200, and messages wrap values once more."""


class MisfitKind(StrEnum):
    """In what way a call contradicts the declared tools. The set is closed."""

    UNDECLARED = "undeclared_name"
    """No tool of that name is declared."""
    UNKNOWN = "unknown_key"
    """The tool, or an object in its arguments, has no such parameter."""
    MISSING = "missing_required"
    """A required parameter without an argument."""
    TYPE = "wrong_type"
    """A value of another type than the declared one, or none of an enumeration."""
    MARKUP = "markup_in_value"
    """A string holds a marker or tag of the dialect: what the model means, or what is left of a fault."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One reason why a call does not fit. `path`: a JSON pointer into the arguments; "" for the name."""

    kind: MisfitKind
    path: str


Fits = Literal[True] | tuple[Misfit, ...] | None
"""Whether something fits the declared tools: True, or the reasons why not; None where none are declared."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of content, byte exact."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of reasoning, byte exact, without its markers."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Markup:
    """Characters that only frame the rest: markers, brackets, separators."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call has begun and its name is known. It ends in CallEnd or Malformed with the same `index`.

    `index` counts the calls of the turn from 0, those that fail included. `fits`: whether the name does.
    """

    index: int
    name: str
    start: int
    end: int
    fits: Fits = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """The next piece of the call's arguments as strict JSON text."""

    index: int
    json: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArgumentEnd:
    """One top-level argument is complete. A repeated key has the same value again.

    `fits`: whether the argument does; None also where the tool is not declared.
    """

    index: int
    key: str
    value: Any
    start: int
    end: int
    fits: Fits = None


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and may be executed. `arguments` equals the joined deltas.

    `fits`: whether it fits the declared tools; the reasons are those of its name and arguments, and what is
    missing.
    """

    index: int
    name: str
    arguments: dict[str, Any]
    repaired: bool
    start: int
    end: int
    fits: Fits = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """Output that was meant as a call, or broke one, and is kept.

    `raw` is the exact text, which may reach back over characters that earlier events account for.
    `index` is that of the CallStart it ends, None when there was none; `name` is known if it was read;
    `partial` holds the arguments that were complete before it broke.
    """

    raw: str
    reason: Reason
    name: str | None
    index: int | None
    partial: dict[str, Any]
    start: int
    end: int


Event = Text | Reasoning | Markup | CallStart | ArgumentsDelta | ArgumentEnd | CallEnd | Malformed
