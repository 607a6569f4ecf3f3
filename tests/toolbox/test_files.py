"""Listing, reading, writing and searching files: what it shows and what it changes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from localagent.errors import ToolError, UsageError
from localagent.messages import ImagePart
from localagent.toolbox import confined, searching
from localagent.toolbox import files as module
from localagent.toolbox.files import files
from localagent.tools import FileChange
from tests.toolbox.calling import by_name, call
from tests.toolbox.serving import PNG
from tests.toolbox.trees import SECRET, refused, tree


def test_what_there_is(root):
    assert [tool.name for tool in files(root)] == ["list_files", "read_file", "search_files"]
    tools = files(str(root), write=True)
    assert [(tool.name, tool.side_effects, tool.kind) for tool in tools] == [
        ("list_files", False, "read"),
        ("read_file", False, "read"),
        ("search_files", False, "read"),
        ("write_file", True, "edit"),
    ]


@pytest.mark.parametrize("name", ["missing", "readme.md", "a\0b", "~nobody-at-all/x", "x" * 300])
def test_a_root_that_is_no_folder(root, name):
    with pytest.raises(UsageError, match="folder of file tools") as error:
        files(root / name if not name.startswith("~") else name)
    assert "\n" not in str(error.value)


def test_the_root_may_be_a_link_and_relative(root, monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    tools = by_name(files("link"))
    monkeypatch.chdir("/")
    assert "needle" in call(tools["read_file"], path="readme.md")


# Listing


def test_list(tools):
    assert call(tools["list_files"]).splitlines() == [
        "node_modules/", "src/", "data.bin  9 bytes", "empty  0 bytes", "picture.png  28 bytes", "readme.md  27 bytes",
        "(2 hidden: hidden=true lists them)",
    ]  # fmt: skip
    assert call(tools["list_files"], folder="src", hidden=True).splitlines() == ["deep/", "main.py  32 bytes"]
    assert ".env  14 bytes" in call(tools["list_files"], folder="./", hidden=True).splitlines()


def test_list_of_nothing(tools, root):
    (root / "none").mkdir()
    assert call(tools["list_files"], folder="none") == "(none is empty)"
    assert "not a folder" in refused(tools["list_files"], folder="readme.md")
    assert "there is no src/dep; did you mean deep?" in refused(tools["list_files"], folder="src/dep")


def test_list_shows_links_and_specials_for_what_they_are(tools, root):
    (root / "src" / "out").symlink_to(root.parent / "secret.txt")
    os.mkfifo(root / "src" / "pipe")
    lines = call(tools["list_files"], folder="src").splitlines()
    assert lines == [
        "deep/",
        "main.py  32 bytes",
        "out  (symbolic link, not followed)",
        "pipe  (not a regular file)",
    ]


def test_list_is_bounded(tools, root, monkeypatch):
    for number in range(module.LISTED + 7):
        (root / "src" / f"f{number:04}").touch()
    lines = call(tools["list_files"], folder="src").splitlines()
    assert len(lines) == module.LISTED + 1
    assert lines[-1] == "(9 more: search_files finds files by name)"
    monkeypatch.setattr(module, "SCANNED", module.LISTED + 2)
    assert (
        call(tools["list_files"], folder="src")
        .splitlines()[-1]
        .startswith(f"(over {module.LISTED + 2} in all")
    )


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="macOS refuses such names")
def test_names_that_are_no_text(tools, root):
    (root / "src" / "line\nbreak\x1b[2J").write_text("needle")
    Path(os.fsdecode(os.fsencode(root / "src") + b"/bad\xff")).write_text("needle")
    for text in (
        call(tools["list_files"], folder="src"),
        call(tools["search_files"], query="needle", folder="src"),
    ):
        text.encode()
        assert "\\nbreak\\x1b[2J" in text and "bad\\udcff" in text
    assert "needle" in call(tools["read_file"], path="src/line\nbreak\x1b[2J")


# Reading


def test_read(tools):
    assert call(tools["read_file"], path="readme.md") == "# Title\nA needle here.\nlast"
    assert call(tools["read_file"], path="./src//main.py") == "def main():\n    return 'Needle'"
    assert call(tools["read_file"], path="empty") == "(empty is empty)"
    assert call(tools["read_file"], path=".env") == "needle=hidden"


def test_read_in_pieces(tools, root):
    text = "\n".join(f"line {number}" for number in range(1, 1201))
    (root / "long.txt").write_text(text + "\n")
    first, shown = "", 1
    pieces = []
    while shown:
        first = call(tools["read_file"], path="long.txt", first_line=shown)
        *lines, note = first.split("\n")
        pieces += lines
        shown = int(note.rpartition("first_line=")[2].rstrip(")")) if "first_line=" in note else 0
    assert "\n".join(pieces) == text
    assert note == "(lines 1,001 to 1,200 of 1,200)"
    assert call(tools["read_file"], path="long.txt", first_line=3, lines=2) == (
        "line 3\nline 4\n(lines 3 to 4 of 1,200, read on with first_line=5)"
    )
    assert "has only 1,200 lines" in refused(tools["read_file"], path="long.txt", first_line=1201)
    assert "1 or more" in refused(tools["read_file"], path="long.txt", first_line=0)
    assert "1 or more" in refused(tools["read_file"], path="long.txt", lines=-1)


def test_read_is_bounded(tools, root):
    (root / "wide.txt").write_text("a" * 50_000 + "\nsecond\n")
    text = call(tools["read_file"], path="wide.txt")
    assert len(text) < module.MAX_TEXT + 200
    assert text.endswith(
        "(line 1 is cut: it has 50,000 characters; lines 1 to 1 of 2, read on with first_line=2)"
    )
    assert call(tools["read_file"], path="wide.txt", first_line=2).startswith("second\n")
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "too large" in refused(tools["read_file"], path="huge")


def test_read_other_encodings(tools, root):
    (root / "bom.txt").write_bytes(b"\xef\xbb\xbfhello")
    (root / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (root / "latin.txt").write_bytes("a café in a longer text".encode("latin-1"))
    (root / "utf16.txt").write_bytes("hello".encode("utf-16"))
    (root / "noise").write_bytes(bytes(range(128, 256)) * 3)
    (root / "paper.pdf").write_bytes(b"%PDF-1.4\n" + b"text " * 30 + b"\xff")
    assert call(tools["read_file"], path="bom.txt") == "hello"
    assert call(tools["read_file"], path="crlf.txt") == "a\r\nb\r"
    assert call(tools["read_file"], path="latin.txt").endswith(
        "longer text\n(� may stand for bytes that are not UTF-8)"
    )
    for name in ("utf16.txt", "noise", "data.bin"):
        assert "not a text file: binary data" in refused(tools["read_file"], path=name)
    assert "application/pdf" in refused(tools["read_file"], path="paper.pdf")


def test_images_are_seen(tools):
    (part,) = call(tools["read_file"], path="picture.png")
    assert isinstance(part, ImagePart) and part.data == PNG and part.media_type == "image/png"


# Writing


def test_write(tools, root):
    assert (
        call(tools["write_file"], path="a/b/new.txt", content="häh\r\n")
        == "wrote a/b/new.txt: new file, 6 bytes"
    )
    assert (root / "a/b/new.txt").read_bytes() == "häh\r\n".encode()
    assert (
        call(tools["write_file"], path="./readme.md", content="")
        == "replaced readme.md: 0 bytes, before 27 bytes"
    )
    assert (root / "readme.md").read_bytes() == b""
    assert not list(root.rglob("*.tmp"))


def test_write_keeps_permissions(tools, root):
    script = root / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    call(tools["write_file"], path="run.sh", content="new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    old = os.umask(0o027)
    try:
        call(tools["write_file"], path="fresh", content="new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((root / "fresh").stat().st_mode) == 0o640


def test_write_does_not_change_what_a_hard_link_leads_to(tools, root):
    os.link(root.parent / "secret.txt", root / "hard")
    call(tools["write_file"], path="hard", content="new")
    assert (root.parent / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("con", "reserved"),
        ("src/NUL.txt", "reserved"),
        ("lpt1", "reserved"),
        ("a\\b.txt", "not \\"),
        ("a\nb", "control characters"),
        ("a\x1b[0m", "control characters"),
        (".git/hooks/pre-commit", "version control"),
        (".GIT/config", "version control"),
        ("src/", "names a folder"),
        ("new/", "names a folder"),
        ("readme.md/x", "not a folder"),
        ("é" * 200, "too long"),
    ],
)
def test_names_that_are_not_written(tools, root, path, words):
    before = tree(root)
    assert words in refused(tools["write_file"], path=path, content="x")
    assert tree(root) == before


def test_write_leaves_read_only_files_alone(tools, root):
    (root / "readme.md").chmod(0o444)
    assert "read-only" in refused(tools["write_file"], path="readme.md", content="x")


def test_a_write_that_fails_leaves_the_file_as_it_was(tools, root, monkeypatch):
    before = tree(root)

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(confined.os, "fsync", fail)
    assert "No space left" in refused(tools["write_file"], path="readme.md", content="x")
    assert tree(root) == before
    assert "are written" in refused(tools["write_file"], path="big", content="x" * (module.MAX_WRITTEN + 1))


# Searching


def test_search(tools):
    assert call(tools["search_files"], query="NEEDLE").splitlines() == [
        "readme.md:2: A needle here.",
        "src/main.py:2: return 'Needle'",
        "src/deep/needle.txt",
    ]
    assert call(tools["search_files"], query="here needle") == "readme.md:2: A needle here."
    assert call(tools["search_files"], query="deep txt") == "src/deep/needle.txt"
    assert (
        call(tools["search_files"], query="needle", folder="node_modules")
        == "node_modules/a.js:1: needle in modules"
    )
    assert ".env:1: needle=hidden" in call(tools["search_files"], query="needle", hidden=True)
    assert "git" not in call(tools["search_files"], query="needle", hidden=True)
    assert call(tools["search_files"], query="nowhere at all") == "nothing found in ."
    assert "no words" in refused(tools["search_files"], query=" \n ")
    assert "there is no lib" in refused(tools["search_files"], query="x", folder="lib")


def test_search_knows_letters_by_any_spelling(tools, root):
    (root / "Cafe\u0301.txt").write_text("STRASSE")
    assert call(tools["search_files"], query="CAFÉ").startswith("Cafe")
    assert "STRASSE" in call(tools["search_files"], query="straße")


def test_search_is_bounded(tools, root, monkeypatch):
    (root / "many.txt").write_text("haystack\n" * 100)
    lines = call(tools["search_files"], query="haystack").splitlines()
    assert lines[-1] == f"({100 - searching.PER_FILE} more lines in many.txt)"
    assert len(lines) == searching.PER_FILE + 1
    for number in range(100):
        (root / f"hay{number}.txt").write_text("haystack")
    lines = call(tools["search_files"], query="haystack").splitlines()
    assert len(lines) == searching.FOUND + 1
    assert lines[-1].startswith(f"(stopped at {searching.FOUND} lines")
    monkeypatch.setattr(searching, "MAX_FILES", 20)
    assert "stopped after 20 files" in call(tools["search_files"], query="qqqq")
    monkeypatch.setattr(searching, "MAX_FILES", 2000)
    monkeypatch.setattr(searching, "MAX_READ", 100)
    assert "stopped after" in call(tools["search_files"], query="qqqq")


def test_search_shows_the_place_in_a_long_line(tools, root):
    (root / "min.js").write_text("a" * 9000 + " haystack\x1b " + "b" * 9000)
    line = call(tools["search_files"], query="haystack")
    assert line.startswith("min.js:1: ...") and line.endswith("...")
    assert "haystack" in line and len(line) < 300 and line.isprintable()


def test_search_passes_over_huge_files_and_says_so(tools, root):
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    text = call(tools["search_files"], query="needle")
    assert text.endswith("(1 files were not read, too large)")


def test_search_ends_when_the_call_is_cancelled(tools):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(ToolError, match="cancelled"):
        call(tools["search_files"], cancel, query="needle")


# Limits: what just fits is shown whole, and one more is not


def test_the_longest_line_and_the_longest_text_that_are_shown_whole(tools, root):
    whole = "a" * module.MAX_TEXT
    (root / "line.txt").write_text(whole)
    assert call(tools["read_file"], path="line.txt") == whole
    (root / "line.txt").write_text(whole + "b")
    assert call(tools["read_file"], path="line.txt") == f"{whole}\n(line 1 is cut: it has 20,001 characters)"
    half = "a" * (module.MAX_TEXT // 2 - 1)  # with its line's end a half
    (root / "two.txt").write_text(f"{half}\n{half}\n")
    assert call(tools["read_file"], path="two.txt") == f"{half}\n{half}"
    (root / "two.txt").write_text(f"{half}\n{half}b\n")
    assert (
        call(tools["read_file"], path="two.txt") == f"{half}\n(lines 1 to 1 of 2, read on with first_line=2)"
    )


def test_the_most_lines_that_are_read_unasked(tools, root):
    text = "\n".join(str(number) for number in range(module.LINES))
    (root / "lines.txt").write_text(text)
    assert call(tools["read_file"], path="lines.txt") == text
    assert call(tools["read_file"], path="lines.txt", first_line=module.LINES) == (
        f"{module.LINES - 1}\n(lines 500 to 500 of 500)"
    )
    (root / "lines.txt").write_text(f"{text}\nmore")
    assert call(tools["read_file"], path="lines.txt") == (
        f"{text}\n(lines 1 to 500 of 501, read on with first_line=501)"
    )


def test_a_tenth_of_unreadable_letters_is_still_text(tools, root):
    (root / "latin.txt").write_bytes(b"a" * 9 + b"\xff")
    assert call(tools["read_file"], path="latin.txt").startswith("a" * 9 + "\N{REPLACEMENT CHARACTER}\n")
    (root / "latin.txt").write_bytes(b"a" * 8 + b"\xff")
    assert "not a text file" in refused(tools["read_file"], path="latin.txt")


def test_the_most_names_in_a_list(tools, root, monkeypatch):
    folder = root / "src" / "many"
    folder.mkdir()
    for number in range(module.LISTED):
        (folder / f"f{number:04}").touch()
    names = [f"f{number:04}  0 bytes" for number in range(module.LISTED)]
    assert call(tools["list_files"], folder="src/many").splitlines() == names
    monkeypatch.setattr(module, "SCANNED", module.LISTED)
    assert call(tools["list_files"], folder="src/many").splitlines() == names
    (folder / ".hidden").touch()
    monkeypatch.undo()
    assert call(tools["list_files"], folder="src/many").splitlines() == [
        *names, "(1 hidden: hidden=true lists them)",
    ]  # fmt: skip
    only_hidden = root / "src" / "secret"
    only_hidden.mkdir()
    (only_hidden / ".a").touch()
    assert call(tools["list_files"], folder="src/secret").splitlines() == [
        "(everything here is hidden)", "(1 hidden: hidden=true lists them)",
    ]  # fmt: skip


def test_folders_come_first_and_names_by_letters(tools, root):
    folder = root / "src" / "order"
    for name in ("b", "B2", "a.txt", "Z"):
        folder.joinpath(name).mkdir(parents=True) if name in ("b", "Z") else folder.joinpath(name).touch()
    assert call(tools["list_files"], folder="src/order").splitlines() == [
        "b/", "Z/", "a.txt  0 bytes", "B2  0 bytes",
    ]  # fmt: skip


def test_the_most_that_is_written(tools, root, monkeypatch):
    monkeypatch.setattr(module, "MAX_WRITTEN", 4)
    assert call(tools["write_file"], path="new", content="é12") == "wrote new: new file, 4 bytes"
    assert refused(tools["write_file"], path="new", content="é123").startswith(
        "5 bytes are too many: at most 4"
    )
    assert (root / "new").read_text() == "é12"


@pytest.mark.parametrize(("more", "end"), [(0, []), (1, ["(1 more lines in many.txt)"])])
def test_the_most_lines_of_a_file(tools, root, more, end):
    (root / "many.txt").write_text("haystack\n" * (searching.PER_FILE + more))
    lines = [f"many.txt:{number}: haystack" for number in range(1, searching.PER_FILE + 1)]
    assert call(tools["search_files"], query="haystack").splitlines() == [*lines, *end]


def test_the_most_that_a_search_finds(tools, root):
    names = [f"hay{number:03}" for number in range(searching.FOUND)]
    for name in names:
        (root / name).touch()
    assert call(tools["search_files"], query="hay").splitlines() == names
    (root / "hay999").touch()
    stopped = "(stopped at 60 lines: use more words, or search a folder further down)"
    assert call(tools["search_files"], query="hay").splitlines() == [*names, stopped]


@pytest.mark.parametrize(
    ("limit", "least", "note"),
    [
        ("MAX_FILES", 2, "(stopped after 1 files: search a folder further down)"),
        ("MAX_READ", 6, "(stopped after 0 MB: search a folder further down)"),
        ("MAX_FILE", 3, "(2 files were not read, too large)"),
    ],
)
def test_what_a_search_looks_at(tools, root, monkeypatch, limit, least, note):
    folder = root / "src" / "two"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text("hay")
    found = ["src/two/a:1: hay", "src/two/b:1: hay"]
    monkeypatch.setattr(searching, limit, least)
    assert call(tools["search_files"], query="hay", folder="src/two").splitlines() == found
    monkeypatch.setattr(searching, limit, least - 1)
    *left, last = call(tools["search_files"], query="hay", folder="src/two").splitlines()
    assert last == note
    if limit == "MAX_FILES":  # those that the system names first; they are searched all the same
        assert len(left) == 1 and left[0] in found
    else:
        assert left == {"MAX_READ": found[:1], "MAX_FILE": ["nothing found in src/two"]}[limit]


def test_how_much_of_a_line_is_shown(tools, root):
    def shown(before: int, after: int) -> str:
        (root / "long.txt").write_text("a" * before + " hay " + "b" * after)
        return call(tools["search_files"], query="hay").removeprefix("long.txt:1: ")

    assert shown(100, 95) == "a" * 100 + " hay " + "b" * 95
    assert shown(100, 96) == "..." + "a" * 99 + " hay " + "b" * 96
    assert shown(200, 96) == "..." + "a" * 99 + " hay " + "b" * 96
    assert shown(200, 97) == "..." + "a" * 99 + " hay " + "b" * 96 + "..."


def test_a_nul_near_the_beginning_makes_a_file_one_that_is_not_searched(tools, root):
    for at, found in ((4_095, "nothing found in ."), (4_096, "x.bin:1: hay")):
        (root / "x.bin").write_bytes((b"hay\n" + b"." * 5_000)[:at] + b"\0")
        assert call(tools["search_files"], query="hay") == found


def test_a_folder_that_vanishes_is_told(tools, root, monkeypatch):
    entries = confined.ConfinedFolder.entries

    def gone(self, parts):
        if parts == ("src", "deep"):
            raise ToolError("there is no deep")
        return entries(self, parts)

    monkeypatch.setattr(confined.ConfinedFolder, "entries", gone)
    assert call(tools["search_files"], query="main.py").splitlines() == [
        "src/main.py",
        "(1 files were not read, not readable)",
    ]


def test_the_longest_path_and_how_one_is_shown(tools):
    assert refused(tools["read_file"], path="a/" * 499 + "ab").startswith("there is no a")
    assert refused(tools["read_file"], path="a/" * 500 + "a") == (
        "the path has 1,001 characters: at most 1,000 are taken"
    )
    assert confined.shown(("a" * 200,)) == "a" * 200
    assert confined.shown(("b" * 101 + "c" * 100,)) == "b" * 100 + "..." + "c" * 97
    assert confined.shown(()) == "."
    assert confined.shown(("a\tb", "\x1b"), "/") == r"/a\tb/\x1b"


def test_what_is_meant_is_guessed_from_the_names_that_are_there(tools, root):
    folder = root / "src" / "guess"
    folder.mkdir()
    for name in ("report1", "report22", "report333", "other"):
        (folder / name).touch()
    assert refused(tools["read_file"], path="src/guess/report") == (
        "there is no src/guess/report; did you mean report1 or report22?"
    )
    assert refused(tools["read_file"], path="src/guess/zzz") == "there is no src/guess/zzz"


def test_a_file_of_just_the_size_that_is_read(tools, root, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 4)
    (root / "four").write_text("four")
    assert call(tools["read_file"], path="four") == "four"
    (root / "four").write_text("fives")
    assert refused(tools["read_file"], path="four") == (
        "four is too large to read: 5 bytes, at most 4 are read"
    )


@pytest.mark.parametrize("path", [".", "./", "src/.."])
def test_the_folder_itself_is_no_file(tools, path):
    said = ". is a folder, not a file" if ".." not in path else "src/..: a path may not contain '..'"
    assert refused(tools["read_file"], path=path).startswith(said)


def test_what_a_person_who_is_asked_is_shown_of_a_change(tools, root):
    change = tools["write_file"].change
    assert change({"path": "readme.md", "content": "new"}) == FileChange(
        "readme.md", "# Title\nA needle here.\nlast", "new"
    )
    assert change({"path": "./a//b", "content": "new"}) == FileChange("a/b", None, "new")
    for arguments in (
        {"path": "data.bin", "content": ""},
        {"path": "src", "content": ""},
        {"path": "../x", "content": ""},
        {"path": 3, "content": ""},
        {"path": "x"},
    ):
        assert change(arguments) is None


def test_what_is_no_text_is_not_written(tools, root):
    with pytest.raises(ToolError, match=r"^not Unicode text: lone surrogate at character 3$"):
        tools["write_file"](path="new", content="abc\ud800")
    assert not (root / "new").exists()
    with pytest.raises(ToolError, match=r"^'\\ud800' is not a path: it is not valid Unicode text$"):
        tools["read_file"](path="\ud800")


def test_a_top_folder_that_is_gone(tools, root):
    root.rename(root.with_name("moved"))
    said = refused(tools["read_file"], path="readme.md")
    assert said == "the folder of this tool cannot be opened: No such file or directory"
