"""A call as a JSON object: `{"name": "get_weather", "arguments": {"city": "Paris"}}`.

The members may come in any order and others are allowed; Python's literals are read as well, since models
mix them in. One grammar serves every format of this kind; an `ObjectShape` says what differs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from ..dialect import Context
from ..engine.driver import FollowsCall
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.writer import NAME, CallWriter
from ..events import Reason
from .call import LiteralCall
from .skipping import QUOTES
from .typed_text import read_literal
from .values import Frame, JsonReader, StrictJsonReader

ARGUMENTS = ("arguments", "parameters")
ABOUT_A_CALL = frozenset({"type", "id", "index", "tool_call_id", "call_id"})
"""Members that APIs write beside a name and its arguments."""


@cache
def _plain_key(starts: str) -> re.Pattern[str]:
    """A key in which nothing has a meaning, and its colon, or as much of them as has arrived.

    `starts`: the characters with which markers may begin.
    """
    space = r"[ \t\r\n\f\v]*"
    body = rf'([^"\\\ud800-\udfff{re.escape(starts)}]{{1,40}})'
    return re.compile(rf'"(?:{body}(?:"{space}(?:(:)|\Z)|\Z)|\Z)')


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """How an object tells what it calls. `keyed`: its one key is the name, `{"f": {}}`.

    `loose`: models write it from habit, and what can only be meant as arguments is read as such. Missing
    arguments and null are none; a string that holds an object is that object; arguments may lie flat beside
    the name; a call may be wrapped as OpenAI's API has it, `{"type": "function", "function": {...}}`. All of
    these count as repaired, and so does everything that JSON does not have. Otherwise an object is one more
    notation of a format whose values are Python's, and without an object of arguments it is no call.
    """

    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ARGUMENTS
    keyed: bool = False
    loose: bool = True


NAMED = ObjectShape()
"""`{"name": "f", "arguments": {}}`, as most formats have it."""


class JsonCall(LiteralCall):
    """An object with a name and an object of arguments."""

    _place: int | None = None  # where the arguments wait for the name
    complete = False  # the arguments have been read
    _inner_written: Mapping[str, str] = MappingProxyType({})  # of the last argument, if it is a mapping

    def __init__(
        self,
        context: Context,
        span: Span,
        follows_call: FollowsCall,
        shape: ObjectShape = NAMED,
        writer: CallWriter | None = None,
    ) -> None:
        """`span`, `writer`: as for `LiteralCall`. `follows_call`: what fits after the call."""
        self.reader = StrictJsonReader if shape.loose else JsonReader
        self.by_schema = not shape.loose  # JSON says itself of what type a value is
        super().__init__(context, span, writer)
        self._follows_call = follows_call
        self._shape = shape
        self._beside: dict[str, object] = {}  # members that are neither name nor arguments
        self._written: dict[str, str] = {}  # bare numbers among the arguments, as they were written

    def read(self) -> Reading:
        """Read the object, unless its other members show that some of the arguments are lost."""
        shape, writer = self._shape, self.writer
        yield from self._keyed() if shape.keyed else self._members(self._enter())
        if shape.loose and writer.name is not None and not self.complete:
            self.without_arguments()
        if writer.name is None or not self.complete:
            raise Fault(Reason.NOT_A_CALL, final=True)
        if shape.loose and (strange := self._beside.keys() - ABOUT_A_CALL):
            # A brace too many has closed the arguments: what follows was one of them [stray-members].
            early = (yield from self.source.char()) == "}"
            lost = not writer.arguments and bool(self._parameters())  # or they were beside their key
            if early or lost or not strange.isdisjoint(self._parameters()):
                raise Fault(Reason.NOT_A_CALL, final=True)

    def _members(self, frame: Frame) -> Reading:
        """Read the members up to the brace that closes `frame`."""
        while (key := (yield from self._member(frame))) is not None:
            if key in self._shape.argument_keys:
                yield from self.read_arguments()
            elif key in self._shape.name_keys:
                yield from self._name()
            else:
                yield from self.other_member(key)
            yield from self._member_ends(frame)

    def _keyed(self) -> Reading:
        """Read an object whose one key is the name."""
        frame = self._enter()
        key = yield from self._member(frame)
        if key in self._shape.name_keys and (yield from self.source.space()) in QUOTES:
            self.writer.repaired = True  # the notation of the others: arguments are never a string here
            yield from self._name()
            yield from self._member_ends(frame)
            yield from self._members(frame)
            return
        if key is None or not self._is_name(key):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(key)
        yield from self.read_arguments()
        yield from self._member_ends(frame)
        if (yield from self._member(frame)) is not None:
            raise Fault(Reason.NOT_A_CALL)

    def _is_name(self, text: str) -> bool:
        """Whether a tool can have that name. JSON's strings can hold any that is declared."""
        fits = text != "" and NAME.fullmatch(text) is not None
        return fits or (self._shape.loose and self.writer.declares(text))

    def _name(self) -> Reading:
        """Read the name and open the call."""
        name = yield from self._unused()
        if self.writer.name is not None or not isinstance(name, str) or not self._is_name(name):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(name)
        if self._place is not None:  # the arguments came first: write them as if they had come behind it
            items = self.writer.restart()
            self.writer.settle(self._place, "{")
            self.writer.merge(items, self._written, self._inner_written)

    def other_member(self, key: str) -> Reading:
        """Read the call itself in OpenAI's wrapping, or what may turn out to be an argument."""
        if not self._shape.loose or key != "function" or self.writer.name is not None:
            self._beside[key] = yield from self._unused()
            return
        self.writer.repaired = True
        wraps = (yield from self.source.space()) == "{"
        yield from self._members(self._enter()) if wraps else self._name()

    def without_arguments(self) -> None:
        """Take the members beside the name for arguments, if all are parameters [stray-members]."""
        parameters = self._parameters()
        flat = {key: value for key, value in self._beside.items() if key in parameters}
        # `id` alone may be either, and of what is no parameter it is not known what was meant.
        if (flat and flat.keys() <= ABOUT_A_CALL) or not self._beside.keys() <= {*flat, *ABOUT_A_CALL}:
            raise Fault(Reason.NOT_A_CALL, final=True)
        self.writer.repaired = True
        self.complete = True
        self.writer.write("{")
        self.writer.merge(flat, {})
        self._beside.clear()

    def _parameters(self) -> Collection[str]:
        """Those that the tool declares, if it is known."""
        return self.writer.tool.types.keys() if self.writer.tool is not None else ()

    def read_arguments(self) -> Reading:
        """Read the object of arguments."""
        if self.complete:
            raise Fault(Reason.NOT_A_CALL)
        if self.writer.name is None:
            self._place = self.writer.hold()
        if (self.source.ready() or (yield from self.source.space())) != "{":
            yield from self.other_arguments()
            self.complete = True
            return
        frame = self._enter()
        self.writer.write("{")
        while (key := (yield from self._member(frame))) is not None:
            yield from self.values.argument(key, "}")
            yield from self._member_ends(frame)
            if self.values.word is not None:
                self._written[key] = self.values.word
            self._inner_written = self.values.written
        self.complete = True

    def other_arguments(self) -> Reading:
        """Read null, which is no arguments, or a string that holds an object, which is that object."""
        if not self._shape.loose:
            raise Fault(Reason.NOT_A_CALL)
        value = yield from self._unused()
        if isinstance(value, str):
            try:
                value = read_literal(value)[0] if value.strip() else None
            except Fault:
                value = ""
        if value is not None and not isinstance(value, dict):
            raise Fault(Reason.NOT_A_CALL, final=True)
        self.writer.repaired = True
        self.writer.write("{")
        self.writer.merge(value or {}, {})

    # -- any object -----------------------------------------------------------------------------------

    def _enter(self) -> Frame:
        """Open an object, which is known to be a mapping."""
        frame = Frame("{")
        frame.keys = True
        self.values.frames.append(frame)
        self.source.pos += 1
        return frame

    def _member(self, frame: Frame) -> Generator[None, None, str | None]:
        """The next key and its colon; None when the object was closed instead."""
        source = self.source
        char = source.ready() or (yield from source.space())
        if char == "}":
            source.pos += 1
            self.values.frames.pop()
            return None
        if char not in QUOTES:
            raise Fault(Reason.SYNTAX)
        if key := (yield from self._plain_key()):
            frame.key = key
            return key
        place = self.writer.hold()
        key = yield from self.values.value()
        self.writer.settle(place, "")
        if (source.ready() or (yield from source.space())) != ":":
            raise Fault(Reason.SYNTAX)
        source.pos += 1
        assert isinstance(key, str)
        frame.key = key
        return key

    def _plain_key(self) -> Generator[None, None, str]:
        """Read a key and its colon in one step; "" where the key is long, or has to be looked at closely."""
        source = self.source
        pattern = _plain_key(source.starts)
        while (match := pattern.match(source.text, source.pos)) and not match[2] and not source.ended:
            yield
        if not match or not match[2]:
            return ""
        source.pos = match.end()
        self.values.word = None
        return match[1]

    def _member_ends(self, frame: Frame) -> Reading:
        """A member is complete when the object goes on or ends behind it."""
        source = self.source
        char = source.ready() or (yield from source.space())
        if char == ",":
            source.pos += 1
            if (source.ready() or (yield from source.space())) == "}":
                self.values.no_json()
        elif char != "}":
            raise Fault(Reason.SYNTAX)
        frame.key = None

    def _unused(self) -> Generator[None, None, object]:
        """Read a value and write nothing."""
        place = self.writer.hold()
        value: object = yield from self.values.value()
        self.writer.settle(place, "")
        return value

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Behind the object: whatever fits behind a call."""
        return (yield from self._follows_call(inner, "{"))
