"""What the doctor finds on machines of any kind, in words, without an engine: see test_doctor for the command."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
from pathlib import Path

import psutil
import pytest
import typer

from localagent.cli import doctor
from localagent.cli.doctor import engines, machine, models
from localagent.cli.doctor.engines import describe_engine
from localagent.cli.doctor.findings import Finding
from localagent.distribution import install_command
from localagent.engines.check import Report, mending_command
from localagent.errors import InvalidWeights, UsageError
from localagent.hosts.llamacpp import backend as llamacpp
from localagent.hosts.llamacpp.compiling import build_command, first_install_command
from localagent.hosts.memory import Estimate, Machine
from localagent.hosts.mlx import backend as mlx

WORKS = Finding("engines", "MLX", "ok", "ran", data={"outcome": "works", "backend": "mlx"})
BROKEN = Finding(
    "engines", "llama.cpp", "problem", "installed, but broken: it crashes while it is imported", "make setup",
    {"outcome": "broken", "backend": "llamacpp"},
)  # fmt: skip
DISK = Finding("folders", "disk\x1b", "problem", "nothing free", "rm x", {"free": 0})
PLAIN = """\
engines
  ok       MLX        ran
  problem  llama.cpp  installed, but broken: it crashes while it is imported
                      fix: make setup

folders
  problem  disk\\x1b   nothing free
                      fix: rm x

2 problems found; models can run
"""
NARROW = """\
\x1b[1mengines\x1b[0m
  \x1b[32mok     \x1b[0m  MLX        ran
  \x1b[31mproblem\x1b[0m  llama.cpp  installed, but broken: it
                      crashes while it is imported
                      fix: make setup

\x1b[1mfolders\x1b[0m
  \x1b[33mnote   \x1b[0m  logs       a
                      long-long-long-long-long-long-long-
                      name

1 problem found; no engine works, so no model can run
"""


def examined(monkeypatch, findings, *, as_json=False):
    """The exit code of `doctor` where this is found."""
    monkeypatch.setattr(doctor, "collect", lambda timeout: findings if timeout == 3 else [])
    try:
        doctor.examine(as_json=as_json, timeout=3)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_a_report_for_people(monkeypatch, capsys):
    assert examined(monkeypatch, [WORKS, BROKEN, DISK]) == 0
    assert capsys.readouterr().out == PLAIN
    assert examined(monkeypatch, [WORKS]) == 0
    assert capsys.readouterr().out.endswith("\nno problems found; models can run\n")
    note = Finding("engines", "MLX", "note", "it ran", data={"outcome": "works", "backend": "other"})
    assert examined(monkeypatch, [note]) == 1, "models are not loaded on it"
    assert capsys.readouterr().out.endswith("\nno problems found; no engine works, so no model can run\n")


def test_a_report_on_a_narrow_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return 1

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 20)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    works_not = Finding("engines", "MLX", "ok", "ran", data={"outcome": "missing", "backend": "mlx"})
    logs = Finding("folders", "logs", "note", "a " + "long-" * 7 + " name")
    assert examined(monkeypatch, [works_not, BROKEN, logs]) == 1
    assert shown.getvalue() == NARROW

    def unknown(_: int) -> os.terminal_size:
        raise OSError

    shown.truncate(0)
    monkeypatch.setattr(os, "get_terminal_size", unknown)
    assert examined(monkeypatch, [works_not, BROKEN]) == 1
    assert f"  llama.cpp  {BROKEN.text}\n" in shown.getvalue(), "whose width is unknown"


def test_a_report_for_programs(monkeypatch, capsys):
    assert examined(monkeypatch, [BROKEN], as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {
        "works": False,
        "findings": [
            {
                "section": "engines", "name": "llama.cpp", "status": "problem", "text": BROKEN.text,
                "fix": "make setup", "data": BROKEN.data,
            },
        ],
    }  # fmt: skip


# Engines


def facts(**more):
    return {"version": "1", "mlx_lm": "2", "gpu": True, "devices": ["a", "b"], **more}


@pytest.mark.parametrize(
    ("outcome", "native", "told", "expected"),
    [
        ("works", True, facts(), ("ok", "mlx 1, mlx-lm 2, ran nano, Metal (a, b)", None)),
        (
            "works", True, facts(gpu=False, devices=[]),
            ("note", "mlx 1, mlx-lm 2, ran nano, no Metal (devices unknown): slow on the CPU", None),
        ),
        ("missing", True, {}, ("problem", "not installed; fast on this machine", install_command("mlx"))),
        ("missing", False, {}, ("note", "not installed; it is made for Apple silicon", None)),
        ("broken", True, {}, ("problem", "installed, but broken: bang", mending_command("mlx"))),
        ("untried", True, {}, ("note", "installed, but could not be tried: bang", None)),
    ],
)  # fmt: skip
def test_mlx_in_words(monkeypatch, outcome, native, told, expected):
    monkeypatch.setattr(mlx, "_apple_silicon", lambda: native)
    found = describe_engine(Report("mlx", outcome, told, ("nano",), "bang"), alone=True)
    assert (found.section, found.name) == ("engines", "MLX")
    assert (found.status, found.text, found.fix) == expected
    assert found.data == {"backend": "mlx", "outcome": outcome, "error": "bang", "ran": ["nano"], **told}


@pytest.mark.parametrize(
    ("outcome", "alone", "gpu", "told", "expected"),
    [
        ("works", True, None, facts(), ("ok", "llama-cpp-python 1, ran nano, GPU offload (a, b)", None)),
        (
            "works", True, "-DX=on", facts(uses=["A", "B"]),
            ("ok", "llama-cpp-python 1, ran nano, GPU offload (a, b), built with A B", None),
        ),
        (
            "works", False, "-DX=on", facts(gpu=False),
            (
                "problem",
                "llama-cpp-python 1, ran nano, no GPU offload (a, b); there is a GPU, and this build cannot use it",
                build_command("-DX=on"),
            ),
        ),
        ("missing", True, None, {}, ("problem", "not installed", first_install_command())),
        ("missing", False, None, {}, ("note", "not installed", first_install_command())),
        ("broken", True, None, {}, ("problem", "installed, but broken: bang", mending_command("llamacpp"))),
        ("untried", True, None, {}, ("note", "installed, but could not be tried: bang", None)),
    ],
)  # fmt: skip
def test_llamacpp_in_words(monkeypatch, outcome, alone, gpu, told, expected):
    monkeypatch.setattr(llamacpp, "gpu_option", lambda: gpu)
    found = describe_engine(Report("llamacpp", outcome, told, ("nano",), "bang"), alone=alone)
    assert (found.section, found.name) == ("engines", "llama.cpp")
    assert (found.status, found.text, found.fix) == expected


def test_an_engine_without_faults_has_no_error():
    assert describe_engine(Report("mlx", "missing"), alone=True).data["error"] is None


@pytest.mark.parametrize(
    ("system", "processor", "program", "gpu", "native"),
    [
        ("darwin", "arm64", None, "-DGGML_METAL=on", True),
        ("darwin", "x86_64", None, None, False),
        ("linux", "arm64", None, None, False),
        ("linux", "x86_64", "/usr/bin/nvidia-smi", "-DGGML_CUDA=on", False),
    ],
)
@pytest.mark.parametrize("works", [True, False])
def test_engines_are_judged_by_the_machine(monkeypatch, works, system, processor, program, gpu, native):
    """Whether there is a driver with a card here is nothing that the test can choose: /proc is never looked into."""
    asked = []

    def check(backend, timeout):
        asked.append((backend, timeout))
        return Report(backend, "works" if works else "missing", facts(gpu=False), ("nano",))

    monkeypatch.setattr(engines, "check_engine", check)
    monkeypatch.setattr(llamacpp, "Path", lambda _: Path("nothing-here"))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(shutil, "which", lambda name: program if name == "nvidia-smi" else None)
    found = engines.engine_findings(7)
    reports = [
        Report(each, "works" if works else "missing", facts(gpu=False), ("nano",))
        for each in ("llamacpp", "mlx")
    ]
    assert sorted(asked) == [("llamacpp", 7), ("mlx", 7)]
    assert found == [describe_engine(report, alone=not works) for report in reports]
    assert llamacpp.gpu_option() == gpu
    assert mlx._apple_silicon() is native


@pytest.mark.parametrize(("cards", "gpu"), [(["0000:01:00.0"], "-DGGML_CUDA=on"), ([], None), (None, None)])
def test_a_card_is_found_by_its_driver(monkeypatch, tmp_path, cards, gpu):
    if cards is not None:
        (tmp_path / "gpus").mkdir()
        for card in cards:
            (tmp_path / "gpus" / card).mkdir()
    monkeypatch.setattr(llamacpp, "Path", lambda _: tmp_path / "gpus")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert llamacpp.gpu_option() == gpu


# The machine


def test_the_program_is_told(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda: None)
    python = platform.python_version()
    assert [*machine.program_findings()] == [
        Finding("program", "localagent", "ok", "of unknown version"),
        Finding("program", "Python", "ok", f"{python}, {sys.executable}", data={"version": python}),
        Finding("program", "platform", "ok", platform.platform()),
    ]
    monkeypatch.setattr(machine, "version", lambda: "1.2")
    assert next(machine.program_findings()).text == "1.2"


@pytest.mark.parametrize(
    ("cores", "threads", "most", "told"),
    [
        (
            4,
            8,
            3,
            "4 cores, 8 threads; models run on 3, on fewer beside busy programs and on 1 if very small, unless --threads says otherwise",
        ),
        (
            None,
            None,
            9,
            "unknown cores, 1 threads; models run on 4, on fewer beside busy programs and on 1 if very small, unless --threads says otherwise",
        ),
    ],
)
def test_memory_and_processors_are_told(monkeypatch, cores, threads, most, told):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: threads if logical else cores)
    monkeypatch.setattr(os, "cpu_count", lambda: threads)
    monkeypatch.setattr("localagent.hosts.llamacpp.host.physical_cores", lambda: 4)
    monkeypatch.setattr("localagent.hosts.llamacpp.host.most_threads", lambda: most)
    memory, cpu = machine.machine_findings(Machine(16 * 10**9, 5 * 10**9))
    sizes = {"total": 16 * 10**9, "available": 5 * 10**9, "limit": None, "gpu_share": None}
    assert memory == Finding("machine", "memory", "ok", "16.0 GB, 5.0 GB available", data=sizes)
    counts = {"cores": cores, "threads": threads or 1, "default_threads": min(most, 4)}
    assert cpu == Finding("machine", "CPU", "ok", told, data=counts)


def test_folders_that_cannot_be_looked_into(monkeypatch, tmp_path):
    def refuse(_: Path) -> int:
        raise PermissionError

    (tmp_path / "sessions").mkdir()
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.setattr("localagent.store.disk.tree_size", refuse)
    found = {each.name: each for each in machine.folder_findings()}
    assert [*found] == ["models", "disk", "prefixes", "sessions", "logs"]
    data = {"path": f"{tmp_path}/sessions", "size": 0, "exists": False}
    assert found["sessions"] == Finding(
        "folders", "sessions", "ok", f"{tmp_path}/sessions (empty)", data=data
    )
    monkeypatch.setattr(os, "access", lambda path, how: (Path(path), how) != (tmp_path / "sessions", os.W_OK))
    found = {each.name: each for each in machine.folder_findings()}
    assert found["sessions"] == Finding(
        "folders", "sessions", "problem", f"{tmp_path}/sessions cannot be written",
        "export LOCALAGENT_HOME=FOLDER", data,
    )  # fmt: skip
    assert found["logs"].status == "ok"


def test_settings_are_told_with_what_they_mean(monkeypatch):
    for name in machine.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALAGENT_MODEL", "big")
    monkeypatch.setattr(machine, "_version", lambda package: None if package == "huggingface_hub" else "1")
    hub, *others = machine.setting_findings()
    assert hub == Finding(
        "settings", "huggingface_hub", "note", "not installed: models on Hugging Face cannot be pulled",
        install_command("hub"), {"version": None},
    )  # fmt: skip
    named = "LOCALAGENT_MODEL"
    assert others == [
        Finding("settings", name, "note", f"big ({meaning})", data={"value": "big"})
        if name == named
        else Finding("settings", name, "ok", f"not set ({meaning})", data={"value": None})
        for name, meaning in machine.SETTINGS.items()
    ]


# Models


def test_a_home_that_there_cannot_be(monkeypatch):
    def refuse() -> None:
        raise UsageError("no such home")

    monkeypatch.setattr("localagent.store.WeightStore", refuse)
    assert [*models.model_findings(Machine(1, 1))] == [
        Finding("models", "store", "problem", "no such home", "unset LOCALAGENT_HOME")
    ]


def test_weights_whose_size_nobody_can_tell(monkeypatch, tmp_path):
    def refuse(*_: object) -> None:
        raise InvalidWeights("it has no layers")

    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.setattr(models, "estimate_weights", refuse)
    found = {each.name: each for each in models.model_findings(Machine(1, 1))}
    nano = found["lfm2-nano (llamacpp)"]
    assert nano.status == "problem"
    assert nano.text.endswith(" MB, verified, but it has no layers")
    assert nano.fix == "localagent models pull lfm2-nano --backend llamacpp"
    assert nano.data["verified"] is True
    assert nano.data["path"].endswith(".gguf")


def test_a_folder_of_weights_without_its_configuration(tmp_path):
    with pytest.raises(
        InvalidWeights, match=f"^{tmp_path}/config.json: missing; not a folder with MLX weights"
    ):
        models.estimate_weights(tmp_path, 1024)


@pytest.mark.parametrize(
    ("available", "status", "says", "fix", "context"),
    [
        (10**11, "ok", "fits, with 8 lanes of 1,024 tokens each (the default)", None, 1024),
        (1_024_002_000, "ok", "fits, with 1 lane (limited by memory)", None, 1024),
        (1_024_001_999, "note", "only 768 tokens fit now", "localagent chat --model m --context 768", 768),
        (1_999, "note", "does not fit now", "localagent models list  # smaller ones", 0),
    ],
)
def test_whether_a_model_fits(available, status, says, fix, context):
    grows = {"kv_per_token": 10**6, "logits": 0, "activations": 0, "activations_per_token": 0}
    need = Estimate(1024, 4096, weights=2000, state=0, **grows)
    data = {"model": "m"}
    found = models._fit("m (llamacpp)", "2 kB", need, "llamacpp", Machine(10**12, available), data)
    told = f"2 kB; needs 1.0 GB of memory with 1,024 tokens of context: {says}"
    assert (found.section, found.name, found.status, found.text, found.fix) == (
        "models", "m (llamacpp)", status, told, fix,
    )  # fmt: skip
    assert found.data is data
    assert (data["context"], data["memory"], data["fitting_context"]) == (1024, 1_024_002_000, context)
    assert ("lanes" in data) == (status == "ok")
