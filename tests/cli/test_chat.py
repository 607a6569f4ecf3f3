"""`localagent chat` in a pseudo-terminal, as a person uses it, and in a pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are Unix", allow_module_level=True)

import pexpect

from localagent.session import SessionStore
from tests.cli.conftest import COMMAND

READY = "\x1b[?2004h"  # line editing switches bracketed paste on


@pytest.fixture
def chat(localagent):
    child = pexpect.spawn(
        str(COMMAND),
        ["chat", "--temperature", "0", "--max-tokens", "400"],
        env={**localagent.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},  # nobody here reports the cursor
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 160),
    )
    child.expect("smollm2-135m, .* tokens of context")
    child.expect_exact(READY)
    yield child
    if child.isalive():
        child.terminate(force=True)


def ask(child, text: str) -> None:
    child.send(text)
    child.expect_exact(text)
    child.send("\r")


def left(child) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_a_chat_answers_shows_its_history_and_begins_anew(chat):
    ask(chat, "Say hello.")
    chat.expect("[Hh]ello")
    chat.expect_exact(READY)
    ask(chat, "/history")
    chat.expect_exact("user: Say hello.")
    chat.expect("assistant: .*[Hh]ello")
    chat.expect_exact(READY)
    ask(chat, "/clear")
    chat.expect_exact("(a new conversation)")
    chat.expect_exact(READY)
    ask(chat, "/exit")
    assert left(chat) == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(chat):
    ask(chat, "Write a long story about a fox and a bear.")
    chat.expect_exact("\r\n")  # the line is taken
    chat.expect("[A-Z][a-z]+ [a-z]+ [a-z]+ [a-z]+")  # and not only the line that says what is waited for
    chat.sendintr()
    chat.expect_exact("(stopped)")
    chat.expect_exact(READY)
    ask(chat, "/history")
    chat.expect_exact("assistant: ")
    chat.expect_exact(READY)
    ask(chat, "Say hello.")
    chat.expect("[Hh]ello")
    chat.expect_exact(READY)
    ask(chat, "/exit")
    assert left(chat) == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_leaves(chat):
    chat.send("never mind")
    chat.expect_exact("never mind")
    chat.sendintr()
    chat.expect_exact(READY)
    chat.sendeof()
    assert left(chat) == 0


def test_each_command_of_the_chat_does_what_help_says(chat):
    ask(chat, "/help")
    chat.expect_exact("leave (also Ctrl-D)")
    chat.expect_exact(READY)
    ask(chat, "/sing")
    chat.expect_exact("no command /sing")
    chat.expect_exact(READY)
    ask(chat, "/system Be curt.")
    chat.expect_exact("(a new conversation)")
    chat.expect_exact(READY)
    ask(chat, "/system")
    chat.expect_exact("Be curt.")


@pytest.fixture
def talk(localagent, tmp_path):
    """Says two things at the prompt and leaves; the home is the result."""
    home = tmp_path / "home"
    (tmp_path / "home").mkdir()
    (home / "models").symlink_to(tmp_path / "cache" / "localagent" / "models")

    def start(*arguments, model=("--model", "lfm2-nano", "--threads", "1")):
        child = pexpect.spawn(
            str(COMMAND), ["chat", *model, *arguments],
            env={**localagent.environment, "PROMPT_TOOLKIT_NO_CPR": "1", "LOCALAGENT_HOME": str(home)},
            timeout=60, dimensions=(40, 160),
        )  # fmt: skip
        for words in (b"SECRETWORDS one", b"SECRETWORDS \xff two"):
            child.expect_exact(READY)
            child.send(words + b"\r")
        child.expect_exact("not UTF-8 text: see character 13")
        child.expect_exact(READY)
        child.sendeof()
        assert left(child) == 0

    return home, start


def files_with(word: str, *folders) -> list:
    return [
        path for folder in folders for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes()
    ]  # fmt: skip


def test_what_is_typed_can_be_recalled_from_the_home(talk, tmp_path):
    home, start = talk
    start()
    kept = home / "chat-history"
    assert "+SECRETWORDS one" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    assert kept in files_with("SECRETWORDS", tmp_path)
    assert all(path.is_relative_to(home) for path in files_with("SECRETWORDS", tmp_path))


def test_no_save_keeps_nothing_that_is_typed(talk, tmp_path):
    _, start = talk
    start("--no-save")
    assert files_with("SECRETWORDS", tmp_path) == []


def test_no_save_leaves_what_is_kept_alone(talk):
    home, start = talk
    (home / "chat-history").write_text("\n# then\n+earlier words\n")
    start("--no-save")
    assert (home / "chat-history").read_text() == "\n# then\n+earlier words\n"


def test_a_history_that_cannot_be_kept_is_no_reason_not_to_talk(talk):
    home, start = talk
    (home / "chat-history").mkdir()
    start()


def test_a_pipe_is_a_conversation_too(localagent):
    done = localagent("chat", "--max-tokens", "8", stdin=b"Hi.\n\nAnd you?\n/history\n/exit\nnot read\n")
    assert done.returncode == 0
    notes = done.stderr.decode()
    assert notes.count("user: ") == notes.count("assistant: ") == 2
    assert done.stdout.strip()
    assert b"not read" not in done.stdout + done.stderr


def test_a_refused_turn_leaves_the_conversation(localagent):
    done = localagent(
        "chat", "--context", "80", "--max-tokens", "4",
        stdin=b"Hi.\n" + b"word " * 200 + b"\nHi.\n/history\n",
    )  # fmt: skip
    assert done.returncode == 0
    notes = done.stderr.decode()
    assert "the context window holds 80" in notes
    assert "/clear" in notes
    assert notes.count("user: ") == 2
    assert "word word" not in notes


def test_a_path_is_no_command(localagent):
    done = localagent("chat", "--max-tokens", "2", stdin=b"/etc/passwd\n/history\n")
    assert b"user: /etc/passwd" in done.stderr


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "localagent" / "sessions")


def test_what_is_said_is_kept_and_resumed(localagent, store):
    lines = b"Hi.\n/clear\nAnd you?\n"
    done = localagent("chat", "--max-tokens", "4", "--system", "Be curt.", stdin=lines)
    session = store.open("last")
    kept = f"(saved in {session.file}; continue with: localagent chat --resume {session.id})"
    assert done.stderr.decode().count(kept) == 1
    assert [entry.message.role for entry in session.entries] == [
        "system", "custom", "user", "assistant", "flush", "system", "user", "assistant",
    ]  # fmt: skip
    assert [message.text for message in session.context()][:2] == ["Be curt.", "And you?"]
    assert session.context()[2].usage.output > 0
    lines = b"/system\n/history\nMore.\n"
    notes = localagent("chat", "--max-tokens", "4", "-r", session.id[:9], stdin=lines).stderr.decode()
    assert notes.startswith(f"(continuing {session.id}: Hi.)\n")
    assert "\nBe curt.\nuser: And you?\nassistant: " in notes
    again = store.open("last")
    assert [message.role for message in again.context()] == ["system", *["user", "assistant"] * 2]
    assert (again.entries[:8], again.problems) == (session.entries, ())


def test_a_removed_session_does_not_end_the_chat(localagent, store):
    chat = subprocess.Popen(
        [COMMAND, "chat", "--max-tokens", "4"], env=localagent.environment,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    chat.stdin.write("Hi.\n/history\n")
    while not (line := chat.stderr.readline()).startswith("assistant: "):  # now the turn is kept
        assert line
    session = store.open("last")
    store.remove(session.id)
    _, notes = chat.communicate("More.\nAnd more.\n/clear\nAgain.\n/history\n", timeout=60)
    assert chat.returncode == 0
    assert notes.count(f"localagent: no session {session.id} in ") == 1
    assert notes.count("; this conversation goes on and is no longer saved\n") == 1
    assert notes.count("user: Again.") == 1
    assert list(store.root.iterdir()) == []


def test_nothing_answered_nothing_kept(localagent, store):
    localagent("chat", "--context", "80", "--max-tokens", "4", stdin=b"/help\n/clear\n" + b"word " * 200)
    localagent("chat", "--no-save", "--max-tokens", "4", stdin=b"Hi.\n")
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--resume", "nope"], "no session 'nope' in "),
        (["--resume", ""], "no session '' in "),
        (["--resume", "last"], "there are no sessions in "),
        (["--resume", "last", "--system", "Be curt."], "leave out --system"),
        (["--resume"], "requires an argument"),
    ],
)
def test_what_cannot_be_resumed(localagent, arguments, says):
    localagent.refuse("chat", *arguments, code=2, says=says, stdin=b"Hi.\n")
