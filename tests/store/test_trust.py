"""The store returns weights only when they are whole, of the right source and under their own name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from localagent.catalog import HubSource, ModelSpec, PathSource, WheelSource, load_catalog
from localagent.errors import DiskFull, HashMismatch, ModelMissing, UsageError
from localagent.store import WeightStore, record
from localagent.store.disk import forbidden_is_usage_error, no_space_is_disk_full, tree_size
from tests.store.pulling import make_spec

CONTENT = b"GGUF" + bytes(10_000)


@pytest.fixture
def spec() -> ModelSpec:
    return make_spec(
        llamacpp=WheelSource(
            package="none",
            version="1",
            member="none/tiny.gguf",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size=len(CONTENT),
            wheel_sha256="0" * 64,
            wheel_size=9,
        )
    )


@pytest.fixture
def weights(spec: ModelSpec, store: WeightStore) -> Path:
    """A model as a finished pull leaves it."""
    path = store.path(spec, "llamacpp")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    files = record.prove(path.parent, [(path.name, hashlib.sha256(CONTENT).hexdigest())])
    record.write(path.parent, record.Record(record.identity(spec.sources["llamacpp"]), files))
    assert store.find(spec, "llamacpp") == path
    return path


def refused(spec: ModelSpec, store: WeightStore, error: type[Exception]) -> str:
    assert store.find(spec, "llamacpp") is None
    with pytest.raises(error) as caught:
        store.require(spec, "llamacpp")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_without_a_record_are_no_model(spec: ModelSpec, store: WeightStore) -> None:
    path = store.path(spec, "llamacpp")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    message = refused(spec, store, ModelMissing)
    assert "tiny" in message
    assert str(path.parent) in message
    assert "`localagent models pull tiny`" in message


@pytest.mark.parametrize("part", [0, 1, 50, -1])
def test_a_torn_record_is_no_model(part: int, spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    file = weights.parent / record.NAME
    file.write_bytes(file.read_bytes()[:part])
    refused(spec, store, ModelMissing)


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "null",
        '"x"',
        "{}",
        '{"version": 2}',
        '{"version": 1, "source": {}, "commit": null, "files": []}',
        "\udcff",
    ],
)
def test_a_foreign_record_is_no_model(body: str, spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    (weights.parent / record.NAME).write_bytes(body.encode("utf-8", "surrogateescape"))
    refused(spec, store, ModelMissing)


def test_record_of_another_source(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    source = spec.sources["llamacpp"].model_copy(update={"version": "2"})
    refused(spec.model_copy(update={"sources": {"llamacpp": source}}), store, ModelMissing)


def test_truncated_weights_are_refused(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    weights.write_bytes(CONTENT[:-1])
    assert "localagent models pull tiny" in refused(spec, store, HashMismatch)


def test_deleted_weights_are_refused(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    weights.unlink()
    refused(spec, store, HashMismatch)


def test_one_byte_changed(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    weights.write_bytes(CONTENT[:-1] + b"x")
    refused(spec, store, HashMismatch)


def test_touched_is_hashed_once_and_trusted(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    os.utime(weights, ns=(1, 1))
    assert store.find(spec, "llamacpp") == weights
    proof = record.read(weights.parent)
    assert proof is not None
    assert proof.files[0].mtime_ns == 1


def test_verify_sees_what_the_time_stamp_hides(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    stamp = weights.stat().st_mtime_ns
    weights.write_bytes(CONTENT[:-1] + b"x")
    os.utime(weights, ns=(stamp, stamp))
    assert store.find(spec, "llamacpp") == weights, "the cheap check cannot see it"
    with pytest.raises(HashMismatch):
        store.verify(spec, "llamacpp")
    refused(spec, store, HashMismatch)
    with pytest.raises(HashMismatch):
        store.verify(spec, "llamacpp")


def test_verify_reports_progress_and_needs_a_model(
    spec: ModelSpec, store: WeightStore, weights: Path
) -> None:
    seen: list[tuple[str, int, int | None]] = []
    store.verify(spec, "llamacpp", lambda *step: seen.append(step))
    assert seen == [("verify", 0, len(CONTENT)), ("verify", len(CONTENT), len(CONTENT))]
    store.remove(spec, "llamacpp")
    with pytest.raises(ModelMissing):
        store.verify(spec, "llamacpp")


def test_remove_frees_the_weights_and_their_folders(
    spec: ModelSpec, store: WeightStore, weights: Path
) -> None:
    assert len(CONTENT) < store.remove(spec, "llamacpp") < len(CONTENT) + 2000
    assert sorted(entry.name for entry in store.root.iterdir()) in ([".locks"], [".locks", ".partial"])
    with pytest.raises(ModelMissing):
        store.remove(spec, "llamacpp")


def test_remove_while_pulled(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    from filelock import FileLock

    folder = store.root / ".locks"
    folder.mkdir(exist_ok=True)
    with (
        FileLock(folder / "tiny.llamacpp.lock"),
        pytest.raises(UsageError, match=r"another process is pulling tiny \(llamacpp\)"),
    ):
        store.remove(spec, "llamacpp")
    assert store.find(spec, "llamacpp") == weights


def test_disk_full_before_anything_is_fetched(spec: ModelSpec, store: WeightStore) -> None:
    source = spec.sources["llamacpp"].model_copy(update={"size": 10**17})
    with pytest.raises(DiskFull) as caught:
        store.pull(spec.model_copy(update={"sources": {"llamacpp": source}}), "llamacpp")
    assert len(re.findall(r"[\d.,]+ [MG]B (?:needed|free)", str(caught.value))) == 2
    assert not (store.root / ".partial").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_disk_full_while_writing(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="ran full"), no_space_is_disk_full(tmp_path):
        Path("/dev/full").write_bytes(CONTENT)
    with pytest.raises(FileNotFoundError), no_space_is_disk_full(tmp_path):
        (tmp_path / "none").read_bytes()


def test_offline_nothing_is_pulled(
    spec: ModelSpec, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelMissing, match="offline"):
        store.pull(spec, "llamacpp", offline=True)
    monkeypatch.setenv("LOCALAGENT_OFFLINE", "1")
    with pytest.raises(ModelMissing, match="LOCALAGENT_OFFLINE"):
        store.pull(spec, "llamacpp")


def test_offline_with_the_model_here(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    assert store.pull(spec, "llamacpp", offline=True) == weights


def test_backend_without_weights(spec: ModelSpec, store: WeightStore) -> None:
    with pytest.raises(UsageError, match="tiny has no weights for the backend mlx: it has llamacpp"):
        store.find(spec, "mlx")


def test_the_folder_of_models_follows_localagent_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    assert WeightStore().root == tmp_path / "models"
    monkeypatch.delenv("LOCALAGENT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert WeightStore().root.parts[-2:] == ("localagent", "models")


def test_root_that_cannot_be_written(spec: ModelSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="LOCALAGENT_HOME"):
        WeightStore(tmp_path / "file" / "models").pull(spec, "llamacpp")


@pytest.mark.parametrize("home", ["~nosuchuser", "~nosuchuser/models"])
def test_home_of_nobody(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAGENT_HOME", home)
    with pytest.raises(UsageError, match=f"LOCALAGENT_HOME={home}: no such home folder"):
        WeightStore()


def test_lock_that_cannot_be_taken(spec: ModelSpec, store: WeightStore) -> None:
    """A folder in the lock's place stops root too, whom permissions do not."""
    (store.root / ".locks" / "tiny.llamacpp.lock").mkdir(parents=True)
    store.path(spec, "llamacpp").parent.mkdir(parents=True)
    for change in (store.pull, store.remove):
        with pytest.raises(UsageError, match=r"cannot write to .*: set LOCALAGENT_HOME"):
            change(spec, "llamacpp")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_store(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    locks = store.root / ".locks"
    locks.mkdir()
    weights.unlink()
    for folder in (locks, weights.parent):  # the lock, and what it guards
        folder.chmod(0o555)
        try:
            with pytest.raises(UsageError, match="cannot write to"):
                store.remove(spec, "llamacpp")
        finally:
            folder.chmod(0o755)


def test_size_of_a_tree_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip deletes its folders while their size is taken: the progress of a pull."""
    (tmp_path / "file").write_bytes(CONTENT)
    gone = tmp_path / "gone"
    gone.mkdir()
    scandir = os.scandir

    def late(path: os.PathLike[str] | str) -> object:
        if Path(path) == gone and gone.exists():
            gone.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert tree_size(tmp_path) == len(CONTENT)
    assert not gone.exists()
    assert tree_size(gone) == 0


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_writing_where_it_is_forbidden(number: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=os.strerror(number)), forbidden_is_usage_error(tmp_path):
        raise OSError(number, os.strerror(number))
    with pytest.raises(FileNotFoundError), forbidden_is_usage_error(tmp_path):
        raise OSError(errno.ENOENT, "")


def test_messages_say_which_file_where_and_what_to_do(
    spec: ModelSpec, store: WeightStore, tmp_path: Path
) -> None:
    folder = store.root / "tiny" / "llamacpp"
    both = spec.model_copy(update={"sources": {**spec.sources, "mlx": PathSource(path=tmp_path / "none")}})
    for each, option in ((spec, ""), (both, " --backend llamacpp")):
        missing = f"no weights of tiny (llamacpp) in {folder}: run `localagent models pull tiny{option}`"
        assert refused(each, store, ModelMissing) == missing
        with pytest.raises(ModelMissing) as caught:
            store.pull(each, "llamacpp", offline=True)
        assert str(caught.value) == f"{missing} (now offline)"
        with pytest.raises(ModelMissing) as caught:
            store.remove(each, "llamacpp")
        assert str(caught.value) == f"tiny (llamacpp) is not in {store.root}: nothing to remove"
    with pytest.raises(ModelMissing) as caught:
        store.require(both, "mlx")
    assert str(caught.value) == (
        f"the weights of tiny are not at {tmp_path / 'none'}, where the catalogue says"
    )
    path = folder / "tiny.gguf"
    folder.mkdir(parents=True)
    path.write_bytes(CONTENT)
    files = record.prove(folder, [(path.name, "0" * 64)])
    record.write(folder, record.Record(record.identity(spec.sources["llamacpp"]), files))
    os.utime(path, ns=(1, 1))
    again = "fetch it again with `localagent models pull tiny`"
    damaged = f"{path} is not the file verified for tiny (llamacpp): {again}"
    assert refused(spec, store, HashMismatch) == damaged
    with pytest.raises(HashMismatch) as caught:
        store.verify(spec, "llamacpp")
    assert str(caught.value) == damaged


def test_how_much_there_is(spec: ModelSpec, store: WeightStore, weights: Path) -> None:
    assert store.size(spec, "llamacpp") == len(CONTENT)
    assert store.partial_size(spec, "llamacpp") == 0
    assert store.holds(spec, "llamacpp")
    work = store.root / ".partial" / "tiny" / "llamacpp"
    work.mkdir(parents=True)
    (work / "half").write_bytes(b"12345")
    record_size = (weights.parent / record.NAME).stat().st_size
    assert store.partial_size(spec, "llamacpp") == 5
    assert store.remove(spec, "llamacpp") == len(CONTENT) + record_size + 5
    assert not store.holds(spec, "llamacpp")
    assert sorted(entry.name for entry in store.root.rglob("*") if "lock" not in entry.name) == [".partial"]
    assert store.size(spec, "llamacpp") == spec.sources["llamacpp"].size, "as the catalogue says"
    (work).mkdir(parents=True)
    assert store.holds(spec, "llamacpp"), "an unfinished pull"


def test_records_say_what_was_checked(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 3)
    files = record.prove(tmp_path, [("a", "1" * 64), ("b", "2" * 64)])
    assert [(each.path, each.size, each.sha256) for each in files] == [("a", 3, "1" * 64), ("b", 3, "2" * 64)]
    assert files[0].mtime_ns == (tmp_path / "a").stat().st_mtime_ns
    written = record.Record({"kind": "x"}, files, "c0ffee", "/elsewhere")
    record.write(tmp_path, written)
    assert record.read(tmp_path) == written
    assert written.size == 6
    assert list(json.loads((tmp_path / record.NAME).read_bytes())) == [
        *("version", "source", "files", "commit", "at"),
    ]


def test_the_options_of_a_source_that_are_as_usual_are_not_recorded() -> None:
    digest = "0" * 64
    wheel = WheelSource(
        package="p", version="1", member="m", sha256=digest, size=1, wheel_sha256=digest, wheel_size=2
    )
    assert record.identity(wheel) == {
        "kind": "pypi", "package": "p", "version": "1", "member": "m", "sha256": digest, "wheel_sha256": digest,
    }  # fmt: skip
    assert record.identity(HubSource(repo="a/b", file="x", size=3)) == {
        "kind": "hf",
        "repo": "a/b",
        "file": "x",
    }
    at_v1 = record.identity(HubSource(repo="a/b", revision="v1", patterns=("*",)))
    assert at_v1 == {"kind": "hf", "repo": "a/b", "revision": "v1", "patterns": ["*"]}
    own = PathSource(path=Path("/x"), hashes={"x": digest}, size=3)
    assert record.identity(own) == {"kind": "path", "path": "/x"}


class TestOwnFiles:
    """Weights that the user keeps elsewhere."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "own.gguf"
        path.write_bytes(CONTENT)
        return path

    def test_without_a_hash(self, file: Path, store: WeightStore) -> None:
        spec = make_spec(llamacpp=PathSource(path=file))
        assert store.find(spec, "llamacpp") == store.pull(spec, "llamacpp") == file
        assert store.verify(spec, "llamacpp") == file
        file.unlink()
        assert str(file) in refused(spec, store, ModelMissing)
        with pytest.raises(ModelMissing):
            store.pull(spec, "llamacpp")

    def test_with_a_hash(self, file: Path, store: WeightStore) -> None:
        spec = make_spec(llamacpp=PathSource(path=file, sha256=hashlib.sha256(CONTENT).hexdigest()))
        refused(spec, store, ModelMissing)
        assert store.pull(spec, "llamacpp") == store.find(spec, "llamacpp") == file
        store.remove(spec, "llamacpp")
        assert file.read_bytes() == CONTENT
        store.pull(spec, "llamacpp")
        file.write_bytes(CONTENT[::-1])
        refused(spec, store, HashMismatch)
        with pytest.raises(HashMismatch):
            store.pull(spec, "llamacpp")

    def test_a_wrong_file_is_named(self, file: Path, store: WeightStore) -> None:
        spec = make_spec(llamacpp=PathSource(path=file, sha256="0" * 64))
        with pytest.raises(HashMismatch) as caught:
            store.pull(spec, "llamacpp")
        assert str(caught.value) == f"{file} does not match the hash that the catalogue gives for tiny"
        assert not (store.root / "tiny").exists()

    def test_what_the_catalogue_has_hashes_of_is_verified(self, tmp_path: Path, store: WeightStore) -> None:
        folder = tmp_path / "mlx"
        folder.mkdir()
        hashes = {}
        for name, content in (("config.json", b"{}"), ("model.safetensors", CONTENT)):
            (folder / name).write_bytes(content)
            hashes[name] = hashlib.sha256(content).hexdigest()
        spec = make_spec(mlx=PathSource(path=folder, hashes=hashes))
        seen: list[tuple[str, int, int | None]] = []
        assert store.verify(spec, "mlx", lambda *step: seen.append(step)) == folder
        whole = len(CONTENT) + 2
        assert seen == [("verify", done, whole) for done in (0, 2, whole)]
        one = PathSource(path=folder / "config.json", hashes={"config.json": hashes["config.json"]})
        assert store.verify(make_spec(mlx=one), "mlx") == folder / "config.json"
        for damage in (lambda file: file.write_bytes(b"x"), Path.unlink):
            damage(folder / "config.json")
            with pytest.raises(HashMismatch) as caught:
                store.verify(spec, "mlx")
            wrong = f"{folder / 'config.json'} is not the file that the catalogue knows for tiny"
            assert str(caught.value) == wrong

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_with_a_hash_and_a_read_only_store(self, file: Path, tmp_path: Path) -> None:
        spec = make_spec(llamacpp=PathSource(path=file, sha256=hashlib.sha256(CONTENT).hexdigest()))
        store = WeightStore(tmp_path / "locked" / "models")
        (tmp_path / "locked").mkdir(mode=0o555)
        with pytest.raises(UsageError, match="cannot write to"):
            store.pull(spec, "llamacpp")


def test_default_names_a_real_file(store: WeightStore) -> None:
    spec = load_catalog().default
    assert store.path(spec, "llamacpp").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert json.dumps(record.identity(spec.sources["llamacpp"]))
