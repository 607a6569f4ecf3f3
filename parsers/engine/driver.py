"""The driver of calls: try to read one; where that fails, keep what was written and find where to go on.

Subclasses say what a block looks like: how a call in it begins, is made, and is left after a fault.
`FramedBlock` here reads calls that stand each by itself, `formats/lists/block.py` reads lists of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from ..dialect import Context
from ..events import Misfit, MisfitKind, Reason
from .faults import Fault
from .fits import is_torn, misfits
from .source import Reading
from .spans import NOWHERE
from .writer import CallWriter

FollowsCall = Callable[[bool, str], Generator[None, None, bool]]
"""Whether what comes next fits after a whole call, as `LiteralBlock.follows_call` says."""

PREMATURE = (Reason.SYNTAX, Reason.NOT_A_CALL, Reason.MISSING_VALUE, Reason.POSITIONAL_ARGUMENT)
"""Reasons that hold only if the call goes on behind the fault; where the output ends, it was cut off."""


class Call(Protocol):
    """A reader for one call."""

    writer: CallWriter

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first: to find the end of a call that broke."""

    def read(self) -> Reading:
        """Read the call from its first character to after its last one. Raises Fault."""


class Block:
    """What blocks of every kind share."""

    call_end = ""
    """The text that ends a call, where that is not the block's own end."""
    writer: CallWriter
    """The writer of the call that is being read."""

    def __init__(self, context: Context) -> None:
        """`context.source.pos` is at the marker of the block, or at a call if the marker is missing."""
        self.context = context
        self.source = context.source
        self.emit = context.emit
        self.span = context.dialect.calls or NOWHERE
        self.start = self.source.offset
        self.faulty = False  # something in the block was no call

    def read_call(self, call: Call, start: int) -> Generator[None, None, bool]:
        """Read one call, or keep what was meant as one; returns whether it was read to its end.

        `start`: where it began, for what is kept. Behind a fault only declared tools count [only-declared].
        """
        source, writer = self.source, call.writer
        self.writer = writer
        writer.only_declared |= self.faulty and writer.any_declared()
        try:
            yield from call.read()
            writer.unwrap()
            end = source.offset
            yield from self.confirm()
        except Fault as fault:
            self.faulty = True
            self.emit.broken(fault, ended=source.ended and source.pos == len(source.text))
            reason = yield from self.leave(call, fault)
            raw = source.since(start)
            if not raw.rstrip().endswith((self.span.close, self.call_end or self.span.close)):
                # This call has no end: one that begins here begins within it.
                self.emit.amiss |= bool((yield from source.marker((self.span.open,))))
            self.emit.malformed(raw, reason, source.offset, writer.name, writer.index, writer.arguments)
            return False
        fits = writer.fits()
        raw = source.since(start)[: end - start] if misfits(fits) else ""
        if raw and (yield from self._shows_a_fault(writer, misfits(fits), raw, end)):
            self.faulty = True
            self.emit.malformed(raw, Reason.UNFIT, end, writer.name, writer.index, writer.arguments)
            return True  # what may stand behind a call may stand here, too
        if writer.any_declared() and self.emit.is_echo(writer.identity):
            raw = source.since(start)[: end - start]
            self.emit.malformed(raw, Reason.ECHO, end, writer.name, writer.index, writer.arguments)
            return True
        writer.finish(end, fits)
        return True

    def _shows_a_fault(
        self, writer: CallWriter, reasons: Sequence[Misfit], raw: str, end: int
    ) -> Generator[None, None, bool]:
        """Whether a call that does not fit is what a fault has made of another one.

        Where nothing is amiss, the model may have meant the call as it is, and whoever runs it can answer
        what is wrong with it.
        """
        if self.emit.amiss:
            return True
        if writer.tool is not None and is_torn(writer.tool, reasons, writer.arguments, raw):
            return True
        kinds = {reason.kind for reason in reasons}
        if kinds == {MisfitKind.MARKUP}:
            return writer.repaired
        # Where the schema decides how text is read, it has been judged by its type already.
        typed = kinds == {MisfitKind.TYPE}
        if (writer.repaired or self.faulty) and not typed:
            return True
        source = self.source
        reached = source.offset
        source.rewind(end)
        glued = (yield from source.char()).isalnum()  # the rest of the call that was closed too early
        if source.offset < reached:
            source.pos += reached - source.offset
        return glued

    def confirm(self) -> Reading:
        """Look at what follows a call, where that decides whether it counts. Raises Fault if it does not."""
        return
        yield

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to where another call can begin or the block ends; returns why the call is none."""
        raise NotImplementedError


class CallBlock(Block):
    """One call between the markers of the block; the closing marker is the call's own end."""

    def call(self) -> Call:
        """A reader for the call, from behind the opening marker to behind the closing one."""
        raise NotImplementedError

    def read(self) -> Reading:
        """Read the block; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len((yield from source.marker()))
        self.emit.markup(source.offset)
        yield from self.read_call(self.call(), self.start)
        source.keep_from(None)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Pass over the rest of what is no call."""
        source, ends = self.source, self.context.dialect.ends
        marker = ""
        while not marker and (yield from source.char()):
            marker = yield from source.marker((self.span.close, self.span.open, *ends))
            if not marker:
                source.pos += 1
                yield from source.run(source.unmarked)
        if marker == self.span.close:
            source.pos += len(marker)
            return fault.reason
        return Reason.TRUNCATED if not marker or marker in ends else Reason.UNCLOSED


class FramedBlock(Block):
    """Calls that are complete with their own end, between the markers of a block or without them.

    After a call only another call or the end of the block can stand. Where the end of the output or of the
    turn stands in for the end marker, nothing is amiss: it is often a stop token, which is not printed.
    """

    marked = False
    """Whether the block has its marker."""

    def call(self) -> Call:
        """A reader for the call that comes next."""
        raise NotImplementedError

    def ahead(self) -> Generator[None, None, str]:
        """What comes next of all that cannot stand within a call, "" if nothing of it does.

        The end marker counts however it is written; the others may be spelled out in a value.
        """
        frame = (self.span.open, self.span.close, *self.context.dialect.ends)
        return (yield from self.source.ahead((self.span.close,))) or (yield from self.source.marker(frame))

    def passes(self, text: str) -> Generator[None, None, bool]:
        """Read `text`, one of those that `ahead` knows, if it comes next; returns whether it does."""
        return (yield from self.source.either((text,))) != ""

    def begins(self) -> Generator[None, None, bool]:
        """Whether a call comes next, or the output ends in the beginning of one."""
        raise NotImplementedError

    def read(self) -> Reading:
        """Read the block and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        self.marked = yield from self.passes(self.span.open)
        end: int | None = None  # behind the last call
        while (yield from source.space()) and not (yield from self._at_end()):
            if end is not None and not (yield from self.begins()):
                break
            self.emit.markup(source.offset)
            yield from self.read_call(self.call(), source.offset)
            end = source.offset
        yield from self._close(end)
        source.keep_from(None)

    def cut(self, text: str) -> bool:
        """Whether the output ends in the beginning of `text`."""
        return self.source.ended and text.startswith(self.source.text[self.source.pos :])

    def _at_end(self) -> Generator[None, None, bool]:
        if self.cut(self.span.close):
            return True
        return (yield from self.ahead()) != "" and not (yield from self.begins())

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Go on to the next call or the end of the block."""
        source = self.source
        marker = (yield from self.ahead()) if (yield from source.char()) else ""
        broken_off = marker not in ("", self.call_end)
        while not marker:
            source.pos += bool((yield from source.char()))
            yield from source.run(source.unmarked)
            if not (yield from source.char()):
                break
            marker = yield from self.ahead()
        if marker and marker == self.call_end:
            yield from self.passes(marker)
        if fault.reason not in PREMATURE:
            return fault.reason
        if not marker:
            return Reason.TRUNCATED
        return Reason.UNCLOSED if broken_off else fault.reason

    def _close(self, end: int | None) -> Reading:
        """Read the end marker, or say that it is missing. `end`: behind the last call, None without one."""
        source, emit = self.source, self.emit
        char = yield from source.space()
        marker = (yield from self.ahead()) if char else ""
        if marker == self.span.close:
            yield from self.passes(marker)
        elif self.cut(self.span.close):
            source.pos = len(source.text)
            char = ""
        if end is None:
            closed = Reason.NOT_A_CALL if marker == self.span.close else Reason.UNCLOSED
            emit.malformed(source.since(self.start), closed if char else Reason.TRUNCATED, source.offset)
        elif marker or not char:
            emit.markup(source.offset)
        else:
            source.rewind(end)
            emit.markup(end)
            if self.marked:
                emit.malformed("", Reason.MISSING_END, end)
