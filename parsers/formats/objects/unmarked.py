"""Calls as JSON without any marker: `{"name": "f", "arguments": {}}`, or a list of such objects.

Much JSON that models write is no call. So the events wait until it is certain that this is one: its name is
known and its arguments have begun. What contradicts before that makes it content. From there on it streams,
and what breaks is kept, as in any block.

That is for formats that promise such calls, anywhere (`UnmarkedOpening`) or at the beginning
(`LeadingCalls`); `bare.py` has what is read in all the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace

from ...dialect import Context, Inside
from ...engine.driver import Call, FollowsCall
from ...engine.emitter import Emitter
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import NOWHERE
from ...engine.tools import Tool
from ...engine.turn import MarkedTurn, Stops
from ...events import Fits, Reason
from ...literals.near import is_near
from ...literals.object_call import ABOUT_A_CALL, JsonCall
from ...literals.skipping import QUOTES
from ..lists.bare import MAX_REREAD
from .block import JsonBlock

# Bounded, since text that may be a beginning is looked at again with each piece of output.
_S = r"[ \t\r\n]{0,64}"
_INFO = r"[\w-]{0,32}[ \t]{0,8}"
_FENCE = rf"```{_INFO}\r?\n{_S}"
_FENCE_LINE = re.compile(_FENCE)
_BEGINNING = re.compile(rf"""(?:{_FENCE})?\[?{_S}\{{{_S}["']""")
_BEGINNING_OF_ONE = re.compile(rf"(?:`{{1,2}}|```{_INFO}\r?|(?:{_FENCE})?\[?{_S}(?:\{{{_S})?)\Z")
_SHORT = 3
"""Names of so many characters are near to one another without being meant."""
SEPARATORS = re.compile(r"[ \t\r\n,;]*")


class Attempt(Emitter):
    """Events that wait until they are certain to be of calls. `names`: those of all tools, None for any.

    `near`: whether a misspelled one is certain to be meant, so that its call is broken and no content.
    """

    def __init__(self, emit: Emitter, names: Collection[str] | None, *, near: bool = False) -> None:
        super().__init__(emit)
        self.amiss = emit.amiss
        self.certain = False
        self._names = names
        self._near = near
        self._broken = False

    def call_start(self, name: str, end: int, fits: Fits = None) -> int:
        """Open a call, if there is a tool of that name."""
        if self._names is not None and name not in self._names:
            self._broken = (
                self._near and len(name) > _SHORT and any(is_near(name, known) for known in self._names)
            )
            if not self._broken:
                raise Fault(Reason.NOT_A_CALL)
        return super().call_start(name, end, fits)

    def json(self, piece: str, end: int) -> None:
        """The arguments have begun."""
        self.certain = True
        if self._broken:
            raise Fault(Reason.NOT_A_CALL)
        super().json(piece, end)


class UnmarkedCall(JsonCall):
    """An object with a name and arguments, and with nothing strange beside them.

    `promised`: whether the format has such calls, so that one is certain once its arguments are complete.
    """

    def __init__(self, context: Context, follows_call: FollowsCall, *, promised: bool) -> None:
        super().__init__(context, NOWHERE, follows_call)
        self._promised = promised

    def read(self) -> Reading:
        """Read the object. One that has a schema for its arguments declares a tool, and calls none."""
        yield from super().read()
        given, tool = self.writer.arguments, self.writer.tool
        is_schema = given.get("type") == "object" and isinstance(given.get("properties"), dict)
        if is_schema and (tool is None or "properties" not in tool.types):
            raise Fault(Reason.NOT_A_CALL, final=True)

    def other_member(self, key: str) -> Reading:
        """Read what APIs write beside a call. With a member like `"result"` the object reports one."""
        if key != "function" and key not in ABOUT_A_CALL and not (self._promised and self.complete):
            raise Fault(Reason.NOT_A_CALL)
        yield from super().other_member(key)

    def without_arguments(self) -> None:
        """A name alone is no call here."""

    def other_arguments(self) -> Reading:
        """Read null or a string, but only a string where the format has no such calls."""
        if not self._promised and (yield from self.source.char()) not in QUOTES:
            raise Fault(Reason.NOT_A_CALL)
        yield from super().other_arguments()


class UnmarkedBlock(JsonBlock):
    """Reads one object, or one list. `source.pos` is at its bracket. `promised`: as for `UnmarkedCall`."""

    def __init__(self, context: Context, attempt: Attempt, *, promised: bool = True) -> None:
        super().__init__(replace(context, emit=attempt))
        self.span = NOWHERE
        self._promised = promised
        self._attempt = attempt

    def read(self) -> Reading:
        """Read the calls. Raises Fault when they are content."""
        source = self.source
        char = yield from source.char()
        self.bracketed = char == "["
        source.pos += self.bracketed
        yield from self.elements() if self.bracketed else self.element(char)
        if not self._attempt.certain:
            raise Fault(Reason.NOT_A_CALL)
        self.emit.markup(source.offset)

    def call_at(self, char: str) -> Call:
        """A reader for an object."""
        return UnmarkedCall(self.context, self.follows_call, promised=self._promised)

    def element(self, char: str) -> Reading:
        """Read one item. A list that begins with anything else is content."""
        if char != "{" and not self._attempt.certain:
            raise Fault(Reason.NOT_A_CALL)
        return super().element(char)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """What breaks before it is certain to be a call is content."""
        if not self._attempt.certain:
            raise fault
        return super().leave(call, fault)


class UnmarkedCalls:
    """Reads objects or lists that follow one another, behind `prefix` or in a Markdown fence."""

    reached = 0
    """How far what is content was read."""

    def __init__(
        self, context: Context, names: Collection[str] | None, prefix: str = "", *, near: bool = False
    ) -> None:
        self._near = near
        self._context = context
        self._source = context.source
        self._names = names
        self._prefix = prefix

    def read(self) -> Reading:
        """Read the calls, or leave `source.pos` where it was."""
        source = self._source
        start = end = source.offset
        source.keep_from(start)
        source.pos += len((yield from source.ahead((self._prefix,))))
        fenced = (yield from source.char()) == "`"
        if fenced:
            source.pos = _FENCE_LINE.match(source.text, source.pos).end()  # type: ignore[union-attr]
        while (yield from self._calls()):
            end = source.offset
            source.keep_from(end)
            yield from source.run(SEPARATORS)
        self.reached = source.offset
        source.rewind(end)
        if fenced and end > start:
            yield from self.closing_fence(end)
        source.keep_from(None)

    def _calls(self) -> Generator[None, None, bool]:
        """Read one object or list; False if it is none or content, and then the position is anywhere."""
        if (yield from self._source.char()) not in ("{", "["):
            return False
        emit = self._context.emit
        attempt = Attempt(emit, self._names, near=self._near)
        try:
            for _ in UnmarkedBlock(self._context, attempt).read():
                if attempt.certain:
                    emit.adopt(attempt)
                yield
        except Fault:
            return False
        emit.adopt(attempt)
        return True

    def closing_fence(self, end: int) -> Reading:
        """Read the fence that closes the calls, if it comes next. `end`: behind the last call."""
        source = self._source
        yield from source.space()
        if (yield from source.either(("```",))):
            self._context.emit.markup(source.offset)
        else:
            source.rewind(end)


class UnmarkedOpening:
    """Where calls may begin in the content. `names`: those of all tools, None for any."""

    first = "[{`"

    def __init__(self, names: Collection[str] | None, prefix: str = "", *, near: bool = False) -> None:
        """`near`: as for `Attempt`."""
        self._names = names
        self._near = near
        self._prefix = prefix
        self._reread = 0  # characters of JSON that turned out to be content

    def at(self, text: str, index: int) -> bool | None:
        """Whether calls may begin at `index`; None while more text may make it so."""
        if _BEGINNING.match(text, index):
            return True
        return None if _BEGINNING_OF_ONE.match(text, index) else False

    def read(self, context: Context) -> Reading:
        """Read the calls, or leave the position where it was."""
        start = context.source.offset
        if self._reread > MAX_REREAD * (start + 256):
            return
        calls = UnmarkedCalls(context, self._names, self._prefix, near=self._near)
        yield from calls.read()
        if context.source.offset == start:
            self._reread += max(0, calls.reached - start)


class PrefixOpening(UnmarkedOpening):
    """Where calls of any tool begin behind `prefix`: `functools[{"name": "f", "arguments": {}}]`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(None, prefix)
        self.first = prefix[0]

    def at(self, text: str, index: int) -> bool | None:
        """Whether `prefix` and a bracket stand at `index`; None while more text may make it so."""
        whole = f"{self._prefix}["
        if text.startswith(whole, index):
            return True
        return None if len(text) - index < len(whole) and whole.startswith(text[index:]) else False


def json_of_tools(tools: Mapping[str, Tool]) -> UnmarkedOpening | None:
    """Where JSON may be calls of the declared tools; nowhere, if none are declared."""
    return UnmarkedOpening(frozenset(tools)) if tools else None


def functools_lists(_tools: Mapping[str, Tool]) -> PrefixOpening:
    """Where Phi's models write a list behind the name of a library."""
    return PrefixOpening("functools")


def leading_calls(tools: Mapping[str, Tool]) -> UnmarkedOpening:
    """Where Llama's models write calls; `LeadingCalls` looks for them at the beginning only.

    Without declared tools any name is one; with them, an object of another name is an answer in JSON, unless
    that is misspelled by one character.
    """
    return UnmarkedOpening(frozenset(tools) or None, near=True)


class LeadingCalls(MarkedTurn):
    """A turn that may begin with calls without markers; behind them, and otherwise, as `MarkedTurn`."""

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn."""
        source, emit = self._context.source, self._context.emit
        while (char := (yield from source.char())).isspace():
            source.pos += 1
            emit.text(char, source.offset)
        if char in ("{", "["):
            assert self._opening is not None
            start = source.offset
            yield from self._opening.read(self._context)
            if source.offset > start:
                self.has_content()
        self._in_text = Stops(self._in_text.markers)
        yield from super().read(inside)
