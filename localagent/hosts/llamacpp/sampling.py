"""Choosing the next token with llama.cpp's samplers.

A `Sampler` lives for one generation, on the owner thread. Its order is repetition penalty, top_k, top_p,
min_p, temperature, draw, after the logit bias, which the lane adds. So the truncations work on untempered
probabilities. At temperature 0 the token is the argmax of the penalised logits, the first where several are
equal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from localagent.errors import EngineFailed
from localagent.hosts.sampling import PENALTY_WINDOW, Sampling

_SEEDS = 0xFFFFFFFF  # the value itself means "random" to llama.cpp


class Sampler:
    """Draws tokens from logits: numpy float32 [size], which are output `row` of the context's last batch,
    counted from the end: the last is -1."""

    def __init__(self, native: Any, vocabulary_size: int, sampling: Sampling) -> None:
        self._native = native
        self._chain: Any = None
        penalty = sampling.repetition_penalty
        penalised = penalty is not None and penalty != 1.0
        if sampling.temperature == 0 and not penalised:
            self.draw: Callable[[Any, Any, int], int] = _argmax
            return
        self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        try:
            if penalised:
                self._add(
                    native.llama_sampler_init_penalties(vocabulary_size, PENALTY_WINDOW, penalty, 0.0, 0.0)
                )
            if sampling.temperature == 0:
                self._add(native.llama_sampler_init_greedy())
            else:
                self._add_random(sampling)
        except BaseException:
            self.close()
            raise
        self.draw = self._from_chain

    def accept(self, ids: Sequence[int]) -> None:
        """Show the repetition penalty tokens that were not drawn: the end of the prompt, or forced ones."""
        if self._chain is not None:
            for token in ids[-PENALTY_WINDOW:]:
                self._native.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the chain. Safe to call twice."""
        chain, self._chain = self._chain, None
        if chain is not None:
            self._native.llama_sampler_free(chain)

    def _add(self, sampler: Any) -> None:
        if not sampler:
            raise EngineFailed("llama.cpp refused a sampling option")
        self._native.llama_sampler_chain_add(self._chain, sampler)

    def _add_random(self, sampling: Sampling) -> None:
        native = self._native
        if sampling.top_k is not None:
            self._add(native.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p is not None:
            self._add(native.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p is not None:
            self._add(native.llama_sampler_init_min_p(sampling.min_p, 1))
        self._add(native.llama_sampler_init_temp(sampling.temperature))
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._add(native.llama_sampler_init_dist(seed % _SEEDS))

    def _from_chain(self, logits: Any, context: Any, row: int) -> int:
        _check(logits.max())
        return self._native.llama_sampler_sample(self._chain, context, row)  # type: ignore[no-any-return]


def bound(logits: Any, mask: Any) -> None:
    """Leave only the tokens in `mask` (see `protocol.Constraint`) a chance, in place. Raises EngineFailed."""
    import numpy

    _check(logits.max())  # now, since the mask may hide what is no number
    banned = numpy.unpackbits(~mask.view(numpy.uint8), count=len(logits), bitorder="little")
    numpy.copyto(logits, -numpy.inf, where=banned.view(numpy.bool_))


def _argmax(logits: Any, _context: Any, _row: int) -> int:
    # llama.cpp's own greedy sampler first copies the vocabulary into a list of candidates.
    token = int(logits.argmax())
    _check(logits[token])
    return token


def _check(largest: float) -> None:
    """The largest logit is NaN if any is: weights that are damaged, or numbers too large for them."""
    if not isfinite(largest):
        raise EngineFailed("llama.cpp computed no logits that are numbers: are the weights damaged?")
