"""An engine is tried in a child process, once per build and processor; what is wrong is said in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from localagent.engines import check
from localagent.engines.check import check_engine, describe, passed, require_engine
from localagent.engines.processor import read_processor
from localagent.errors import EngineBroken
from localagent.settings import ENGINE_CHECK
from tests.engines.fakes import CRASHES, MISCALCULATES, MISSING, REAL, impostor, llamacpp_build

pytestmark = pytest.mark.engine

# What stands in the place of an engine, and what is said of it.
BROKEN = {
    "raises": ("raise ImportError('libcuda.so.1: cannot open')", "ImportError: libcuda.so.1: cannot open"),
    "half": ("", "No module named 'llama_cpp.llama_cpp'"),
    "aborts": (
        "import os, sys; print('ggml: bad state', file=sys.stderr, flush=True); os.abort()",
        "crashes (SIGABRT: Aborted) while importing llama_cpp: ggml: bad state",
    ),
    "exits": ("import sys; sys.exit(3)", "gave no answer while importing llama_cpp"),
    "silent": ("import os; os._exit(0)", "gave no answer while importing llama_cpp"),
    "babbles": ("import os; os.write(1, b'[1, 2'); os._exit(0)", "gave no answer"),
    "needs another": (
        "import localagent_is_no_dependency",
        "ModuleNotFoundError: No module named 'localagent_is_no_dependency'",
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(ENGINE_CHECK, "1")
    return tmp_path / "home"


def in_front(monkeypatch, path: str) -> None:
    """Put `path` in front of everything, here and in children."""
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(path)


def test_an_engine_that_works():
    report = check_engine("llamacpp")
    assert (report.outcome, report.error) == ("works", "")
    assert report.ran == ("lfm2-nano", "lfm2-nano quantized to Q8_0", "lfm2-nano quantized to Q4_0")
    assert report.facts["version"][0].isdigit()
    assert report.facts["uses"]
    assert report.facts["devices"]


@pytest.mark.parametrize("how", BROKEN)
def test_engines_that_do_not_work(tmp_path, monkeypatch, how):
    code, says = BROKEN[how]
    in_front(monkeypatch, impostor(tmp_path / "fake", "llama_cpp", code))
    report = check_engine("llamacpp")
    assert report.outcome == "broken"
    assert says in report.error
    assert "\n" not in report.error


def test_an_engine_that_is_missing_passes_since_the_host_says_what_to_install(tmp_path, monkeypatch):
    in_front(monkeypatch, impostor(tmp_path / "fake", "llama_cpp", MISSING))
    assert check_engine("llamacpp").outcome == "missing"
    require_engine("llamacpp")
    assert not passed("llamacpp")


def test_an_engine_that_crashes_on_quantized_weights_is_a_sentence(tmp_path, monkeypatch, home):
    in_front(monkeypatch, llamacpp_build(tmp_path / "fake", CRASHES))
    with pytest.raises(EngineBroken) as caught:
        require_engine("llamacpp")
    told = str(caught.value)
    assert told.startswith(
        "llama.cpp crashes (SIGSEGV: Segmentation fault) while running lfm2-nano quantized to Q8_0; "
        "engine: llama-cpp-python 0."
    )
    assert f"processor: {read_processor()}; to fix it: " in told
    assert "install" in told or "setup" in told
    assert "\n" not in told
    assert not list(home.rglob("*.json"))  # a failure is not remembered: it may be mended at any time


def test_wrong_tokens_are_told_too(tmp_path, monkeypatch):
    in_front(monkeypatch, llamacpp_build(tmp_path / "fake", MISCALCULATES))
    report = check_engine("llamacpp")
    assert report.outcome == "broken"
    assert report.ran == ("lfm2-nano",)
    assert report.error.startswith("computes wrong tokens: lfm2-nano quantized to Q8_0 wrote ")
    assert "get_weather" in report.error
    assert "llama.cpp computes wrong tokens" in describe(report)


def test_an_engine_that_hangs(tmp_path, monkeypatch):
    in_front(monkeypatch, impostor(tmp_path / "fake", "llama_cpp", "import time; time.sleep(600)"))
    started = perf_counter()
    report = check_engine("llamacpp", timeout=10)  # in which a busy machine starts it
    assert perf_counter() - started < 100
    assert report.outcome == "untried"
    assert report.error == "gave no answer in 10 seconds while importing llama_cpp"


def test_a_success_is_remembered_for_this_build_and_processor(monkeypatch, home):
    assert not passed("llamacpp")
    require_engine("llamacpp")
    assert passed("llamacpp")
    (record,) = home.rglob("*.json")
    assert json.loads(record.read_text())["processor"][0] == read_processor().name

    def no_child(*_: object, **__: object) -> None:
        raise AssertionError("tried again")

    monkeypatch.setattr(subprocess, "run", no_child)
    require_engine("llamacpp")
    with monkeypatch.context() as elsewhere:
        other = read_processor().__class__("x86_64", "another", ("avx",))
        elsewhere.setattr(check, "read_processor", lambda: other)
        with pytest.raises(AssertionError, match="tried again"):
            require_engine("llamacpp")


def test_another_build_is_tried_anew(tmp_path, monkeypatch):
    require_engine("llamacpp")
    build = llamacpp_build(tmp_path / "fake", CRASHES)
    with monkeypatch.context() as patch:
        in_front(patch, build)
        assert not passed("llamacpp")
        # Good for now, then compiled again in the same place.
        module = Path(build, "llama_cpp", "llama_cpp.py")
        crashing = module.read_text()
        module.write_text(crashing.replace("if quantized:", "if False:"))
        require_engine("llamacpp")
        assert passed("llamacpp")
        module.write_text(crashing)
        with pytest.raises(EngineBroken):
            require_engine("llamacpp")


def test_the_check_can_be_turned_off(tmp_path, monkeypatch):
    in_front(monkeypatch, impostor(tmp_path / "fake", "llama_cpp", "import os; os.abort()"))
    for word in ("0", "no", "OFF", " false "):
        monkeypatch.setenv(ENGINE_CHECK, word)
        require_engine("llamacpp")
    monkeypatch.delenv(ENGINE_CHECK)
    with pytest.raises(EngineBroken):
        require_engine("llamacpp")


@pytest.mark.skipif(os.name == "nt", reason="a folder below a file")
def test_a_home_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "file"))
    require_engine("llamacpp")
    assert not passed("llamacpp")


def test_a_folder_of_that_name_is_no_engine(tmp_path, monkeypatch):
    impostor(tmp_path, "llama_cpp", "raise ImportError('from the working folder')")
    monkeypatch.chdir(tmp_path)
    assert check_engine("llamacpp").outcome == "works"


def test_an_interpreter_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    report = check_engine("llamacpp")
    assert (report.outcome, report.error) == (
        "untried",
        "cannot start /nowhere/python: No such file or directory",
    )
    require_engine("llamacpp")  # the engine may be fine
    assert not passed("llamacpp")


@pytest.mark.parametrize("how", ["frozen", "embedded"])
def test_a_program_that_is_its_own_interpreter_is_not_started_again(monkeypatch, how):
    if how == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(sys, "executable", "")
    report = check_engine("llamacpp")
    assert (report.outcome, report.error) == (
        "untried",
        "there is no Python interpreter to run the trial",
    )
    require_engine("llamacpp")


def test_a_launcher_in_the_place_of_python_does_not_start_itself_for_ever(tmp_path, monkeypatch):
    """It runs its own program, which loads a model, whatever its arguments say."""
    launcher = tmp_path / "app"
    launcher.write_text(
        f"#!{sys.executable}\nimport sys; from localagent.engines.check import require_engine\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); sys.executable = {str(launcher)!r}\n"
        "require_engine('llamacpp')\n"
    )
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))
    require_engine("llamacpp")
    assert (tmp_path / "starts").read_text() == "x"


def test_the_child_tries_the_engine_that_this_process_would_import(tmp_path, monkeypatch):
    """Found through sys.path alone, of which the environment knows nothing."""
    monkeypatch.syspath_prepend(llamacpp_build(tmp_path / "fake", CRASHES))
    with pytest.raises(EngineBroken):
        require_engine("llamacpp")


OTHERWISE = """
def llama_decode(context, batch):
    if quantized:
        {what}
    return real_decode(context, batch)
"""


@pytest.mark.parametrize(
    ("what", "outcome", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "untried", "was ended (SIGKILL: Killed) while running"),
        ("os.kill(os.getpid(), signal.SIGILL)", "broken", "crashes (SIGILL: Illegal instruction) while"),
        ("raise MemoryError('no room')", "untried", "no room"),
        ("os._exit(0)", "broken", "gave no answer while running lfm2-nano quantized to Q8_0"),
    ],
)
def test_only_the_engine_s_own_faults_are_held_against_it(tmp_path, monkeypatch, what, outcome, says):
    fake = llamacpp_build(tmp_path / "fake", REAL + OTHERWISE.replace("{what}", what))
    in_front(monkeypatch, fake)
    report = check_engine("llamacpp")
    assert report.outcome == outcome, report
    assert says in report.error


def test_too_little_memory_says_nothing_of_the_engine(monkeypatch):
    """The estimate is passed over: what runs out for real is told as untried."""
    monkeypatch.setenv("LOCALAGENT_MEMORY_CHECK", "1")
    assert check_engine("llamacpp").outcome == "works"


@pytest.mark.parametrize("name", ["lib/libggml-cpu.so", "llama_cpp.py"])
def test_a_library_that_was_written_again_is_another_build(tmp_path, monkeypatch, name):
    fake = Path(llamacpp_build(tmp_path / "fake", REAL))
    library = fake / "llama_cpp" / "lib"
    shutil.copytree(library.resolve(), tmp_path / "copy")
    library.unlink()
    (tmp_path / "copy").rename(library)
    in_front(monkeypatch, str(fake))
    require_engine("llamacpp")
    assert passed("llamacpp")
    os.utime(fake / "llama_cpp" / name, ns=(1, 1))
    assert not passed("llamacpp")


def test_the_command_that_mends(tmp_path, monkeypatch):
    """An environment that the Makefile made is mended by it, another one by pip."""
    root = Path(check.__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "--force-reinstall" in check.mending_command("llamacpp")
    (tmp_path / ".pip").touch()
    assert check.mending_command("llamacpp") == f"make -C {root} setup ENGINE=llamacpp VENV={tmp_path}"
    monkeypatch.chdir(root)
    assert check.mending_command("llamacpp") == f"make setup ENGINE=llamacpp VENV={tmp_path}"
    assert "mlx" in check.mending_command("mlx")
