"""The MLX engine loads what it can run, refuses the rest in a line, and gives its memory back when closed."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from localagent.errors import EngineMissing, InvalidWeights, UsageError
from localagent.hosts.mlx import library as library_module
from localagent.hosts.mlx.engine import MlxEngine
from localagent.hosts.mlx.folder import read_folder
from localagent.hosts.mlx.library import library
from localagent.hosts.sampling import Sampling
from tests.hosts.mlx.folders import CONFIGS, TEMPLATE, write_folder, write_json

pytestmark = pytest.mark.engine


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "tiny")


def never() -> bool:
    return False


def test_what_an_engine_says_of_itself(folder):
    engine = MlxEngine.load(folder)
    assert engine.context_size == 2048
    assert (read_folder(folder).architecture, read_folder(folder).chat_template) == ("lfm2", TEMPLATE)
    assert engine.vocabulary.size == 300
    engine.close()
    assert MlxEngine.load(folder, 100).context_size == 100
    with pytest.raises(UsageError, match="at most 2,048"):
        MlxEngine.load(folder, 4096)


def test_closing_gives_the_memory_back(folder):
    mx = library().mx
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory() + mx.get_cache_memory()
    engine = MlxEngine.load(folder, lanes=3)
    first, second, third = engine.lanes
    for lane in (first, second):
        lane.evaluate(range(1, 200), never)
        lane.begin(Sampling(), [3])
    for lanes in ([first], [first, second]):
        engine.advance(lanes)
    assert third.fork(first, 201, None)
    held = [first.checkpoint(), third.save()]
    loaded = mx.get_active_memory()
    assert loaded > before + 500_000
    engine.close()
    engine.close()
    assert mx.get_active_memory() + mx.get_cache_memory() <= before
    assert first.ids == []
    assert not third.restore([0] * 201, held[1])


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | changes)


def truncate(file: Path, size: int) -> None:
    with file.open("r+b") as stream:
        stream.truncate(size)


def rewrite_header(file: Path, header: bytes) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


BREAKAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: missing"),
    "config no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "config.json: not a JSON object"),
    "config deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json: not JSON"),
    "config binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json: not UTF-8"),
    "no model_type": (lambda f: change_config(f, model_type=None), "config.json: no model_type"),
    "unknown": (
        lambda f: change_config(f, model_type="nosuch"),
        "tiny: unsupported by mlx-lm: architecture 'nosuch'",
    ),
    "a path": (lambda f: change_config(f, model_type="../x"), "config.json: unsupported: model_type"),
    "no model": (lambda f: change_config(f, model_type="cache"), "tiny: unsupported by mlx-lm"),
    "custom code": (lambda f: change_config(f, model_file="m.py"), "config.json: unsupported: model_file"),
    "other shapes": (lambda f: change_config(f, hidden_size=32), "tiny: unsupported by mlx-lm"),
    "no heads": (lambda f: change_config(f, num_attention_heads=0), "tiny: unsupported by mlx-lm"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "tiny: no model"),
    "empty": (lambda f: truncate(f / "model.safetensors", 0), "model.safetensors: cut short"),
    "header cut": (lambda f: truncate(f / "model.safetensors", 100), "model.safetensors: cut short"),
    "data cut": (
        lambda f: truncate(f / "model.safetensors", 100_000),
        "model.safetensors: cut short or broken",
    ),
    "header no JSON": (lambda f: rewrite_header(f / "model.safetensors", b"{]"), "header is not JSON"),
    "header a list": (
        lambda f: rewrite_header(f / "model.safetensors", b"[1]"),
        "header is not a JSON object",
    ),
    "tensor odd": (lambda f: rewrite_header(f / "model.safetensors", b'{"a":3}'), "the data of 'a'"),
    "no tensors": (lambda f: rewrite_header(f / "model.safetensors", b"{}"), "tiny: no tensors"),
    "a shard missing": (
        lambda f: write_json(
            f / "model.safetensors.index.json", {"weight_map": {"a": "model-2.safetensors"}}
        ),
        "model-2.safetensors: missing",
    ),
    "no weight_map": (
        lambda f: write_json(f / "model.safetensors.index.json", {}),
        "index.json: no weight_map",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: missing"),
    "tokenizer no JSON": (lambda f: (f / "tokenizer.json").write_text("x"), "tokenizer.json: not JSON"),
    "tokenizer empty": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json: unsupported"),
    "config of it no JSON": (
        lambda f: (f / "tokenizer_config.json").write_text("x"),
        "tokenizer_config.json: not JSON",
    ),
    "a name to glob": (lambda f: f.rename(f.parent / "[a]"), "rename it"),
    "no folder": (lambda f: f.rename(f.parent / "gone"), "tiny: not a folder"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_broken_folders_are_refused_in_one_line(folder, name):
    breakage, said = BREAKAGES[name]
    breakage(folder)
    path = folder.parent / "[a]" if name == "a name to glob" else folder
    with pytest.raises(InvalidWeights) as caught:
        MlxEngine.load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(folder.parent) in str(caught.value)


def test_every_size_cut_off_is_noticed(folder):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    for size in (7, 8, 9, 2000, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(InvalidWeights, match="cut short"):
            read_folder(folder)
    file.write_bytes(data)
    assert read_folder(folder).architecture == "lfm2"


def test_where_the_template_is_found(folder):
    def found(**config):
        write_json(folder / "tokenizer_config.json", config)
        return read_folder(folder).chat_template

    assert found() is None
    assert found(chat_template="a") == "a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert found(chat_template=named) == "d"
    assert found(chat_template=named[:1]) == "t"
    assert found(chat_template=[1, {"name": "rag", "template": "r"}]) is None
    write_json(folder / "chat_template.json", {"chat_template": "older"})
    assert found() == "older"
    assert found(chat_template="a") == "a"
    (folder / "chat_template.jinja").write_text("j\u00e9", "utf-8")
    assert found(chat_template="a") == "j\u00e9"


def test_context_length_of_nested_configurations(folder):
    change_config(folder, max_position_embeddings=0, text_config={"max_position_embeddings": 99})
    assert read_folder(folder).context_length == 99
    change_config(folder, text_config=3)
    assert read_folder(folder).context_length is None
    change_config(folder, text_config={})
    assert MlxEngine.load(folder).context_size == 32_768


def test_a_missing_engine_says_what_to_install(monkeypatch):
    def fail():
        raise ImportError("libmlx.so: cannot open shared object file\nmore")

    monkeypatch.setattr(library_module, "_loaded", None)
    monkeypatch.setattr(library_module, "_import", fail)
    with pytest.raises(EngineMissing, match=r"pip install .*\[mlx\]'? .*\[libmlx\.so: cannot open") as caught:
        library()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("used", [True, False])
def test_a_fork_of_a_process_with_mlx_is_told_so_and_does_not_hang(nano, used):
    code = f"""
import os
from localagent.errors import UsageError
from localagent.hosts.mlx.library import library
from localagent.model import load
if {used}:
    with load({str(nano["mlx"])!r}) as model:
        model.respond("Hi.", max_tokens=1)
else:
    library()
if os.fork() == 0:
    try: load({str(nano["mlx"])!r})
    except UsageError as error: print(error, flush=True)
    os._exit(0)
os.wait()
print(os.getpid())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said, parent = done.stdout.splitlines()
    assert said == (
        f"MLX was loaded in another process ({parent}) before a fork, and works there alone: load models in "
        "processes that are started anew, as by multiprocessing's spawn"
    )


def test_an_owner_thread_ends_cleanly(folder):
    """Load, generate and close on another thread, many times the way to an abort at exit."""
    code = f"""
import sys
from pathlib import Path
assert "mlx" not in sys.modules
from localagent.hosts.mlx.library import end_thread, library
from localagent.hosts.mlx.engine import MlxEngine
from localagent.hosts.owner import OwnerThread
from localagent.hosts.sampling import Sampling
assert not {{"mlx", "mlx_lm", "numpy", "tokenizers", "transformers"}} & set(sys.modules)
library()
kept = []
def work(engine):
    for lane in engine.lanes:
        lane.evaluate([1, 2, 3, 4], lambda: False)
        lane.begin(Sampling(temperature=1.0), [1, 2, 3, 4])
    for _ in range(5):
        kept.append(engine.advance(engine.lanes))
    kept.extend((lane, lane.checkpoint(), lane.save()) for lane in engine.lanes)
for _ in range(3):
    owner = OwnerThread("mlx")
    owner.at_end(end_thread)
    engine = owner.run(lambda: MlxEngine.load(Path({str(folder)!r}), lanes=2))
    owner.at_end(engine.close)
    owner.run(lambda: work(engine))
    owner.close()
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_configurations_are_complete():
    assert {"lfm2", "llama", "gemma3_text"} == set(CONFIGS)
