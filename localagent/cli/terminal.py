"""What may reach a terminal: models, files, tools and servers choose much of what is shown there.

`printable` is the one function that makes text harmless. `Output` replaces standard output and standard error
and applies it to everything written there, by this package, by a library or as a traceback. Only two things
go around it: what `write_raw` is given, which this program has made printable and coloured itself, and what
`exactly` hands to a program that reads from a pipe.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

# Control characters but tab and line feed, lone surrogates, line separators, and marks that reorder text.
_DECEPTIVE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]"
)
_PIPE_WIDTH = 200

Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: dict[Style, int] = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def printable(text: str) -> str:
    """`text` with everything made visible that could drive a terminal or deceive its reader."""
    return text if text.isprintable() else _DECEPTIVE.sub(_spelt, text)


def flat(text: str) -> str:
    """The same on one line, for a name: it cannot begin a line that looks like another's."""
    return printable(" ".join(text.split()))


def styled(text: str, style: Style | None) -> str:
    """The same in a style, each line by itself, for `write_raw`."""
    lines = printable(text).split("\n")
    return "\n".join(f"\x1b[{_CODES[style]}m{line}\x1b[0m" if style and line else line for line in lines)


def json_escaped(text: str) -> str:
    """JSON that means the same, with the same characters escaped as only JSON can."""
    return _DECEPTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class OutputLost(OSError):
    """Standard output cannot be written, so the result is lost. Not raised when the reader of a pipe left."""

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        how = "is closed" if closed else f"cannot be written ({error.strerror or error})"
        super().__init__(f"standard output {how}: there is nowhere to print the result")


class Output(io.TextIOWrapper):
    """Standard output, or standard error, as a stream of text that cannot drive the terminal.

    Failing to write a result ends the command; failing to write a note to standard error does not.
    """

    def __init__(self, name: str) -> None:
        """`name`: "stdout" or "stderr"."""
        stream: Any = getattr(sys, name)
        self._notes = name == "stderr"
        if stream is None:
            # It was closed when the program began. Its number must not go to the next file that is opened, or
            # an engine that prints writes into that; a descriptor for reading refuses what is written.
            super().__init__(open(os.open(os.devnull, os.O_RDONLY), "wb"), "utf-8")  # noqa: PTH123, SIM115
        else:
            super().__init__(
                stream.buffer, stream.encoding, line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )  # fmt: skip
        self.reconfigure(errors="backslashreplace")

    def write(self, text: str, /) -> int:
        """Write text that may be anybody's."""
        self.write_raw(printable(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write text as it is."""
        try:
            super().write(text)
        except OSError as error:
            self._lose(error)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if self._notes:
            discard(self)
        elif isinstance(error, BrokenPipeError):
            raise error
        else:
            raise OutputLost(error) from error


def discard(stream: TextIO) -> None:
    """Discard everything that is still written to `stream`."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def guard_streams() -> None:
    """Make the standard streams safe to use, also where some of them are closed."""
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stdout = Output("stdout")
    sys.stderr = Output("stderr")


def require_stdout() -> None:
    """For commands that work long before they print. Raises OutputLost where nothing can be written."""
    try:
        os.write(1, b"")
    except OSError as error:
        raise OutputLost(error) from error


def write_raw(stream: TextIO, text: str) -> None:
    """Write what `styled` made, or a movement of the cursor."""
    getattr(stream, "write_raw", stream.write)(text)  # tests have streams of their own


def say(text: str) -> None:
    """A line that is not a result: it goes to stderr, so that results can be piped."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def show_line(text: str) -> None:
    """A line of a result that people read."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def exactly(text: str, *, encoding: str | None = None, errors: str = "backslashreplace") -> None:
    """A result that programs read: in a pipe it stays as it was written, on a terminal it is printable."""
    stream: Any = sys.stdout
    if stream.isatty():
        stream.write(printable(text))
    else:
        stream.reconfigure(encoding=encoding, errors=errors)
        write_raw(stream, text)
    stream.flush()


def show_json(document: Any, indent: int | None = 2) -> None:
    """A value, or JSON that is text already."""
    text = document if isinstance(document, str) else json.dumps(document, indent=indent)
    sys.stdout.write(json_escaped(text) + "\n")
    sys.stdout.flush()


def cell(text: str, style: str = "") -> Text:
    """Text in a table, in which markup is not interpreted."""
    from rich.text import Text

    return Text(printable(text), style)


def table_width() -> int:
    """The columns that a table has: a pipe has no width, and gives every row one line."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def show_table(table: Table, hint: str | None = None, *, soft_wrap: bool = False) -> None:
    """A table made of `cell`s, and a line below it. `soft_wrap`: nothing is cut, however long."""
    from rich.console import Console

    width = None if soft_wrap else table_width()
    console = Console(highlight=False, markup=False, width=width, soft_wrap=soft_wrap)
    with console.capture() as shown:
        console.print(table)
        if hint:
            console.print(hint, style="dim")
    write_raw(sys.stdout, shown.get())
    sys.stdout.flush()


def on_terminal() -> bool:
    """Whether a person is typing, and reading."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def agrees(question: str) -> bool:
    """Ask on the terminal. Raises UsageError when nobody is there to answer."""
    from localagent.errors import UsageError

    # typer.confirm makes an end of input and Ctrl-C the same Abort.
    answer = ""
    if sys.stdin and sys.stdin.isatty():
        sys.stderr.write(f"{flat(question)} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # after Ctrl-D the cursor is still on the line of the question
            sys.stderr.write("\n")
    if not answer:
        raise UsageError("say --yes to remove without being asked")
    return answer.strip().lower() in ("y", "yes")
