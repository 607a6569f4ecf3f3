"""What several schemas allow at once: `allOf`, `enum`, and `$ref` beside other keywords all come to that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import product
from time import thread_time
from typing import Any, Final

from localagent.constraint.options import (
    ANYTHING,
    Any_,
    Constant,
    List,
    Number,
    Option,
    Options,
    Record,
    Reference,
    Text,
    Unreadable,
    fits,
    highest,
    item,
    lowest,
    size,
    sound,
    unique,
)

DEEPEST: Final = 64
"""How deep schemas may nest; beyond that anything is allowed, and reported."""
LARGEST: Final = 20_000
"""How many options one tool may have, after merging."""
WIDEST: Final = 256
"""How many alternatives may come of merging."""
PAIRS: Final = 10_000
"""How many pairs of alternatives are looked at."""
LOOKS: Final = 100_000
"""How often, in one tool, two options or an option and a value are compared."""
SECONDS: Final = 0.3
"""Seconds of processor time for matching patterns, in one tool."""
PATIENCE: Final = 0.05
"""Seconds for one of them."""


class Merging:
    """Intersects the options of one tool's schema. `resolve`: the options of a reference."""

    def __init__(self, resolve: Callable[[str], Options]) -> None:
        self._resolve = resolve
        self._budget = LARGEST
        self._looks = LOOKS
        self._seconds = SECONDS

    def spend(self, count: int) -> None:
        """Raise Unreadable where the schema comes to more than `LARGEST` options."""
        self._budget -= count
        if self._budget < 0:
            raise Unreadable("size", f"the schema has more than {LARGEST:,} parts")

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern matches somewhere; one that cannot be read is taken to.

        Raises Unreadable where that takes too long, which may grow exponentially with the text, and where all
        of them took too long.
        """
        import regex

        if self._seconds < 0:
            raise Unreadable("size", f"reading the schema takes more than {SECONDS} s to match patterns")
        started = thread_time()
        try:
            return regex.search(pattern, text, timeout=PATIENCE, concurrent=True) is not None
        except TimeoutError:
            raise Unreadable("pattern", "it takes too long to find out what it matches") from None
        except (regex.error, RecursionError):
            return True
        finally:
            self._seconds -= thread_time() - started

    def of(self, record: Record, key: str) -> Options:
        """The values of a property that is not declared. They are written once for each such property."""
        options = self._of(record, key)
        self.spend(size(options))
        return options

    def _of(self, record: Record, key: str) -> Options:
        fitting = [options for pattern, options in record.patterns if self.matches(pattern, key)]
        return fitting[0] if len(fitting) == 1 else ANYTHING if record.extra is None else record.extra

    def _look(self, count: int = 1) -> None:
        self._looks -= count
        if self._looks < 0:
            raise Unreadable("size", f"reading the schema needs more than {LOOKS:,} comparisons")

    def both(self, left: Options, right: Options, keyword: str, depth: int = 0) -> Options:
        """What both allow."""
        if ANYTHING in (left, right):
            kept = right if left == ANYTHING else left
            # Within a schema it may be kept twice, too: if every level is, the size doubles with each.
            if depth:
                self.spend(size(kept))
            return kept
        if depth > DEEPEST:
            raise Unreadable(keyword, "it refers to itself")
        if all(isinstance(option, Constant) for option in right):
            # An enumeration may be long: it is filtered, not multiplied.
            given = {_serial(option.value) for option in left if isinstance(option, Constant)}
            others = tuple(option for option in left if not isinstance(option, Constant))
            if depth:
                self._look(len(left) + len(right))
            return tuple(
                option
                for option in right
                if isinstance(option, Constant)
                and (_serial(option.value) in given or self._admits(others, option.value, depth))
            )
        if all(isinstance(option, Constant) for option in left):
            return self.both(right, left, keyword, depth)
        self.spend(len(left) * len(right))
        if len(left) * len(right) > WIDEST * 16:
            raise Unreadable(keyword, f"merging gives more than {WIDEST} alternatives")
        options: list[Option] = []
        for one, other in product(left, right):
            options += self.merged(one, other, keyword, depth)
        if len(options) > WIDEST:
            raise Unreadable(keyword, f"merging gives more than {WIDEST} alternatives")
        return unique(options)

    def merged(self, one: Option, other: Option, keyword: str, depth: int) -> Options:
        """What two options both allow."""
        match one, other:
            case (Any_(), _) | (_, Any_()):
                return self.both((one,), (other,), keyword, depth)
            case (Reference(left), Reference(right)) if left == right:
                return (one,)
            case (Reference(pointer), _):
                return self.both(self._resolve(pointer), (other,), keyword, depth + 1)
            case (_, Reference()):
                return self.merged(other, one, keyword, depth)
            case (Constant(value), _):
                return (one,) if self._admits((other,), value, depth) else ()
            case (_, Constant(value)):
                return (other,) if self._admits((one,), value, depth) else ()
            case (Number(), Number()):
                return self._merged_numbers(one, other)
            case (Text(), Text()):
                least, most = max(one.least, other.least), lowest(one.most, other.most)
                patterns = tuple(dict.fromkeys((*one.patterns, *other.patterns)))
                return () if most is not None and most < least else (Text(least, most, patterns),)
            case (List(), List()):
                return self._merged_lists(one, other, keyword, depth)
            case (Record(), Record()):
                return self._merged_records(one, other, keyword, depth)
        return ()

    def _merged_numbers(self, one: Number, other: Number) -> Options:
        multiple = one.multiple
        if other.multiple is not None and multiple not in (None, other.multiple):
            raise Unreadable("multipleOf", "several at once cannot be enforced")
        return sound(
            Number(
                one.integer or other.integer,
                highest(one.low, other.low),
                lowest(one.high, other.high),
                highest(one.above, other.above),
                lowest(one.below, other.below),
                other.multiple if multiple is None else multiple,
            )
        )

    def _merged_lists(self, one: List, other: List, keyword: str, depth: int) -> Options:
        count = max(len(one.lead), len(other.lead))
        lead = tuple(
            self.both(item(one, number), item(other, number), keyword, depth + 1) for number in range(count)
        )
        items = self.both(item(one, count), item(other, count), keyword, depth + 1)
        least, most = max(one.least, other.least), lowest(one.most, other.most)
        impossible = next((number for number, options in enumerate((*lead, items)) if not options), None)
        if impossible is not None:
            most = impossible if most is None else min(most, impossible)
        if most is not None and most < least:
            return ()
        return (List(lead, items if items else None, least, most),)

    def _merged_records(self, one: Record, other: Record, keyword: str, depth: int) -> Options:
        properties = {}
        for key in (*one.properties, *(key for key in other.properties if key not in one.properties)):
            left = one.properties[key] if key in one.properties else self.of(one, key)
            right = other.properties[key] if key in other.properties else self.of(other, key)
            properties[key] = self.both(left, right, keyword, depth + 1)
        required = one.required | other.required
        if any(not properties.get(key, ANYTHING) for key in required):
            return ()
        extra = one.extra if other.extra is None else other.extra
        if one.extra is not None and other.extra is not None:
            extra = self.both(one.extra, other.extra, keyword, depth + 1)
        patterns = tuple(dict((*one.patterns, *other.patterns)).items())
        names = one.names or other.names
        if one.names and other.names:
            merged = self.merged(one.names, other.names, keyword, depth)
            names = next((option for option in merged if isinstance(option, Text)), None)
            if names is None:  # no name fits both: there are none but those that are declared
                extra, patterns = (), ()
        return (
            Record(
                properties,
                required,
                extra,
                patterns,
                names,
                max(one.least, other.least),
                lowest(one.most, other.most),
            ),
        )

    def _admits(self, options: Options, value: Any, depth: int = 0) -> bool:
        """Whether one of the options holds `value`; a pattern that cannot be tried is taken to match."""
        if depth > DEEPEST:
            return False
        return any(self._holds(option, value, depth) for option in options)

    def _holds(self, option: Option, value: Any, depth: int) -> bool:
        self._look()
        match option:
            case Any_():
                return True
            case Constant(own):
                if isinstance(own, str) or isinstance(value, str):  # most are, and JSON is slow to write
                    return bool(own == value)
                return _serial(own) == _serial(value)
            case Reference(pointer):
                return self._admits(self._resolve(pointer), value, depth + 1)
            case Number():
                return not isinstance(value, bool) and isinstance(value, (int, float)) and fits(option, value)
            case Text():
                if not isinstance(value, str) or not _is_within(option, value):
                    return False
                return all(self.matches(pattern, value) for pattern in option.patterns)
            case List():
                if not isinstance(value, list) or not _is_within(option, value):
                    return False
                return all(self._admits(item(option, n), inner, depth + 1) for n, inner in enumerate(value))
            case Record():
                if not isinstance(value, dict) or not option.required <= value.keys():
                    return False
                return all(
                    self._admits(
                        option.properties[key] if key in option.properties else self._of(option, key),
                        inner,
                        depth + 1,
                    )
                    for key, inner in value.items()
                )

    def are_apart(self, choices: Sequence[Options]) -> bool:
        """Whether no value can fit two of the choices, as far as that is easy to see."""
        try:
            return self._are_apart(choices)
        except Unreadable:
            return False

    def _are_apart(self, choices: Sequence[Options]) -> bool:
        self._look(sum(map(len, choices)))
        constants = [
            {_serial(option.value) for option in choice if isinstance(option, Constant)} for choice in choices
        ]
        if len(set().union(*constants)) < sum(map(len, constants)):
            return False
        others = [[option for option in choice if not isinstance(option, Constant)] for choice in choices]
        if sum(map(len, others)) * sum(map(len, choices)) > 2 * PAIRS:
            return False
        return all(
            self._apart(one, other)
            for number, left in enumerate(others)
            if left
            for position, right in enumerate(choices)
            for one in left
            for other in right
            # Two that are no constants are compared once.
            if position > number or (position < number and isinstance(other, Constant))
        )

    def _apart(self, one: Option, other: Option) -> bool:
        self._look()
        match one, other:
            case (Reference(pointer), _):
                return all(
                    self._apart(option, other)
                    for option in self._resolve(pointer)
                    if not isinstance(option, Reference)
                ) and bool(self._resolve(pointer))
            case (_, Reference()):
                return self._apart(other, one)
            case (Any_(), _) | (_, Any_()):
                return False
            case (Constant(value), _):
                return not self._holds(other, value, 0)
            case (_, Constant(value)):
                return not self._holds(one, value, 0)
            case (Record(), Record()):
                shared = one.required & other.required
                return any(self._are_apart([one.properties[key], other.properties[key]]) for key in shared)
        return type(one) is not type(other)


def _is_within(option: Text | List, value: Sequence[Any]) -> bool:
    return option.least <= len(value) <= (math.inf if option.most is None else option.most)


def _serial(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
