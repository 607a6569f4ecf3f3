"""Keys while an answer runs, in a real terminal: what is typed waits, two keys are obeyed, and the terminal is as before."""

from __future__ import annotations

import json
import os
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

ROOT = str(Path(__file__).parents[2])

READY = "\x1b[?2004h"  # line editing marks what is pasted
PASTED = "\x1b[200~{}\x1b[201~"
LONG = "It goes on and on. " * 10


@pytest.fixture
def slow(localagent):
    """A chat with a model that writes these outputs slowly; without, with lfm2-nano, as slow in thinking."""
    children = []

    def start(*outputs, arguments=(), **environment):
        if outputs:
            environment["SLOW_OUTPUTS"] = json.dumps(outputs)
        child = pexpect.spawn(
            sys.executable, ["-m", "tests.cli.slow_program", "chat", "--no-save", *arguments],
            env={**localagent.environment, "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
            encoding="utf-8", timeout=30, dimensions=(40, 120), cwd=ROOT,
        )  # fmt: skip
        children.append(child)
        child.expect_exact("/help tells more.")
        child.expect_exact(READY)
        return child

    yield start
    for child in children:
        child.close(force=True)


def ask(child, text="Go."):
    child.send(text)
    child.expect_exact(text)
    child.send("\r")
    child.expect_exact("\r\n")


def leave(child):
    child.send("\x03/exit\r")
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_what_is_typed_during_an_answer_is_not_echoed_and_waits_in_the_next_prompt(slow):
    child = slow(LONG, "Second.")
    ask(child)
    child.expect_exact("It goes")
    child.send("my next question\rand more\x7f\x7f\x7f\x7f!")
    child.expect_exact(READY)
    assert "question" not in child.before, "nothing is echoed into the answer"
    child.expect_exact("my next question")
    child.expect_exact("and !")
    assert "Second." not in child.before, "and nothing is sent unseen"
    child.send("\r")
    child.expect_exact("Second.")
    child.expect_exact(READY)
    ask(child, "/history")
    child.expect_exact("user: my next question\r\nand !")
    assert leave(child) == 0


def test_what_is_pasted_during_an_answer_becomes_no_turn(slow):
    child = slow(LONG, "Second.")
    ask(child)
    child.expect_exact("It goes")
    child.send(
        PASTED.format("one\rtwo\x1b\x14\rthree")
    )  # with keys in it that would mean something if pressed
    child.expect_exact(READY)
    assert "(stopped)" not in child.before
    assert "two" not in child.before
    assert "\x1b[?2004l" not in child.before, "the terminal still marks what is pasted"
    child.expect_exact("one")
    child.expect_exact("three")
    child.send("\r")
    child.expect_exact("Second.")
    child.expect_exact(READY)
    ask(child, "/history")
    child.expect_exact("user: one\r\ntwo")
    assert child.before.count("user: ") == 1
    assert leave(child) == 0


def test_lines_that_a_terminal_does_not_mark_as_pasted_become_no_turns_either(slow):
    child = slow(LONG, "Second.")
    child.send("one\rtwo\rthree\r")
    child.expect_exact("It goes")
    child.expect_exact(READY)
    child.expect_exact("two")
    child.expect_exact("three")
    with pytest.raises(pexpect.TIMEOUT):
        child.expect_exact("Second.", timeout=0.5)
    assert leave(child) == 0


def test_escape_ends_the_thinking_and_the_answer_follows(slow):
    system = ("--model", "lfm2-nano", "--threads", "1", "--temperature", "0", "--max-tokens", "60")
    child = slow(arguments=(*system, "--system", "Think before you answer."), SLOW_SECONDS="0.3")
    ask(child, "What is the weather in Paris?")
    child.expect_exact("The")
    child.send("\x1b")
    child.expect_exact(READY)
    ended = child.before
    assert "get_weather." not in ended, "the thought, which is `The user needs get_weather.`, was cut"
    assert "(stopped)" not in ended
    ask(child, "/history")
    child.expect_exact("assistant: ")
    assert leave(child) == 0


def test_ctrl_c_stops_the_answer_while_keys_are_heard(slow):
    child = slow(LONG * 5)
    ask(child)
    child.expect_exact("It goes")
    child.send("kept")
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact(READY)
    child.expect_exact("kept")
    assert leave(child) == 0


@pytest.mark.parametrize("end", ["exit", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back_whatever_ends_the_chat(slow, end):
    child = slow(LONG * 5)
    ask(child)
    child.expect_exact("It goes")
    assert not echoes(child)
    if end == "exit":
        child.sendintr()
        child.expect_exact("(stopped)")
        child.expect_exact(READY)
        assert leave(child) == 0
    else:
        os.kill(child.pid, end)
        child.expect(pexpect.EOF)
    assert child.before.rstrip().endswith("\x1b[?2004l") or end == "exit"


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
        "bash", ["--norc", "-i"], env={**environment, "PS1": "READY> "}, encoding="utf-8", timeout=30,
        dimensions=(40, 120), cwd=ROOT,
    )  # fmt: skip
    shell.sendline(f"{sys.executable} -m tests.cli.slow_program chat --no-save")
    shell.expect_exact("/help tells more.")
    shell.expect_exact(READY)
    ask(shell)
    shell.expect_exact("It goes")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("stty -a | tr ';' '\\n' | grep -w echo; fg")
    shell.expect_exact(" echo ")
    shell.expect_exact("goes on")
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
