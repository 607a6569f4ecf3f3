"""What is said while a model is fetched: its licence first, then how far it is."""

from __future__ import annotations

import sys

import pytest

from localagent.catalog import load_catalog
from localagent.cli.loading import Report, licence_text, open_model
from localagent.cli.options import ModelOptions


@pytest.fixture
def said(capsys):
    """The lines on stderr, where it is no terminal."""

    def report(*calls, spec=None):
        with Report(spec) as shown:
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
    with Report() as shown:
        shown("download", 1, 4)
        assert (sys.stdout, sys.stderr) == before
        shown("download", 4, 4)
        shown("verify", 0, 4)


def test_a_command_serves_one_person(monkeypatch):
    given = {}
    monkeypatch.setattr("localagent.model.load", lambda name, **options: given.update(options))
    open_model(ModelOptions(model="lfm2-nano"))
    assert given["lanes"] == 1


def test_only_sampling_options_that_were_given_reach_the_model():
    assert ModelOptions().of_turns() == {}
    assert ModelOptions(temperature=0.0, seed=0, max_tokens=3, context=9, threads=1).of_turns() == {
        "temperature": 0.0, "seed": 0, "max_tokens": 3,
    }  # fmt: skip
