"""Calls in Gemma's object notation: `call:f{city:<|"|>Paris<|"|>,n:3}`.

A call is complete with its closing brace. What the values look like is the business of `literals.bare_keys`;
models fall back to Python's parentheses as well [loose-gemma].
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from ..dialect import Calls, Context, Dialect, Render
from ..engine.driver import FramedBlock
from ..engine.faults import Fault
from ..engine.source import Reading
from ..engine.spans import Span
from ..engine.writer import NAME
from ..events import MAX_DEPTH, Reason
from ..literals.bare_keys import KEY, GemmaReader
from ..literals.verbatim import FIRST
from ..literals.writer import JSON, Writer, verbatim
from .lists.code import fences

_CALL = "call:"
_CLOSERS = {"{": "}", "(": ")"}


class GemmaCall:
    """One call, from `call:` to behind its closing brace."""

    def __init__(self, context: Context, quote: str) -> None:
        self.values = GemmaReader(context, quote, self.follows)
        self.source = context.source
        self.writer = self.values.writer
        self._quote = quote

    def closers(self) -> list[str]:
        """The brackets that are open, outermost first."""
        return self.values.closers()

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
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
        """A reader for the call that comes next."""
        return GemmaCall(self.context, self._quote)

    def confirm(self) -> Reading:
        """Text behind the brace shows that `{a:1}b:2}` was not over there [closed-early]."""
        char = yield from self.source.char()
        if char == FIRST:  # a marker, whole or broken; but a quote may be a key's
            ends = (yield from self.source.marker()) != self._quote
        else:
            ends = not char or char.isspace() or (yield from self.begins())
        if not ends:
            raise Fault(Reason.SYNTAX)

    def ahead(self) -> Generator[None, None, str]:
        """The marker that comes next, spelled in special tokens, since strings may hold any other."""
        return (yield from self.source.marker(self._frame))

    def begins(self) -> Generator[None, None, bool]:
        """Whether a call comes next."""
        return (yield from self.source.ahead((_CALL,))) != ""


class GemmaWriter(Writer):
    """Writes values as Gemma does. `quote`: the token around strings."""

    def __init__(self, markers: Iterable[str], quote: str) -> None:
        super().__init__(markers, JSON)
        self._quote = quote

    def value(self, value: Any, depth: int = MAX_DEPTH) -> str:
        """Any value, without white space."""
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


_DOUBLED_THOUGHT = "<|channel><|channel>thought"

GEMMA4 = Dialect(
    name="gemma4",
    reasoning=Span("<|channel>thought", "<channel|>", after_open=("\n",), before_close=("\n",)),
    calls=Span("<|tool_call>", "<tool_call|>"),
    ends=("<turn|>", "<|tool_response>", "<eos>"),
    grammar=lambda context: GemmaBlock(context, _GEMMA_QUOTE),
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
    grammar=lambda context: GemmaBlock(context, _FUNCTIONGEMMA_QUOTE),
    inner=(_FUNCTIONGEMMA_QUOTE,),
    renderers={"gemma": gemma_renderer(_FUNCTIONGEMMA_QUOTE)},
)

ALL = (GEMMA4, FUNCTIONGEMMA)
