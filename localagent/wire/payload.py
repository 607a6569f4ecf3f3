"""Reading a provider's JSON: every field is checked, and every complaint says where.

What a reader does not take is left in `rest`, so that nothing goes unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from localagent.errors import InvalidMedia, InvalidMessage
from localagent.messages import UnknownPart, explain


@contextmanager
def at(where: str) -> Iterator[None]:
    """Turn what the message model refuses into an InvalidMessage that says where."""
    try:
        yield
    except ValidationError as error:
        raise InvalidMessage(explain(error, where)) from None
    except InvalidMedia as error:
        raise InvalidMessage(f"{where}: {error}") from None


class Fields:
    """One JSON object of a payload. Raises InvalidMessage for whatever is not as it should be."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise InvalidMessage(f"{where}: {_noun(value)} where an object belongs")
        if not all(isinstance(key, str) for key in value):
            raise InvalidMessage(f"{where}: an object with other keys than strings")
        self.where = where
        self._given: dict[str, Any] = dict(value)
        self._left = dict(self._given)

    def wrong(self, message: str, name: str | None = None) -> InvalidMessage:
        """The error to raise for the object, or for its field `name`."""
        return InvalidMessage(f"{self.path(name) if name else self.where}: {message}")

    def path(self, name: str) -> str:
        """The path of a field; `where` is empty for the body of a request, whose fields name themselves."""
        return f"{self.where}.{name}" if self.where else name

    def take(self, name: str) -> Any:
        """A field's value as it is; None when there is none."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str:
        """A field that must be a string."""
        value = self.take(name)
        if not isinstance(value, str):
            raise self.wrong("missing" if value is None else f"{_noun(value)} where a string belongs", name)
        return value

    def maybe_text(self, name: str) -> str | None:
        """A string, or None when there is none."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{_noun(value)} where a string belongs", name)
        return value

    def count(self, name: str) -> int:
        """A whole number, at least 0; 0 when there is none."""
        value = whole(self.take(name))
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(f"{_shown(value)} where a count belongs", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.maybe_flag(name)
        return default if value is None else value

    def maybe_flag(self, name: str) -> bool | None:
        """True or false, or None when there is neither."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"{_noun(value)} where true or false belongs", name)
        return value

    def word(self, name: str, words: Sequence[str]) -> str | None:
        """One of a few words, or None when there is none."""
        value = self.maybe_text(name)
        if value is not None and value not in words:
            raise self.wrong(f"{value!r:.60} is none of {', '.join(words)}", name)
        return value

    def number(self, name: str, numbers: Container[object]) -> Any:
        """A number in this range, which says itself what it is, or None when there is none."""
        value = whole(self.take(name))
        if value is not None and value not in numbers:
            raise self.wrong(f"{_shown(value)} where {numbers} belongs", name)
        return value

    def object(self, name: str) -> Fields:
        """A field that must be an object."""
        return Fields(self.take(name), self.path(name))

    def maybe_object(self, name: str) -> Fields | None:
        """An object, or None when there is none."""
        value = self.take(name)
        return None if value is None else Fields(value, self.path(name))

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list; none when there is no list."""
        value = self.take(name)
        return iter(()) if value is None else objects(value, self.path(name))

    def spell(self, value: Any) -> str:
        """A value of this object as JSON text, for what is kept as the text that it is."""
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.wrong(f"not JSON: {error}") from None

    def unknown(self, provider: str, kind: str) -> UnknownPart:
        """The whole object as a part of a kind that is not known here; see `extras.verbatim`."""
        with at(self.where):
            return UnknownPart.model_validate({"kind": f"{provider}:{kind}", "block": self._given})

    def rest(self) -> dict[str, Any]:
        """What nobody took, without fields that say nothing."""
        return {name: value for name, value in self._left.items() if value is not None}


def whole(value: Any) -> Any:
    """1 for 1.0: JSON has one kind of number, and some clients write every number with a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def objects(value: object, where: str) -> Iterator[Fields]:
    """The objects of a list."""
    if not isinstance(value, list | tuple):
        raise InvalidMessage(f"{where}: {_noun(value)} where a list belongs")
    return (Fields(item, f"{where}[{number}]") for number, item in enumerate(value))


def _shown(value: object) -> str:
    try:
        return f"{value!r:.40}"
    except (ValueError, RecursionError):  # an integer of thousands of digits, or endless nesting
        return _noun(value)


def _noun(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return type(value).__name__
