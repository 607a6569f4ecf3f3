"""One generation as a state machine: it says what it needs next and is told what came of it.

`Generation` calls no engine and knows no thread. The scheduler asks it for the next chunk of the prompt until
there is none left, and then tells it every token that was drawn; it answers with the tokens as text, and with
the reason to stop when there is one.

A prompt is cut after the end of every message, and every `chunk` tokens within one. The cuts depend on the
prompt alone, so a prompt that goes on from a known prefix passes through the same floating-point sums, and
gives the same tokens, as one evaluated from the start, whatever else is being served. A checkpoint is worth
its memory after every message, and every few chunks within one.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from localagent.hosts.engine import Vocabulary
from localagent.hosts.prefix.matching import common
from localagent.hosts.protocol import Finish, Logprobs, Prefilled, StopReason, Token
from localagent.hosts.sampling import Sampling
from localagent.hosts.stopping import StopStrings
from localagent.hosts.utf8 import TokenText
from localagent.messages.usage import Timings


class Chunk(NamedTuple):
    """Tokens of a prompt that are evaluated at once."""

    end: int
    """The position after them."""
    ids: Sequence[int]
    marked: bool
    """A checkpoint is to be taken after them."""


class Generation:
    """The state of one generation. The scheduler adds the engine's seconds to `prefill` and `decode`."""

    def __init__(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        vocabulary: Vocabulary,
        context: int,
        chunk: int,
        spacing: int | None = None,
    ) -> None:
        """`context`: the most tokens that a lane holds; `chunk`: the most that are evaluated at once;
        `spacing`: between two checkpoints within a message, by default as many.
        """
        self.ids = ids
        self.sampling = sampling
        self.cached = 0
        self.generated = 0
        self.prefill = 0.0
        self.decode = 0.0
        self.ended: StopReason | None = None
        """Why nothing more is to be drawn; None while it goes on."""
        self._vocabulary = vocabulary
        self._chunk = chunk
        self._chunks: deque[Chunk] = deque()
        self._spacing = spacing or chunk
        # The last token drawn is not evaluated, so one more than fits.
        room = context - len(ids) + 1
        self.most = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self._text = TokenText(vocabulary.piece)
        self._stops = StopStrings(sampling.stop) if sampling.stop else None
        self._scores: deque[Logprobs] | None = None if sampling.logprobs is None else deque()

    def resume(self, cached: int) -> None:
        """The first `cached` tokens of the prompt are evaluated already."""
        self.cached = cached
        unmarked = 0
        for end, ids in cut(self.ids, cached, self._chunk, self._vocabulary):
            unmarked += len(ids)
            marked = unmarked >= self._spacing or self._vocabulary.piece(ids[-1]).end
            self._chunks.append(Chunk(end, ids, marked))
            if marked:
                unmarked = 0

    @property
    def chunk(self) -> Sequence[int] | None:
        """The tokens of the prompt to evaluate next; None when all have been."""
        return self._chunks[0].ids if self._chunks else None

    def will_reach(self, ids: Sequence[int]) -> int:
        """How many tokens of another prompt this one will have evaluated for it: up to the last checkpoint
        that is still to be taken within what both begin with.
        """
        shared = min(common(list(self.ids), list(ids)), len(ids) - 1)
        return max((chunk.end for chunk in self._chunks if chunk.marked and chunk.end <= shared), default=0)

    def progress(self) -> Prefilled:
        """How much of the prompt is evaluated."""
        chunk = self._chunks[0]
        return Prefilled(chunk.end - len(chunk.ids), len(self.ids), self.cached)

    def evaluated(self) -> bool:
        """The chunk has been evaluated. Whether a checkpoint is to be taken here."""
        return self._chunks.popleft().marked

    def drawn(self, token: int, logprobs: Callable[[], Any]) -> Sequence[Token]:
        """A token was drawn: the tokens whose text is complete now. Sets `ended` if it was the last one.

        `logprobs` gives the log-probabilities of the vocabulary, if they were asked for.
        """
        self.generated += 1
        if self._scores is not None:
            self._scores.append(_score(logprobs(), token, self.sampling.logprobs or 0))
            for likely, _ in self._scores[-1].top:  # the reader asks for its bytes: they are cached here,
                self._vocabulary.piece(likely)  # on the owner thread
        tokens = self._text.feed(token)
        if self._vocabulary.piece(token).end:
            self.ended = "stop"
        elif self.generated >= self.most:
            self.ended = "length"
        if self._scores is None and self._stops is None and self.ended is None:
            return tokens
        return self._released(tokens)

    def cancelled(self) -> Sequence[Token]:
        """Nothing more is wanted: what was held back until now."""
        self.ended = "cancelled"
        return self._released(())

    def finish(self) -> Finish:
        """How it ended."""
        assert self.ended is not None
        timings = Timings(prefill=self.prefill, decode=self.decode)
        stop = self._stops.matched if self._stops else None
        return Finish(self.ended, len(self.ids), self.cached, self.generated, timings, stop)

    def _released(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """With their scores, and up to the first stop string; at the end also what was held back."""
        if self.ended is not None:
            tokens = [*tokens, *self._text.close()]
        if self._scores is not None:
            tokens = [dataclasses.replace(token, logprobs=self._scores.popleft()) for token in tokens]
        if self._stops is None or self._stops.matched is not None:
            return tokens
        found: list[Token] = []
        for token in tokens:
            found += self._stops.feed(token)
            if self._stops.matched is not None:
                self.ended = "stop"
                return found
        if self.ended is not None:
            found += self._stops.close()
        return found


def cut(ids: Sequence[int], begin: int, size: int, vocabulary: Vocabulary) -> list[tuple[int, Sequence[int]]]:
    """The chunks of `ids` from `begin` on, each with the position of its end; at least one."""
    chunks = []
    start = begin
    for position in range(begin, len(ids)):
        end = position + 1
        if end == len(ids) or end - start == size or vocabulary.piece(ids[position]).end:
            chunks.append((end, ids[start:end]))
            start = end
    return chunks


def _score(logprobs: Any, token: int, count: int) -> Logprobs:
    import numpy

    likeliest = numpy.argsort(-logprobs, kind="stable")[:count]  # the lower id first where two are equal
    return Logprobs(float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likeliest))
