"""Lists of calls in Python that are a whole turn, as Llama writes them: `[f(city="Paris"), g()]`.

At the beginning of a turn no marker is needed. A declared tool makes the list one of calls at once; with an
unknown name it is only certain when its first call is complete, since links and indexing look the same.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from ...dialect import Context, Inside
from ...engine.driver import Call
from ...engine.emitter import Emitter
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.turn import MarkedTurn
from ...engine.writer import NAME
from ...events import Reason
from .block import ListBlock

_GOES_ON = frozenset("([.")
"""Behind its bracket with these, a list is the text of a link or part of an expression."""


class ListTurn(MarkedTurn):
    """A turn that may begin with a list of calls; else, and behind it, as `MarkedTurn`."""

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn."""
        source, emit = self._source, self._emit
        while (char := (yield from source.char())).isspace():
            source.pos += 1
            emit.text(char, source.offset)
        if char == "[":
            yield from LeadingList(self._context).read()
        yield from super().read(inside)


class LeadingList(ListBlock):
    """Reads the list, if it is one. `source.pos` is at its bracket."""

    def __init__(self, context: Context) -> None:
        self._outer = context.emit
        attempt = Emitter(context.emit)  # its events wait until the list is certain to be one of calls
        super().__init__(replace(context, emit=attempt))
        self.bracketed = True
        self._certain = False

    def read(self) -> Reading:
        """Read the list as calls, or leave `source.pos` where it was."""
        source = self.source
        source.keep_from(self.start)
        source.pos += 1
        yield from source.space()
        name = yield from source.run(NAME)
        if (yield from source.char()) == "(" and name:
            self._certain = name in self.context.tools
            source.rewind(self.start + 1)
            try:
                for _ in self._calls():
                    if self._certain:
                        self._outer.adopt(self.emit)
                    yield
                self._outer.adopt(self.emit)
            except Fault:
                source.rewind(self.start)
        else:
            source.rewind(self.start)
        source.keep_from(None)

    def _calls(self) -> Reading:
        source = self.source
        if (yield from self.elements()):
            if (yield from self.at_marker((self.span.close,))):
                source.pos += len(self.span.close)
            self.emit.markup(source.offset)

    def confirm(self) -> Reading:
        """The first complete call decides, unless what follows the list shows that it was text."""
        source = self.source
        yield from super().confirm()
        if not self._certain and (yield from source.char()) == "]":
            bracket = source.offset
            source.pos += 1
            if (yield from source.char()) in _GOES_ON:
                raise Fault(Reason.NOT_A_CALL)
            source.rewind(bracket)
        self._certain = True

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """A call that breaks before the list is certain shows that it is text, unless the list ends there."""
        if not self._certain and (yield from self.source.char()) and not (yield from self.at_terminator()):
            raise fault
        self._certain = True  # it ends within what began like a call
        return (yield from super().leave(call, fault))
