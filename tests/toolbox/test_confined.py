"""No path leads out of the folder of the file tools, whoever swaps files for links meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localagent.errors import ToolError, UsageError
from localagent.toolbox import confined
from localagent.toolbox.confined import ConfinedFolder
from localagent.toolbox.files import files
from tests.toolbox.calling import by_name, call
from tests.toolbox.trees import SECRET, refused, tree

OUTSIDE = [
    "/etc/passwd", "//etc/passwd", "/", "..", "../secret.txt", "src/../../secret.txt", "src/..", "./../secret.txt",
    "~", "~/x", "a\0b", "\0", "../root/readme.md", "/proc/self/root/etc/passwd", "x" * 300, "x/" * 2000, "n\0/../..",
    "link", "link/secret.txt", "file_link", "src/up/secret.txt", "loop", "loop/x", "dangling", "pipe", "device", "socket",
    "readme.md/", "readme.md/x", "", ".", "src",
]  # fmt: skip


@pytest.fixture
def trapped(root):
    """Links, pipes and devices in the folder."""
    (root / "link").symlink_to(root.parent / "outside")
    (root / "file_link").symlink_to(root.parent / "secret.txt")
    (root / "src" / "up").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to(root.parent / "not there")
    os.mkfifo(root / "pipe")
    (root / "device").symlink_to("/dev/zero")
    here = Path.cwd()
    os.chdir(root)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)
    return root


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_is_read_listed_searched_or_written(trapped, tools, path):
    before = tree(trapped.parent)
    if path != "readme.md/":
        assert str(trapped.parent) not in refused(tools["read_file"], path=path)
        assert str(trapped.parent) not in refused(tools["write_file"], path=path, content="x")
    if path not in ("", ".", "src"):
        refused(tools["list_files"], folder=path)
        refused(tools["search_files"], folder=path, query="secret")
    assert tree(trapped.parent) == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("link/secret.txt", "link is a symbolic link"),
        ("link/nothing", "link is a symbolic link"),  # whether there is something behind it is not told
        ("file_link", "file_link is a symbolic link"),
        ("dangling", "dangling is a symbolic link"),
        ("pipe", "not a regular file"),
        ("socket", "not a regular file"),
        ("src", "is a folder"),
        (".", "is a folder"),
        ("/etc/passwd", "relative"),
        ("~/x", "~/x: paths are relative"),
        ("../secret.txt", "'..'"),
        ("a\0b", "NUL"),
        ("readme.m", "did you mean readme.md"),
        ("readme.md/x", "readme.md is not a folder"),
    ],
)
def test_refusals_say_why(trapped, tools, path, words):
    assert words in refused(tools["read_file"], path=path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(tools, root):
    (root / "closed").write_text("x")
    (root / "closed").chmod(0)
    assert "Permission denied" in refused(tools["read_file"], path="closed")


def test_a_search_follows_no_link_and_waits_for_no_pipe(trapped, tools):
    text = call(tools["search_files"], query="secret", hidden=True)
    assert text == "nothing found in ."


@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "", "link", "file_link", "src", "up", "loop", "pipe", "~", "\0", "a", "x" * 300, "\\"]
        ),
        max_size=8,
    )
)
def test_no_path_of_such_pieces_leads_out(tmp_path_factory, pieces):
    base = tmp_path_factory.mktemp("confined")
    (base / "secret.txt").write_text(SECRET)
    root = base / "root"
    (root / "src").mkdir(parents=True)
    (root / "link").symlink_to(base)
    (root / "file_link").symlink_to(base / "secret.txt")
    (root / "src" / "up").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    tools = by_name(files(root, write=True))
    before = {path for path in base.rglob("*") if not path.is_relative_to(root)}
    path = "/".join([*pieces, "secret.txt"])
    for tool, arguments in (
        ("read_file", {"path": path}),
        ("list_files", {"folder": path}),
        ("search_files", {"folder": path, "query": "secret"}),
        ("write_file", {"path": path, "content": "overwritten"}),
    ):
        try:
            assert SECRET not in call(tools[tool], **arguments)
        except ToolError as error:
            assert SECRET not in str(error) and str(base) not in str(error)
    assert (base / "secret.txt").read_text() == SECRET
    assert {path for path in base.rglob("*") if not path.is_relative_to(root)} == before


@pytest.mark.parametrize("tool", ["read_file", "write_file", "list_files"])
def test_a_link_that_takes_the_place_of_a_folder_meanwhile(root, tools, monkeypatch, tool):
    """After the folder was looked at and before it is opened: the moment that a check by path would miss."""
    real, done = os.open, []

    def swap(path, flags, *arguments, **options):
        if path == "src" and not done:
            done.append(True)
            (root / "src").rename(root / "moved")
            (root / "src").symlink_to(root.parent / "outside")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(confined.os, "open", swap)
    arguments = {
        "read_file": {"path": "src/secret.txt"},
        "write_file": {"path": "src/secret.txt", "content": "overwritten"},
        "list_files": {"folder": "src"},
    }[tool]
    with pytest.raises(ToolError, match="src is a symbolic link"):
        call(tools[tool], **arguments)
    assert done
    assert (root.parent / "outside" / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize("trap", ["link", "fifo"])
def test_what_takes_the_place_of_a_file_meanwhile(root, tools, monkeypatch, trap):
    real = os.lstat

    def swap(path, **options):
        state = real(path, **options)
        if path == "readme.md":
            (root / path).unlink()
            if trap == "link":
                (root / path).symlink_to(root.parent / "secret.txt")
            else:
                os.mkfifo(root / path)
        return state

    monkeypatch.setattr(confined.os, "lstat", swap)
    with pytest.raises(ToolError, match="symbolic link" if trap == "link" else "not a regular file"):
        call(tools["read_file"], path="readme.md")


def test_a_link_that_takes_the_place_of_a_file_before_it_is_replaced(root, tools, monkeypatch):
    real = os.replace

    def swap(*arguments, **options):
        (root / "readme.md").unlink()
        (root / "readme.md").symlink_to(root.parent / "secret.txt")
        return real(*arguments, **options)

    monkeypatch.setattr(confined.os, "replace", swap)
    call(tools["write_file"], path="readme.md", content="new")
    assert (root / "readme.md").read_text() == "new" and not (root / "readme.md").is_symlink()
    assert (root.parent / "secret.txt").read_text() == SECRET


def test_a_race_with_somebody_who_swaps_links(root, tools):
    """Not a proof, but what a check by path fails within moments."""
    real, link, spare = root / "src", root / "spare_link", root / "spare"
    (real / "secret.txt").write_text("inside")
    link.symlink_to(root.parent / "outside")
    stop = threading.Event()

    def put(source: Path) -> None:
        for number in range(1000):
            try:
                source.rename(real)
                return
            except OSError:  # whoever wrote made the folder that was missing
                real.rename(root / f"{source.name}{number}{time.monotonic_ns()}")

    def swapping():
        while not stop.is_set():
            real.rename(spare)
            put(link)
            real.rename(link)
            put(spare)

    thread = threading.Thread(target=swapping)
    thread.start()
    try:
        for number in range(1500):
            try:
                if number % 3 == 0:
                    call(tools["write_file"], path="src/secret.txt", content="inside")
                else:
                    assert call(tools["read_file"], path="src/secret.txt") == "inside"
            except ToolError:
                pass
    finally:
        stop.set()
        thread.join()
    assert (root.parent / "outside" / "secret.txt").read_text() == SECRET
    assert [path.name for path in (root.parent / "outside").iterdir()] == ["secret.txt"]


def test_no_descriptor_is_left_open(trapped, tools):
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")

    def everything():
        for path in OUTSIDE:
            for tool, arguments in (("read_file", {}), ("write_file", {"content": "x"})):
                with contextlib.suppress(ToolError):
                    call(tools[tool], path=path, **arguments)
        call(tools["search_files"], query="needle")
        call(tools["write_file"], path="fine", content="x")

    everything()
    before = len(list(folder.iterdir()))
    everything()
    assert len(list(folder.iterdir())) == before


def test_systems_that_cannot_open_relative_to_a_folder(root, monkeypatch):
    monkeypatch.setattr(confined.os, "supports_dir_fd", set())
    with pytest.raises(UsageError, match="this system"):
        ConfinedFolder(root)
