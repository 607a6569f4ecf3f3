"""The calls in a field of a `response_template`, from the text that opens the field to the one that closes it.

Objects are read as in the formats that write them, and are complete with their own brace. Raw arguments, which
have no brackets of their own, make a call only where the text that closes the field follows. In raw text that
text counts wherever it stands, as the template says: an argument that it cuts off is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from dataclasses import replace
from json.encoder import encode_basestring as quote_json
from typing import Any

from parsers.declared.template import (
    Field,
    FixedArguments,
    LineArguments,
    Name,
    ObjectArguments,
    ObjectCalls,
    TagArguments,
    Value,
)
from parsers.dialect import Context
from parsers.engine.driver import Block, Call, FollowsCall
from parsers.engine.faults import Fault
from parsers.engine.source import Reading
from parsers.engine.spans import Span
from parsers.engine.writer import NAME, CallWriter, json_text
from parsers.events import Reason
from parsers.formats.gemma import GemmaCall, GemmaReader
from parsers.formats.named import NamedBlock
from parsers.formats.objects.block import JsonBlock
from parsers.formats.objects.calls import LooseJsonCall
from parsers.literals.strings import whole_characters
from parsers.literals.typed_text import ANY_JSON, STRING, Kinds, read_literal, replace_lone, typed_text
from parsers.literals.values import JsonReader
from parsers.patterns import Found, Pattern, Patterns, compile_pattern, literals

_CLOSING_TAG = re.compile(r"\s*</([\w.:-]+)>\s*")
OPENED_TAG = re.compile(r"<([\w.:-]+)")
"""What may be closed before the field is."""
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def read_calls(context: Context, field: Field, opening: Found) -> Reading:
    """Read the calls of a field and what closes it. `source.pos` is where `opening` begins."""
    match field.shape:
        case ObjectCalls() as shape:
            yield from _read_objects(context, field, shape, opening)
        case ObjectArguments(quote="", bare_keys=False) as shape:
            yield from _NamedObject(context, shape, opening).read()
            yield from _end(context, field)
        case ObjectArguments() as shape:
            yield from _BareObject(context, field, shape, opening).read()
            yield from _end(context, field)
        case TagArguments() as shape:
            yield from _Tags(context, field, shape, opening).read_field()
        case LineArguments() as shape:
            yield from _Lines(context, field, shape, opening).read_field()
        case FixedArguments() as shape:
            yield from _Fixed(context, field, shape, opening).read_field()


def _end(context: Context, field: Field) -> Reading:
    """Read what closes the field after a call that is complete without it."""
    source, emit = context.source, context.emit
    if field.close is None:
        return
    start = source.offset
    found = yield from Patterns(source, [field.close]).here()
    if found is None and (yield from source.space()):
        found = yield from Patterns(source, [field.close]).here()
    if found is None and (yield from source.char()):
        source.rewind(start)
        emit.malformed("", Reason.MISSING_END, start)
    elif source.offset > emit.end:
        emit.markup(source.offset)


def _read_objects(context: Context, field: Field, shape: ObjectCalls, opening: Found) -> Reading:
    """Read the objects and what closes the field, which may be one of several tokens."""
    dialect, close = context.dialect, field.close
    others = () if close is None or dialect.calls is None else set(close.tokens) - {dialect.calls.close}
    inner = replace(context, dialect=replace(dialect, ends=(*dialect.ends, *others)))
    yield from _Objects(inner, shape, opening).read()
    if close is not None and others and (yield from Patterns(context.source, [close]).here()):
        context.emit.markup(context.source.offset)


def _named(name: Name, opening: Found) -> str:
    return name.constant or opening.groups.get(name.group, "").strip()


# -- objects -----------------------------------------------------------------------------------------------


class _Objects(JsonBlock):
    """Objects that hold name and arguments, or a list of them."""

    def __init__(self, context: Context, shape: ObjectCalls, opening: Found) -> None:
        super().__init__(context)
        self._shape = shape
        self._opening = opening

    def read(self) -> Reading:
        """See `ListBlock`; what opens the block is read already."""
        source = self.source
        source.pos += self._opening.end - self._opening.start
        yield from self.opening_fence()
        self.bracketed = (yield from source.space()) == "["
        source.pos += self.bracketed
        if (yield from self.elements()):
            yield from self.close()

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
            name = _named(self._shape.name, self._opening)
            if not self.is_name(name):
                raise Fault(Reason.NOT_A_CALL)
            self.writer.start(name)
        yield from super().read()

    def other_member(self, key: str) -> Reading:
        """The next object on the path to name and arguments; any other member is not used."""
        if not self._path or key != self._path[0] or (yield from self.source.space()) != "{":
            yield from self.unused()
            return
        self._path = self._path[1:]
        if not self._path:
            self.name_keys, self.argument_keys = (self._shape.name_key,), (self._shape.arguments_key,)
        yield from self.members()


class _NamedObject(NamedBlock):
    """An object of arguments; the name stands in what opens the field."""

    def __init__(self, context: Context, shape: ObjectArguments, opening: Found) -> None:
        assert context.dialect.calls is not None
        super().__init__(context, context.dialect.calls, ())
        self._name = _named(shape.name, opening)
        self._opening = opening

    def read(self) -> Reading:
        """Read the call. `source.pos` is after its arguments afterwards."""
        yield from self.call(self.start)

    def name(self) -> Generator[None, None, str]:
        """See `NamedBlock`."""
        self.source.pos += self._opening.end - self._opening.start
        return self._name
        yield


# -- everything else ---------------------------------------------------------------------------------------


class _Field(Block):
    """One call in one field. What is no call is kept up to where the field is closed."""

    def __init__(self, context: Context, field: Field, name: Name, opening: Found) -> None:
        super().__init__(context)
        assert field.close is not None or isinstance(field.shape, ObjectArguments)
        self.field = field
        self.name = _named(name, opening)
        self.opening = opening
        self.written = self.source.text[self.source.pos : self.source.pos + opening.end - opening.start]
        """What opened the field."""

    def patterns(self, *others: Pattern) -> Patterns:
        """To look for `others` and, with the number after theirs, for what closes the field."""
        close = () if self.field.close is None else (self.field.close,)
        return Patterns(self.source, (*others, *close))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """See `Block`."""
        found = yield from self.patterns().find(_ignore)
        return Reason.TRUNCATED if found is None and fault.reason in _UNFINISHED else fault.reason

    def start_call(self, writer: CallWriter) -> None:
        """Read what opens the field, and begin the call. Raises Fault."""
        self.source.pos += len(self.written)
        if not self.name or not (NAME.fullmatch(self.name) or writer.declares(self.name)):
            raise Fault(Reason.NOT_A_CALL)
        writer.start(self.name)
        writer.write("{")


_UNFINISHED = (Reason.SYNTAX, Reason.NOT_A_CALL, Reason.MISSING_VALUE, Reason.POSITIONAL_ARGUMENT)


def _ignore(text: str, end: int) -> None:
    """Text that is kept as part of something else."""


class _BareObject(_Field):
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
        found = yield from self.patterns().find(_ignore)
        if found is None:
            return Reason.TRUNCATED if fault.reason in _UNFINISHED else fault.reason
        self.source.rewind(found.start)
        return fault.reason


class _BareCall(GemmaCall):
    """That call."""

    def __init__(self, block: _BareObject, quote: str) -> None:
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


class _RawField(_Field):
    """One call whose arguments are raw text, which what closes the field completes. It is a `Call`, too."""

    def __init__(self, context: Context, field: Field, name: Name, opening: Found) -> None:
        super().__init__(context, field, name, opening)
        self.writer = CallWriter(context.source, context.emit, context.tools)

    def closers(self) -> list[str]:
        """None: brackets in raw text are text."""
        return []

    def read_field(self) -> Reading:
        """Read the call and what closes the field."""
        yield from self.read_call(self, self.start)

    def read(self) -> Reading:
        """See `Call`."""
        self.start_call(self.writer)
        yield from self.arguments()

    def arguments(self) -> Reading:
        """Read the arguments and what closes the field. Raises Fault."""
        raise NotImplementedError
        yield

    def next(self, patterns: Patterns) -> Generator[None, None, tuple[str, Found]]:
        """The next match, and the text before it. Raises Fault at the end of the output."""
        skipped: list[str] = []
        found = yield from patterns.find(lambda text, end: skipped.append(text))
        if found is None:
            raise Fault(Reason.TRUNCATED, balanced=False)
        return "".join(skipped), found

    def refuse(self, found: Found, reason: Reason) -> Fault:
        """A fault; `found`, which may close the field, is not read."""
        self.source.rewind(found.start)
        return Fault(reason, balanced=False)

    def value(
        self, key: str, value: Value, ends: Patterns, cut: int | None = None, fits: str = ""
    ) -> Generator[None, None, Found]:
        """Read and write an argument up to the next of `ends`, which is returned. Raises Fault.

        A string goes out as it arrives. `cut`: which of `ends` shows that the value was never closed; `fits`: an
        expression that its text must match.
        """
        writer, kinds = self.writer, self.writer.kinds_of(key)
        streams = yield from self._is_text(value, kinds)
        if streams:
            writer.key(key)
            writer.write('"')
            string = _String(writer, strip=value.strip)
            found = yield from ends.find(string.take)
            if found is None:
                raise Fault(Reason.TRUNCATED, balanced=False)
            text = string.finish(found.start)
        else:
            text, found = yield from self.next(ends)
        if found.number == cut:
            raise self.refuse(found, Reason.UNCLOSED_STRING)
        if fits and not re.fullmatch(fits, text, re.DOTALL):
            raise self.refuse(found, Reason.SYNTAX)
        if streams:
            writer.write('"', found.start)
            writer.argument(key, text)
        else:
            self.put(key, self.typed(text, value, kinds, found))
        return found

    def typed(self, text: str, value: Value, kinds: Kinds, end: Found) -> tuple[Any, bool]:
        """The value of a text that ends before `end`, and whether that took a repair. Raises Fault."""
        try:
            return _typed(text.strip() if value.strip else text, value, kinds)
        except Fault as fault:
            raise self.refuse(end, fault.reason) from fault

    def put(self, key: str, result: tuple[Any, bool]) -> None:
        """Write an argument, given its value and whether that took a repair."""
        value, repaired = result
        self.writer.repaired |= repaired
        self.writer.key(key)
        self.writer.write(json_text(value))
        self.writer.argument(key, value)

    def _is_text(self, value: Value, kinds: Kinds) -> Generator[None, None, bool]:
        """Whether the text that comes next is a string, whatever it is."""
        if value.parser == "text":
            return kinds is None or kinds == STRING
        return value.text_too and kinds == STRING and (yield from self.source.space()) != '"'


class _Tags(_RawField):
    """A tag for each argument, with nothing between them.

    Before the end there may be closing tags of what opened the field, as in `<function=f>…</function></tool_call>`.
    """

    def __init__(self, context: Context, field: Field, shape: TagArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `_RawField`."""
        shape = self._shape
        heads, tails = self.patterns(shape.head), self.patterns(shape.tail)
        merged: dict[str, list[tuple[Any, bool]]] = {}
        while True:
            between, found = yield from self.next(heads)
            if found.number == 1:
                break
            key = replace_lone(found.groups["key"])
            if between.strip() or not key:
                raise self.refuse(found, Reason.SYNTAX)
            if shape.merge:
                text, end = yield from self.next(tails)
                if end.number == 1:
                    raise self.refuse(end, Reason.UNCLOSED_STRING)
                result = self.typed(text, shape.value, self.writer.kinds_of(key), end)
                merged.setdefault(key, []).append(result)
            else:
                yield from self.value(key, shape.value, tails, 1, shape.fits)
        opened = OPENED_TAG.findall(self.written)
        while (tag := _CLOSING_TAG.match(between)) and tag[1] in opened:
            opened.remove(tag[1])
            between = between[tag.end() :]
        if between.strip():
            raise self.refuse(found, Reason.SYNTAX)
        for key, results in merged.items():
            values = [value for value, _ in results]
            self.put(
                key, (values if len(values) > 1 else values[0], any(repaired for _, repaired in results))
            )


class _Lines(_RawField):
    """A line for each argument. Empty lines mean nothing."""

    def __init__(self, context: Context, field: Field, shape: LineArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `_RawField`."""
        shape = self._shape
        separator, line_end = (_plain(text) for text in (shape.separator, shape.line_end))
        starts, ends = self.patterns(separator, line_end), self.patterns(line_end)
        while True:
            text, found = yield from self.next(starts)
            key = replace_lone(text.strip() if shape.strip else text)
            if found.number != 0 and text.strip():
                raise self.refuse(found, Reason.SYNTAX)
            if found.number == 0:
                if not key:
                    raise self.refuse(found, Reason.POSITIONAL_ARGUMENT)
                found = yield from self.value(key, shape.value, ends)
                if found.number == 1:
                    return
            elif found.number == 2:
                return


class _Fixed(_RawField):
    """The arguments that the template names, one of which is the text."""

    def __init__(self, context: Context, field: Field, shape: FixedArguments, opening: Found) -> None:
        super().__init__(context, field, shape.name, opening)
        self._shape = shape

    def arguments(self) -> Reading:
        """See `_RawField`."""
        shape = self._shape
        for key, value in shape.constants.items():
            self.put(key, (value, False))
        for key, group in shape.groups.items():
            text = replace_lone(self.opening.groups.get(group, ""))
            self.put(key, _typed(text, Value(), self.writer.kinds_of(key)))
        yield from self.value(shape.content, shape.value, self.patterns())


class _String:
    """The JSON text of a string that arrives in pieces. `strip`: without white space at its ends."""

    def __init__(self, writer: CallWriter, *, strip: bool) -> None:
        self._writer = writer
        self._strip = strip
        self._parts: list[str] = []
        self._pending = ""  # white space, or a high surrogate, of which the next piece says whether it counts

    def take(self, piece: str, end: int) -> None:
        """Add a piece, which ends at the offset `end`."""
        text = self._pending + piece
        if self._strip and not self._parts:
            text = text.lstrip()
        text, self._pending = whole_characters(text)
        if self._strip and not self._pending:
            body = text.rstrip()
            text, self._pending = body, text[len(body) :]
        if text:
            self._parts.append(text)
            self._writer.write(quote_json(text)[1:-1], end - len(self._pending))

    def finish(self, end: int) -> str:
        """The whole string, which ends at `end`."""
        if self._pending and not self._pending.isspace():
            self._parts.append("\ufffd")
            self._writer.write("\ufffd", end)
        return "".join(self._parts)


def _plain(text: str) -> Pattern:
    """A text of which nothing is a marker."""
    return compile_pattern(literals((text,)), tokens=False)


def _typed(text: str, value: Value, kinds: Kinds) -> tuple[Any, bool]:
    """The value of a whole text, and whether that took a repair. Raises Fault.

    A declared type counts for what is text otherwise, as in transformers.
    """
    match value.parser:
        case "int":
            return _number(int, text), False
        case "float":
            number = _number(float, text)
            if not math.isfinite(number):
                raise Fault(Reason.NOT_FINITE)
            return number, False
        case "bool":
            if text.lower() not in (*_TRUE, *_FALSE):
                raise Fault(Reason.NOT_A_LITERAL)
            return text.lower() in _TRUE, False
        case "json" if not value.text_too:
            return typed_text(text, ANY_JSON)
        case "json" if kinds != STRING or text.lstrip()[:1] == '"':
            if _is_json(text):
                found, repaired = read_literal(text)
                if not isinstance(found, str):
                    return (found, repaired) if kinds is None else typed_text(text, kinds)
                text = found
    return (replace_lone(text), False) if kinds is None else typed_text(replace_lone(text), kinds)


def _number(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError as error:
        reason = Reason.TOO_LARGE if text.strip("+-").isdigit() else Reason.NOT_A_LITERAL
        raise Fault(reason) from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    except RecursionError:
        return True  # too deep to be a value here
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)
