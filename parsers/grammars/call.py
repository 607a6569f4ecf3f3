"""What every notation of a call shares: its name, its arguments and the events they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from json.encoder import encode_basestring as quote_json
from typing import Any

from parsers.emitter import Emitter
from parsers.grammars.values import Values
from parsers.source import Reading, Source
from parsers.spans import Span

NAME = re.compile(r"[\w.\-]*")
"""Tool names: letters, digits, `_`, `.` and `-`."""

Follows = Callable[[bool, str], Generator[None, None, bool]]
"""Whether what comes next fits behind a whole call, as `Block.follows_call` says."""


class Call(Values):
    """One call while it is read. `index` is None until its name is known."""

    def __init__(self, source: Source, emit: Emitter, span: Span, follows_call: Follows) -> None:
        super().__init__(source, emit, span)
        self.name: str | None = None
        self.index: int | None = None
        self.arguments: dict[str, Any] = {}
        self._follows_call = follows_call
        self._separator = ""

    def read(self) -> Reading:
        """Read the call from its first character to behind its last one. Raises Fault."""
        raise NotImplementedError

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first."""
        return [frame.closer for frame in self.frames]

    def start(self, name: str) -> None:
        """The name is known: open the call."""
        self.name = name
        self.index = self.emit.call_start(name, self.source.offset)

    def write_key(self, key: str) -> None:
        """Write the key of the argument that comes next."""
        self.write(f"{self._separator}{quote_json(key)}: ")
        self._separator = ", "

    def argument(self, key: str, value: Any) -> None:
        """An argument is complete. A repeated one replaces the earlier value (policy 22)."""
        self.repaired |= key in self.arguments
        self.arguments[key] = value
        if self.index is not None:
            self.emit.argument_end(key, value)

    def finish(self, end: int) -> None:
        """The call, which ends at `end`, is complete."""
        assert self.name is not None
        self.emit.json("}", end)
        self.emit.call_end(self.name, self.arguments, self.repaired, end)
