"""llama.cpp's samplers once more, in numpy: which token given logits lead to, and how near another one was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy

from localagent.hosts.sampling import PENALTY_WINDOW, Sampling


@dataclass(frozen=True)
class Draw:
    """A draw, and all that decided it."""

    scores: Any
    """[size]: the logits after the repetition penalty."""
    tokens: Any
    """[n]: what could be drawn, in the order in which it was looked at."""
    edges: Any
    """[n]: where the share of each in [0, 1) ends."""
    number: float
    """Which share was drawn."""
    cut: float
    """How near top_p or min_p was to leaving another token in or out; a probability, or a share of one."""

    @property
    def rank(self) -> int:
        """The place of the token that was drawn."""
        return min(int(numpy.searchsorted(self.edges, self.number, "right")), len(self.tokens) - 1)

    @property
    def token(self) -> int:
        return int(self.tokens[self.rank])


@dataclass(frozen=True)
class Parting:
    """Two draws of two tokens from nearly the same logits. `near`: how little was between the tokens in the first draw;
    `far`: how much the logits, or what comes of them, differ."""

    kind: str
    near: float
    far: float

    @property
    def is_rounding(self) -> bool:
        """Whether the difference explains it."""
        return self.near <= self.far

    def __str__(self) -> str:
        return f"{self.kind} {self.near:.2g} of {self.far:.2g}"


def redraw(logits: Any, sampling: Sampling, ids: Sequence[int], said: Sequence[int]) -> Draw:
    """What is drawn from `logits` (float32 [size]) after the prompt `ids` and the answer `said` so far."""
    scores = logits.copy()
    if sampling.repetition_penalty is not None:
        recent = sorted({*[*ids, *said][-PENALTY_WINDOW:]})
        penalty = numpy.float32(sampling.repetition_penalty)
        scores[recent] = numpy.where(scores[recent] <= 0, scores[recent] * penalty, scores[recent] / penalty)
    if sampling.temperature == 0:
        return Draw(scores, numpy.argsort(-scores, kind="stable")[:1], numpy.ones(1), 0.0, inf)
    tokens, cut = _left(scores, sampling)
    edges = _softmax(scores[tokens] / numpy.float32(sampling.temperature)).cumsum()
    # The C++ library makes a number of two words of its generator.
    words = numpy.random.RandomState(sampling.seed).randint(0, 1 << 32, 2 * len(said) + 2, numpy.uint64)
    number = (int(words[-2]) + (int(words[-1]) << 32)) / 2**64
    return Draw(scores, tokens, edges, number, cut)


def part(one: Draw, other: Draw) -> Parting:
    """Why two draws gave different tokens.

    Either two tokens changed ranks, or a token more or less was left to be drawn, or the edge between two shares moved
    over the number.
    """
    moved = 2 * float(abs(one.scores - other.scores).max())  # of two scores, one up and one down
    if one.rank == other.rank:
        return Parting("ranks", float(abs(one.scores[one.token] - one.scores[other.token])), moved)
    if len(one.tokens) != len(other.tokens):
        return Parting("cut", one.cut, moved)
    between = one.edges[min(one.rank, other.rank) : max(one.rank, other.rank)]
    return Parting("edge", float(abs(between - one.number).max()), float(abs(one.edges - other.edges).max()))


def _left(scores: Any, sampling: Sampling) -> tuple[Any, float]:
    """What top_k, top_p and min_p leave, the likeliest first if one of them had to sort; and `Draw.cut`."""
    cut = inf
    if sampling.top_k is None and sampling.top_p is None:
        tokens = numpy.arange(len(scores))
    else:
        tokens = numpy.argsort(-scores, kind="stable")[: sampling.top_k]
    if sampling.top_p is not None:
        upto = _softmax(scores[tokens]).cumsum()
        cut = float(abs(upto - sampling.top_p).min())
        tokens = tokens[: int(numpy.argmax(upto >= sampling.top_p)) + 1]
    if sampling.min_p is not None:
        least = scores.max() + numpy.log(numpy.float32(sampling.min_p))
        cut = min(cut, float(abs(scores[tokens] - least).min()))
        tokens = tokens[scores[tokens] >= least]
    return tokens, cut


def _softmax(logits: Any) -> Any:
    values = numpy.exp(logits.astype(numpy.float64) - logits.max())
    return values / values.sum()
