"""A call list without markers: `[get_weather(city="Paris")]` at any place of the content [bare-list].

Only the declared tools make it a call: Markdown links and indexing look the same. It counts only as a whole,
so its events wait until the list is closed; anything else about it, and it is content.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from ...dialect import Context
from ...engine.driver import Call
from ...engine.emitter import Emitter
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.tools import MAX_BARE_NAME, Tool, begins_one
from ...events import Fits, Reason
from .block import ListBlock

_NAME_OPENED = re.compile(r"([\w.\-]*)(\(?)")

MAX_REREAD = 16
"""How often, on average, a character may be read in lists that turn out to be content.

A refused list is read again, and may hold further ones; without a bound a hostile output could cost the
square of its length. Past the bound, and until more output has come, beginnings of bare lists are content.
"""


class BareList(ListBlock):
    """Reads one list without markers, if it is one. `source.pos` is at its bracket."""

    def __init__(self, context: Context) -> None:
        self._trial = Flawless(context.emit, context.tools)
        super().__init__(replace(context, emit=self._trial))
        self.bracketed = True
        self._outer = context.emit

    reached = 0
    """How far a list was read that is content."""

    def read(self) -> Reading:
        """Read the list as calls, or leave `source.pos` where it was."""
        source = self.source
        source.keep_from(self.start)
        source.pos += 1
        try:
            closed = yield from self.elements()
        except Fault:
            closed = False
        if closed and not source.has_marker_since(self.start):
            self.emit.markup(source.offset)
            self._outer.adopt(self._trial)
        else:
            self.reached = source.offset
            source.rewind(self.start)
        source.keep_from(None)

    def element(self, char: str) -> Reading:
        """Read a call in Python: JSON outside a block is content."""
        if char == "{":
            raise Fault(Reason.NOT_A_CALL)
        return super().element(char)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """One fault decides that the list is content, so nothing is looked for behind it."""
        raise fault
        yield


class Flawless(Emitter):
    """Events that are only written if nothing about them is wrong."""

    def __init__(self, emit: Emitter, tools: Mapping[str, Tool]) -> None:
        super().__init__(emit)
        self._tools = tools

    def call_start(self, name: str, end: int, fits: Fits = None) -> int:
        """Open a call of a declared tool."""
        if name not in self._tools:
            raise Fault(Reason.NOT_A_CALL)
        return super().call_start(name, end, fits)

    def call_end(
        self, name: str, arguments: dict[str, Any], repaired: bool, end: int, fits: Fits = None
    ) -> None:
        """Close a call: without its markers it is always a repaired one."""
        super().call_end(name, arguments, True, end, fits)

    def malformed(self, *_: Any, **__: Any) -> None:
        """Refuse the list."""
        raise Fault(Reason.NOT_A_CALL)


class BareOpening:
    """Where a bare list of the declared tools may begin: `[`, a name up to MAX_BARE_NAME long, `(`."""

    first = "["

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._short = {name for name in tools if len(name) <= MAX_BARE_NAME}
        self._sorted = sorted(self._short)
        self._reread = 0  # characters of lists that turned out to be content

    def at(self, text: str, index: int) -> bool | None:
        """Whether one begins with the `[` at `index`; None while more text may make one."""
        match = _NAME_OPENED.match(text, index + 1)
        assert match is not None  # it matches the empty string
        name, opened = match.groups()
        if opened:
            return name in self._short
        return None if match.end() == len(text) and begins_one(name, self._sorted) else False

    def read(self, context: Context) -> Reading:
        """Read the list as calls, or leave the position where it was."""
        start = context.source.offset
        if self._reread > MAX_REREAD * (start + 256):
            return
        bare = BareList(context)
        yield from bare.read()
        if context.source.offset == start:
            self._reread += max(0, bare.reached - start)


def bare_lists(tools: Mapping[str, Tool]) -> BareOpening | None:
    """Where bare lists may begin, if there are tools that can make them calls."""
    return BareOpening(tools) if tools else None
