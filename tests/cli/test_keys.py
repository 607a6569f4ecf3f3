"""Keys that are pressed while an answer is written, from a pseudo-terminal into this process: see test_keyboard for chats."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pty
import termios

from localagent.cli.talk import keyboard as module
from localagent.cli.talk.keyboard import Keyboard

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard input; `press` writes to it."""
    theirs, ours = pty.openpty()
    with open(ours, closefd=True) as stdin:  # noqa: PTH123 a descriptor
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(module, "on_terminal", lambda: True)
        monkeypatch.setattr(module, "takes_escapes", lambda _: False)
        yield SimpleNamespace(
            press=lambda keys: os.write(theirs, keys), modes=lambda: termios.tcgetattr(stdin), stdin=stdin
        )
    os.close(theirs)


def quiet(modes) -> bool:
    """Whether nothing is echoed, and keys come as they are pressed."""
    return not modes[3] & (termios.ECHO | termios.ICANON) and (
        modes[6][termios.VMIN],
        modes[6][termios.VTIME],
    ) == (1, 0)


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        (b"abc", "abc"),
        (b"a\rb\nc\n\n", "a\nb\nc"),
        (b"\n\na", "a"),
        (b"ab\x7fc\x08d", "ad"),
        (b"\x7fa", "a"),
        (b"ab\x15c", "c"),
        (b"\x1b[Aa\x01b\x1b[3~", "ab"),
        (b"a\x1b\rb\x1b\nc", "a\nb\nc"),
        (b"a\x1bbc", "ac"),
        (b"a\x1b[200~p\nq\x14\x1b\x1b[201~b", "ap\nq\x14\x1bb"),
        ("é字".encode(), "é字"),
        (b"a\xffb", "a\ufffdb"),
    ],
)
def test_what_is_typed_waits_for_the_next_prompt(terminal, keys, typed):
    heard, escaped = threading.Event(), []
    keyboard = Keyboard()
    with keyboard.attached(), keyboard.listening({"c-t": heard.set, "escape": lambda: escaped.append(1)}):
        assert keyboard.active
        terminal.press(keys + b"\x14")  # Ctrl-T: all keys before it were heard
        assert heard.wait(60)
    assert (keyboard.take_typed(), escaped) == (typed, [])
    assert keyboard.take_typed() == "", "it is taken once"


def test_escape_is_told_from_the_beginning_of_a_longer_code(terminal):
    heard, escaped = threading.Event(), threading.Event()
    keyboard = Keyboard()
    with keyboard.attached(), keyboard.listening({"c-t": heard.set, "escape": escaped.set}):
        terminal.press(b"a\x1b")
        assert escaped.wait(60)
        assert not heard.is_set()
        terminal.press("é".encode()[:1])
        terminal.press("é".encode()[1:] + b"\x14")
        assert heard.wait(60)
    assert keyboard.take_typed() == "aé"


def test_keys_that_mean_nothing_now_do_nothing(terminal):
    heard = threading.Event()
    keyboard = Keyboard()
    with keyboard.attached():
        with keyboard.listening({"escape": heard.set}):
            terminal.press(b"a\x14b\x1b")
            assert heard.wait(60)
        assert keyboard._obeyed == {}
        keyboard._obey("escape")
    assert keyboard.take_typed() == "ab"


def test_what_line_editing_has_read_too_much_is_heard(terminal):
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.input.typeahead import store_typeahead
    from prompt_toolkit.key_binding import KeyPress
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.output import DummyOutput

    keyboard = Keyboard()
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        store_typeahead(pipe, [KeyPress("x"), KeyPress(Keys.BracketedPaste, "a\r\nb\rc")])
        with keyboard.attached(), keyboard.listening({}):
            pass
    assert keyboard.take_typed() == "xa\nb\nc"


def test_the_terminal_is_given_back_as_it_was_found(terminal):
    before, handlers = terminal.modes(), [signal.getsignal(each) for each in STOPS]
    keyboard = Keyboard()
    with keyboard.attached():
        assert quiet(terminal.modes())
        assert [signal.getsignal(each) for each in STOPS] == [keyboard._step_aside] * 3
        with keyboard.listening({}), keyboard.paused():
            assert terminal.modes() == before
            assert keyboard._reader is None
        assert quiet(terminal.modes())
        with keyboard.paused():
            assert terminal.modes() == before
        assert keyboard._reader is None, "nothing was listened to"
    assert not keyboard.active
    assert terminal.modes() == before
    assert [signal.getsignal(each) for each in STOPS] == handlers


def test_keys_are_heard_again_after_a_question(terminal):
    heard = threading.Event()
    keyboard = Keyboard()
    with keyboard.attached(), keyboard.listening({"c-t": heard.set}):
        with keyboard.paused():
            pass
        terminal.press(b"a\x14")
        assert heard.wait(60)
    assert keyboard.take_typed() == "a"


@pytest.mark.parametrize("active", [True, False])
def test_before_it_is_stopped_the_terminal_is_given_back(terminal, monkeypatch, active):
    before, done = terminal.modes(), []

    def kill(process: int, number: int) -> None:
        done.append((process, number, terminal.modes()))

    keyboard = Keyboard()
    with keyboard.attached():
        keyboard.active = active
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "kill", kill)
            patch.setattr(module.signal, "signal", lambda *given: done.append(given))
            keyboard._step_aside(signal.SIGTSTP, None)
        assert done == [
            (signal.SIGTSTP, signal.SIG_DFL),
            (os.getpid(), signal.SIGTSTP, before),
            (signal.SIGTSTP, keyboard._step_aside),
        ]
        assert quiet(terminal.modes()) is active


def test_a_terminal_that_is_gone_is_told_nothing(terminal, monkeypatch):
    def refuse(*_: object) -> None:
        raise termios.error(5, "Input/output error")

    keyboard = Keyboard()
    with keyboard.attached():
        monkeypatch.setattr(termios, "tcsetattr", refuse)
        keyboard._silence()
        assert not keyboard.active
        with keyboard.listening({}):
            assert keyboard._reader is None

        def gone() -> None:
            raise OSError(5, "Input/output error")

        keyboard._paste_off = gone
        keyboard._restore()


def test_pasted_text_is_marked_until_the_end(terminal, monkeypatch):
    """Line editing switches that off after each line, and what is pasted during answers would be typed."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import DummyOutput

    done = []

    class Screen(DummyOutput):
        def disable_bracketed_paste(self) -> None:
            done.append("off")

        def flush(self) -> None:
            done.append("flush")

    for marked in (True, False):
        monkeypatch.setattr(
            module, "takes_escapes", lambda stream, marked=marked: stream is sys.stdout and marked
        )
        done.clear()
        with create_app_session(output=Screen()) as session:
            with Keyboard().attached():
                session.output.disable_bracketed_paste()
                assert done == ([] if marked else ["off"])
            assert done == (["off", "flush"] if marked else ["off"])
