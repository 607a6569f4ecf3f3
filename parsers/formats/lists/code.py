"""Calls as Python source in a tag: `<code>get_weather(city="Paris")</code>`.

The tag is ordinary text, and answers about programming or HTML have it too. So it opens a block only in front
of a call: of a declared tool, or of any if none is declared.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from parsers.dialect import Context
from parsers.engine.source import Reading
from parsers.engine.spans import Span
from parsers.engine.tools import Tool
from parsers.formats.lists.block import ListBlock

CODE = Span("<code>", "</code>")

# Bounded, since text that may be a beginning is looked at again with each piece of output.
_S = r"[ \t\r\n]{0,64}"
_NAME = r"[^\W\d][\w.\-]{0,127}"
_CALL = re.compile(rf"{CODE.open}{_S}({_NAME})\(")
_CALL_SO_FAR = re.compile(rf"{_S}(?:{_NAME})?\Z")


class CodeBlock(ListBlock):
    """Reads one block. `source.pos` is at its tag."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.span = CODE

    def read(self) -> Reading:
        """Read the block; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        source.pos += len(CODE.open)
        self._body = source.offset
        yield from self.elements()
        yield from self.close()
        source.keep_from(None)

    def element(self, char: str) -> Reading:
        """See `ListBlock`."""
        source = self.source
        if source.cut_marker(CODE.close):
            source.pos = len(source.text)
        else:
            yield from super().element(char)

    def confirm(self) -> Reading:
        """At the end of the turn, a line end shows that the call is complete."""
        source = self.source
        start = source.offset
        char = yield from source.space()
        over = not char or (yield from self.at_terminator()) or source.cut_marker(CODE.close)
        if not over or "\n" not in source.since(start):
            source.rewind(start)
            yield from super().confirm()

    def broken_off(self) -> Generator[None, None, bool]:
        """At the end of the turn the closing tag may be missing: agents stop the generation there."""
        return True
        yield

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """See `ListBlock`; the tag is no marker of the dialect."""
        closes = (yield from self.source.ahead((CODE.close,))) in markers
        return closes or (yield from super().at_marker(markers))


class CodeOpening:
    """Where such a block may begin."""

    first = CODE.open[0]

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def at(self, text: str, index: int) -> bool | None:
        """Whether a block begins at `index`; None while more text may make it so."""
        if found := _CALL.match(text, index):
            return not self._tools or found[1] in self._tools
        if not text.startswith(CODE.open, index):
            return None if CODE.open.startswith(text[index:]) else False
        return None if _CALL_SO_FAR.match(text, index + len(CODE.open)) else False

    def read(self, context: Context) -> Reading:
        """Read the block."""
        yield from CodeBlock(context).read()
