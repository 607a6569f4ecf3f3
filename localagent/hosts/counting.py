"""Tokenizing with a limit: a prompt far too long for the context is refused after only a part was read.

Token boundaries depend on the whole text, so ids always come from the whole text. It is cut into pieces only
for counting, and only if it is so long that it is unlikely to fit. If the count does not settle the question,
the text is tokenized whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from localagent.hosts.engine import Vocabulary
from localagent.prompt.segments import Segment, TooManyTokens

PIECE: Final = 16_384
"""Characters tokenized at once when counting."""
CUT: Final = 64
"""Tokens of each piece that are not counted, because cutting a word, a special token or a long run adds some.
In no known vocabulary does a cut add half as many.
"""
_USUAL: Final = 8
"""A text with at most this many characters per token of the context is not counted first."""


def tokenize_within(
    vocabulary: Vocabulary, segments: Iterable[Segment], limit: float, continued: bool = False
) -> tuple[int, ...]:
    """The ids of a rendered prompt, as `Vocabulary.tokenize_segments` gives them.

    Raises TooManyTokens if there are certainly more than `limit`. A prompt that is only a little too long may
    still be returned.
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
    """A lower bound on the tokens of `segments`. Counting stops once it exceeds `enough`."""
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
