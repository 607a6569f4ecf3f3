"""One call as tags: `<function=f>` with a `<parameter=k>` for each argument, whose value is raw text.

One grammar serves every format of this kind; a `Shape` says how its tags are spelled.

Raw text has no escapes, so a tag in it can be data. What follows it decides, over white space and one tag:

- The closing tag of a parameter ends its value, unless it is only mentioned: behind a blank or a quote, with
  text behind it on its line.
- Where that tag is missing, the next parameter's or the call's closing tag ends the value: a parameter's if
  it begins a line or is declared and not given yet; the call's if the next call, the end of the block or,
  where it begins a line, the end of the output follows. Only some models leave it out as a habit (`slips`):
  in the formats of the others the call is refused.
- A second call with parameters in a value shows that the value was never closed: the call is refused.
- What is nearly a tag, as `</paameter>`, is part of no value: a broken closing tag ends it if an argument or
  the end of the call follows, and otherwise the call is refused [torn-tag].

Every other tag is data, and behind it only the value's own closing tag ends the value: where that is missing
as well, the call is refused. A number or a boolean holds no tags: there the first one ends the value.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache

from ...dialect import Context
from ...engine.faults import Fault
from ...engine.source import Reading, Source
from ...engine.spans import NOWHERE
from ...engine.writer import NAME
from ...events import Reason
from ...literals.near import ESCAPE, is_near
from ...literals.object_call import JsonCall
from ...literals.raw import QUOTING, Ends, RawCall
from ...literals.typed_text import (
    ANY_JSON,
    CONTAINERS,
    OR_TEXT,
    STRING,
    Kinds,
    holds_no_tags,
    replace_lone,
)
from .shape import CRLF, LINE_ENDS, NO_KEY, Shape

_TAG = re.compile(r"[^<>\n]*")
_QUOTED = {quote: re.compile(rf"[^{quote}<>\n]*") for quote in "\"'"}
_WORD = re.compile(r"[^\s<>\"']*")
_ATTRIBUTE = re.compile(r"""\s+([\w:.\-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'=/]+)""")
_ATTRIBUTES = re.compile(rf"(?:{_ATTRIBUTE.pattern})*\s*/?")
_BOOLEANS = {"true": STRING, "false": ANY_JSON}


class TagCall(RawCall):
    """One call, from its opening tag to behind its closing one."""

    def __init__(self, context: Context, shape: Shape) -> None:
        dialect = context.dialect
        self._block = dialect.calls or NOWHERE
        super().__init__(context)
        self._context = context
        self._shape = shape
        self._turn_ends = dialect.ends
        outer = (self._block.open, self._block.close)
        openers = (shape.call if opener.startswith(shape.call) else opener for opener in dialect.openers)
        special = (*dialect.ends, *openers, self._block.close)
        self._ends = _ends_of(shape, self._block.close, special, dialect.markers)
        self._is_verbatim = False
        aliases = (*shape.alias(shape.parameter), *shape.alias(shape.call))
        opening = (shape.parameter, shape.call, *aliases)
        self._behind_parameter = (shape.parameter_end, shape.call_end, *opening, *outer)
        self._behind_call = (shape.call, *outer)
        self.closer = shape.parameter_end
        self.behind = (shape.parameter, shape.call_end, *shape.alias(shape.parameter))
        self._on_its_line = False  # the value begins on the line of its tag
        self._kinds: Kinds = None
        self._argument = ""
        self._is_empty = False  # its opening tag closes it: `<invoke name="submit"/>` [loose-dsml]
        self._holds_tags = False  # a tag in the value was taken for data

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source, shape = self.source, self._shape
        opened = yield from source.either((shape.call, *shape.alias(shape.call)))
        if not opened:
            if source.ended and shape.call.startswith(source.text[source.pos :]):
                source.pos = len(source.text)
                raise Fault(Reason.TRUNCATED)
            source.pos += 1
            raise Fault(Reason.NOT_A_CALL)
        name, repaired = yield from self.opening()
        self.writer.repaired = repaired or (opened != shape.call and shape.blanks != ())
        if not name or not NAME.fullmatch(name):
            raise Fault(Reason.NOT_A_CALL)
        self.start(name)
        if (yield from source.space()) == "{":
            yield from self._object()
            return
        self.writer.write("{")
        if self._is_empty:
            return
        end = ""
        while end != shape.call_end:
            if end != shape.parameter:
                yield from source.space()
                end = yield from source.either((shape.call_end, shape.parameter))
                if not end and (yield from source.either(shape.alias(shape.parameter))):
                    end = shape.parameter
                if not end and not (yield from self._is_left_open()):
                    raise Fault(Reason.SYNTAX)
                if not end:
                    return
                continue
            end = yield from self._parameter()

    def _is_left_open(self) -> Generator[None, None, bool]:
        """Whether the block is closed behind whole arguments, and with it the call [loose-tags]."""
        habit = self._shape.call_end in self._shape.slips and bool(self.writer.arguments)
        closed = habit and (yield from self.source.ahead((self._block.close,))) != ""
        self.writer.repaired |= closed
        return closed

    def opening(self) -> Generator[None, None, tuple[str, bool]]:
        """Read the rest of the opening tag: the name, and whether that took a repair. Raises Fault."""
        name, attributes, repaired = yield from _tag(self.source, self._shape)
        self._is_empty = attributes.endswith("/")
        return name, repaired

    def _object(self) -> Reading:
        """Read a JSON object in place of the parameters: `<function=f>{"n": 3}</function>`, as for Llama 3.1.

        Its own brace completes it, if the call ends there: what follows is often a stop token.
        """
        source = self.source
        arguments = JsonCall(self._context, self._block, self._object_ends, writer=self.writer)
        yield from arguments.read_arguments()
        end = self.writer.complete = source.offset
        yield from source.space()
        if not (yield from source.either((self._shape.call_end,))):
            if source.cut_marker(self._shape.call_end):
                source.pos = len(source.text)
            elif not (yield from self.goes_on(self._behind_call, self._turn_ends)):
                raise Fault(Reason.SYNTAX)
            else:
                source.rewind(end)

    def _object_ends(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Whether the object can end here. `inner`: there are unescaped quotes in it."""
        follow = (self._shape.call_end, *self._behind_call)
        return not inner or (yield from self.goes_on(follow, self._turn_ends))

    def _parameter(self) -> Generator[None, None, str]:
        """Read an argument from behind the beginning of its tag on; returns what ended it."""
        source, shape = self.source, self._shape
        self._argument, attributes, repaired = yield from _tag(source, shape)
        if not self._argument:
            raise Fault(Reason.POSITIONAL_ARGUMENT)
        if NO_KEY.search(self._argument) or attributes.endswith("/"):
            raise Fault(Reason.SYNTAX)
        self.writer.repaired |= repaired
        kinds = self._kinds = self._declared(attributes)
        yield from self._check_tag()
        self._holds_tags = False
        self._on_its_line = not (yield from source.ahead(LINE_ENDS))
        # Behind a tag that "\n" follows, "\r" in front of the next one is text.
        opened = yield from source.either(shape.around)
        ends, verbatim_ends = self._ends[opened != "\n"]
        self._is_verbatim = (yield from source.either((shape.verbatim or ())[:1])) != ""
        if self._is_verbatim:
            yield from self.read_raw(self._argument, verbatim_ends, STRING if kinds is None else kinds)
            return shape.parameter_end
        end = yield from self.read_raw(self._argument, ends, kinds)
        self.writer.repaired |= end != shape.parameter_end
        return end

    def _check_tag(self) -> Reading:
        """Raise Fault if what follows an argument's tag may be a part of it [torn-attribute]."""
        source, tool = self.source, self.writer.tool
        pieces = [f">{end}" for end in self._shape.around]
        if self._shape.quote:
            # a `>` in place of the blank in front, or of the first letter
            pieces += [f'{name}="{boolean}">' for name in ("string", "tring") for boolean in _BOOLEANS]
        if tool is not None and self._argument not in tool.types:
            rest = len(self._argument)  # `sh>w_type>`, `sh>ow_type>`: a `>` for a character, or in between
            begun = [key for key in tool.types if key.startswith(self._argument)]
            pieces += [f"{key[begin:]}>" for key in begun for begin in (rest, rest + 1) if key[begin:]]
        for piece in pieces:
            if (yield from source.ahead((piece,))):
                raise Fault(Reason.SYNTAX)

    def _declared(self, attributes: str) -> Kinds:
        """The JSON types that the argument may have, by its tag, or else by the tool's schema."""
        for name, value in _ATTRIBUTE.findall(attributes):
            if name == "string":
                stated = value.strip("\"'")
                if stated not in _BOOLEANS:
                    raise Fault(Reason.SYNTAX)
                declared = self.kinds_of(self._argument)
                if stated == "true" and declared is not None and declared <= CONTAINERS:
                    self.writer.repaired = True  # an object that is said to be text
                    return declared | OR_TEXT
                if stated == "false" and declared is not None and "string" in declared:
                    return frozenset({"json"}) | OR_TEXT
                return _BOOLEANS[stated]
            if is_near(name, "string"):
                raise Fault(Reason.SYNTAX)
        return self.kinds_of(self._argument)

    # -- what ends a value ----------------------------------------------------------------------------

    def closes(self, end: str) -> Generator[None, None, bool]:
        """Whether the value ends at `end`, one of its tags, by the rules at the top of this file."""
        if self._is_verbatim:
            return True
        source, shape = self.source, self._shape
        start = source.offset
        at_line = end[0] in CRLF or self.before in ("", "\n")
        at_line = at_line or (self._on_its_line and self.before not in QUOTING)
        source.pos += len(end)
        bare = end.lstrip(CRLF)
        is_scalar = holds_no_tags(self._kinds)
        second = False
        if bare == shape.parameter_end:
            ends_value = is_scalar or not (
                yield from self.is_mentioned(end, self._behind_parameter, self._turn_ends)
            )
        elif bare == shape.parameter:
            ends_value = is_scalar or (yield from self._begins_parameter(at_line))
        elif bare == shape.call_end:
            ends_value = is_scalar or (yield from self.goes_on(self._behind_call, self._turn_ends))
            ends_value = ends_value and (is_scalar or at_line or (yield from source.char()) != "")
        else:
            ends_value = False
            second = is_scalar or (yield from self._begins_call(end))
        source.rewind(start)
        if second or (ends_value and self._holds_tags and bare != shape.parameter_end):
            raise Fault(Reason.UNCLOSED_STRING, balanced=is_scalar or not second)
        if ends_value and self.before == "" and bare != shape.parameter_end:
            raise Fault(Reason.MISSING_VALUE)
        # A value that ends without its tag, and whose last character is `>`, ends in a piece of the tag.
        if ends_value and bare != shape.parameter_end and (bare not in shape.slips or self.before == ">"):
            raise Fault(Reason.UNCLOSED_STRING)
        self._holds_tags |= not ends_value
        return ends_value

    def closes_nearly(self, end: str, tag: str) -> Generator[None, None, bool]:
        """Whether a broken tag closes the value [torn-tag]: an argument or the call's end must follow."""
        source, shape = self.source, self._shape
        if self.before == ESCAPE:
            return False
        start = source.offset
        source.pos += len(end)
        if not (yield from source.char()):
            raise Fault(Reason.TRUNCATED, balanced=False)  # it may be the beginning of another text
        closes = tag == shape.parameter_end and not self._holds_tags
        bare = end.lstrip(CRLF)
        if bare[0] != "<":  # inside a line, the character in front may stand for the `<`
            closes = closes and (end[0] in CRLF or self.before == "\n")
        follows = (shape.call_end, shape.parameter, *shape.alias(shape.parameter))
        closes = closes and (yield from self.goes_on(follows, self._turn_ends))
        source.rewind(start)
        self.writer.repaired |= closes
        if not closes and tag == shape.parameter_end and bare[0] == "<" and "/" not in end:
            self._holds_tags = True  # `<parameter>` is a broken tag only where a closing one is due
        elif not closes:
            raise Fault(Reason.UNCLOSED_STRING, balanced=holds_no_tags(self._kinds))
        return closes

    def _begins_parameter(self, at_line: bool) -> Generator[None, None, bool]:
        """Whether the tag whose name comes next begins an argument. `at_line`: it stands where one would."""
        try:
            key, _, _ = yield from _tag(self.source, self._shape)
        except Fault:
            return False
        if not key or not NAME.fullmatch(key):
            return False
        if self.writer.tool is not None and key in self.writer.tool.types:
            return at_line or (key != self._argument and key not in self.writer.arguments)
        return at_line and not (self._on_its_line and self.writer.tool is not None and self.before != "\n")

    def _begins_call(self, end: str) -> Generator[None, None, bool]:
        """Whether `end`, just read, begins another call, or ends the block and the next one begins."""
        source, shape = self.source, self._shape
        if end.lstrip(CRLF) == self._block.close:
            yield from source.space()
            if not (yield from source.either((self._block.open,))):
                return False
            yield from source.space()
            return (yield from source.ahead((shape.call,))) != ""
        try:
            name, _, _ = yield from _tag(source, shape)
        except Fault:
            return False
        yield from source.space()
        return bool(name and NAME.fullmatch(name) and (yield from source.ahead((shape.parameter,))))


def begins_call(source: Source, shape: Shape) -> Generator[None, None, bool]:
    """Whether a call begins with the tag whose beginning has been read, as far as the output goes."""
    try:
        name, _, _ = yield from _tag(source, shape)
    except Fault:
        return not (yield from source.char())
    if not name or not NAME.fullmatch(name):
        return False
    tags = (shape.parameter, *shape.alias(shape.parameter), shape.call_end, "{")
    if not (yield from source.space()) or (yield from source.ahead(tags)):
        return True
    return source.ended and any(tag.startswith(source.text[source.pos :]) for tag in tags)


def _tag(source: Source, shape: Shape) -> Generator[None, None, tuple[str, str, bool]]:
    """Read the rest of a tag: the name, the attributes, and whether the quotes are a slip. Raises Fault."""
    quote = yield from source.char()
    if quote in _QUOTED:
        source.pos += 1
        name = yield from source.run(_QUOTED[quote])
        if (yield from source.char()) != quote:
            raise Fault(Reason.SYNTAX)
        source.pos += 1
        attributes = yield from source.run(_TAG)
    else:
        quote = ""
        name = yield from source.run(_WORD if shape.quote else _TAG)
        attributes = yield from source.run(_TAG)
    if (yield from source.char()) != ">" or not _ATTRIBUTES.fullmatch(attributes):
        raise Fault(Reason.SYNTAX)
    source.pos += 1
    return replace_lone(name.strip()), attributes, quote != shape.quote


@cache
def _ends_of(
    shape: Shape, close: str, special: tuple[str, ...], markers: tuple[str, ...]
) -> tuple[tuple[Ends, Ends], ...]:
    """What may end a value, and a verbatim one: behind a tag that "\\n" follows, and behind any other."""
    quote = "" if shape.verbatim is None else shape.verbatim[1]
    verbatim: dict[str, tuple[str, ...]] = {
        f"{quote}{space}{shape.parameter_end}": () for space in ("", "\n")
    }
    ends = []
    for around in (shape.around[-1:], shape.around):
        lines = around or ("\n",)
        early = {close: around, shape.call: (), shape.call_end: lines, shape.parameter: lines}
        misplaced = {marker: around for marker in markers if not marker.startswith(shape.tags)}
        tags = early | {shape.parameter_end: around}
        ends.append((Ends(tags, special, shape.near, misplaced), Ends(verbatim, special)))
    return tuple(ends)
