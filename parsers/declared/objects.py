"""Calls as JSON objects, or with an object of arguments: complete with their own brace, as in all formats."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

from ..dialect import Context
from ..engine.driver import Call, FollowsCall
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..events import Reason
from ..formats.gemma import GemmaCall, GemmaReader
from ..formats.named import NamedBlock
from ..formats.objects.block import JsonBlock
from ..literals.object_call import LooseJsonCall
from ..literals.values import JsonReader
from ..patterns import Found, Patterns
from .block import UNFINISHED, CallField, ignore, named
from .shapes import ObjectArguments, ObjectCalls
from .template import Field


class ObjectsBlock(JsonBlock):
    """Objects that hold name and arguments, or a list of them."""

    def __init__(self, context: Context, field: Field, shape: ObjectCalls, opening: Found) -> None:
        super().__init__(context)
        self._shape = shape
        self._opening = opening
        tokens = () if field.close is None else field.close.tokens
        others = tuple(token for token in tokens if token != self.span.close)
        self.ends = (*self.ends, *others)
        self._others = Patterns(self.source, (field.close,)) if field.close is not None and others else None

    def read(self) -> Reading:
        """See `ListBlock`; what opens the block is read already."""
        source = self.source
        source.pos += self._opening.end - self._opening.start
        yield from self.opening_fence()
        self.bracketed = (yield from source.space()) == "["
        source.pos += self.bracketed
        if (yield from self.elements()):
            yield from self.close()

    def close(self) -> Reading:
        """See `ListBlock`. What closes the field may be one of several tokens."""
        if self._others is not None:
            found = yield from self._others.here()
            if found is not None or (yield from self._others.cut_off()):
                self.source.pos = self.source.pos if found is not None else len(self.source.text)
                self.emit.markup(self.source.offset)
                return
        yield from super().close()

    def element(self, char: str) -> Reading:
        """See `ListBlock`."""
        if char != "{":
            yield from super().element(char)
            return
        self.emit.markup(self.source.offset)
        call = _ObjectCall(self.context, self.span, self.follows_call, self._shape, self._opening)
        yield from self.read_call(call, self.source.offset)


class _ObjectCall(LooseJsonCall):
    """One object, with the keys that the template names."""

    def __init__(
        self, context: Context, span: Span, follows_call: FollowsCall, shape: ObjectCalls, opening: Found
    ) -> None:
        super().__init__(context, span, follows_call)
        self._path = shape.path
        self._shape = shape
        self._opening = opening
        self.name_keys = (shape.name_key,) if not shape.path or shape.loose else ()
        self.argument_keys = (shape.arguments_key,) if not shape.path or shape.loose else ()

    def read(self) -> Reading:
        """See `Call`."""
        if self._shape.name is not None:
            name = named(self._shape.name, self._opening)
            if not self.is_name(name):
                raise Fault(Reason.NOT_A_CALL)
            self.writer.start(name)
        yield from super().read()

    def other_member(self, key: str) -> Reading:
        """The next object on the path to name and arguments, or what every call may have beside them."""
        if not self._path or key != self._path[0] or (yield from self.source.space()) != "{":
            yield from super().other_member(key)
            return
        self._path = self._path[1:]
        if not self._path:
            self.name_keys, self.argument_keys = (self._shape.name_key,), (self._shape.arguments_key,)
        yield from self.members()


class NamedObject(NamedBlock):
    """An object of arguments; the name stands in what opens the field."""

    def __init__(self, context: Context, shape: ObjectArguments, opening: Found) -> None:
        assert context.dialect.calls is not None
        super().__init__(context, context.dialect.calls, ())
        self._name = named(shape.name, opening)
        self._opening = opening

    def read(self) -> Reading:
        """Read the call. `source.pos` is after its arguments afterwards."""
        yield from self.call(self.start)

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`."""
        self.source.pos += self._opening.end - self._opening.start
        return self._name
        yield


class BareObject(CallField):
    """An object of arguments whose keys stand without quotes."""

    def __init__(self, context: Context, field: Field, shape: ObjectArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._call = _BareCall(self, shape.quote)

    def read(self) -> Reading:
        """Read the call. `source.pos` is after its arguments afterwards."""
        yield from self.read_call(self._call, self.start)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """See `Block`; what closes the field is left."""
        if self.field.close is None:
            yield from self.source.run(re.compile(r"(?s:.*)"))
            return fault.reason
        found = yield from self.patterns().find(ignore)
        if found is None:
            return Reason.TRUNCATED if fault.reason in UNFINISHED else fault.reason
        self.source.rewind(found.start)
        return fault.reason


class _BareCall(GemmaCall):
    """That call."""

    def __init__(self, block: BareObject, quote: str) -> None:
        super().__init__(block.context, quote or "\0")
        if not quote:
            self.values = _BareReader(block.context, "\0", self.follows)
            self.writer = self.values.writer
        self._block = block

    def read(self) -> Reading:
        """See `Call`."""
        self._block.start_call(self.writer)
        if (yield from self.source.space()) != "{":
            raise Fault(Reason.NOT_A_CALL)
        self.source.pos += 1
        yield from self.read_arguments()


class _BareReader(GemmaReader):
    """Values in JSON's notation, in objects whose keys stand without quotes."""

    def atom(self, char: str) -> Generator[None, None, Any]:
        """See `LiteralReader`."""
        yield from ()
        return (yield from JsonReader.atom(self, char) if char == '"' else super().atom(char))
