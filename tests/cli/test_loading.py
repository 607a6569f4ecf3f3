"""What is said while a model is fetched: its licence first, then how far it is."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.catalog import load_catalog
from localagent.cli import loading
from localagent.cli.loading import PullReport, licence_text, open_model
from localagent.cli.options import ModelOptions
from localagent.errors import UnknownModel, UsageError


@pytest.fixture
def said(capsys):
    """The lines on stderr, where it is no terminal."""

    def report(*calls, spec=None):
        with PullReport(spec) as shown:
            for call in calls:
                shown(*call)
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err.splitlines()

    return report


def test_a_line_for_each_quarter(said):
    calls = [("download", done, 10_000_000) for done in range(0, 10_000_001, 250_000)]
    assert said(*calls) == [
        "downloading   0 % of 10 MB",
        "downloading  25 % of 10 MB",
        "downloading  50 % of 10 MB",
        "downloading  75 % of 10 MB",
        "downloading 100 % of 10 MB",
    ]


def test_each_phase_by_its_name(said):
    assert said(("extract", 0, 8), ("verify", 0, 8), ("verify", 1, 8), ("verify", 8, 8)) == [
        "unpacking   0 % of 8 bytes",
        "verifying   0 % of 8 bytes",
        "verifying 100 % of 8 bytes",
    ]


def test_of_an_unknown_size_only_the_phase_is_told(said):
    assert said(("download", 0, None), ("download", 99, None), ("verify", 0, 0)) == [
        "downloading",
        "verifying",
    ]


def test_waiting_for_another_process(said):
    assert said(("wait", 0, None)) == ["another process is pulling this model: waiting for it"]


def test_the_licence_comes_once_and_before_the_first_byte(said):
    spec = load_catalog().get("lfm2-350m")
    assert (
        said(("download", 0, 8), ("extract", 0, 8), spec=spec)[0]
        == f"lfm2-350m, licence: {licence_text(spec)}"
    )
    assert sum("licence" in line for line in said(("download", 0, 8), ("extract", 0, 8), spec=spec)) == 1
    assert not [line for line in said(("wait", 0, None), ("verify", 0, 8), spec=spec) if "licence" in line]


def test_a_licence_has_its_address_and_terms_as_far_as_there_are_any():
    def text(**licence):
        spec = load_catalog().get("lfm2-350m")
        return licence_text(spec.model_copy(update={"licence": spec.licence.model_copy(update=licence)}))

    assert text(name="MIT", url=None, terms=None) == "MIT"
    assert text(name="MIT", url="https://a.b", terms=None) == "MIT <https://a.b>"
    assert text(name="Own", url="https://a.b", terms="not for sale") == "Own <https://a.b> not for sale"


def test_bars_on_a_terminal_leave_the_streams_alone(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    before = sys.stdout, sys.stderr
    with PullReport() as shown:
        shown("download", 1, 4)
        assert (sys.stdout, sys.stderr) == before
        shown("download", 4, 4)
        shown("verify", 0, 4)


@pytest.fixture
def loads(monkeypatch):
    """What is loaded in place of weights."""
    seen = []

    def load(name, **options):
        seen.append((name, options))
        return SimpleNamespace(name="there")

    monkeypatch.setattr("localagent.model.load", load)
    return seen


GIVEN = {"backend": "llamacpp", "context": 9, "threads": 2, "tokenizer": "a/b", "dialect": "lfm2"}


def test_a_command_loads_for_one_person(loads):
    open_model(ModelOptions(model="lfm2-na"))
    open_model(ModelOptions(model="lfm2-nano", **GIVEN), snapshots=True)
    shown = [options.pop("progress") for _, options in loads]
    assert all(isinstance(each, PullReport) for each in shown)
    assert loads == [
        ("lfm2-nano", {**dict.fromkeys(GIVEN), "snapshots": False, "lanes": 1}),
        ("lfm2-nano", {**GIVEN, "snapshots": True, "lanes": 1}),
    ]


def test_without_a_name_the_default_of_the_backend_is_loaded(loads, monkeypatch):
    monkeypatch.setattr("localagent.cli.naming.default_model", lambda backend: f"/default of {backend}.gguf")
    monkeypatch.setattr("localagent.model.locate", lambda name, backend: (Path(name), backend))
    open_model(ModelOptions(backend="mlx"))
    assert [name for name, _ in loads] == ["/default of mlx.gguf"]


@pytest.mark.parametrize("typing", [True, False])
def test_of_several_models_a_person_chooses(loads, monkeypatch, typing):
    monkeypatch.setattr(loading, "on_terminal", lambda: typing)
    monkeypatch.setattr("localagent.cli.home.choose", lambda question, names: names[1])
    if typing:
        open_model(ModelOptions(model="lfm2.5-1.2b-"))
        assert [name for name, _ in loads] == ["lfm2.5-1.2b-thinking"]
    else:
        with pytest.raises(UnknownModel, match="several models begin with"):
            open_model(ModelOptions(model="lfm2.5-1.2b-"))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("vllm://a:1/m", ""),
        ("openai://a:1/m", "(there: its server parses the calls, without what this parser promises)\n"),
    ],
)
def test_a_model_at_an_address_is_asked_there(loads, capsys, address, said):
    open_model(ModelOptions(model=address, **GIVEN))
    assert loads == [(address, GIVEN)]
    assert capsys.readouterr().err == said


def test_a_server_is_asked_in_place_of_a_model(loads, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "localagent.remote.RemoteModel.open", lambda *given, **more: asked.append((given, more)) or "it"
    )
    assert open_model(ModelOptions(url="http://a", model="m", context=9)) == "it"
    assert (asked, loads) == ([(("http://a", "m"), {"context": 9})], [])
    open_model(ModelOptions(url="none", model="lfm2-nano"))
    assert [name for name, _ in loads] == ["lfm2-nano"]
    for option, says in (
        ("backend", "--backend is for a model on this machine: leave it out, or LOCALAGENT_URL and --url"),
        ("threads", "--threads is for a model on this machine: leave it out, or LOCALAGENT_URL and --url"),
        ("tokenizer", "--tokenizer means nothing to a server that parses calls itself: leave it out"),
        ("dialect", "--dialect means nothing to a server that parses calls itself: leave it out"),
    ):
        with pytest.raises(UsageError) as error:
            open_model(ModelOptions(url="http://a", **{option: GIVEN[option]}))
        assert str(error.value) == says


def test_what_is_chosen_from_a_repository_is_told(monkeypatch, capsys):
    spec = SimpleNamespace(
        name="hf:a/b:Q4", description="b as Q4", sources={"llamacpp": SimpleNamespace(size=12_000_000)}
    )
    asked = []
    monkeypatch.setattr("localagent.model.locate", lambda *given: asked.append(given) or (spec, "llamacpp"))
    assert loading.find("hf:a/b", "llamacpp") is spec
    assert capsys.readouterr().err == "hf:a/b: taking b as Q4 (12 MB)\n"
    assert loading.find("hf:a/b:Q4", None) is spec
    assert capsys.readouterr().err == ""
    assert asked == [("hf:a/b", "llamacpp"), ("hf:a/b:Q4", None)]
    monkeypatch.setattr("localagent.model.locate", lambda name, _: (Path(name), "llamacpp"))
    assert loading.find("/x.gguf", None) is None


def test_bars_show_how_far_each_phase_is(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "__stderr__", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with PullReport(load_catalog().get("lfm2-350m")) as report:
        report("download", 2_000_000, 4_000_000)
        report("download", 3_000_000, 4_000_000)
        report("wait", 0, None)
        report("verify", 0, 4_000_000)
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.getvalue())
    assert plain.startswith("lfm2-350m, licence: ")
    assert "another process is pulling this model: waiting for it\n" in plain
    last = plain.replace("\r", "\n").splitlines()[-2:]
    assert [line.split()[0] for line in last] == ["downloading", "verifying"]
    assert " 75% 3.0/4.0 MB " in last[0]
    assert "  0% 0.0/4.0 MB " in last[1]


def test_only_sampling_options_that_were_given_reach_the_model():
    assert ModelOptions().of_turns() == {}
    assert ModelOptions(temperature=0.0, seed=0, max_tokens=3, context=9, threads=1).of_turns() == {
        "temperature": 0.0, "seed": 0, "max_tokens": 3,
    }  # fmt: skip
