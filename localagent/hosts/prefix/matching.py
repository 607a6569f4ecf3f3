"""How much of a sequence of ids an evaluated one already has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

WORTH_FORKING = 16
"""Tokens: fewer are evaluated again more cheaply than copied from another lane."""
_COPIED = 64
"""Tokens that are copied, for one that need not be evaluated, and that is still no slower."""

Enter = Callable[[list[int], Iterable[int], list[int]], int]
"""`enter_at_checkpoints` or `enter_anywhere`: how many tokens of a sequence, which has checkpoints at some
lengths, a prompt can go on from. At least one token of the prompt is left to be evaluated, because only an
evaluation gives the engine the logits of the next token.
"""


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


def worth_forking(shared: int, held: int) -> int:
    """The `shared` tokens, if they are worth a copy of the lane, which is copied whole; else 0."""
    return shared if shared >= WORTH_FORKING and shared * _COPIED >= held else 0


def enter_at_checkpoints(
    have: list[int], checkpoints: Iterable[int], wanted: list[int], left: int = 1
) -> int:
    """A sequence can be entered at its end and at its checkpoints, `left` tokens before a prompt ends."""
    shared = min(common(have, wanted), max(0, len(wanted) - left))
    if shared == len(have):
        return shared
    return max((length for length in checkpoints if length <= shared), default=0)


def enter_anywhere(have: list[int], _: Iterable[int], wanted: list[int]) -> int:
    """A sequence can be entered everywhere. Two tokens are left, since a single one has other logits."""
    return max(0, min(common(have, wanted), len(wanted) - 2))
