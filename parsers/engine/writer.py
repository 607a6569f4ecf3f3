"""A call on its way out: its name, the JSON text of its arguments, and the values that they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as quote_json
from types import MappingProxyType
from typing import Any

from ..events import Fits, Reason
from .emitter import Emitter
from .faults import Fault
from .fits import argument_fits, call_fits, name_fits
from .source import Source
from .tools import Tool

NAME = re.compile(r"[\w.\-]*")
"""Tool names: letters, digits, `_`, `.` and `-`."""


class CallWriter:
    """Writes the events of one call, whatever notation it is read from.

    JSON text goes out as it is written, except from a `hold` to its `settle`: what is written between the two
    waits, because its place is not decided yet. `by_schema`: whether the declared type of an argument decides
    between readings of its value; in JSON, a value shows its own type.
    """

    __slots__ = (
        "_fits", "_held", "_separator", "_tools", "_wrapper", "arguments", "by_schema", "complete", "emit",
        "index", "name", "only_declared", "repaired", "source", "tool",
    )  # fmt: skip

    def __init__(self, source: Source, emit: Emitter, tools: Mapping[str, Tool]) -> None:
        self.source = source
        self.emit = emit
        self.by_schema = True
        self.name: str | None = None
        self.only_declared = False  # behind a fault, other names are pieces of one [only-declared]
        self.tool: Tool | None = None  # set with the name, if the tool is declared
        self.index: int | None = None  # set with the name
        self.arguments: dict[str, Any] = {}
        self.repaired = False
        self.complete: int | None = None  # where the arguments end, if that is not where the call does
        self._tools = tools
        self._separator = ""
        self._held: list[str] | None = None
        self._wrapper: tuple[int, Mapping[str, str] | None] | None = None  # see `key`
        self._fits: dict[str, Fits] = {}  # of the arguments

    # -- JSON text ------------------------------------------------------------------------------------

    def write(self, piece: str, end: int | None = None) -> None:
        """Write JSON text that accounts for the output up to `end`, by default up to the current position."""
        if self._held is not None:
            self._held.append(piece)
        else:
            source = self.source
            self.emit.json(piece, source.base + source.pos if end is None else end)

    def hold(self) -> int:
        """Begin holding JSON text back; returns the place to `settle`."""
        if self._held is None:
            self._held = []
        self._held.append("")
        return len(self._held) - 1

    def settle(self, place: int, text: str | None = None) -> None:
        """Decide the piece at `place`: keep what was held after it, or replace all of it by `text`.

        Nothing is held any longer once the outermost place is settled.
        """
        assert self._held is not None
        if text is not None:
            self._held[place:] = [text]
        if place == 0:
            held, self._held = "".join(self._held), None
            if held:
                self.write(held, self.complete)

    def replace(self, place: int, text: str) -> None:
        """Put `text` in at `place`, keep what was held after it, and settle that."""
        assert self._held is not None
        self._held[place] = text
        self.settle(place)

    # -- the call -------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether no argument has begun."""
        return not self._separator

    def declares(self, name: str) -> bool:
        """Whether there is a tool of that name."""
        return name in self._tools

    def any_declared(self) -> bool:
        """Whether tools are known at all."""
        return bool(self._tools)

    def start(self, name: str) -> None:
        """The name is known: open the call. Raises Fault if it cannot be one."""
        self.name = name
        self.tool = self._tools.get(name)
        if self.only_declared and self.tool is None:
            raise Fault(Reason.NOT_A_CALL, final=True)
        self.index = self.emit.call_start(name, self.source.offset, name_fits(name, self._tools))

    def restart(self) -> dict[str, Any]:
        """Take back the arguments that were held so far; returns them. They are written anew by `merge`."""
        arguments, self.arguments, self._separator = self.arguments, {}, ""
        return arguments

    def key(self, key: str) -> None:
        """Write the key of the argument that comes next.

        A first one that may be all the arguments (`Tool.wraps`) waits for the call's end, or for a second.
        """
        if self._wrapper is not None:
            self._settle_wrapper()
        if not self._separator and self.wraps(key):
            self._wrapper = self.hold(), None
        self.write(f"{self._separator}{quote_json(key)}: ", self.complete)
        self._separator = ", "

    def argument(self, key: str, value: Any, written: Mapping[str, str] = MappingProxyType({})) -> None:
        """An argument is complete. Repeated with the same value it is one; with another it may be either.

        Raises Fault for that: the call has two readings [repeated-argument]. `written`: the bare numbers of a
        mapping, as they were written.
        """
        if key in self.arguments:
            if _comparable(value) != _comparable(self.arguments[key]):
                raise Fault(Reason.SYNTAX, final=True)
            self.repaired = True
        self.arguments[key] = value
        if self._wrapper is not None:
            if isinstance(value, dict):
                self._wrapper = self._wrapper[0], written
                return
            self._settle_wrapper()
        self._tell(key, value)

    def _tell(self, key: str, value: Any) -> None:
        """Say that an argument is complete."""
        if self.index is not None:
            fits = self._fits[key] = argument_fits(self.tool, key, value, self.source.marks)
            self.emit.argument_end(key, value, fits)

    def _settle_wrapper(self) -> None:
        """Decide that the first argument is one like any other, and not all of them."""
        assert self._wrapper is not None
        (place, written), self._wrapper = self._wrapper, None
        self.settle(place)
        for key, value in self.arguments.items() if written is not None else ():
            self._tell(key, value)

    def unwrap(self) -> None:
        """The call is read: a mapping that is its only argument, and no parameter, is all the arguments."""
        while self._wrapper is not None:  # what it holds may be one again
            (place, written), self._wrapper = self._wrapper, None
            self.settle(place, "")
            ((_, items),) = self.restart().items()
            self.repaired = True
            self.merge(items, written or {})

    def merge(
        self,
        items: Mapping[str, Any],
        written: Mapping[str, str],
        inner: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take the items of a mapping as arguments. `written`: its bare numbers as they were written.

        `inner`: those of the last item, if that is a mapping.
        """
        for key, value in items.items():
            typed = self.typed(key, value, written.get(key))
            self.repaired |= typed is not value
            self.key(key)
            self.write(json_text(typed), self.complete)
            self.argument(key, typed, inner)

    def fits(self) -> Fits:
        """Whether the call, which is complete, fits the declared tools."""
        assert self.name is not None
        return call_fits(self.name, self.arguments, self._tools, self._fits)

    def identity(self) -> str:
        """Name and arguments as text, the same for all calls that are equal."""
        return _comparable([self.name, self.arguments])

    def finish(self, end: int, fits: Fits = None) -> None:
        """The call, which ends at `end`, is complete."""
        assert self.name is not None
        self.emit.json("}", end if self.complete is None else self.complete)
        self.emit.call_end(self.name, self.arguments, self.repaired, end, fits)

    # -- what the schema says -------------------------------------------------------------------------

    def type_of(self, key: str) -> str | None:
        """The declared type that decides how the value of `key` is read, as `Tool.type_of`."""
        return self.tool.type_of(key) if self.tool is not None and self.by_schema else None

    def typed(self, key: str, value: Any, written: str | None) -> Any:
        """`value` as its declared type has it, as `Tool.typed`."""
        return self.tool.typed(key, value, written) if self.tool is not None and self.by_schema else value

    def kinds_of(self, key: str) -> frozenset[str] | None:
        """The JSON types that the schema of an argument allows, None if it does not limit them."""
        return None if self.tool is None else self.tool.kinds.get(key)

    def wraps(self, key: str) -> bool:
        """Whether an argument of that name can only be meant as all the arguments."""
        return self.tool is not None and self.tool.wraps(key)


_comparable = json.JSONEncoder(sort_keys=True).encode
"""A value as text that tells 1, 1.0 and true apart, and disregards the order of keys."""
_NESTED = json.JSONEncoder(ensure_ascii=False).encode
_PLAIN: Mapping[type, Callable[[Any], str]] = {
    str: quote_json,
    int: repr,
    float: repr,  # finite, since no reader lets another through
    bool: {True: "true", False: "false"}.__getitem__,
}
"""How most values are written: ten times as fast as the encoder does."""


def json_text(value: Any) -> str:
    """A value as JSON text, as the readers here write it."""
    return _PLAIN.get(type(value), _NESTED)(value)
