"""Where readers write events. Spans tile by construction: each event starts where the last one ended.

Pieces of argument JSON are gathered and written as one delta when anything else follows or the reader
pauses, so a piece of input makes at most one delta however many tokens of the grammar it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ..events import (
    ArgumentEnd,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Fits,
    Malformed,
    Markup,
    Reason,
    Reasoning,
    Text,
)
from .faults import Fault

Place = Literal["text", "reasoning", "calls"]
"""What a stretch of output is: content, reasoning, or a block of calls that a marker has opened."""


class Emitter:
    """The events not yet handed out, and the offset up to which the output is accounted for."""

    __slots__ = (
        "_events",
        "_json",
        "_json_end",
        "amiss",
        "bare",
        "before",
        "calls",
        "end",
        "marked",
        "place",
        "since",
    )

    def __init__(self, outer: Emitter | None = None) -> None:
        """`outer`: the emitter that may `adopt` these events, which begin where its own end."""
        self.end: int = outer.end if outer else 0
        self.calls: int = outer.calls if outer else 0  # CallStart events so far
        self.before = ""  # the last character, if it is content
        self.amiss = False  # a call stands in the reasoning, or within another one
        self.marked: list[Callable[[], str]] = []  # calls between markers, as `is_echo` takes them
        self.bare: set[str] = set()  # those without, as text, if the turn began with such
        self.place: Place = "text"
        self.since = 0  # the offset at which that stretch begins
        self._events: list[Event] = []
        self._json: list[str] = []
        self._json_end = 0

    @contextmanager
    def within(self, place: Place, since: int) -> Iterator[None]:
        """What is read meanwhile is such a stretch, from the offset `since` on; after it comes content."""
        self.place, self.since = place, since
        try:
            yield
        finally:
            self.place, self.since = "text", self.end

    def take(self) -> list[Event]:
        """Hand out what was written since the last time."""
        if self._json:
            self._flush()
        events, self._events = self._events, []
        return events

    def adopt(self, other: Emitter) -> None:
        """Take over the events of `other`, which was made from this emitter and began at its end."""
        self._events += other.take()
        self.end = other.end
        self.calls = other.calls
        self.amiss |= other.amiss
        self.marked += other.marked
        other.marked.clear()

    def is_echo(self, identity: Callable[[], str]) -> bool:
        """Whether a call between markers repeats one that stood without them before, and so was made already.

        `identity`: gives its name and arguments as text, which is the same for all that are equal.
        """
        if self.bare and (call := identity()) in self.bare:
            self.bare.remove(call)  # if it comes yet another time, it is meant
            return True
        self.marked.append(identity)
        return False

    def text(self, text: str, end: int) -> None:
        """Content up to `end`."""
        self._events.append(Text(text, self.end, end))
        self.end = end
        self.before = text[-1]

    def reasoning(self, text: str, end: int) -> None:
        """Reasoning up to `end`."""
        self._events.append(Reasoning(text, self.end, end))
        self.end = end

    def markup(self, end: int) -> None:
        """Everything up to `end` that is not accounted for yet only frames the rest."""
        self._events.append(Markup(self.end, end))
        self.end = end
        self.before = ""

    def call_start(self, name: str, end: int, fits: Fits = None) -> int:
        """Open a call; returns its index."""
        index = self.calls
        self.calls += 1
        self._events.append(CallStart(index, name, self.end, end, fits))
        self.end = end
        return index

    def json(self, piece: str, end: int) -> None:
        """A piece of the open call's arguments, accounting for the output up to `end`."""
        self._json.append(piece)
        self._json_end = end

    def argument_end(self, key: str, value: Any, fits: Fits = None) -> None:
        """The open call has one more complete argument."""
        self._flush()
        self._events.append(ArgumentEnd(self.calls - 1, key, value, self.end, self.end, fits))

    def call_end(
        self, name: str, arguments: dict[str, Any], repaired: bool, end: int, fits: Fits = None
    ) -> None:
        """Close the open call, whose own text ends at `end`."""
        self._flush()
        self._events.append(CallEnd(self.calls - 1, name, arguments, repaired, self.end, end, fits))
        self.end = end

    def broken(self, fault: Fault, *, ended: bool) -> None:
        """Called when a call cannot be read on; `ended`: and the output ends there. Does nothing here; where
        one fault refuses all calls, it is raised.
        """

    def malformed(
        self,
        raw: str,
        reason: Reason,
        end: int,
        name: str | None = None,
        index: int | None = None,
        partial: dict[str, Any] | None = None,
    ) -> None:
        """Keep `raw`, accounting for the output up to `end`."""
        self._flush()
        self._events.append(Malformed(raw, reason, name, index, partial or {}, self.end, max(end, self.end)))
        self.end = max(end, self.end)

    def _flush(self) -> None:
        if self._json:
            piece = "".join(self._json)
            self._json.clear()
            self._events.append(ArgumentsDelta(self.calls - 1, piece, self.end, self._json_end))
            self.end = self._json_end
