"""Functionary 3.2's messages, each behind a line with its recipient.

    all
    Let me look.>>>get_weather
    {"city": "Paris"}>>>get_time
    {"zone": "CET"}

`all` are those who read the answer, any other recipient is a tool. The `>>>` of the first message stands in
the prompt, though some hosts let the model write it. It is no token, so it has to have a recipient.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ..dialect import Context, Dialect, Inside
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.turn import MarkedTurn
from ..engine.writer import NAME
from ..events import Reason
from ..literals.skipping import QUOTES
from .named.block import NamedBlock, NamedCall
from .named.written import by_template

_END = "<|eot_id|>"
_MESSAGE, _ANSWER = Span(">>>", _END), Span(">>>all\n", _END)
_RESUMED = _ANSWER.open.removeprefix(_MESSAGE.open)
_BLANK = re.compile(r"[ \t\r]*")


class RecipientBlock(NamedBlock):
    """A message to a tool. `source.pos` is at its `>>>`, or at the recipient of the turn's first one."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, _MESSAGE, ())

    def read(self) -> Reading:
        """Read it. What has no recipient behind it is no beginning of a message."""
        source, emit = self.source, self.emit
        source.keep_from(self.start)
        yield from source.either((_MESSAGE.open,))
        body = source.offset
        name = yield from self.name()
        cut = not (yield from source.char())
        if name or not cut:
            source.rewind(body)
        if name:
            if body > self.start:
                emit.markup(body)
            yield from self.call(self.start)
        else:
            reason = Reason.TRUNCATED if cut else Reason.NOT_A_CALL
            emit.malformed(source.since(self.start), reason, source.offset)
        source.keep_from(None)

    def name(self) -> Generator[None, None, str]:
        """Read the recipient. It ends its line, though the line end may be missing in front of a brace."""
        source = self.source
        name = yield from source.run(NAME)
        yield from source.run(_BLANK)
        char = yield from source.char()
        self.renamed = char == "{"
        return name if char in ("\n", "{") else ""

    def arguments(self, call: NamedCall) -> Reading:
        """Read the object. Code is none: it is kept."""
        if (yield from self.source.space()) not in ("", "{", "`", *QUOTES):
            raise Fault(Reason.NOT_A_CALL)
        yield from super().arguments(call)

    def at_terminator(self) -> Generator[None, None, bool]:
        """Whether the message ends here. In what is broken as well, `>>>` needs a recipient."""
        source = self.source
        start = source.offset
        ends = yield from super().at_terminator()
        if ends and (yield from source.either((_MESSAGE.open,))):
            renamed = self.renamed
            ends = (yield from self.name()) != ""
            self.renamed = renamed
        source.rewind(start)
        return ends

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """The next message counts, whatever brackets are open."""
        return False
        yield

    def is_first(self) -> Generator[None, None, bool]:
        """Whether the turn begins with a declared tool and an object: without `>>>` a name is a word."""
        source, tools = self.source, self.context.tools
        if not (yield from source.ahead((*sorted(tools, key=len, reverse=True),))):
            return False
        return (yield from self.name()) in tools and (yield from source.space()) == "{"


class FunctionaryTurn(MarkedTurn):
    """A turn whose first recipient stands behind what the prompt ends with."""

    def read(self, inside: Inside | None) -> Reading:
        """Read the whole turn."""
        source, start = self._source, self._source.offset
        source.keep_from(start)
        for_all = yield from source.either((_RESUMED,))
        first = RecipientBlock(self._context)
        to_tool = not for_all and (yield from first.is_first())
        if not for_all:
            source.rewind(start)
        source.keep_from(None)
        if for_all:
            self._emit.markup(source.offset)
            self.has_content()
        if to_tool:
            with self._emit.within("calls", start):
                yield from first.read()
        yield from super().read(inside)


FUNCTIONARY32 = Dialect(
    name="functionary32",
    calls=_MESSAGE,
    ends=(_END, "<|eom_id|>", "<|end_of_text|>"),
    turn=FunctionaryTurn,
    grammar=RecipientBlock,
    renderers={"lines": by_template(">>>{name}\n{arguments}")},
    answers=(_ANSWER,),
    cores={_MESSAGE.open: "", _ANSWER.open: ""},
    aliases=("functionary3.2",),
)

ALL = (FUNCTIONARY32,)
