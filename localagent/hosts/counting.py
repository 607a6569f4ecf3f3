"""Tokenizing with a bound: a text that is far too long for the context is told from a part of it.

Ids always come from the whole text, since token boundaries depend on it. What is cut is only counted, and
only where there is so much text that a prompt which fits is unlikely; what cannot be told so is tokenized
whole. Call it where the vocabulary is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from localagent.hosts.engine import Vocabulary
from localagent.prompt.segments import Segment, TooManyTokens

PIECE: Final = 16_384
"""Characters that are tokenized at once for counting."""
CUT: Final = 64
"""Tokens of a piece that do not count. A cut adds some: where it goes through a word or a special token, and
until both sides divide a long run alike again. No vocabulary is known in which it adds half as many.
"""
_USUAL: Final = 8
"""Characters for each token of the context up to which a text is not worth counting first."""


def tokenize_within(
    vocabulary: Vocabulary, segments: Iterable[Segment], limit: float, continued: bool = False
) -> tuple[int, ...]:
    """The ids of a rendered prompt, as `Vocabulary.tokenize_segments` gives them.

    Raises TooManyTokens when there are certainly more than `limit`. A count that is only a little too long
    may come back whole.
    """
    parts = list(segments)
    if math.isfinite(limit) and sum(len(part.text) for part in parts) > max(_USUAL * limit, PIECE):
        least = count_at_least(vocabulary, parts, limit, PIECE)
        if least > limit:
            raise TooManyTokens(least)
    return vocabulary.tokenize_segments(parts, continued)


def count_at_least(
    vocabulary: Vocabulary, segments: Sequence[Segment], enough: float = math.inf, piece: int = PIECE
) -> int:
    """A number of tokens that `segments` have at least; it stops once that is more than `enough`."""
    least = 0
    for text, cut in _pieces(segments, piece):
        least += max(0, len(vocabulary.tokenize_segments((text,), continued=True)) - (CUT if cut else 0))
        if least > enough:
            break
    return least


def _pieces(segments: Sequence[Segment], size: int) -> Iterator[tuple[Segment, bool]]:
    """Pieces of the segments, and whether each was cut out of a longer one."""
    for text, special in segments:
        for begin in range(0, len(text), size):
            yield Segment(text[begin : begin + size], special), len(text) > size
