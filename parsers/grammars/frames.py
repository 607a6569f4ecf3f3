"""The brackets that are open while a value is read."""

from __future__ import annotations

from typing import Any

CLOSERS = {"[": "]", "(": ")", "{": "}"}


class Frame:
    """One open bracket. `keys` is True for a mapping, False for a sequence, None while undecided."""

    __slots__ = ("closer", "items", "key", "keys", "mapping", "placeholder", "written")

    def __init__(self, opener: str) -> None:
        self.closer = CLOSERS[opener]
        self.keys: bool | None = False if opener == "[" else None
        self.items: list[Any] = []
        self.mapping: dict[str, Any] = {}
        self.written: dict[str, str] = {}  # bare numbers of the mapping, as they were written
        self.key: str | None = None  # the key whose value is being read
        self.placeholder: int | None = None  # where the held JSON waits for a decision

    @property
    def expects_key(self) -> bool:
        """A mapping between two items, or a brace that may be one."""
        return self.closer == "}" and self.keys is not False and self.key is None

    @property
    def groups(self) -> bool:
        """A parenthesis that has not shown yet whether it is a tuple."""
        return self.closer == ")" and self.keys is None
