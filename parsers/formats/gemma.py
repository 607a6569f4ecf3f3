"""Calls in Gemma's object notation: `call:f{city:<|"|>Paris<|"|>,n:3}`.

Keys are bare, strings stand between two equal tokens, everything else is as in JSON. A call is complete with
its closing brace. Models fall back to the quotes of JSON and Python, to `=`, to parentheses and to no quotes
at all, which is read as far as it can only mean one thing [loose-gemma].
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..dialect import Calls, Context, Dialect, Render
from ..engine.driver import FramedBlock
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.words import CONSTANTS, literal
from ..engine.writer import NAME, CallWriter
from ..events import MAX_DEPTH, Reason
from ..literals.skipping import QUOTES
from ..literals.values import IDENTIFIER, STRING_STARTS, Follows, Frame, JsonReader
from ..literals.verbatim import FIRST, Unclosed, Verbatim
from ..literals.writer import JSON, Writer, verbatim
from .lists.code import fences

KEY = re.compile(r"""[^\s,:=(){}\[\]<'"\ud800-\udfff]*""")
"""Keys that are written without quotes."""

_CALL = "call:"
_CLOSERS = {"{": "}", "(": ")"}
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
        self._pieces = tuple(quote[at : at + length] for at in range(len(quote) - length + 1))

    def value(self) -> Generator[None, None, Any]:
        """See `Values`."""
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
        """See `LiteralReader`."""
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
        """See `LiteralReader`; in brackets as well, and outside of them what would have to be evaluated."""
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
        """See `verbatim.Closing`. Behind other tokens a quote only closes if what follows it fits."""
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
        """See `LiteralReader`; a token may dangle behind a quote."""
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
        """See `LiteralReader`."""
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


class GemmaCall:
    """One call, from `call:` to behind its closing brace."""

    def __init__(self, context: Context, quote: str) -> None:
        self.values = GemmaReader(context, quote, self.follows)
        self.source = context.source
        self.writer = self.values.writer
        self._quote = quote

    def closers(self) -> list[str]:
        """See `Call`."""
        return self.values.closers()

    def read(self) -> Reading:
        """See `Call`."""
        source = self.source
        opened = yield from source.either((_CALL, ":"))
        if not opened:
            raise Fault(Reason.NOT_A_CALL)
        self.writer.repaired = self.writer.only_declared = opened != _CALL
        yield from source.space()
        name = yield from source.run(NAME)
        while (opener := (yield from source.space())) == ":" and name:
            source.pos += 1  # `google:mcp:search`
            name = yield from source.run(NAME)
            self.writer.repaired = self.writer.only_declared = True
        if opener not in _CLOSERS or not name:
            raise Fault(Reason.NOT_A_CALL)
        source.pos += 1
        self.writer.start(name)
        self.writer.write("{")
        self.writer.repaired |= opener == "("
        self.values.closer = _CLOSERS[opener]
        yield from self.read_arguments()

    def read_arguments(self) -> Reading:
        """Read the arguments, whose opening bracket is read already, and the closing one."""
        source, closer = self.source, self.values.closer
        if closer == "}" and (yield from source.space()) == "{":
            yield from self._wrapped()
        while (yield from source.space()) != closer:
            yield from self.values.argument((yield from self.values.member_key()), closer)
            if (yield from source.char()) == ",":
                source.pos += 1
                self.writer.repaired |= (yield from source.space()) == closer
        source.pos += 1

    def _wrapped(self) -> Reading:
        """Read arguments in braces of their own, `f{{a:1}}`, which can mean nothing else."""
        place = self.writer.hold()
        items = yield from self.values.value()
        self.writer.settle(place, "")
        if (yield from self.source.space()) != "}":
            raise Fault(Reason.SYNTAX)
        self.writer.repaired = True
        self.writer.merge(items, self.values.written)

    def follows(self, inner: bool) -> Generator[None, None, bool]:
        """After an argument: the next one, or the end of the call."""
        source = self.source
        char = yield from source.space()
        if char == self.values.closer:
            source.pos += 1
            return not inner or (yield from self._ends_block())
        if char != ",":
            return not char
        source.pos += 1
        return (yield from self.values.starts_member())

    def _ends_block(self) -> Generator[None, None, bool]:
        """Whether the block ends here."""
        char = yield from self.source.space()
        return not char or (yield from self.source.marker(self.values.tokens)) not in ("", self._quote)


class GemmaBlock(FramedBlock):
    """Reads one block, of one call or, by mistake, several."""

    def __init__(self, context: Context, quote: str) -> None:
        super().__init__(context)
        self._quote = quote
        self._frame = (self.span.close, self.span.open, *context.dialect.ends)

    def call(self) -> GemmaCall:
        """See `FramedBlock`."""
        return GemmaCall(self.context, self._quote)

    def confirm(self) -> Reading:
        """See `Block`; the text behind the brace shows that `{a:1}b:2}` was not over there [closed-early]."""
        char = yield from self.source.char()
        if char == FIRST:  # a marker, whole or broken; but a quote may be a key's
            ends = (yield from self.source.marker()) != self._quote
        else:
            ends = not char or char.isspace() or (yield from self.begins())
        if not ends:
            raise Fault(Reason.SYNTAX)

    def ahead(self) -> Generator[None, None, str]:
        """See `FramedBlock`."""
        return (yield from self.source.marker(self._frame))

    def begins(self) -> Generator[None, None, bool]:
        """See `FramedBlock`."""
        return (yield from self.source.ahead((_CALL,))) != ""


class GemmaWriter(Writer):
    """Writes values as Gemma does. `quote`: the token around strings."""

    def __init__(self, markers: Iterable[str], quote: str) -> None:
        super().__init__(markers, JSON)
        self._quote = quote

    def value(self, value: Any, depth: int = MAX_DEPTH) -> str:
        """See `Writer`; without any white space."""
        if not isinstance(value, (list, tuple)):
            return super().value(value, depth)
        self._check(depth)
        return f"[{','.join(self.value(item, depth - 1) for item in value)}]"

    def mapping(self, mapping: Mapping[Any, Any], depth: int = MAX_DEPTH) -> str:
        """An object, its keys bare if they can be, and sorted regardless of case."""
        self._check(depth)
        items = sorted(mapping.items(), key=lambda item: str(item[0]).lower())
        return f"{{{','.join(f'{self._key(key)}:{self.value(value, depth - 1)}' for key, value in items)}}}"

    def string(self, text: Any) -> str:
        """A string between two quote tokens. Raises ValueError if a token stands in it: it has no escapes."""
        return f"{self._quote}{verbatim(text, self._markers)}{self._quote}"

    def _key(self, key: Any) -> str:
        return key if isinstance(key, str) and key and KEY.fullmatch(key) else self.string(key)


def gemma_renderer(quote: str) -> Render:
    """Writes `<start>call:f{city:<quote>Paris<quote>,n:3}<end>` for each call."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        writer = GemmaWriter(markers, quote)
        blocks = []
        for name, arguments in calls:
            writer.check_name(name)
            blocks.append(f"{span.open}call:{name}{writer.mapping(arguments, MAX_DEPTH + 1)}{span.close}")
        return "".join(blocks)

    return render


_GEMMA_QUOTE = '<|"|>'
_FUNCTIONGEMMA_QUOTE = "<escape>"


def _gemma(context: Context) -> GemmaBlock:
    return GemmaBlock(context, _GEMMA_QUOTE)


def _functiongemma(context: Context) -> GemmaBlock:
    return GemmaBlock(context, _FUNCTIONGEMMA_QUOTE)


_DOUBLED_THOUGHT = "<|channel><|channel>thought"

GEMMA4 = Dialect(
    name="gemma4",
    reasoning=Span("<|channel>thought", "<channel|>", after_open=("\n",), before_close=("\n",)),
    calls=Span("<|tool_call>", "<tool_call|>"),
    ends=("<turn|>", "<|tool_response>", "<eos>"),
    grammar=_gemma,
    opening=fences,
    inner=(_GEMMA_QUOTE,),
    renderers={"gemma": gemma_renderer(_GEMMA_QUOTE)},
    spellings={"<channel|>": "", _DOUBLED_THOUGHT: "open"},
    cores=dict.fromkeys(("<|channel>thought", _DOUBLED_THOUGHT), "<|channel>"),
)
FUNCTIONGEMMA = Dialect(
    name="functiongemma",
    calls=Span("<start_function_call>", "<end_function_call>"),
    ends=("<end_of_turn>", "<start_function_response>", "<eos>"),
    grammar=_functiongemma,
    inner=(_FUNCTIONGEMMA_QUOTE,),
    renderers={"gemma": gemma_renderer(_FUNCTIONGEMMA_QUOTE)},
)

ALL = (GEMMA4, FUNCTIONGEMMA)
