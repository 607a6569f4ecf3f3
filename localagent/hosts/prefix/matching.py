"""How much of a sequence of ids an evaluated one already has."""

from __future__ import annotations

from collections.abc import Iterable


def common(left: list[int], right: list[int]) -> int:
    """The length of the common prefix. Whole slices are compared, at the speed of C."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def reach(have: list[int], checkpoints: Iterable[int], wanted: list[int]) -> int:
    """How many tokens of `have` a prompt of `wanted` can go on from.

    A sequence can be entered at its end and at its checkpoints. At least one token of the prompt is left to
    be evaluated, because only an evaluation gives the engine the logits of the next token.
    """
    shared = min(common(have, wanted), len(wanted) - 1)
    if shared == len(have):
        return shared
    return max((length for length in checkpoints if length <= shared), default=0)
