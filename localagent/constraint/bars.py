"""Calls that are not to be made: which tokens would complete a marker of them.

No grammar is needed for that, and no other package. A marker may be one token, or ordinary text over several;
of the latter only the token that would complete it is barred, so that everything else can still be written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from localagent.hosts.engine import Vocabulary


class Bars:
    """The bars of one generation. `accept` has to see every token."""

    def __init__(
        self, vocabulary: Vocabulary, tokens: Iterable[int], texts: Sequence[str], leading: str = ""
    ) -> None:
        """`tokens`: never to be drawn. `texts`: never to be written. `leading`: characters with which the
        output must not begin, after white space.
        """
        self._spellings = _spellings_of(vocabulary)
        self._texts = [text.encode() for text in texts]
        self._leading = [char.encode() for char in leading]
        self._longest = max(map(len, self._texts), default=0)
        self._tail = b""
        self._blank = True
        self._always = ~only([*tokens, *self._spellings.holding(self._texts)], vocabulary.size)

    def mask(self) -> Any:
        """The mask of all tokens that are not barred here, as `protocol.Constraint` has it."""
        barred = list(self._completing())
        if self._blank and self._leading:
            barred += self._spellings.leading(self._leading)
        return self._always & ~only(barred, len(self._spellings.data)) if barred else self._always

    def accept(self, token: int) -> None:
        """This token came."""
        data = self._spellings.data[token]
        self._blank = self._blank and not data.strip()
        self._tail = (self._tail + data)[-self._longest :] if self._longest else b""

    def _completing(self) -> Iterator[int]:
        for text in self._texts:
            for length in range(min(len(text) - 1, len(self._tail)), 0, -1):
                if self._tail.endswith(text[:length]):
                    yield from self._spellings.beginning(text[length:])


class _Spellings:
    """What the tokens of a vocabulary spell, in order."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.data = [vocabulary.piece(token).data for token in range(vocabulary.size)]
        self._order = sorted(range(len(self.data)), key=self.data.__getitem__)
        self._sorted = [self.data[token] for token in self._order]
        self._holding: dict[bytes, list[int]] = {}

    def beginning(self, start: bytes) -> Sequence[int]:
        """The tokens that begin so."""
        first = last = bisect_left(self._sorted, start)
        while last < len(self._sorted) and self._sorted[last].startswith(start):
            last += 1
        return self._order[first:last]

    def holding(self, texts: Iterable[bytes]) -> Iterator[int]:
        """The tokens that hold one of these."""
        for text in texts:
            if text not in self._holding:
                self._holding[text] = [token for token, data in enumerate(self.data) if text in data]
            yield from self._holding[text]

    def leading(self, first: Sequence[bytes]) -> Iterator[int]:
        """The tokens that begin with one of these characters, after white space."""
        return (token for token, data in enumerate(self.data) if data.lstrip().startswith(tuple(first)))


def _spellings_of(vocabulary: Vocabulary) -> _Spellings:
    """Made once for a vocabulary: that takes a while."""
    spellings = _known.get(vocabulary)
    if spellings is None:
        spellings = _known[vocabulary] = _Spellings(vocabulary)
    return spellings


_known: WeakKeyDictionary[Any, _Spellings] = WeakKeyDictionary()


def only(tokens: Iterable[int], size: int) -> Any:
    """The mask of these tokens and no others."""
    import numpy

    mask = numpy.zeros(-(-size // 32), numpy.uint32)
    for token in tokens:
        mask[token // 32] |= numpy.uint32(1 << (token % 32))
    return mask
