"""MiniMax M3: calls as elements that nest, every tag behind the one token of the format.

    <tool_call>
    <invoke name="f"><n>3</n><o><k>1</k></o><l><item>a</item><item>b</item></l></invoke>
    </tool_call>

The token, `]<]minimax[>[`, is left out here. It is never part of a value, so a value ends at the next one;
unless its own closing tag stands there, it was not closed. An element that holds elements is an object, or a
list if it is declared as one or holds nothing but `item`s; the same name again makes a list, too. What is in
an element without elements is raw text, typed by the schema.

A decoder that hides special tokens leaves the tags alone: such blocks are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..dialect import Calls, Context, Dialect
from ..engine.driver import Call, FramedBlock
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.tools import kinds_of_schema
from ..engine.writer import NAME, json_text
from ..events import MAX_DEPTH, Reason
from ..literals.raw import RawCall, stops_at
from ..literals.typed_text import STRING, Kinds, replace_lone, typed_text, untyped
from ..literals.writer import RawWriter

TOKEN = "]<]minimax[>["
"""In front of every tag."""
_CALL, _CALL_END = "<invoke name=", "</invoke>"
_BLOCK = Span("<tool_call>", "</tool_call>")  # without the token
_ITEM = "item"
_TAG = re.compile(r"[^<>\n]*")
_PARAMETER = re.compile(r"""parameter name=(["'])([^"'=\s]+)\1""")
_MOST_PARTS = 64
"""The most elements of one name that an array may be spread over: with each, all of it is written anew."""
_ELEMENT = re.compile(r"[^\s<>/\"'=\[\]]+")
"""The names that a tag can hold."""


@dataclass(slots=True)
class _Open:
    """An element whose closing tag is due. `schema`: what is declared of it, if anything is."""

    name: str
    schema: Any
    children: list[tuple[str, Any]] = field(default_factory=list)

    def of(self, name: str) -> Any:
        """What is declared of an element of that name within this one."""
        schema = self.schema if isinstance(self.schema, Mapping) else {}
        properties = schema.get("properties")
        known = properties.get(name) if isinstance(properties, Mapping) else None
        return known if known is not None else schema.get("items")

    def value(self) -> Any:
        """The value of an element that holds elements."""
        kinds = kinds_of_schema(self.schema)
        if kinds is not None and "array" in kinds and "object" not in kinds:
            return [value for _, value in self.children]
        if kinds is None and all(name == _ITEM for name, _ in self.children):
            return [value for _, value in self.children]
        members: dict[str, list[Any]] = {}
        for name, value in self.children:
            members.setdefault(name, []).append(value)
        return {name: values if len(values) > 1 else values[0] for name, values in members.items()}


class ElementCall(RawCall):
    """One call, from its opening tag to its closing one. `token`: how its tags begin."""

    def __init__(self, context: Context, token: str) -> None:
        super().__init__(context)
        self._token = token
        self.writer.repaired = not token
        self._special = context.dialect.ends
        self._close = ""  # the closing tag that is due, without the token
        self._parts = 0  # elements that went on with an array

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source, token = self.source, self._token
        if not (yield from source.either((token + _CALL,))):
            source.pos += 1
            raise Fault(Reason.NOT_A_CALL)
        quote = yield from source.either(('"', "'"))
        name = yield from source.run(NAME)
        if not quote or not name or not (yield from source.either((f"{quote}>",))):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(name)
        self.writer.write("{")
        while True:
            yield from source.space()
            if (yield from source.either((token + _CALL_END,))):
                return
            if not (yield from source.either((f"{token}<",))):
                raise Fault(Reason.SYNTAX)
            yield from self._argument()

    def _argument(self) -> Reading:
        """Read an argument from behind the bracket of its tag on."""
        source, writer = self.source, self.writer
        tag = yield from self._tag()
        older = _PARAMETER.fullmatch(tag)
        key = older[2] if older else tag
        close = f"</{'parameter' if older else key}>"
        writer.repaired |= older is not None
        kinds = writer.kinds_of(key)
        if kinds == STRING:
            yield from self._raw(key, close, kinds)
            return
        schema = {} if writer.tool is None else writer.tool.schemas.get(key)
        start = source.offset
        yield from source.space()
        if (yield from self._opens()):
            value = yield from self._nested(_Open(close[2:-1], schema))
        elif kinds is None:
            source.rewind(start)
            yield from self._raw(key, close, kinds)
            return
        else:
            source.rewind(start)
            value = self._leaf((yield from self._text(close)), schema)
        earlier = writer.arguments.get(key)
        if kinds is not None and "array" in kinds and isinstance(earlier, list) and isinstance(value, list):
            self._parts += 1
            if self._parts == _MOST_PARTS:
                raise Fault(Reason.SYNTAX, final=True)
            value = [*writer.arguments.pop(key), *value]
            writer.repaired = True
        writer.key(key)
        writer.write(json_text(value))
        writer.argument(key, value)

    def _raw(self, key: str, close: str, kinds: Kinds) -> Reading:
        self._close = close
        end = yield from self.read_raw(key, stops_at((self._token or close,), self._special), kinds)
        self.source.pos += len(close) if end == self._token else 0

    def _tag(self) -> Generator[None, None, str]:
        """Read the rest of an opening tag. Raises Fault."""
        name = (yield from self.source.run(_TAG)).strip()
        if not (yield from self.source.either((">",))):
            raise Fault(Reason.SYNTAX)
        if not name:
            raise Fault(Reason.POSITIONAL_ARGUMENT)
        if not _ELEMENT.fullmatch(name) and not _PARAMETER.fullmatch(name):
            raise Fault(Reason.SYNTAX)
        return replace_lone(name)

    def _opens(self) -> Generator[None, None, bool]:
        """Whether an element begins here."""
        source = self.source
        if not (yield from source.ahead((f"{self._token}<",))):
            return False
        return not (yield from source.ahead((f"{self._token}</",)))

    def _nested(self, outermost: _Open) -> Generator[None, None, Any]:
        """Read the elements within one, and its closing tag; returns its value. Raises Fault."""
        source, token = self.source, self._token
        stack = [outermost]
        while True:
            yield from source.space()
            if (yield from self._opens()):
                source.pos += len(token) + 1
                name = yield from self._tag()
                if len(stack) == MAX_DEPTH:
                    raise Fault(Reason.TOO_DEEP)
                stack.append(_Open(name, stack[-1].of(name)))
                start = source.offset
                yield from source.space()
                if (yield from self._opens()):
                    continue
                source.rewind(start)
                element = stack.pop()
                text = yield from self._text(f"</{element.name}>")
                value = self._leaf(text, element.schema, nested=True)
                stack[-1].children.append((element.name, value))
            elif (yield from source.either((f"{token}</{stack[-1].name}>",))):
                element = stack.pop()
                if not stack:
                    return element.value()
                stack[-1].children.append((element.name, element.value()))
            else:
                raise Fault(Reason.SYNTAX)

    def _text(self, close: str) -> Generator[None, None, str]:
        """Read raw text and the closing tag behind it. Raises Fault."""
        self._close = close
        ends = stops_at((self._token or close,), self._special)
        pieces: list[str] = []
        while True:
            piece, end = yield from self._piece(ends)
            if end:
                self.source.pos += len(close) if end == self._token else 0
                return replace_lone("".join(pieces))
            pieces.append(piece)

    def _leaf(self, text: str, schema: Any, *, nested: bool = False) -> Any:
        """The value of an element that holds no elements. Raises Fault.

        `nested`: text in an element within a value stays text if it does not begin like what is declared.
        """
        kinds = kinds_of_schema(schema)
        if kinds is not None and not text.strip():
            for kind, empty in (("array", []), ("object", {})):
                if kind in kinds and "string" not in kinds:
                    return empty
        if kinds == frozenset({"array"}) and not text.lstrip().startswith("["):
            self.writer.repaired = True
            return [self._leaf(text, schema.get("items"), nested=nested)]
        if nested and kinds == frozenset({"object"}) and not text.lstrip().startswith("{"):
            kinds = STRING
            self.writer.repaired = True
        value, repaired = typed_text(text, kinds)
        self.writer.repaired |= repaired
        return value

    def closes(self, end: str) -> Generator[None, None, bool]:
        """Whether the token of the closing tag comes next: spelled in ordinary ones it is data."""
        source = self.source
        if not self._token:
            return True
        if not (yield from source.marker((TOKEN,))):
            return False  # spelled in ordinary tokens
        if not (yield from source.ahead((TOKEN + self._close,))):
            raise Fault(Reason.UNCLOSED_STRING)  # or the output ends in it, as `leave` says then
        return True


class ElementBlock(FramedBlock):
    """A block of calls, with or without its markers, and with or without the tokens in them."""

    call_end = TOKEN + _CALL_END

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._token = TOKEN

    def read(self) -> Reading:
        """Read the block. Without the tokens, its tag begins one only in front of a call."""
        source = self.source
        if (yield from source.ahead((_BLOCK.open,))):
            self._token, self.span, self.call_end = "", _BLOCK, _CALL_END
            source.keep_from(self.start)
            source.pos += len(_BLOCK.open)
            yield from source.space()
            begins = (yield from source.ahead((_CALL,))) or self.cut(_CALL)
            source.rewind(self.start)
            if not begins:
                source.pos += len(_BLOCK.open)
                self.emit.malformed(_BLOCK.open, Reason.NOT_A_CALL, source.offset)
                source.keep_from(None)
                return
        yield from super().read()

    def call(self) -> ElementCall:
        """A reader for the call that comes next."""
        return ElementCall(self.context, self._token)

    def begins(self) -> Generator[None, None, bool]:
        """Whether the tag of a call comes next, or its beginning at the end of the output."""
        opening = self._token + _CALL
        return (yield from self.source.ahead((opening,))) != "" or self.cut(opening)

    def ahead(self) -> Generator[None, None, str]:
        """The tag that comes next of those that end a block, however it is written."""
        return (yield from self.source.ahead((self.span.close, self.span.open, *self.context.dialect.ends)))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to the next tag of a call or a block, behind it if it closes the call."""
        ends = self.context.dialect.ends
        texts = (self.call_end, self._token + _CALL, self.span.close, self.span.open, *ends)
        end = yield from stops_at(texts).skip(self.source)
        if end == self.call_end:
            self.source.pos += len(end)
        return Reason.TRUNCATED if not end or end in ends else fault.reason


# -- how calls are written ----------------------------------------------------------------------------


def render_elements(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """One element for each argument, and for what is in it.

    What could not be read back so without a schema is JSON text within the element of the argument. Raises
    ValueError for what no call can hold.
    """
    writer = RawWriter(markers)
    written = []
    for name, arguments in calls:
        writer.check_name(name)
        elements = "".join(_argument(writer, key, value) for key, value in arguments.items())
        written.append(f'{TOKEN}{_CALL}"{name}">{elements}{TOKEN}{_CALL_END}\n')
    return f"{span.open}\n{''.join(written)}{span.close}"


def _argument(writer: RawWriter, key: Any, value: Any) -> str:
    text = writer.raw(value)  # whatever cannot be written is refused here
    if not _ELEMENT.fullmatch(writer.key(key)):
        raise ValueError(f"{key!r:.40} cannot be the name of an element")
    return _element(key, _elements(writer, value) or text)


def _elements(writer: RawWriter, value: Any) -> str | None:
    """The content of an element in a list or an object, None where it cannot be read back from elements."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
        if any(key == _ITEM or not _ELEMENT.fullmatch(key) for key in value):
            return None
    elif isinstance(value, (list, tuple)):
        pairs = [(_ITEM, item) for item in value]
    else:
        return None
    written = []
    for key, inner in pairs:
        if isinstance(inner, (Mapping, list, tuple)):
            text = _elements(writer, inner)
            if text is None:
                return None
        else:
            text = inner if isinstance(inner, str) else writer.value(inner)
            if isinstance(inner, str) and (untyped(text)[0] is not text or TOKEN in text):
                return None
        written.append(_element(key, text))
    return "".join(written) or None


def _element(name: str, text: str) -> str:
    return f"{TOKEN}<{name}>{text}{TOKEN}</{name}>"


_SPAN = Span(TOKEN + _BLOCK.open, TOKEN + _BLOCK.close)
MINIMAX_M3 = Dialect(
    name="minimax-m3",
    reasoning=Span("<mm:think>", "</mm:think>"),
    calls=_SPAN,
    ends=("[e~[",),
    grammar=ElementBlock,
    slips=(TOKEN + _CALL, _BLOCK.open),
    inner=(TOKEN,),
    renderers={"elements": render_elements},
    cores={_SPAN.open: TOKEN, _SPAN.close: TOKEN, TOKEN + _CALL: TOKEN, _BLOCK.open: ""},
    shown=("<mm:think>", "</mm:think>"),
)

ALL = (MINIMAX_M3,)
