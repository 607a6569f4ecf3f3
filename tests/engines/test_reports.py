"""What is made of a trial: by how the child ended, what it wrote before, and what it left on stderr. No engine is needed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.engines import check
from localagent.engines.check import Report
from localagent.engines.processor import Processor
from localagent.errors import EngineBroken
from localagent.hosts.llamacpp import compiling

FACTS = {"version": "0.3.36", "uses": ["AVX2", "FMA"]}
BEGUN = [{"doing": "importing llama_cpp"}, {"facts": FACTS}, {"doing": "running one"}]


@pytest.mark.parametrize(
    ("code", "told", "errors", "outcome", "error"),
    [
        (0, [*BEGUN, {"ran": "one"}, {"ran": "two"}, {"done": True}], "a warning\n", "works", ""),
        (-11, BEGUN, "load\n bang \n", "broken", "crashes (SIGSEGV: Segmentation fault) while running one: bang"),
        (-6, BEGUN, "", "broken", "crashes (SIGABRT: Aborted) while running one"),
        (-7, BEGUN, "", "broken", "crashes (SIGBUS: Bus error) while running one"),
        (-8, BEGUN, "", "broken", "crashes (SIGFPE: Floating point exception) while running one"),
        (-63, BEGUN, "", "broken", "crashes (signal 63) while running one"),
        (0xC0000005, BEGUN, "", "broken", "crashes (exception 0xC0000005) while running one"),
        (-11, [], "", "untried", "crashes (SIGSEGV: Segmentation fault)"),
        (-15, BEGUN, "", "untried", "was ended (SIGTERM: Terminated) while running one"),
        (0, [{"doing": "importing mlx"}, {"missing": True}], "", "missing", ""),
        (0, [*BEGUN, {"wrong": "computes\n wrong   tokens"}], "x", "broken", "computes wrong tokens"),
        (0, [*BEGUN, {"error": "MemoryError: no room"}], "x", "untried", "MemoryError: no room"),
        (0, [*BEGUN, {"error": ""}], "the end\n", "untried", "gave no answer: the end"),
        (1, [], "Traceback\nKeyError: 'x'\n", "untried", "gave no answer: KeyError: 'x'"),
        (3, BEGUN, f"{'x' * 400}\n", "broken", f"gave no answer while running one: {'x' * 300}"),
        (0, [{"ran": "one"}], "", "broken", "gave no answer"),
    ],
)  # fmt: skip
def test_how_a_trial_went(code, told, errors, outcome, error):
    output = b"".join(f"\n{json.dumps(event)}\n".encode() for event in told)
    report = check._judge("llamacpp", code, check._read(output), errors.encode())
    ran = tuple(event["ran"] for event in told if "ran" in event)
    facts = FACTS if BEGUN[1] in told and outcome != "missing" else {}
    assert report == Report("llamacpp", outcome, facts, ran, error)


def test_the_reports_are_found_among_anything_else():
    output = b'ggml: {"doing": "no"}\n{"doing": "one"}\n[{"done": true}]\n7\n"x"\n{\n\xff\n' + b"[" * 200_000
    assert check._read(output + b'\n{"ran": "one", "doing": "two"}\n') == {"doing": "two", "ran": ["one"]}


def test_a_broken_engine_is_described_with_its_build(monkeypatch):
    monkeypatch.setattr(check, "read_processor", lambda: Processor("riscv64", "Some CPU", ("v",)))
    report = Report("llamacpp", "broken", FACTS, (), "crashes")
    assert check.describe(report) == (
        "llama.cpp crashes; engine: llama-cpp-python 0.3.36 built with AVX2 FMA; processor: Some CPU (v)"
    )

    def version(name: str) -> str:
        if name == "mlx":
            return "0.32.4"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(check, "version", version)
    assert check.describe(Report("mlx", "broken", {}, (), "hangs")) == (
        "MLX hangs; engine: mlx 0.32.4; processor: Some CPU (v)"
    )
    assert check.describe(Report("llamacpp", "broken", {}, (), "hangs")) == (
        "llama.cpp hangs; engine: llama-cpp-python of unknown version; processor: Some CPU (v)"
    )


@pytest.fixture
def installed(monkeypatch, tmp_path) -> Path:
    """A package that stands for llama.cpp, and a home without records."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAGENT_ENGINE_CHECK", "1")
    folder = tmp_path / "llama_cpp"
    (folder / "lib").mkdir(parents=True)
    for name in ("__init__.py", "lib/libllama.so.1", "lib/ggml.dll", "lib/ggml.metallib", "notes.txt"):
        (folder / name).write_text(name)
    spec = ModuleSpec("llama_cpp", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    found = SimpleNamespace(find_spec=lambda name: spec if name == "llama_cpp" else None)
    monkeypatch.setattr(check, "PathFinder", found)
    return folder


WORKS = Report("llamacpp", "works", FACTS, ("one",))


def test_what_works_is_recorded_with_the_processor(installed, tmp_path):
    check.remember(WORKS)
    assert check.passed("llamacpp")
    (record,) = (tmp_path / "home" / "engines" / "checked").iterdir()
    processor = check.read_processor()
    assert record.name.startswith("llamacpp-")
    assert record.name.endswith(f"-{processor.key}.json")
    assert record.read_text() == json.dumps(
        {"processor": [processor.name, *processor.features], **FACTS}, indent=2
    )


@pytest.mark.parametrize("outcome", ["broken", "untried", "missing"])
def test_nothing_else_is_recorded(installed, tmp_path, outcome):
    check.remember(Report("llamacpp", outcome, FACTS))
    assert not (tmp_path / "home").exists()


def test_what_is_not_installed_has_no_record(installed):
    check.remember(Report("mlx", "works", {}))
    assert not check.passed("mlx")


@pytest.mark.parametrize(
    ("name", "another"),
    [
        ("__init__.py", True),
        ("lib/libllama.so.1", True),
        ("lib/ggml.dll", True),
        ("lib/ggml.metallib", True),
        ("lib/ggml.dylib", True),  # there was none
        ("notes.txt", False),
    ],
)
def test_what_makes_another_build(installed, name, another):
    check.remember(WORKS)
    (installed / name).write_text("written again")
    assert check.passed("llamacpp") is not another


def test_the_build_that_is_gone_for_another_in_its_place(installed, monkeypatch):
    check.remember(WORKS)
    installed.rename(installed.with_name("moved"))
    spec = ModuleSpec("llama_cpp", None, is_package=True)
    spec.submodule_search_locations = [str(installed.with_name("moved"))]
    monkeypatch.setattr(check.PathFinder, "find_spec", lambda name: spec)
    assert not check.passed("llamacpp")


def test_a_full_disk_leaves_no_empty_record(installed, monkeypatch, tmp_path):
    """Which would say that the engine works."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    check.remember(WORKS)
    assert not check.passed("llamacpp")
    assert [*(tmp_path / "home" / "engines" / "checked").iterdir()] == []


@pytest.mark.parametrize("outcome", ["works", "broken", "untried", "missing"])
def test_only_what_is_broken_is_refused(installed, monkeypatch, outcome):
    tried = []

    def try_it(backend: str) -> Report:
        tried.append(backend)
        return Report(backend, outcome, FACTS, (), "crashes" if outcome == "broken" else "")

    monkeypatch.setattr(check, "check_engine", try_it)
    monkeypatch.setattr(check, "mending_command", lambda backend: f"mend {backend}")
    monkeypatch.setattr(check, "read_processor", lambda: Processor("riscv64", "Some CPU", ()))
    for _ in range(2):
        if outcome == "broken":
            with pytest.raises(EngineBroken) as caught:
                check.require_engine("llamacpp")
            assert str(caught.value) == (
                "llama.cpp crashes; engine: llama-cpp-python 0.3.36 built with AVX2 FMA; processor: Some CPU "
                "(riscv64); to fix it: mend llamacpp (LOCALAGENT_ENGINE_CHECK=0 loads it anyway)"
            )
        else:
            check.require_engine("llamacpp")
    assert tried == ["llamacpp"] * (1 if outcome == "works" else 2), "only what works is remembered"
    check.require_engine("mlx")
    assert "mlx" not in tried, "its host says what to install"


def test_a_checkout_mends_the_environment_that_its_makefile_made(monkeypatch, tmp_path):
    checkout, environment = tmp_path / "the checkout", tmp_path / "the checkout" / ".venv"
    environment.mkdir(parents=True)
    monkeypatch.setattr(compiling, "_ROOT", checkout)
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setattr(compiling, "build_command", lambda: "by pip")
    monkeypatch.chdir(tmp_path)
    assert check.mending_command("llamacpp") == "by pip"
    (environment / ".pip").touch()
    assert check.mending_command("llamacpp") == "by pip", "a wheel has no Makefile"
    (checkout / "Makefile").touch()
    said = shlex.split(check.mending_command("llamacpp"))
    assert said == ["make", "-C", str(checkout), "setup", "ENGINE=llamacpp"]
    monkeypatch.chdir(checkout)
    assert check.mending_command("llamacpp") == "make setup ENGINE=llamacpp"
    (environment / ".pip").unlink()
    assert check.mending_command("llamacpp") == "by pip"
    mlx = shlex.split(check.mending_command("mlx"))
    assert {"--force-reinstall", "--no-cache-dir"} < {*mlx}
    assert [word.partition(">")[0].partition("[")[0] for word in mlx if word.startswith("mlx")] == [
        "mlx",
        "mlx-lm",
    ]
