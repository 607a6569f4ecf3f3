"""What one rendering of a chat template may spend, and what each operation of the template costs.

The unit is one character that is gone through, copied or written, which takes 10 to 20 ns; everything else is
priced by the time that it takes. Each payment also looks at the clock, so no single operation may be long:
`require` and the checks below refuse one that would be, before it is done. All limits grow with `content`,
the weight of what the caller passes in, since a long conversation is no attack.

The sizes are estimates: a hostile template can still take some hundred megabytes, and `MAX_SECONDS` plus the
time of one operation within the limits.
"""

from __future__ import annotations

import math
import re
import string
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Cycler, Namespace

MAX_VALUE = 1_000_000
"""Characters of one value, or of all that is written; plus 4 per unit of content. A prompt shows content
about once: 56,000 characters of 65,600 units, for 50 messages and 10 tools. JSON makes two characters of one
that it escapes, and some templates write the tools twice. An operation on so much takes up to 20 ms.
"""
MAX_WORK = 20_000_000
"""Plus 64 per unit of content. The same conversation takes 2 per unit; a template that goes through all
earlier messages for each of them takes more. Without content it is what an endless loop takes in 3 seconds.
"""
MAX_SECONDS = 5.0
"""Plus one per million units of content: for what is slower than its price, such as keys of one hash. 2,000
messages with 1.2 million units take 0.02 s, so a slow and busy machine has room.
"""
_MAX_BITS = 4_096  # of an integer: Python writes 4,300 digits at most, in time that grows with their square
_MAX_DEPTH = 300  # repr, == and json.dumps recurse, which Python ends at 1,000; content has up to 200
_MAX_WIDTH = 1_000  # of padding and indentation, which multiply what is written; templates indent by 4

STEP = 8  # of a loop, or any operation: 0.1 to 0.3 us
CALL = 100  # of a function: jinja2 looks whether it is safe, which takes some 10 us with the call itself
NEW = 16  # an item in a container that is a new object: some 50 bytes, where a character has 1 to 4
COPIED = 4  # an item that is a reference to an old object: 8 bytes
# Characters that are searched, compared or copied as a block in the time of one that is visited.
_SEARCHED = 16
_BITS = 4  # of an integer that make a digit

Keys: Any = type({}.keys())
CONTAINERS: Any = (list, tuple, dict, Keys, type({}.values()), type({}.items()))  # ABCs would be slow


def names(text: str) -> frozenset[str]:
    """A set of the words in a text."""
    return frozenset(text.split())


# Filters and methods that only hand on what they are given, and methods whose first argument is a key.
_STORING, _KEYED = names("append d default extend insert"), names("get pop setdefault update")
SHALLOW = names(
    """attr clear copy first items keys last length list map popitem reject rejectattr reverse select
    selectattr values"""
).union(_STORING, _KEYED)
"""Filters and methods that look at what a value holds and not into it."""
# Width, precision and kind of a `%` field. A key with parentheses in it is not read: then the kind is `(`.
_PERCENT_FIELD = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.?)", re.DOTALL)


class Budget:
    """What one rendering may still spend. `content` is the weight of what the caller passes in."""

    def __init__(self, content: int = 0) -> None:
        self.size = MAX_VALUE + 4 * content
        self._left = MAX_WORK + 64 * content
        self._deadline = time.monotonic() + MAX_SECONDS + content / 1_000_000

    def spend(self, work: int) -> None:
        """Pay, and look at the clock."""
        self._left -= work
        if self._left < 0:
            raise SecurityError("the template takes too many steps or builds too much")
        if time.monotonic() > self._deadline:
            raise SecurityError("the template takes too long")

    def require(self, size: int) -> None:
        """Refuse a value of that size, if it is too large."""
        if size > self.size:
            raise SecurityError(f"the template builds a value of more than {self.size:,} characters or items")

    def measure(self, *values: Any, per_item: int = 0, per_level: int = 0) -> int:
        """Pay for going through all of some values; return what they weigh."""
        weight = 0
        for value in values:
            weight += weigh(value, self.size, per_item, per_level)
        if values:
            self.spend(weight)
        return weight

    def made(self, value: Any, per_item: int = NEW) -> Any:
        """Pay for a value that was just made, not for what is inside its items."""
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, CONTAINERS):
            size = len(value) * per_item
        else:
            _require_bits(value.bit_length() if isinstance(value, int) else 0)
            return value
        self.require(size)
        self.spend(size)
        return value


current: ContextVar[Budget] = ContextVar("template_budget")
"""That of the rendering in this thread or task."""


def weigh(value: Any, limit: float = math.inf, per_item: int = 0, per_level: int = 0) -> int:
    """About how many characters a value takes to write. What is in it twice counts twice, as in writing.

    `per_item` and `per_level` are what separators and indentation add. Raises SecurityError above `limit`.
    """
    if isinstance(value, str):
        return len(value)
    total = 0
    stack: list[Iterator[Any]] = [iter((value,))]  # no recursion: the template chooses the depth
    while stack:
        for item in stack[-1]:
            total += NEW + per_item + per_level * len(stack)
            inside: Iterable[Any] | None = None
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                total += item.bit_length() // _BITS
            elif isinstance(item, dict):
                inside = chain(item.keys(), item.values())
            elif isinstance(item, CONTAINERS):
                inside = item
            elif isinstance(item, Namespace):
                inside = item._Namespace__attrs.values()
            if total > limit or len(stack) > _MAX_DEPTH:
                raise SecurityError("the template goes through a value that is too large or too deep")
            if inside is not None:
                stack.append(iter(inside))
                break
        else:
            stack.pop()
    return total


class Paid:
    """An iterable whose items are paid for as they come."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        spend = current.get().spend
        for item in self._iterable:
            spend(STEP)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what jinja2 expects


def is_iterator(value: Any) -> bool:
    """Whether a value yields items that cannot be measured before they come."""
    return hasattr(value, "__next__") and not isinstance(value, LoopContext | Cycler)


def listed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with lists in place of iterators, in which nothing can be measured."""
    return tuple(list(Paid(value)) if is_iterator(value) else value for value in values)


# -- what is refused, or paid for, before it is done ----------------------------------------------------


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large."""
    budget = current.get()
    budget.spend(STEP)
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    whole = [value for value in (left, right) if isinstance(value, int)]
    if operator == "%" and isinstance(left, str):
        check(operator, left, right)
    elif operator in {"+", "*"} and sized:
        count = sum(map(len, sized)) if operator == "+" else len(sized[0]) * max(whole, default=0)
        budget.require(count * (1 if isinstance(sized[0], str) else COPIED))
    elif len(whole) == 2:
        _require_bits(left.bit_length() * right if operator == "**" else 0)
        _require_bits(left.bit_length() + right.bit_length())


def _require_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError("the template computes a number that is too large")


def check_comparison(name: str, left: Any, right: Any) -> None:
    """Pay for what a comparison goes through."""
    budget = current.get()
    budget.spend(STEP)
    nested = isinstance(left, CONTAINERS)
    if name not in {"in", "notin"}:
        if nested and isinstance(right, CONTAINERS):
            budget.measure(min(left, right, key=len))  # none goes further than the shorter one
        return
    if nested:
        budget.measure(left)
    if isinstance(right, str):
        budget.spend(len(right) // _SEARCHED)
    elif isinstance(right, CONTAINERS) and not isinstance(right, (dict, Keys)):
        if nested:
            budget.measure(right)
        # 'a' * 900000 in ['b' * 900000] * 60000
        budget.spend(len(right) * (1 + len(left) // _SEARCHED if isinstance(left, str) else 1))


def check(name: str, first: Any, *others: Any) -> None:
    """Refuse a filter, a test or a method of `first` that would take too long or make too much.

    `others` are its other operands, those given by keyword in any order.
    """
    budget = current.get()
    budget.spend(STEP)
    weight = budget.measure(*([] if name in _STORING else others[:1] if name in _KEYED else others))
    if isinstance(first, str):
        # strip('b' * 900000 ~ 'a') looks for each character of the text among all of those.
        longest = max([len(value) for value in others if isinstance(value, str)], default=0)
        budget.spend(len(first) // _SEARCHED * (1 + longest // _SEARCHED))
    elif name not in SHALLOW:
        budget.measure(first)
    match name:
        case "ljust" | "rjust" | "center" | "zfill" | "round" | "indent":
            widest = max([4, *map(width, others)])  # 4 is what `indent` does without a width
            if name == "indent":
                budget.require(len(str(first)) + len(str(first).splitlines()) * widest)
        case "replace" if len(others) >= 2:
            # By keyword the two may come in either order.
            text, old, new = map(str, (first, *others[:2]))
            budget.require(len(text) + max(text.count(old) * len(new), text.count(new) * len(old)))
        case "join":  # the method: the filter pays for itself
            budget.measure(*others, per_item=len(first))
        case "%":
            fields = _PERCENT_FIELD.findall(str(first))
            _check_format(str(first), [".".join(field) for field in fields], weight)
        case "format":
            _check_format(first, [spec or "" for _, _, spec, _ in string.Formatter().parse(first)], weight)
        case "extend":  # by itself doubles
            size = COPIED * sum(len(value) for value in (first, *others) if hasattr(value, "__len__"))
            budget.require(size)
            budget.spend(size - COPIED * len(first))
        case "sum" if not all(isinstance(value, int | float | str | None) for value in others):
            raise SecurityError("the template sums something else than numbers")  # sum(start=[])
        case "sort" if any(map(callable, others)):  # key='a'.center would be called without a check
            raise SecurityError("the template sorts by a function")


def width(value: Any) -> int:
    """A width, or the length of a text used as one. Refuses one that is too large."""
    columns = len(value) if isinstance(value, str) else abs(value) if isinstance(value, int) else 0
    if columns > _MAX_WIDTH:
        raise SecurityError(f"the template pads or indents by more than {_MAX_WIDTH:,} characters")
    return columns


def _check_format(pattern: str, fields: list[str], weight: int) -> None:
    """Refuse fields that are too wide, or values of that weight in so many of them."""
    if any(re.search(r"\d{4}|[*({]", field) for field in fields):
        raise SecurityError("the template formats with a width above 999, or one that it computes")
    current.get().require(len(pattern) + len(fields) * (weight + _MAX_WIDTH))
