"""Calls on their way to a wire that can stream them: held until complete, or passed on as they are written.

Clients such as LangChain run what they have of a call when a stream ends, whatever its finish reason, so
calls are held unless the client or the server asks otherwise. Either way, no object goes out with the same
key twice: programs do not agree on which of the two values counts.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from localagent.parsers import ArgumentEnd, ArgumentsDelta, CallEnd, CallStart, Malformed, Reason
from localagent.turn import TurnEvent


class HeldCalls:
    """Holds the events of a call back until it is complete; one that fails was then never begun."""

    def __init__(self) -> None:
        self._held: list[TurnEvent] = []

    def feed(self, event: TurnEvent) -> list[TurnEvent]:
        """The events that may be written now, in order."""
        match event:
            case CallStart():
                self._held = [event]
                return []
            case ArgumentsDelta() | ArgumentEnd() if self._held:
                self._held.append(event)
                return []
            case CallEnd():
                events, self._held = self._held, []
                if events and event.repaired:  # a key may have been written twice
                    text = json.dumps(event.arguments, ensure_ascii=False)
                    events[1:] = [ArgumentsDelta(event.index, text, event.start, event.start)]
                return [*events, event]
            case Malformed() if event.index is not None:
                self._held = []
                return [replace(event, index=None)]
        return [event]


class StreamedCalls:
    """Passes calls on as they are written.

    What went out cannot be changed any more, so a call that repeats a key is cut off before it, and ends as a
    malformed one.
    """

    def __init__(self) -> None:
        self._written: list[str] = []
        self._keys = _Keys()
        self._repeated = False

    def feed(self, event: TurnEvent) -> list[TurnEvent]:
        """The events that may be written now, in order."""
        match event:
            case CallStart():
                self._written, self._keys, self._repeated = [], _Keys(), False
            case ArgumentsDelta():
                self._written.append(event.json)
                self._repeated = self._repeated or self._keys.repeat(event.json)
                if self._repeated:
                    return []
            case CallEnd() if self._repeated:
                raw = "".join(self._written)
                return [Malformed(raw, Reason.SYNTAX, event.name, event.index, {}, event.start, event.end)]
        return [event]


class _Keys:
    """The keys of JSON text that comes in pieces."""

    def __init__(self) -> None:
        self._objects: list[set[str]] = []  # the keys of each object that is open; an array has none
        self._string: list[str] | None = None  # the string that is open
        self._last = ""  # the last one that was closed
        self._escape = ""  # a backslash at the end of a piece

    def repeat(self, piece: str) -> bool:
        """Whether the text, which goes on with this piece, repeats a key of an object."""
        tokens = _TOKENS.findall(self._escape + piece)
        self._escape = tokens.pop() if tokens[-1:] == ["\\"] else ""
        for token in tokens:
            if self._string is not None:
                if token != '"':
                    self._string.append(token)
                else:
                    self._last, self._string = "".join(self._string), None
            elif token == '"':
                self._string = []
            elif token in ("{", "["):
                self._objects.append(set())
            elif token in ("}", "]"):
                self._objects.pop()
            elif token == ":":
                key = json.loads(f'"{self._last}"')
                if key in self._objects[-1]:
                    return True
                self._objects[-1].add(key)
        return False


_TOKENS = re.compile(r'\\.?|["{}\[\]:]|[^\\"{}\[\]:]+', re.DOTALL)
