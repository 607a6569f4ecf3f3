"""What calls and operations would build, predicted before they run.

Knows the methods of Python's own types that templates may call. Contract: what is not allowed, or would be
out of bounds, is a SecurityError; what the call goes through is paid for. The call itself is left to
the caller; an iterable argument may be replaced by one that can be charged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext

from localagent.sandbox.budget import REFERENCE, check_bits, current_budget, each

_MAX_WIDTH = 1_000
_OBJECT = 500
_NESTED_WIDTH = re.compile(r":[^{}]*\{")


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_METHODS: dict[type, frozenset[str]] = {
    str: names(
        """capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal
        isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix
        removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
        swapcase title upper zfill"""
    ),
    list: names("append clear copy count extend index insert pop remove reverse sort"),
    dict: names("clear copy get items keys pop popitem setdefault update values"),
    tuple: names("count index"),
}


def check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuse what templates have no use for, charge what the call goes through, return the arguments."""
    budget = current_budget.get()
    if isinstance(function, LoopContext):
        return (each(args[0]), *args[1:]) if args else args
    plain = getattr(function, "__wrapped__", function)
    owner, name = getattr(plain, "__self__", None), getattr(plain, "__name__", "")
    if isinstance(function, type):  # namespace, dict, cycler, joiner
        budget.spend(_OBJECT)
        budget.weigh(args)
    elif owner is None:
        if hasattr(function, "__objclass__"):
            raise SecurityError("the template calls a method of a class")
    elif type(owner).__module__.startswith("jinja2."):
        budget.weigh(args)
    else:
        allowed = next(
            (methods for kind, methods in _METHODS.items() if isinstance(owner, kind)), frozenset()
        )
        if name not in allowed:
            raise SecurityError(f"the template calls {type(owner).__name__}.{name}, which is not allowed")
        return _check_method(owner, name, args, kwargs)
    return args


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    budget = current_budget.get()
    if isinstance(owner, str):
        budget.spend(len(owner) // 16)
        if name == "join" and args:
            args = (list(args[0]),)
            budget.weigh(args[0], per_item=len(owner))
        check_text_call(name, (owner, *args, *kwargs.values()))
    elif isinstance(owner, dict):
        budget.weigh(args[:1])
    elif name in {"index", "count", "remove", "sort"}:
        budget.weigh((owner, args))
    elif name == "extend" and args and hasattr(args[0], "__len__"):
        budget.check(REFERENCE * (len(owner) + len(args[0])))
        budget.spend(REFERENCE * len(args[0]))
    return args


def check_text_call(name: str, values: tuple[Any, ...]) -> None:
    """Refuse a text method or filter called `name` on `values` (the text first) that would build too much."""
    budget = current_budget.get()
    if name in {"ljust", "rjust", "center", "zfill", "indent"}:
        for width in values[1:]:
            check_width(width)
        if name == "indent":
            text = str(values[0])
            budget.check(len(text) + len(text.splitlines()) * _MAX_WIDTH if len(text) > _MAX_WIDTH else 0)
    elif name == "replace" and len(values) >= 3:
        text, old, new = map(str, values[:3])
        growth = max(text.count(old) * len(new), text.count(new) * len(old))  # keywords come in any order
        budget.check(len(text) + growth)
    elif name == "format":
        _check_format(str(values[0]), values[1:])
    elif name == "sum" and not all(isinstance(value, int | float | str | None) for value in values[1:]):
        raise SecurityError("the template sums something else than numbers")


def check_width(width: Any) -> None:
    """Refuse a width, or a text used as one, that is too large."""
    size = len(width) if isinstance(width, str) else width
    if isinstance(size, int) and abs(size) > _MAX_WIDTH:
        raise SecurityError(f"the template pads or indents by more than {_MAX_WIDTH:,} characters")


def _check_format(pattern: str, arguments: tuple[Any, ...]) -> None:
    budget = current_budget.get()
    budget.spend(len(pattern))
    digits = 0
    for character in pattern:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 3 or character == "*":
            raise SecurityError("the template formats with a width above 999, or one that it computes")
    if _NESTED_WIDTH.search(pattern):
        raise SecurityError("the template formats with a width that it computes")
    fields = pattern.count("%") + pattern.count("{")
    budget.check(len(pattern) + fields * (budget.weigh(arguments) + _MAX_WIDTH))


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operator whose result would be out of bounds."""
    check = current_budget.get().check
    if operator == "%" and isinstance(left, str):
        _check_format(left, (right,))
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    whole = [value for value in (left, right) if isinstance(value, int)]
    if operator in {"+", "*"} and sized:
        cost = 1 if isinstance(sized[0], str) else REFERENCE
        check(cost * (sum(map(len, sized)) if operator == "+" else len(sized[0]) * max(whole, default=0)))
    elif len(whole) == 2:
        check_bits(left.bit_length() * right if operator == "**" else 0)
        check_bits(left.bit_length() + right.bit_length())
