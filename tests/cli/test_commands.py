"""The commands of a chat: how they are found, what they do to the conversation, and what they show; in pipes and terminals."""

from __future__ import annotations

import base64
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from localagent.agent import Agent, Allow, Approvals, Rule
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.talk import clipboard
from localagent.cli.talk.chat import Chat
from localagent.cli.talk.commands import KEYS
from localagent.cli.talk.conversation import Conversation
from localagent.cli.talk.prompt import ChatInput
from localagent.cli.talk.speaker import Speaker
from localagent.errors import EngineFailed, UsageError
from localagent.session import SessionStore
from localagent.tools import tool
from localagent.wording import one_line
from tests.agent.replaying import scripted
from tests.cli.conftest import COMMAND

if sys.platform != "win32":
    from tests.cli.terminal.screen import Terminal

NANO = ("--model", "lfm2-nano", "--threads", "1", "--temperature", "0")


@tool(side_effects=True)
def send(text: str) -> str:
    """Send a text."""
    return text


@tool
def look() -> str:
    """Look."""
    return ""


@tool
def peek() -> str:
    """Peek."""
    return ""


@pytest.fixture
def talk(monkeypatch, capsys, tmp_path):
    """A chat in which these lines are typed; what it says on stderr, a list of lines, and its parts."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))

    def run(
        *lines, outputs=("One.", "Two.", "Three.", "Four.", "Five."), save=True, resume=None, tools=(), **more
    ):
        conversation = Conversation.open(lambda _: None, system=None, resume=resume, save=save)
        model = scripted(*outputs)
        speaker = Speaker(
            model, list(tools), ModelOptions(), ToolOptions(), {}, more.get("load", lambda _: model)
        )
        speaker._approvals = more.get("approvals")
        monkeypatch.setattr(ChatInput, "lines", lambda _: iter(lines))
        chat = Chat(speaker, conversation, ExitStack(), stats=False)
        capsys.readouterr()
        chat.run()
        printed = capsys.readouterr()
        _, *notes = printed.err.splitlines()
        notes = [line for line in notes if not (save and "; continue with: " in line)]
        return SimpleNamespace(
            notes=notes, out=printed.out, conversation=conversation, speaker=speaker, chat=chat
        )

    return run


def told(conversation):
    return [f"{m.role[0]}:{m.text}" for m in conversation.messages() if m.role != "custom"]


# Finding


@pytest.mark.parametrize("line", ["exit", "Quit", "bye", " exit ", "/bye", "/EXIT", "/ex", "/q", "/exit now"])
def test_leaving(talk, line):
    assert talk(line, "Hi.").out == ""


@pytest.mark.parametrize("line", ["exit the room", "Bye!", "/exit/now", "quit?"])
def test_what_is_not_leaving_is_said(talk, line):
    assert talk(line).out == "One.\n"


@pytest.mark.parametrize("line", ["/?", "/HELP", "/he", "/", "/help me"])
def test_help(talk, line):
    said = talk(line)
    assert said.notes[0].split() == ["/help", "show", "this"]
    assert said.out == ""


def test_help_names_every_command_and_fits_a_narrow_terminal(talk, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    said = talk("/help").notes
    assert max(map(len, said)) < 60
    heads = [line.split()[0] for line in said if not line.startswith(" ")]
    for name in (
        "/retry",
        "/edit",
        "/undo",
        "/branches",
        "/model",
        "/set",
        "/think",
        "/save",
        "/copy",
        "/stats",
    ):
        assert name in heads
    assert {"Ctrl-C", "Esc", "Ctrl-T", "Ctrl-G"} < {*heads}


@pytest.mark.parametrize(("columns", "width"), [(10, 40), (60, 59), (300, 110)])
def test_help_says_all_of_each_command_beside_its_name(talk, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = []
    said = talk("/help")
    assert max(map(len, said.notes)) <= width
    for line in said.notes:
        head, text = line[:20].strip(), line[20:]
        if head:
            rows.append((head, text))
        else:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {text}")
    assert ("/copy", "copy the last answer") in rows
    table = said.chat._commands._table
    assert rows == [*((f"{each.name} {each.argument}".strip(), each.help) for each in table), *KEYS]
    if columns == 300:
        assert len(rows) == len(said.notes), "a line each"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/hlep", "localagent: no command /hlep: did you mean /help? /help lists the commands"),
        ("/retyr", "localagent: no command /retyr: did you mean /retry? /help lists the commands"),
        ("/sing", "localagent: no command /sing: /help lists the commands"),
        ("/s", "localagent: several commands begin with /s: /system, /set, /stats, /save"),
    ],
)
def test_a_command_that_is_none_says_what_was_meant_and_is_not_sent(talk, line, says):
    said = talk(line)
    assert (said.notes, said.out) == ([says], "")


def test_completion(talk):
    complete = talk().chat._complete
    assert complete("/hi") == ["/history"]
    assert complete("/think l") == ["/think low"]
    assert complete("/set top") == ["/set top_k", "/set top_p"]
    assert "/model lfm2-nano" in complete("/model lfm2-n")
    assert complete("/sing x") == complete("/help x") == []


# Going back, and other ways


def test_retry_answers_the_last_message_again_and_keeps_the_first_answer(talk):
    said = talk("Hi.", "/retry", "And?", "/retry")
    assert told(said.conversation) == ["u:Hi.", "a:Two.", "u:And?", "a:Four."]
    assert [each.answered for each in said.conversation.branches()] == ["One.", "Three.", "Four."]
    session = SessionStore().open("last")
    assert sum(e.message.role == "user" for e in session.entries) == 2, (
        "the message is asked, not said, again"
    )


def test_retry_says_when_the_answer_is_the_same(talk):
    said = talk("Hi.", "/retry", outputs=("One.",))
    assert said.notes == ["(the same answer again: try /set temperature 0.8, then /retry)"]


@pytest.mark.parametrize(("temperature", "hint"), [("0.49", True), ("0.5", False), ("default", True)])
def test_what_would_make_another_answer_is_said_where_it_would(talk, temperature, hint):
    said = talk("Hi.", f"/set temperature {temperature}", "/retry", outputs=("One.",))
    more = ": try /set temperature 0.8, then /retry" if hint else ""
    assert said.notes[1:] == [f"(the same answer again{more})"]


def test_retry_takes_another_seed(talk, monkeypatch):
    seeds = []

    def run(self, *_, **options):
        seeds.append(options.get("seed"))
        yield from real(self, *_, **options)

    real = Agent.run
    monkeypatch.setattr(Agent, "run", run)
    talk("Hi.", "/set seed 7", "/retry", "/retry")
    assert seeds == [None, 9, 10], "one more for each answer that there is"


def test_a_retry_that_fails_leaves_the_answer_that_there_was(talk, monkeypatch):
    def fail(self, *_, **__):
        raise EngineFailed("the engine died")
        yield

    real = Agent.run
    monkeypatch.setattr(
        Agent, "run", lambda self, message, **more: (fail if message is None else real)(self, message, **more)
    )
    said = talk("Hi.", "/retry")
    assert said.notes == ["localagent: the engine died"]
    assert told(said.conversation) == ["u:Hi.", "a:One."]


@pytest.mark.parametrize(
    "line", ["/retry", "/undo", "/edit", "/edit Hi.", "/branches", "/save", "/copy", "/stats"]
)
def test_before_anything_was_said(talk, line):
    assert talk(line).notes[0].startswith(("(nothing was ", "(there is no answer yet)"))


def test_edit_asks_something_else_in_place_of_the_last_message(talk):
    said = talk("Hi.", "And?", "/edit But?")
    assert told(said.conversation) == ["u:Hi.", "a:One.", "u:But?", "a:Three."]
    assert [each.asked for each in said.conversation.branches()] == ["And?", "But?"]


def test_edit_needs_a_text_where_none_can_be_changed(talk):
    assert talk("Hi.", "/edit").notes == ["localagent: give the new text, as in /edit Name four colours."]


def test_an_edit_that_cannot_be_sent_leaves_the_conversation_as_it_was(talk, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    said = talk("Hi.", f"/edit See @{tmp_path}/photo.png")
    assert said.notes == [f"localagent: {tmp_path}/photo.png is an image, and replay sees none"]
    assert told(said.conversation) == ["u:Hi.", "a:One."]


def test_an_edit_keeps_a_file_that_is_gone_by_then(talk, tmp_path):
    file = tmp_path / "note.txt"
    file.write_text("milk")
    talk(f"See @{file}")
    file.unlink()
    said = talk(f"/edit Look at @{file}", "/branches", resume="last")
    assert not [note for note in said.notes if "no file here" in note]
    assert said.conversation.last_asked().text.count("milk") == 1
    assert said.conversation.branches()[0].asked == one_line(f"See @{file}", 60)


def test_a_text_that_cannot_be_sent_waits_to_be_edited_again(talk, tmp_path, monkeypatch):
    monkeypatch.setattr("localagent.cli.talk.commands.on_terminal", lambda: True)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    asked = f"See @{tmp_path}/photo.png"
    said = talk("Hi.", f"/edit {asked}")
    assert (said.chat._prompt._begun, said.chat._commands.editing) == (asked, True)
    said = talk("Hi.", "/edit", asked)
    assert (said.chat._prompt._begun, said.chat._commands.editing) == (asked, True)
    assert told(said.conversation) == ["u:Hi.", "a:One."]
    said = talk("Hi.", "/edit", asked, "See it.")
    assert told(said.conversation) == ["u:See it.", "a:Two."]


def test_undo_takes_back_a_message_and_holds_when_the_chat_is_resumed(talk):
    said = talk("Hi.", "And?", "/undo")
    assert said.notes == ["(taken back: And?)"]
    assert told(said.conversation) == ["u:Hi.", "a:One."]
    again = talk("Else?", resume="last")
    assert told(again.conversation) == ["u:Hi.", "a:One.", "u:Else?", "a:One."]
    assert talk("/undo", "/undo", "/undo", resume="last").notes[-1] == "(nothing was asked yet)"


def test_long_messages_are_told_by_their_beginning(talk):
    long, answer = "w" * 61, "v" * 61
    said = talk(long, "/branches", "/undo", "/branches", "w" * 60, "/undo", outputs=(answer, answer))
    beginning = "w" * 57 + "..."
    assert said.notes == [
        f"* 1 (1) {beginning} -> {'v' * 57}...",
        f"(taken back: {beginning})",
        f"  1 (1) {beginning} -> {'v' * 57}...",
        f"(taken back: {'w' * 60})",
    ]


@pytest.mark.parametrize("number", ["0", "2", "-1", "x", "²", "1 2"])
def test_branches_have_numbers_from_one(talk, number):
    assert talk("Hi.", f"/branches {number}").notes == [f"localagent: no branch {number}: there are 1"]
    assert talk("Hi.", "/branches " + "9" * 21).notes == [f"localagent: no branch {'9' * 17}...: there are 1"]


def test_undo_goes_no_further_than_the_conversation(talk):
    assert talk("Hi.", "/clear", "/undo").notes[-1] == "(nothing was asked yet)"


@pytest.mark.parametrize("save", [True, False])
def test_branches_are_shown_and_one_is_gone_on_with(talk, save):
    said = talk("Hi.", "/edit Ho.", "And?", "/branches", "/branches 1", "More?", "/branches 9", save=save)
    assert said.notes == [
        "  1 (1) Hi. -> One.",
        "* 2 (2) And? -> Three.",
        "(/branches NUMBER goes on from there)",
        "* 1 (1) Hi. -> One.",
        "  2 (2) And? -> Three.",
        "localagent: no branch 9: there are 2",
    ]
    assert told(said.conversation) == ["u:Hi.", "a:One.", "u:More?", "a:Four."]
    if save:
        assert told(talk(resume="last").conversation) == told(said.conversation)


def test_a_chat_is_resumed_on_the_branch_that_was_chosen(talk):
    talk("Hi.", "/edit Ho.", "/branches 1")
    assert told(talk(resume="last").conversation) == ["u:Hi.", "a:One."]


def test_an_earlier_conversation_is_a_branch_too(talk):
    said = talk("Hi.", "/clear", "Ho.", "/branches", "/undo", "/branches 1")
    assert "* 1 (2) Ho. -> Two." in said.notes


def test_the_history_names_calls_and_files(talk, tmp_path):
    file = tmp_path / "note.txt"
    file.write_text("milk")
    outputs = ("One. <|tool_call_start|>[look()]<|tool_call_end|>", "Two.")
    said = talk(f"See @{file}", "/history", tools=[look], outputs=outputs)
    assert said.notes[-4:] == [
        f"user: See @{file} [{file}]", "assistant: One.  look()", "tool: ", "assistant: Two.",
    ]  # fmt: skip


def test_the_history_shows_neither_settings_nor_marks(talk):
    said = talk("Hi.", "/set temperature 0.5", "And?", "/undo", "/history")
    assert said.notes[-2:] == ["user: Hi.", "assistant: One."]


# The model and its options


def test_another_model_goes_on_with_the_conversation(talk):
    loaded = []

    def load(options):
        loaded.append(options.model)
        model = scripted("Other.")
        model.name = options.model
        return model

    said = talk("Hi.", "/model lfm2-350", "And?", "/retry", load=load)
    assert loaded == ["lfm2-350m"], "a unique beginning is enough"
    assert said.notes[0] == "lfm2-350m, 1,048,576 tokens of context"
    assert told(said.conversation)[:2] == ["u:Hi.", "a:One."]
    assert said.speaker.settings["loading"]["model"] == "lfm2-350m"


def test_a_model_that_cannot_be_loaded_leaves_the_earlier_one(talk):
    tried = []

    def load(options):
        tried.append(options.model)
        if len(tried) == 1:
            raise EngineFailed("too large")
        return scripted("Still here.")

    said = talk("/model lfm2-350m", "/model no-such", "Hi.", load=load)
    assert said.notes[0] == "localagent: too large"
    assert "no model no-such" in said.notes[1]
    assert tried == ["lfm2-350m", "replay"]
    assert said.out == "Still here.\n"


def test_where_no_model_can_be_loaded_any_more_that_is_said(talk):
    def load(options):
        raise EngineFailed(f"no room for {options.model}")

    said = talk("/model lfm2-350m", load=load)
    assert said.notes[0] == (
        "localagent: no room for lfm2-350m; and replay cannot be loaded again (no room for replay): no model "
        "is loaded, choose one with /model"
    )


def test_settings_are_shown_and_changed(talk):
    said = talk(
        "/set",
        "/set temp 0.2",
        "/set stop END",
        "/set",
        "/set temperature default",
        "/set top_p 7",
        "/set heat 1",
    )
    assert said.notes[:5] == [
        "temperature 0.0 (the model's own)",
        "(temperature: 0.2)",
        "(stop: ['END'])",
        "temperature 0.2",
        'stop ["END"]',
    ]
    assert said.notes[5] == "(temperature: as the model has it)"
    assert said.notes[6].startswith("localagent: top_p is '7.0': it must be a number")
    assert said.notes[7].startswith("localagent: no setting heat: ")


def test_thinking_is_shown_and_changed(talk):
    said = talk("/think", "/think off", "/think LOW", "/think", "/think default", "/think hard")
    assert said.notes[:5] == [
        "(thinking: as its template has it)",
        "(thinking: off)",
        "(thinking: low)",
        "(thinking: low)",
        "(thinking: as its template has it)",
    ]
    assert "no way of thinking hard" in said.notes[5]


def test_thinking_is_switched_off_whatever_budget_it_had(talk):
    said = talk("/set think_budget 5", "/think off")
    assert said.speaker.turn == {"thinking": False}


def test_tools_are_shown_as_they_will_be_treated(talk):
    approvals = Approvals([Rule("ask", "look"), Rule("deny", "peek")], lambda _: [])
    said = talk("/tools", tools=[look, peek, send], approvals=approvals)
    assert said.notes == ["look (asks): Look.", "peek (never runs): Peek.", "send (asks): Send a text."]
    approvals.remember(send, Allow(always=True))
    approvals.remember(look, Allow(always=True))
    said = talk("/tools", tools=[look, peek, send], approvals=approvals)
    assert said.notes == [
        "look: Look.",
        "peek (never runs): Peek.",
        "send (runs without asking): Send a text.",
    ]


# What is kept and copied


def test_save_writes_the_conversation_as_markdown(talk, tmp_path):
    path = tmp_path / "talk.md"
    said = talk("Hi.", f"/save {path}", f"/save {path}", "/save", f"/save {tmp_path}/none/x")
    assert path.read_text() == "## user\n\nHi.\n\n## assistant (replay)\n\nOne.\n"
    assert said.notes[0].startswith(f"(written to {path}: ")
    assert said.notes[1] == f"localagent: {path} exists already: choose another name"
    assert said.notes[2] == f"(saved in {SessionStore().open('last').file})"
    assert said.notes[3].startswith("localagent: cannot write ")


def test_save_keeps_an_unsaved_conversation_with_its_branches(talk):
    said = talk("Hi.", "/edit Ho.", "/save", "And?", save=False)
    session = SessionStore().open("last")
    assert said.notes == [f"(saved in {session.file}; continue with: localagent chat --resume {session.id})"]
    assert told(talk(resume="last").conversation) == ["u:Ho.", "a:Two.", "u:And?", "a:Three."]
    assert [m.text for m in session.context(session.leaves[0].id) if m.role != "custom"] == ["Hi.", "One."]


def test_stats_show_the_last_answer_and_how_full_the_context_is(talk):
    said = talk("Hi.", "/stats").notes
    assert said[0].startswith("prompt tokens: 1; cached: 0; generated: ")
    assert said[1].startswith("context: ")
    assert said[1].endswith(" of 1,048,576 tokens")


@pytest.fixture
def desk(monkeypatch, tmp_path):
    """A folder for programs, which alone are found, and no desktop."""
    for name in ("SSH_TTY", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(
        clipboard.shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None
    )
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="these programs are Unix")
def test_copy_uses_the_program_of_the_desktop(talk, desk, monkeypatch):
    program = desk / "xsel"
    program.write_text(f'#!/bin/sh\necho "$@" > {desk}/arguments\ncat > {desk}/copied\n')
    program.chmod(0o755)
    monkeypatch.setenv("DISPLAY", ":0")
    said = talk("Hi.", "/copy", outputs=("One \x1b[2J.",))
    assert said.notes == ["(9 characters copied, with xsel)"]
    assert (desk / "copied").read_text() == "One \x1b[2J."


def test_copy_goes_through_the_terminal_where_there_is_no_program(desk, monkeypatch, capsys):
    monkeypatch.setattr(clipboard, "on_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    text = "a\x1b]52;c;evil\x07\u202eb"
    assert clipboard.copy(text) == "the terminal, if it allows that"
    shown = capsys.readouterr().out
    assert shown == f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
    with pytest.raises(UsageError, match="too long"):
        clipboard.copy("x" * 100_000)


PROGRAMS = {
    "pbcopy": ["pbcopy"],
    "wl-copy": ["wl-copy"],
    "xclip": ["xclip", "-selection", "clipboard"],
    "xsel": ["xsel", "--clipboard", "--input"],
}


@pytest.mark.parametrize(
    ("desktop", "there", "fail", "tried"),
    [
        ({}, PROGRAMS, (), ["pbcopy"]),
        ({}, ["wl-copy", "xclip", "xsel"], (), []),
        ({"WAYLAND_DISPLAY": "w"}, ["wl-copy", "xclip"], (), ["wl-copy"]),
        ({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, ["wl-copy", "xsel"], ["wl-copy"], ["wl-copy", "xsel"]),
        ({"DISPLAY": ":0"}, PROGRAMS, ["pbcopy", "xclip"], ["pbcopy", "xclip", "xsel"]),
        ({"DISPLAY": ":0"}, ["xclip"], ["xclip"], ["xclip"]),
        ({"DISPLAY": ":0", "SSH_TTY": "t"}, PROGRAMS, (), []),
    ],
)
def test_copy_tries_the_programs_of_this_desktop(desk, monkeypatch, desktop, there, fail, tried):
    """Over SSH they would reach the clipboard of the other machine."""
    ran = []

    def run(command, **how):
        ran.append(command[0])
        assert [*command] == PROGRAMS[command[0]]
        null = clipboard.subprocess.DEVNULL
        assert how == {"input": "é".encode(), "stdout": null, "stderr": null, "timeout": 5.0, "check": True}
        if command[0] in fail:
            raise faults[0]

    for name, value in desktop.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(clipboard.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(clipboard.subprocess, "run", run)
    faults = [OSError("no"), clipboard.subprocess.TimeoutExpired("x", 5)]
    while faults:
        ran.clear()
        if tried and tried[-1] not in fail:
            assert clipboard.copy("é") == tried[-1]
        else:
            with pytest.raises(UsageError, match="no clipboard here"):
                clipboard.copy("é")
        assert ran == tried
        faults.pop(0)


def test_copy_on_windows(monkeypatch):
    ran = []
    monkeypatch.setattr(clipboard.sys, "platform", "win32")
    monkeypatch.setattr(clipboard.subprocess, "run", lambda *given, **how: ran.append((*given, how)))
    assert clipboard.copy("é") == "clip"
    assert ran == [(["clip"], {"input": "é".encode("utf-16-le"), "check": False})]


def test_copy_through_the_terminal_has_a_limit(desk, monkeypatch, capsys):
    monkeypatch.setattr(clipboard, "on_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    clipboard.copy("x" * 56_250)
    assert len(capsys.readouterr().out) == len("\x1b]52;c;\x07") + 75_000
    with pytest.raises(UsageError) as error:
        clipboard.copy("x" * 56_251)
    assert str(error.value) == "the answer is too long to copy through the terminal: use /save FILE"
    monkeypatch.setattr(clipboard, "on_terminal", lambda: False)
    with pytest.raises(UsageError, match="no clipboard here"):
        clipboard.copy("x")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_copy_writes_nothing_where_no_sequence_may_go(desk, monkeypatch, capsys, term):
    monkeypatch.setattr(clipboard, "on_terminal", lambda: True)
    monkeypatch.setenv("TERM", term)
    with pytest.raises(UsageError, match="no clipboard here"):
        clipboard.copy("text")
    assert capsys.readouterr().out == ""


# In a terminal


@pytest.fixture
def spawn(localagent):
    terminals = []

    def start(*arguments, columns=80, **environment):
        settings = {**localagent.environment, **environment}
        terminal = Terminal([COMMAND, "chat", *NANO, *arguments], settings, columns=columns, rows=40)
        terminals.append(terminal)
        terminal.wait(r"/help tells more\.(.|\n)*^>$")
        return terminal

    yield start
    for terminal in terminals:
        terminal.__exit__()


UNIX = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix")


@UNIX
def test_the_last_message_is_changed_at_the_prompt_and_in_an_editor(spawn, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i.old 's/colours/tools/' \"$1\"\n")
    editor.chmod(0o755)
    terminal = spawn(EDITOR=str(editor))
    terminal.type("Name three colours.\r")
    terminal.wait(r"Red, green and blue\.(.|\n)*^>$")
    terminal.type("/edit\r")
    terminal.wait(r"^> /edit\n> Name three colours\.$")  # it stands in the prompt
    terminal.type("\x07")  # Ctrl-G
    terminal.wait(r"^> Name three tools\.$")
    terminal.type("\r")
    terminal.wait(r"^> Name three tools\.\n(.|\n)*^>$")
    terminal.type("/branches\r")
    terminal.wait(
        r"  1 \(1\) Name three colours\. -> Red, green and blue\.\n\* 2 \(1\) Name three tools\. -> "
    )
    terminal.type("/edit\r")
    terminal.wait(r"^> /edit\n> Name three tools\.$")
    terminal.type("\x03")  # given up: the next message follows the last one
    terminal.wait(r"^> Name three tools\.\n>$")
    terminal.type("Thanks.\r")
    terminal.wait(r"^> Thanks\.\n(.|\n)*^>$")
    terminal.type("/history\r")
    terminal.wait(r"^user: Name three tools\.\n(.|\n)*^user: Thanks\.$")


@UNIX
def test_commands_models_and_files_are_completed_at_the_prompt(spawn, tmp_path):
    (tmp_path / "notes-of-today.txt").write_text("milk")
    terminal = spawn(columns=250)  # the folder's name may be long
    terminal.type("/hist\t")
    terminal.wait("^> /history$")
    terminal.type("\x03/model lfm2-na\t")
    terminal.wait("^> /model lfm2-nano$")
    terminal.type(f"\x03Look @{tmp_path}/notes-of\t")
    terminal.wait("today.txt$")
    terminal.type("\r")
    terminal.wait(r"txt: \d+ tokens of 4,096")


@UNIX
def test_a_terminal_that_knows_no_sequences_gets_none(spawn):
    terminal = spawn(TERM="dumb")
    terminal.settle()
    assert terminal.written.rpartition(">")[2].strip(" ") == "", "what is typed stands beside the prompt"
    terminal.type("Name three colours.\r")
    terminal.wait("Red, green and blue.")
    terminal.type("/exit\r")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.written


def test_a_retry_reads_only_the_end_of_the_prompt_again(localagent):
    """The place where the user's message ends is kept, so that branches cost next to nothing."""
    lines = b"Tell me about the weather in Paris, in many words.\n/retry\n"
    done = localagent("chat", *NANO, "--no-save", "--stats", stdin=lines)
    first, second = (line for line in done.stderr.decode().splitlines() if line.startswith("prompt tokens: "))
    assert "cached: 0" in first
    read = int(second.split("prompt tokens: ")[1].split()[0])
    cached = int(second.split("cached: ")[1].split(";")[0])
    assert cached > 3 * read
