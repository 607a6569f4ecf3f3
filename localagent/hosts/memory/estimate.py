"""The memory that a loaded model takes, depending on the context.

This is the arithmetic; the numbers come from `gguf` and `mlx`, which follow what each engine allocates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

STEP: Final = 256
"""Both engines grow the KV cache in steps of this many tokens."""
SHORTEST: Final = 512
"""The shortest context, in tokens, that is worth suggesting."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory, in bytes, that a model takes with one context.

    The fields without a property of their own say how the parts grow: the KV cache by `kv_per_token`, the
    activations from `activations` by `activations_per_token` of context.
    """

    context: int
    """Tokens."""
    longest: int
    """The context in tokens that the model was trained with, or `context` where that is unknown."""
    weights: int
    """All weights, even if mapped from the file: rereading them for every token would thrash."""
    state: int
    """The part that does not grow: recurrent states of convolution and state-space layers, KV of windows."""
    kv_per_token: int
    logits: int
    activations: int
    activations_per_token: int
    overhead: int = 0
    """The engine's own tables, such as the vocabulary."""

    @property
    def kv_cache(self) -> int:
        """The KV cache at `context`."""
        return self._padded * self.kv_per_token

    @property
    def compute(self) -> int:
        """Buffers of one prefill step, and the engine's tables.

        The output matrix is computed when the layers are done, in the memory that they no longer need.
        """
        layers = self.activations + self._padded * self.activations_per_token
        return max(self.logits, layers) + self.overhead

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv_cache + self.state + self.compute

    def at(self, context: int) -> Estimate:
        """The same model with another context, in tokens."""
        return replace(self, context=context)

    def largest_context(self, available: int) -> int | None:
        """The longest context in tokens whose total fits into `available` bytes.

        At most `longest`, a multiple of 256 below that; None when not even 512 tokens fit.
        """
        longest = max(self.longest, 1)
        if self.at(longest).total <= available:
            return longest
        low, high = 0, longest // STEP  # low fits or is 0, high + 1 does not
        while low < high:
            middle = (low + high + 1) // 2
            if self.at(middle * STEP).total <= available:
                low = middle
            else:
                high = middle - 1
        return low * STEP if low * STEP >= SHORTEST else None

    @property
    def _padded(self) -> int:
        return -(-self.context // STEP) * STEP


def whole(value: Any, otherwise: int = 0) -> int:
    """`value` if it is a whole number that can be a size, else `otherwise`: headers hold anything."""
    return value if type(value) is int and 0 <= value < 1 << 40 else otherwise
