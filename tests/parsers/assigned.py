"""A format that nobody writes, to show how one is added: `<<call:f>> city := "Paris"; n := 3 <<end>>`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from parsers.dialect import Calls, Dialect
from parsers.engine.driver import CallBlock
from parsers.engine.faults import Fault
from parsers.engine.source import Reading
from parsers.engine.spans import THINK, Span
from parsers.engine.writer import NAME
from parsers.events import Reason
from parsers.literals.call import LiteralCall
from parsers.literals.values import StrictJsonReader
from parsers.literals.writer import JSON, Writer

SPAN = Span("<<call:", "<<end>>")
KEY = re.compile(r"\w*")


class AssignedValues(StrictJsonReader):
    """JSON with a semicolon between two arguments."""

    separator = ";"
    words = re.compile(r"[^\s,;()\[\]{}:'\"=<*`]*")


class AssignedCall(LiteralCall):
    """One call, from behind `<<call:` to behind `<<end>>`."""

    reader = AssignedValues

    def read(self) -> Reading:
        """See `LiteralCall`."""
        name = yield from self.source.run(NAME)
        if not name or not (yield from self.source.either((">>",))):
            raise Fault(Reason.NOT_A_CALL)
        self.writer.start(name)
        self.writer.write("{")
        yield from self.source.space()
        while not (yield from self.source.either((SPAN.close,))):
            yield from self.values.argument((yield from self._key()), closer="<")
            if (yield from self.source.space()) == ";":
                self.source.pos += 1
                yield from self.source.space()

    def _key(self) -> Generator[None, None, str]:
        key = yield from self.source.run(KEY)
        yield from self.source.space()
        if not key or not (yield from self.source.either((":=",))):
            raise Fault(Reason.SYNTAX)
        return key

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Whether another argument or the end comes next: if not, the quote in front of it was text."""
        if (yield from self.source.space()) != ";":
            return not (yield from self.source.char()) or (yield from self.source.ahead((SPAN.close,))) != ""
        self.source.pos += 1
        yield from self.source.space()
        key = yield from self.source.run(KEY)
        yield from self.source.space()
        return not (yield from self.source.char()) or (
            key != "" and bool((yield from self.source.ahead((":=",))))
        )


class AssignedBlock(CallBlock):
    """Reads one block."""

    def call(self) -> AssignedCall:
        """See `CallBlock`."""
        return AssignedCall(self.context, self.span)


def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
    """`<<call:f>> city := "Paris"; n := 3 <<end>>` for each call."""
    writer, written = Writer(markers, JSON), []
    for name, arguments in calls:
        writer.check_name(name)
        if not all(isinstance(key, str) and key and KEY.fullmatch(key) for key in arguments):
            raise ValueError("keys are letters, digits and `_`")
        pairs = "; ".join(f"{key} := {writer.value(value)}" for key, value in arguments.items())
        written.append(f"{span.open}{name}>> {pairs} {span.close}")
    return "".join(written)


ASSIGNED = Dialect(
    name="assigned",
    reasoning=THINK,
    calls=SPAN,
    ends=("<|im_end|>",),
    grammar=AssignedBlock,
    renderers={"assigned": render},
)
ALL = (ASSIGNED,)
