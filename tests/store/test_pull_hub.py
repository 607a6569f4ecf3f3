"""Pulling from a repository: the real huggingface_hub against a server on loopback."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from localagent.catalog import HubSource, ModelSpec
from localagent.store import WeightStore
from tests.store.loopback import Loopback
from tests.store.pulling import WEIGHTS, Puller, make_spec


def test_one_file_is_pulled_with_progress(hub_spec: ModelSpec, puller: Puller, store: WeightStore) -> None:
    assert store.find(hub_spec, "llamacpp") is None
    result = puller.pull(hub_spec)
    path = store.find(hub_spec, "llamacpp")
    assert path is not None
    assert result["path"] == str(path)
    assert path.read_bytes() == WEIGHTS
    assert result["seen"]["download"][-1] == result["seen"]["verify"][-1] == len(WEIGHTS)
    assert len(result["seen"]["download"]) >= 4, "no progress in between"
    assert store.size(hub_spec, "llamacpp") == len(WEIGHTS)


def test_folder_takes_only_what_is_wanted(hub_spec: ModelSpec, puller: Puller, store: WeightStore) -> None:
    puller.pull(hub_spec, "mlx")
    folder = store.require(hub_spec, "mlx")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", ".localagent.json"}
    assert (folder / "config.json").read_bytes() == b'{"bits": 8}'
    assert not (store.root / ".partial" / "tiny").exists()


def test_second_pull_asks_nothing(hub_spec: ModelSpec, puller: Puller, loopback: Loopback) -> None:
    puller.pull(hub_spec)
    loopback.requests.clear()
    assert "path" in puller.pull(hub_spec)
    assert loopback.requests == []


@pytest.mark.parametrize(
    "stop", ["download:1", "download:3000000", "verify:0", "verify:4194304", "rename:1", "rename:2"]
)
def test_killed_then_resumed(
    stop: str, hub_spec: ModelSpec, puller: Puller, store: WeightStore, loopback: Loopback
) -> None:
    puller.kill_at(hub_spec, stop)
    assert store.find(hub_spec, "llamacpp") is None
    before = store.partial_size(hub_spec, "llamacpp")
    loopback.served.clear()
    result = puller.pull(hub_spec)
    assert "path" in result
    assert store.require(hub_spec, "llamacpp").read_bytes() == WEIGHTS
    if stop == "download:3000000":
        assert result["seen"]["download"][0] == before, "not said before the first byte, or not from there"
        assert before >= 2_900_000
        assert [name for name, _ in loopback.ranges] == ["tiny-Q4.gguf"]
        assert int(loopback.ranges[0][1].removeprefix("bytes=").partition("-")[0]) >= 2_900_000
    if not stop.startswith("download"):
        assert loopback.served == {}, "what was complete was fetched again"


def test_killed_between_the_files_of_a_folder(
    hub_spec: ModelSpec, puller: Puller, store: WeightStore
) -> None:
    puller.kill_at(hub_spec, "download:1000000", "mlx")
    assert store.find(hub_spec, "mlx") is None
    assert "path" in puller.pull(hub_spec, "mlx")
    assert (store.require(hub_spec, "mlx") / "model.safetensors").read_bytes() == WEIGHTS[: 3 << 20]


def test_connection_lost_in_the_middle_is_resumed(
    hub_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    loopback.drop_after = 2 << 20
    assert "path" in puller.pull(hub_spec)
    assert store.require(hub_spec, "llamacpp").read_bytes() == WEIGHTS
    assert loopback.ranges


def test_new_commit_does_not_continue_the_old_file(
    hub_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    puller.kill_at(hub_spec, "download:1000000")
    changed = WEIGHTS[::-1]
    loopback.repos["acme/tiny-GGUF"]["tiny-Q4.gguf"] = changed
    loopback.commit = "d" * 40
    assert "path" in puller.pull(hub_spec)
    assert store.require(hub_spec, "llamacpp").read_bytes() == changed
    assert loopback.ranges == []


@pytest.mark.parametrize("backend", ["llamacpp", "mlx"])
def test_wrong_bytes_are_refused(
    backend: str, hub_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    """Large files have a published sha256, small ones a git id."""
    loopback.lie["tiny-Q4.gguf"] = b"x" + WEIGHTS[1:]
    loopback.lie["8bit/config.json"] = b'{"bits": 4}'
    result = puller.pull(hub_spec, backend)
    assert result["error"] == "HashMismatch"
    assert "\n" not in result["message"]
    assert store.find(hub_spec, backend) is None
    loopback.lie.clear()
    assert "path" in puller.pull(hub_spec, backend)


def test_another_file_than_the_catalogue_expects(
    puller: Puller, hub_spec: ModelSpec, loopback: Loopback
) -> None:
    spec = make_spec(llamacpp=HubSource(repo="acme/tiny-GGUF", file="tiny-Q4.gguf", sha256="0" * 64))
    result = puller.pull(spec)
    assert result["error"] == "HashMismatch"
    assert loopback.served == {}


def test_a_small_file_is_the_one_that_the_catalogue_expects(
    puller: Puller, hub_spec: ModelSpec, loopback: Loopback, store: WeightStore
) -> None:
    """The hub publishes no sha256 of it; the catalogue's is what counts."""
    loopback.repos["acme/tiny-GGUF"]["tiny-Q4.gguf"] = content = b"small"
    for expected, error in (("0" * 64, "HashMismatch"), (hashlib.sha256(content).hexdigest(), None)):
        source = HubSource(repo="acme/tiny-GGUF", file="tiny-Q4.gguf", sha256=expected)
        result = puller.pull(make_spec(llamacpp=source))
        assert result.get("error") == error, result
    assert store.require(make_spec(llamacpp=source), "llamacpp").read_bytes() == content


def test_what_the_hub_says_nothing_of_is_not_fetched(
    puller: Puller, hub_spec: ModelSpec, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = loopback.listing

    def without(*keys: str) -> dict[str, Any]:
        files = listing("acme/tiny-GGUF", blobs=True)
        for file in files["siblings"]:
            for key in keys:
                file.pop(key, None)
        return files

    for missing in (("size",), ("blobId", "lfs")):
        monkeypatch.setattr(loopback, "listing", lambda _, missing=missing, **told: without(*missing))
        result = puller.pull(hub_spec)
        assert result["error"] == "DownloadFailed", missing
        assert "publishes no size and hash for tiny-Q4.gguf" in result["message"]
    assert loopback.served == {}
    monkeypatch.setattr(loopback, "listing", lambda _, **told: without("blobId"))
    assert "path" in puller.pull(hub_spec)


@pytest.mark.parametrize(
    ("repo", "refusal", "words"),
    [
        ("acme/none", None, "acme/none does not exist"),
        ("acme/gated", (401, "GatedRepo"), "gated"),
        ("acme/gated", (403, "GatedRepo"), "gated"),
        ("acme/down", (503, ""), "503"),
        ("acme/portal", (200, "portal"), "login page"),
        ("acme/tiny-GGUF", None, "has no file missing.gguf"),
    ],
)
def test_repository_errors_are_one_line(
    repo: str,
    refusal: tuple[int, str] | None,
    words: str,
    puller: Puller,
    hub_spec: ModelSpec,
    loopback: Loopback,
    store: WeightStore,
) -> None:
    if refusal:
        loopback.refuse[repo] = refusal
    spec = make_spec(llamacpp=HubSource(repo=repo, file="missing.gguf"))
    result = puller.pull(spec)
    assert result["error"] == "DownloadFailed"
    assert words in result["message"]
    assert "\n" not in result["message"]
    assert store.find(spec, "llamacpp") is None


def test_an_unknown_revision_is_named(puller: Puller, hub_spec: ModelSpec) -> None:
    spec = make_spec(llamacpp=HubSource(repo="acme/tiny-GGUF", file="tiny-Q4.gguf", revision="nope"))
    assert "no revision nope" in puller.pull(spec)["message"]


def test_a_pull_without_a_network_says_so(hub_spec: ModelSpec, puller: Puller) -> None:
    puller.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    result = puller.pull(hub_spec)
    assert result["error"] == "DownloadFailed"
    assert "check the network" in result["message"]


@pytest.mark.parametrize("variable", ["LOCALAGENT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_fetched(
    variable: str, hub_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    puller.environment[variable] = "1"
    result = puller.pull(hub_spec)
    assert result["error"] == "ModelMissing"
    for words in ("tiny", str(store.root), "`localagent models pull tiny --backend llamacpp`", variable):
        assert words in result["message"]
    assert loopback.requests == []
    del puller.environment[variable]
    puller.pull(hub_spec)
    puller.environment[variable] = "1"
    assert "path" in puller.pull(hub_spec), "offline with the model here is fine"


def test_two_processes_at_once(
    hub_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    loopback.pause_after = 1 << 20
    first = puller.start(hub_spec)
    loopback.wait_served("tiny-Q4.gguf", 1 << 20)
    second = puller.start(hub_spec, stop="wait:0")
    assert second.stdout is not None
    assert second.stdout.readline() == "stopped\n", "the second does not wait"
    second.kill()
    second.communicate(timeout=60)
    third = puller.start(hub_spec)
    loopback.go.set()
    assert "path" in puller.finish(first)
    assert "path" in puller.finish(third)
    assert store.require(hub_spec, "llamacpp").read_bytes() == WEIGHTS
    assert sum("/resolve/" in request for request in loopback.requests) == 1


def test_without_the_extra(hub_spec: ModelSpec, puller: Puller, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "huggingface_hub"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not installed')")
    puller.environment["PYTHONPATH"] = f"{broken.parent}:{puller.environment['PYTHONPATH']}"
    result = puller.pull(hub_spec)
    assert result["error"] == "DownloadFailed"
    assert "[hub]" in result["message"]
