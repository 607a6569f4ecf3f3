"""Models called by the name of a repository: what is chosen from it, and what is used without the network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from localagent.catalog import HUB
from localagent.errors import DownloadFailed, ModelMissing, NotEnoughMemory, UnknownModel, UsageError
from localagent.store import WeightStore, hub, repository
from localagent.store.hub_cache import cache_folder, find_cached
from localagent.store.repository import RepositoryName, find_model, installed, quantization
from tests.store.loopback import COMMIT
from tests.store.pulling import WEIGHTS, cached

MB = 1 << 20
TINY = "Tiny-GGUF"
FILES = {
    f"Tiny-{label}.gguf": WEIGHTS[:size]
    for label, size in {"Q8_0": 3 * MB, "Q4_K_M": 2 * MB, "Q2_K": MB, "F16": 4 * MB}.items()
} | {"mmproj-Tiny-F16.gguf": b"no", "README.md": b"no"}
MLX = {
    "config.json": b"{}",
    "tokenizer_config.json": b"{}",
    "model.safetensors": WEIGHTS[:MB],
    "README.md": b"no",
}


@pytest.fixture(autouse=True)
def _machine(monkeypatch, tmp_path, loopback):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "LOCALAGENT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", loopback.url)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", loopback.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        loopback.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    memory(monkeypatch, 1 << 30)
    loopback.repos["acme/Tiny-GGUF"] = FILES
    loopback.repos["acme/Tiny-MLX"] = MLX
    loopback.repos["acme/both"] = MLX | {"both.Q8_0.gguf": WEIGHTS}


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "~/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "~/old", "HF_HOME": "/h"}, "~/old"),
        ({"HF_HUB_CACHE": "$HF_HOME/here", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/h"}, "/h/here"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": ""}, "~/.cache/huggingface/hub"),
    ],
)
def test_where_hugging_face_keeps_its_cache(monkeypatch, variables, folder):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder).expanduser()


def memory(monkeypatch, size: int) -> None:
    monkeypatch.setattr(repository, "available_memory", lambda: size)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:a/b", RepositoryName("a/b")),
        ("hf:a/b:Q4_K_M", RepositoryName("a/b", "main", "Q4_K_M")),
        ("hf:a/b@v1:x/y.gguf", RepositoryName("a/b", "v1", "x/y.gguf")),
        ("hf: a.b/c-d ", RepositoryName("a.b/c-d")),
    ],
)
def test_a_name_is_taken_apart(text, name):
    assert RepositoryName.parse(text) == name
    assert RepositoryName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["hf:", "hf:a", "hf:a/b/c", "hf:a/b:", "hf:../x:y", "hf:a/b:../../x", "hf:a b/c"]
)
def test_a_name_that_is_none_is_refused(text):
    with pytest.raises(UnknownModel, match="does not name a repository"):
        RepositoryName.parse(text)


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("LFM2-1.2B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen3-4b.q8_0.gguf", "Q8_0"),
        ("Q4_K_M/Big-Q4_K_M-00001-of-00002.gguf", "Q4_K_M"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("x-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model-bf16.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q-star.gguf", None),
    ],
)
def test_the_quantization_is_in_the_name_of_the_file(file, label):
    assert quantization(file) == label


# -- what is chosen -------------------------------------------------------------------------------------


def test_four_bits_are_chosen_where_they_fit():
    spec, backend = find_model("hf:acme/Tiny-GGUF")
    assert (spec.name, backend) == ("hf:acme/Tiny-GGUF:Q4_K_M", "llamacpp")
    assert spec.description == "acme/Tiny-GGUF, Tiny-Q4_K_M.gguf"
    assert (spec.context, spec.licence.name) == (32_768, "see its page")
    assert spec.licence.url == "https://huggingface.co/acme/Tiny-GGUF"
    assert spec.sources["llamacpp"].size == 2 * MB


def test_the_largest_that_fits_is_not_what_does_not_fit(monkeypatch):
    memory(monkeypatch, int(1.5 * MB))
    assert find_model("hf:acme/Tiny-GGUF")[0].name == "hf:acme/Tiny-GGUF:Q2_K"
    memory(monkeypatch, MB)
    with pytest.raises(
        NotEnoughMemory, match=r"acme/Tiny-GGUF has nothing that fits .* Tiny-Q2_K.gguf, has 1 MB"
    ):
        find_model("hf:acme/Tiny-GGUF")
    assert find_model("hf:acme/Tiny-GGUF:F16")[0].name.endswith(":F16")  # who names it knows better
    monkeypatch.setenv("LOCALAGENT_MEMORY_CHECK", "0")
    assert find_model("hf:acme/Tiny-GGUF")[0].name.endswith(":Q4_K_M")


@pytest.mark.parametrize("wanted", ["q8_0", "Q8_0", "Tiny-Q8_0.gguf", "tiny-q8_0.gguf"])
def test_a_quantization_or_a_file_is_named(wanted):
    assert find_model(f"hf:acme/Tiny-GGUF:{wanted}")[0].name == "hf:acme/Tiny-GGUF:Q8_0"


def test_what_a_repository_does_not_have_is_told_with_what_it_has():
    with pytest.raises(
        UsageError, match=r"acme/Tiny-GGUF has no Q5_K_M: it has Q8_0 \(3 MB\), Q4_K_M \(2 MB\)"
    ):
        find_model("hf:acme/Tiny-GGUF:Q5_K_M")
    with pytest.raises(UsageError, match="has no MLX folder"):
        find_model("hf:acme/Tiny-GGUF", "mlx")
    with pytest.raises(UsageError, match="has no GGUF file: it has an MLX model"):
        find_model("hf:acme/Tiny-MLX", "llamacpp")


def test_an_mlx_folder(monkeypatch):
    spec, backend = find_model("hf:acme/Tiny-MLX")
    assert (spec.name, backend) == ("hf:acme/Tiny-MLX", "mlx")
    assert spec.description == "acme/Tiny-MLX, MLX folder"
    monkeypatch.setattr(repository, "preferred_backends", lambda: ("mlx", "llamacpp"))
    assert find_model("hf:acme/both")[1] == "mlx"
    spec, backend = find_model("hf:acme/both", "llamacpp")
    assert (spec.name, backend) == ("hf:acme/both:both.Q8_0.gguf", "llamacpp")


def test_several_mlx_folders_must_be_named(loopback):
    loopback.repos["acme/bits"] = {f"{bits}bit/{name}": data for bits in (4, 8) for name, data in MLX.items()}
    with pytest.raises(UsageError, match="add one of :4bit, :8bit"):
        find_model("hf:acme/bits")
    spec, _ = find_model("hf:acme/bits:8bit")
    assert (spec.name, spec.sources["mlx"].subfolder) == ("hf:acme/bits:8bit", "8bit")
    assert spec.description == "acme/bits, 8bit"


def test_files_that_share_a_quantization_must_be_named(loopback):
    loopback.repos["acme/two"] = {"a-Q4_0.gguf": b"GGUF", "b-Q4_0.gguf": b"GGUF"}
    with pytest.raises(UsageError, match=r"has several files q4_0: name one of a-Q4_0\.gguf, b-Q4_0\.gguf"):
        find_model("hf:acme/two:Q4_0")
    assert find_model("hf:acme/two:b-Q4_0.gguf")[0].name == "hf:acme/two:b-Q4_0.gguf"


def test_names_that_lead_out_of_the_folder_are_not_there(loopback):
    loopback.repos["acme/evil"] = {
        "../evil-Q4_0.gguf": b"GGUF",
        "C:\\evil-Q4_0.gguf": b"GGUF",
        "/evil.gguf": b"",
    }
    with pytest.raises(UsageError, match="it has neither GGUF files nor an MLX folder"):
        find_model("hf:acme/evil")


def test_a_split_model_is_one_model(loopback):
    parts = {f"Q4_K_M/Big-Q4_K_M-0000{n}-of-00002.gguf": WEIGHTS[: n * MB] for n in (1, 2)}
    loopback.repos["acme/Big-GGUF"] = parts
    spec, backend = find_model("hf:acme/Big-GGUF:Q4_K_M")
    assert spec.sources[backend].size == 3 * MB
    path = WeightStore().pull(spec, backend)
    assert path.name == "Big-Q4_K_M-00001-of-00002.gguf"
    assert sorted(each.stat().st_size for each in path.parent.glob("*.gguf")) == [MB, 2 * MB]


# -- what cannot be had ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, "GatedRepo"), "acme/Tiny-GGUF is gated: accept its terms on its page and log in"),
        ((404, "RepoNotFound"), "repository acme/Tiny-GGUF does not exist, or is private"),
        ((500, ""), "HTTP status 500"),
        ((200, "portal"), "does not come from a hub"),
    ],
)
def test_what_cannot_be_had_is_told_clearly(loopback, refusal, words):
    loopback.refuse["acme/Tiny-GGUF"] = refusal
    with pytest.raises(DownloadFailed, match=words):
        find_model("hf:acme/Tiny-GGUF")


def test_offline_nobody_is_asked(loopback, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelMissing, match=r"hf:acme/Tiny-GGUF is not on this machine.*HF_HUB_OFFLINE is set"
    ):
        find_model("hf:acme/Tiny-GGUF")
    assert loopback.requests == []


# -- what is here ---------------------------------------------------------------------------------------


def test_what_is_here_is_found_without_the_network(loopback, monkeypatch):
    store = WeightStore()
    store.pull(*find_model("hf:acme/Tiny-GGUF:Q8_0"))
    store.pull(*find_model("hf:acme/Tiny-MLX"))
    assert [spec.name for spec in installed(store)] == ["hf:acme/Tiny-GGUF:Q8_0", "hf:acme/Tiny-MLX"]
    asked = len(loopback.requests)
    for text in (
        "hf:acme/Tiny-GGUF",
        "hf:acme/tiny-gguf:q8_0",
        "hf:acme/Tiny-GGUF:Tiny-Q8_0.gguf",
        "hf:acme/Tiny-MLX",
    ):
        spec, backend = find_model(text)
        assert store.find(spec, backend) is not None, text
    assert len(loopback.requests) == asked
    assert find_model("hf:acme/Tiny-GGUF:Q2_K")[0].name.endswith("Q2_K")  # that one is not here
    assert len(loopback.requests) == asked + 1


def test_hugging_faces_cache_is_used_where_it_is(loopback, tmp_path, monkeypatch):
    """Not a byte is copied or fetched; the hash is checked, and what is removed here stays there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(tmp_path, "acme/Tiny-GGUF", {"Tiny-Q8_0.gguf": FILES["Tiny-Q8_0.gguf"]})
    folder = cached(tmp_path, "acme/Tiny-MLX", MLX)
    store = WeightStore()
    spec, backend = find_model("hf:acme/Tiny-GGUF")
    assert spec.name == "hf:acme/Tiny-GGUF:Q8_0"
    assert store.pull(spec, backend) == snapshot / "Tiny-Q8_0.gguf" == store.require(spec, backend)
    assert store.verify(spec, backend) == snapshot / "Tiny-Q8_0.gguf"
    assert store.pull(*find_model("hf:acme/Tiny-MLX")) == folder
    assert {path.name for path in store.root.rglob("*") if path.is_file() and "locks" not in str(path)} == {
        ".localagent.json"
    }
    assert loopback.requests == []
    store.remove(spec, backend)
    assert (snapshot / "Tiny-Q8_0.gguf").exists()


def test_a_catalogue_model_in_the_cache_is_not_fetched_again(loopback, tmp_path, hub_spec, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(tmp_path, "acme/tiny-GGUF", {"tiny-Q4.gguf": WEIGHTS})
    assert WeightStore().pull(hub_spec, "llamacpp") == snapshot / "tiny-Q4.gguf"


def test_a_damaged_file_in_the_cache_is_not_used(loopback, tmp_path):
    snapshot = cached(tmp_path, "acme/Tiny-GGUF", {"Tiny-Q8_0.gguf": FILES["Tiny-Q8_0.gguf"]})
    (snapshot / "Tiny-Q8_0.gguf").resolve().write_bytes(b"GGUF!" + FILES["Tiny-Q8_0.gguf"][5:])
    store = WeightStore()
    path = store.pull(*find_model("hf:acme/Tiny-GGUF:Q8_0"))
    assert store.root in path.parents
    assert path.read_bytes() == FILES["Tiny-Q8_0.gguf"]


def test_a_model_that_has_left_the_cache_is_fetched(loopback, tmp_path):
    snapshot = cached(tmp_path, "acme/Tiny-GGUF", {"Tiny-Q8_0.gguf": FILES["Tiny-Q8_0.gguf"]})
    store = WeightStore()
    spec, backend = find_model("hf:acme/Tiny-GGUF:Q8_0")
    assert store.pull(spec, backend).parent == snapshot
    shutil.rmtree(tmp_path / "hf")
    with pytest.raises(ModelMissing):
        store.require(spec, backend)
    assert store.root in store.pull(spec, backend).parents


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer_config.json", "model.safetensors", "b.safetensors"]
)
def test_half_a_model_in_the_cache_is_none(tmp_path, missing):
    index = {"weight_map": {"x": "model.safetensors", "y": "b.safetensors"}}
    files = MLX | {"b.safetensors": b"b", "model.safetensors.index.json": json.dumps(index).encode()}
    source = find_model("hf:acme/Tiny-MLX")[0].sources["mlx"]
    snapshot = cached(tmp_path, "acme/Tiny-MLX", files)
    assert find_cached(source).path == snapshot
    (snapshot / missing).unlink()
    assert find_cached(source) is None


def test_a_cache_that_is_none_is_passed_over(tmp_path, monkeypatch):
    source = find_model("hf:acme/Tiny-GGUF:Q8_0")[0].sources["llamacpp"]
    folder = tmp_path / "hf" / "hub" / "models--acme--Tiny-GGUF"
    (folder / "refs").mkdir(parents=True)
    for written in ("", "../../..", "\xff", COMMIT):
        (folder / "refs" / "main").write_text(written, "latin-1")
        assert find_cached(source) is None
    plain = folder / "snapshots" / COMMIT  # a copy and no link: nothing tells its hash
    plain.mkdir(parents=True)
    (plain / "Tiny-Q8_0.gguf").write_bytes(b"GGUF")
    assert find_cached(source) is None


def test_a_listing_tells_the_licence(loopback, monkeypatch):
    from types import SimpleNamespace

    def answer(card):
        data = None if card is None else SimpleNamespace(to_dict=lambda: card)
        return lambda *_: SimpleNamespace(card_data=data, siblings=[], id="acme/Tiny-GGUF")

    for card, licence in (
        (None, None),
        ({"license": "mit"}, "mit"),
        ({"license": "other", "license_name": "lfm1.0"}, "lfm1.0"),
        ({"license": ["a"]}, None),
    ):
        monkeypatch.setattr(hub, "_ask", answer(card))
        assert hub.list_files("acme/Tiny-GGUF", "main").licence == licence
    assert HUB == "hf:"
