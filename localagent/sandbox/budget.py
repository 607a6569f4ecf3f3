"""What one rendering may spend, and how heavy values are.

Knows the containers that templates see, nothing of templates. Contract: `current_budget` holds the budget of
the compiling or rendering that runs; every payment looks at the clock, and what cannot be paid is a
SecurityError.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_VALUE = 1_000_000  # characters of one value, or of all that is written; plus 4 per unit of content
MAX_WORK = 20_000_000  # plus 64 per unit of content
MAX_SECONDS = 5.0  # plus one per million units of content
_MAX_BITS = 4_096
_MAX_DEPTH = 300
_PASS = 8
_ITEM, REFERENCE = 16, 4  # of a container: a new object in it, or one that existed before


class Budget:
    """What one rendering may still spend. `content` is the weight of what the caller passes in."""

    __slots__ = ("_deadline", "_left", "size")

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

    def check(self, size: int) -> None:
        """Refuse a value of that size."""
        if size > self.size:
            raise SecurityError(f"the template builds a value of more than {self.size:,} characters or items")

    def weigh(self, value: Any, per_item: int = 0, per_level: int = 0) -> int:
        """Pay for going through all of a value; return its weight."""
        weight = weigh(value, self.size, per_item, per_level)
        self.spend(weight)
        return weight

    def made(self, value: Any, item: int = _ITEM) -> Any:
        """Pay for a value that was just made, not for what is inside its items."""
        if isinstance(value, str | bytes):
            size = len(value)
        elif isinstance(value, list | tuple | dict | KeysView | ValuesView | ItemsView):
            size = len(value) * item
        else:
            check_bits(value.bit_length() if isinstance(value, int) else 0)
            return value
        self.check(size)
        self.spend(size)
        return value


current_budget: ContextVar[Budget] = ContextVar("template_budget")


def weigh(value: Any, limit: float, per_item: int = 0, per_level: int = 0) -> int:
    """About how many characters `value` takes to write; what is in it twice counts twice.

    `per_item` and `per_level` are what separators and indentation add. Raises SecurityError above `limit`.
    """
    if isinstance(value, str):
        return len(value)
    total = 0
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            total += _ITEM + per_item + per_level * len(stack)
            inside: Iterable[Any] | None = None
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, Namespace):
                inside = item._Namespace__attrs.values()
            elif isinstance(item, Mapping):
                inside = chain(item.keys(), item.values())
            elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
                inside = item
            if total > limit or len(stack) > _MAX_DEPTH:
                raise SecurityError("the template goes through a value that is too large or too deep")
            if inside is not None:
                stack.append(iter(inside))
                break
        else:
            stack.pop()
    return total


class each:  # noqa: N801  (a filter)
    """An iterable whose passes are charged."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        spend = current_budget.get().spend
        for item in self._iterable:
            spend(_PASS)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what jinja2 expects


def check_bits(bits: int) -> None:
    """Refuse a number of that many bits, if they are too many."""
    if bits > _MAX_BITS:
        raise SecurityError("the template computes a number that is too large")
