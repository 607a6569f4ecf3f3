"""Turns the byte pieces of tokens into text, one token at a time.

Every token comes out once, in order, and the joined texts equal the joined bytes decoded with
`errors="replace"`. A token whose bytes end inside a character is held back until the next token shows whether
the character continues, so that a special token's text is never mixed with other text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import NamedTuple

from localagent.hosts.protocol import Token

_decoder = codecs.getincrementaldecoder("utf-8")


class Piece(NamedTuple):
    """A token of the vocabulary. `whole` is the finished `Token` when the bytes are complete UTF-8."""

    data: bytes
    special: bool
    end: bool
    whole: Token | None


def make_piece(token: int, data: bytes, special: bool, end: bool) -> Piece:
    """Build the cache entry for a token id."""
    whole: Token | None
    try:
        whole = Token(token, data.decode(), special, end)
    except UnicodeDecodeError:
        # A special token stands alone whatever its bytes are.
        whole = Token(token, data.decode(errors="replace"), special, end) if special else None
    return Piece(data, special, end, whole)


class TokenText:
    """The decoder of one generation. `piece_of` is the vocabulary's cached lookup."""

    __slots__ = ("_decode", "_held", "_piece_of")

    def __init__(self, piece_of: Callable[[int], Piece]) -> None:
        self._piece_of = piece_of
        self._decode = _decoder(errors="replace")
        self._held: Token | None = None

    def feed(self, token: int) -> tuple[Token, ...]:
        """The tokens that `token` completes: none, itself, or the one held back and itself."""
        piece = self._piece_of(token)
        if self._held is None and piece.whole is not None:
            return (piece.whole,)
        return tuple(self._slow(token, piece))

    def close(self) -> tuple[Token, ...]:
        """The token held back, if any, with its incomplete bytes replaced."""
        return tuple(self._release(self._decode.decode(b"", final=True)))

    def _slow(self, token: int, piece: Piece) -> Iterator[Token]:
        if piece.special:
            yield from self._release(self._decode.decode(b"", final=True))
            self._decode.reset()
            assert piece.whole is not None
            yield piece.whole
            return
        yield from self._release("")
        current = Token(token, self._decode.decode(piece.data), special=False, end=piece.end)
        if self._decode.getstate()[0]:
            self._held = current
        else:
            yield current

    def _release(self, tail: str) -> Iterator[Token]:
        held, self._held = self._held, None
        if held is not None:
            yield Token(held.id, held.text + tail, held.special, held.end)
