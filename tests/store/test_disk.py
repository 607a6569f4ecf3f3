"""Files and folders of the store are replaced whole, and are on the disk before they are said to be there."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.errors import DiskFull, UsageError
from localagent.store import disk
from tests.durable import Durable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file it is")


@pytest.mark.parametrize("older", [False, True])
def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    stage, final, retired = tmp_path / "stage", tmp_path / "models" / "final", tmp_path / "retired"
    (stage / "inner").mkdir(parents=True)
    (stage / "inner" / "weights").write_bytes(b"new")
    if older:
        final.mkdir(parents=True)
        (final / "weights").write_bytes(b"old")
    durable = Durable(monkeypatch, tmp_path)
    disk.move_into_place(stage, final, retired)
    names = [("rename", "retired")] * older + [("rename", "models/final")]
    synced = [("sync", "stage/inner"), ("sync", "stage/inner/weights"), ("sync", "stage")]
    assert durable.done == [*synced, *names, ("sync", "models")]
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "models/final/inner/weights"
    }


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_store_that_may_not_be_changed(tmp_path: Path, number: int) -> None:
    with pytest.raises(UsageError) as caught, disk.forbidden_is_usage_error(tmp_path):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"cannot write to {tmp_path} ({os.strerror(number)}): set LOCALAGENT_HOME"
    with pytest.raises(OSError, match="Input/output"), disk.forbidden_is_usage_error(tmp_path):
        raise OSError(errno.EIO, "Input/output error")


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFull, match=f"^the disk of {tmp_path} ran full while writing"),
        disk.no_space_is_disk_full(tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="Input/output"), disk.no_space_is_disk_full(tmp_path):
        raise OSError(errno.EIO, "Input/output error")


def test_space_for_what_comes_and_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**12
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    for folder in (tmp_path, tmp_path / "not" / "yet"):
        disk.require_space(folder, free - disk.MARGIN)
        with pytest.raises(DiskFull, match=f"^not enough disk space in {tmp_path}: "):
            disk.require_space(folder, free - disk.MARGIN + 1)
    disk.require_space(tmp_path, 0)


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    assert disk.tree_size(tmp_path / "none") == disk.tree_size(tmp_path) == 0
    for name, size in (("a", 3), ("b/c", 4), ("b/d/e", 5)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert disk.tree_size(tmp_path) == 12
