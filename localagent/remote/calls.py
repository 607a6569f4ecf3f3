"""The tool calls of a streamed answer: pieces of JSON, as OpenAI's API has them, to the parser's events.

A call ends when something else comes, since the API does not say when it does; until then the server may
still take it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localagent.parsers import ArgumentEnd, ArgumentsReader, CallStart, Event, Finish, Malformed, Reason

UNPLACED = (0, 0)
"""The span of an event until it is told: only then is it known what came before it."""


@dataclass(slots=True)
class RemoteCall:
    """One call while it is written. `index` counts the calls of the turn."""

    index: int
    id: str
    name: str
    extra: dict[str, Any]
    """Fields of its own that the provider wants back with it."""
    partial: dict[str, Any] = field(default_factory=dict)
    """The arguments that are complete."""
    held: list[str] = field(default_factory=list)
    """What came of it while the call before it was not complete."""
    back: tuple[str, str, str | None] | None = None
    """What the server said of it when it took it back: the raw text, the reason, and the name."""
    _written: list[str] = field(default_factory=list)
    _reader: ArgumentsReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = ArgumentsReader(self.name, self.index)

    def start(self) -> list[Event]:
        """Its first events, with what was held."""
        held, self.held = self.held, []
        return [
            CallStart(self.index, self.name, *UNPLACED),
            *(event for piece in held for event in self.feed(piece)),
        ]

    def feed(self, piece: str) -> list[Event]:
        """The events of the next piece of its arguments."""
        self._written.append(piece)
        return self._read(self._reader.feed(piece))

    def complete(self) -> bool:
        """Whether the arguments are a complete JSON object. While nothing has come, they are not."""
        return self._reader.complete

    def end(self, finish: Finish) -> list[Event]:
        """Its last events, when no more comes: CallEnd, or Malformed if it cannot be read."""
        nothing = not "".join(self._written).strip() and finish == "stop"
        events = self.feed("{}") if nothing else []  # many servers write nothing at all for no arguments
        return [*events, *self._read(self._reader.close(finish))]

    @property
    def raw(self) -> str:
        """The call as models write one in JSON: what the server's model wrote is not known."""
        return f'{{"name": {json.dumps(self.name, ensure_ascii=False)}, "arguments": {"".join(self._written)}'

    def failed(self, raw: str, reason: str, name: str | None = None) -> Malformed:
        """The event that takes it back."""
        return Malformed(raw, reason_of(reason), name or self.name, self.index, self.partial, *UNPLACED)

    def _read(self, events: list[Event]) -> list[Event]:
        """What the reader found, as events of the turn, which `start` has begun."""
        read: list[Event] = []
        for event in events:
            if isinstance(event, ArgumentEnd):
                self.partial[event.key] = event.value
            if isinstance(event, Malformed):
                read.append(self.failed(self.raw, event.reason))
            elif not isinstance(event, CallStart):
                read.append(event)
        return read


class RemoteCalls:
    """All calls of a turn. They are told one after the other, even if a server mixes their pieces."""

    def __init__(self) -> None:
        self._by_place: dict[Any, RemoteCall] = {}  # by the index that the server gives, newest of each
        self._open: list[RemoteCall] = []  # those that have not ended; the first one is being told
        self.all: list[RemoteCall] = []

    def feed(self, delta: Mapping[str, Any]) -> list[Event]:
        """The events of one entry of `tool_calls`."""
        function = delta.get("function")
        function = function if isinstance(function, Mapping) else {}
        call_id, name, piece = delta.get("id"), function.get("name"), function.get("arguments")
        if piece is not None and not isinstance(piece, str):  # the object itself, as some servers write it
            piece = json.dumps(piece, ensure_ascii=False)
        place = delta.get("index")
        if place is not None:
            call = self._by_place.get(place) if isinstance(place, int | str) else None
        elif not call_id and not name:
            call = self.all[-1] if self.all else None
        else:
            call = next((each for each in self.all if each.id == call_id), None)
        # Some servers give every call the index 0, and only an id of its own.
        new = call is None or (isinstance(call_id, str) and call_id and call.id and call_id != call.id)
        events: list[Event] = []
        if call is None or new:
            given = {key: value for key, value in delta.items() if key not in _KNOWN and value is not None}
            call = RemoteCall(len(self.all), str(call_id or ""), name if isinstance(name, str) else "", given)
            if isinstance(place, int | str):
                self._by_place[place] = call
            events += self.settle()
            self.all.append(call)
            self._open.append(call)
            if self._open[0] is call:
                events += call.start()
        elif self._open and self._open[0] is not call and piece:
            events += self._advance(until=call)
        if piece:
            if self._open and self._open[0] is call:
                events += call.feed(piece)
            else:
                call.held.append(piece)
        return events

    def take_back(self, call_id: str, raw: str, reason: str, name: str | None) -> list[Event] | None:
        """The events by which the server says that this call cannot be read; None if there is no such one."""
        call = next((each for each in self._open if each.id == call_id), None)
        if call is None:
            return None
        call.back = (raw, reason, name)
        if self._open[0] is not call:
            return []  # the call before it is still written
        self._open.pop(0)
        return [call.failed(*call.back), *self._begin()]

    def settle(self) -> list[Event]:
        """End the calls that are complete, since something else comes."""
        return self._advance(until=None)

    def close(self, finish: Finish) -> list[Event]:
        """End them all."""
        events: list[Event] = []
        while self._open:
            events += self._open.pop(0).end(finish)
            events += self._begin()
        return events

    def abandon(self) -> list[Event]:
        """Give up those that have not ended: the server might yet have taken them back."""
        events: list[Event] = []
        for call in self._open:
            events += [] if call is self._open[0] else call.start()
            events.append(call.failed(*(call.back or (call.raw, Reason.TRUNCATED, None))))
        self._open.clear()
        return events

    def _advance(self, until: RemoteCall | None) -> list[Event]:
        events: list[Event] = []
        while self._open and self._open[0] is not until and self._open[0].complete():
            events += self._open.pop(0).end("stop")
            events += self._begin()
        return events

    def _begin(self) -> list[Event]:
        """Tell of the next call, and of those that were taken back while they waited."""
        events: list[Event] = []
        while self._open:
            call = self._open[0]
            events += call.start()
            if call.back is None:
                break
            self._open.pop(0)
            events.append(call.failed(*call.back))
        return events


_KNOWN = {"index", "id", "type", "function"}


def reason_of(word: str) -> Reason:
    """The parser's word; servers of another version may have others."""
    try:
        return Reason(word)
    except ValueError:
        return Reason.SYNTAX
