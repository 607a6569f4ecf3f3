"""A turn of the model in its own notation: in pieces, of which the markers of its calls are `Trusted`.

A turn that still has its `raw` output goes back letter for letter. A model can write one thing in many ways,
with other quotes, other spaces, or two blocks for one, and only the same letters are the same tokens, whose
states are kept. Any other turn is written by `dialect.render`.

Either way the parser reads the text again, since not all that looks like a marker is one: what stands in
arguments comes from users and tools as well. Markers between calls, names and arguments are meant. One within
an argument, such as a quote that is a token of its own, is meant unless the argument's own text holds the
same; then none of them is `Trusted` there. A model may also have written more than its calls say, such as
members of an object that nobody uses, so a marker after a quote has to be needed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, groupby
from typing import Any, Literal

from localagent.errors import Unsupported
from localagent.messages import AssistantMessage, ReasoningPart, TextPart, ToolCallPart
from localagent.parsers import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallPart,
    CallStart,
    Dialect,
    Event,
    Markup,
    Part,
    Reasoning,
    StreamParser,
    collect,
)
from localagent.parsers import ReasoningPart as ParsedReasoning
from localagent.parsers import TextPart as ParsedText
from localagent.prompt.segments import Trusted
from localagent.prompt.shield import LETTERS, Shield

Inside = Literal["reasoning"]
_OTHER = ("other",)
_MOST_DOUBTS = 64  # reading a turn again is not free; markers in doubt beyond that are text
_ATTRIBUTE = re.compile(r"""\w="[^"<>\\]*\"""")

Needed = Callable[[int, int], bool]
"""Whether a turn says something else without what stands between two offsets."""


def own_words(message: AssistantMessage, dialect: Dialect) -> tuple[str, ...]:
    """What the model wrote after its reasoning, letter for letter; empty unless the parts say the same."""
    if not message.raw or not dialect.renderers or dialect.frames_content:
        return ()
    parts = tuple(map(_signature, message.content))
    if _OTHER in parts:
        return ()
    ways: tuple[Inside | None, ...] = (None, "reasoning") if dialect.reasoning else (None,)
    for inside in ways:
        read, pieces = _read_raw(message.raw, dialect, inside)
        if read == parts:
            return pieces
    return ()


def _signature(part: Any) -> tuple[Any, ...]:
    """What a part says, whether it was parsed now or is part of a message."""
    match part:
        case ToolCallPart() | CallPart():
            return "call", part.name, part.arguments_text
        case TextPart() | ParsedText():
            return "text", part.text
        case ReasoningPart(opaque=False) | ParsedReasoning():
            return "reasoning", part.text
        case _:
            return _OTHER


@lru_cache(maxsize=512)
def _read_raw(raw: str, dialect: Dialect, inside: Inside | None) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The parts of a raw output, and its text without what the template writes around content."""
    parser = StreamParser(dialect, inside=inside)
    events = [*parser.feed(raw), *parser.close()]
    parts = tuple(map(_signature, collect(events)))
    doubts = count()

    def needed(start: int, end: int) -> bool:
        if next(doubts) >= _MOST_DOUBTS:
            return False
        other = StreamParser(dialect, inside=inside)
        without = [*other.feed(raw[:start] + "x" * (end - start) + raw[end:]), *other.close()]
        return _meaning(without) != _meaning(events)

    shown = tuple(mark(raw, list(_shown(raw, events, dialect)), dialect, needed))
    # Read as the model will: what only looked like a marker, in a member that nobody uses, gives itself away.
    again = tuple(map(_signature, read_marked(shown, dialect)))
    return parts, shown if again == tuple(part for part in parts if part[0] != "reasoning") else ()


def _meaning(events: Sequence[Event]) -> str:
    """What the events say, without the values that a repeated key replaces; 1 is not True here."""
    parts = collect(events)
    return repr([(part.name, part.arguments) if isinstance(part, CallPart) else part for part in parts])


def _shown(raw: str, events: Sequence[Event], dialect: Dialect) -> Iterator[Event]:
    """The events without the reasoning, and without the markers of reasoning and turn, and their space."""
    span = dialect.reasoning
    frames = span.markers if span else ()
    framing = False  # whether what comes next belongs to a frame
    kept: list[Event] = []
    for event in reversed(events):
        text = raw[event.start : event.end]
        if isinstance(event, Reasoning) or (isinstance(event, Markup) and text.strip() in frames):
            framing = True
        elif isinstance(event, Markup) and text in dialect.ends:
            framing = False
        elif not (framing and isinstance(event, Markup) and not text.strip()):
            framing = False
            kept.append(event)
    yield from reversed(kept)


def write_calls(calls: Sequence[ToolCallPart], dialect: Dialect, after_text: bool) -> Iterator[str]:
    """Calls as the model writes them, after text with the white space that their marker begins with.

    Raises Unsupported.
    """
    pairs = [(call.name, call.arguments) for call in calls]
    try:
        pieces = _rendered(pairs, dialect)
        quoted = _quotes_markers(pieces, dialect)
    except ValueError:
        quoted = True
    if quoted:  # raw text cannot hold a marker; here it can, since only what is `Trusted` is one
        pieces = _rendered_behind_shield(pairs, dialect)
    space = dialect.calls.before[:1] if dialect.calls else ()
    if after_text and not pieces[0].startswith(space):
        yield from space
    yield from pieces


def _rendered_behind_shield(pairs: Sequence[tuple[str, Any]], dialect: Dialect) -> list[str]:
    """The pieces of calls whose arguments hold the text of markers: it is hidden while they are written."""
    # Markers that are no tokens stay: spelled like all other text, they would end what quotes them.
    tokens = {dialect.cores.get(marker, marker) for marker in dialect.markers}
    shield = Shield(tokens, avoid="".join(name for name, _ in pairs), placeholders=LETTERS)
    # Keys stay, too: how a format spells and sorts them, or refuses them, depends on their letters.
    hidden, shown = shield.hide([arguments for _, arguments in pairs], keys=False)
    try:
        pieces = _rendered([(name, each) for (name, _), each in zip(pairs, hidden, strict=True)], dialect)
    except ValueError as error:
        raise Unsupported(f"the dialect {dialect.name!r} cannot write a call: {error}") from error
    letters = str.maketrans(shown)
    return [piece if isinstance(piece, Trusted) else piece.translate(letters) for piece in pieces]


def _rendered(pairs: Sequence[tuple[str, Any]], dialect: Dialect) -> list[str]:
    """The pieces of calls as `dialect.render` writes them. Raises ValueError where it cannot."""
    text = dialect.render(pairs)
    parser = StreamParser(dialect)
    return list(mark(text, [*parser.feed(text), *parser.close()], dialect))


def _quotes_markers(pieces: Iterable[str], dialect: Dialect) -> bool:
    """Whether content holds the text of a marker."""
    tokens = _tokens(dialect)
    return any(token in piece for piece in pieces if not isinstance(piece, Trusted) for token in tokens)


def mark(
    raw: str, events: Sequence[Event], dialect: Dialect, needed: Needed = lambda start, end: True
) -> Iterator[str]:
    """The text that `events` account for, in pieces, of which the dialect's markers are `Trusted`.

    `needed` is asked where what only looks like a marker may stand; what a dialect renders holds no such.
    A marker at the end that also ends the turn is left out, since the template writes it. Neighbouring pieces
    of content are one, so that they are shielded as one.
    """
    if events and isinstance(last := events[-1], Markup):
        end = next((end for end in dialect.ends if raw.endswith(end, last.start, last.end)), "")
        events = [*events[:-1], Markup(last.start, last.end - len(end))]
    said = {event.index: set(_texts(event.arguments)) for event in events if isinstance(event, CallEnd)}
    call = -1
    for event in events:
        if isinstance(event, CallStart):
            call = event.index
        elif isinstance(event, ArgumentEnd) and call in said:  # also those that a repeated key replaces
            said[call].update(_texts({event.key: event.value}))
    pieces = (piece for event in events for piece in _pieces(raw, event, dialect, said, needed))
    for trusted, run in groupby(pieces, key=lambda piece: isinstance(piece, Trusted)):
        neighbours = list(run)
        yield from neighbours if trusted else filter(None, ("".join(neighbours),))


def _pieces(
    raw: str, event: Event, dialect: Dialect, said: dict[int, set[str]], needed: Needed
) -> Iterator[str]:
    text = raw[event.start : event.end]
    data: Collection[str] = ()
    match event:
        case Markup() | CallStart() | CallEnd():
            pass
        case ArgumentsDelta(index=index):
            data = said.get(index, (raw,))
        case _:
            yield text
            return
    at, before = event.start, ""
    for number, bit in enumerate(_any_marker(dialect).split(text)):
        end = at + len(bit)
        if number % 2 == 0:
            before += bit
            yield bit
        else:
            structural = not any(bit in value for value in data)
            yield Trusted(bit) if structural and (not _quotes(before) or needed(at, end)) else bit
        at = end


def _quotes(text: str) -> bool:
    """Whether a string may have begun in the text, in which a marker is data: not those of attributes."""
    return not {'"', "'"}.isdisjoint(_ATTRIBUTE.sub("", text))


def read_marked(pieces: Iterable[str], dialect: Dialect) -> list[Part]:
    """The parts of pieces of which the `Trusted` ones are special tokens and no others."""
    parser = StreamParser(dialect, atomic=frozenset((*dialect.markers, *dialect.cores.values())))
    events = [event for piece in pieces for event in parser.feed(piece, isinstance(piece, Trusted))]
    return collect([*events, *parser.close()])


@lru_cache(maxsize=64)
def _any_marker(dialect: Dialect) -> re.Pattern[str]:
    longest_first = sorted((*_tokens(dialect), *dialect.tags), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _tokens(dialect: Dialect) -> set[str]:
    """The texts that are tokens if the vocabulary has them."""
    return {*dialect.markers, *dialect.cores.values()} - {""}


def _texts(value: Any) -> Iterable[str]:
    """Every string in the value, keys included."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield key
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)
