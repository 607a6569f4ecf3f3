"""Output to a terminal, made harmless: much of the text comes from models, files, tools and servers.

`wording.printable` is the one function that makes text harmless. `Output` replaces standard output and
standard error and applies it to everything written there, by this package, by a library or as a traceback.
Only two things bypass it: `write_raw`, for text that this program has made printable and coloured itself, and
`exactly`, for text that another program reads from a pipe.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO

from localagent.wording import DECEPTIVE, printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH = 400
_NARROW = 60
"""Columns below which a table that does not fit is shown a line for each cell."""

Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: dict[Style, int] = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def flat(text: str) -> str:
    """`printable` text on one line, for a name: it cannot start a line that imitates other output."""
    return printable(" ".join(text.split()))


def styled(text: str, style: Style | None) -> str:
    """`printable` text in a style, each line by itself, for `write_raw`."""
    lines = printable(text).split("\n")
    return "\n".join(f"\x1b[{_CODES[style]}m{line}\x1b[0m" if style and line else line for line in lines)


def takes_escapes(stream: TextIO) -> bool:
    """Whether escape sequences may be written: to a terminal, unless it is called dumb."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def takes_colour(stream: TextIO) -> bool:
    """Whether text may be coloured. NO_COLOR forbids it: https://no-color.org."""
    return takes_escapes(stream) and not os.environ.get("NO_COLOR")


def json_escaped(text: str) -> str:
    """Equivalent JSON, with the characters that `printable` escapes as JSON escapes."""
    return DECEPTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class OutputLost(OSError):
    """Standard output cannot be written, so the result is lost. Not raised if a pipe's reader has gone."""

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        how = "is closed" if closed else f"cannot be written ({error.strerror or error})"
        super().__init__(f"standard output {how}: there is nowhere to print the result")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output(io.TextIOWrapper):
    """Standard output or standard error, as a text stream that cannot control the terminal.

    Failing to write a result ends the command; failing to write a note to standard error does not. While the
    disk is full, notes are lost; when there is room again, a line says so before the next one.
    """

    make_way: ClassVar[Callable[[], None] | None] = None
    """Called before text from any source is written, while a part of the screen is redrawn again and again:
    it has to leave the cursor where that text does no harm."""

    def __init__(self, name: str) -> None:
        """`name`: "stdout" or "stderr"."""
        stream: Any = getattr(sys, name)
        self._notes = name == "stderr"
        self._gap = False
        if stream is None:
            # The stream was closed when the program began. If the next opened file got its descriptor, an
            # engine that prints would write into that file; a read-only descriptor refuses the writes.
            super().__init__(open(os.open(os.devnull, os.O_RDONLY), "wb"), "utf-8")  # noqa: PTH123, SIM115
        else:
            super().__init__(
                stream.buffer, stream.encoding, line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )  # fmt: skip
        self.reconfigure(errors="backslashreplace")

    def write(self, text: str, /) -> int:
        """Write text from any source."""
        if Output.make_way is not None:
            Output.make_way()
        self.write_raw(printable(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write text unchanged."""
        try:
            if self._gap:
                super().write("\n(notes are missing here: the disk was full)\n")
            super().write(text)
            self._gap = False
        except OSError as error:
            self._lose(error)

    def flush(self) -> None:
        """Write what is still in the buffer."""
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if self._notes and error.errno in _FULL:
            self._gap = True
        elif self._notes:
            discard(self)
        elif isinstance(error, BrokenPipeError):
            raise error
        else:
            raise OutputLost(error) from error


def discard(stream: TextIO) -> None:
    """Discard everything written to `stream` from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def guard_streams() -> None:
    """Make the standard streams safe to use, even if some of them are closed."""
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stdout = Output("stdout")
    sys.stderr = Output("stderr")


def require_stdout() -> None:
    """Raise OutputLost if nothing can be printed: for commands that work long before they print."""
    try:
        os.write(1, b"")
    except OSError as error:
        raise OutputLost(error) from error


def write_raw(stream: TextIO, text: str) -> None:
    """Write text from `styled`, or a cursor movement."""
    getattr(stream, "write_raw", stream.write)(text)  # tests replace the streams by their own


def say(text: str) -> None:
    """Print a line that is not a result: it goes to stderr, so that results can be piped."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def show_line(text: str) -> None:
    """Print a line of a result for people."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def exactly(text: str, *, encoding: str | None = None, errors: str = "backslashreplace") -> None:
    """Print a result for programs: unchanged in a pipe, `printable` on a terminal."""
    stream: Any = sys.stdout
    if stream.isatty():
        stream.write(printable(text))
    else:
        stream.reconfigure(encoding=encoding, errors=errors)
        write_raw(stream, text)
    stream.flush()


def show_json(document: Any, indent: int | None = 2) -> None:
    """Print a value as JSON, or a string that is JSON already."""
    text = document if isinstance(document, str) else json.dumps(document, indent=indent)
    sys.stdout.write(json_escaped(text) + "\n")
    sys.stdout.flush()


def cell(text: str, style: str = "") -> Text:
    """Text in a table, in which markup is not interpreted."""
    from rich.text import Text

    return Text(printable(text), style)


def table_width() -> int:
    """The width of a table in columns. In a pipe, which has no width, every row gets one line."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def show_table(
    table: Table, hint: str | None = None, *, soft_wrap: bool = False, stacked: bool = False
) -> None:
    """Print a table made of `cell`s, and a line below it.

    `soft_wrap`: long rows are not cut. `stacked`: there is no room for the columns beside each other.
    """
    from rich.console import Console

    width = None if soft_wrap else table_width()
    console = Console(highlight=False, markup=False, width=width, soft_wrap=soft_wrap)
    with console.capture() as shown:
        narrow = width is not None and width < _NARROW and console.measure(table).maximum >= width
        if stacked or narrow:
            console.print(*_stacked(table), sep="\n")
        else:
            console.print(table)
        if hint:
            console.print(hint, style="dim")
    write_raw(sys.stdout, shown.get())
    sys.stdout.flush()


def _stacked(table: Table) -> list[Text]:
    """The rows below each other, a line for each cell, so that none has to be cut."""
    from rich.text import Text

    lines: list[Text] = []
    columns = [[value for value in column.cells if isinstance(value, Text)] for column in table.columns]
    for row in zip(*columns, strict=True):
        first, *others = ((column.header, value) for column, value in zip(table.columns, row, strict=True))
        lines.append(Text.assemble(first[1], style="bold"))
        lines += [Text.assemble(f"  {header}: ", value) for header, value in others if value.plain]
    return lines


def on_terminal() -> bool:
    """Whether a person can both type and read."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typing_output() -> Any:
    """What prompt_toolkit writes to: as it chooses, but without any escape sequence where none is taken."""
    if takes_escapes(sys.stdout):
        return None
    from prompt_toolkit.output.plain_text import PlainTextOutput

    class Plain(PlainTextOutput):
        def get_rows_below_cursor_position(self) -> int:
            return 1  # else empty lines are written below the prompt, with no way back up

    return Plain(sys.stdout)


def agrees(question: str) -> bool:
    """Ask yes or no on the terminal. Raises UsageError if there is no terminal."""
    from localagent.errors import UsageError

    # Not typer.confirm: it turns both the end of input and Ctrl-C into one Abort.
    answer = ""
    if sys.stdin and sys.stdin.isatty():
        sys.stderr.write(f"{flat(question)} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # after Ctrl-D the cursor is still on the question's line
            sys.stderr.write("\n")
    if not answer:
        raise UsageError("nobody can be asked here: say --yes to agree beforehand")
    return answer.strip().lower() in ("y", "yes")
