"""The tool that calculates: numbers, operators and the functions of a pocket calculator.

Knows how expressions are written; `arithmetic` has what they mean. Contract: any text gives a result or a
ToolError, at once. What could be meant in two ways is refused with the words to write instead: `^`, which is
a power to some and an exclusive or to Python, commas inside numbers, and most percentages.
"""

from __future__ import annotations

import ast
import re

from localagent.errors import ToolError
from localagent.toolbox.arithmetic import CONSTANTS, Number, apply, checked
from localagent.tools import tool

MAX_LENGTH = 500
"""Characters of an expression."""
MAX_DEPTH = 50
"""Levels of parentheses, functions, signs and powers."""
MAX_DIGITS = 1_000
"""Of a result."""

_SPELLINGS = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{GREEK SMALL LETTER PI}": " pi ",
        "\N{NO-BREAK SPACE}": " ",
    }
)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) *% *of +(\d+(?:\.\d+)?)", re.IGNORECASE)
# What Python would read differently from whoever wrote it, or would warn of.
_REFUSED = (
    (r"\^", "^ means different things, write a power as 2 ** 3"),
    (
        r"\d,\d{3}(?!\d)",
        "leave out the commas inside numbers, and put a space behind those between arguments",
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
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


@tool(kind="read")
def calculate(expression: str) -> str:
    """Calculate an arithmetic expression, such as "(3 + 4) * 2 ** 10" or "sqrt(2) / sin(pi / 3)".

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, log, sin, round,
            min, max, abs, factorial. Angles are in radians.
    """
    try:
        return written(evaluate(parse(expression)))
    except RecursionError:
        raise ToolError("the expression is nested too deep") from None


def parse(expression: str) -> ast.expr:
    """The expression as Python reads it, when that is what it says. Raises ToolError."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression has {len(expression):,} characters: at most {MAX_LENGTH} are taken")
    text = " ".join(expression.translate(_SPELLINGS).split())
    if found := _PERCENT.fullmatch(text):
        text = f"{found[1]} / 100 * {found[2]}"
    for pattern, hint in _REFUSED:
        if re.search(pattern, text, re.IGNORECASE):
            raise ToolError(f"cannot calculate {expression!a:.100}: {hint}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"cannot calculate {expression!a:.100}: it is no arithmetic expression") from None


def evaluate(node: ast.expr, depth: int = 0) -> Number:
    """The value of an expression. Raises ToolError for all that is not arithmetic."""
    if depth > MAX_DEPTH:
        raise ToolError(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            try:
                return checked(value)
            except OverflowError:
                raise ToolError("a number in the expression is too large") from None
        case ast.Name(id=name) if name.lower() in CONSTANTS:
            return CONSTANTS[name.lower()]
        case ast.Name(id=name):
            raise ToolError(f"there is no number called {name:.40}: there are {', '.join(CONSTANTS)}")
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = evaluate(operand, depth + 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp():
            return _chain(node, depth)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return apply(name.lower(), *(evaluate(argument, depth + 1) for argument in arguments))
    raise ToolError(
        "only numbers, + - * / // % ** and parentheses, constants and functions can be calculated"
    )


def _chain(node: ast.expr, depth: int) -> Number:
    """A sum or product of many terms, which Python nests to the left."""
    steps: list[ast.BinOp] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        steps.append(node)
        node = node.left
    if not steps:
        raise ToolError("the operators are + - * / // % **")
    value = evaluate(node, depth + 1)
    for step in reversed(steps):
        value = apply(_OPERATORS[type(step.op)], value, evaluate(step.right, depth + 1))
    return value


def written(value: Number) -> str:
    """A result as text: integers in full, others with the 15 digits that are certain. Raises ToolError."""
    if isinstance(value, float):
        return f"{value:.15g}".replace("-0", "0") if value == 0 else f"{value:.15g}"
    if (digits := len(text := str(value))) > MAX_DIGITS:
        raise ToolError(f"the result has {digits:,} digits: at most {MAX_DIGITS:,} are written")
    return text
