"""One call in one field, whose name is in what opens the field."""

from __future__ import annotations

from collections.abc import Generator

from ..dialect import Context
from ..engine.driver import PREMATURE, Block, Call
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.writer import NAME, CallWriter
from ..events import Reason
from ..patterns.program import Pattern
from ..patterns.search import Match, Patterns
from .template import Field


class CallField(Block):
    """One call in one field. What is no call is kept up to where the field is closed."""

    def __init__(self, context: Context, field: Field, group: str, opening: Match) -> None:
        """`opening`: what opens the field; `group` of it is the name."""
        super().__init__(context)
        assert field.close is not None
        self.close = field.close
        self.name = opening.groups.get(group, "").strip()
        self.opened = self.source.text[self.source.pos : self.source.pos + opening.end - opening.start]

    def call(self) -> Call:
        """A reader for the call, from the beginning of the field on."""
        raise NotImplementedError

    def read(self) -> Reading:
        """Read the field, of which `call` or `leave` has read the end."""
        yield from self.read_call(self.call(), self.start)

    def patterns(self, *others: Pattern) -> Patterns:
        """To look for `others` and, with the number after theirs, for what closes the field."""
        return Patterns(self.source, (*others, self.close))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Read up to behind what closes the field."""
        match = yield from self.patterns().find(ignore)
        return fault.reason if match is not None else truncated(fault)

    def start_call(self, writer: CallWriter) -> None:
        """Read what opens the field, and begin the call. Raises Fault."""
        self.source.pos += len(self.opened)
        if not self.name or not (NAME.fullmatch(self.name) or writer.declares(self.name)):
            raise Fault(Reason.NOT_A_CALL)
        writer.start(self.name)
        writer.write("{")


def truncated(fault: Fault) -> Reason:
    """Why a call is none whose field the output never closes: most faults are only that it breaks off."""
    return Reason.TRUNCATED if fault.reason in PREMATURE else fault.reason


def ignore(text: str, end: int) -> None:
    """Text that is kept as part of something else."""
