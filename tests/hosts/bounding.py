"""Constraints for tests: rules made up from a seed, and what they let a chain say."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from tests.hosts.prefix.chain import folded
from tests.hosts.speaking import chosen

Rule = Callable[[Sequence[int]], Sequence[int] | Any | None]
"""What may follow these tokens of an answer: a list is forced, a mask bounds, None leaves it free."""


def mask_of(tokens: Sequence[int], size: int) -> Any:
    """The mask that allows these."""
    mask = numpy.zeros(-(-size // 32), numpy.uint32)
    for token in tokens:
        mask[token // 32] |= numpy.uint32(1 << (token % 32))
    return mask


def made_up(seed: int, size: int, among: int | None = None, free: float = 0.4) -> Rule:
    """Free, bounded to a few of the first `among` tokens, or forced, each a few tokens long, at random."""
    among = among or size

    def rule(said: Sequence[int]) -> Any:
        # Forced runs must not depend on what they hold, so the answer is cut into stretches of eight.
        stretch, at = divmod(len(said), 8)
        draw = random.Random(f"{seed} {stretch} {said[: stretch * 8][-3:]}")
        kind = draw.random()
        if kind < free:
            return None
        if kind < (1 + free) / 2:
            return mask_of(draw.sample(range(among), draw.randrange(1, among // 2)), size)
        forced = [draw.randrange(among) for _ in range(8 - draw.randrange(7))]
        return forced[at:] or None

    return rule


class Bounded:
    """See `protocol.Constraint`: a rule, and all that came."""

    def __init__(self, rule: Rule, size: int, instead: int | None = None) -> None:
        """`instead`: comes wherever a token is drawn that a mask bars."""
        self.said: list[int] = []
        self._instead = instead
        self._rule = rule
        self._size = size

    def forced(self) -> Sequence[int]:
        rule = self._rule(self.said)
        return rule if isinstance(rule, list) else ()

    def mask(self) -> Any | None:
        rule = self._rule(self.said)
        return mask_of(rule[:1], self._size) if isinstance(rule, list) else rule

    def otherwise(self) -> int | None:
        return self._instead

    def accept(self, token: int) -> None:
        self.said.append(token)


def obeys(rule: Rule, said: Sequence[int]) -> bool:
    """Whether an answer is as the rule has it."""
    for at, token in enumerate(said):
        bound = rule(said[:at])
        if isinstance(bound, list):
            if token != bound[0]:
                return False
        elif bound is not None and not bound[token // 32] >> numpy.uint32(token % 32) & 1:
            return False
    return True


def spoken_under(rule: Rule, ids: Sequence[int], count: int) -> list[int]:
    """What a chain says under it."""
    value, said = folded(ids), list[int]()
    while len(said) < count:
        bound = rule(said)
        said.append(bound[0] if isinstance(bound, list) else chosen(value, bound))
        value = folded(said[-1:], value)
    return said
