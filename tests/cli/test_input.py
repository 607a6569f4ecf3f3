"""Typing in a chat: what the keys do, what is completed and what is kept, without a terminal's help."""

from __future__ import annotations

import asyncio
import errno
import io
import sys
from types import SimpleNamespace

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from localagent.cli.talk import prompt as typing
from localagent.cli.talk.prompt import ChatInput, _leave_with_terminal, _prompt_session
from localagent.errors import UsageError


def commands(text):
    return [each for each in ("/help", "/history", "/exit") if each.startswith(text)]


CTRL_C, CTRL_D, NEW_LINE = "\x03", "\x04", "\x1b\r"


@pytest.fixture
def typed(monkeypatch):
    """All lines that come of these keys."""
    monkeypatch.setattr(typing, "on_terminal", lambda: True)

    def read(keys, kept=None):
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            pipe.send_bytes((keys if isinstance(keys, bytes) else keys.encode()) + CTRL_D.encode())
            return list(ChatInput(kept, commands).lines())

    return read


def test_lines_come_one_by_one_until_the_end(typed):
    assert typed("one\rtwo\r") == ["one", "two"]
    assert typed("") == []


def test_a_message_may_have_several_lines(typed):
    assert typed(f"one{NEW_LINE}two\r") == ["one\ntwo"]


def test_ctrl_c_drops_the_line_alone(typed):
    assert typed(f"never mind{CTRL_C}still here\r") == ["", "still here"]


def test_what_cannot_be_text_is_refused_and_the_next_line_is_read(typed, capsys):
    assert typed(b"a\xffb\rnext\r") == ["next"]
    assert capsys.readouterr().err == "localagent: what you typed is not UTF-8 text: see character 2\n"


def completions_of(begun: str) -> list[Completion]:
    completer = _prompt_session(None, commands).completer
    return list(completer.get_completions(Document(begun), CompleteEvent()))


def completed(begun: str) -> list[str]:
    return [each.text for each in completions_of(begun)]


def test_commands_are_completed_where_they_can_stand():
    assert completed("/h") == ["/help", "/history"]
    assert completed("/ex") == ["/exit"]
    assert completed("what does /ex") == [], "within a message it is no command"


def test_files_are_completed_where_a_message_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "north.md", "other"):
        (tmp_path / name).touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    for begun in ("@no", "see @no", "see\n@no", "see\t@no", "/edit @no", "see @~/no"):
        assert completed(begun) == ["rth.md", "tes.txt"], begun
    assert completed("see@no") == completed("no") == []
    assert [each.start_position for each in completions_of("/he")] == [-3]


def test_a_prompt_begins_with_what_was_given_and_typed_before(monkeypatch):
    monkeypatch.setattr(typing, "on_terminal", lambda: True)
    monkeypatch.setattr(typing, "takes_escapes", lambda _: False)
    asked, before = [], ["typed", "", "more"]

    class Session:
        def prompt(self, words, default, pre_run):
            asked.append((words, default))
            if len(asked) > 2:
                raise OSError(errno.EIO, "Input/output error")
            return "line"

    monkeypatch.setattr(typing, "_prompt_session", lambda *_: Session())
    prompt = ChatInput(None, commands, lambda: before.pop(0))
    prompt.begin("given")
    assert list(prompt.lines()) == ["line", "line"], "the terminal is gone"
    assert asked == [("> ", "given\ntyped"), ("> ", ""), ("> ", "more")]


def test_in_a_pipe_each_line_is_one(monkeypatch):
    monkeypatch.setattr(typing, "on_terminal", lambda: False)
    pipe = io.BytesIO("\ufeffone \r\n\n é\nlast".encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
    assert list(ChatInput(None, commands).lines()) == ["one ", "", " é", "last"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\xff\n")))
    with pytest.raises(UsageError, match="standard input is not UTF-8 text: byte 0xff at offset 1"):
        list(ChatInput(None, commands).lines())


def test_a_message_is_written_in_an_editor_as_markdown(typed, monkeypatch):
    def edit(self: Buffer) -> None:
        suffix = self.tempfile_suffix
        self.insert_text(f" by hand{suffix() if callable(suffix) else suffix}")

    monkeypatch.setattr(Buffer, "open_in_editor", edit)
    assert typed("Written\x07\r") == ["Written by hand.md"]


def test_the_history_is_kept_in_folders_that_are_made_for_it(typed, tmp_path):
    kept = tmp_path / "a" / "b" / "chat-history"
    assert typed("words\r", kept) == ["words"]
    assert kept.read_text().endswith("\n+words\n")
    (tmp_path / "file").touch()
    assert typed("words\r", tmp_path / "file" / "x") == ["words"], "where none can be made it is not kept"


def test_nothing_is_completed_unasked():
    assert not _prompt_session(None, commands).complete_while_typing


def test_earlier_lines_come_back_and_are_offered(typed, tmp_path):
    kept = tmp_path / "home" / "chat-history"
    assert typed("first words\rsecond words\r", kept) == ["first words", "second words"]
    assert kept.stat().st_mode & 0o777 == 0o600
    session = _prompt_session(kept, commands)
    assert list(session.history.load_history_strings()) == ["second words", "first words"]
    session.history.append_string("third words")
    suggested = session.auto_suggest.get_suggestion(Buffer(history=session.history), Document("thi"))
    assert suggested.text == "rd words"
    assert kept.read_text().endswith("\n+third words\n")


def test_a_history_that_can_no_longer_be_kept_goes_on_in_memory(tmp_path):
    kept = tmp_path / "chat-history"
    history = _prompt_session(kept, commands).history
    kept.unlink()
    kept.mkdir()
    history.append_string("words")
    assert history.get_strings() == ["words"]


def test_nothing_comes_back_where_nothing_is_kept(typed):
    assert typed("first words\r") == ["first words"]
    assert list(_prompt_session(None, commands).history.load_history_strings()) == []


def test_messages_that_arrive_meanwhile_are_printed_harmlessly(monkeypatch):
    """A server may say something while a line is being typed: it is shown above that line."""
    monkeypatch.setattr(typing, "on_terminal", lambda: True)
    monkeypatch.setattr(typing, "takes_escapes", lambda _: True)
    shown: list[str] = []

    class Screen(DummyOutput):
        def write(self, data: str) -> None:
            shown.append(data)

        def write_raw(self, data: str) -> None:
            shown.append(data)

    class Session:
        def prompt(self, _, default, pre_run):
            sys.stderr.write("server: \x1b[2Jgone\n")
            sys.stdout.write("and this\n")
            raise EOFError

    monkeypatch.setattr(typing, "_prompt_session", lambda *_: Session())
    before = sys.stdout, sys.stderr
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=Screen()):
        assert list(ChatInput(None, commands).lines()) == []
    assert (sys.stdout, sys.stderr) == before
    assert "server: \\x1b[2Jgone\nand this\n" in "".join(shown)


def test_a_prompt_ends_when_its_terminal_is_closed_and_reports_other_faults():
    """Reporting the first on a terminal that is gone would fail, and be reported, again and again."""
    reported = []

    async def prompt() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        session = SimpleNamespace(app=SimpleNamespace(future=loop.create_future()))
        _leave_with_terminal(session)
        fault = LookupError("not of the terminal")
        for error in (fault, OSError(errno.EIO, "Input/output error"), OSError(errno.EIO, "once more")):
            loop.call_exception_handler({"message": "", "exception": error})
        assert reported == [fault]
        await session.app.future

    with pytest.raises(EOFError):
        asyncio.run(prompt())
