"""Notes: kept, found and removed, by several processes, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from localagent.errors import ToolError, UsageError
from localagent.toolbox import notes as module
from localagent.toolbox.notes import NoteBook, default_path, notes
from tests.durable import Durable
from tests.toolbox.calling import by_name, call

ADDING = """
import sys
from localagent.toolbox.notes import NoteBook
from pathlib import Path
book = NoteBook(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    print(book.add(f"{sys.argv[2]} {number}").id, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "notes.jsonl"


@pytest.fixture
def tools(path):
    return by_name(notes(path))


def test_kept_found_removed(tools, path):
    assert list(tools) == ["add_note", "find_notes", "remove_note"]
    assert tools["remove_note"].side_effects
    assert call(tools["find_notes"]) == "no notes found"
    assert not path.exists()
    assert call(tools["add_note"], text=" Milk is out ") == "kept as note 1"
    assert call(tools["add_note"], text="Ada likes tea\nwithout milk") == "kept as note 2"
    assert call(tools["add_note"], text="Milk is out") == "kept as note 1", "the same note is not kept twice"
    first, second = [
        line.partition(" (")[0] for line in call(tools["find_notes"], query="MILK").splitlines()[::2]
    ]
    assert (first, second) == ("2", "1")
    assert call(tools["find_notes"], query="milk tea").endswith("): Ada likes tea\nwithout milk")
    assert call(tools["find_notes"], query="coffee") == "no notes found"
    assert call(tools["remove_note"], id=2) == "removed note 2: Ada likes tea\nwithout milk"
    assert call(tools["find_notes"], query="tea") == "no notes found"
    assert call(tools["add_note"], text="more") == "kept as note 3", "ids are not used again"
    assert call(tools["add_note"], text="and more") == "kept as note 4"
    assert "Milk is out" in call(by_name(notes(path))["find_notes"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [0, -1, 7, 10**30])
def test_no_such_note(tools, number):
    call(tools["add_note"], text="x")
    with pytest.raises(ToolError, match=f"no note {number:.0f}"[:20]):
        call(tools["remove_note"], id=number)


@pytest.mark.parametrize("text", ["", " \n ", "x" * (module.MAX_NOTE + 1)])
def test_notes_that_are_not_kept(tools, path, text):
    with pytest.raises(ToolError, match="the note "):
        call(tools["add_note"], text=text)
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["\0", "a\u2028b", '"}\n{"id": 99, "text": "forged"}', "🙂" * 1000, "\x1b[2J"]
)
def test_notes_of_any_text(tools, text):
    call(tools["add_note"], text=text)
    assert call(tools["find_notes"]).endswith(text.strip())
    assert call(tools["add_note"], text="next") == "kept as note 2"


def test_a_note_that_is_no_text_is_not_kept(path):
    with pytest.raises(ToolError, match=r"^note\.text: "):
        NoteBook(path).add("\ud800")
    assert not path.exists() or not path.read_bytes()


def test_the_longest_note_is_kept_and_one_more_letter_is_not(tools):
    whole = "x" * 4_000
    assert call(tools["add_note"], text=f" {whole} ") == "kept as note 1"
    with pytest.raises(ToolError) as refused:
        call(tools["add_note"], text=f"{whole}x")
    assert str(refused.value) == "the note has 4,001 characters: at most 4,000 are kept"
    with pytest.raises(ToolError, match=r"^the note is empty: say what to remember$"):
        call(tools["add_note"], text=" ")


@pytest.mark.parametrize(("more", "shown"), [(0, 2), (1, 1)])
def test_a_list_that_just_fits(path, monkeypatch, more, shown):
    book = NoteBook(path)
    for text in ("one", "two" + "o" * more):
        book.add(text)
    line = "2 (2026-01-01): two\n"
    monkeypatch.setattr(module, "MAX_TEXT", 2 * len(line))
    lines = call(by_name(notes(path))["find_notes"]).splitlines()
    assert len(lines) == 2
    assert (lines[-1] == "(1 older notes: use more words)") == (shown == 1)


def test_a_file_that_is_too_large_is_not_read(path, monkeypatch):
    NoteBook(path).add("one")
    monkeypatch.setattr(module, "MAX_FILE", path.stat().st_size)
    assert len(NoteBook(path).find("")) == 1
    monkeypatch.setattr(module, "MAX_FILE", path.stat().st_size - 1)
    with pytest.raises(ToolError, match=r"^notes\.jsonl is not a file of notes, or it is too large$"):
        NoteBook(path).find("")


def test_of_two_notes_of_one_number_the_first_counts(path):
    book = NoteBook(path)
    book.add("first")
    line = path.read_text().replace("first", "forged")
    with path.open("a") as file:
        file.write(line)
    assert [note.text for note in book.find("")] == ["first"]


def test_notes_that_somebody_else_holds(path, monkeypatch):
    from localagent.files.lock import take

    monkeypatch.setattr(module, "PATIENCE", 0.01)
    path.parent.mkdir()
    with take(path.with_name("notes.jsonl.lock"), 1), pytest.raises(ToolError) as refused:
        NoteBook(path).add("one")
    held = "another process has held them for 0.01 seconds"
    assert str(refused.value) == f"the notes are in use: {held}"
    assert NoteBook(path).add("one").id == 1


def test_a_list_is_bounded(tools):
    for number in range(12):
        call(tools["add_note"], text=f"{number} " + "x" * 3000)
    text = call(tools["find_notes"])
    assert len(text) < module.MAX_TEXT + 100
    assert text.endswith("(6 older notes: use more words)")


def test_lines_that_cannot_be_read_are_passed_over(tools, path):
    call(tools["add_note"], text="first")
    with path.open("ab") as file:
        file.write(
            b'garbage\n{"id": 0, "at": "2026-01-01T00:00:00Z", "text": "zero"}\n\xff\n{"id": 9, "at": "20'
        )
    assert call(tools["add_note"], text="second") == "kept as note 2"
    assert [line.split(": ")[1] for line in call(tools["find_notes"]).splitlines()] == ["second", "first"]
    assert b"garbage" in path.read_bytes(), "nothing is erased"


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "notes.jsonl", tmp_path / "folder"):
        tools = by_name(notes(path))
        with pytest.raises(ToolError) as error:
            call(tools["add_note"], text="x")
        assert "\n" not in str(error.value)
    with pytest.raises(ToolError, match="not a file of notes"):
        call(by_name(notes(tmp_path / "folder"))["find_notes"])


def test_where_they_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    assert default_path() == tmp_path / "notes.jsonl"
    call(by_name(notes())["add_note"], text="x")
    assert json.loads((tmp_path / "notes.jsonl").read_text())["text"] == "x"
    monkeypatch.setenv("LOCALAGENT_HOME", "~nobody-at-all")
    with pytest.raises(UsageError):
        notes()
    monkeypatch.delenv("LOCALAGENT_HOME")
    assert default_path().name == "notes.jsonl" and "localagent" in str(default_path())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file it is")
def test_a_note_is_on_the_disk_when_it_is_said_to_be_kept(path, monkeypatch):
    durable = Durable(monkeypatch, path.parent)
    book = NoteBook(path)
    for change in (lambda: book.add("one"), lambda: book.add("two"), lambda: book.remove(1)):
        durable.done.clear()
        change()
        assert ("sync", "notes.jsonl") in durable.done


def start(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ADDING, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_two_processes(path):
    running = [start(path, name, 40) for name in "ab"]
    ids = []
    for process in running:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        ids += [int(line) for line in out.split()[1:]]
    assert sorted(ids) == list(range(1, 81)), "no id twice, none lost"
    assert len(call(by_name(notes(path))["find_notes"]).splitlines()) == 80


def test_processes_that_are_killed(path):
    for number in range(4):
        process = start(path, str(number), 100_000)
        told = [process.stdout.readline() for _ in range(2 + 3 * number)]
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
        process.stdout.close()
        process.wait(timeout=60)
        told = [int(line) for line in ("".join(told[1:]) + rest).splitlines() if line.isdigit()]
        found = call(by_name(notes(path))["find_notes"], query="")
        assert told
        for each in told[-5:]:
            assert f"{each} (" in found or "older notes" in found
    last = call(by_name(notes(path))["add_note"], text="after all")
    assert last.startswith("kept as note ")


def test_the_folders_of_the_book_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "notes.jsonl"
    call(by_name(notes(path))["add_note"], text="milk")
    assert path.exists()
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "a", path.parent)} <= {0o700, 0o755}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "milk" in call(by_name(notes(path))["find_notes"])


def test_the_reasons_of_the_system_are_told(path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    book = NoteBook(path)
    book.add("one")
    for name in ("open_lines", "append_line"):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, refused)
            with pytest.raises(ToolError, match=r"^cannot write to .*notes\.jsonl \(Permission denied\): "):
                book.add("two")
    with monkeypatch.context() as patched:
        patched.setattr(module, "LineReader", refused)
        with pytest.raises(ToolError, match=r"^the notes cannot be read: Permission denied$"):
            book.find("")
    with pytest.raises(ToolError, match="null byte"):
        NoteBook(Path("a\0b")).add("x")
    assert [note.text for note in book.find("")] == ["one"]
    assert book.add("two").id == 2
