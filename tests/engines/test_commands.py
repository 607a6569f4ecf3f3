"""A build of llama.cpp that crashes on quantized weights is a sentence in every command, never a bare signal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from localagent.settings import ENGINE_CHECK
from tests.cli.conftest import Command
from tests.engines.fakes import CRASHES, llamacpp_build

SAYS = "llama.cpp crashes (SIGSEGV: Segmentation fault) while running lfm2-nano quantized to Q8_0; engine: "
ROOT = Path(__file__).parents[2]


@pytest.fixture
def crashing(tmp_path: Path, gguf: Path) -> Command:
    """The command on such a build, with the check turned on."""
    command = Command(tmp_path)
    command.environment[ENGINE_CHECK] = "1"
    command.environment["PYTHONPATH"] = llamacpp_build(tmp_path / "fake", CRASHES)
    return command


@pytest.mark.parametrize("model", [(), ("--model", "lfm2-nano")], ids=["default", "nano"])
def test_run_says_that_the_engine_crashes(crashing, model):
    crashing.refuse("run", "Hello!", *model, code=1, says=SAYS)


def test_chat_says_that_the_engine_crashes(crashing):
    crashing.refuse("chat", stdin=b"Hello!\n", code=1, says=SAYS)


def test_doctor_says_that_the_engine_crashes_and_how_to_fix_it(crashing):
    done = crashing("doctor")
    text = done.stdout.decode()
    assert "problem  llama.cpp" in text
    assert SAYS.removeprefix("llama.cpp ").split(";")[0] in text
    assert "fix: " in text


def test_make_demo_says_that_the_engine_crashes(crashing):
    """The environment of the tests stands for the one that `make demo` made earlier."""
    done = subprocess.run(
        ["make", "demo", f"VENV={sys.prefix}", "ENGINE=llamacpp"],
        cwd=ROOT,
        env=crashing.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if SAYS in line]
    assert line.startswith("localagent: ")
    assert "outside this environment: remove it" in line
    assert "Segmentation fault\n" not in done.stderr.replace(line, "")


def test_a_good_build_is_tried_once_and_then_just_runs(tmp_path, gguf):
    command = Command(tmp_path)
    command.environment[ENGINE_CHECK] = "1"
    first = command("run", "Hello!", "--model", "lfm2-nano")
    assert (first.returncode, first.stdout, first.stderr) == (0, b"Hello! How can I help?\n", b"")
    (record,) = (tmp_path / "cache" / "localagent" / "engines" / "checked").iterdir()
    written = record.stat().st_mtime_ns
    assert command("run", "Hello!", "--model", "lfm2-nano").returncode == 0
    assert record.stat().st_mtime_ns == written
