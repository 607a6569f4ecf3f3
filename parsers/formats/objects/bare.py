"""Calls without markers where the format promises them: a turn that is nothing but such calls [bare-object].

Models whose templates promise markers write them all the same, as objects, in Markdown fences, or, where they
are degenerate, as `[Calling tool: f({"a": 1})]` [calling-tool]. They count if a turn holds nothing else,
and only for declared tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from typing import Any

from ...dialect import Context
from ...engine.emitter import Emitter
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import NOWHERE
from ...engine.tools import MAX_BARE_NAME, begins_one
from ...engine.writer import NAME
from ...events import Fits, Reason
from .unmarked import SEPARATORS, Attempt, UnmarkedBlock, UnmarkedCall

_INFO_WORD = re.compile(r"[\w\-]*")
_CALLING_TOOL = "[Calling tool:"
_NAME_BEGUN = re.compile(r"""[\s\[`\w\-]*\{\s*"name"\s*:\s*"([^"\\]*)""")


class CallingToolCall(UnmarkedCall):
    """`[Calling tool: f({"a": 1})]`, as small quantizations write it [calling-tool]."""

    def read(self) -> Reading:
        """Read name and arguments. Raises Fault."""
        yield from self._expect(_CALLING_TOOL)
        yield from self.source.space()
        name = yield from self.source.run(NAME)
        yield from self._expect("(")
        self.writer.start(name)
        yield from self.read_arguments()
        yield from self.source.space()
        yield from self._expect(")")
        yield from self._expect("]")

    def _expect(self, text: str) -> Reading:
        if not (yield from self.source.either((text,))):
            raise Fault(Reason.SYNTAX)


class CallingToolBlock(UnmarkedBlock):
    """Reads one such call. `source.pos` is at its bracket."""

    def read(self) -> Reading:
        """Read the call, which no list can hold."""
        self.emit.markup(self.source.offset)
        call = CallingToolCall(self.context, self.follows_call, promised=False)
        yield from self.read_call(call, self.source.offset)


class Waiting(Attempt):
    """Events of a turn that may be nothing but calls: those of its first call go out, up to its end.

    Whether that counts, and everything behind it, waits for the end of the turn.
    """

    def __init__(self, emit: Emitter, names: Collection[str]) -> None:
        super().__init__(emit, names)
        self.first: tuple[str | None, int | None, dict[str, Any]] = None, None, {}
        self.start = 0  # where the first call began
        self.refused: Reason | None = None
        self.written: set[str] = set()  # the calls, as `is_echo` takes them
        self._outer = emit
        self._marked: set[str] | None = None
        self._over = False  # the first call is

    def go_out(self) -> None:
        """Hand out what is certain."""
        if self.certain and not self._over:
            self._outer.adopt(self)

    def call_start(self, name: str, end: int, fits: Fits = None) -> int:
        """Open a call, and note the first one: it is kept if the turn turns out to be content."""
        start = self.end
        index = super().call_start(name, end, fits)
        if not self._over:
            self.start = start
            self.first = name, index, {}
        return index

    def call_end(
        self, name: str, arguments: dict[str, Any], repaired: bool, end: int, fits: Fits = None
    ) -> None:
        """Close a call: without its markers it is a repaired one."""
        self._first_is_over(arguments)
        super().call_end(name, arguments, True, end, fits)

    def is_echo(self, identity: Callable[[], str]) -> bool:
        """Without markers a call is one if it did not stand between them before."""
        if self._marked is None:
            self._marked = {marked() for marked in self._outer.marked}
        call = identity()
        if call in self._marked:
            return True
        self.written.add(call)
        return False

    def malformed(
        self,
        raw: str,
        reason: Reason,
        end: int,
        name: str | None = None,
        index: int | None = None,
        partial: dict[str, Any] | None = None,
    ) -> None:
        """What is no call refuses all, but for one that the output cuts off, or an echo."""
        self._first_is_over(partial or {})
        if reason not in (Reason.TRUNCATED, Reason.ECHO):
            self.refused = self.refused or reason
        super().malformed(raw, reason, end, name, index, partial)

    def _first_is_over(self, arguments: dict[str, Any]) -> None:
        if not self._over:
            self.go_out()
            self._over = True
            self.first = *self.first[:2], arguments


class BareCalls:
    """Reads the rest of a turn if that is nothing but calls of declared tools [bare-object] [calling-tool].

    Models write them so whose templates promise markers, or in Markdown fences. Until the first name is known
    nothing is written; a turn that goes on with anything else is content, but for the calls whose names have
    gone out: those are kept as malformed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._source = context.source
        dialect = context.dialect
        self._close = (dialect.calls or NOWHERE).close
        self._ends = (*dialect.ends, *dialect.openers)
        self._names = sorted(context.tools)
        self._end: int | None = None  # behind the last object or fence

    def read(self) -> Reading:
        """Read the calls, or leave the position where it was."""
        source, emit = self._source, self._context.emit
        start = source.offset
        source.keep_from(start)
        attempt = Waiting(emit, self._context.tools)
        for _ in self._objects(attempt):
            attempt.go_out()
            if not attempt.certain and self._names_no_tool(start):
                break
            yield
        attempt.go_out()
        if not attempt.certain:
            source.rewind(start)
        elif attempt.refused is None and (yield from self._at_end()):
            emit.adopt(attempt)
            emit.bare |= attempt.written
            emit.markup(source.offset)
        else:
            assert self._end is not None
            source.rewind(self._end)
            raw = source.since(start)[attempt.start - start :]
            emit.malformed(raw, attempt.refused or Reason.NOT_A_CALL, self._end, *attempt.first)
        source.keep_from(None)

    def _objects(self, attempt: Waiting) -> Reading:
        """Read objects and lists of them, fenced or not, up to what is none."""
        source = self._source
        context = replace(self._context, emit=attempt)
        fenced = False
        while attempt.refused is None:
            yield from source.run(SEPARATORS)
            if (yield from source.either(("```",))):
                fenced = not fenced
                if fenced:
                    yield from source.run(_INFO_WORD)
                else:
                    self._end = source.offset
                continue
            if self._end is not None and (yield from source.marker((self._close,))):
                source.pos += len(self._close)  # of a block whose opening marker is missing
                continue
            calling = (yield from source.ahead((_CALLING_TOOL,))) != ""
            if not calling and (yield from source.char()) not in ("{", "["):
                return
            block = CallingToolBlock if calling else UnmarkedBlock
            try:
                yield from block(context, attempt, promised=False).read()
            except Fault:
                return
            self._end = source.offset

    def _names_no_tool(self, start: int) -> bool:
        """Whether what has come of the first name, from `start` on, is the beginning of no tool's."""
        if self._source.offset - start > MAX_BARE_NAME:
            return False
        begun = _NAME_BEGUN.fullmatch(self._source.since(start))
        return begun is not None and not begins_one(begun[1], self._names)

    def _at_end(self) -> Generator[None, None, bool]:
        """Whether the turn is over, or goes on with a block of calls."""
        source = self._source
        if any(map(source.cut_marker, (*self._context.dialect.ends, self._close))):
            source.pos = len(source.text)
        return not (yield from source.char()) or (yield from source.marker(self._ends)) != ""
