"""A block of calls: from its start marker to behind its end marker, however it is written.

Finds the list and its elements, resynchronises after faults so that siblings survive, and keeps what is
no call. What an element looks like is the business of `pythonic` and `literals.object_call`.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ...dialect import Context
from ...engine.driver import Block, Call
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.writer import NAME, CallWriter
from ...events import Reason
from ...literals.object_call import JsonCall
from ...literals.skipping import QUOTES, Passed, pass_literal
from ...literals.values import CLOSERS
from .pythonic import PythonicCall

_FENCE = "```"
_INFO = re.compile(r"[^\n\[{(<]*")
_BOUNDS = ("", *",;)]}`<")  # a tag, too, even of another format
_CLOSED = re.compile(r"[\s}\]]*")
_BLANK = re.compile(r"[ \t\r]*")
_NO_BRACKET = re.compile(r"[^()\[\]{}'\"<,\n]*")

# What is said of a fault only holds if the call goes on behind it.
_PREMATURE = (Reason.SYNTAX, Reason.NOT_A_CALL, Reason.MISSING_VALUE, Reason.POSITIONAL_ARGUMENT)


class ListBlock(Block):
    """Reads one block. `source.pos` is at the start marker when `read` begins."""

    json: type[JsonCall] = JsonCall
    """The notation of an element that begins with a brace."""
    pythonic: type[PythonicCall] = PythonicCall
    """The notation of any other element."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.ends = context.dialect.ends
        """The markers that end any block."""
        self.bracketed = False
        """Whether the calls stand in brackets."""
        self._body = self.start
        self.kept = False  # the call that ended the block was kept, and that says it all
        self._writer: CallWriter | None = None  # of the call at hand
        self._torn_name = False  # the last element may be the beginning of the next one's name

    def read(self) -> Reading:
        """Read the block and what belongs to it; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len((yield from source.marker()))
        self._body = source.offset
        yield from self.opening_fence()
        self.bracketed = (yield from source.space()) == "["
        source.pos += self.bracketed
        if (yield from self.elements()):
            yield from self.close()
        source.keep_from(None)

    # -- the list -------------------------------------------------------------------------------------

    def elements(self) -> Generator[None, None, bool]:
        """Read the calls; True when the list was closed, False when the block is over without that."""
        source = self.source
        while True:
            char = yield from source.space()
            if char == "]":
                source.pos += 1
                return True
            if char == ",":
                source.pos += 1
            elif not char or (yield from self.at_terminator()):
                return (yield from self.broken_off())
            elif self.bracketed or not (yield from self.closing_fence()):
                yield from self.element(char)

    def element(self, char: str) -> Reading:
        """Read one element of the list and what its follower says of it."""
        source = self.source
        self.emit.markup(source.offset)
        start = source.offset
        call = self.call_at(char)
        self._writer = call.writer
        call.writer.only_declared |= self._torn_name  # `[get_wea,her(...)]` has no call [torn-string]
        read = yield from self.read_call(call, start)
        self._torn_name = not read and NAME.fullmatch(source.since(start).strip()) is not None

    def call_at(self, char: str) -> Call:
        """A reader for the element that begins with `char`."""
        notation = self.json if char == "{" else self.pythonic
        return notation(self.context, self.span, self.follows_call)

    def confirm(self) -> Reading:
        """A call is complete once a separator, the end of the list or a marker follows [call-is-whole]."""
        source = self.source
        start = source.offset
        char = yield from source.space()
        if char == "," and (yield from self._goes_on()):
            raise Fault(Reason.SYNTAX)
        if char in (",", "]"):
            return
        if not char or source.cut_marker(self.span.close) or (yield from self.at_marker(self.ends)):
            raise Fault(Reason.TRUNCATED, balanced=False)
        if (yield from self.at_terminator()):
            return
        if self.bracketed or "\n" not in source.since(start):
            raise Fault(Reason.SYNTAX, balanced=False)

    def _goes_on(self) -> Generator[None, None, bool]:
        """Whether the bracket came too early, since an argument follows: `f(a=1), b=2)` [closed-early]."""
        source, writer = self.source, self._writer
        if writer is None or writer.tool is None:
            return False
        start = source.offset
        source.pos += 1
        yield from source.space()
        name = yield from source.run(NAME)
        goes_on = (yield from source.space()) == "=" and name in writer.tool.types
        source.rewind(start)
        return goes_on and name not in writer.arguments

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """See `Block`; `source.pos` is at what follows the element, or at what ends the block."""
        source = self.source
        premature = fault.reason in _PREMATURE and not fault.final
        reason = fault.reason
        if premature and (yield from self.at_terminator()):
            reason = Reason.TRUNCATED if (yield from self.at_marker(self.ends)) else Reason.UNCLOSED
        if not (fault.balanced and (yield from self.skip_element(call.closers()))):
            yield from self.skip_to_terminator()
            self.kept = True
            if premature and not (yield from source.char()):
                reason = Reason.TRUNCATED
        return reason

    # -- the end --------------------------------------------------------------------------------------

    def broken_off(self) -> Generator[None, None, bool]:
        """The block ends at a marker or with the output, its list still open or never opened."""
        source = self.source
        start = source.offset
        if (yield from self.at_marker((self.span.close,))):
            if not self.bracketed or self.kept:
                self.bracketed = False
                return True
            text = source.since(self._body)
            source.pos += len(self.span.close)
            self.emit.malformed(source.since(self.start), Reason.UNCLOSED, source.offset)
            yield from self._echoes(text)
        elif not self.kept:
            reached = yield from self.at_marker((self.span.open,))
            reason = Reason.UNCLOSED if reached else Reason.TRUNCATED
            self.emit.malformed(source.since(self.start), reason, start)
        return False

    def close(self) -> Reading:
        """The list is closed: read the end marker, or say that it is missing [missing-end]."""
        source = self.source
        end = source.offset
        yield from self.closing_fence()
        char = yield from source.space()
        if (yield from self.at_marker((self.span.close,))):
            text = source.since(self._body)
            source.pos += len(self.span.close)
            self.emit.markup(source.offset)
            yield from self._echoes(text)
        elif not char or (yield from self.at_marker(self.ends)):
            self.emit.markup(source.offset)
        elif source.cut_marker(self.span.close):
            source.pos = len(source.text)
            self.emit.markup(source.offset)
        else:
            source.rewind(end)
            self.emit.markup(end)
            self.emit.malformed("", Reason.MISSING_END, end)

    def _echoes(self, body: str) -> Reading:
        """Copies of the body behind the end marker, each closed once more, are no calls [echo]."""
        source = self.source
        start = source.offset
        while body and (yield from self._repeats(body)) and (yield from self.at_marker((self.span.close,))):
            source.pos += len(self.span.close)
            self.emit.malformed(source.since(start), Reason.ECHO, source.offset)
            start = source.offset
        source.rewind(start)

    def _repeats(self, body: str) -> Generator[None, None, bool]:
        source = self.source
        done = 0
        while done < len(body):
            if not (yield from source.char()):
                return False
            piece = source.text[source.pos : source.pos + len(body) - done]
            if not body.startswith(piece, done):
                return False
            done += len(piece)
            source.pos += len(piece)
        return True

    def bounded(self, goes_on: tuple[str, ...] = (*QUOTES, ":")) -> Reading:
        """Look at what follows an object. Raises Fault where that is more of it [closed-early].

        Such an object has been closed too early: `{"area": "San Jose"}intent": "rent"}`. `goes_on`: what
        never stands behind a whole one, over white space and brackets.
        """
        source = self.source
        end = source.offset
        char = yield from source.char()
        early = not (char in _BOUNDS or char.isspace() or (yield from source.marker()))
        if early and any(map(source.cut_marker, self.context.dialect.markers)):
            return
        yield from source.run(_CLOSED)
        early = early or (yield from source.char()) in goes_on
        source.rewind(end)
        if early:
            raise Fault(Reason.SYNTAX, balanced=False, final=True)

    # -- looking ahead --------------------------------------------------------------------------------

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Whether what comes next fits behind a whole call. Reads ahead; the caller goes back.

        `inner`: a string of the call holds unescaped quotes, so that `)]` may be text as well: it only
        counts where the block ends [inner-quote]. `opener`: what the next call of the same notation opens
        with, "(" behind its name or "{".
        """
        source = self.source
        start = source.offset
        char = yield from source.space()
        if (yield from self.may_end()):
            return True
        if char == "]":
            source.pos += 1
            return not inner or (yield from self.ends_here())
        if char == ",":
            source.pos += 1
            char = yield from source.space()
            if char == "]":
                return True
        elif "\n" not in source.since(start):
            return False
        elif char == "`":
            return (yield from self.ends_here())
        if char == "" or opener == "{":
            return char in ("", "{")
        name = yield from source.run(NAME)
        follower = yield from source.space()
        return not follower or (name != "" and follower == "(")

    def ends_here(self) -> Generator[None, None, bool]:
        """Whether nothing but a fence stands between here and the end of the block."""
        yield from self.closing_fence()
        yield from self.source.space()
        return (yield from self.may_end())

    def may_end(self) -> Generator[None, None, bool]:
        """Whether a block may end here: at a marker or with the output, even in its end marker [cut-end]."""
        ends = yield from self.at_terminator()
        return ends or self.source.cut_marker(self.span.close)

    def opening_fence(self) -> Reading:
        """Read a Markdown fence to the end of its line, or up to the list if that is on the same line."""
        source = self.source
        if not (yield from self._backquotes()):
            return
        start = source.offset
        yield from source.run(_INFO)
        if (yield from source.char()) == "(":
            source.rewind(start)  # what looks like a language is the name of a call

    def closing_fence(self) -> Generator[None, None, bool]:
        """Read a Markdown fence if one comes next, with nothing behind it on its line."""
        source = self.source
        yield from source.space()
        start = source.offset
        if (yield from self._backquotes()):
            yield from source.run(_BLANK)
            if (yield from source.char()) == "\n" or (yield from self.may_end()):
                return True
            source.rewind(start)
        return False

    def _backquotes(self) -> Generator[None, None, bool]:
        source = self.source
        yield from source.space()
        start = source.offset
        for character in _FENCE:
            if (yield from source.char()) != character:
                source.rewind(start)
                return False
            source.pos += 1
        return True

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `markers` comes next."""
        if (yield from self.source.char()) == "":
            return False
        return (yield from self.source.marker()) in markers

    def at_terminator(self) -> Generator[None, None, bool]:
        """Whether a marker comes next that ends a block: one of its own two, or the turn's end."""
        return (yield from self.at_marker((self.span.open, self.span.close, *self.ends)))

    # -- resynchronising ------------------------------------------------------------------------------

    def skip_to_terminator(self) -> Reading:
        """Pass over everything up to the marker that ends the block."""
        source = self.source
        while True:
            yield from source.run(source.unmarked)
            if not (yield from source.char()) or (yield from self.at_terminator()):
                return
            source.pos += 1

    def skip_element(self, closers: list[str]) -> Generator[None, None, bool]:
        """Skip the rest of a faulty element by its brackets and quotes.

        True at the separator or the end of the list behind it; False when it cannot be found, at a
        position from which the next marker counts.
        """
        return (yield from self.skip_brackets(closers, own=False))

    def skip_brackets(self, closers: list[str], *, own: bool) -> Generator[None, None, bool]:
        """As `skip_element`; with `own` only to behind the element's own brackets."""
        source = self.source
        while closers or not own:
            yield from source.run(_NO_BRACKET)
            char = yield from source.char()
            if not char or (char in source.starts and (yield from self.at_terminator())):
                return False
            if not closers and (char in ",]" or (char == "\n" and not self.bracketed)):
                return True
            if char in CLOSERS:
                closers.append(CLOSERS[char])
            elif char in ")]}" and (not closers or closers.pop() != char):
                return False
            if char not in QUOTES:
                source.pos += 1
            elif (yield from pass_literal(source, self.span)) is not Passed.CLOSED:
                return False
        return True
