"""Keys while an answer runs, in a real terminal: what is typed waits, two keys are obeyed, and the terminal is as before."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from time import sleep

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import termios

import pexpect

from localagent.cli.talk.keyboard import Keyboard
from tests.cli.terminal.screen import Terminal

ROOT = str(Path(__file__).parents[2])
PASTED = "\x1b[200~{}\x1b[201~"
LONG = "It goes on and on. " * 10


@pytest.fixture
def slow(localagent):
    """A chat with a model that writes these outputs slowly; without, with lfm2-nano, as slow in thinking."""
    terminals = []

    def start(*outputs, arguments=(), **environment):
        if outputs:
            environment["SLOW_OUTPUTS"] = json.dumps(outputs)
        command = [sys.executable, "-m", "tests.cli.slow_program", "chat", "--no-save", *arguments]
        terminal = Terminal(command, {**localagent.environment, "PYTHONPATH": ROOT, **environment}, rows=40)
        terminals.append(terminal)
        terminal.wait(r"/help tells more\.(.|\n)*^>$")
        return terminal

    yield start
    for terminal in terminals:
        terminal.__exit__()


def ask(terminal, text="Go."):
    terminal.type(text + "\r")
    terminal.wait(f"^> {re.escape(text)}$")


def leave(terminal):
    terminal.type("\x03")
    terminal.wait(r"^>\Z")
    terminal.type("/exit\r")
    return terminal.end()


def test_what_is_typed_during_an_answer_is_not_echoed_and_waits_in_the_next_prompt(slow):
    terminal = slow(LONG, "Second.")
    ask(terminal)
    terminal.wait("It goes")
    terminal.type("my next question\rand more\x7f\x7f\x7f\x7f!")
    terminal.wait("^> my next question\n *and !$")
    assert terminal.text.count("question") == 1, "nothing is echoed into the answer"
    terminal.settle()
    assert "Second." not in terminal.text, "and nothing is sent unseen"
    terminal.type("\r")
    terminal.wait(r"^Second\.\n.*cached\n>$")  # what is typed before the prompt would wait in it
    ask(terminal, "/history")
    terminal.wait("^user: my next question\nand !$")
    assert leave(terminal) == 0


def test_what_is_pasted_during_an_answer_becomes_no_turn(slow):
    terminal = slow(LONG, "Second.")
    ask(terminal)
    terminal.wait("It goes")
    terminal.type(PASTED.format("one\rtwo\x1b\x14\rthree"))  # with keys that would mean something if pressed
    terminal.wait("^> one$")
    assert terminal.text.count("two") == 1
    assert "(stopped)" not in terminal.text
    assert "\x1b[?2004l" not in terminal.written, "the terminal still marks what is pasted"
    terminal.type("\r")
    terminal.wait(r"^Second\.\n.*cached\n>$")  # what is typed before the prompt would wait in it
    ask(terminal, "/history")
    terminal.wait("^user: one\ntwo")
    assert terminal.text.count("user: ") == 2
    assert leave(terminal) == 0


def test_lines_that_a_terminal_does_not_mark_as_pasted_become_no_turns_either(slow):
    terminal = slow(LONG, "Second.")
    terminal.type("one\rtwo\rthree\r")
    terminal.wait("^> two\n *three$")
    terminal.settle()
    assert "Second." not in terminal.text
    assert leave(terminal) == 0


def test_escape_ends_the_thinking_and_the_answer_follows(slow):
    options = ("--model", "lfm2-nano", "--threads", "1", "--temperature", "0", "--max-tokens", "60")
    terminal = slow(arguments=(*options, "--system", "Think before you answer."), SLOW_SECONDS="0.3")
    ask(terminal, "What is the weather in Paris?")
    terminal.wait("(?i)thinking")
    terminal.type("\x14")  # Ctrl-T
    terminal.wait("The")
    terminal.type("\x1b")
    terminal.wait("^>$")
    assert "The user needs get_weather." not in terminal.text, "the thought was cut"
    assert "(stopped)" not in terminal.text
    ask(terminal, "/history")
    terminal.wait("^assistant: ")
    assert leave(terminal) == 0


def test_ctrl_t_shows_the_reasoning_while_it_comes(slow):
    terminal = slow("<think>" + "Paris is large. " * 8 + "</think>" + "Yes." * 20)
    ask(terminal)
    terminal.wait("(?i)thinking")
    terminal.read(0.3)
    assert "Paris" not in terminal.text
    terminal.type("\x14")
    terminal.wait("Paris is large")
    terminal.wait("Yes.")
    assert leave(terminal) == 0


def test_ctrl_c_stops_the_answer_while_keys_are_heard(slow):
    terminal = slow(LONG * 5)
    ask(terminal)
    terminal.wait("It goes")
    terminal.type("kept")
    terminal.read(0.2)
    terminal.interrupt()
    terminal.wait(r"\(stopped\)(.|\n)*^> kept$")
    assert leave(terminal) == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back_whatever_ends_the_chat(slow, end):
    terminal = slow(LONG * 5)
    ask(terminal)
    terminal.wait("It goes")
    assert not echoes(terminal._child)
    os.kill(terminal._child.pid, end)
    assert terminal.end() == -end
    assert terminal.written.rfind("\x1b[?2004l") > terminal.written.rfind("\x1b[?2004h")


def echoes(child) -> bool:
    return bool(termios.tcgetattr(child.child_fd)[3] & termios.ECHO)


def test_a_chat_that_is_stopped_and_continued_gives_the_terminal_back_meanwhile(localagent):
    """As a shell does it, with Ctrl-Z and fg."""
    environment = {
        **localagent.environment,
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "SLOW_OUTPUTS": json.dumps([LONG * 3]),
    }
    shell = pexpect.spawn(
        "bash", ["--norc", "-i"], env={**environment, "PS1": "READY> "}, encoding="utf-8", timeout=120,
        dimensions=(40, 120), cwd=ROOT,
    )  # fmt: skip
    shell.sendline(f"{sys.executable} -m tests.cli.slow_program chat --no-save")
    shell.expect_exact("/help tells more.")
    shell.expect_exact("\x1b[?2004h")
    shell.send("Go.\r")
    shell.expect_exact("It goes")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("stty -a | tr ';' '\\n' | grep -w echo; fg")
    shell.expect_exact(" echo ")
    shell.expect_exact("goes")
    sleep(0.3)
    assert not echoes(shell)
    shell.sendintr()
    shell.expect_exact("(stopped)")
    shell.close(force=True)


def test_without_a_terminal_nothing_is_listened_to():
    keyboard = Keyboard()
    with keyboard.attached(), keyboard.listening({}), keyboard.paused():
        assert not keyboard.active
    assert keyboard.take_typed() == ""
