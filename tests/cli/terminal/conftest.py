"""Terminals on which `localagent` runs with a model that plays what a test says."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pyte

from tests.cli.terminal.screen import Terminal, program


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts a command on a terminal, with a model that writes these outputs, turn by turn."""
    with ExitStack() as stack:

        def run(
            *arguments, outputs=("Hello.",), columns=80, rows=24, pace=0.0, size=1, **settings
        ) -> Terminal:
            line, variables = program(home, arguments, outputs, pace=pace, size=size)
            return stack.enter_context(Terminal(line, {**variables, **settings}, columns=columns, rows=rows))

        yield run


class Emulated(io.StringIO):
    """Standard output as a terminal that is only emulated, for the parts of a view."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.emulator = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self.frames: list[str] = []
        self._stream = pyte.Stream(self.emulator)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self.frames.append(text)
            self._stream.feed(text.replace("\n", "\r\n").replace("\r\r\n", "\r\n"))
        return len(text)

    @property
    def screen(self) -> list[str]:
        rows = [row.rstrip() for row in self.emulator.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def gone(self) -> list[str]:
        """What has scrolled away."""
        columns = range(self.emulator.columns)
        return ["".join(row[at].data for at in columns).rstrip() for row in self.emulator.history.top]

    @property
    def lines(self) -> list[str]:
        return self.gone + self.screen


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Emulated]:
    """Puts an emulated terminal in the place of both streams."""

    def put(columns: int = 60, rows: int = 12) -> Emulated:
        terminal = Emulated(columns, rows)
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(rows)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_COLOR", raising=False)
        return terminal

    return put
