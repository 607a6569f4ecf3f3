"""Snapshots on disk: what was written comes back, and what is not whole is never used."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localagent.cli.cache import list_snapshots
from localagent.hosts.prefix import (
    PrefixCache,
    SnapshotFolder,
    SnapshotKey,
    Snapshots,
    Transcripts,
    snapshots,
)
from localagent.hosts.prefix.snapshot_file import digest
from localagent.hosts.prefix.snapshots import default_root
from tests.hosts.prefix.chain import Chain, folded
from tests.hosts.prefix.test_cache import go, talk

KEY = SnapshotKey("a model", "weights", "template", "engine 1", "Linux x86_64")


def fresh(root: Path, key: SnapshotKey = KEY, **limits: int) -> tuple[PrefixCache, Chain]:
    chain = Chain()
    return PrefixCache([chain], snapshots=Snapshots(SnapshotFolder(root, **limits), key)), chain


def write(root: Path, ids: list[int]) -> Path:
    cache, chain = fresh(root)
    go(cache, chain, ids)
    before = set(SnapshotFolder(root).files())
    cache.write()
    (path,) = set(SnapshotFolder(root).files()) - before
    return path


def test_a_conversation_survives_the_process(tmp_path: Path) -> None:
    ids = talk(1, 200)
    write(tmp_path, ids)
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*ids, 1, 2, 3]) == 200
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*ids[:150], 51]) == 144, "its checkpoints survive as well"
    assert chain.value == folded([*ids[:150], 51])


def test_the_longest_one_is_taken_and_supersedes_its_beginnings(tmp_path: Path) -> None:
    write(tmp_path, talk(1, 100))
    write(tmp_path, [*talk(1, 100), *talk(2, 100)])
    write(tmp_path, talk(3, 100))
    assert len(SnapshotFolder(tmp_path).files()) == 2
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 100), *talk(2, 100), 4]) == 200


def test_one_that_just_fits_and_is_just_worth_it_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 200))
    stored, ids = Snapshots(SnapshotFolder(tmp_path), KEY), [*talk(1, 200), 4]
    assert [stored.find(ids, least, 200) for least in (200, 201)] == [path, None]
    assert [stored.find(ids, 1, most) for most in (200, 199)] == [path, None]


def test_every_saved_conversation_is_written(tmp_path: Path) -> None:
    tmp_path = tmp_path / "not" / "yet"
    cache, chain = fresh(tmp_path)
    for seed in range(3):
        go(cache, chain, talk(seed, 80))
    there: list[int] = []
    cache.write(lambda: there.append(len(SnapshotFolder(tmp_path).files())))
    assert there == [1, 2, 3], "each is told, since all together may take minutes"
    cache.write()
    assert len(SnapshotFolder(tmp_path).files()) == 3


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(SnapshotKey)])
def test_another_key_never_sees_it(tmp_path: Path, field: str) -> None:
    write(tmp_path, talk(1, 200))
    cache, chain = fresh(tmp_path, dataclasses.replace(KEY, **{field: "other"}))
    assert go(cache, chain, [*talk(1, 200), 1]) == 0


def test_a_file_under_the_wrong_folder_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, talk(1, 200))
    other = dataclasses.replace(KEY, weights="others")
    (tmp_path / other.folder).mkdir()
    path.rename(tmp_path / other.folder / path.name)
    cache, chain = fresh(tmp_path, other)
    assert go(cache, chain, [*talk(1, 200), 1]) == 0
    says = f"{tmp_path / other.folder / path.name}: ignored: not a whole snapshot of this model"
    assert caplog.record_tuples == [("localagent.hosts.prefix.snapshots", logging.WARNING, says)]


@settings(max_examples=60)
@given(st.data())
def test_damage_anywhere_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One flipped byte, a cut or an appended byte: ignored, and the tokens are computed instead."""
    root = tmp_path_factory.mktemp("damage")
    path = write(root, talk(1, 200))
    content = bytearray(path.read_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "append"])):
        case "flip":
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        case "append":
            content += b"x"
    path.write_bytes(content)
    cache, chain = fresh(root)
    assert go(cache, chain, [*talk(1, 200), 1]) == 0


def test_what_the_adapter_does_not_understand_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, talk(1, 200))
    cache, chain = fresh(tmp_path)
    unpack = chain.unpack
    monkeypatch.setattr(chain, "unpack", lambda packed: unpack(dataclasses.replace(packed, layout=None)))
    assert go(cache, chain, [*talk(1, 200), 1]) == 0
    assert "ignored: no state of a chain" in caplog.text


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = write(tmp_path / "new", talk(1, 100))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_others_wrote_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, talk(1, 100))
    assert SnapshotFolder(tmp_path).describe(path) == (KEY, 100)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert SnapshotFolder(tmp_path).describe(path) is None


def test_limits_hold_and_the_oldest_goes_first(tmp_path: Path) -> None:
    paths = [write(tmp_path, talk(seed, 100)) for seed in range(3)]
    for age, path in enumerate(paths):
        os.utime(path, (age, age))
    size = paths[0].stat().st_size
    cache, chain = fresh(tmp_path, per_model=3 * size + 100, total=10 * size)
    go(cache, chain, talk(9, 100))
    cache.write()
    files = SnapshotFolder(tmp_path).files()
    assert len(files) == 3
    assert paths[0] not in files
    other = dataclasses.replace(KEY, name="another")
    chain = Chain()
    cache = PrefixCache([chain], snapshots=Snapshots(SnapshotFolder(tmp_path, total=2 * size + 100), other))
    go(cache, chain, talk(8, 100))
    cache.write()
    assert len(SnapshotFolder(tmp_path).files()) == 2


def test_what_just_fits_stays(tmp_path: Path) -> None:
    sizes = [write(tmp_path, talk(seed, 100)).stat().st_size for seed in range(3)]
    SnapshotFolder(tmp_path, total=sum(sizes)).shrink(tmp_path / KEY.folder)
    assert len(SnapshotFolder(tmp_path).files()) == 3
    SnapshotFolder(tmp_path, total=sum(sizes) - 1).shrink(tmp_path / KEY.folder)
    assert len(SnapshotFolder(tmp_path).files()) == 2


def test_the_limits_are_those_that_the_help_names(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path)
    assert (folder.per_model, folder.total) == (1 << 30, 4 << 30)
    assert "at most 1 GB per model and 4 GB in all" in " ".join(str(list_snapshots.__doc__).split())


def test_limits_of_a_model_leave_the_others_alone(tmp_path: Path) -> None:
    kept = [write(tmp_path, talk(seed, 100)) for seed in range(2)]
    other = dataclasses.replace(KEY, name="another")
    for seed in range(3):
        prefixes, chain = fresh(tmp_path, other, per_model=1)
        go(prefixes, chain, talk(seed, 100))
        prefixes.write()
    assert SnapshotFolder(tmp_path).files() == kept


@pytest.mark.parametrize("removed", [False, True])
def test_a_full_disk_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Also if somebody makes room meanwhile."""

    def full(path: Path, *_: object, **__: object) -> None:
        if removed:
            path.unlink()
        raise OSError(28, "No space left on device")

    cache, chain = fresh(tmp_path)
    go(cache, chain, talk(1, 100))
    monkeypatch.setattr(Path, "replace", full)
    cache.write()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}")
    assert record.getMessage().endswith(".prefix: not written: No space left on device")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_clearing_removes_everything_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 100))
    path.with_name(f".{path.name}.1-abc.new").write_text("torn")
    keep = tmp_path / "notes.txt"
    keep.write_text("mine")
    assert SnapshotFolder(tmp_path).clear()[0] == 1
    assert list(tmp_path.iterdir()) == [keep]
    assert SnapshotFolder(tmp_path / "nothing").clear() == (0, 0)


def test_the_words_of_the_model_survive_with_it(tmp_path: Path) -> None:
    known = Transcripts(["!"])
    chain = Chain()
    cache = PrefixCache([chain], 1 << 20, Snapshots(SnapshotFolder(tmp_path), KEY), known)
    ids = talk(1, 60)
    go(cache, chain, ids)
    known.add("question\ud800 answer", ids)
    cache.write()
    again = Transcripts(["!"])
    for turns in Snapshots(SnapshotFolder(tmp_path), KEY).turns():
        again.learn(turns)
    assert again.longest("question\ud800 answer!") == (16, tuple(ids))


# -- files that are whole and make no sense -----------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a file, with the right digest."""
    content = path.read_bytes()
    begin = len(b"localagent prefix 1\n") + 8 + 32
    (length,) = struct.unpack_from("<Q", content, begin - 40)
    fields = json.loads(content[begin : begin + length])
    change(fields)
    raw = json.dumps(fields).replace('"DEEP"', "[" * 50_000 + "]" * 50_000).encode()
    head = content[: begin - 40] + struct.pack("<Q", len(raw)) + digest(raw)
    path.write_bytes(head + raw + content[begin + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.pop("key"),
        lambda f: f.update(key=[]),
        lambda f: f["key"].update(more="x"),
        lambda f: f["key"].update(name=1),
        lambda f: f.pop("ids"),
        lambda f: f.update(ids=None),
        lambda f: f.update(ids=[]),
        lambda f: f["ids"].append(-1),
        lambda f: f["ids"].append(1.5),
        lambda f: f.pop("turns"),
        lambda f: f.update(turns=[["x"]]),
        lambda f: f.update(turns=[["x", ["y"]]]),
        lambda f: f.update(turns=[[1, [1]]]),
        lambda f: f["lengths"].pop(),
        lambda f: f["lengths"].reverse(),
        lambda f: f["lengths"].append(10**9),
        lambda f: f.update(states=[]),
        lambda f: f["states"][0][1].append(0.5),
        lambda f: f["states"][0][1].append(-8),
        lambda f: f["states"][0].pop(),
        lambda f: f.update(states="DEEP"),
    ],
)
def test_nonsense_under_a_right_digest_is_ignored(tmp_path: Path, change: Any) -> None:
    path = write(tmp_path, talk(1, 200))
    rewritten(path, change)
    stored = Snapshots(SnapshotFolder(tmp_path), KEY)
    assert list(stored.turns()) == []
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 200), 1]) == 0
    assert SnapshotFolder(tmp_path).describe(path) in (None, (KEY, 200))


def test_a_refused_state_is_asked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, talk(1, 200))
    cache, chain = fresh(tmp_path)
    chain.refusing = True
    for more in range(3):
        assert go(cache, chain, [*talk(1, 200), more]) == 0
        cache.clear(cache._seats[0])
    assert caplog.text.count("the engine refused it") == 1


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 200))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 200), 1]) == 0
    cache.clear(cache._seats[0])
    go(cache, chain, talk(1, 200))
    cache.write()
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 200), 1]) == 200


def test_a_file_that_another_process_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 200))
    cache, chain = fresh(tmp_path)
    go(cache, chain, talk(5, 10))
    path.unlink()
    other, chained = fresh(tmp_path)
    go(other, chained, talk(1, 200), step=5)
    other.write()
    assert go(cache, chain, [*talk(1, 200), 1]) == 200


def test_a_sequence_longer_than_the_context_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, talk(1, 200))
    chain = Chain()
    cache = PrefixCache([chain], snapshots=Snapshots(SnapshotFolder(tmp_path), KEY), context=199)
    assert go(cache, chain, [*talk(1, 150), 1]) == 0


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 100))
    torn = path.with_name(f".{path.name}.1-abc.new")
    torn.write_bytes(b"torn")
    cache, chain = fresh(tmp_path)
    go(cache, chain, talk(2, 100))
    cache.write()
    assert torn.exists(), "it may be being written"
    os.utime(torn, (1, 1))
    go(cache, chain, talk(3, 100))
    cache.write()
    assert not torn.exists()


def test_a_pipe_is_no_snapshot(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 100))
    os.mkfifo(path.with_name("pipe.prefix"))
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 100), 1]) == 100


# -- files that come and go ---------------------------------------------------------------------------


def test_what_another_process_removed_meanwhile_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists a folder finds files that are gone when they are looked at."""
    write(tmp_path, talk(1, 100))
    (path,) = SnapshotFolder(tmp_path).files()
    gone = path.with_name("gone.prefix")
    found = snapshots._by_use
    monkeypatch.setattr(snapshots, "_by_use", lambda folder, pattern: [gone, *found(folder, pattern)])
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 100), 1]) == 100
    go(cache, chain, talk(2, 100))
    cache.write()
    assert caplog.text == ""
    left = found(tmp_path, "*/*.prefix")
    assert len(left) == 2, "the longer one in place of its beginning, and the new one"
    size = sum(each.stat().st_size for each in left)
    assert SnapshotFolder(tmp_path).clear()[1] == size
    assert found(tmp_path, "*/*.prefix") == []


def test_listing_passes_over_what_is_gone_and_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, talk(1, 100))
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "gone", *glob(folder, pattern)])
    assert SnapshotFolder(tmp_path).files() == [path]

    def refuse(folder: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "glob", refuse)
    assert SnapshotFolder(tmp_path).files() == []
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(1, 100), 1]) == 0


def test_clearing_says_how_much_there_was_and_leaves_the_folders_of_others(tmp_path: Path) -> None:
    path = write(tmp_path, talk(1, 100))
    size = path.stat().st_size
    keep = path.with_name("notes.txt")
    keep.write_text("mine")
    assert SnapshotFolder(tmp_path).clear() == (1, size)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [keep]


def test_what_is_read_counts_as_used(tmp_path: Path) -> None:
    paths = [write(tmp_path, talk(seed, 100)) for seed in range(3)]
    for age, path in enumerate(paths):
        os.utime(path, (age, age))
    assert SnapshotFolder(tmp_path).files() == paths
    cache, chain = fresh(tmp_path)
    assert go(cache, chain, [*talk(0, 100), 1]) == 100
    assert SnapshotFolder(tmp_path).files() == [paths[1], paths[2], paths[0]]
    cache, chain = fresh(tmp_path)
    go(cache, chain, talk(1, 100))
    before = paths[1].stat().st_ino
    cache.write()
    assert SnapshotFolder(tmp_path).files() == [paths[2], paths[0], paths[1]]
    assert paths[1].stat().st_ino == before, "the same sequence is not written again"


def test_where_snapshots_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    assert SnapshotFolder().root == default_root() == tmp_path / "home" / "prefixes"
    monkeypatch.delenv("LOCALAGENT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_root().parts[-2:] == ("localagent", "prefixes")
    assert SnapshotFolder(tmp_path).root == tmp_path


def test_folders_are_named_for_people() -> None:
    names = {"a model": "a-model", "../..": "model", "": "model", "x" * 99: "x" * 40, "Ünï/2.5": "n-2.5"}
    for name, shown in names.items():
        folder = dataclasses.replace(KEY, name=name).folder
        assert folder.rpartition("-")[0] == shown
        assert len(folder.rpartition("-")[2]) == 16
