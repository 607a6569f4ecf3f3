"""Folders follow LOCALAGENT_HOME, a lock is held by one process at a time, and switches are read when asked."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localagent.errors import UsageError
from localagent.files.lock import take
from localagent.files.paths import replace_file, sync, user_path
from localagent.settings import switched_off, switched_on, why_offline
from tests.durable import Durable


def test_everything_is_below_the_home_that_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    assert {user_path(kind, "x") for kind in ("cache", "data", "log", "state")} == {tmp_path / "x"}


def test_without_a_home_the_systems_folders_are_used(monkeypatch):
    monkeypatch.delenv("LOCALAGENT_HOME", raising=False)
    paths = {kind: user_path(kind, "x") for kind in ("cache", "data", "log", "state")}
    assert {kind: path.name for kind, path in paths.items() if kind != "log"} == dict.fromkeys(
        ("cache", "data", "state"), "x"
    )
    assert paths["log"].name != "x"
    assert all("localagent" in path.parts for path in paths.values())


def test_a_home_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", "~nobody-of-this-name/x")
    with pytest.raises(UsageError, match="no such home folder"):
        user_path("data", "x")


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    durable = Durable(monkeypatch, tmp_path)
    for data, mode in ((b"old", None), (b"new", 0o664), (b"newer", 0o600)):
        replace_file(tmp_path / "a", data, mode)
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_bytes() == data
        assert (tmp_path / "a").stat().st_mode & 0o777 == (0o644 if mode is None else mode)
    (kind, name), *rest = durable.done[:3]
    assert (kind, rest) == ("sync", [("rename", "a"), ("sync", ".")])
    assert re.fullmatch(rf"\.a\.{os.getpid()}-\w{{8}}\.new", name)


def test_a_file_that_cannot_be_replaced_stays_alone(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path):
    """A real one, killed while it writes; what another that runs is writing stays."""
    path = tmp_path / "settings[1].json"
    path.write_text("old")
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom localagent.files.paths import replace_file\n"
        "os.fsync = lambda _: (print(flush=True), time.sleep(600))\n"
        f"replace_file(Path({str(path)!r}), b'killed')"
    )
    writing = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in writing:
            process.stdout.readline()
        writing[0].kill()
        writing[0].wait()
        left = {each.name.split(".")[-2].split("-")[0] for each in tmp_path.glob(".*")}
        assert left == {str(process.pid) for process in writing}
        replace_file(path, b"new")
        [other] = tmp_path.glob(".*")
        assert other.name.startswith(f".{path.name}.{writing[1].pid}-")
    finally:
        for process in writing:
            process.kill()
            process.communicate()
    assert path.read_text() == "new"


def test_a_lock_is_held_once_and_free_after_the_with(tmp_path):
    file = tmp_path / "a.lock"
    with take(file, 0), pytest.raises(TimeoutError):
        take(file, 0.02)
    with take(file, 0):
        pass
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_limit_a_lock_is_waited_for(tmp_path):
    lock, taken = take(tmp_path / "a.lock", 0), threading.Event()

    def wait() -> None:
        with take(tmp_path / "a.lock", -1):
            taken.set()

    thread = threading.Thread(target=wait)
    with lock:
        thread.start()
        assert not taken.wait(0.3)
    assert taken.wait(10)
    thread.join(10)


def test_a_lock_is_let_go_in_whatever_thread(tmp_path):
    taken, go, held = threading.Event(), threading.Event(), []

    def work() -> None:
        held.append(take(tmp_path / "a.lock", 0))
        taken.set()
        go.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert taken.wait(10)
    held[0].__exit__(None, None, None)
    with take(tmp_path / "a.lock", 0):
        go.set()
    thread.join(10)


def test_a_file_system_without_locks_is_an_error_of_the_system(tmp_path, monkeypatch):
    import filelock

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="no locks") as caught:
        take(tmp_path / "a.lock", 0)
    assert caught.value.errno == errno.ENOLCK


def test_files_and_folders_are_synced(tmp_path):
    (tmp_path / "a").write_text("a")
    sync(tmp_path / "a")
    sync(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync(Path(tmp_path, "b"))


def test_a_folder_that_cannot_be_synced_is_told(tmp_path, monkeypatch):
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        sync(tmp_path)


@pytest.mark.parametrize(
    ("value", "on", "off"),
    [
        (None, False, False),
        ("", False, False),
        (" Yes ", True, False),
        ("1", True, False),
        ("OFF", False, True),
    ],
)
def test_a_switch_says_yes_or_no_or_nothing(monkeypatch, value, on, off):
    monkeypatch.delenv("X_SWITCH", raising=False)
    if value is not None:
        monkeypatch.setenv("X_SWITCH", value)
    assert (switched_on("X_SWITCH"), switched_off("X_SWITCH")) == (on, off)


@pytest.mark.parametrize(
    ("variable", "asked", "hub", "reason"),
    [
        (None, None, True, ""),
        ("LOCALAGENT_OFFLINE", None, False, "offline: LOCALAGENT_OFFLINE is set"),
        ("LOCALAGENT_OFFLINE", False, False, ""),
        (None, True, False, "offline"),
        ("HF_HUB_OFFLINE", None, True, "offline: HF_HUB_OFFLINE is set"),
        ("HF_HUB_OFFLINE", None, False, ""),
        ("TRANSFORMERS_OFFLINE", None, True, "offline: TRANSFORMERS_OFFLINE is set"),
    ],
)
def test_why_offline(monkeypatch, variable, asked, hub, reason):
    for name in ("LOCALAGENT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    assert why_offline(asked, hub=hub) == reason
    assert variable is None or os.environ[variable] == "1"
