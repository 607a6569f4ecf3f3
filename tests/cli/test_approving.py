"""Questions about calls, without a terminal: what is shown, and what may be edited."""

from __future__ import annotations

import errno
import json
import sys
import threading
from dataclasses import replace

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from localagent.agent import Allow, ApprovalRequest, Deny, Edit
from localagent.cli import approving
from localagent.cli.permissions import Permissions
from localagent.messages import ToolCallPart
from localagent.toolbox.files import files
from localagent.tools import tool

HIDDEN = "a\u202eb\u200bc\u2028d\x1b\x07\U000e0041"


@tool(name="keep.it", side_effects=True)
def keep_it(text: str) -> str:
    """Keep a text."""
    return text


@pytest.fixture
def asked(monkeypatch):
    """Answers questions with what is put into the list; what was asked is the result."""

    def ask(arguments, *answers, changed=False):
        shown = []
        waiting = list(answers)

        def typed(question, default=""):
            shown.append(question + default)
            return default if waiting[0] is None and waiting.pop(0) is None else waiting.pop(0)

        def pressed(question, keys):
            shown.append(question)
            return waiting.pop(0)

        monkeypatch.setattr(approving, "_pressed", pressed)
        monkeypatch.setattr(approving, "on_terminal", lambda: True)
        monkeypatch.setattr(approving, "_forget_typed", lambda: None)
        monkeypatch.setattr(approving, "_typed", typed)
        approver = approving.TerminalApprover(shown.append, lambda: None)
        call = ToolCallPart(id="c1", name="keep_it", arguments=arguments)
        return approver([ApprovalRequest(call, keep_it, changed)]), shown

    return ask


def test_all_of_a_call_is_shown_and_nothing_is_hidden(asked):
    text = HIDDEN + "long " * 20_000 + "end\nmay it run? rm()"
    decisions, shown = asked({"text": text}, "y")
    assert decisions == [Allow()]
    call, below, question = shown
    assert call == "may it run? keep.it(text: 2 lines)"
    assert all(line.isprintable() for line in below.split("\n"))
    assert below.startswith("text:\n│ a\\u202eb")
    assert below.endswith("end\n│ may it run? rm()"), "no line can pass for a question"
    assert len(below) > len(text)
    assert question.startswith("keep.it: ")  # the call itself has left the screen by now


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"text": "x" * 80}, [f'may it run? keep.it(text="{"x" * 80}")']),
        ({"text": "x" * 81}, ["may it run? keep.it(text: 1 lines)", "text:\n│ " + "x" * 81]),
        (
            {"text": "a\n\nb\n", "how": 3, "more\t": "\n"},
            ["may it run? keep.it(how=3, text: 3 lines, more\t: 1 lines)", "text:\n│ a\n│ \n│ b\n│ ", "more\\t:\n│ \n│ "],
        ),
    ],
)  # fmt: skip
def test_long_arguments_stand_below_the_call(asked, arguments, shown):
    assert asked(arguments, "y")[1][:-1] == shown


def test_what_is_edited_hides_nothing_either(asked):
    [decision], shown = asked({"text": HIDDEN}, "e", None)
    assert decision == Edit({"text": HIDDEN})
    assert shown[-1].isprintable()
    assert json.loads(shown[-1].removeprefix("arguments: ")) == {"text": HIDDEN}


def test_a_tool_that_changed_since_it_was_allowed_is_said(asked):
    _, shown = asked({"text": "a"}, "y", changed=True)
    assert shown[0] == "keep.it has changed since you answered 'always'"
    assert shown[1].startswith("may it run? keep.it(")


@tool(name="add", side_effects=True)
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@pytest.fixture
def terminal(monkeypatch):
    """An approver whose user answers what is put into the list; an exception is what happens meanwhile."""

    def make(*answers, on_terminal=True):
        shown, waiting = [], list(answers)
        stop = threading.Event()

        def typed(question, default=""):
            shown.append((question, default))
            answer = waiting.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        def pressed(question, keys):
            return typed(question)

        monkeypatch.setattr(approving, "_pressed", pressed)
        monkeypatch.setattr(approving, "on_terminal", lambda: on_terminal)
        monkeypatch.setattr(approving, "_typed", typed)
        approver = approving.TerminalApprover(shown.append, lambda: stop)

        def ask(*calls):
            parts = [ToolCallPart(id=str(at), name="add", arguments=call) for at, call in enumerate(calls)]
            decisions = approver([ApprovalRequest(part, add, False) for part in parts])
            assert waiting == [], "an answer was not asked for"
            return decisions, shown, stop.is_set()

        return ask

    return make


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("y", Allow()), ("n", Deny()), ("a", Allow(always=True)), ("v", Deny(always=True)),
    ],
)  # fmt: skip
def test_an_answer_is_a_decision(terminal, answer, decision):
    decisions, shown, stopped = terminal(answer)({"a": 1})
    assert decisions == [decision]
    assert shown == ["may it run? add(a=1)", ("add: [y]es [n]o [a]lways ne[v]er [e]dit [s]top ", "")]
    assert not stopped


def test_anything_else_is_no_answer(terminal):
    decisions, shown, _ = terminal("?", "n")({"a": 1})
    assert decisions == [Deny()]
    assert shown[2].startswith("y runs it, n does not, ")
    assert shown[3] == shown[1], "it is asked again"


def test_calls_are_asked_about_one_by_one(terminal):
    decisions, shown, _ = terminal("y", "n", "a")({"a": 1}, {"a": 2}, {"a": 3})
    assert decisions == [Allow(), Deny(), Allow(always=True)]
    assert [text for text in shown if isinstance(text, str)] == [
        "may it run (1 of 3)? add(a=1)", "may it run (2 of 3)? add(a=2)", "may it run (3 of 3)? add(a=3)",
    ]  # fmt: skip


def test_n7_a_key_that_is_held_answers_one_question_and_no_other(monkeypatch):
    monkeypatch.setattr(approving, "on_terminal", lambda: True)
    calls = [ToolCallPart(id=str(at), name="add", arguments={"a": at}) for at in range(3)]
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        asked = []

        def say(text: str) -> None:
            if text.startswith("may it run"):  # the keys come together, while the first question is shown
                asked.append(text)
                threading.Timer(0.3, keys.send_text, ["yyy" if len(asked) == 1 else "n"]).start()

        approver = approving.TerminalApprover(say, lambda: None)
        decisions = approver([ApprovalRequest(call, add, False) for call in calls])
    assert decisions == [Allow(), Deny(), Deny()]


@pytest.mark.parametrize(
    ("keys", "pressed"),
    [
        ("y", "y"), ("Y", "y"), ("?", "?"), ("\r", "?"), ("xzv", "v"), ("\x1b[200~yes\x1b[201~n", "n"),
        ("s", "s"), ("a", "a"), ("E", "e"),
    ],
)  # fmt: skip
def test_a_key_of_the_question_answers_it_and_no_other(monkeypatch, keys, pressed):
    monkeypatch.setattr(approving, "_forget_typed", lambda: None)  # else what is there already would go
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        assert approving._pressed("may it? ", approving.WORDS) == pressed


@pytest.mark.parametrize("plain", [True, False])
def test_a_question_is_harmless_on_any_terminal(monkeypatch, plain):
    """Where a terminal takes no sequences, prompt_toolkit must not write any either."""
    import prompt_toolkit

    made = []

    class Session:
        def __init__(self, **options):
            self.options = options
            made.append(self)

        def prompt(self, question, **options):
            self.options |= {"question": question, **options}
            return "typed"

    output = object() if plain else None
    monkeypatch.setattr(prompt_toolkit, "PromptSession", Session)
    monkeypatch.setattr(approving, "typing_output", lambda: output)
    monkeypatch.setattr(approving, "_forget_typed", lambda: made.append("forgotten"))
    assert approving._typed("a\x1b: ", "b") == "typed"
    assert made.pop().options == {
        "output": output, "question": "a\\x1b: ", "default": "b", "enable_open_in_editor": True,
    }  # fmt: skip
    assert approving._pressed("a\x1b? ", "yn") == "typed"
    session, forgotten = made
    assert forgotten == "forgotten", "what was typed before"
    assert (session.options["output"], session.options["question"]) == (output, "a\\x1b? ")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no termios")
def test_keys_that_came_before_a_question_are_dropped(monkeypatch):
    import termios

    from prompt_toolkit.input import typeahead

    flushed = []
    monkeypatch.setattr("termios.tcflush", lambda stream, queue: flushed.append((stream, queue)))
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        typeahead.store_typeahead(pipe, ["a key"])
        approving._forget_typed()
        assert typeahead.get_typeahead(pipe) == []
    assert flushed == [(sys.stdin, termios.TCIFLUSH)]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTTY, "it is no terminal")

    monkeypatch.setattr("termios.tcflush", refuse)
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        approving._forget_typed()


@pytest.mark.parametrize("end", ["s", KeyboardInterrupt(), EOFError()])
def test_stopping_denies_what_is_left_and_ends_the_answer(terminal, end):
    decisions, _, stopped = terminal("y", end)({"a": 1}, {"a": 2}, {"a": 3}, {"a": 4})
    assert decisions == [Allow(), approving.STOPPED, approving.STOPPED, approving.STOPPED]
    assert stopped


def test_stopping_where_no_answer_is_running(monkeypatch):
    monkeypatch.setattr(approving, "on_terminal", lambda: True)
    monkeypatch.setattr(approving, "_forget_typed", lambda: None)
    monkeypatch.setattr(approving, "_pressed", lambda *_: "s")
    approver = approving.TerminalApprover(lambda _: None, lambda: None)
    call = ToolCallPart(id="c", name="add", arguments={"a": 1})
    assert approver([ApprovalRequest(call, add, False)]) == [approving.STOPPED]


def test_nobody_is_asked_in_a_pipe(terminal):
    decisions, shown, stopped = terminal(on_terminal=False)({"a": 1}, {"a": 2})
    assert decisions == [Deny("nobody is here to approve it: --allow add lets it run")] * 2
    assert (shown, stopped) == ([], False)


def test_arguments_are_edited_until_they_fit(terminal):
    decisions, shown, _ = terminal("e", '{"a": "x"}', "{", '{"a": 2}')({"a": 1, "b": 5})
    assert decisions == [Edit({"a": 2})]
    edits = [each for each in shown if each[0] == "arguments: "]
    assert [default for _, default in edits] == ['{"a": 1, "b": 5}', '{"a": "x"}', "{"], (
        "nothing typed is lost"
    )
    refusals = [each for each in shown if isinstance(each, str) and each.startswith("these do not fit: ")]
    assert len(refusals) == 2
    assert all(each.endswith("; leave the line empty to go back") and "\n" not in each for each in refusals)


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_line_goes_back_to_the_question(terminal, empty):
    decisions, shown, _ = terminal("e", empty, "y")({"a": 1})
    assert decisions == [Allow()]
    assert shown[1] == shown[-1]


# A change to a file, and "always" that is kept


@pytest.fixture
def decide(monkeypatch, tmp_path, capsys):
    """Presses these keys for a call of `write_file` below a folder; the decision, and what was shown."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(approving, "on_terminal", lambda: True)
    monkeypatch.setattr(approving, "_forget_typed", lambda: None)

    def ask(keys, path="plan.txt", content="red\nnew\n", folder=root, tool=None):
        waiting, questions, notes = list(keys), [], []

        def pressed(question, _):
            questions.append(question)
            return waiting.pop(0)

        monkeypatch.setattr(approving, "_pressed", pressed)
        tool = tool or files(folder, write=True)[-1]
        approver = approving.TerminalApprover(notes.append, lambda: None, Permissions(folder))
        call = ToolCallPart(id="c", name=tool.name, arguments={"path": path, "content": content})
        [decision] = approver([ApprovalRequest(call, tool, False)])
        assert waiting == []
        return decision, notes, capsys.readouterr().out, questions

    ask.root = root
    return ask


def test_n7_a_change_to_a_file_is_a_diff(decide):
    (decide.root / "plan.txt").write_text("red\nold\nlast")
    _, notes, shown, _ = decide("y")
    assert notes == ['may it run? write_file(path="plan.txt", content: 2 lines)']
    assert shown == (
        "--- plan.txt\n+++ plan.txt\n@@ -1,3 +1,2 @@\n red\n-old\n-last\n\\ No newline at end of file\n+new\n"
    )


def test_n7_a_new_file_is_a_diff_too_and_hides_nothing(decide):
    _, _, shown, _ = decide("y", content="red\u202e\x1b[2J\n\0no newline\n")
    assert shown.splitlines()[3:] == ["+red\\u202e\\u001b[2J", "+\\u0000no newline"]


def test_n7_what_is_no_text_file_is_shown_as_it_is_written(decide):
    (decide.root / "plan.txt").write_bytes(b"\0\xff")
    _, notes, shown, _ = decide("y")
    assert (notes[1:], shown) == (["content:\n│ red\n│ new\n│ "], "")


def test_n7_always_is_kept_for_a_folder_on_request(decide, tmp_path):
    assert decide("an")[0] == Allow(always=True)
    assert decide("y")[3], "no was the answer to keeping it"
    decision, _, _, questions = decide("ay")
    assert decision == Allow(always=True)
    assert questions[1] == f"in later chats in {decide.root} too? [y]es [n]o "
    decision, notes, _, questions = decide("")
    assert (decision, questions) == (Allow(always=True), [])
    assert notes[0].startswith(f"(write_file is allowed in {decide.root}: see {tmp_path}")
    other = tmp_path / "other"
    other.mkdir()
    assert decide("n", folder=other)[0] == Deny(), "in another folder it asks"
    changed = replace(files(decide.root, write=True)[-1], description="Write elsewhere.")
    decision, notes, _, _ = decide("n", tool=changed)
    assert (decision, notes[0]) == (Deny(), "write_file has changed since you answered 'always'")


def test_n7_what_cannot_be_kept_is_allowed_until_the_end(decide, tmp_path):
    (tmp_path / "home").write_text("no folder")
    decision, notes, _, _ = decide("ay")
    assert decision == Allow(always=True)
    assert notes[-1].startswith("localagent: cannot write to ")
    assert notes[-1].endswith("; it is allowed until you leave")


def test_n7_a_full_disk_is_named_with_the_file(decide, tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("localagent.files.jsonl.os.write", full)
    decision, notes, _, _ = decide("ay")
    assert decision == Allow(always=True)
    assert f"{tmp_path / 'home' / 'permissions.jsonl'}" in notes[-1]
    assert "No space left on device" in notes[-1]


def test_n7_a_line_that_is_no_permission_allows_nothing(decide, tmp_path):
    decide("ay")
    file = tmp_path / "home" / "permissions.jsonl"
    said = json.loads(file.read_text())
    for line in ("[]", "null", "{", json.dumps({**said, "mark": "x"}), json.dumps({**said, "folder": "/"})):
        file.write_text(line + "\n")
        assert decide("n")[0] == Deny()


def test_a_permission_is_a_line_that_others_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "new" / "home"))
    monkeypatch.chdir(tmp_path)
    permissions = Permissions(tmp_path / "x" / "..")
    assert (permissions.folder, permissions.file) == (
        tmp_path,
        tmp_path / "new" / "home" / "permissions.jsonl",
    )
    assert not permissions.allows(add)
    assert not permissions.has_changed(add), "nothing was allowed"
    permissions.allow(add)
    permissions.allow(keep_it)
    first, second = (json.loads(line) for line in permissions.file.read_text().splitlines())
    assert (first["folder"], first["tool"], second["tool"]) == (str(tmp_path), "add", "keep.it")
    assert first["mark"] != second["mark"]
    if sys.platform != "win32":
        assert permissions.file.parent.stat().st_mode & 0o777 == 0o700
        assert permissions.file.stat().st_mode & 0o777 == 0o600
    assert permissions.allows(add)
    for how in (
        {"description": "Other."},
        {"side_effects": False},
        {"origin": keep_it.origin},
        {"kind": "other"},
    ):
        changed = replace(add, **how)
        assert (permissions.allows(changed), permissions.has_changed(changed)) == (False, True), how
    assert not Permissions(tmp_path / "new").allows(add)
    assert Permissions(tmp_path, tmp_path / "own").file == tmp_path / "own"
