"""Files of JSON lines: torn tails, damaged lines, full disks."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from localagent.errors import SaveFailed
from localagent.files.jsonl import LineProblem, LineReader, append_line, open_lines

LINES = [b'{"a":1}', '{"b":"Z\u00fcrich \U0001f98a \\n"}'.encode(), b'{"c":[1,2,{"d":null}]}']


def load(data: bytes) -> object:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def values(path: Path) -> list[object]:
    return [item.value for item in LineReader(path, load).read() if not isinstance(item, LineProblem)]


def problems(path: Path) -> list[str]:
    reader = LineReader(path, load)
    found = [str(item) for item in reader.read() if isinstance(item, LineProblem)]
    return [*found, str(reader.torn)] if reader.torn else found


def append(path: Path, *lines: bytes) -> None:
    descriptor = open_lines(path, create=not path.exists())
    for line in lines:
        append_line(descriptor, line, path)
    os.close(descriptor)


def test_lines_are_what_was_appended(tmp_path):
    path = tmp_path / "new" / "file.jsonl"
    append(path, *LINES)
    assert path.read_bytes() == b"".join(line + b"\n" for line in LINES)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert values(path) == [load(line) for line in LINES]


def test_a_file_is_made_once(tmp_path):
    path = tmp_path / "file.jsonl"
    with pytest.raises(FileNotFoundError):
        open_lines(path, create=False)
    append(path)
    with pytest.raises(FileExistsError):
        open_lines(path, create=True)


def test_a_file_cut_anywhere_loses_its_last_line_at_most(tmp_path):
    whole = b"".join(line + b"\n" for line in LINES)
    path = tmp_path / "file.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        ended = whole[:cut].count(b"\n")
        rest = whole[:cut].rpartition(b"\n")[2]
        complete = ended + (rest in LINES)
        expected = [load(line) for line in LINES[:complete]]
        torn = [] if rest == b"" or rest in LINES else [ended + 1]
        assert values(path) == expected
        assert problems(path) == [
            f"line {line} (byte {cut - len(rest)}): cut off: the process that wrote it was stopped"
            for line in torn
        ]
        append(path, b'{"z":0}', b'{"y":0}')
        assert values(path) == [*expected, {"z": 0}, {"y": 0}]
        assert path.read_bytes().startswith(whole[:cut]), "nothing is deleted"
        assert len(problems(path)) == len(torn)
        assert all(problem.startswith(f"line {ended + 1} ") for problem in problems(path))


def test_reading_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "file.jsonl"
    append(path, LINES[0])
    reader = LineReader(path, load)
    assert [item.line for item in reader.read()] == [1]
    for size in range(1, len(LINES[1]) - 1):
        path.write_bytes(LINES[0] + b"\n" + LINES[1][:size])
        assert reader.read() == []
        assert reader.torn is not None
    path.write_bytes(LINES[0] + b"\n" + LINES[1])  # all of it but the end of the line
    (item,) = reader.read()
    assert (item.line, item.offset, reader.torn) == (2, len(LINES[0]) + 1, None)
    append(path, LINES[2])
    (item,) = reader.read()
    assert (item.line, item.value) == (3, load(LINES[2]))
    assert reader.read() == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"\xff\xfe", "not UTF-8: byte 0xff at 0 in the line"),
        (b'{"a":"\xc3("}', "not UTF-8: byte 0xc3 at 6 in the line"),
        (b'\0\0\0\0{"a":1}', "4 NUL bytes"),
        (b'{"a":"x\0"}', "1 NUL bytes"),
        (b"hello", "Expecting value"),
        (b'{"a":1}{"a":2}', "Extra data"),
        (b"[1]", "no object"),
        (b'{"a":', "Expecting value"),
    ],
)
def test_a_bad_line_is_told_and_passed_over(tmp_path, bad, says):
    path = tmp_path / "file.jsonl"
    path.write_bytes(LINES[0] + b"\n" + bad + b"\n \r\n" + LINES[1] + b"\r\n")
    assert values(path) == [load(LINES[0]), load(LINES[1])]
    (problem,) = problems(path)
    assert problem.startswith(f"line 2 (byte {len(LINES[0]) + 1}): ")
    assert says in problem


def test_a_reason_is_one_short_line(tmp_path):
    def refuse(_: bytes) -> object:
        raise ValueError("a\nb" * 10_000)

    (tmp_path / "file").write_bytes(b"x\n")
    (problem,) = LineReader(tmp_path / "file", refuse).read()
    assert len(str(problem)) < 350
    assert "\n" not in str(problem)


@pytest.mark.parametrize("torn", [b"", b'{"to'])
@pytest.mark.parametrize("room", [0, 1, 7, 4096])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, torn, room):
    """The limit on the size of files makes a write short, as a full disk does."""
    path = tmp_path / "file.jsonl"
    append(path, LINES[0])
    before = path.read_bytes() + torn
    path.write_bytes(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptor = open_lines(path, create=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
    try:
        with pytest.raises(SaveFailed, match=r"cannot write to .*file\.jsonl .*free some space"):
            append_line(descriptor, b'{"big":"' + b"x" * 9000 + b'"}', path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    append_line(descriptor, LINES[1], path)
    os.close(descriptor)
    assert values(path) == [load(LINES[0]), load(LINES[1])]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_no_space_at_all():
    descriptor = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(SaveFailed, match="No space left on device"):
        append_line(descriptor, b"{}", Path("/dev/full"))
    os.close(descriptor)
