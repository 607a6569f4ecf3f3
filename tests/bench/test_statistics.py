"""Intervals and tests give the known values, and hold at the edges."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent_bench.statistics import bootstrap, mcnemar, spread, wilson


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_the_tables(right, total, low, high):
    found = wilson(right, total)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.value == right / total


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_an_interval_holds_its_share(pair):
    found = wilson(*pair)
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize(("right", "total"), [(0, 0), (3, 2), (-1, 4)])
def test_what_is_no_share_is_refused(right, total):
    with pytest.raises(ValueError, match="no share"):
        wilson(right, total)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"), [(0, 0, 1), (1, 9, 22 / 1024), (5, 0, 0.0625), (4, 4, 1), (0, 1, 1)]
)
def test_mcnemars_p_is_the_binomial_one(only_first, only_second, p):
    assert mcnemar(only_first, only_second) == pytest.approx(p)
    assert mcnemar(only_second, only_first) == pytest.approx(p)


def test_mcnemars_p_is_the_same_where_powers_of_two_are_no_floats():
    tail = sum(Fraction(math.comb(2_000, count)) for count in range(951))
    assert mcnemar(950, 1_050) == pytest.approx(float(2 * tail / 2**2_000))


def test_the_bootstrap_repeats_itself_and_comes_near_the_normal_interval():
    differences = [1.0] * 50 + [0.0] * 50
    found = bootstrap(differences, seed=1)
    assert found == bootstrap(differences, seed=1)
    assert found.value == 0.5
    assert found.low == pytest.approx(0.402, abs=0.02)
    assert found.high == pytest.approx(0.598, abs=0.02)
    assert bootstrap([3.0], seed=1).low == bootstrap([3.0], seed=2).high == 3.0
    with pytest.raises(ValueError, match="no differences"):
        bootstrap([], seed=1)


def test_the_spread_is_the_median_and_the_ends():
    found = spread([3.0, 1.0, 10.0])
    assert (found.low, found.value, found.high) == (1.0, 3.0, 10.0)
