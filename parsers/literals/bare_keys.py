"""Gemma's values: `{city:<|"|>Paris<|"|>,n:3}`. Keys are bare, strings stand between two equal tokens.

Everything else is as in JSON. Models fall back to the quotes of JSON and Python, to `=` and to no quotes at
all, which is read as far as it can only mean one thing [loose-gemma].
"""

from __future__ import annotations

import re
from collections.abc import Generator
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..dialect import Context
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.words import CONSTANTS, literal
from ..engine.writer import CallWriter
from ..events import MAX_DEPTH, Reason
from .skipping import QUOTES
from .values import IDENTIFIER, STRING_STARTS, Follows, Frame, JsonReader
from .verbatim import FIRST, Unclosed, Verbatim

KEY = re.compile(r"""[^\s,:=(){}\[\]<'"\ud800-\udfff]*""")
"""Keys that are written without quotes."""
_KEY_OF_WORDS = re.compile(r"[^,:=(){}\[\]<\n\ud800-\udfff]*")
_EXPRESSION = re.compile(r"[\w.+\-/%@#$&^~!?]*")
"""Text that is written without quotes although it is no single word: `432+1`, `2024-05-01`."""
_SWALLOWED = re.compile(r"""[,{\[][\w.\-@ \n"']{1,64}[:=]""")
"""A member in the text of a string that was never closed."""
_QUOTED_KEY = {quote: re.compile(rf"[^{quote}\\\n<\ud800-\udfff]*") for quote in QUOTES}
_OPENERS = frozenset("[{")


class GemmaReader(JsonReader):
    """Gemma's values. `quote`: the token around strings, `tokens`: that and the markers around them."""

    string_starts = STRING_STARTS | {FIRST}
    assigns: tuple[str, ...] = (":", "=")
    closer = "}"
    """What closes the call: a parenthesis where its arguments are written as in Python."""

    def __init__(self, context: Context, quote: str, follows: Follows) -> None:
        assert context.dialect.calls is not None
        span = context.dialect.calls
        super().__init__(CallWriter(context.source, context.emit, context.tools), span, follows)
        self._quote = quote
        self.tokens = (quote, span.open, span.close, *context.dialect.ends)
        length = len(quote) // 2  # one broken character leaves so much of the quote in one piece
        self._pieces = tuple(quote[begin : begin + length] for begin in range(len(quote) - length + 1))

    def value(self) -> Generator[None, None, Any]:
        """Read one value, its brackets included. Raises Fault."""
        source = self.source
        base = len(self.frames)
        while True:
            char = yield from source.space()
            if char in _OPENERS:
                frame = self._enter(char)
                if (yield from source.space()) != frame.closer:
                    yield from self._next_key(frame)
                    continue
                value = self._leave()
            else:
                value = yield from self.atom(char)
            while len(self.frames) > base:
                if not (yield from self.attach(value)):
                    break
                value = self._leave()
            else:
                return value

    # -- brackets -------------------------------------------------------------------------------------

    def _enter(self, opener: str) -> Frame:
        if len(self.frames) == MAX_DEPTH:
            raise Fault(Reason.TOO_DEEP)
        frame = Frame(opener)
        frame.keys = opener == "{"
        self.frames.append(frame)
        self.source.pos += 1
        self.writer.write(opener)
        return frame

    def _leave(self) -> Any:
        """Read the closer of the innermost bracket; returns its value."""
        frame = self.frames.pop()
        self.source.pos += 1
        self.writer.write(frame.closer)
        self.word = None
        self.written = frame.written
        return frame.mapping if frame.keys else frame.items

    def attach(self, value: Any) -> Generator[None, None, bool]:
        """Put a complete value into the innermost bracket; True when that bracket's closer comes next."""
        source, frame = self.source, self.frames[-1]
        char = yield from source.space()
        if char not in (",", frame.closer):
            raise Fault(Reason.SYNTAX)
        if not frame.keys:
            frame.items.append(value)
        else:
            assert frame.key is not None
            self.writer.repaired |= frame.key in frame.mapping
            frame.mapping[frame.key] = value
            if self.word is not None:
                frame.written[frame.key] = self.word
            frame.key = None
        if char == ",":
            source.pos += 1
        if (yield from source.space()) == frame.closer:
            if char == "," and not frame.keys:
                raise Fault(Reason.MISSING_VALUE)  # `[1,]`: of a number of one digit nothing else is left
            self.writer.repaired |= char == ","
            return True
        self.writer.write(", ")
        yield from self._next_key(frame)
        return False

    def _next_key(self, frame: Frame) -> Reading:
        """Read and write the key of the next member, if the bracket has keys."""
        if frame.keys:
            frame.key = yield from self.member_key()
            self.writer.write(f"{quote_json(frame.key)}: ")

    # -- keys and atoms -------------------------------------------------------------------------------

    def member_key(self) -> Generator[None, None, str]:
        """A key and its colon."""
        source = self.source
        char = yield from source.space()
        repaired = char in QUOTES
        assigns: tuple[str, ...] = self.assigns
        if char in QUOTES:
            source.pos += 1
            key = yield from source.run(_QUOTED_KEY[char])
            if (yield from source.char()) != char:
                raise Fault(Reason.SYNTAX)
            source.pos += 1
        elif char == FIRST and (yield from self.at_quote()):
            place = self.writer.hold()
            key = yield from self._verbatim()
            self.writer.settle(place, "")
        else:
            start = source.offset
            key = yield from source.run(KEY)
            if not key:
                raise Fault(Reason.POSITIONAL_ARGUMENT)
            if (yield from source.char()) in (" ", *QUOTES):
                yield from source.run(_KEY_OF_WORDS)
                words = source.since(start).rstrip()
                if words != key:  # `Basic LLM Chain:1`, but in `two words=1` something is lost
                    key, repaired, assigns = words, True, (":",)
        follower = yield from source.space()
        if follower not in assigns:
            raise Fault(Reason.POSITIONAL_ARGUMENT if follower in (",", "}", ")") else Reason.SYNTAX)
        source.pos += 1
        self.writer.repaired |= repaired or follower == "="
        return key

    def atom(self, char: str) -> Generator[None, None, Any]:
        """One value without brackets: a string between tokens, or as in JSON."""
        if char == FIRST and (yield from self.at_quote()):
            self.word = None
            self.writer.write('"')
            text = yield from self._verbatim(Unclosed(self._brackets(), self.span.close, self._is_whole))
            self.writer.write('"')
            return text
        if char in (",", "}", ")"):
            raise Fault(Reason.MISSING_VALUE)
        if char not in QUOTES:
            return (yield from super().atom(char))
        self.writer.repaired = True
        text = yield from super().atom(char)
        yield from self.source.space()
        if (yield from self.at_quote()):
            self.source.pos += len(self._quote)  # nothing else of the token is needed: `dangles` has seen it
        return text

    def may_be_text(self, word: str) -> bool:
        """Whether a word without quotes can only be text: a name, or outside of brackets an expression."""
        if word in CONSTANTS or IDENTIFIER.fullmatch(word):
            return word not in CONSTANTS
        if self.frames or not _EXPRESSION.fullmatch(word):
            return False
        try:
            literal(word)
        except Fault as fault:
            return fault.reason is Reason.NOT_A_LITERAL
        return False

    def bare_word(self, word: str) -> Generator[None, None, str]:
        """A single word without the tokens around it is its text."""
        if (yield from self.source.space()) not in (
            ",",
            self.frames[-1].closer if self.frames else self.closer,
        ):
            raise Fault(Reason.NOT_A_LITERAL)
        return self.text_of(word)

    def at_quote(self) -> Generator[None, None, bool]:
        """Whether the quote token comes next."""
        return (yield from self.source.marker(self.tokens)) == self._quote

    def _verbatim(self, unclosed: Unclosed | None = None) -> Generator[None, None, str]:
        """A string, its tokens included."""
        self.source.pos += len(self._quote)
        return (yield from Verbatim(self.writer, self.tokens, self._closing, unclosed).read())

    def _brackets(self) -> str:
        """What closes the call from here on."""
        return "".join(reversed(self.closers())) + self.closer

    def _is_whole(self, text: str) -> bool:
        """Whether the text of a string that was never closed holds no further member and no broken quote."""
        broken = any(piece in text for piece in self._pieces)
        return text != "" and not broken and _SWALLOWED.search(text) is None

    def _closing(self, token: str, doubtful: bool) -> Generator[None, None, int | None]:
        """A `verbatim.Closing`. After other tokens a quote only closes if what follows it fits."""
        source = self.source
        if token != self._quote:
            return 0
        if doubtful:
            start = source.offset
            source.pos += len(token)
            char = yield from source.space()
            source.rewind(start)
            if char and char not in ",:=}]":
                return None
        return len(token)

    # -- what fits after a quote of JSON or Python ------------------------------------------------------

    def fits_after(self, inner: bool) -> Generator[None, None, bool]:
        """Whether what comes next fits after a quote of JSON or Python, behind which a token may dangle."""
        start = self.source.offset
        if (yield from self._dangles()):
            return True
        self.source.rewind(start)
        return (yield from super().fits_after(inner))

    def _dangles(self) -> Generator[None, None, bool]:
        """Whether a quote token comes next that opens nothing, since call and block end behind it."""
        source = self.source
        yield from source.space()
        if not (yield from self.at_quote()):
            return False
        source.pos += len(self._quote)
        for bracket in self._brackets():
            if (char := (yield from source.char())) != bracket:
                return not char
            source.pos += 1
        return not (yield from source.char()) or (yield from source.marker(self.tokens)) == self.span.close

    def starts_item(self, frame: Frame) -> Generator[None, None, bool]:
        """Whether what follows a comma can be the next member or item of `frame`."""
        if frame.keys:
            return (yield from self.starts_member())
        if (yield from self.source.space()) == FIRST:
            return (yield from self.at_quote())
        return (yield from super().starts_item(frame))

    def starts_member(self) -> Generator[None, None, bool]:
        """Whether a key, or the end of its bracket, comes next."""
        source = self.source
        char = yield from source.space()
        if char in ("", "}", *QUOTES):
            return True
        if char == self.closer and not self.frames:
            return True
        if char == FIRST:
            return (yield from self.at_quote())
        key = yield from source.run(KEY)
        follower = yield from source.space()
        return not follower or (key != "" and follower in self.assigns)
