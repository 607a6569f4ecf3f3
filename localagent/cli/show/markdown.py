"""Markdown as it streams: which rows are finished, and which may still change.

A block is finished as soon as another one follows it, and is laid out once. Only the last block is laid out
again and again while it grows. Where it gets long it is cut: between two items of a list, two rows of a
table, two lines of code or two rows of a paragraph. So a frame costs the same however long the answer is.
"""

from __future__ import annotations

import re
from itertools import islice

from localagent.cli.show.blocks import Block, Layout, lines_apart, parse
from localagent.wording import printable

_LONG = 10
"""Rows or lines from which on an unfinished block is cut."""
_RECENT = 3
"""Rows at the end of a paragraph in which a mark such as ** may still change something."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_PROSE = re.compile(r"""(?!\d+[.)])[\w"'(]""")
"""How a row begins that is no other kind of block when it stands alone."""


class MarkdownRows:
    """The rows of a text that is being written."""

    def __init__(self, *, colour: bool = True, style: str = "none") -> None:
        """`style`: of all of the text, such as "dim"."""
        self._layout = Layout(colour=colour, style=style)
        self._source = ""  # from the beginning of the first unfinished block
        self._begun = False  # something was finished before that
        self._cut: str | None = None  # the kind of the block that was cut where `_source` begins
        self._number = 1  # of the next item, if that was a numbered list

    def feed(self, text: str) -> None:
        """Add what was written."""
        self._source += printable(text)

    def rows(self, width: int, height: int) -> tuple[list[str], list[str]]:
        """The rows that were finished since the last call, and those that may still change."""
        finished: list[str] = []
        while True:
            blocks = parse(self._source)
            rows = self._lay_out(blocks, width)
            if not (cut := self._find_cut(blocks, rows, width, height)):
                return finished, rows
            done, self._source, kind = cut
            parts = parse(done)
            finished += self._lay_out(parts, width, is_cut=kind is not None)
            self._number = parts[-1].next_number if parts else 1
            self._begun, self._cut = self._begun or bool(finished), kind

    def end(self, width: int) -> list[str]:
        """The rows that are left: the text is complete, and another may begin."""
        rows = self._lay_out(parse(self._source), width)
        self._source, self._begun, self._cut = "", False, None
        return rows

    def _lay_out(self, blocks: list[Block], width: int, *, is_cut: bool = False) -> list[str]:
        """The blocks with an empty row between two of them, unless they are parts of one."""
        rows: list[str] = []
        for number, block in enumerate(blocks):
            goes_on = number == 0 and self._cut is not None
            block.mark(goes_on=goes_on, is_cut=is_cut, number=self._number)
            own = self._layout.rows(block, width)
            if own and not goes_on and (rows or self._begun):
                rows.append("")
            rows += own
        return rows

    def _find_cut(
        self, blocks: list[Block], rows: list[str], width: int, height: int
    ) -> tuple[str, str, str | None] | None:
        """The source that is finished, the rest, and the kind of a block that is cut between them."""
        lines = self._source.split("\n")
        # A line that is not complete may become another kind of block: "#" may be the beginning of "#5 is".
        complete = len(lines) - 1

        def at(line: int, kind: str | None = None, again: int = 0) -> tuple[str, str, str | None]:
            """Cut before this line; the first `again` lines belong to the rest as well."""
            return "\n".join(lines[:line]) + "\n", "\n".join([*lines[:again], *lines[line:]]), kind

        begun = [block.line for block in blocks if block.line < complete]
        if len(begun) > 1:
            return at(begun[-1])
        if len(blocks) != 1:
            return None
        (block,) = blocks
        first = block.line
        match block.kind:
            case "bullet_list_open" | "ordered_list_open":
                items = [line for line in block.items() if line < complete]
                return at(items[-1], block.kind) if len(items) > 1 else None
            case "fence" if complete - first - 1 > _LONG:
                apart = lines_apart(block, complete - first - 2)
                return at(first + 1 + apart, "fence", first + 1) if apart else None
            case "table_open" if len(rows) > height - 2 and complete - first > 3:
                return at(complete - 1, None, first + 2)
            case "paragraph_open" if len(rows) > _LONG + _RECENT:
                return self._cut_paragraph(rows[:-_RECENT], width)
        return None

    def _cut_paragraph(self, rows: list[str], width: int) -> tuple[str, str, str] | None:
        """Cut after the last of these rows, if the source up to there looks the same when it stands alone."""
        words = sum(len(_STYLE.sub("", row).split()) for row in rows)
        last = next(islice(re.finditer(r"\S+", self._source), words - 1, None), None)
        if last is None:
            return None
        done, rest = self._source[: last.end()], self._source[last.end() :].lstrip()
        if not _PROSE.match(rest) or self._lay_out(parse(done), width) != rows:
            return None
        return done, rest, "paragraph_open"
