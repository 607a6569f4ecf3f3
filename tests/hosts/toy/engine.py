"""The toy's vocabulary, its lanes and the engine, in plain Python.

Its weights are a text. What comes next is what followed the longest end of the prompt there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from localagent.errors import EngineFailed
from localagent.hosts.engine import NOTHING, Packed, State
from localagent.hosts.sampling import Sampling
from localagent.hosts.utf8 import Piece, make_piece
from localagent.prompt.segments import Segment

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>")
END = 257
REACH = 64
"""Tokens that are looked back at most."""


class ToyVocabulary:
    """The 256 bytes, and after them the special tokens."""

    size = 256 + len(SPECIAL)
    special: Mapping[int, str] = dict(enumerate(SPECIAL, 256))
    bos, eos, gap = "", SPECIAL[1], None

    def piece(self, token: int) -> Piece:
        if not 0 <= token < self.size:
            raise IndexError(f"no token {token}")
        data = self.special[token].encode() if token > 255 else bytes([token])
        return make_piece(token, data, token > 255, token == END)

    def tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        parts = re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text) if special else [text]
        return tuple(
            token
            for part in parts
            for token in ([256 + SPECIAL.index(part)] if special and part in SPECIAL else part.encode())
        )

    def tokenize_segments(self, segments: Iterable[Segment], continued: bool = False) -> tuple[int, ...]:
        return tuple(token for part in segments for token in self.tokenize(part.text, part.special))


class ToyLane:
    """What a sequence holds is its ids. The token drawn last is evaluated when the next one is drawn."""

    can_verify = False

    def __init__(self, known: tuple[int, ...]) -> None:
        self._known = known
        self.ids: list[int] = []
        self._last: list[int] = []
        self._allowed: Callable[[int], bool] = lambda token: True
        self._otherwise: int | None = None

    def evaluate(self, ids: Sequence[int], cancelled: Callable[[], bool]) -> bool:
        self.ids += ids
        return True

    def begin(self, sampling: Sampling, history: Sequence[int]) -> None:
        self.end()

    def end(self) -> None:
        self._last = []

    def bound(self, mask: Any, otherwise: int | None = None) -> None:
        self._allowed = lambda token: bool(int(mask[token // 32]) >> token % 32 & 1)
        self._otherwise = otherwise

    def force(self, tokens: Sequence[int]) -> None:
        self.ids += [*self._last, *tokens]
        self._last = []

    def draw(self) -> int:
        self.ids += self._last
        allowed, otherwise = self._allowed, self._otherwise
        self._allowed, self._otherwise = (lambda token: True), None
        best = self._best(allowed if otherwise is None else lambda token: True)
        token = best if otherwise is None or allowed(best) else otherwise
        self._last = [token]
        return token

    def _best(self, allowed: Callable[[int], bool]) -> int:
        """Of the tokens that followed the longest end of the ids that is known, the first."""
        best, longest = next(filter(allowed, (END, *range(ToyVocabulary.size)))), 0
        for place, token in enumerate(self._known):
            same = 0
            while (
                same < min(place, len(self.ids), REACH)
                and self._known[place - 1 - same] == self.ids[-1 - same]
            ):
                same += 1
            if same > longest and allowed(token):
                best, longest = token, same
        return best

    def verify(self, draft: Sequence[int], last: Callable[[int], bool]) -> Sequence[int]:
        raise NotImplementedError

    def logprobs(self) -> Any:
        raise EngineFailed("the toy has no probabilities")

    def checkpoint(self) -> State:
        return NOTHING

    def rewind(self, length: int, checkpoint: State) -> bool:
        del self.ids[length:]
        return True

    def save(self) -> State:
        return State(tuple(self.ids), len(self.ids))

    def restore(self, ids: Sequence[int], saved: State) -> bool:
        self.ids = list(ids)
        return True

    def fork(self, other: Self, length: int, checkpoint: State | None) -> bool:
        self.ids = other.ids[:length]
        return True

    def clear(self) -> None:
        self.ids = []

    def pack(self, state: State) -> Packed:
        return Packed(list(state.data), ())

    def unpack(self, packed: Packed) -> State:
        return State(tuple(packed.layout), len(packed.layout))


class ToyEngine:
    """Lanes over one text."""

    chunk = batch = 32
    divisible, short, joint, spacing, threads, rewinds = True, 0, False, None, None, True

    def __init__(self, text: str, context: int, lanes: int) -> None:
        self.vocabulary = ToyVocabulary()
        self.context_size, self.capacity = context, lanes * context
        known = self.vocabulary.tokenize(text, special=True)
        self.lanes = [ToyLane(known) for _ in range(lanes)]

    def evaluate(self, lanes: Any, chunks: Any, cancelled: Any) -> bool:
        raise NotImplementedError

    def advance(self, lanes: Sequence[ToyLane]) -> Sequence[int | EngineFailed]:
        return [lane.draw() for lane in lanes]

    def rest(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.lanes = []
