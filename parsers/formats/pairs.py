"""Calls as a name and pairs: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

White space between the tags means nothing; a value is raw text. Its closing tag ends it, unless it is only
mentioned: behind a blank or a quote, with text behind it on its line. The next pair inside a value shows that
the value was never closed, and so does the next block, unless the value's own closing tag comes before the
next pair: the call is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from parsers.dialect import Context, Dialect, Grammar, GrammarFactory
from parsers.engine.driver import Block, Call
from parsers.engine.faults import Fault
from parsers.engine.source import Reading
from parsers.engine.spans import NOWHERE, THINK, Span
from parsers.engine.turn import MarkedTurn
from parsers.engine.writer import NAME
from parsers.events import Reason
from parsers.formats.objects.block import ByFirstCharacter, JsonBlock
from parsers.formats.tags.block import TagBlock
from parsers.formats.tags.written import in_blocks
from parsers.literals.near import NearTags
from parsers.literals.raw import Ends, RawCall
from parsers.literals.typed_text import Kinds, holds_no_tags, replace_lone
from parsers.literals.writer import RawWriter

KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

NEAR = NearTags((VALUE_END,), (KEY,), others=(KEY_END,))

_NAME = re.compile(r"[^<\n]*")
_KEY = re.compile(r"[^<]*")


class PairsCall(RawCall):
    """One call, from behind the marker of its block to behind its end marker, which is the call's own end."""

    def __init__(self, context: Context, *, bare: bool) -> None:
        """`bare`: whether a name without pairs is a call."""
        dialect = context.dialect
        self._block = dialect.calls or NOWHERE
        super().__init__(context)
        self._bare = bare
        self._turn_ends = dialect.ends
        self._kinds: Kinds = None
        special = (*dialect.ends, *dialect.openers, self._block.close)
        self._ends = _ends_of((VALUE_END, KEY, self._block.close), special, near=True)
        self._pair_tags = _ends_of((VALUE_END, KEY), special)
        self._value_end = 0  # where the value's closing tag is, if it has been looked for and found

    def read(self) -> Reading:
        """Read the call. Raises Fault."""
        source = self.source
        yield from source.space()
        name = (yield from source.run(_NAME)).strip()
        if not name or not NAME.fullmatch(name) or not (yield from source.char()):
            raise Fault(Reason.NOT_A_CALL)
        char = yield from source.space()
        if char and not (yield from source.ahead((KEY, self._block.close) if self._bare else (KEY,))):
            raise Fault(Reason.NOT_A_CALL)
        self.start(name)
        self.writer.write("{")
        while (tag := (yield from source.either((KEY, self._block.close)))) == KEY:
            yield from self._pair()
            yield from source.space()
        if not tag:
            raise Fault(Reason.SYNTAX)

    def _pair(self) -> Reading:
        """Read an argument from behind the tag of its key on."""
        source = self.source
        key = replace_lone((yield from source.run(_KEY)).strip())
        if not (yield from source.either((KEY_END,))):
            raise Fault(Reason.SYNTAX)
        yield from source.space()
        if not (yield from source.either((VALUE,))):
            raise Fault(Reason.MISSING_VALUE)
        if not key:
            raise Fault(Reason.POSITIONAL_ARGUMENT)
        self._kinds = self.kinds_of(key)
        yield from self.read_raw(key, self._ends, self._kinds)

    def closes(self, end: str) -> Generator[None, None, bool]:
        """See `RawCall`."""
        source = self.source
        start = source.offset
        source.pos += len(end)
        if holds_no_tags(self._kinds):
            found = True
        elif end == VALUE_END:
            tags = (KEY, VALUE_END, self._block.close, self._block.open)
            found = not (yield from self.is_mentioned(end, tags, self._turn_ends))
        elif end == KEY:
            yield from source.run(_KEY)
            found = (yield from source.either((KEY_END,))) != ""
            yield from source.space()
            found = found and (yield from source.ahead((VALUE,))) != ""
        elif start < self._value_end:
            found = False
        else:
            found = yield from self._begins_block()
        source.rewind(start)
        if found and end != VALUE_END:
            raise Fault(Reason.UNCLOSED_STRING, balanced=False)
        return found

    def closes_nearly(self, end: str, tag: str) -> Generator[None, None, bool]:
        """Whether a broken tag closes the value (slip 21): a pair or the end of the block follows then."""
        source = self.source
        start = source.offset
        source.pos += len(end)
        closes = tag == VALUE_END and end[0] == "<"
        closes = closes and (yield from self.goes_on((KEY, self._block.close), self._turn_ends))
        source.rewind(start)
        if closes:
            self.writer.repaired = True
        elif end[1:2] == "/" or end[0] != "<" or tag != VALUE_END:
            raise Fault(Reason.UNCLOSED_STRING, balanced=False)
        return closes  # `<arg_value>` is a broken tag only where a closing one is due

    def _begins_block(self) -> Generator[None, None, bool]:
        """Whether the next block begins here, with no closing tag of the value before its first pair."""
        source = self.source
        yield from source.space()
        if not (yield from source.ahead((self._block.open,))):
            return False
        if (yield from self._pair_tags.skip(source)) != VALUE_END:
            return True
        self._value_end = source.offset
        return False


class PairsBlock(Block):
    """Reads one block, which is one call. `source.pos` is at its marker."""

    bare = True
    """Whether a name alone is a call without arguments."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stops = _ends_of((self.span.close, self.span.open, *context.dialect.ends))

    def read(self) -> Reading:
        """Read the block; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len((yield from source.marker()))
        self.emit.markup(source.offset)
        yield from self.read_call(PairsCall(self.context, bare=self.bare), self.start)
        source.keep_from(None)

    def leave(self, call: Call, fault: Fault) -> Generator[None, None, Reason]:
        """Pass over the rest of what is no call; returns why it is none."""
        end = yield from self._stops.skip(self.source)
        if end == self.span.close:
            self.source.pos += len(end)
            return fault.reason
        return Reason.TRUNCATED if not end or end in self.context.dialect.ends else Reason.UNCLOSED


class PairsOnlyBlock(PairsBlock):
    """The same in formats of other notations, where a word alone between the markers is no call."""

    bare = False


@cache
def _ends_of(texts: tuple[str, ...], special: tuple[str, ...] = (), near: bool = False) -> Ends:
    return Ends(dict.fromkeys(texts, ()), special, NEAR if near else None)


@dataclass(frozen=True, slots=True)
class Pairs:
    """How GLM writes one call. `newline`: behind each tag."""

    newline: str
    tags = (KEY, KEY_END, VALUE, VALUE_END)

    def write(self, writer: RawWriter, name: str, arguments: Mapping[str, Any]) -> str:
        """What stands between the markers of a block."""
        pairs = []
        for key, value in arguments.items():
            text = writer.raw(value)
            NEAR.check(text, VALUE_END)
            pairs.append(
                f"{KEY}{writer.key(key)}{KEY_END}{self.newline}{VALUE}{text}{VALUE_END}{self.newline}"
            )
        return f"{name}{self.newline}{''.join(pairs)}"


def tool_call(otherwise: GrammarFactory) -> GrammarFactory:
    """`<tool_call>`, which opens tags, JSON, or a name with pairs; `otherwise` reads those."""

    def grammar(context: Context) -> Grammar:
        return ByFirstCharacter(context, {"<": TagBlock, "{": JsonBlock, "[": JsonBlock}, otherwise)

    return grammar


_GLM_ENDS = ("<|observation|>", "<|user|>", "<|endoftext|>")
_GLM_TAGS = (KEY, KEY_END, VALUE, VALUE_END)
GLM45 = Dialect(
    name="glm45",
    reasoning=Span("<think>", "</think>", after_close=("\n",)),
    calls=Span("<tool_call>", "</tool_call>", before=("\n",)),
    ends=_GLM_ENDS,
    turn=MarkedTurn,
    shown=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    grammar=tool_call(PairsBlock),
    tags=_GLM_TAGS,
    renderers={"pairs": in_blocks(Pairs("\n"), RawWriter, inside="")},
)
GLM47 = Dialect(
    name="glm47",
    reasoning=THINK,
    calls=Span("<tool_call>", "</tool_call>"),
    ends=_GLM_ENDS,
    turn=MarkedTurn,
    shown=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    grammar=tool_call(PairsBlock),
    interrupts={"<tool_call>": ()},
    tags=_GLM_TAGS,
    renderers={"pairs": in_blocks(Pairs(""), RawWriter, between="", inside="")},
)

ALL = (GLM45, GLM47)
