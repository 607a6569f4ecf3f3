"""One call in one field, whatever its arguments look like."""

from __future__ import annotations

from collections.abc import Generator

from ..dialect import Context
from ..engine.driver import Block, Call
from ..engine.faults import Fault
from ..engine.writer import NAME, CallWriter
from ..events import Reason
from ..patterns import Found, Pattern, Patterns
from .shapes import Name
from .template import Field


def named(name: Name, opening: Found) -> str:
    """The name of the call that `opening` begins, "" if it has none."""
    return name.constant or opening.groups.get(name.group, "").strip()


class CallField(Block):
    """One call in one field. What is no call is kept up to where the field is closed."""

    def __init__(self, context: Context, field: Field, name: Name, opening: Found) -> None:
        super().__init__(context)
        self.field = field
        self.name = named(name, opening)
        self.opening = opening
        self.written = self.source.text[self.source.pos : self.source.pos + opening.end - opening.start]
        """What opened the field."""

    def patterns(self, *others: Pattern) -> Patterns:
        """To look for `others` and, with the number after theirs, for what closes the field."""
        close = () if self.field.close is None else (self.field.close,)
        return Patterns(self.source, (*others, *close))

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """See `Block`."""
        found = yield from self.patterns().find(ignore)
        return Reason.TRUNCATED if found is None and fault.reason in UNFINISHED else fault.reason

    def start_call(self, writer: CallWriter) -> None:
        """Read what opens the field, and begin the call. Raises Fault."""
        self.source.pos += len(self.written)
        if not self.name or not (NAME.fullmatch(self.name) or writer.declares(self.name)):
            raise Fault(Reason.NOT_A_CALL)
        writer.start(self.name)
        writer.write("{")


UNFINISHED = (Reason.SYNTAX, Reason.NOT_A_CALL, Reason.MISSING_VALUE, Reason.POSITIONAL_ARGUMENT)


def ignore(text: str, end: int) -> None:
    """Text that is kept as part of something else."""
