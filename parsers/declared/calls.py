"""The calls in a field of a `response_template`, and what closes the field."""

from __future__ import annotations

from ..dialect import Context
from ..engine.source import Reading
from ..events import Reason
from ..patterns import Found, Patterns
from .objects import BareObject, NamedObject, ObjectsBlock
from .raw import Fixed, Lines, Tags
from .shapes import (
    FixedArguments,
    LineArguments,
    ObjectArguments,
    ObjectCalls,
    TagArguments,
)
from .template import Field


def read_calls(context: Context, field: Field, opening: Found) -> Reading:
    """Read the calls of a field and what closes it. `source.pos` is where `opening` begins."""
    match field.shape:
        case ObjectCalls() as shape:
            yield from ObjectsBlock(context, field, shape, opening).read()
        case ObjectArguments(quote="", bare_keys=False) as shape:
            yield from NamedObject(context, shape, opening).read()
            yield from _end(context, field)
        case ObjectArguments() as shape:
            yield from BareObject(context, field, shape, opening).read()
            yield from _end(context, field)
        case TagArguments() as shape:
            yield from Tags(context, field, shape, opening).read_field()
        case LineArguments() as shape:
            yield from Lines(context, field, shape, opening).read_field()
        case FixedArguments() as shape:
            yield from Fixed(context, field, shape, opening).read_field()


def _end(context: Context, field: Field) -> Reading:
    """Read what closes the field after a call that is complete without it."""
    source, emit = context.source, context.emit
    if field.close is None:
        return
    start = source.offset
    close = Patterns(source, (field.close,))
    found = yield from close.here()
    if found is None and (yield from source.space()):
        found = yield from close.here()
    if found is None and (yield from source.char()) and not (yield from close.cut_off()):
        source.rewind(start)
        emit.malformed("", Reason.MISSING_END, start)
        return
    if found is None:
        source.pos = len(source.text)
    if source.offset > emit.end:
        emit.markup(source.offset)
