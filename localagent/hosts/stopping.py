"""Ends a generation before a stop string, even if the string straddles tokens.

Tokens pass through unchanged until a stop string appears in their text. The token in which it begins comes
out cut to the text before it, if there is any. A token is held back only while its text may still be part of
a stop string.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator

from localagent.hosts.protocol import Token


class StopStrings:
    """Watches one generation."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held: deque[Token] = deque()
        self._text = ""
        self.matched: str | None = None
        """The stop string that was found. Feed nothing after that."""

    def feed(self, token: Token) -> Iterator[Token]:
        """The tokens that cannot be part of a stop string any more."""
        self._held.append(token)
        self._text += token.text
        places = ((self._text.find(stop), stop) for stop in self._stops)
        found = min(((at, -len(stop), stop) for at, stop in places if at >= 0), default=None)
        if found is None:
            yield from self._release(self._open())
            return
        at, _, self.matched = found
        before = self._text[:at]
        for whole in self._release(at):
            before = before[len(whole.text) :]
            yield whole
        if before:
            yield dataclasses.replace(self._held[0], text=before)
        self._held.clear()
        self._text = ""

    def close(self) -> Iterator[Token]:
        """The tokens still held back."""
        yield from self._release(len(self._text))
        yield from self._held
        self._held.clear()

    def _open(self) -> int:
        """Where the longest end of the text begins that a stop string may begin with."""
        text = self._text
        for at in range(len(text)):  # no more than was held back, and a token
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)

    def _release(self, until: int) -> Iterator[Token]:
        """The tokens whose text ends at or before `until`; an empty one follows the text before it."""
        while self._held and len(self._held[0].text) <= until:
            token = self._held.popleft()
            until -= len(token.text)
            self._text = self._text[len(token.text) :]
            yield token
