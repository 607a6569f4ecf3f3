"""Any value as strict JSON, or the reason why it cannot be.

Models, dataclasses, enums, dates, numbers and containers of these are converted; nothing is lost or made up.
Anything else is a ValueError that says which type, and where. An iterator is never run: it may have no end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from enum import Enum
from typing import Any

from pydantic_core import to_jsonable_python

from localagent.messages.values import check_json
from localagent.parsers.events import MAX_DEPTH
from localagent.wording import quoted

MAX_VALUES = 1_000_000
"""Values in one result; shared ones count each time, since JSON would repeat them."""


def as_json(value: Any) -> Any:
    """The value in dicts, lists, strings, numbers, booleans and None. Raises ValueError, or what it does."""
    return check_json(_Reader().read(value, ""))


class _Reader:
    """One walk through a value: what it is inside of, and how many values it has seen."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._seen = 0

    def read(self, value: Any, where: str) -> Any:
        self._seen += 1
        if self._seen > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values")
        match value:
            case None | bool():
                return value
            case Enum():
                return self.read(value.value, where)
            case str():
                return str.__str__(value)
            case int():
                return int(value)
            case float():
                return float(value)
            case bytes() | bytearray() | memoryview():
                return self._leaf(value, where)
            case Mapping() | Sequence() | Set() | ValuesView():
                return self._enter(value, where)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._enter(value, where)
        return self._leaf(value, where)

    def _enter(self, value: Any, where: str) -> Any:
        if id(value) in self._inside:
            raise ValueError(f"circular{_at(where)}")
        if len(self._inside) == MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        self._inside.add(id(value))
        if _serializer(value) is not None:
            found: Any = self._leaf(value, where)
        elif isinstance(value, Mapping):
            found = self._read_object(value.items(), where)
        elif dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            found = self._read_object(((each.name, getattr(value, each.name)) for each in fields), where)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            found = self._read_object(zip(value._fields, value, strict=True), where)
        else:
            found = [self.read(item, f"{where}[{at}]") for at, item in enumerate(value)]
        self._inside.discard(id(value))
        return found

    def _read_object(self, items: Iterable[tuple[Any, Any]], where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            name = self._key(key, where)
            if name in found:
                raise ValueError(f"two keys are {quoted(name)} in JSON{_at(where)}")
            found[name] = self.read(value, f"{where}.{quoted(name)}")
        return found

    def _key(self, key: Any, where: str) -> str:
        plain = key if isinstance(key, str) and not isinstance(key, Enum) else self.read(key, where)
        match plain:
            case None | bool():
                return {None: "null", True: "true", False: "false"}[plain]
            case str():
                return str.__str__(plain)
            case int() | float():
                return str(plain)
        raise ValueError(f"a {type(key).__name__} cannot be a key of a JSON object{_at(where)}")

    def _leaf(self, value: Any, where: str) -> Any:
        """Dates, ids, paths, decimals and the like, and models, as pydantic writes them."""
        refusal = f"{type(value).__module__}.{type(value).__name__} is not JSON{_at(where)}"
        if isinstance(value, Iterator):
            raise ValueError(refusal)
        serializer = _serializer(value)
        try:
            if serializer is not None:
                return serializer.to_python(value, mode="json", by_alias=True, warnings=False)
            return to_jsonable_python(value)
        except Exception as error:
            raise ValueError(f"{refusal}: {str(error).partition(chr(10))[0]:.200}") from None


def _serializer(value: Any) -> Any:
    """Pydantic's own, for its models and dataclasses; None for classes, which are not values."""
    return None if isinstance(value, type) else getattr(type(value), "__pydantic_serializer__", None)


def _at(where: str) -> str:
    return f" (at {where.lstrip('.')})" if where else ""
