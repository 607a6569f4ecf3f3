"""A call whose arguments are literals."""

from __future__ import annotations

from collections.abc import Generator

from ..dialect import Context
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.writer import CallWriter
from .values import LiteralReader


class LiteralCall:
    """A writer, and a reader of literals. Subclasses read the call, and say what may follow an argument."""

    reader: type[LiteralReader] = LiteralReader
    by_schema = True
    """As for `CallWriter`."""

    def __init__(self, context: Context, span: Span, writer: CallWriter | None = None) -> None:
        """`span`: the markers of the block that the call stands in. `writer`: of a call that has begun."""
        self.source = context.source
        self.writer = writer or CallWriter(context.source, context.emit, context.tools)
        self.writer.by_schema = self.by_schema
        self.values = self.reader(self.writer, span, self.follows)

    def read(self) -> Reading:
        """Read the call from its first character to behind its last one. Raises Fault."""
        raise NotImplementedError

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what comes next fits after an argument; see `values.Follows`."""
        raise NotImplementedError

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first."""
        return self.values.closers()
