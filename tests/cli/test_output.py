"""The streams of a command, one function at a time: what is made harmless, what is coloured, and what is lost how."""

from __future__ import annotations

import errno
import io
import itertools
import re
import sys
from types import SimpleNamespace

import pytest
from rich.table import Table

from localagent.cli import terminal
from localagent.cli.terminal import Output, OutputLost, cell, show_table, styled
from localagent.errors import UsageError


class Stream(io.StringIO):
    """Standard output or standard error, of a terminal or not."""

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def stdout(monkeypatch):
    def put(*, terminal=True, columns=80):
        stream = Stream(terminal=terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        return stream

    return put


# Text


@pytest.mark.parametrize(
    ("style", "code"),
    [("bold", 1), ("dim", 2), ("red", 31), ("green", 32), ("yellow", 33), ("cyan", 36)],
)
def test_a_style_is_that_of_the_terminals_own_theme(style, code):
    assert styled("a\n\nb\x1b", style) == f"\x1b[{code}ma\x1b[0m\n\n\x1b[{code}mb\\x1b\x1b[0m"
    assert styled("a\nb\x1b", None) == "a\nb\\x1b"


def test_a_name_is_one_line():
    assert terminal.flat(" a\n b\t\x1b[2J ") == "a b \\x1b[2J"
    assert terminal.json_escaped('"é\u202e\x9b"') == '"é\\u202e\\u009b"'


@pytest.mark.parametrize(
    ("typing", "name", "no_colour", "escapes", "colour"),
    [
        (True, "xterm", None, True, True), (True, "", None, True, True), (True, None, None, True, True),
        (True, "DUMB", None, False, False), (True, "unknown", None, False, False), (False, "xterm", None, False, False),
        (True, "xterm", "1", True, False), (True, "xterm", "", True, True),
    ],
)  # fmt: skip
def test_escapes_and_colours_are_for_terminals_that_take_them(
    monkeypatch, typing, name, no_colour, escapes, colour
):
    for variable, value in (("TERM", name), ("NO_COLOR", no_colour)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    stream = Stream(terminal=typing)
    assert (terminal.takes_escapes(stream), terminal.takes_colour(stream)) == (escapes, colour)


def test_notes_go_to_stderr_and_results_to_stdout(capsys):
    terminal.say("a\x1b")
    terminal.show_line("b\x1b")
    terminal.show_json({"c": "\u202e"})
    terminal.show_json('["d\u202e"]')
    terminal.show_json({"e": [1]}, indent=None)
    printed = capsys.readouterr()
    assert printed.err == "a\\x1b\n"
    assert printed.out == 'b\\x1b\n{\n  "c": "\\u202e"\n}\n["d\\u202e"]\n{"e": [1]}\n'


def test_a_result_for_programs_is_exact_in_a_pipe_and_harmless_on_a_terminal(monkeypatch, stdout):
    shown = stdout()
    terminal.exactly("a\x1b")
    assert shown.getvalue() == "a\\x1b"
    piped = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", piped)
    terminal.exactly("a\x1bé")
    terminal.exactly("é", encoding="utf-8")
    terminal.exactly("\udcff", errors="surrogateescape")
    assert piped.buffer.getvalue() == b"a\x1b\\xe9\xc3\xa9\xff", "at once"


# Streams


@pytest.fixture
def output(monkeypatch):
    """An `Output` in front of what is written, which fails with these errors one after the other."""

    def make(name="stdout", *errors):
        written, waiting = bytearray(), list(errors)

        class Raw(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data) -> int:
                if waiting and (error := waiting.pop(0)) is not None:
                    raise error
                written.extend(data)
                return len(data)

        stream = SimpleNamespace(buffer=Raw(), encoding="ascii", line_buffering=False, write_through=True)
        monkeypatch.setattr(sys, name, stream)
        return Output(name), written

    return make


def test_everything_that_is_written_is_made_harmless(output):
    stream, written = output()
    assert stream.write("é\x1b[2J\n") == 6
    stream.write_raw("\x1b[1m")
    assert bytes(written) == b"\\xe9\\x1b[2J\n\x1b[1m"


def test_what_is_redrawn_makes_way_for_text_from_anywhere(output, monkeypatch):
    stream, written = output()
    monkeypatch.setattr(Output, "make_way", lambda: written.extend(b"<way>"))
    stream.write("a")
    stream.write_raw("b")
    assert bytes(written) == b"<way>ab"


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left"),
            OutputLost,
            "standard output cannot be written (No space left): there",
        ),
        (
            OSError(errno.EBADF, "Bad"),
            OutputLost,
            "standard output is closed: there is nowhere to print the result",
        ),
        (OSError("odd"), OutputLost, "standard output cannot be written (odd): there"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), BrokenPipeError, "Broken pipe"),
    ],
)
def test_a_result_that_cannot_be_written_ends_the_command(output, error, raised, says):
    stream, written = output("stdout", error)
    with pytest.raises(raised) as lost:
        stream.write("a")
    assert says in str(lost.value)
    assert (type(lost.value) is OutputLost) == (raised is OutputLost)
    assert bytes(written) == b""


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_notes_are_missing_while_the_disk_is_full(output, full):
    stream, written = output("stderr", OSError(full, "full"), OSError(full, "full"))
    for text in ("a\n", "b\n", "c\n", "d\n"):
        stream.write(text)
    assert bytes(written).endswith(b"d\n")
    assert bytes(written).count(b"(notes are missing here: the disk was full)") == 1
    assert bytes(written).index(b"missing") < bytes(written).index(b"c\n")


def test_notes_that_nobody_can_read_are_discarded(output, monkeypatch):
    discarded = []
    monkeypatch.setattr(terminal, "discard", discarded.append)
    stream, written = output("stderr", OSError(errno.EIO, "gone"))
    stream.write("a")
    assert (discarded, bytes(written)) == ([stream], b"")
    stream.write("b")
    assert stream._gap is False


def test_a_stream_that_was_closed_at_the_start_refuses_what_is_written(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    stream = Output("stdout")
    stream.write("a")
    with pytest.raises(OutputLost, match="is closed"):
        stream.flush()
    terminal.discard(stream)
    stream.close()
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, None)
    terminal.guard_streams()
    opened = sys.stdin, sys.stdout, sys.stderr
    assert [type(each) for each in opened[1:]] == [Output, Output]
    assert sys.stdin.read() == ""
    terminal.guard_streams()
    assert sys.stdin is opened[0]
    sys.stdin.close()
    for each in opened[1:]:
        terminal.discard(each)
        each.close()


def test_what_is_discarded_goes_nowhere(tmp_path):
    with (tmp_path / "x").open("w") as stream:
        terminal.discard(stream)
        stream.write("a")
    assert (tmp_path / "x").read_text() == ""


def test_a_command_that_works_long_looks_first_whether_it_can_print(monkeypatch):
    asked = []
    monkeypatch.setattr(terminal, "os", SimpleNamespace(write=lambda *given: asked.append(given)))
    terminal.require_stdout()
    assert asked == [(1, b"")]

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(terminal, "os", SimpleNamespace(write=refuse))
    with pytest.raises(OutputLost, match="is closed"):
        terminal.require_stdout()


# Tables


def table() -> Table:
    made = Table(box=None, pad_edge=False)
    for title in ("name", "size", "description"):
        made.add_column(title, no_wrap=True)
    made.add_row(*map(cell, ("one-two-three-four", "", "[bold]words of\x1b")))
    made.add_row(cell("two", "bold"), cell("7 MB"), cell("few"))
    return made


WIDE = [
    "name                size  description",
    "one-two-three-four        [bold]words of\\x1b",
    "two                 7 MB  few",
]
STACKED = [
    "one-two-three-four", "  description: [bold]words of\\x1b", "two", "  size: 7 MB", "  description: few",
]  # fmt: skip


@pytest.mark.parametrize(
    ("typing", "columns", "options", "lines"),
    [
        (True, 80, {}, [*WIDE, "a hint"]), (True, 59, {}, [*WIDE, "a hint"]), (True, 60, {}, [*WIDE, "a hint"]),
        (True, 45, {}, [*WIDE, "a hint"]), (True, 44, {}, [*STACKED, "a hint"]), (True, 80, {"stacked": True}, [*STACKED, "a hint"]),
        (False, 30, {}, [*WIDE, "a hint"]),
    ],
)  # fmt: skip
def test_a_table_is_cut_nowhere(stdout, typing, columns, options, lines):
    shown = stdout(terminal=typing, columns=columns)
    show_table(table(), "a hint", **options)
    plain = re.sub(r"\x1b\[\d+m", "", shown.getvalue())
    assert [line.rstrip() for line in plain.splitlines()] == lines
    assert ("\x1b[1mtwo\x1b[0m" in shown.getvalue()) is (typing and "two" in lines)


def test_a_table_in_a_pipe_has_a_line_for_each_row(stdout):
    shown = stdout(terminal=False)
    made = table()
    made.add_row(*map(cell, ("three", "8 MB", "w" * 370)))
    show_table(made)
    assert [len(line.rstrip()) for line in shown.getvalue().splitlines()] == [37, 44, 29, 396]
    assert terminal.table_width() == 400
    stdout(columns=33)
    assert terminal.table_width() == 33


# Questions


@pytest.mark.parametrize(("reads", "writes"), [*itertools.product((True, False), repeat=2)])
def test_a_person_can_both_type_and_read(monkeypatch, reads, writes):
    monkeypatch.setattr(sys, "stdin", Stream(terminal=reads))
    monkeypatch.setattr(sys, "stdout", Stream(terminal=writes))
    assert terminal.on_terminal() is (reads and writes)


def test_line_editing_writes_no_sequence_where_none_is_taken(monkeypatch, stdout):
    shown = stdout()
    assert terminal.typing_output() is None, "as it chooses"
    monkeypatch.setenv("TERM", "dumb")
    plain = terminal.typing_output()
    assert plain.get_rows_below_cursor_position() == 1
    plain.set_title("x")
    plain.erase_screen()
    plain.write("a")
    plain.flush()
    assert "\x1b" not in shown.getvalue()
    assert shown.getvalue().endswith("a")


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [("y\n", True), ("YES \n", True), ("yes", True), ("n\n", False), ("\n", False), ("yy\n", False)],
)
def test_only_yes_is_yes(monkeypatch, capsys, typed, agreed):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: typed))
    assert terminal.agrees("Remove\nit\x1b?") is agreed
    assert capsys.readouterr().err == "Remove it\\x1b? [y/N]: "


@pytest.mark.parametrize(
    ("stdin", "shown"),
    [
        (None, ""), (SimpleNamespace(isatty=lambda: False), ""),
        (SimpleNamespace(isatty=lambda: True, readline=lambda: ""), "Well? [y/N]: \n"),
    ],
)  # fmt: skip
def test_where_nobody_answers_nothing_is_agreed_to(monkeypatch, capsys, stdin, shown):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError) as error:
        terminal.agrees("Well?")
    assert str(error.value) == "nobody can be asked here: say --yes to agree beforehand"
    assert capsys.readouterr().err == shown
