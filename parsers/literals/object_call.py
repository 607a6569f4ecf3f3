"""A call as a JSON object: `{"name": "get_weather", "arguments": {"city": "Paris"}}`.

The members may come in any order and others are allowed; Python's literals are read as well, since models
mix them in. Without an object of arguments it is no call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
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
from .values import Frame, JsonReader, LiteralReader, StrictJsonReader

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


class JsonCall(LiteralCall):
    """An object with a name and an object of arguments."""

    reader: type[LiteralReader] = JsonReader
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ARGUMENTS
    _place: int | None = None  # where the arguments wait for the name
    complete = False  # the arguments have been read
    _inner_written: Mapping[str, str] = MappingProxyType({})  # of the last argument, if it is a mapping

    def __init__(
        self, context: Context, span: Span, follows_call: FollowsCall, writer: CallWriter | None = None
    ) -> None:
        """`span`, `writer`: as for `LiteralCall`. `follows_call`: what fits after the call."""
        super().__init__(context, span, writer)
        self._follows_call = follows_call
        self._beside: dict[str, object] = {}  # members that are neither name nor arguments
        self._written: dict[str, str] = {}  # bare numbers among the arguments, as they were written

    def read(self) -> Reading:
        """Read the object."""
        yield from self.members()
        if self.writer.name is not None and not self.complete:
            self.without_arguments()
        if self.writer.name is None or not self.complete:
            raise Fault(Reason.NOT_A_CALL, final=True)

    def members(self) -> Reading:
        """Read the object, its braces included."""
        yield from self.further_members(self.enter())

    def further_members(self, frame: Frame) -> Reading:
        """Read the members up to the brace that closes `frame`."""
        while (key := (yield from self.member(frame))) is not None:
            if key in self.argument_keys:
                yield from self.read_arguments()
            elif key in self.name_keys:
                yield from self.read_name()
            else:
                yield from self.other_member(key)
            yield from self.ended(frame)

    def is_name(self, text: str) -> bool:
        """Whether a tool can have that name."""
        return text != "" and NAME.fullmatch(text) is not None

    def other_member(self, key: str) -> Reading:
        """Read the value of a member that is neither name nor arguments."""
        self._beside[key] = yield from self.unused()

    def without_arguments(self) -> None:
        """The object has a name and no arguments: here it is no call."""

    def other_arguments(self) -> Reading:
        """Read arguments that are no object: here it is no call then. Raises Fault."""
        raise Fault(Reason.NOT_A_CALL)
        yield

    def enter(self) -> Frame:
        """Open an object, which is known to be a mapping."""
        frame = Frame("{")
        frame.keys = True
        self.values.frames.append(frame)
        self.source.pos += 1
        return frame

    def member(self, frame: Frame) -> Generator[None, None, str | None]:
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
        while (found := pattern.match(source.text, source.pos)) and not found[2] and not source.ended:
            yield
        if not found or not found[2]:
            return ""
        source.pos = found.end()
        self.values.word = None
        return found[1]

    def ended(self, frame: Frame) -> Reading:
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

    def unused(self) -> Generator[None, None, object]:
        """Read a value and write nothing."""
        place = self.writer.hold()
        value: object = yield from self.values.value()
        self.writer.settle(place, "")
        return value

    def read_name(self) -> Reading:
        """Read the name and open the call."""
        name = yield from self.unused()
        if self.writer.name is not None or not isinstance(name, str) or not self.is_name(name):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(name)
        if self._place is not None:
            self._arguments_were_first(self._place)

    def _arguments_were_first(self, place: int) -> None:
        """Write the arguments that waited for the name, as if they had come behind it."""
        items = self.writer.restart()
        self.writer.settle(place, "{")
        self.writer.merge(items, self._written, self._inner_written)

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
        frame = self.enter()
        self.writer.write("{")
        while (key := (yield from self.member(frame))) is not None:
            yield from self.values.argument(key, "}")
            yield from self.ended(frame)
            if self.values.word is not None:
                self._written[key] = self.values.word
            self._inner_written = self.values.written
        self.complete = True

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Behind the object: whatever fits behind a call."""
        return (yield from self._follows_call(inner, "{"))


class LooseJsonCall(JsonCall):
    """The same where models write it from habit: what can only be meant as arguments is read as such.

    Missing arguments and null are none; a string that holds an object is that object; arguments may lie flat
    beside the name; a call may be wrapped as OpenAI's API has it, `{"type": "function", "function": {...}}`.
    All of these count as repaired, and so does everything that JSON does not have.
    """

    reader = StrictJsonReader
    by_schema = False  # JSON says itself of what type a value is

    def read(self) -> Reading:
        """Read the object, unless its other members show that some of the arguments are lost."""
        yield from super().read()
        if strange := self._beside.keys() - ABOUT_A_CALL:
            # A brace too many has closed the arguments: what follows was one of them [stray-members].
            early = (yield from self.source.char()) == "}"
            lost = not self.writer.arguments and bool(self._parameters())  # or they were beside their key
            if early or lost or not strange.isdisjoint(self._parameters()):
                raise Fault(Reason.NOT_A_CALL, final=True)

    def is_name(self, text: str) -> bool:
        """In a string any name of a declared tool is as good as one in the notation of names."""
        return super().is_name(text) or self.writer.declares(text)

    def other_member(self, key: str) -> Reading:
        """Read the call itself in OpenAI's wrapping, or what may turn out to be an argument."""
        if key != "function" or self.writer.name is not None:
            yield from super().other_member(key)
            return
        self.writer.repaired = True
        yield from self.members() if (yield from self.source.space()) == "{" else self.read_name()

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

    def other_arguments(self) -> Reading:
        """Null is no arguments, and a string that holds an object is that object."""
        value = yield from self.unused()
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


class ArgumentsCall(LooseJsonCall):
    """An object of arguments behind a name, which `writer` has already."""

    def read(self) -> Reading:
        """Read the object. Raises Fault."""
        yield from self.read_arguments()


class ToolNameCall(LooseJsonCall):
    """`{"tool_call_id": "0", "tool_name": "f", "parameters": {}}`, as Command R writes it."""

    name_keys = ("tool_name", "name")


class KeyedCall(LooseJsonCall):
    """`{"f": {}}`, as Apertus writes it: the one key is the name."""

    def members(self) -> Reading:
        """Read the object, its braces included."""
        frame = self.enter()
        key = yield from self.member(frame)
        if key in self.name_keys and (yield from self.source.space()) in QUOTES:
            self.writer.repaired = True  # the notation of the others: arguments are never a string here
            yield from self.read_name()
            yield from self.ended(frame)
            yield from self.further_members(frame)
            return
        if key is None or not self.is_name(key):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(key)
        yield from self.read_arguments()
        yield from self.ended(frame)
        if (yield from self.member(frame)) is not None:
            raise Fault(Reason.NOT_A_CALL)
