"""Intervals and tests for shares, pairs and times."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

_QUANTILE = 1.959963984540054  # the 97.5 % point of the normal distribution: intervals are of 95 %
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval around it."""

    value: float
    low: float
    high: float


def wilson(right: int, total: int) -> Interval:
    """The share of `right` among `total`, with Wilson's interval of 95 %, which also holds near 0 and 1.

    Raises ValueError for no total.
    """
    if not 0 <= right <= total or not total:
        raise ValueError(f"{right} of {total} is no share")
    share, squared = right / total, _QUANTILE**2
    middle = (share + squared / (2 * total)) / (1 + squared / total)
    spread = share * (1 - share) / total + squared / (4 * total**2)
    half = _QUANTILE * math.sqrt(spread) / (1 + squared / total)
    # Rounding must not exclude a share of 0 or 1 itself.
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact p, two-sided: how likely so uneven a split of the tasks on which two sides differ is,
    if neither is better. 1 where they never differ.
    """
    differing, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(differing, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**differing)) if differing < 1_000 else _large(differing, fewer)


def bootstrap(differences: Sequence[float], seed: int) -> Interval:
    """The mean of the differences, one for each task, and the interval of 95 % that drawing tasks anew gives.

    Raises ValueError for no differences.
    """
    if not differences:
        raise ValueError("there are no differences")
    rng, count = random.Random(seed), len(differences)
    means = sorted(fmean(rng.choices(differences, k=count)) for _ in range(RESAMPLES))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    return Interval(fmean(differences), low, high)


def spread(values: Sequence[float]) -> Interval:
    """The median of the rounds, with the least and the greatest of them: rounds are few, and not drawn."""
    return Interval(median(values), min(values), max(values))


def _large(differing: int, fewer: int) -> float:
    """The same through logarithms, where 2**differing is no float."""
    half = differing * math.log(2)
    terms = (
        math.exp(math.lgamma(differing + 1) - math.lgamma(k + 1) - math.lgamma(differing - k + 1) - half)
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(terms))
