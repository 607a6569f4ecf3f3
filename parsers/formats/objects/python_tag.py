"""Llama's block behind `<|python_tag|>`: JSON, or calls of builtin tools, `brave_search.call(query="x")`."""

from __future__ import annotations

from collections.abc import Generator

from ...engine.driver import Call
from ...engine.writer import NAME
from ..lists.pythonic import PythonicCall
from .block import JsonBlock

_CALL = ".call"


class BuiltinCall(PythonicCall):
    """`brave_search.call(query="x")` calls `brave_search`."""

    def start(self, name: str) -> None:
        """Open the call under the name of its tool."""
        super().start(name.removesuffix(_CALL))


class PythonTagBlock(JsonBlock):
    """Reads one block, whose end is that of the turn. Other Python in it is code, and no call."""

    separators = ",;"

    def call_at(self, char: str) -> Call:
        """A reader for an object, or for a builtin tool's call."""
        if char == "{":
            return super().call_at(char)
        return BuiltinCall(self.context, self.span, self.follows_call)

    def is_element(self, char: str) -> Generator[None, None, bool]:
        """Whether an object begins here, or a builtin tool's call."""
        if not char.isidentifier():
            return (yield from super().is_element(char))
        source = self.source
        start = source.offset
        name = yield from source.run(NAME)
        follower = yield from source.char()
        source.rewind(start)
        if not follower:  # the output ends in a name: of a call, where one is due
            return self._after is None or ";" in source.since(self._after)
        return follower == "(" and name.endswith(_CALL) and name != _CALL
