"""A real pseudo-terminal whose screen can be read: what a person at the keyboard sees.

The command runs as it is installed, on a terminal of a given size. Everything that it writes goes to a terminal
emulator, which also answers its questions about the cursor.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Self

import pexpect
import pyte

TIMEOUT = 60.0
_HERE = Path(__file__).parent


def program(
    home: Path, arguments: Sequence[str], outputs: Sequence[str], *, pace: float = 0.0, size: int = 1
) -> tuple[list[str], dict[str, str]]:
    """A command with a model that writes these outputs, and its environment.

    `size`: characters in a token; `pace`: seconds that each takes.
    """
    told = {"name": "tiny", "outputs": list(outputs), "pace": pace, "size": size}
    settings = {
        **os.environ, "LOCALAGENT_HOME": str(home), "LOCALAGENT_OFFLINE": "1", "HOSTILE_OUTPUTS": json.dumps(told),
        "LOCALAGENT_MODEL": "lfm2-nano",  # a first chat would ask which one
        "PYTHONPATH": str(_HERE.parents[2]),
    }  # fmt: skip
    settings.pop("NO_COLOR", None)
    return [sys.executable, str(_HERE.parent / "hostile_program.py"), *arguments], settings


class _Answering(pyte.HistoryScreen):
    """An emulated screen that answers the program, and keeps what has scrolled away."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, history=10_000, ratio=0.5)
        self.answer: Callable[[str], None] = lambda _: None

    def write_process_input(self, data: str) -> None:
        self.answer(data)


class Terminal:
    """A command on a terminal."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, columns: int = 80, rows: int = 24
    ) -> None:
        self._screen = _Answering(columns, rows)
        self._stream = pyte.Stream(self._screen)
        settings = {
            **environment,
            "COLUMNS": "",
            "LINES": "",
            "TERM": environment.get("TERM", "xterm-256color"),
        }
        self._child = pexpect.spawn(
            str(command[0]), [str(word) for word in command[1:]], env=settings, encoding="utf-8",
            codec_errors="replace", dimensions=(rows, columns), timeout=TIMEOUT, echo=True,
        )  # fmt: skip
        self._screen.answer = self._child.send
        self.written = ""
        """All that the command wrote, control sequences included."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(force=True)

    def type(self, text: str) -> None:
        """Press these keys, all at once."""
        self._child.send(text)

    def read(self, seconds: float = 0.0) -> bool:
        """Take in what was written meanwhile; False once the command has ended."""
        end = monotonic() + seconds
        while True:
            try:
                text = self._child.read_nonblocking(1 << 16, timeout=max(end - monotonic(), 0.01))
            except pexpect.TIMEOUT:
                return True
            except pexpect.EOF:
                return False
            self.written += text
            self._stream.feed(text)
            if monotonic() > end:
                return True

    def wait(self, pattern: str, timeout: float = TIMEOUT) -> None:
        """Until what is shown matches a regular expression."""
        end = monotonic() + timeout
        while not re.search(pattern, self.text, re.MULTILINE):
            running = self.read(0.05)
            if re.search(pattern, self.text, re.MULTILINE):
                return
            assert running, f"ended before {pattern!r} was shown:\n{self.text}"
            assert monotonic() < end, f"{pattern!r} was not shown:\n{self.text}"

    def settle(self, seconds: float = 0.4) -> None:
        """Until nothing has been written for so long."""
        while True:
            before = len(self.written)
            if not self.read(seconds) or len(self.written) == before:
                return

    def end(self) -> int:
        """Wait for the command to end; its exit code."""
        while self.read(1.0):
            pass
        self._child.close()
        return self._child.exitstatus if self._child.exitstatus is not None else -self._child.signalstatus

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size. The emulator does not wrap its lines anew, as few terminals do not."""
        self._child.setwinsize(rows, columns)
        self._screen.resize(rows, columns)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._child.sendintr()

    # -- what is seen ---------------------------------------------------------------------------------

    @property
    def screen(self) -> list[str]:
        """The rows of the screen, without the empty ones at the end."""
        return _without_end([row.rstrip() for row in self._screen.display])

    @property
    def lines(self) -> list[str]:
        """All rows, those that have scrolled away first."""
        gone = [
            "".join(row[column].data for column in range(self._screen.columns)).rstrip()
            for row in self._screen.history.top
        ]
        return _without_end([*gone, *(row.rstrip() for row in self._screen.display)])

    @property
    def text(self) -> str:
        """`lines` as one text."""
        return "\n".join(self.lines)

    @property
    def cells(self) -> list[list[pyte.screens.Char]]:
        """The characters of `lines` with their colours, for pictures."""
        rows = [*self._screen.history.top, *(self._screen.buffer[row] for row in range(self._screen.lines))]
        return [[row[column] for column in range(self._screen.columns)] for row in rows[: len(self.lines)]]


def _without_end(rows: list[str]) -> list[str]:
    while rows and not rows[-1]:
        rows.pop()
    return rows
