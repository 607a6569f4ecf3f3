"""A change to a text file, as a diff in colour."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator

from localagent.cli.terminal import Style, styled, takes_colour, write_raw

_STYLES: dict[str, Style] = {"+": "green", "-": "red", "@": "cyan"}


def show_diff(path: str, before: str | None, after: str | None) -> None:
    """Print the change on stdout. None: there is no such file, before or after."""
    for number, line in enumerate(diff_lines(path, before, after)):
        style: Style | None = "bold" if number < 2 else _STYLES.get(line[:1])
        write_raw(sys.stdout, styled(line, style if takes_colour(sys.stdout) else None) + "\n")
    sys.stdout.flush()


def diff_lines(path: str, before: str | None, after: str | None) -> Iterator[str]:
    """A unified diff. A last line without an end is followed by a line that says so, as `diff` writes it."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text or "") for text in (before, after))
    names = [path if text is not None else "(none)" for text in (before, after)]
    for line in difflib.unified_diff(old, new, names[0], names[1]):
        yield line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
