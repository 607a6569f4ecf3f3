"""The memory that a loaded model takes, depending on the context and on how many lanes there are.

This is the arithmetic; the numbers come from each engine's `memory`, which follows what it allocates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

STEP: Final = 256
"""Both engines grow the KV cache in steps of this many tokens."""
SHORTEST: Final = 512
"""The shortest context, in tokens, that is worth suggesting."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory, in bytes, that a model takes with one context and some lanes.

    The fields without a property of their own say how the parts grow: the KV cache by `kv_per_token`, the
    activations from `activations` by `activations_per_token` of what one step attends to.
    """

    context: int
    """Tokens: the most that a lane holds."""
    longest: int
    """The context in tokens that the model was trained with, or `context` where that is unknown."""
    weights: int
    """All weights, even if mapped from the file: rereading them for every token would thrash."""
    state: int
    """What does not grow, of each lane: states of convolution and state-space layers, KV of windows."""
    kv_per_token: int
    logits: int
    activations: int
    activations_per_token: int
    overhead: int = 0
    """The engine's own tables, such as the vocabulary."""
    pooled: bool = False
    """Whether lanes without a context each share one KV cache: a step then attends to all of it."""
    most: int | None = None
    """The most tokens that lanes may share, at least `context`; None for any number."""
    lanes: int = 1
    capacity: int | None = None
    """The tokens that all lanes share; None: a context for each."""

    @property
    def tokens(self) -> int:
        """The tokens that all lanes hold together."""
        if self.capacity is None:
            return self.lanes * self.context
        return self.capacity if self.most is None else min(self.capacity, max(self.most, self.context))

    @property
    def kv_cache(self) -> int:
        """The KV cache of all lanes."""
        return _padded(self.tokens) * self.kv_per_token

    @property
    def states(self) -> int:
        """The states of all lanes."""
        return self.lanes * self.state

    @property
    def compute(self) -> int:
        """Buffers of one prefill step, and the engine's tables.

        The output matrix is computed when the layers are done, in the memory that they no longer need.
        """
        seen = _padded(self.tokens if self.pooled and self.capacity is not None else self.context)
        return max(self.logits, self.activations + seen * self.activations_per_token) + self.overhead

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv_cache + self.states + self.compute

    def at(self, context: int) -> Estimate:
        """The same model with another context, in tokens, and a whole one for each lane."""
        return replace(self, context=context, capacity=None)

    def shared(self, lanes: int, capacity: int | None = None) -> Estimate:
        """The same model with so many lanes, which hold `capacity` tokens together; None: a context each."""
        return replace(self, lanes=lanes, capacity=capacity)

    def largest_context(self, available: int) -> int | None:
        """The longest context in tokens whose total fits into `available` bytes.

        At most `longest`, a multiple of 256 below that; None when not even 512 tokens fit.
        """
        longest = max(self.longest, 1)
        if self.at(longest).total <= available:
            return longest
        size = STEP * _most(lambda steps: self.at(steps * STEP).total <= available, longest // STEP)
        return size if size >= SHORTEST else None

    def most_lanes(self, available: int, most: int) -> int:
        """How many lanes, at most `most`, fit into `available` bytes with a whole context each."""
        return _most(lambda lanes: self.shared(lanes).total <= available, most)

    def largest_capacity(self, available: int) -> int:
        """How many tokens the lanes can share in `available` bytes: at least one context."""
        most = self.shared(self.lanes, self.lanes * self.context).tokens
        steps = _most(lambda n: self.shared(self.lanes, n * STEP).total <= available, most // STEP)
        return max(self.context, steps * STEP)


def whole(value: Any, otherwise: int = 0) -> int:
    """`value` if it is a whole number that can be a size, else `otherwise`: headers hold anything."""
    return value if type(value) is int and 0 <= value < 1 << 40 else otherwise


def _padded(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The greatest number up to `most` that fits, 0 for none; all smaller ones fit, too."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))
