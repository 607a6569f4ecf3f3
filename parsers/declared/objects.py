"""Calls as JSON objects, or with an object of arguments: complete with their own brace, as in all formats."""

from __future__ import annotations

from collections.abc import Generator

from ..dialect import Context
from ..engine.driver import Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..events import Reason
from ..formats.gemma import GemmaCall
from ..formats.named.block import NamedBlock
from ..formats.objects.block import JsonBlock
from ..literals.object_call import ObjectShape
from ..patterns.program import Pattern
from ..patterns.search import Match, Patterns
from .block import CallField, ignore, truncated
from .shapes import ObjectArguments, ObjectCalls
from .template import Field


class ObjectsField(JsonBlock):
    """Objects that hold name and arguments, or a list of them."""

    def __init__(self, context: Context, shape: ObjectCalls, opening: Match) -> None:
        super().__init__(context, ObjectShape((shape.name_key,), (shape.arguments_key,)))
        self._opened = opening.end - opening.start

    def read(self) -> Reading:
        """Read the field; a pattern says how long what opens it is."""
        source = self.source
        source.pos += self._opened
        yield from self.opening()
        if (yield from self.elements()):
            yield from self.close()


class NamedField(NamedBlock):
    """A JSON object of arguments."""

    def __init__(self, context: Context, field: Field, shape: ObjectArguments, opening: Match) -> None:
        assert context.dialect.calls is not None
        assert field.close is not None
        super().__init__(context, context.dialect.calls, ())
        self._close = field.close
        self._name = opening.groups.get(shape.group, "").strip()
        self._opened = opening.end - opening.start

    def read(self) -> Reading:
        """Read the call and what closes the field."""
        yield from self.call(self.start)
        yield from _read_end(self.context, self._close)

    def name(self) -> Generator[None, None, str]:
        """Read what opens the field; the name is in it."""
        self.source.pos += self._opened
        return self._name
        yield


class QuotedField(CallField):
    """An object of arguments whose keys have no quotes, and whose strings are between two tokens."""

    def __init__(self, context: Context, field: Field, shape: ObjectArguments, opening: Match) -> None:
        super().__init__(context, field, shape.group, opening)
        self._quote = shape.quote

    def call(self) -> Call:
        """A reader for the call, up to its own brace."""
        return _QuotedCall(self, self._quote)

    def read(self) -> Reading:
        """Read the call and what closes the field."""
        yield from super().read()
        yield from _read_end(self.context, self.close)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Read up to what closes the field, which is read like that of a whole call."""
        match = yield from self.patterns().find(ignore)
        if match is None:
            return truncated(fault)
        self.source.rewind(match.start)
        return fault.reason


class _QuotedCall(GemmaCall):
    """That call."""

    def __init__(self, field: QuotedField, quote: str) -> None:
        super().__init__(field.context, quote)
        self._field = field

    def read(self) -> Reading:
        """Read what opens the field, and the arguments. Raises Fault."""
        self._field.start_call(self.writer)
        if (yield from self.source.space()) != "{":
            raise Fault(Reason.NOT_A_CALL)
        self.source.pos += 1
        yield from self.read_arguments()


def _read_end(context: Context, close: Pattern) -> Reading:
    """Read what closes the field after a call that is complete without it."""
    source, emit = context.source, context.emit
    start = source.offset
    patterns = Patterns(source, (close,))
    match = yield from patterns.here()
    if match is None and (yield from source.space()):
        match = yield from patterns.here()
    if match is None and (yield from source.char()) and not (yield from patterns.cut_off()):
        source.rewind(start)
        emit.malformed("", Reason.MISSING_END, start)
        return
    if match is None:
        source.pos = len(source.text)
    if source.offset > emit.end:
        emit.markup(source.offset)
