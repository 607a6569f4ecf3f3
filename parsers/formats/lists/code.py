"""Calls as Python source, one per line: in a tag, `<code>get_weather(city="Paris")</code>`, or in a fence.

Both are ordinary text, and answers about programming or HTML have them too. So a tag opens a block only in
front of a call: of a declared tool, or of any if none is declared. A fence opens one only if it is called
`tool_code`, or gives its first call that name, and only in front of a declared tool.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from ...dialect import Context
from ...engine.driver import Call
from ...engine.faults import Fault
from ...engine.source import Reading
from ...engine.spans import Span
from ...engine.tools import Tool
from ...events import Reason
from .block import ListBlock
from .pythonic import PythonicCall

CODE = Span("<code>", "</code>")

# Bounded, since text that may be a beginning is looked at again with each piece of output.
_S = r"[ \t\r\n]{0,64}"
_NAME = r"[^\W\d][\w.\-]{0,127}"
_CALL = re.compile(rf"{CODE.open}{_S}({_NAME})\(")
_CALL_SO_FAR = re.compile(rf"{_S}(?:{_NAME})?\Z")

FENCE = Span("```tool_code", "```")
_VARIABLE = "tool_code"
_PRINT = "print("
_B = r"[ \t]{0,16}"
_INFO = re.compile(rf"```({_VARIABLE})?{_B}\r?\n{_S}")
_INFO_SO_FAR = re.compile(
    rf"`{{1,2}}\Z|```(?:{'|'.join(_VARIABLE[:end] for end in range(1, len(_VARIABLE)))}"
    rf"|(?:{_VARIABLE})?{_B}\r?)\Z"
)
_GIVEN = rf"{_VARIABLE}{_B}={_B}"
_STATEMENT = re.compile(rf"(?:print\(|({_GIVEN}))?(?!print\()({_NAME})\(")
_STATEMENT_SO_FAR = re.compile(rf"(?:print\(|{_GIVEN})?(?:{_NAME})?{_B}\Z")


class CodeBlock(ListBlock):
    """Reads one block. `source.pos` is at its tag."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.span = CODE

    def read(self) -> Reading:
        """Read the block; `source.pos` is behind it afterwards."""
        source = self.source
        source.keep_from(self.start)
        yield from self.opened()
        self._body = source.offset
        yield from self.elements()
        yield from self.close()
        source.keep_from(None)

    def opened(self) -> Reading:
        """Read what opens the block, which is known to come next."""
        self.source.pos += len(CODE.open)
        return
        yield

    def element(self, char: str) -> Reading:
        """Read one call. A closing tag that the output cuts off is markup."""
        source = self.source
        if source.cut_marker(self.span.close):
            source.pos = len(source.text)
        else:
            yield from super().element(char)

    def confirm(self) -> Reading:
        """At the end of the turn, a line end shows that the call is complete."""
        source = self.source
        start = source.offset
        char = yield from source.space()
        over = not char or (yield from self.at_terminator()) or source.cut_marker(self.span.close)
        if not over or "\n" not in source.since(start):
            source.rewind(start)
            yield from super().confirm()

    def broken_off(self) -> Generator[None, None, bool]:
        """At the end of the turn the closing tag may be missing: agents stop the generation there."""
        return True
        yield

    def at_marker(self, markers: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether one of `markers` comes next: the closing tag is none of the dialect's."""
        closes = (yield from self.source.ahead((self.span.close,))) in markers
        return closes or (yield from super().at_marker(markers))


class CodeOpening:
    """Where such a block may begin."""

    first = CODE.open[0]

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def at(self, text: str, index: int) -> bool | None:
        """Whether a block begins at `index`; None while more text may make it so."""
        if match := _CALL.match(text, index):
            return not self._tools or match[1] in self._tools
        if not text.startswith(CODE.open, index):
            return None if CODE.open.startswith(text[index:]) else False
        return None if _CALL_SO_FAR.match(text, index + len(CODE.open)) else False

    def read(self, context: Context) -> Reading:
        """Read the block."""
        yield from CodeBlock(context).read()


class FencedBlock(CodeBlock):
    """Reads calls of declared tools in a fence, as Gemma writes them [loose-gemma].

    `source.pos` is at the fence.

    A call may be printed, `print(f(...))`, or be given a name which is printed then: `tool_code = f(...)`.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.span = FENCE
        self._printed = False  # the call at hand stands in `print`

    def opened(self) -> Reading:
        """Read the fence and its line."""
        self.source.pos += len(self.span.close)
        self.source.pos = self.source.text.index("\n", self.source.pos) + 1
        return
        yield

    def call_at(self, char: str) -> Call:
        """A reader for a call, which without the markers of the format is always a repaired one."""
        call = PythonicCall(self.context, self.span, self.follows_call)
        call.writer.repaired = call.writer.only_declared = True
        return call

    def element(self, char: str) -> Reading:
        """Read one call; `print(` or `tool_code =` in front of it is markup."""
        source = self.source
        start = source.offset
        self._printed = (yield from source.either((_PRINT,))) != ""
        word = yield from source.either((_VARIABLE,))
        follower = yield from source.space()
        if word and self._printed and follower == ")":
            source.pos += 1
            self.emit.markup(source.offset)
        elif word and not self._printed and follower == "=":
            source.pos += 1
            yield from super().element((yield from source.space()))
        else:
            source.rewind(start + len(_PRINT) * self._printed)
            yield from super().element((yield from source.space()))

    def confirm(self) -> Reading:
        """A call is complete at the end of its line, of the fence or of the turn."""
        source = self.source
        if self._printed:
            if (char := (yield from source.space())) != ")":
                raise Fault(Reason.SYNTAX if char else Reason.TRUNCATED, balanced=False)
            source.pos += 1
        start = source.offset
        yield from source.space()
        if not (yield from self.at_marker(self.ends)):
            source.rewind(start)
            yield from super().confirm()

    def follows_call(self, inner: bool, opener: str) -> Generator[None, None, bool]:
        """Whether what comes next fits behind a call, or behind the one in `print`."""
        if self._printed:
            if (char := (yield from self.source.space())) != ")":
                return not char
            self.source.pos += 1
        return (yield from super().follows_call(inner, opener))

    def close(self) -> Reading:
        """The fence ends, or the turn does."""
        yield from self.source.space()
        yield from self.source.either((self.span.close,))
        self.emit.markup(self.source.offset)


class FenceOpening:
    """Where such a fence may begin."""

    first = "`"

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def at(self, text: str, index: int) -> bool | None:
        """Whether a fence with calls begins at `index`; None while more text may make it so."""
        info = _INFO.match(text, index)
        if info is None:
            return None if _INFO_SO_FAR.match(text, index) else False
        statement = _STATEMENT.match(text, info.end())
        if statement is None:
            return None if _STATEMENT_SO_FAR.match(text, info.end()) else False
        named, given, name = info[1], statement[1], statement[2]
        return name in self._tools and (named is not None or given is not None)

    def read(self, context: Context) -> Reading:
        """Read the block."""
        yield from FencedBlock(context).read()


def fences(tools: Mapping[str, Tool]) -> FenceOpening | None:
    """Where fences with calls may begin, if there are tools that can make them calls."""
    return FenceOpening(tools) if tools else None
