"""Choosing the next token with MLX.

A `Sampler` lives for one generation, on the owner thread. Its order is llama.cpp's: logit bias, repetition
penalty, top_k, top_p, min_p, temperature, draw. So the truncations work on untempered probabilities, and keep
what llama.cpp's samplers keep. At temperature 0 the token is the argmax of the penalised logits, the first
where several are equal. Nothing here waits for a result: the arrays go into the graph of the next step.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localagent.hosts.mlx.library import Library
from localagent.hosts.sampling import PENALTY_WINDOW, Sampling

_SEEDS = 1 << 64
_COLDEST, _HOTTEST = 1e-20, 1e30
"""Beyond these a temperature is 0 or infinite in float32, and dividing by it gives NaN."""
_COLD = 1e-3
"""Below this the quotients of logits may be infinite, unless the largest is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One token for each row of logits, perhaps not computed yet."""

    tokens: Any
    """uint32 [rows]."""
    finite: Any
    """bool [rows]: whether the logits are numbers, without which the token means nothing."""
    logits: Any
    """[rows, vocabulary size]: what they were drawn from."""

    def select(self, rows: Any) -> Drawn:
        """Some of the rows: a slice, or an array of their numbers."""
        return Drawn(self.tokens[rows], self.finite[rows], self.logits[rows])


class Sampler:
    """Draws tokens from logits of shape [1, vocabulary size]. `history` is what the penalty sees already."""

    def __init__(self, lib: Library, sampling: Sampling, history: Sequence[int]) -> None:
        self._mx = lib.mx
        self._sampling = sampling
        penalty = sampling.repetition_penalty
        self._penalty = None if penalty == 1.0 else penalty
        ids, values = sampling.biases
        self._biased = (
            (self._mx.array([ids], dtype=self._mx.uint32), self._mx.array([values])) if ids else None
        )
        recent = list(history[-PENALTY_WINDOW:])
        self._recent: Any = self._mx.array([recent], dtype=self._mx.uint32) if recent else None
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._keys = random.Random(seed % _SEEDS) if sampling.temperature else None
        self._key: Any = None
        self._before = self._recent
        """What the penalty saw before the last draw."""

    @property
    def plain(self) -> bool:
        """Whether it takes the likeliest token and does nothing else."""
        return self._keys is None and self._penalty is None and self._biased is None

    def draw(self, logits: Any) -> Any:
        """The next token, uint32 of shape [1]."""
        self._before = self._recent
        if self._keys is not None:
            # A separate key for every token: MLX's global generator is shared by the whole process.
            self._key = self._mx.random.key(self._keys.getrandbits(64))
        return self._draw(logits)

    def redraw(self, logits: Any) -> Any:
        """The same token again, as it is drawn from other logits."""
        self._recent = self._before
        return self._draw(logits)

    def replace(self, tokens: Sequence[int]) -> None:
        """The token drawn last did not come, but `tokens` did."""
        self._recent = self._before
        for token in tokens[-PENALTY_WINDOW:] if self._penalty is not None else ():
            self._remember(self._mx.array([[token]], dtype=self._mx.uint32))

    def _draw(self, logits: Any) -> Any:
        if self._biased is not None:
            (ids, values), mx = self._biased, self._mx
            logits = logits.astype(mx.float32)
            changed = mx.take_along_axis(logits, ids, axis=1) + values
            logits = mx.put_along_axis(logits, ids, changed, axis=1)
        if self._penalty is not None:
            logits = self._penalise(logits.astype(self._mx.float32))
        token = self._mx.argmax(logits, axis=1) if self._keys is None else self._random(logits)
        if self._penalty is not None:
            self._remember(token[None])
        return token

    def truncate(self, logits: Any) -> tuple[Any, Any]:
        """The candidates that top_k, top_p and min_p leave: their ids, or None for all in order, and their
        logits in float32, where those cut away are -inf.
        """
        mx, options = self._mx, self._sampling
        ids, logits = None, logits.astype(mx.float32)
        if options.top_k is not None and options.top_k < logits.shape[-1]:
            ids = mx.argpartition(-logits, kth=options.top_k - 1, axis=1)[:, : options.top_k]
            logits = mx.take_along_axis(logits, ids, axis=1)
        if options.top_p is not None and options.top_p < 1:
            order = mx.argsort(-logits, axis=1)
            ids = order if ids is None else mx.take_along_axis(ids, order, axis=1)
            logits = mx.take_along_axis(logits, order, axis=1)
            above = mx.cumsum(mx.softmax(logits, axis=1), axis=1, inclusive=False)
            logits = mx.where(above < options.top_p, logits, -math.inf)
        if options.min_p:
            least = mx.max(logits, axis=1, keepdims=True) + math.log(options.min_p)
            logits = mx.where(logits >= least, logits, -math.inf)
        return ids, logits

    def _random(self, logits: Any) -> Any:
        mx = self._mx
        ids, logits = self.truncate(logits)
        heat = min(max(self._sampling.temperature, _COLDEST), _HOTTEST)
        if heat < _COLD:
            logits = logits - mx.max(logits, axis=1, keepdims=True)
        token = mx.random.categorical(logits / heat, key=self._key)
        return token if ids is None else mx.take_along_axis(ids, token[None], axis=1)[0]

    def _penalise(self, logits: Any) -> Any:
        if self._recent is None:
            return logits
        mx = self._mx
        # A token that occurs twice is written twice with the same value: penalised once.
        seen = mx.take_along_axis(logits, self._recent, axis=1)
        seen = mx.where(seen > 0, seen / self._penalty, seen * self._penalty)
        return mx.put_along_axis(logits, self._recent, seen, axis=1)

    def _remember(self, token: Any) -> None:
        recent = self._recent
        if recent is None:
            self._recent = token
            return
        self._recent = self._mx.concatenate([recent[:, 1 - PENALTY_WINDOW :], token], axis=1)


def draw(lib: Library, samplers: Sequence[Sampler], logits: Any) -> Drawn:
    """One token for each row of `logits`, each with its own sampler, and as that draws alone."""
    mx = lib.mx
    if len(samplers) == 1:
        tokens = samplers[0].draw(logits)
    else:
        tokens = mx.argmax(logits, axis=1)  # of all rows at once, since most are drawn so
        if not all(sampler.plain for sampler in samplers):
            rows = [slice(row, row + 1) for row in range(len(samplers))]
            each = zip(samplers, rows, strict=True)
            tokens = mx.concatenate(
                [tokens[row] if one.plain else one.draw(logits[row]) for one, row in each]
            )
    # The largest logit is NaN if any is.
    return Drawn(tokens, mx.isfinite(mx.max(logits, axis=1)), logits)


def redraw(lib: Library, drawn: Drawn, bounded: Sequence[tuple[int, Sampler, Any, int | None]]) -> Drawn:
    """The same with other tokens in some rows: drawn by that sampler, among those in that mask only; or,
    where a token is given beside the mask, that one, unless the one that was drawn is in the mask.

    The logits stay as they were: log-probabilities are those before a mask.
    """
    mx, numpy = lib.mx, lib.numpy
    tokens = [drawn.tokens[row : row + 1] for row in range(drawn.tokens.shape[0])]
    size = drawn.logits.shape[-1]
    for row, sampler, mask, otherwise in bounded:
        bits = numpy.unpackbits(mask.view(numpy.uint8), count=size, bitorder="little")
        allowed = mx.array(bits.view(numpy.bool_))
        if otherwise is None:
            tokens[row] = sampler.redraw(mx.where(allowed, drawn.logits[row : row + 1], -math.inf))
        else:
            ending = mx.array([otherwise], dtype=tokens[row].dtype)
            tokens[row] = mx.where(allowed[tokens[row]], tokens[row], ending)
    return Drawn(mx.concatenate(tokens), drawn.finite, drawn.logits)


def join(lib: Library, several: Sequence[Drawn]) -> Drawn:
    """All rows of several, in this order."""
    concatenate = lib.mx.concatenate
    return Drawn(
        concatenate([drawn.tokens for drawn in several]),
        concatenate([drawn.finite for drawn in several]),
        concatenate([drawn.logits for drawn in several]),
    )
