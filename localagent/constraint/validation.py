"""The arguments of a finished call, checked against the tool's JSON Schema.

A schema is not trusted and may make a check run for ever: by a pattern such as `^(a+)+$`, references that
double at every step, or a list that is compared pair by pair. So a check has a time limit, and `regex`
matches the patterns, since it has timeouts and lets other threads run. If a check does not end in time, or
the schema or a pattern cannot be used, nothing is refused here: the tool makes its own check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from localagent.distribution import install_command
from localagent.errors import GrammarMissing, InvalidArguments

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

SECONDS = 1.0
"""Seconds that one check may take."""
PATIENCE = 0.2
"""Seconds of processor time for one match; on a busy machine that is longer by the clock."""
TOLD = 3
"""The most mistakes in a call that are reported to the model at once."""
SHOWN = 200
"""Characters of each mistake's description."""
LONGEST_PATTERN = 1000
"""Characters of a pattern: a longer one may take too long to compile."""

_deadline: ContextVar[float] = ContextVar("deadline")
"""When the current check must end, in seconds of `monotonic`."""


class Undecided(Exception):
    """The check cannot decide whether the arguments fit."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One mistake. `path`: a JSON pointer into the arguments; `keyword`: the one that they do not fit."""

    path: str
    keyword: str
    message: str


def violations(schema: Mapping[str, Any], arguments: Any) -> list[Violation]:
    """What in `arguments` does not fit `schema`; nothing if that cannot be told.

    Raises GrammarMissing without the packages of the extra.
    """
    if find_spec("jsonschema") is None or find_spec("regex") is None:
        raise GrammarMissing(f"checking a call needs jsonschema: {install_command('grammar')}")
    try:
        return [
            Violation(
                "".join(f"/{step}" for step in error.absolute_path), str(error.validator), error.message
            )
            for error in Arguments("", schema).errors(arguments)
        ]
    except Exception:  # as in `Arguments.check`
        return []


class Arguments:
    """The arguments of a tool, by its JSON Schema."""

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool = tool
        self._schema = schema

    def check(self, given: Any) -> None:
        """Raise InvalidArguments for arguments that do not fit."""
        if not isinstance(given, Mapping):
            raise InvalidArguments(f"the arguments of {self._tool} are an object, not {type(given).__name__}")
        try:
            mistakes = [_described(error) for error in self.errors(dict(given))]
        except Exception:  # Undecided, or whatever jsonschema raises for a reference to nowhere or to itself
            return
        if mistakes:
            more = "; and more" if len(mistakes) > TOLD else ""
            shown = "; ".join(mistakes[:TOLD])
            raise InvalidArguments(f"the arguments do not fit {self._tool}: {shown}{more}")

    def errors(self, given: Any) -> list[ValidationError]:
        """What does not fit, at most one more than is reported. Raises whatever keeps it from being found."""
        import jsonschema  # noqa: F401  (before the clock runs: the first import takes a while)
        import regex  # noqa: F401

        running = _deadline.set(time.monotonic() + SECONDS)
        try:
            return list(islice(self._validator.iter_errors(given), TOLD + 1)) if self._validator else []
        finally:
            _deadline.reset(running)

    @cached_property
    def _validator(self) -> Validator | None:
        """The validator, or None if the schema cannot be used."""
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from referencing import Registry

        try:
            kind = validator_for(self._schema, Draft202012Validator)
            if _leaves_bounds(self._schema):
                return None
            if not _bounded(kind)(kind.META_SCHEMA).is_valid(self._schema):
                return None
            # An empty registry prevents fetching: resolving a reference to another host would be a request to
            # elsewhere.
            return _bounded(kind)(self._schema, registry=Registry())
        except Exception:
            return None


def _described(error: ValidationError) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    where = "".join(steps).lstrip(".")
    return f"{where}: {error.message}" if where else str(error.message)


Keyword = Callable[[Any, Any, Any, Mapping[str, Any]], "Iterator[ValidationError] | None"]


def _leaves_bounds(schema: Mapping[str, Any]) -> bool:
    """Whether the schema uses something that cannot be checked within limits, such as a remote reference.

    `unevaluatedProperties` makes the package match `patternProperties` itself, without a time limit. An inner
    schema that names its own dialect would be checked by an unlimited validator.
    """
    keys: set[str] = set()
    waiting: list[Any] = list(schema.values())
    while waiting:
        match waiting.pop():
            case dict() as inner:
                if isinstance(inner.get("$schema"), str):
                    return True
                keys |= inner.keys()
                waiting += inner.values()
            case list() as several:
                waiting += several
    return {"unevaluatedProperties", "patternProperties"} <= keys | schema.keys()


@lru_cache
def _bounded(kind: Any) -> Any:
    """A validator class that checks the time at every step, with replacements for the costly keywords."""
    from jsonschema.validators import extend

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    known = {name: own.get(name, keyword) for name, keyword in kind.VALIDATORS.items()}
    bounded = extend(kind, {name: partial(_step, keyword) for name, keyword in known.items()})
    bounded.evolve = _evolve
    return bounded


def _evolve(validator: Any, **changes: Any) -> Any:
    """The same validator for an inner schema; the package's own method may pick an unlimited class."""
    import attrs

    fields = [field for field in attrs.fields(type(validator)) if field.init]
    kept = {field.alias: getattr(validator, field.name) for field in fields}
    return type(validator)(**{**kept, **changes})


def _step(
    keyword: Keyword, validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    _time_left()
    for error in keyword(validator, value, instance, schema) or ():
        # A message quotes the value, and alternatives keep a message each.
        if len(error.message) > SHOWN:
            error.message = f"{error.message[: SHOWN - 3]}..."
        yield error


def _time_left() -> float:
    """The seconds left. Raises Undecided if there are none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise Undecided("the check takes too long")
    return left


def _found(pattern: Any, text: str) -> bool:
    """Whether the pattern matches in the text. Raises Undecided if it is invalid or takes too long."""
    import regex

    if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
        raise Undecided("a pattern that is not matched here")
    try:
        return regex.search(pattern, text, timeout=min(_time_left(), PATIENCE), concurrent=True) is not None
    except (TimeoutError, regex.error, MemoryError) as error:
        raise Undecided(str(error)) from None


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    for pattern, inner in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, others: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict) or others is True:
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name not in known and not any(_found(pattern, name) for pattern in patterns):
            if others is False:
                yield ValidationError(f"there is no {name!r}")
            else:
                yield from validator.descend(value, others, path=name)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if wanted is not True or not isinstance(instance, list):
        return
    seen = set()
    for item in instance:
        _time_left()
        if (form := _comparable(item)) in seen:
            yield ValidationError(f"{instance!r} has non-unique elements")
            return
        seen.add(form)


def _comparable(value: Any) -> Any:
    """A hashable form of a value, in which 1 equals 1.0 but not true."""
    match value:
        case list():
            return ("array", *map(_comparable, value))
        case dict():
            return frozenset((name, _comparable(item)) for name, item in value.items())
        case bool():
            return ("boolean", value)
    return value
