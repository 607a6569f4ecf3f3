"""Blocks of Markdown as rows of a terminal: markdown-it-py reads them, rich lays them out.

Nothing is left out: HTML, images and definitions of links are shown as they were written, and table cells and
code are folded rather than cut. Nothing can control the terminal: the text is made printable after it was
parsed, since `&#27;` is an escape character only then, and links are shown with their address, not as links
of the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.lexers.special import TextLexer
from pygments.token import Comment, String
from pygments.util import ClassNotFound
from rich import box, markdown
from rich.cells import chop_cells
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from localagent.wording import printable

_SYSTEM = ColorSystem.STANDARD  # the sixteen colours that each terminal's own theme defines
_THEME = Theme({"markdown.code": "cyan", "markdown.h1": "bold underline", "markdown.h2": "bold"})


@dataclass(frozen=True, slots=True)
class Block:
    """A block at the top level of a text."""

    kind: str
    """The type of its first token, such as "paragraph_open" or "fence"."""
    line: int
    """The line of the source on which it begins, from 0."""
    tokens: list[Token]

    def mark(self, *, goes_on: bool, is_cut: bool, number: int) -> None:
        """Say that it goes on what was shown, or is cut itself. `number`: of its first item then."""
        first = self.tokens[0]
        first.meta |= dict.fromkeys([name for name, on in (("goes_on", goes_on), ("is_cut", is_cut)) if on])
        if goes_on and self.kind == "ordered_list_open":
            first.attrs["start"] = number

    @property
    def next_number(self) -> int:
        """Of the item that would come next, for a numbered list."""
        return int(self.tokens[0].attrs.get("start", 1)) + len(self.items())

    def items(self) -> list[int]:
        """The lines of the source on which the items of a list begin."""
        return [
            each.map[0]
            for each in self.tokens
            if each.type == "list_item_open" and each.level == 1 and each.map
        ]


@cache
def _parser() -> MarkdownIt:
    shown_as_written = ["html_block", "html_inline", "reference", "autolink", "image"]
    return MarkdownIt().enable(["strikethrough", "table"]).disable(shown_as_written)


def parse(source: str) -> list[Block]:
    """The blocks of a text, safe to show."""
    blocks: list[Block] = []
    for token in _parser().parse(source):
        _make_safe(token)
        if token.level == 0 and token.nesting >= 0 and token.map is not None:
            blocks.append(Block(token.type, token.map[0], []))
        blocks[-1].tokens.append(token)
    return blocks


def _make_safe(token: Token) -> None:
    token.content = printable(token.content)
    token.info = printable(token.info)
    token.attrs = {
        name: printable(value) if isinstance(value, str) else value for name, value in token.attrs.items()
    }
    if token.type == "softbreak":  # models end lines on purpose: in verses, addresses and lists of their own
        token.type = "hardbreak"
    for child in token.children or ():
        _make_safe(child)


class Layout:
    """Turns blocks into rows."""

    def __init__(self, *, colour: bool, style: str = "none") -> None:
        """`style`: of all text, such as "dim"."""
        self._colour = colour
        self._style = style
        self._console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard",
            theme=_THEME, highlight=False, markup=False, emoji=False,
        )  # fmt: skip

    def rows(self, block: Block, width: int) -> list[str]:
        """The rows of a block, without the empty ones that rich puts around it."""
        text = _Markdown("", hyperlinks=False, style=self._style)
        text.parsed = block.tokens
        options = self._console.options.update(width=max(width, 8))
        rows = [self._row(line) for line in self._console.render_lines(text, options, pad=False)]
        if block.kind not in ("fence", "code_block"):  # where empty lines are part of the text
            while rows and not rows[-1]:
                rows.pop()
            while rows and not rows[0]:
                rows.pop(0)
        return rows

    def _row(self, line: Sequence[Segment]) -> str:
        pieces = [(printable(text).replace("\n", " "), style) for text, style, control in line if not control]
        while pieces and not pieces[-1][0].strip(" "):
            pieces.pop()
        if pieces:
            pieces[-1] = pieces[-1][0].rstrip(" "), pieces[-1][1]
        return "".join(
            text
            if style is None or text.isspace()
            else _ink(style, self._colour).render(text, color_system=_SYSTEM)
            for text, style in pieces
        )


@cache
def _ink(style: Style, colour: bool) -> Style:
    """What is taken over of a style: no links, and no backgrounds, which suit few terminals."""
    return Style(
        color=style.color if colour and style.color and not style.color.is_default else None,
        bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline, strike=style.strike,
    )  # fmt: skip


@cache
def _lexer(name: str) -> Lexer:
    try:
        return get_lexer_by_name(name, stripnl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False)


def lines_apart(code: Block, limit: int) -> int:
    """How many lines at the beginning of code, at most `limit`, no string or comment goes on after."""
    (token,) = code.tokens
    limit = min(
        limit, token.content.count("\n") - 1
    )  # the last line stays, whether or not the code is closed
    lexer = _lexer(_language(token))
    if isinstance(lexer, TextLexer):  # for which a text without strings and comments is a single token
        return max(limit, 0)
    lines = apart = 0
    for kind, text in lexer.get_tokens(token.content):
        lines += text.count("\n")
        if lines > limit:
            break
        if text.endswith("\n") and kind not in String and kind not in Comment.Multiline:
            apart = lines
    return apart


def _language(token: Token) -> str:
    return token.info.partition(" ")[0] or "text"


class _Code(markdown.CodeBlock):
    """Code between the marks that the model wrote, so that it can be copied with or without them."""

    @classmethod
    def create(cls, markdown: markdown.Markdown, token: Token) -> _Code:
        code = cls(_language(token), "ansi_dark")
        code._opening = None if "goes_on" in token.meta else f"{token.markup}{token.info}"
        code._closing = None if "is_cut" in token.meta else token.markup
        return code

    _opening: str | None
    _closing: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax("", _lexer(self.lexer_name), theme=self.theme)
        code = str(self.text).removesuffix("\n")
        if self._opening:
            yield Text(self._opening, "dim", overflow="fold")
        for line in syntax.highlight(code).split("\n", allow_blank=True)[: code.count("\n") + 1]:
            yield from _folded(line, options.max_width)
        if self._closing:
            yield Text(self._closing, "dim")


def _folded(line: Text, width: int) -> Iterator[Text]:
    """The line in pieces that fit. Spaces are kept, unlike in text that is wrapped at words."""
    line.expand_tabs(4)
    line.no_wrap = True
    if line.cell_len <= width:
        yield line
        return
    ends, end = [], 0
    for piece in chop_cells(line.plain, width):
        end += len(piece)
        ends.append(end)
    for part in line.divide(ends[:-1]):
        part.no_wrap = True
        yield part


class _Heading(markdown.Heading):
    """At the left: a centred one would move with every word."""

    LEVEL_ALIGN = dict.fromkeys(markdown.Heading.LEVEL_ALIGN, "left")


class _List(markdown.ListElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.list_type == "bullet_list_open":
            yield from super().__rich_console__(console, options)
            return
        number = self.list_start or 0
        for item in self.items:  # room for two digits: the tenth item must not move the ones before
            yield from item.render_number(console, options, number, max(number, 10))
            number += 1


class _Table(markdown.TableElement):
    """Cells are folded where they do not fit; rich would cut them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE, pad_edge=False, style="markdown.table.border", collapse_padding=True)
        for cell in self.header.row.cells if self.header and self.header.row else ():
            heading = cell.content.copy()
            heading.stylize("markdown.table.header")
            table.add_column(heading, overflow="fold")
        for row in self.body.rows if self.body else ():
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Markdown(markdown.Markdown):
    elements: ClassVar = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "table_open": _Table,
    }
