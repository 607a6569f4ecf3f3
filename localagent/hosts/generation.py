"""One generation as a state machine: it says what it needs next and is told what came of it.

`GenerationState` calls no engine and knows no thread. The scheduler asks it for the next chunk of the prompt
until there is none left, and then tells it every token that was drawn; it answers with the tokens as text,
and with the reason to stop when there is one.

A prompt that goes on from a known prefix is to give the same tokens as one evaluated from the start, whatever
else is being served. Where the floating-point sums depend on the cuts between chunks, these depend on the
prompt alone: after the end of every message, and every so many tokens within one. Elsewhere the scheduler
cuts as it likes, and only the checkpoints have their places. A checkpoint is worth its memory after every
message, and now and then within a long one.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from localagent.hosts.engine import Engine, Vocabulary
from localagent.hosts.prefix.matching import common, enter_anywhere, worth_forking
from localagent.hosts.protocol import Finish, Logprobs, Prefilled, StopReason, Token
from localagent.hosts.sampling import Sampling
from localagent.hosts.stopping import StopStrings
from localagent.hosts.utf8 import TokenText
from localagent.messages.usage import Timings


class Cuts(NamedTuple):
    """Where the prompts of an engine are cut into chunks, in tokens."""

    every: int | None
    """The length of all chunks within a message; None where any will do, but for a single token."""
    spacing: int | None
    """Between two checkpoints within a message, a multiple of `every`; None where there are to be none."""
    short: int = 0
    """Chunks of fewer tokens may be divided whatever `every` is."""
    over: bool = False
    """Whether they may also reach over the end of a message, where a checkpoint is then taken afterwards."""

    @classmethod
    def of(cls, engine: Engine) -> Cuts:
        """As the engine needs them."""
        return cls(None if engine.divisible else engine.chunk, engine.spacing, engine.short, engine.rewinds)


class Stop(NamedTuple):
    """A position of the prompt where a chunk must end."""

    end: int
    marked: bool
    """A checkpoint is to be taken there."""


class GenerationState:
    """The state of one generation. The scheduler adds the engine's seconds to `prefill` and `decode`."""

    def __init__(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        vocabulary: Vocabulary,
        context: int,
        cuts: Cuts,
    ) -> None:
        """`context`: the most tokens that a lane holds."""
        self.ids = ids
        self.sampling = sampling
        self.cached = 0
        self.generated = 0
        self.prefill = 0.0
        self.decode = 0.0
        self.ended: StopReason | None = None
        """Why nothing more is to be drawn; None while it goes on."""
        self._vocabulary = vocabulary
        self._cuts = cuts
        self.position = 0
        """How many tokens of the prompt are evaluated."""
        self._ahead: deque[Stop] = deque()
        # The last token drawn is not evaluated, so one more than fits.
        room = context - len(ids) + 1
        self.most = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self._text = TokenText(vocabulary.piece)
        self._stops = StopStrings(sampling.stop) if sampling.stop else None
        self._scores: deque[Logprobs] | None = None if sampling.logprobs is None else deque()

    def resume(self, cached: int) -> None:
        """The first `cached` tokens of the prompt are evaluated already."""
        self.cached = self.position = cached
        self._ahead.extend(stops(self.ids, cached, self._cuts, self._vocabulary))

    @property
    def whole(self) -> bool:
        """Whether all of the prompt is evaluated."""
        return not self._ahead

    def size(self, wanted: int) -> int:
        """The length of the next chunk, if it is to have about `wanted` tokens, two or more."""
        left = self._left
        if left <= wanted or not self._divides(left):
            return left
        if left > wanted + 1:
            return wanted
        return wanted - 1 if wanted > 2 else left  # a single token would be left

    def takes(self, size: int) -> bool:
        """Whether the next chunk may have this length."""
        left = self._left
        return left == size or (left >= size + 2 and self._divides(left))

    @property
    def _left(self) -> int:
        """The most tokens that the next chunk may have."""
        end = self._ahead[0].end
        if self._cuts.over:
            for stop in self._ahead:
                if stop.end - self.position >= self._cuts.short:
                    break
                end = stop.end
        return end - self.position

    def _divides(self, left: int) -> bool:
        """Whether as many tokens may be read in several chunks."""
        return not self._cuts.every or left < self._cuts.short

    def chunk(self, size: int) -> Sequence[int]:
        """The tokens of the prompt to evaluate next."""
        return self.ids[self.position : self.position + size]

    def will_reach(self, ids: Sequence[int]) -> int:
        """How many tokens of another prompt this one will have evaluated for it."""
        if self._cuts.spacing is None:
            shared = worth_forking(enter_anywhere(list(self.ids), (), list(ids)), len(self.ids))
            return shared if shared > self.position else 0
        shared = min(common(list(self.ids), list(ids)), len(ids) - 1)
        return max((stop.end for stop in self._ahead if stop.marked and stop.end <= shared), default=0)

    def progress(self) -> Prefilled:
        """How much of the prompt is evaluated."""
        return Prefilled(self.position, len(self.ids), self.cached)

    def evaluated(self, size: int) -> Sequence[int]:
        """A chunk has been evaluated. The lengths at which a checkpoint is to be taken."""
        self.position += size
        lengths = []
        while self._ahead and self._ahead[0].end <= self.position:
            stop = self._ahead.popleft()
            if stop.marked:
                lengths.append(stop.end)
        return lengths

    def drawn(self, token: int, logprobs: Callable[[], Any]) -> Sequence[Token]:
        """A token was drawn: the tokens whose text is complete now. Sets `ended` if it was the last one.

        `logprobs` gives the log-probabilities of the vocabulary, or what is wanted of them, if they were
        asked for.
        """
        self.generated += 1
        if self._scores is not None:
            found = logprobs()
            if not isinstance(found, Logprobs):
                found = _score(found, token, self.sampling.logprobs or 0)
            self._scores.append(found)
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

    def ends(self, reason: StopReason) -> Sequence[Token]:
        """Nothing more comes, though no token said so: what was held back until now."""
        self.ended = reason
        return self._released(())

    def cancelled(self) -> Sequence[Token]:
        """Nothing more is wanted: what was held back until now."""
        return self.ends("cancelled")

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


def stops(ids: Sequence[int], begin: int, cuts: Cuts, vocabulary: Vocabulary) -> Iterator[Stop]:
    """Where the chunks of `ids` from `begin` on must end; at least one, at the end of all."""
    if cuts.spacing is None:
        yield Stop(len(ids), False)
        return
    size = cuts.every or cuts.spacing
    stopped = marked = begin
    for end, token in enumerate(ids[begin:], begin + 1):
        over = vocabulary.piece(token).end
        if end == len(ids) or end - stopped == size or over:
            stopped = end
            worth = over or end - marked >= cuts.spacing
            if worth:
                marked = end
            yield Stop(end, worth)


def _score(logprobs: Any, token: int, count: int) -> Logprobs:
    import numpy

    likeliest = numpy.argsort(-logprobs, kind="stable")[:count]  # the lower id first where two are equal
    return Logprobs(float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likeliest))
