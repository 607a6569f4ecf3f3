"""One call as a name and pairs: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

One grammar serves every format of this kind; a `PairShape` says how its tags are spelled. Some models write a
JSON object of the arguments in place of the pairs.

White space between the tags means nothing; a value is raw text. Its closing tag ends it, unless it is only
mentioned: behind a blank or a quote, with text behind it on its line. The next pair inside a value shows that
the value was never closed, and so does the next block, unless the value's own closing tag comes before the
next pair. Only some models leave that tag out as a habit (`PairShape.slips`): there the value ends if the key
of the next pair is declared and not given yet, or if the turn ends after the call. Otherwise the call is
refused, as it is where a tag in the value was taken for data.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache

from ...dialect import Context
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import Span
from ...engine.writer import NAME, json_text
from ...events import Reason
from ...literals.near import looks_like
from ...literals.object_call import JsonCall
from ...literals.raw import QUOTING, Ends, RawCall, stops_at
from ...literals.typed_text import Kinds, holds_no_tags, replace_lone, typed_text
from .shape import PairShape

_NAME = re.compile(r"[^<{\n]*")
_KEY = re.compile(r"[^<]*")
_LINE_END = "\\n"
_TYPE = re.compile(r"[a-z]*")
_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


class PairsCall(RawCall):
    """One call, from behind its opening marker to behind its closing one, which is the call's own end."""

    def __init__(self, context: Context, span: Span, shape: PairShape, *, opened: bool = True) -> None:
        """`span`: the markers around the call. `opened`: whether its opening one has been read."""
        super().__init__(context)
        dialect = context.dialect
        self._context = context
        self._span = span
        self._shape = shape
        self._opened = opened
        self._closes = (span.close, *shape.closers)
        self._turn_ends = dialect.ends
        self._kinds: Kinds = None
        special = (*dialect.ends, *dialect.openers, span.open, span.close)
        self._ends = _value_ends(shape, span.close, special, dialect.markers)
        self.closer = shape.value_end
        self.behind = (shape.key, *self._closes)
        self._pair_tags = stops_at((shape.value_end, shape.key), special)
        self._argument = ""
        self._holds_pairs = False  # a tag in the value was taken for data
        self.bounds = (span.close,) if shape.slips else ()
        self._value_end = 0  # where the value's closing tag is, if it has been looked for and found

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source, shape = self.source, self._shape
        if not self._opened and not (yield from source.either((self._span.open,))):
            source.pos += 1
            raise Fault(Reason.NOT_A_CALL)
        yield from source.space()
        name = (yield from source.run(_NAME)).strip().removesuffix(_LINE_END)
        if not self._opened and not name and (yield from source.char()) == "{":
            yield from self._object(self._json().read())
            return
        char = yield from source.char()
        if (assigned := self._assigned(name)) is not None and (yield from source.either(self._closes)):
            self._assign(*assigned)
            return
        if not char or not name:
            raise Fault(Reason.NOT_A_CALL)
        # With a blank in it, it may be a name and a key whose opening tag is missing.
        if not NAME.fullmatch(name) and not (yield from source.ahead((shape.key_end,))):
            raise Fault(Reason.NOT_A_CALL)
        separated = (yield from source.either((shape.separator,))) != "" if shape.separator else False
        if (yield from source.space()) == "{":
            name = self._named(name)
            unsure = self.writer.any_declared() or not shape.bare
            if unsure and not separated and not self.writer.declares(name):
                raise Fault(Reason.NOT_A_CALL)  # `json {"name": "f", "arguments": {}}` is no call of `json`
            self.start(name)
            yield from self._object(self._json().read_arguments())
        else:
            yield from self._pairs(name)

    def _pairs(self, name: str) -> Reading:
        """Open the call `name` and read its pairs, up to behind what closes it."""
        source, shape = self.source, self._shape
        repaired = (yield from self._stray_end()) if shape.bare else False
        char = yield from self._space()
        follow = (shape.key, *self._closes) if shape.bare else (shape.key,)
        key = ""  # that of the first pair, if its tag is missing
        if char and not (yield from source.ahead(follow)):
            name, key = yield from self._untagged_key(name)
            repaired = True
        self.start(self._named(name))
        self.writer.repaired |= repaired
        self.writer.write("{")
        tag = (yield from self._pair(key)) if key else ""
        while tag not in self._closes:
            if not tag:
                yield from self._space()
                tag = yield from source.either((shape.key, *self._closes))
            if not tag:
                raise Fault(Reason.SYNTAX)
            if tag == shape.key:
                tag = yield from self._pair()

    def _assigned(self, text: str) -> tuple[str, list[tuple[str, str]]] | None:
        """The name and arguments of `multiply a=12 b=48`, if all of them are declared; else None."""
        name, *words = text.split() or [""]
        pairs = [(key, value) for key, _, value in (word.partition("=") for word in words) if value]
        tool = self._context.tools.get(name)
        declared = tool is not None and len(pairs) == len(words) and dict(pairs).keys() <= tool.types.keys()
        return (name, pairs) if pairs and declared and self._shape.bare and self._shape.slips else None

    def _assign(self, name: str, pairs: list[tuple[str, str]]) -> None:
        """Write such a call, whose end has been read."""
        writer = self.writer
        self.start(name)
        writer.repaired = True
        writer.write("{")
        for key, text in pairs:
            value, _ = typed_text(text, self.kinds_of(key))
            writer.key(key)
            writer.write(json_text(value))
            writer.argument(key, value)

    def _space(self) -> Generator[None, None, str]:
        """`Source.space`, also over a line end written as an escape of two characters [tags-of-pairs]."""
        while (char := (yield from self.source.space())) == "\\":
            if not (yield from self.source.either((_LINE_END,))):
                break
            self.writer.repaired = True
        return char

    def _untagged_key(self, name: str) -> Generator[None, None, tuple[str, str]]:
        """Read the name and a first key without its tag, up to the tag behind it [tags-of-pairs].

        Another block seems to begin in place of the tag, or the key is glued to the name; then only what is
        declared tells the two apart. Raises Fault.
        """
        source, shape = self.source, self._shape
        start = source.offset
        if (yield from source.either((self._span.open,))):
            key = (yield from source.run(_NAME)).strip()
            if key and (yield from source.ahead((shape.key_end,))):
                return name, key
        elif (yield from source.ahead((shape.key_end,))):
            meant = [
                (tool.name, key)
                for tool in self._context.tools.values()
                for key in tool.types
                if name.startswith(tool.name) and name.removeprefix(tool.name).strip() == key
            ]
            if len(meant) == 1:
                return meant[0]
        source.rewind(start)
        raise Fault(Reason.NOT_A_CALL)

    def _named(self, name: str) -> str:
        """The declared tool that a name with a namespace in front of it means, else the name."""
        short = name.removeprefix(self._shape.namespace)
        return short if not self.writer.declares(name) and self.writer.declares(short) else name

    def _stray_end(self) -> Generator[None, None, bool]:
        """Read the end of a value that was never opened: quantized models write it in place of arguments."""
        source = self.source
        start = source.offset
        if (yield from source.either((self._shape.value_end,))):
            yield from source.space()
            if (yield from source.ahead(self._closes)):
                return True
        source.rewind(start)
        return False

    def _json(self) -> JsonCall:
        """A reader for the call as a JSON object, or for its arguments."""
        return JsonCall(self._context, self._span, self._object_ends, writer=self.writer)

    def _object(self, reading: Reading) -> Reading:
        """Read a JSON object in place of the pairs. Its own brace completes it, if the call ends there."""
        yield from reading
        source = self.source
        end = self.writer.complete = source.offset
        yield from source.space()
        if not (yield from source.either(self._closes)):
            if not (yield from self._object_ends(True, "")):
                raise Fault(Reason.SYNTAX)
            if self._shape.slips and (yield from source.ahead((self._span.open,))):
                raise Fault(Reason.UNCLOSED)  # Laguna begins a call again [call-written-twice]
            source.rewind(end)

    def _object_ends(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Whether the object can end here. `inner`: there are unescaped quotes in it."""
        return not inner or (yield from self.goes_on((*self._closes, self._span.open), self._turn_ends))

    def _pair(self, key: str = "") -> Generator[None, None, str]:
        """Read an argument from behind the tag of its key on, or behind `key`; returns what ended it.

        That is "" for the value's own closing tag.
        """
        source, shape = self.source, self._shape
        if not key:
            yield from self._again(shape.key)
            key = replace_lone((yield from source.run(_KEY)).strip())
        if not (yield from source.either((shape.key_end,))):
            raise Fault(Reason.SYNTAX if shape.value else Reason.MISSING_VALUE)
        yield from self._again(shape.key_end)
        stated = None
        if shape.value:
            char = yield from self._space()
            if shape.kind is not None and (yield from source.either((shape.kind[0],))):
                stated = yield from self._stated_kind(shape.kind[1])
            if not (yield from source.either((shape.value,))):
                if char in ("", "<", ">") or not shape.slips or (yield from self._is_torn_tag()):
                    raise Fault(Reason.MISSING_VALUE)
                self.writer.repaired = True  # the value's closing tag bounds it [tags-of-pairs]
            else:
                yield from self._again(shape.value)
        if not key:
            raise Fault(Reason.POSITIONAL_ARGUMENT)
        self._kinds = self.kinds_of(key) or stated
        self._argument = key
        self._holds_pairs = False
        end = yield from self.read_raw(key, self._ends, self._kinds)
        if end == shape.value_end:
            return ""
        self.writer.repaired = True  # the next tag bounds the value [tags-of-pairs]
        return end

    def _again(self, tag: str) -> Reading:
        """Read `tag` where it is repeated, over white space: markup, as nothing else can stand there."""
        source = self.source
        if not source.may_bring(tag):
            return
        end = source.offset
        while (yield from source.space()) and (yield from source.either((tag,))):
            end = source.offset
            self.writer.repaired = True
        source.rewind(end)

    def _is_torn_tag(self) -> Generator[None, None, bool]:
        """Whether something comes next that may be the tag of a value [torn-tag]."""
        source, tag = self.source, self._shape.value
        while len(source.text) < source.pos + len(tag) + 2 and not source.ended:
            yield
        return looks_like(source.text[source.pos : source.pos + len(tag) + 2], tag)

    def _stated_kind(self, end: str) -> Generator[None, None, Kinds]:
        """Read the type that stands beside a value, and the tag behind it: `array[string]` is an array."""
        source = self.source
        yield from source.space()
        word = yield from source.run(_TYPE)
        yield from source.run(_KEY)
        if not (yield from source.either((end,))):
            raise Fault(Reason.SYNTAX)
        yield from source.space()
        return frozenset((word,)) if word in _TYPES else None

    def closes(self, end: str) -> Generator[None, None, bool]:
        """Whether the value ends at `end`, one of its tags, by the rules at the top of this file."""
        source, shape = self.source, self._shape
        start = source.offset
        source.pos += len(end)
        bare = end.lstrip("\r\n")
        if holds_no_tags(self._kinds):
            ends_value = True
        elif bare == shape.value_end:
            tags = (shape.key, shape.value_end, *self._closes, self._span.open)
            ends_value = not (yield from self.is_mentioned(end, tags, self._turn_ends))
        elif bare == shape.key:
            key = (yield from source.run(_KEY)).strip()
            ends_value = (yield from source.either((shape.key_end,))) != ""
            if shape.value:
                yield from source.space()
                ends_value = (
                    ends_value and (yield from source.ahead((shape.value, *(shape.kind or ())[:1]))) != ""
                )
            if ends_value and not self._may_begin(key):
                raise Fault(Reason.UNCLOSED_STRING, balanced=False)
        elif start < self._value_end:
            ends_value = False
        else:
            ends_value = self.before not in QUOTING and (yield from self._is_at_end())
            ends_value = ends_value or (yield from self._begins_block())
        source.rewind(start)
        # A value that seems to end without its tag, but whose last character is `>`, ends in a piece of it.
        if (
            ends_value
            and bare != shape.value_end
            and (self._holds_pairs or not shape.slips or self.before == ">")
        ):
            raise Fault(Reason.UNCLOSED_STRING, balanced=False)
        self._holds_pairs |= not ends_value
        return ends_value

    def _may_begin(self, key: str) -> bool:
        """Whether a pair of that key can follow: it is declared and not given yet, where that is known."""
        tool = self.writer.tool
        given = key == self._argument or key in self.writer.arguments
        return not given and (tool is None or key in tool.types)

    def _is_at_end(self) -> Generator[None, None, bool]:
        """Whether the turn or the output ends here."""
        source = self.source
        return not (yield from source.space()) or (yield from source.marker()) in self._turn_ends

    def closes_nearly(self, end: str, tag: str) -> Generator[None, None, bool]:
        """Whether a broken tag closes the value [torn-tag]: a pair or the end of the block follows then."""
        source, shape = self.source, self._shape
        start = source.offset
        source.pos += len(end)
        if not (yield from source.char()):
            raise Fault(Reason.TRUNCATED, balanced=False)  # it may be the beginning of another text
        closes = tag == shape.value_end and end[0] == "<"
        closes = closes and (yield from self.goes_on((shape.key, *self._closes), self._turn_ends))
        source.rewind(start)
        if closes:
            self.writer.repaired = True
        elif tag != shape.value_end or "/" in end or "/" not in tag or self.before not in QUOTING:
            raise Fault(Reason.UNCLOSED_STRING, balanced=False)
        return closes  # `<arg_value>` may be spoken of

    def _begins_block(self) -> Generator[None, None, bool]:
        """Whether the next call begins here, with no closing tag of the value before its first pair."""
        source = self.source
        yield from source.space()
        if not (yield from source.ahead((self._span.open,))):
            return False
        if (yield from self._pair_tags.skip(source)) != self._shape.value_end:
            return True
        self._value_end = source.offset
        return False


@cache
def _value_ends(shape: PairShape, close: str, special: tuple[str, ...], markers: tuple[str, ...]) -> Ends:
    """What may end a value. A line end in front of another tag would stand behind the one that is missing."""
    newline = ("\r\n", "\n") if shape.slips else ()
    misplaced = {marker: newline for marker in markers if marker not in shape.tags}
    return Ends({shape.value_end: (), shape.key: newline, close: newline}, special, shape.near, misplaced)
