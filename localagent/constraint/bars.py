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
    """The bars of one generation. It is told of every token."""

    def __init__(
        self, vocabulary: Vocabulary, tokens: Iterable[int], texts: Sequence[str], leading: str = ""
    ) -> None:
        """`tokens`: never to be drawn. `texts`: never to be written. `leading`: characters with which the
        output must not begin, after white space.
        """
        self._spellings = _spellings_of(vocabulary)
        self._texts = [text.encode() for text in texts]
        self._leading = leading.encode()
        self._longest = max(map(len, self._texts), default=0)
        self._tail = b""
        self._blank = True
        self._always = self._spellings.mask([*tokens, *self._spellings.holding(self._texts)])

    def mask(self) -> Any:
        """See `protocol.Constraint`."""
        barred = list(self._completing())
        if self._blank and self._leading:
            barred += self._spellings.leading(self._leading)
        return self._always & self._spellings.mask(barred) if barred else self._always

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

    def leading(self, first: bytes) -> Iterator[int]:
        """The tokens that begin with one of these characters, after white space."""
        return (token for token, data in enumerate(self.data) if data.lstrip()[:1] in _each(first))

    def mask(self, barred: Iterable[int]) -> Any:
        """The mask of all others."""
        import numpy

        mask = numpy.full(-(-len(self.data) // 32), 0xFFFFFFFF, numpy.uint32)
        for token in barred:
            mask[token // 32] &= ~numpy.uint32(1 << (token % 32))
        return mask


def _each(characters: bytes) -> list[bytes]:
    return [characters[at : at + 1] for at in range(len(characters))]


def _spellings_of(vocabulary: Vocabulary) -> _Spellings:
    """Made once for a vocabulary: that takes a while."""
    found = _known.get(vocabulary)
    if found is None:
        found = _known[vocabulary] = _Spellings(vocabulary)
    return found


_known: WeakKeyDictionary[Any, _Spellings] = WeakKeyDictionary()
