"""A process that an engine takes down with it is named: model, engine, processor."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from localagent.engines.children import describe_death, describe_end, read_loaded, run_watched
from localagent.engines.processor import read_processor
from localagent.nano import GGUF

ROOT = Path(__file__).parents[2]
DIES = f"""
import os, signal, sys
from localagent.hosts.llamacpp.host import LlamaCppHost
host = LlamaCppHost.load({str(GGUF)!r}, context=64, threads=1)
os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, ""),
        (3, ""),
        (-11, "SIGSEGV: Segmentation fault"),
        (-4, "SIGILL: Illegal instruction"),
        (-63, "signal 63"),
        (0xC0000005, "exception 0xC0000005"),
    ],
)
def test_how_a_process_ended(code, says):
    assert describe_end(code) == says


def test_a_death_with_no_model_loaded_says_so():
    assert describe_death(-6, "") == (
        f"died (SIGABRT: Aborted) with no model loaded; processor: {read_processor()}"
    )


def test_a_death_of_which_little_is_known_says_so(tmp_path):
    processor = read_processor()
    assert describe_death(None, "nano") == f"died with nano loaded; processor: {processor}"
    assert read_loaded(tmp_path / "none") == ""
    (tmp_path / "note").write_bytes(b" nano on \xff\n")
    assert read_loaded(tmp_path / "note") == "nano on \ufffd"


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "localagent.engines.children", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.engine
def test_a_death_is_told_with_the_model_the_engine_and_the_processor(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    done = watch(str(script), "SIGSEGV")
    assert done.returncode == 128 + 11
    (line,) = [line for line in done.stderr.splitlines() if "died" in line]
    assert line.startswith(f"{script} SIGSEGV: died (SIGSEGV: Segmentation fault) with ")
    assert "nano" in line.lower()
    assert " on llama.cpp (llama-cpp-python 0." in line
    assert line.endswith(f"processor: {read_processor()}")


END = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_that_was_asked_for_is_not_remarked_upon(capfd, number):
    code = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); {END}"
    assert run_watched(["-c", code, str(int(number))], {}) == 128 + number
    assert capfd.readouterr().err == ""


def test_ctrl_c_is_for_the_child(monkeypatch, capfd):
    """The terminal sends it to both; the parent waits for what the child makes of it."""
    waits = []

    class Child(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            waits.append(timeout)
            if len(waits) < 3:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Child)
    assert run_watched(["-c", END, str(int(signal.SIGABRT))], {}) == 128 + signal.SIGABRT
    assert len(waits) == 3
    assert capfd.readouterr().err == (
        f"-c {END} 6: died (SIGABRT: Aborted) with no model loaded; processor: {read_processor()}\n"
    )


@pytest.fixture
def pytester_folder():
    """A test beside this one that kills its worker; only for the time of the test."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix="dying_") as folder:
        file = Path(folder) / "test_dying.py"
        body = "".join(
            f"    {line}\n" for line in DIES.strip().replace("sys.argv[1]", "'SIGSEGV'").splitlines()
        )
        file.write_text(f"import pytest\n\n@pytest.mark.engine\ndef test_dies():\n{body}")
        yield folder


def test_exit_codes_and_output_pass(capfd):
    code = "import os; print(os.environ['X']); raise SystemExit(7)"
    assert run_watched(["-c", code], {"X": "hello"}) == 7
    assert capfd.readouterr() == ("hello\n", "")


@pytest.mark.engine
def test_a_test_that_dies_with_its_worker_is_told_likewise(pytester_folder):
    """As `make test` runs them, with the repository's own conftest."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-q", "-p", "no:cacheprovider", str(pytester_folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    told = [
        line for line in done.stdout.splitlines() if "crashed while running" in line and "it died" in line
    ]
    line = told[0]  # pytest says it again in its summary
    assert "test_dies" in line
    assert " on llama.cpp (llama-cpp-python 0." in line
    assert f"processor: {read_processor()}" in line
