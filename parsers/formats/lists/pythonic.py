"""A call as Python writes it: `get_weather(city="Paris", days=3)`, keyword arguments only."""

from __future__ import annotations

import re
from collections.abc import Generator

from ...dialect import Context
from ...engine.driver import FollowsCall
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import Span
from ...engine.writer import NAME
from ...events import Reason
from ...literals.call import LiteralCall
from ...literals.skipping import QUOTES
from ...literals.values import PARAMETER

_QUOTED_PARAMETER = {quote: re.compile(rf"[^{quote}\\\n<\ud800-\udfff]*") for quote in QUOTES}


class PythonicCall(LiteralCall):
    """`name(parameter=value, **{"parameter": value})`."""

    _opened = False

    def __init__(self, context: Context, span: Span, follows_call: FollowsCall) -> None:
        """`span`: the markers of the block. `follows_call`: what fits after the call."""
        super().__init__(context, span)
        self._follows_call = follows_call

    def start(self, name: str) -> None:
        """The name is known: open the call."""
        self.writer.start(name)

    def read(self) -> Reading:
        """Read name, parenthesis and arguments."""
        source = self.source
        name = yield from source.run(NAME)
        if (source.ready() or (yield from source.space())) != "(" or not name:
            raise Fault(Reason.NOT_A_CALL)
        source.pos += 1
        self._opened = True
        self.start(name)
        self.writer.write("{")
        while (char := source.ready() or (yield from source.space())) != ")":
            if char == "*":
                yield from self._unpack()
            else:
                key = yield from self._parameter()
                if (source.ready() or (yield from source.space())) in (",", ")"):
                    raise Fault(Reason.MISSING_VALUE)
                yield from self.values.argument(key, ")")
            if (source.ready() or (yield from source.space())) == ",":
                source.pos += 1
        source.pos += 1

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first."""
        return [")"] * self._opened + super().closers()

    def _parameter(self) -> Generator[None, None, str]:
        """The name of the next argument, its `=` included."""
        source = self.source
        start = source.offset
        quote = yield from source.char()
        quoted = quote in QUOTES
        name = yield from (self._quoted_parameter(quote) if quoted else source.run(PARAMETER))
        follower = source.ready() or (yield from source.space())
        if name and follower == "=":
            source.pos += 1
            if (yield from source.char()) != "=":
                return name
            raise Fault(Reason.SYNTAX)
        if quoted:
            source.rewind(start)  # whoever looks for the end of the call must see the string from its start
        raise Fault(Reason.POSITIONAL_ARGUMENT if follower in (",", ")") or not name else Reason.SYNTAX)

    def _quoted_parameter(self, quote: str) -> Generator[None, None, str]:
        source = self.source
        source.pos += 1
        name = yield from source.run(_QUOTED_PARAMETER[quote])
        if (yield from source.char()) != quote:
            return ""
        source.pos += 1
        return name

    def _unpack(self) -> Reading:
        """`**{...}` merges its items."""
        source = self.source
        for _ in "**":
            if (yield from source.char()) != "*":
                raise Fault(Reason.POSITIONAL_ARGUMENT)
            source.pos += 1
        place = self.writer.hold()
        items = yield from self.values.value()
        if not isinstance(items, dict):
            raise Fault(Reason.NOT_A_LITERAL)
        if (yield from source.space()) not in (",", ")"):
            raise Fault(Reason.SYNTAX)
        self.writer.settle(place, "")
        self.writer.merge(items, self.values.written)

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Behind an argument: the next one, or the end of the call and what fits behind that."""
        source = self.source
        char = source.ready() or (yield from source.space())
        if char == ")":
            source.pos += 1
            return (yield from self._follows_call(inner, "("))
        if char != ",":
            return not char
        source.pos += 1
        char = source.ready() or (yield from source.space())
        if char in ("", ")"):
            return True
        if char == "*":
            source.pos += 1
            return (yield from source.char()) in ("", "*")
        quoted = char in QUOTES
        name = yield from (self._quoted_parameter(char) if quoted else source.run(PARAMETER))
        follower = source.ready() or (yield from source.space())
        return not follower or (name != "" and follower == "=")
