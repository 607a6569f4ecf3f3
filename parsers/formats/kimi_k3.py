"""Kimi K3's turns: stretches between tags that are made of tokens, for reasoning, answer and calls alike.

    <|open|>think<|sep|>...<|close|>think<|sep|><|open|>response<|sep|>...<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>
    <|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

Only the tokens are special; the names in the tags are ordinary text. No white space belongs to the tags, but
some may have got in beside the tokens. A call is complete with its own closing tag.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from ..dialect import Calls, Context, Dialect, Inside
from ..engine.driver import FramedBlock
from ..engine.faults import Fault
from ..engine.source import Reading, Source
from ..engine.spans import Span
from ..engine.tools import kind_of
from ..engine.turn import MarkedTurn, Stops
from ..engine.writer import NAME, json_text
from ..events import MAX_DEPTH, Reason
from ..literals.raw import RawCall
from ..literals.strings import whole_characters
from ..literals.typed_text import (
    ANY_JSON,
    CONTAINERS,
    OR_TEXT,
    STRING,
    Kinds,
    holds_no_tags,
    typed_text,
)
from ..literals.verbatim import Verbatim
from ..literals.writer import JSON, Writer, verbatim

OPEN, CLOSE, SEPARATOR, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
TOKENS = (OPEN, CLOSE, SEPARATOR, END)

THINK, THINK_CLOSE = "<|open|>think<|sep|>", "<|close|>think<|sep|>"
RESPONSE, RESPONSE_CLOSE = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
TOOLS, TOOLS_CLOSE = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
MESSAGE, MESSAGE_CLOSE = '<|open|>message role="assistant"<|sep|>', "<|close|>message<|sep|>"
CALL, CALL_CLOSE = "<|open|>call ", "<|close|>call<|sep|>"
ARGUMENT, ARGUMENT_CLOSE = "<|open|>argument ", "<|close|>argument<|sep|>"
OBJECT, OBJECT_CLOSE = "<|open|>json", "<|close|>json<|sep|>"

_FRAME = (RESPONSE, RESPONSE_CLOSE, MESSAGE, MESSAGE_CLOSE, END)
_LEAVING = (RESPONSE, MESSAGE_CLOSE, END)
"""With which the reasoning is over, though it was not closed: models forget to."""
OUTER_TAGS = (THINK, THINK_CLOSE, TOOLS, TOOLS_CLOSE, CALL, CALL_CLOSE, *_FRAME)
"""All tags but those within a call."""
CORES = {tag: OPEN if tag.startswith(OPEN) else CLOSE for tag in OUTER_TAGS if tag != END}
"""The token in each of them."""

_ATTRIBUTE = re.compile(r'([\w\-]+)\s*=\s*"([^"]*)"')
_ATTRIBUTES = re.compile(rf"\s*(?:{_ATTRIBUTE.pattern}\s+)*")
_BESIDE_TOKENS = re.compile(
    rf"(?<={re.escape(OPEN)})\s+|(?<={re.escape(CLOSE)})\s+|\s+(?={re.escape(SEPARATOR)})"
)
_ENTITIES = (("&", "&amp;"), ('"', "&quot;"))


def escaped(value: str) -> str:
    """The value of an attribute as it is written."""
    for char, entity in _ENTITIES:
        value = value.replace(char, entity)
    return value


def _unescaped(value: str) -> str:
    for char, entity in reversed(_ENTITIES):
        value = value.replace(entity, char)
    return value


def _read_tag(source: Source, tags: tuple[str, ...]) -> Generator[None, None, str]:
    """Read the one of `tags` that comes next, white space beside its tokens included; "" if none does.

    The caller has to keep the text (`Source.keep_from`), since the position goes back where no tag comes.
    """
    if tag := (yield from source.either(tags)):
        return tag
    return (yield from _spaced_tag(source, tags))


def _tag_ahead(source: Source, tags: tuple[str, ...]) -> Generator[None, None, str]:
    """The one of `tags` that comes next, its first token a special one; "" if none does."""
    if not (yield from source.char()) or not (yield from source.marker(TOKENS)):
        return ""
    if tag := (yield from source.ahead(tags)):
        return tag
    start = source.offset
    tag = yield from _spaced_tag(source, tags)
    source.rewind(start)
    return tag


def _spaced_tag(source: Source, tags: tuple[str, ...]) -> Generator[None, None, str]:
    """Read one of the tags, as `_read_tag`, where white space has got in."""
    start = source.offset
    if not (token := (yield from source.marker((OPEN, CLOSE)))):
        return ""
    source.pos += len(token)
    yield from source.space()
    names = {
        tag.removeprefix(token).removesuffix(SEPARATOR).strip(): tag for tag in tags if tag.startswith(token)
    }
    tag = names.get((yield from source.either((*filter(None, names),))), "")
    if tag.endswith(SEPARATOR):
        yield from source.space()
        if (yield from source.marker((SEPARATOR,))):
            source.pos += len(SEPARATOR)
            return tag
    elif tag and (tag[-1] != " " or (yield from source.char()).isspace()):
        source.pos += tag[-1] == " "
        return tag
    source.rewind(start)
    return ""


class KimiTurn(MarkedTurn):
    """Reads one turn."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._tokens = Stops(dict.fromkeys(TOKENS, ()))

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn. `inside`: what the prompt has left open."""
        source, emit = self._source, self._emit
        if inside == "reasoning":
            yield from self._thoughts()
        while True:
            yield from self.bare_calls()
            token = yield from self._stretch(emit.text, self._tokens)
            if not token:
                return
            tag, length = yield from self._tag()
            if tag in (TOOLS, CALL):
                self.has_content()
                with emit.within("calls", source.offset):
                    yield from KimiBlock(self._context).read()
            elif tag == THINK:
                source.pos += length
                yield from self._thoughts()
            elif tag in _FRAME:
                self.has_content()  # JSON in a response is an answer
                source.pos += length
                emit.markup(source.offset)
            else:
                self._keep(length or len(token), known=tag != "")

    def _tag(self) -> Generator[None, None, tuple[str, int]]:
        """The tag that comes next, and how long it is as it is written; "" and 0 if none does."""
        source = self._source
        start = source.offset
        source.keep_from(start)
        tag = yield from _read_tag(source, OUTER_TAGS)
        length = source.offset - start
        source.rewind(start)
        source.keep_from(None)
        return tag, length

    def _keep(self, length: int, *, known: bool) -> None:
        """Keep a tag that means nothing here, or the beginning of one, in which the output ends."""
        source = self._source
        rest = source.text[source.pos :]
        begun = _BESIDE_TOKENS.sub("", rest)
        cut = not known and source.ended and any(tag.startswith(begun) for tag in OUTER_TAGS)
        written = rest if cut else rest[:length]
        source.pos += len(written)
        self._emit.malformed(written, Reason.TRUNCATED if cut else Reason.STRAY_END, source.offset)

    def _thoughts(self) -> Reading:
        """Read reasoning, up to behind its closing tag or up to what shows that this was forgotten."""
        with self._emit.within("reasoning", self._emit.end):
            yield from self._reading_thoughts()

    def _reading_thoughts(self) -> Reading:
        source, emit = self._source, self._emit
        if source.offset > emit.end:
            emit.markup(source.offset)
        drafts = False
        while token := (yield from self._stretch(emit.reasoning, self._tokens)):
            tag, length = yield from self._tag()
            if tag == THINK_CLOSE:
                source.pos += length
                emit.markup(source.offset)
                return
            drafts = drafts or (tag == TOOLS and (yield from self._closes_later()))
            if tag in _LEAVING or (tag == TOOLS and not drafts):
                return
            written = source.text[source.pos :][: length or len(token)]
            source.pos += len(written)
            emit.reasoning(written, source.offset)

    def _closes_later(self) -> Generator[None, None, bool]:
        """Whether the reasoning is closed behind the calls that come next, which are drafts then."""
        source = self._source
        start = source.offset
        source.keep_from(start)
        tag = ""
        while not tag and (yield from source.char()):
            source.pos += 1
            yield from source.run(source.unmarked)
            tag = yield from _tag_ahead(source, (THINK, THINK_CLOSE, *_LEAVING))
        source.rewind(start)
        source.keep_from(None)
        return tag == THINK_CLOSE


class KimiCall(RawCall):
    """One call, from its opening tag to behind its closing one."""

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source = self.source
        if not (yield from _tag_ahead(source, (CALL,))):
            raise Fault(Reason.NOT_A_CALL)
        name = (yield from self._attributes(CALL)).get("tool", "")
        if not name or not (NAME.fullmatch(name) or self.writer.declares(name)):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(name)
        self.writer.write("{")
        while True:
            char = yield from source.space()
            tag = yield from _tag_ahead(source, (ARGUMENT, CALL_CLOSE, OBJECT))
            if tag == CALL_CLOSE:
                yield from self._tag(tag)
                return
            if tag == ARGUMENT:
                yield from self._argument()
            elif tag == OBJECT and not self.writer.arguments:
                yield from self._object()
            else:
                raise Fault(Reason.SYNTAX if char else Reason.TRUNCATED)

    def _tag(self, tag: str) -> Reading:
        """Read `tag`, which comes next."""
        source = self.source
        if source.text.startswith(tag, source.pos):
            source.pos += len(tag)
        else:
            yield from _read_tag(source, (tag,))
            self.writer.repaired = True

    def _attributes(self, tag: str) -> Generator[None, None, Mapping[str, str]]:
        """Read a tag that begins with `tag`: its attributes."""
        source = self.source
        yield from self._tag(tag)
        parts: list[str] = []
        while True:
            parts.append((yield from source.run(source.unmarked)))
            if not (char := (yield from source.char())):
                raise Fault(Reason.TRUNCATED)
            token = yield from source.marker(TOKENS)
            if token == SEPARATOR:
                source.pos += len(token)
                written, _ = whole_characters("".join(parts) + " ")
                if not _ATTRIBUTES.fullmatch(written):  # `key="date type="string"` [torn-attribute]
                    raise Fault(Reason.SYNTAX)
                return {key: _unescaped(value) for key, value in _ATTRIBUTE.findall(written)}
            if token:
                raise Fault(Reason.SYNTAX)
            source.pos += 1
            parts.append(char)

    def _argument(self) -> Reading:
        """Read an argument, by the type in its tag, or by the tool's schema where there is none."""
        attributes = yield from self._attributes(ARGUMENT)
        key = attributes.get("key")
        if key is None:
            raise Fault(Reason.POSITIONAL_ARGUMENT)
        declared = self.writer.kinds_of(key)
        in_text = attributes.get("type") == "string" and declared is not None and declared <= CONTAINERS
        self.writer.repaired |= in_text  # an object that is said to be text is that object
        if "type" in attributes and not in_text:
            kinds: Kinds = frozenset({attributes["type"]})
            if kinds != STRING and not holds_no_tags(kinds):
                kinds = ANY_JSON
        else:
            kinds = declared | OR_TEXT if in_text and declared else declared or STRING
        self.writer.key(key)
        if kinds == STRING:
            self.writer.write('"')
            text = yield from self._text(ARGUMENT_CLOSE)
            self.writer.write('"')
            self.writer.argument(key, text)
            return
        place = self.writer.hold()
        text = yield from self._text(ARGUMENT_CLOSE)
        value, repaired = typed_text(text, kinds)
        self.writer.repaired |= repaired
        self.writer.settle(place, json_text(value))
        self.writer.argument(key, value)

    def _object(self) -> Reading:
        """Read all arguments as one block of JSON."""
        yield from self._attributes(OBJECT)
        place = self.writer.hold()
        text = yield from self._text(OBJECT_CLOSE)
        self.writer.settle(place, "")
        value, repaired = typed_text(text, ANY_JSON) if text.strip() else (None, True)
        if value is not None and not isinstance(value, dict):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.repaired |= repaired or value is None
        self.writer.merge(value or {}, {})

    def _text(self, end: str) -> Generator[None, None, str]:
        """Read text up to behind the tag `end`."""
        source = self.source
        start = source.offset
        while source.may_bring(SEPARATOR):
            if not (yield from source.space()) or not (yield from source.either((SEPARATOR,))):
                source.rewind(start)
                break
            start = source.offset  # it stands twice
            self.writer.repaired = True

        def closing(token: str, doubtful: bool) -> Generator[None, None, int | None]:
            if token == CLOSE and (yield from source.ahead((end,))):
                return len(end)
            if token == CLOSE and (length := (yield from self._closing_tag(end))):
                return length
            if not doubtful and source.ended and end.startswith(source.text[source.pos :]):
                raise Fault(Reason.TRUNCATED, balanced=False)
            if token == OPEN and (yield from _tag_ahead(source, (ARGUMENT,))):
                return None  # another argument: the tag that closes this one is missing
            return 0

        return (yield from Verbatim(self.writer, TOKENS, closing).read())

    def _closing_tag(self, end: str) -> Generator[None, None, int]:
        """How long the tag `end` is, whose token may stand there twice, 0 if it does not come next."""
        source = self.source
        start = source.offset
        tag = yield from _read_tag(source, (end,))
        if not tag:
            source.pos += len(CLOSE)
            yield from source.space()
            tag = yield from _read_tag(source, (end,))
        length = source.offset - start if tag else 0
        source.rewind(start)
        self.writer.repaired |= length > len(end)
        return length


class KimiBlock(FramedBlock):
    """Reads one section of calls."""

    call_end = CALL_CLOSE

    def call(self) -> KimiCall:
        """A reader for the call that comes next."""
        return KimiCall(self.context)

    def ahead(self) -> Generator[None, None, str]:
        """The tag that comes next of those that cannot stand within a call."""
        return (yield from _tag_ahead(self.source, OUTER_TAGS))

    def passes(self, text: str) -> Generator[None, None, bool]:
        """Read a tag with all of its tokens."""
        return (yield from _read_tag(self.source, (text,))) != ""

    def begins(self) -> Generator[None, None, bool]:
        """Whether the tag of a call comes next, or its beginning at the end of the output."""
        return (yield from self.ahead()) == CALL or self.cut(CALL)


def render_kimi_k3(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """Tags for each call and each of its arguments.

    One block of JSON stands for all arguments where a token in a string would break the tags.
    """
    writer, tokens = Writer(markers, JSON), tuple(markers)
    written = []
    for index, (name, arguments) in enumerate(calls, 1):
        writer.check_name(name)
        try:
            body = "".join(_kimi_argument(writer, tokens, key, value) for key, value in arguments.items())
        except ValueError:
            body = f'<|open|>json type="object"<|sep|>{writer.mapping(arguments, MAX_DEPTH)}{OBJECT_CLOSE}'
        written.append(f'<|open|>call tool="{name}" index="{index}"<|sep|>{body}{CALL_CLOSE}')
    return f"{span.open}{''.join(written)}{span.close}"


def _kimi_argument(writer: Writer, tokens: tuple[str, ...], key: Any, value: Any) -> str:
    kind = kind_of(value)
    kind = "number" if kind == "integer" else kind
    text = verbatim(value, tokens) if isinstance(value, str) else writer.value(value)
    return (
        f'<|open|>argument key="{escaped(verbatim(key, tokens))}" type="{kind}"<|sep|>{text}{ARGUMENT_CLOSE}'
    )


KIMI_K3 = Dialect(
    name="kimi-k3",
    reasoning=Span(THINK, THINK_CLOSE),
    calls=Span(TOOLS, TOOLS_CLOSE),
    ends=(END,),
    turn=KimiTurn,
    slips=(CALL,),
    inner=(CALL_CLOSE, OPEN, CLOSE, SEPARATOR),
    renderers={"tags": render_kimi_k3},
    answers=(
        Span(RESPONSE, RESPONSE_CLOSE),
        Span(MESSAGE, MESSAGE_CLOSE),
    ),
    cores=CORES,
)

ALL = (KIMI_K3,)
