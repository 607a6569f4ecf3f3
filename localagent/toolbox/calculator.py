"""The tool that calculates: numbers, operators and the functions of a pocket calculator.

simpleeval evaluates; this file decides what it may evaluate, and within which limits. Any text quickly gives
a result or a ToolError. Integers stay exact. Ambiguous notation is refused with a hint on what to write
instead: `^` (a power, or Python's exclusive or), commas inside numbers, most percentages.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import simpleeval

from localagent.errors import ToolError
from localagent.tools import tool

MAX_LENGTH = 500
"""Characters of an expression."""
MAX_DEPTH = 50
"""Levels of parentheses, functions, signs and powers."""
MAX_DIGITS = 1_000
"""Of a result."""
MAX_BITS = 13_000
"""Of an integer on the way: 3,913 digits."""
MAX_PLACES = 300
"""Digits that are rounded to, before or after the point."""

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_SPELLINGS = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{GREEK SMALL LETTER PI}": " pi ",
        "\N{NO-BREAK SPACE}": " ",
    }
)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) *% *of +(\d+(?:\.\d+)?)")
# What Python would read in another way than it was meant, or would warn of.
_REFUSED = (
    (r"\^", "^ means different things, write a power as 2 ** 3"),
    (
        r"\d,\d{3}(?!\d)",
        "leave out the commas inside numbers, and put a space after those between arguments",
    ),
    (r"%\s*(?:[-+*/),]|of\b|$)", "% is the remainder here, write 15% of 80 as 15 / 100 * 80"),
    (r"!", "write factorial(5)"),
    (r"\N{SQUARE ROOT}", "write sqrt(16)"),
    (r"(?<![a-z0-9_.])[0-9][0-9_.]*\s*\(|\)\s*[(0-9]", "write 2 * (3) for 2(3)"),
    (r"[=<>]", "nothing is compared or assigned"),
    (r"[^a-z0-9_ .,+\-*/%()]", "only numbers, + - * / // % ** and parentheses, constants and functions"),
    (r"(?<![a-z0-9_])0[xob]", "write numbers in decimal"),
    (r"[0-9)]\s*x\s*[0-9(]", "write 3 * 4 for 3 x 4"),
    (
        r"(?<![a-z0-9_])(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?!e[+-]?[0-9])[a-z]",
        "write 2 * x for 2x, and no units",
    ),
    (r"(?<![a-z0-9_])[0-9._]+e[+-]?[0-9_]+[a-z.]", "write 2 * x for 2x, and no units"),
)
_ONLY = "only numbers, + - * / // % ** and parentheses, constants and functions can be calculated"

Number = int | float


@tool(kind="read")
def calculate(expression: str) -> str:
    """Calculate an arithmetic expression, such as "(3 + 4) * 2 ** 10" or "sqrt(2) / sin(pi / 3)".

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, log, sin, round,
            min, max, abs, factorial. Angles are in radians.
    """
    tree = parse(expression)
    evaluator = simpleeval.SimpleEval(
        operators={kind: partial(apply, name, function) for kind, (name, function) in OPERATORS.items()}
        | {ast.USub: operator.neg, ast.UAdd: operator.pos},
        functions={name: partial(apply, name, function) for name, function in FUNCTIONS.items()},
    )
    evaluator.nodes = {  # no attributes, subscripts, conditions or anything else
        ast.Constant: _constant,
        ast.Name: _name,
        **{kind: evaluator.nodes[kind] for kind in (ast.UnaryOp, ast.BinOp, ast.Call)},
    }
    try:
        return written(evaluator.eval(expression, previously_parsed=tree))
    except simpleeval.FunctionNotDefined as error:
        known = ", ".join(sorted(FUNCTIONS))
        raise ToolError(f"there is no function {error.func_name:.40}: there are {known}") from None
    except simpleeval.InvalidExpression:
        raise ToolError(_ONLY) from None
    except RecursionError:
        raise ToolError("the expression is nested too deep") from None


def parse(expression: str) -> ast.expr:
    """The expression as Python reads it, unless it was meant in another way. Raises ToolError."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression has {len(expression):,} characters: at most {MAX_LENGTH} are taken")
    text = " ".join(expression.translate(_SPELLINGS).lower().split())
    if found := _PERCENT.fullmatch(text):
        text = f"{found[1]} / 100 * {found[2]}"
    for pattern, hint in _REFUSED:
        if re.search(pattern, text):
            raise ToolError(f"cannot calculate {expression!a:.100}: {hint}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"cannot calculate {expression!a:.100}: it is not an arithmetic expression") from None
    # simpleeval recurses and has no limit of its own: '-' * 300 + '1', 'sqrt(' * 80.
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {MAX_DEPTH} deep")
        for child in ast.iter_child_nodes(node):
            # A long sum counts as flat, although Python nests it to the left.
            waiting.append((child, depth + (child is not getattr(node, "left", None))))
    return tree


def _constant(node: ast.Constant) -> Number:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise ToolError(_ONLY)
    try:
        return checked(node.value)
    except OverflowError:
        raise ToolError("a number in the expression is too large") from None


def _name(node: ast.Name) -> Number:
    if node.id not in CONSTANTS:
        raise ToolError(f"there is no number called {node.id:.40}: there are {', '.join(CONSTANTS)}")
    return CONSTANTS[node.id]


def written(value: Number) -> str:
    """A result as text: integers in full, floats with the 15 digits that they hold. Raises ToolError."""
    if isinstance(value, float):
        return f"{value or 0.0:.15g}"  # not -0
    if (digits := len(text := str(value))) > MAX_DIGITS:
        raise ToolError(f"the result has {digits:,} digits: at most {MAX_DIGITS:,} are written")
    return text


def apply(name: str, function: Callable[..., Any], *values: Number) -> Number:
    """The result of an operator or a function, exact where the numbers are. Raises ToolError."""
    shown = (
        f"{name}({', '.join(map(_short, values))})"
        if name[0].isalpha()
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
    if isinstance(one, int) and isinstance(other, int) and one % other == 0:
        return one // other
    return one / other


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):  # before it is computed, which takes long
        _require_bits(max(0, base.bit_length() - 1) * exponent)
    return base**exponent


def _root(value: Number) -> Number:
    if isinstance(value, int) and math.isqrt(value) ** 2 == value:
        return math.isqrt(value)
    return math.sqrt(value)


def _ln(value: Number) -> float:
    return math.log(value)  # without log's second argument


def _round(value: Number, places: Number = 0) -> Number:
    if places != int(places) or abs(places) > MAX_PLACES:
        raise ValueError
    rounded = round(value, int(places))
    return int(rounded) if places <= 0 else rounded


def _whole(function: Callable[..., int], largest: float = math.inf) -> Callable[..., int]:
    """A function of whole numbers, none of them above `largest`."""

    def whole(*values: Number) -> int:
        if any(value != int(value) for value in values):
            raise ValueError
        if any(value > largest for value in values):
            raise OverflowError
        return function(*map(int, values))

    return whole


OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", _multiply),
    ast.Div: ("/", _divide),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", _power),
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
    "gcd": _whole(math.gcd),
    "hypot": math.hypot,
    "lcm": _whole(math.lcm),
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
