"""Tools on the command line run when a person or a rule allows it, in a pipe and in a terminal; on lfm2-nano."""

from __future__ import annotations

import json
import sys

import pytest

from localagent.session import SessionStore
from localagent.toolbox import SHIPPED
from tests.cli.conftest import COMMAND

NANO = ("--model", "lfm2-nano", "--temperature", "0", "--threads", "1")
QUESTION = "Read the file plan.txt."


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "plan.txt").write_text("red fox\n")
    (folder / "other.txt").write_text("blue bird\n")
    return folder


def test_a_tool_is_called_on_the_way_to_an_answer(localagent, root):
    done = localagent("run", QUESTION, *NANO, "--tools", "files", "--root", str(root))
    assert (done.returncode, done.stdout) == (0, b"The result is red fox.\n")
    assert done.stderr.decode() == 'call read_file(path="plan.txt")\nread_file: red fox\n'


def test_where_nobody_can_be_asked_nothing_is_run(localagent, root):
    options = ("--tools", "files", "--root", str(root), "--ask", "*")
    done = localagent("run", QUESTION, *NANO, *options)
    notes = done.stderr.decode()
    assert "read_file: failed: Denied: nobody is here" in notes
    assert "--allow read_file lets it run" in notes
    assert "red fox" not in notes + done.stdout.decode()
    done = localagent("run", QUESTION, *NANO, *options, "--allow", "read_*")
    assert done.stdout == b"The result is red fox.\n"
    done = localagent("run", QUESTION, *NANO, *options, "--allow", "read_*", "--deny", "*")
    assert b"red fox" not in done.stderr + done.stdout


def test_a_chat_in_a_pipe(localagent, root, tmp_path):
    options = (*NANO, "--tools", "files", "--root", str(root))
    done = localagent("chat", *options, stdin=f"/tools\n{QUESTION}\n/history\n".encode())
    notes = done.stderr.decode()
    assert "\nread_file: Read a text file" in notes
    assert done.stdout == b"The result is red fox.\n"
    assert 'read_file(path="plan.txt")' in notes
    assert "tool: red fox" in notes
    session = SessionStore(tmp_path / "localagent" / "sessions").open("last")
    assert [message.role for message in session.context()] == [
        "custom",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    again = localagent("chat", *options, "--resume", "last", stdin=f"{QUESTION}\n".encode())
    assert again.stdout == b"The result is red fox.\n"


def test_the_tools_that_there_are(localagent):
    shown = localagent("tools").stdout.decode()
    assert "write_file(path, content) (asks)" in shown
    assert "\n  read_file(path, first_line" in shown
    heads = [line.split(maxsplit=1) for line in shown.splitlines() if not line.startswith(" ")]
    assert heads == [[name, entry.description] for name, entry in SHIPPED.items()]
    schemas = json.loads(localagent("tools", "--json").stdout)
    assert schemas["calculator"][0]["function"]["name"] == "calculate"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tools", "time,sing"], "no tools called 'sing'"),
        (["--tools", "files", "--root", "/nowhere"], "/nowhere"),
        (["--mcp", "/nowhere/mcp.json"], "/nowhere/mcp.json"),
        (
            ["--tools", "files", "--deny", "raed_*"],
            "--deny raed_* fits none of the tools: list_files, read_file",
        ),
        (["--allow", "write_file"], "--allow write_file fits none of the tools: none"),
    ],
)
@pytest.mark.parametrize("command", [("run", "Hi."), ("chat",)])
def test_what_cannot_be_had(localagent, command, options, says):
    localagent.refuse(*command, *NANO, *options, code=2, says=says)


def test_two_calls_of_a_tool_are_told_apart(localagent, root):
    done = localagent("run", TWO, *NANO, "--tools", "files", "--root", str(root))
    notes = sorted(done.stderr.decode().splitlines())
    assert 'read_file(path="other.txt"): blue bird' in notes
    assert 'read_file(path="plan.txt"): red fox' in notes


def test_json_is_the_answer_and_the_notes_stay_beside_it(localagent, root):
    options = ("--tools", "files", "--root", str(root), "--json")
    done = localagent("run", QUESTION, *NANO, *options)
    assert json.loads(done.stdout)["content"] == [{"kind": "text", "text": "The result is red fox."}]
    assert done.stderr.decode() == 'call read_file(path="plan.txt")\nread_file: red fox\n'
    assert (
        b"--allow read_file lets it run" in localagent("run", QUESTION, *NANO, *options, "--ask", "*").stderr
    )


# -- in a terminal ----------------------------------------------------------------------------------------

if sys.platform != "win32":
    import pexpect

READY = "\x1b[?2004h"  # line editing switches bracketed paste on
CHOICES = "read_file: [y]es [n]o [a]lways ne[v]er [e]dit [s]top"
TWO = "Read the file plan.txt. Also: Read the file other.txt."


def terminal(localagent, root, *arguments):
    if sys.platform == "win32":
        pytest.skip("pseudo-terminals are Unix")
    return pexpect.spawn(
        str(COMMAND),
        [*arguments, *NANO, "--tools", "files", "--root", str(root), "--ask", "*"],
        env={**localagent.environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
        encoding="utf-8",
        timeout=120,
        dimensions=(40, 160),
    )


@pytest.fixture
def chat(localagent, root):
    child = terminal(localagent, root, "chat")
    child.expect("lfm2-nano, .* tokens of context")
    child.expect_exact(READY)
    yield child
    if child.isalive():
        child.terminate(force=True)


def ask(child, text: str = QUESTION) -> None:
    answer(child, text)
    child.expect_exact('may it run? read_file(path="plan.txt")')
    child.expect_exact(CHOICES)


def answer(child, text: str) -> None:
    child.send(text)
    child.expect_exact(text)
    child.send("\r")


def test_yes_no_and_always(chat):
    ask(chat)
    chat.send("xqu\x1b[200~y\x1b[201~?")  # keys that mean nothing, and a text that was pasted
    chat.expect_exact("y runs it, n does not")
    chat.expect_exact(CHOICES)
    chat.send("n")
    chat.expect_exact("Denied by the user")
    chat.expect_exact(READY)
    ask(chat)
    chat.send("y")
    chat.expect_exact("The result is red fox.")
    chat.expect_exact(READY)
    ask(chat)
    chat.send("a")
    chat.expect_exact("The result is red fox.")
    chat.expect_exact(READY)
    answer(chat, QUESTION)
    assert chat.expect_exact(["The result is red fox.", CHOICES]) == 0


def test_edited_arguments_are_checked_and_the_model_is_told(chat):
    ask(chat)
    chat.send("e")
    chat.expect_exact('{"path": "plan.txt"}')
    chat.send("\x01\x0b")  # to the beginning, and away with it
    answer(chat, '{"way": "other.txt"}')
    chat.expect_exact("these do not fit: ")
    chat.expect_exact(READY)
    chat.send("\x01\x0b")
    answer(chat, '{"path": "other.txt"}')
    chat.expect_exact('(The user changed the arguments to: path="other.txt") blue bird')
    chat.expect_exact(READY)


@pytest.mark.parametrize("key", ["s", "S", "\x03", "\x04"])
def test_stopping_at_the_question(chat, key):
    ask(chat)
    chat.send(key)
    chat.expect_exact("(stopped)")
    chat.expect_exact(READY)
    answer(chat, "/history")
    chat.expect_exact("tool: Denied: the run was stopped. The call was not run.")
    chat.expect_exact(READY)
    ask(chat)
    chat.send("y")
    chat.expect_exact("The result is red fox.")


def test_what_was_typed_before_the_question_answers_nothing(chat):
    chat.send(f"{QUESTION}\ry\r")
    chat.expect_exact(CHOICES)
    chat.send("n")
    assert chat.expect_exact(["Denied by the user", "red fox"]) == 0


def test_a_decision_for_each_of_two_calls(chat):
    answer(chat, TWO)
    chat.expect_exact('(1 of 2)? read_file(path="plan.txt")')
    chat.expect_exact(CHOICES)
    chat.send("n")
    chat.expect_exact('(2 of 2)? read_file(path="other.txt")')
    chat.expect_exact(CHOICES)
    chat.send("y")
    chat.expect_exact('read_file(path="plan.txt"): failed: Denied by the user')
    chat.expect_exact('read_file(path="other.txt"): blue bird')


def test_a_run_that_the_user_stops_has_no_success(localagent, root):
    child = terminal(localagent, root, "run", QUESTION)
    child.expect_exact(CHOICES)
    child.send("s")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_where_a_session_is_kept_is_said_on_a_line_of_its_own(chat):
    answer(chat, "Sing.")
    chat.expect(r"[\r\n](\x1b\[[0-9;?]*[A-Za-z])*\(saved in ")
