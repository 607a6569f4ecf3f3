"""Operators and functions of the calculator, each within bounds that it is checked for beforehand.

Knows numbers. Does not know how expressions are written. Contract: `apply` takes no longer than a few
milliseconds and returns a finite number or raises ToolError; integers stay exact for as long as they can.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from localagent.errors import ToolError

Number = int | float

MAX_BITS = 13_000
"""Of an integer on the way, which are 3,913 digits."""
MAX_PLACES = 300
"""Digits that are rounded to, before or behind the point."""

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def apply(name: str, *values: Number) -> Number:
    """The result of an operator or a function. Raises ToolError, also for a name that is none."""
    function = OPERATORS.get(name) or FUNCTIONS.get(name)
    if function is None:
        raise ToolError(f"there is no function {name:.40}: there are {', '.join(sorted(FUNCTIONS))}")
    shown = (
        f"{name}({', '.join(map(_short, values))})"
        if name in FUNCTIONS
        else f" {name} ".join(map(_short, values))
    )
    try:
        return checked(function(*values))
    except ZeroDivisionError:
        raise ToolError(f"{shown}: division by zero") from None
    except OverflowError:
        raise ToolError(f"{shown}: the number is too large") from None
    except ValueError:
        raise ToolError(f"{shown} is not defined") from None
    except TypeError:
        raise ToolError(f"{shown}: the arguments do not fit {name}") from None


def checked(value: Any) -> Number:
    """A number that is real, finite and not too large. Raises ToolError, OverflowError, ValueError."""
    if isinstance(value, int):
        _require_bits(value.bit_length())
        return value
    if isinstance(value, complex) or math.isnan(value):
        raise ValueError
    if math.isinf(value):
        raise OverflowError
    return float(value)


def _short(value: Number) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return f"(a number of {value.bit_length() * 0.30103:,.0f} digits)"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _require_bits(bits: float) -> None:
    if bits > MAX_BITS:
        raise OverflowError


def _multiply(one: Number, other: Number) -> Number:
    if isinstance(one, int) and isinstance(other, int):
        _require_bits(one.bit_length() + other.bit_length())
    return one * other


def _divide(one: Number, other: Number) -> Number:
    """Exact where it comes out even, so that large integers do not lose digits."""
    if isinstance(one, int) and isinstance(other, int) and other and one % other == 0:
        return one // other
    return one / other


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 0:
        _require_bits((base.bit_length() - 1) * exponent)
    return base**exponent


def _root(value: Number) -> Number:
    if isinstance(value, int) and value >= 0 and math.isqrt(value) ** 2 == value:
        return math.isqrt(value)
    return math.sqrt(value)


def _ln(value: Number) -> float:
    return math.log(value)  # without log's second argument


def _round(value: Number, places: Number = 0) -> Number:
    if places != int(places) or abs(places) > MAX_PLACES:
        raise ValueError
    rounded = round(value, int(places))
    return int(rounded) if places <= 0 else rounded


def _whole(function: Callable[..., int], largest: int) -> Callable[..., int]:
    """A function of whole numbers, none of them above `largest`."""

    def whole(*values: Number) -> int:
        if any(value != int(value) for value in values):
            raise ValueError
        if any(value > largest for value in values):
            raise OverflowError
        return function(*map(int, values))

    return whole


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": _multiply,
    "/": _divide,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "atan2": math.atan2,
    "cbrt": math.cbrt,
    "ceil": math.ceil,
    "comb": _whole(math.comb, 2_000),
    "cos": math.cos,
    "cosh": math.cosh,
    "degrees": math.degrees,
    "exp": math.exp,
    "factorial": _whole(math.factorial, 2_000),
    "floor": math.floor,
    "gcd": _whole(math.gcd, 1 << MAX_BITS),
    "hypot": math.hypot,
    "lcm": _whole(math.lcm, 1 << MAX_BITS),
    "ln": _ln,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "perm": _whole(math.perm, 2_000),
    "pow": _power,
    "radians": math.radians,
    "round": _round,
    "sin": math.sin,
    "sinh": math.sinh,
    "sqrt": _root,
    "sum": lambda *values: math.fsum(values) if any(isinstance(v, float) for v in values) else sum(values),
    "tan": math.tan,
    "tanh": math.tanh,
    "trunc": math.trunc,
}
