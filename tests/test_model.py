"""Opening a model: what a name stands for, which options go with it, and what a loaded one is like."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localagent.catalog import load_catalog
from localagent.errors import ContextOverflow, UnknownModel, UsageError
from localagent.hosts.protocol import Token
from localagent.hosts.replay import ReplayHost
from localagent.hosts.sampling import Sampling
from localagent.messages import Prices
from localagent.model import Model, _folder, load, locate
from localagent.remote import RemoteModel
from parsers import DIALECTS
from tests.agent.words import words, wordy

HERE = {"backend": "mlx", "threads": 1, "prefix_cache": 0, "lanes": 1, "snapshots": True}
"""Options of models on this machine."""
FREE = "127.0.0.1:9"


@pytest.mark.parametrize("option", HERE)
def test_options_of_this_machine_are_refused_for_a_server(option):
    given = {option: HERE[option]}
    with pytest.raises(UsageError) as refused:
        load(f"vllm://{FREE}/m", **given)
    own = f"{option} is an option of models on this machine: leave it out for vllm://{FREE}/m"
    assert str(refused.value) == own


@pytest.mark.parametrize("option", [*HERE, "dialect", "tokenizer"])
def test_options_that_mean_nothing_to_a_server_that_parses_itself(option):
    given = {**HERE, "dialect": "plain", "tokenizer": "x"}[option]
    with pytest.raises(UsageError) as refused:
        load(f"openai://{FREE}/m", **{option: given})
    nothing = f"{option} means nothing to http://{FREE}, which renders and parses itself: leave it out"
    assert str(refused.value) == nothing


@pytest.fixture
def models() -> Iterator[str]:
    """The address of a server that only says which models it has."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"data": [{"id": "one", "context_length": 4096}, {"id": "two"}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(("context", "window"), [(None, 4096), (77, 77)])
def test_a_model_behind_openais_api(models, context, window):
    with load(f"openai://{models}/one", snapshots=False, context=context) as model:
        assert isinstance(model, RemoteModel)
        assert (model.name, model.host.context) == ("one", window)


@pytest.mark.parametrize(
    ("model", "backend", "error", "says"),
    [
        (None, "vllm", UsageError, "no backend 'vllm': choose llamacpp or mlx"),
        (
            "vllm://h/m",
            None,
            UsageError,
            "vllm://h/m is on a server: this takes a model on this machine",
        ),
        (Path("/nothing"), None, UnknownModel, "no such file: /nothing"),
        ("nothing.gguf", None, UnknownModel, "no such file: nothing.gguf"),
        (
            "  ",
            None,
            UnknownModel,
            "the model name is empty: `localagent models list --all` shows all models",
        ),
        (
            "owner/name",
            None,
            UnknownModel,
            "no such file or folder: owner/name: a repository of Hugging Face is hf:owner/name",
        ),
        (
            "~nosuchuser/x",
            None,
            UnknownModel,
            "no such file or folder: ~nosuchuser/x: a repository of Hugging Face is hf:owner/name",
        ),
        (
            "x\0y?",
            None,
            UnknownModel,
            r"no model 'x\x00y?' in the catalogue: `localagent models list --all` shows all models",
        ),
        ("FOLDER", "llamacpp", UsageError, "backend is 'llamacpp', but FOLDER is a folder, which MLX loads"),
        ("FILE", "mlx", UsageError, "backend is 'mlx', but FILE is a file, which llama.cpp loads"),
    ],
)
def test_a_name_that_stands_for_nothing(tmp_path, model, backend, error, says):
    (tmp_path / "x.gguf").write_bytes(b"")
    places = {"FOLDER": str(tmp_path), "FILE": str(tmp_path / "x.gguf")}
    for word, place in places.items():
        says = says.replace(word, place)
    with pytest.raises(error) as refused:
        locate(places.get(model, model), backend)
    assert str(refused.value) == says


def test_what_a_name_stands_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("localagent.catalog.preferred_backends", lambda: ("llamacpp", "mlx"))
    (tmp_path / "x.gguf").write_bytes(b"")
    (tmp_path / "lfm2-nano").mkdir()
    catalog = load_catalog()
    assert locate(None, None) == (catalog.default_for(None), "llamacpp")
    assert locate(None, "mlx") == (catalog.default_for("mlx"), "mlx")
    assert locate("lfm2-nano", None) == (catalog.get("lfm2-nano"), "llamacpp"), "and not the folder"
    assert locate("LFM2-350M", "mlx") == (catalog.get("lfm2-350m"), "mlx")
    assert locate(Path("lfm2-nano"), None) == (Path("lfm2-nano"), "mlx")
    assert locate("./lfm2-nano", "mlx") == (Path("lfm2-nano"), "mlx")
    assert locate("x.gguf", None) == (Path("x.gguf"), "llamacpp")
    assert locate("~/x.gguf", "llamacpp") == (tmp_path / "x.gguf", "llamacpp")


def test_where_evaluated_prompts_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    assert _folder(False) is _folder(None) is None
    assert _folder(True).root == tmp_path / "ours" / "prefixes"
    for given in (tmp_path / "new" / "x", "new/x", "~/new/x"):
        assert _folder(given).root == tmp_path / "new" / "x"
    (tmp_path / "file").write_text("")
    assert _folder(tmp_path / "file" / "x").root == tmp_path / "file" / "x", "it fails when it is used"
    with pytest.raises(UsageError) as refused:
        _folder("a\0" + "b" * 100)
    shown = "'" + r"a\x00" + "b" * 78 + "'"
    assert str(refused.value) == f"snapshots is {shown}, which is not a folder: embedded null byte"


@pytest.mark.parametrize("size", [-1, 1.5, True, "1"])
def test_the_size_of_the_prefix_cache_is_checked(size, gguf):
    with pytest.raises(UsageError) as refused:
        load(gguf, prefix_cache=size)
    assert str(refused.value) == f"prefix_cache is {size!r}: it must be bytes, 0 or more"


def test_a_model_that_is_dropped_ends_its_thread(nano):
    model = load(nano["llamacpp"])
    thread = model.host._owner._thread
    del model
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("backend", ["llamacpp", "mlx"])
def test_forty_interrupted_loads_leave_no_thread(nano, backend):
    """In a process of its own, which interrupts itself as Ctrl-C does, at forty moments of a load."""
    if backend == "mlx":
        pytest.importorskip("mlx_lm")
    code = f"""
import gc, signal, threading, time
from localagent.model import load
def once():
    began = time.perf_counter()
    load({str(nano[backend])!r}).close()
    return time.perf_counter() - began
once()
seconds, interrupted = once(), 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
for number in range(40):
    model = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds * (number + 1) / 40)
            model = load({str(nano[backend])!r})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    if model is not None:
        model.close()
gc.collect()
mine = [thread for thread in threading.enumerate() if "lfm2" in thread.name]
for thread in mine:
    thread.join(30)
print(interrupted > 0, [thread for thread in mine if thread.is_alive()])
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "True []\n", done.stderr


def test_options_are_those_of_the_loaded_model(nano, tmp_path):
    with load(
        nano["llamacpp"], context=256, threads=1, lanes=2, prefix_cache=0, snapshots=tmp_path / "kept"
    ) as model:
        assert (model.host.context, model.lanes, model.dialect) == (256, 2, DIALECTS["lfm2"])
        assert (model.sampling, model.prices, model.name) == (Sampling(), None, model.host.name)
        assert model.respond("Hello.", max_tokens=2).model == model.name
    with load("lfm2-nano", backend="llamacpp", context=128, threads=1, lanes=1, dialect="plain") as model:
        spec = load_catalog().get("lfm2-nano")
        assert (model.host.context, model.lanes, model.dialect) == (128, 1, DIALECTS["plain"])
        assert (model.sampling, model.prices) == (spec.sampling.to_sampling(), spec.prices)
        assert model.name == "lfm2-nano"
        with pytest.raises(ContextOverflow, match="tokens and the context window holds 128"):
            model.respond("Hello. " * 200)
    with load("lfm2-nano", backend="llamacpp", context=128, threads=1, lanes=1, dialect="auto") as model:
        assert model.dialect is DIALECTS["lfm2"]


def replayed(**options) -> Model:
    """A model that says "Hi."; its template knows only roles and words."""
    tokens = [Token(1, "Hi.", False), Token(2, "<|im_end|>", True, end=True)]
    return Model(ReplayHost([tokens], DIALECTS["lfm2"].markers), DIALECTS["lfm2"], **options)


def test_a_model_without_a_name_has_that_of_its_weights():
    plain = replayed()
    assert (plain.name, plain.sampling, plain.prices) == ("replay", Sampling(), None)
    prices, sampling = Prices(input=1, output=2), Sampling(max_tokens=3)
    named = replayed(name="mine", prices=prices, sampling=sampling)
    assert (named.name, named.sampling, named.prices) == ("mine", sampling, prices)
    assert [model.respond("x").model for model in (plain, named)] == ["replay", "mine"]


def test_a_model_is_the_same_for_each_of_its_users():
    named = replayed(name="mine", prices=Prices(input=1, output=2), sampling=Sampling(max_tokens=3))
    made: list[str] = []
    named.host.scoped = lambda scope: made.append(scope) or replayed().host
    for scope in ("", "somebody"):
        model = named.scoped(scope)
        assert (model is named) == (not scope)
        own = (model.dialect, model.sampling, model.name, model.prices)
        assert own == (named.dialect, named.sampling, named.name, named.prices)
    assert made == ["somebody"]
    del named.host.scoped
    assert named.scoped("somebody") is named, "a host elsewhere keeps no evaluated prompts"


def test_tokens_are_counted_as_they_would_be_sent():
    model = wordy("Yes.", context=50)
    assert model.count_tokens("a b c") == len(model.render("a b c").ids) == 4
    with_more = {"system": "d e", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert model.count_tokens("a b c", **with_more) == len(model.render("a b c", **with_more).ids) > 6
    assert model.count_tokens(words(99)) == 100, "however long it is"
