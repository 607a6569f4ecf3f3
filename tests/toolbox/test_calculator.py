"""The calculator: what it says, what it refuses, and that nothing hangs it."""

from __future__ import annotations

import contextlib
import math
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ToolError
from localagent.toolbox.calculator import FUNCTIONS, calculate
from tests.toolbox.calling import call


def result(expression: str) -> str:
    return call(calculate, expression=expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("2+3*4", "14"),
        ("(2 + 3) * 4", "20"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % 3", "1"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2"),
        ("10 ** 30 / 10", "1" + "0" * 29),  # exact: a float would have lost digits
        ("123456789012345678901234567890 + 1", "123456789012345678901234567891"),
        ("2 ** 200", str(2**200)),
        ("0.1 + 0.2", "0.3"),
        ("1e3", "1000"),
        ("1.5e-3 * 2", "0.003"),
        ("2E+3", "2000"),
        ("1_000 * 2", "2000"),
        (".5 + 1.", "1.5"),
        ("1 / 3", "0.333333333333333"),
        ("-0.0", "0"),
        ("1e300 * 10", "1e+301"),
        ("sqrt(16)", "4"),
        ("sqrt(10 ** 40)", "1" + "0" * 20),
        ("sqrt(2) ** 2", "2"),
        ("SQRT(16) + Pi", "7.14159265358979"),
        ("π \u00d7 2 ÷ 4 \u2212 1", "0.570796326794897"),
        ("sin(pi / 2)", "1"),
        ("log(100, 10)", "2"),
        ("ln(e)", "1"),
        ("log10(1000)", "3"),
        ("round(2.567, 1)", "2.6"),
        ("round(1234, -2)", "1200"),
        ("round(2.5)", "2"),
        ("min(3, 1, 2) + max(4, 5)", "6"),
        ("abs(-3)", "3"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(50, 25)", str(math.comb(50, 25))),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("sum(1, 2, 3.5)", "6.5"),
        ("hypot(3, 4)", "5"),
        ("degrees(pi)", "180"),
        ("trunc(-2.5) + ceil(1.2) + floor(1.8)", "1"),
        ("15% of 80", "12"),
        ("12.5 % of 200", "25"),
        ("  1\n+\n1  ", "2"),
        ("+".join(["1"] * 250), "250"),
        ("-" * 40 + "1", "1"),
        ("(" * 100 + "1" + ")" * 100, "1"),  # parentheses alone nest nothing
        ("max(3)", "3"),
        # The limits, which are within what is taken.
        ("1" * 500, "1" * 500),
        ("10 ** 999", "1" + "0" * 999),
        ("-" * 50 + "1", "1"),
        ("2 ** 12999 // 2 ** 12990", "512"),
        ("2 ** 6000 * 2 ** 6998 // 2 ** 12990", "256"),
        ("1 ** 20000 + (-1) ** 20001 + 0 ** 20000", "0"),
        ("2 ** -2", "0.25"),
        ("comb(2000, 1) + perm(2000, 1)", "4000"),
        ("gcd(10 ** 400, 4) + lcm(10 ** 400, 3) // 10 ** 400", "7"),
        ("round(1.5, 300)", "1.5"),
        ("round(15, -300)", "0"),
        ("round(-2.7, 0)", "-3"),
        ("sqrt(0)", "0"),
        ("sqrt(2.25)", "1.5"),
        ("0 / 5", "0"),
        ("7.5 // 2 + 7.5 % 2", "4.5"),
        ("pow(2, 10)", "1024"),
        ("log2(8) + cbrt(27)", "6"),
        ("atan2(1, 1) * 4 - pi", "0"),
        ("sum(1, 2) + sum()", "3"),
        ("tau / e", f"{math.tau / math.e:.15g}"),
    ],
)
def test_results(expression, expected):
    assert result(expression) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "not an arithmetic"),
        ("()", "only numbers"),
        ("...", "only numbers"),
        ("2 +", "not an arithmetic"),
        ("2 ^ 3", r"2 \*\* 3"),
        ("5!", "factorial"),
        ("2x", r"2 \* x"),
        ("5km + 3", r"2 \* x"),
        ("1or 2", r"2 \* x"),
        ("2e3x", r"2 \* x"),
        ("1j", r"2 \* x"),
        ("0x1F", "decimal"),
        ("1,000 + 1", "commas"),
        ("max(1,234, 5)", "commas"),
        ("1, 2", "only numbers"),
        ("15%", "remainder"),
        ("200 + 10%", "remainder"),
        ("50% - 3", "remainder"),
        ("15% of 80 + 1", "remainder"),
        ("3 == 3", "compared"),
        ("x := 3", "compared"),
        ("x + 1", "no number called x"),
        ("__import__('os')", "only numbers"),
        ("().__class__", "only"),
        ("pi.real", "only"),
        ("[1 for x in (1,)]", "only"),
        ("1 if 1 else 2", "only"),
        ("1 and 2", "only"),
        ("not 1", "only"),
        ("lambda: 1", "only"),
        ("True + 1", "no number called true"),
        ("None", "no number called none"),
        ("'a' * 3", "only"),
        ("1 & 2", "only"),
        ("1 << 99999999", "compared"),
        ("~1", "only"),
        ("1 @ 2", "only"),
        ("sqrt(*(1, 2))", "only"),
        ("round(2.5, ndigits = 1)", "compared"),
        ("exec(1)", "no function exec: there are abs, "),
        ("open(1)", "no function open"),
        ("sqrt(1)(2)", "write 2 \\* "),
        ("2(3)", "write 2 \\* "),
        ("3 x 4", "write 3 \\* 4"),
        ("\N{SQUARE ROOT}16", "write sqrt"),
        ("1 / 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("0.0 ** -1", "division by zero"),
        ("sqrt(-1)", "not defined"),
        ("(-8) ** 0.5", "not defined"),
        ("log(0)", "not defined"),
        ("asin(2)", "not defined"),
        ("factorial(-1)", "not defined"),
        ("factorial(2.5)", "not defined"),
        ("round(1, 0.5)", "not defined"),
        ("sqrt()", "arguments"),
        ("sqrt(1, 2)", "arguments"),
        ("ln(8, 2)", "arguments"),
        ("min()", "not defined"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 13000", r"^2 \*\* 13000: the number is too large$"),
        ("2 ** 6000 * 2 ** 6999", "digits\\): the number is too large"),
        ("10 ** 1000", "^the result has 1,001 digits: at most 1,000 are written$"),
        ("comb(2001, 1)", r"^comb\(2001, 1\): the number is too large$"),
        ("perm(2001, 1)", r"^perm\(2001, 1\): the number is too large$"),
        ("round(1.5, 301)", r"^round\(1.5, 301\) is not defined$"),
        ("round(1.5, -301)", r"^round\(1.5, -301\) is not defined$"),
        ("2 ** 199 / 0", rf"^{2**199} / 0: division by zero$"),
        ("2 ** 200 / 0", r"^\(a number of 61 digits\) / 0: division by zero$"),
        ("1.23456789012345678 / 0", "^1.23456789012346 / 0: division by zero$"),
        ("sqrt(-4)", r"^sqrt\(-4\) is not defined$"),
        ("sqrt(1, 2)", r"^sqrt\(1, 2\): the arguments do not fit sqrt$"),
        ("-" * 51 + "1", "^the expression is nested more than 50 deep$"),
        ("10 ** 2000 + 1", "2,001 digits"),
        ("factorial(10 ** 9)", "too large"),
        ("factorial(1900)", "too large"),
        ("comb(10 ** 9, 10 ** 8)", "too large"),
        ("perm(2000, 2000)", "too large"),
        ("round(1, -(10 ** 9))", "not defined"),
        ("round(1.5, 10 ** 30)", "not defined"),
        ("exp(1000)", "too large"),
        ("2.0 ** 5000", "too large"),
        ("10 ** 400 / 3", "too large"),
        ("1e999", "too large"),
        ("1e308 * 10", "too large"),
        ("sin(10 ** 400)", "too large"),
        ("1" * 501, "501 characters"),
        ("(" * 250 + "1" + ")" * 249, "nested|not an arithmetic"),
        ("-" * 300 + "1", "nested"),
        ("sqrt(" * 80 + "1" + ")" * 80, "nested"),
        ("1\0", "only numbers"),
        ("\uff11+1", "only numbers"),
        ("²", "only numbers"),
        ("1;2", "only numbers"),
        ("1\\\n+1", "only numbers"),
        ("#", "only numbers"),
        ("007", "not an arithmetic"),
    ],
)
def test_refusals(expression, words):
    with pytest.raises(ToolError, match=words) as error:
        result(expression)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    message.encode()


WORDS = [
    "10",
    "999",
    "1e9",
    ".",
    "(",
    ")",
    "(",
    ")",
    ",",
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "**",
    "^",
    "!",
    "pi",
    "e",
    "of",
    "_",
    "e+",
    "\x00",
    "é",
    "x",
    "'",
    "[",
    "{",
    ":",
    "lambda",
]
PIECES = st.sampled_from([*FUNCTIONS, *"0123456789", *WORDS, ", ", " ", "\n"])
EXPRESSIONS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=120).map("".join))


@given(EXPRESSIONS)
def test_any_text_gives_a_result_or_a_tool_error_quickly(expression):
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            text = result(expression)
        except ToolError as error:
            text = str(error)
    assert 0 < len(text) <= 1_100
    assert time.process_time() - begin < 2


NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30), st.integers(0, 10**400), st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.sampled_from(sorted(FUNCTIONS)), st.lists(NUMBERS, max_size=3))
def test_functions_are_total_and_quick(name, values):
    begin = time.process_time()
    with contextlib.suppress(ToolError):
        result(f"{name}({', '.join(map(repr, values))})"[:500])
    assert time.process_time() - begin < 2


@given(
    st.integers(-(10**20), 10**20),
    st.integers(-(10**20), 10**20),
    st.sampled_from(["+", "-", "*", "//", "%"]),
)
def test_integers_are_exact(one, other, operator):
    if other == 0 and operator in ("//", "%"):
        return
    assert int(result(f"({one}) {operator} ({other})")) == eval(f"({one}) {operator} ({other})")
