"""The tiny models, each loaded once."""

from __future__ import annotations

import pytest

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

from localagent.hosts.mlx.engine import MlxEngine
from localagent.hosts.mlx.library import library
from tests.hosts.mlx.folders import write_folder


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    """Loads an engine of a kind, the same one every time."""
    loaded = {}

    def get(kind):
        if kind not in loaded:
            dtype = library().mx.bfloat16 if kind == "lfm2-bf16" else library().mx.float32
            folder = write_folder(tmp_path_factory.mktemp(kind) / "tiny", kind.removesuffix("-bf16"), dtype)
            loaded[kind] = MlxEngine.load(folder, lanes=4)
        return loaded[kind]

    yield get
    for engine in loaded.values():
        engine.close()


def emptied(engine):
    for lane in engine.lanes:
        lane.clear()
    return engine


@pytest.fixture(params=["lfm2", "llama", "gemma3_text", "lfm2-bf16"])
def engine(request, engines):
    return emptied(engines(request.param))


@pytest.fixture
def lfm2(engines):
    return emptied(engines("lfm2"))
