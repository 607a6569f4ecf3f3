"""The keyboard of a chat while nobody is asked for a line.

The terminal echoes nothing then: what is typed would end up in the middle of the answer. Two keys are obeyed,
Esc and Ctrl-T; Ctrl-C stays a signal. All other text waits for the next prompt, line breaks included, where
the user sees it before it is sent. The terminal is given back as it was found, whatever ends the program.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from types import FrameType
from typing import TYPE_CHECKING, Any

from localagent.cli.terminal import on_terminal, takes_escapes

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPress

_SOON = 0.1
"""Seconds after which an escape character is the key Esc, and not the beginning of another key's code."""


class Keyboard:
    """What is typed besides the lines that are asked for. Does nothing where there is no terminal."""

    def __init__(self) -> None:
        self.active = False
        """Somebody can press keys, and nothing is echoed."""
        self._typed = ""
        self._before: list[Any] = []  # the terminal's modes
        self._paste_off: Callable[[], None] = lambda: None
        self._obeyed: dict[str, Callable[[], None]] = {}  # by the key; empty while nothing is listened to
        self._reader: _Reader | None = None

    def take_typed(self) -> str:
        """The text that waits, which is forgotten here."""
        typed, self._typed = self._typed, ""
        return typed.strip("\n")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Keep the terminal from echoing, for the whole of a chat. Line editing has modes of its own."""
        if sys.platform == "win32" or not on_terminal():
            yield
            return
        import termios

        self._before = termios.tcgetattr(sys.stdin)
        self.active = True
        stops = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
        handlers = {number: signal.signal(number, self._step_aside) for number in stops}
        self._keep_paste_marked()
        self._silence()
        try:
            yield
        finally:
            self.active = False
            self._restore()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def listening(self, obeyed: dict[str, Callable[[], None]]) -> Iterator[None]:
        """Hear what is typed. `obeyed`: what to do on a key, by the names `escape` and `c-t`."""
        if not self.active:
            yield
            return
        self._obeyed = obeyed
        self._start()
        try:
            yield
        finally:
            self._stop()
            self._obeyed = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question that is asked in between."""
        heard = self._reader is not None
        if self.active:
            self._stop()
            self._restore()
        try:
            yield
        finally:
            if self.active:
                self._silence()
                if heard:
                    self._start()

    # -- modes ----------------------------------------------------------------------------------------

    def _silence(self) -> None:
        """No echo, and keys as they come; Ctrl-C and Ctrl-Z stay signals."""
        import termios

        modes = [*self._before]
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        modes[6] = [*modes[6]]
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        self._change(modes)

    def _restore(self) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone, and is told nothing more
            self._paste_off()
        self._change(self._before)

    def _change(self, modes: list[Any]) -> None:
        import termios

        try:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, modes)
        except termios.error:  # the terminal is gone, and this program with it
            self.active = False

    def _step_aside(self, number: int, _frame: FrameType | None) -> None:
        """Give the terminal back before the program ends or stops; after Ctrl-Z and `fg` take it again."""
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._step_aside)
        if self.active:
            self._silence()

    def _keep_paste_marked(self) -> None:
        """Let the terminal mark what is pasted during answers too: line editing would switch that off."""
        from prompt_toolkit.application import get_app_session

        if not takes_escapes(sys.stdout):
            return
        output: Any = get_app_session().output
        switch_off = type(output).disable_bracketed_paste
        output.disable_bracketed_paste = lambda: None

        def paste_off() -> None:
            switch_off(output)
            output.flush()

        self._paste_off = paste_off

    # -- keys -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        from prompt_toolkit.application import get_app_session
        from prompt_toolkit.input.typeahead import get_typeahead

        # Line editing may have read more than its line: lines that a terminal did not mark as pasted.
        self._hear(get_typeahead(get_app_session().input))
        self._reader = _Reader(self._hear)
        self._reader.start()

    def _stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _hear(self, pressed: list[KeyPress]) -> None:
        """Take the keys of one read."""
        from prompt_toolkit.keys import Keys

        keys = iter(pressed)
        for each in keys:
            match each.key:
                case Keys.Escape:
                    # With another key right after it, it is that key with Alt; Alt-Enter alone counts.
                    follows = next(keys, None)
                    if follows is None:
                        self._obey("escape")
                    elif follows.key in (Keys.ControlM, Keys.ControlJ):
                        self._typed += "\n"
                case Keys.ControlT:
                    self._obey("c-t")
                case Keys.BracketedPaste:
                    self._typed += each.data.replace("\r\n", "\n").replace("\r", "\n")
                case Keys.ControlM | Keys.ControlJ:
                    self._typed += "\n"
                case Keys.ControlH:  # also what Backspace sends
                    self._typed = self._typed[:-1]
                case Keys.ControlU:
                    self._typed = ""
                case Keys():
                    pass
                case str(text):
                    self._typed += text

    def _obey(self, key: str) -> None:
        if (do := self._obeyed.get(key)) is not None:
            do()


class _Reader(threading.Thread):
    """Reads keys until it is stopped."""

    def __init__(self, hear: Callable[[list[KeyPress]], None]) -> None:
        super().__init__(name="localagent-keyboard", daemon=True)
        self._hear = hear
        self._wake, self._stopped = os.pipe()

    def stop(self) -> None:
        """Return when nothing more is read."""
        os.close(self._stopped)
        self.join()
        os.close(self._wake)

    def run(self) -> None:
        """Read and parse, as line editing would."""
        from prompt_toolkit.input.vt100_parser import Vt100Parser

        pressed: list[KeyPress] = []
        parser = Vt100Parser(pressed.append)
        text = codecs.getincrementaldecoder("utf-8")("replace")
        descriptor = sys.stdin.fileno()
        half = False  # a key's code may not be complete
        while True:
            ready = select([descriptor, self._wake], [], [], _SOON if half else None)[0]
            if self._wake in ready:
                break
            if ready:
                data = os.read(descriptor, 4096)
                if not data:
                    break
                parser.feed(text.decode(data))
            else:
                parser.flush()
            half = bool(ready)
            self._hear(pressed[:])
            pressed.clear()
        parser.flush()
        self._hear(pressed)
