"""Standard input and the prompt of `run` in this process: what is read when, how long is waited, and what is refused."""

from __future__ import annotations

import errno
import importlib
import os
from types import SimpleNamespace

import pytest

from localagent.errors import UsageError

module = importlib.import_module("localagent.cli.input")
TYPE = "(type the prompt, then press Ctrl-D on an empty line)\n"
WAITING = "(waiting for standard input; use </dev/null if there is none)\n"


@pytest.fixture
def stdin(monkeypatch, capsys):
    """Standard input that sends these pieces, or errors, when it was waited for so many times; and what is said."""

    def make(*pieces, terminal=False, person=False, silent=0, platform="linux"):
        waits, left, quiet = [], list(pieces), [True] * silent

        def select(ready, _, __, timeout=None):
            waits.append(timeout)
            return ([], [], []) if quiet and quiet.pop() else (ready, [], [])

        def read(descriptor, size):
            assert (descriptor, size) == (7, 1 << 20)
            piece = left.pop(0) if left else b""
            if isinstance(piece, Exception):
                raise piece
            return piece

        streams = {
            "stdin": SimpleNamespace(fileno=lambda: 7), "stderr": SimpleNamespace(isatty=lambda: person),
            "platform": platform,
        }  # fmt: skip
        monkeypatch.setattr(module, "sys", SimpleNamespace(**streams))
        monkeypatch.setattr(module, "os", SimpleNamespace(isatty=lambda _: terminal, read=read))
        monkeypatch.setattr(module, "select", select)
        return waits

    return make


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        (["Name", "three."], b"", "Name three."),
        (["Sum", "up:"], b"a\nb\n", "Sum up:\n\na\nb\n"),
        (["Sum", "up:", "-"], b"a", "Sum up:\n\na"),
        (["-", "x"], b"", "- x"),
        ([], b"\xef\xbb\xbfa", "a"),
        ([" "], b"a", "a"),
        (["a"], b" \n", "a"),
    ],
)
def test_the_prompt_is_the_words_and_what_is_piped(stdin, words, piped, prompt):
    waits = stdin(piped)
    assert module.whole_prompt(words) == prompt
    assert waits == [2.0]


def test_an_empty_prompt_is_one_only_where_files_go_with_it(stdin):
    stdin(b" \n")
    with pytest.raises(UsageError) as error:
        module.whole_prompt(["-"])
    assert str(error.value) == "the prompt is empty: give it as words or through a pipe"
    stdin()
    assert module.whole_prompt([], required=False) == ""


@pytest.mark.parametrize(
    ("words", "said", "prompt"),
    [(["Hi."], "", "Hi."), (["Hi.", "-"], TYPE, "Hi.\n\ntyped"), (["-"], TYPE, "typed")],
)
def test_a_terminal_is_read_only_if_that_is_asked_for(stdin, capsys, words, said, prompt):
    waits = stdin(b"ty", b"ped", terminal=True)
    assert module.whole_prompt(words) == prompt
    assert capsys.readouterr().err == said
    assert waits == [], "who types is not hurried"


@pytest.mark.parametrize("person", [True, False])
@pytest.mark.parametrize(
    ("words", "silent", "waits", "read"),
    [
        (["Hi."], 0, [2.0], True), (["Hi."], 1, [2.0, 58.0], True), (["Hi."], 2, [2.0, 58.0], False),
        (["Hi.", "-"], 1, [2.0], True),
    ],
)  # fmt: skip
def test_a_pipe_that_is_silent_is_waited_for(stdin, capsys, person, words, silent, waits, read):
    asked = stdin(b"more", silent=silent, person=person)
    if read:
        assert module.whole_prompt(words) == "Hi.\n\nmore"
    else:
        with pytest.raises(UsageError) as error:
            module.whole_prompt(words)
        assert str(error.value) == (
            "standard input is open and has sent nothing for 60 seconds: use </dev/null if there is no input, or - as "
            "the last word to wait for it"
        )
    assert asked == waits
    assert capsys.readouterr().err == (WAITING if person and silent else "")


def test_windows_waits_for_no_pipe(stdin):
    waits = stdin(b"a", platform="win32")
    assert module.whole_prompt([]) == "a"
    assert waits == []


def test_a_pipe_that_others_made_non_blocking_is_waited_for(stdin):
    waits = stdin(b"a", BlockingIOError(), BlockingIOError(), b"b")
    assert module.whole_prompt([]) == "ab"
    assert waits == [2.0, None, None]


def test_what_cannot_be_read(stdin):
    stdin(OSError(errno.EBADF, "Bad file descriptor"))
    assert module.whole_prompt(["Hi."]) == "Hi.", "it is open for writing only"
    for fault, says in ((OSError(errno.EISDIR, "Is a directory"), "Is a directory"), (OSError("odd"), "odd")):
        stdin(b"a", fault)
        with pytest.raises(UsageError) as error:
            module.whole_prompt(["Hi."])
        assert str(error.value) == f"standard input cannot be read: {says}"


def test_input_without_an_end_is_refused(stdin, monkeypatch):
    assert module.LIMIT == 256 << 20
    monkeypatch.setattr(module, "LIMIT", 2 << 20)
    piece = bytes([97]) * (1 << 20)
    stdin(piece, piece)
    assert len(module.whole_prompt([])) == 2 << 20
    stdin(piece, piece, b"a", b"not read")
    with pytest.raises(UsageError) as error:
        module.whole_prompt([])
    assert str(error.value) == "standard input is longer than 2 MB, more than any model can read at once"


def test_what_is_no_text_is_refused(stdin):
    for data, says in (
        (b"a\xff", "standard input is not UTF-8 text: byte 0xff at offset 1"),
        (b"a" * 1000 + b"\x07\xff", "standard input is not UTF-8 text: byte 0xff at offset 1,001"),
        (b"\0", "standard input is binary: NUL at character 0"),
    ):
        stdin(data)
        with pytest.raises(UsageError) as error:
            module.whole_prompt([])
        assert str(error.value) == says
    with pytest.raises(UsageError) as error:
        module.whole_prompt([os.fsdecode(b"a\xff")])
    assert str(error.value) == "the prompt is not UTF-8 text: see character 2"
    with pytest.raises(UsageError) as error:
        module.read_text(b"\xff", "a.txt")
    assert str(error.value) == "a.txt is not UTF-8 text: byte 0xff at offset 0"
    module.require_text("--x", None)
