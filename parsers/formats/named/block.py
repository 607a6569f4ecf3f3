"""One call as a name, a separator and a JSON object of arguments, wherever it stands.

The name is known before the arguments begin, and the object's own brace completes the call, since the marker
behind it is often a stop token, which is not printed. What an object may look like is the business of
`literals.object_call`.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ...dialect import Context
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import Span
from ...engine.writer import NAME
from ...events import Reason
from ...literals.block import LiteralBlock
from ...literals.object_call import JsonCall
from ...literals.skipping import QUOTES

_FENCE = "```"
_OPENING_FENCE = re.compile(r"\s*(?:```[\w \t\r-]*\s*)?")
FENCED_END = re.compile(r"[\s`]*")
_CLOSERS = re.compile(r"[}\]]*")


class NamedCall(JsonCall):
    """A name, as the block writes it, and an object of arguments."""

    def __init__(self, block: NamedBlock) -> None:
        super().__init__(block.context, block.span, block.follows_call)
        self._block = block

    def read(self) -> Reading:
        """Read name and arguments. Raises Fault."""
        name = yield from self._block.name()
        if not NAME.fullmatch(name) or not name:
            raise Fault(Reason.NOT_A_CALL)
        self.writer.repaired |= self._block.renamed
        self.writer.start(name)
        yield from self._block.arguments(self)


class NamedBlock(LiteralBlock):
    """What blocks of named calls share: one call, from its name to its end.

    `span`: the markers around one call. `closes`: those that show that a call without arguments is over, and
    `opens` that another one has begun, before which this one was cut off.
    """

    def __init__(
        self, context: Context, span: Span, closes: tuple[str, ...], opens: tuple[str, ...] = ()
    ) -> None:
        super().__init__(context)
        self.span = span
        self.closes = closes
        self.opened = True  # the call has its opening marker
        self.fenced = False  # the arguments stand in a Markdown fence
        self.renamed = False  # the name stands there in a way that the format does not have
        self._terminators = (span.open, span.close, *opens, *closes, *self.ends)

    def name(self) -> Generator[None, None, str]:
        """Read a call's name and everything up to its arguments. Raises Fault."""
        raise NotImplementedError

    def word(self, pattern: re.Pattern[str] = NAME) -> Generator[None, None, str]:
        """Read a word and the white space around it. Raises Fault when the output ends there."""
        source = self.source
        yield from source.space()
        word = yield from source.run(pattern)
        if not (yield from source.space()):
            raise Fault(Reason.TRUNCATED, balanced=False)
        return word

    def passed(self, *markers: str) -> Generator[None, None, bool]:
        """Read one of `markers` if it comes next."""
        marker = yield from self.source.marker(markers)
        self.source.pos += len(marker)
        return marker != ""

    def separator(self, marker: str) -> Generator[None, None, bool]:
        """Read the marker between a name and its arguments. It may be missing where they are plain to see.

        So it may in front of the call's own end; any other marker shows that the name was cut off.
        """
        if (yield from self.passed(marker)):
            return True
        if not self.opened:
            raise Fault(Reason.NOT_A_CALL, final=True)
        if (yield from self.source.char()) not in ("{", "`"):
            close = self.span.close
            if close in self.ends or not (yield from self.at_marker((close,))):
                raise Fault(Reason.SYNTAX)
        return False

    def call(self, start: int) -> Reading:
        """Read one call, which began at `start`, from its name on; what is faulty is kept."""
        call = NamedCall(self)
        if (yield from self.read_call(call, start)):
            yield from self.surplus(_CLOSERS)
            if self.fenced:
                yield from self._fence_end()

    def arguments(self, call: NamedCall) -> Reading:
        """Read the arguments of `call`, their fence included. Raises Fault."""
        source = self.source
        start = source.offset
        yield from self.opening_fence()
        fence = source.since(start)
        self.fenced = _FENCE in fence
        if not _OPENING_FENCE.fullmatch(fence):
            raise Fault(Reason.SYNTAX)  # the arguments have begun on its line, and broken
        if not (yield from source.space()):
            raise Fault(Reason.TRUNCATED, balanced=False)
        if (yield from self.at_marker(self.closes)) or (self.fenced and (yield from self.closing_fence())):
            call.without_arguments()
        elif (yield from self.at_terminator()):
            raise Fault(Reason.MISSING_VALUE)
        else:
            yield from call.read_arguments()

    def _fence_end(self) -> Reading:
        """Read the closing fence, or the part of it that has been written when the output ends."""
        source = self.source
        start = source.offset
        behind = yield from source.run(FENCED_END)
        if _FENCE in behind:
            source.rewind(start + behind.index(_FENCE) + len(_FENCE))
        elif (yield from source.char()):
            source.rewind(start)
        if source.offset > start:
            self.emit.markup(source.offset)

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Anything may follow, unless unescaped quotes leave open which brace ends the object."""
        return not inner or (yield from self.ends_here())

    def confirm(self) -> Reading:
        """An object is complete with its own brace, unless that was one too early."""
        yield from self.bounded((*QUOTES, ":", ","))

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """Skip the brackets of a faulty call; nothing but a marker separates it from the next one."""
        yield from super().skip_element(closers)
        return False

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `markers` comes next, though another one that begins alike may be longer."""
        return (yield from self.source.marker(markers)) != ""

    def at_terminator(self) -> Generator[None, None, bool]:
        """Whether a marker comes next that ends a call, or begins the next one."""
        return (yield from self.at_marker(self._terminators))
