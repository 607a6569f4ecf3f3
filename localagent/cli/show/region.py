"""The rows at the bottom of the screen that are still being rewritten.

A row that is finished, or that has left the screen at its top, is never touched again: a terminal cannot
rewrite what has scrolled away, and somebody may be reading it there. A frame is one write of what differs
from the frame before, so nothing flickers.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import takewhile

_STYLE = re.compile(r"\x1b\[[\d;]*m")
# Terminals disagree about the width of emoji. Where lines do not wrap, a row that is wider than it was
# measured is still one row, and the number of rows to go up is right.
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Region:
    """Rows that can be replaced as long as they are on the screen.

    The cursor rests at the end of the last row; without rows, at the beginning of an empty line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` sends text and control sequences to the terminal."""
        self._write = write
        self._rows: list[str] = []
        self._gone = 0  # how many of the unfinished rows have left the screen at its top
        self._columns = 0

    def draw(self, finished: Sequence[str], unfinished: Sequence[str] = ()) -> None:
        """Show rows in place of the unfinished ones of the last call, which they have to begin with.

        Finished rows stay; unfinished ones are what the next call replaces. A row holds printable text, and
        the styles in it end in it.
        """
        size = shutil.get_terminal_size()
        frame = self._fit(size)
        rows = [*finished, *unfinished][self._gone :]
        frame += self._changes(self._rows, rows)
        if rows and not unfinished:
            frame += "\r\n"
        self._send(frame)
        self._gone = max(0, len(unfinished) - max(size.lines - 1, 1))
        self._rows = list(unfinished[self._gone :])

    def insert(self, rows: Sequence[str]) -> None:
        """Show rows that stay above those that can be replaced."""
        frame = self._fit(shutil.get_terminal_size())
        frame += self._changes(self._rows, [*rows, *self._rows]) + ("" if self._rows else "\r\n")
        self._send(frame)

    def clear(self) -> None:
        """Remove the rows, so that something else can be written there; the next `draw` shows them again."""
        self._send(self._fit(shutil.get_terminal_size()) + self._changes(self._rows, []))
        self._rows = []

    def discard(self) -> None:
        """Remove the rows for good: the next ones belong to something else."""
        self.clear()
        self._gone = 0

    def _send(self, frame: str) -> None:
        if frame:
            self._write(frame if frame.isascii() else f"{_NO_WRAP}{frame}{_WRAP}")

    def _fit(self, size: os.terminal_size) -> str:
        """What removes the rows if the terminal got another width, and so wrapped them in its own way."""
        before, self._columns = self._columns, size.columns
        if before in (0, size.columns) or not self._rows:
            return ""
        if self._gone:  # the rows no longer break where those did that are gone: all are shown again
            self._gone, self._rows = 0, []
            return "\r\n"
        # Widths are in characters here. Wide ones would make it more rows, and a row that stays is no loss.
        lengths = (len(_STYLE.sub("", row)) for row in self._rows)
        height = sum(max(1, -(-length // size.columns)) for length in lengths)
        self._rows = []
        return _up(min(height, size.lines) - 1) + _CLEAR_BELOW

    @staticmethod
    def _changes(old: Sequence[str], new: Sequence[str]) -> str:
        """What turns the old rows into the new ones, with the cursor at the end of the last row."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        if same == len(old):
            lead = "\r\n" if old and len(new) > same else ""
            return lead + "\r\n".join(new[same:])
        if same == len(old) - 1 and len(new) > same and new[same].startswith(old[same]):
            return "\r\n".join([new[same][len(old[same]) :], *new[same + 1 :]])
        same = min(same, max(len(new) - 1, 0))  # at the end of a row that stays there would be no way to get
        frame = _up(len(old) - 1 - same)
        frame += "\r\n".join(
            row + (_CLEAR_LINE if number < len(old) else "") for number, row in enumerate(new[same:], same)
        )
        return frame + (_CLEAR_BELOW if len(new) < len(old) else "")


def _up(rows: int) -> str:
    """To the beginning of the row so many rows above."""
    return "\r" + (f"\x1b[{rows}A" if rows > 0 else "")
