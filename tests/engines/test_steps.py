"""The steps of `make setup`, one by one: what each says, leaves behind and takes for right. No engine is needed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.engines import build
from localagent.engines.check import Report
from localagent.engines.processor import Processor
from localagent.errors import BuildFailed


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (BuildFailed("pip failed"), 1, "localagent: pip failed\n"),
        (
            PermissionError(13, "Permission denied", "/nowhere/engines"),
            1,
            "localagent: Permission denied /nowhere/engines; LOCALAGENT_HOME names another folder\n",
        ),
        (OSError("it is odd"), 1, "localagent: it is odd; LOCALAGENT_HOME names another folder\n"),
        (KeyboardInterrupt(), 130, "localagent: interrupted; run the same command to start again\n"),
    ],
)
def test_however_it_ends_is_one_line(monkeypatch, capsys, error, code, line):
    asked = []

    def install(options: list[str]) -> None:
        asked.append(options)
        if error is not None:
            raise error

    monkeypatch.setattr(build, "install", install)
    monkeypatch.setattr(sys, "argv", ["build", "--no-index"])
    assert build.main() == code
    assert (asked, capsys.readouterr().err) == ([["--no-index"]], line)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "the log is empty"),
        (" \n\n", "the log is empty"),
        ("one\n  the last \n\n", "the last"),
        ("-- no errors yet\n  lib.c: Error: bad\nerror: worse\nmake stopped\n", "lib.c: Error: bad"),
        (f"error {'x' * 300}", f"error {'x' * 194}"),
    ],
)
def test_the_line_of_a_log_that_says_most(tmp_path, log, reason):
    (tmp_path / "build.log").write_bytes(log.encode())
    assert build._reason(tmp_path / "build.log") == reason


def test_a_log_of_other_bytes_is_read_all_the_same(tmp_path):
    (tmp_path / "build.log").write_bytes(b"fatal error: \xff\n")
    assert build._reason(tmp_path / "build.log") == "fatal error: \ufffd"


@pytest.mark.parametrize(
    ("installed", "fits"),
    [("0.3.36", True), ("0.3.99", True), ("0.3.37rc1", True), ("0.3.35", False), ("0.4.0", False)],
)
def test_which_versions_are_left_alone(monkeypatch, installed, fits):
    asked = []
    monkeypatch.setattr(build, "version", lambda name: asked.append(name) or installed)
    assert build._is_fit() is fits
    assert asked == ["llama-cpp-python"]


def test_a_copy_without_metadata_is_tried(monkeypatch):
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(build, "version", version)
    for spec in (None, ModuleSpec("llama_cpp", None)):
        monkeypatch.setattr(build, "find_spec", lambda name, spec=spec: spec if name == "llama_cpp" else None)
        assert build._is_fit() is (spec is not None)


def test_where_the_installed_engine_is(monkeypatch):
    """A package, the bare folder that an interrupted installation leaves, and nothing at all."""
    package = ModuleSpec("llama_cpp", None, origin=f"{sys.prefix}/lib/llama_cpp/__init__.py")
    folder = ModuleSpec("llama_cpp", None, is_package=True)
    folder.submodule_search_locations = ["/usr/lib/llama_cpp", "/opt/llama_cpp"]
    bare = ModuleSpec("llama_cpp", None)
    for spec, place, ours in (
        (package, package.origin, True),
        (folder, "/usr/lib/llama_cpp", False),
        (bare, "", False),
        (None, "", False),
    ):
        monkeypatch.setattr(build, "find_spec", lambda name, spec=spec: spec if name == "llama_cpp" else None)
        assert (build._place(), build._ours()) == (place, ours)


def test_every_compiler_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    monkeypatch.setenv("CC", "/nowhere/cc -m64")
    monkeypatch.setenv("CXX", "/nowhere/c++ -m64")
    with pytest.raises(BuildFailed) as caught:
        build._check_compilers()
    assert str(caught.value) == (
        "llama.cpp is built from source and needs /nowhere/cc and /nowhere/c++: install that first"
    )
    for name in ("cc", "c++"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC")
    monkeypatch.setenv("CXX", "")
    build._check_compilers()
    (tmp_path / "cc").unlink()
    with pytest.raises(BuildFailed, match="needs cc: install"):
        build._check_compilers()


@pytest.mark.parametrize(
    ("report", "ours", "works", "says"),
    [
        (Report("llamacpp", "works"), True, True, ""),
        (
            Report("llamacpp", "untried", error="gave no answer"),
            True,
            True,
            "    it could not be tried: gave no answer\n",
        ),
        (Report("llamacpp", "broken", error="crashes"), False, False, ""),
        (
            Report("llamacpp", "broken", error="crashes"),
            True,
            False,
            "    llama.cpp crashes; (as described): installing it again\n",
        ),
    ],
    ids=["works", "untried", "broken elsewhere", "broken here"],
)
def test_what_is_done_with_an_installed_engine(monkeypatch, capsys, report, ours, works, says):
    remembered = []
    monkeypatch.setattr(build, "find_spec", lambda name: name == "llama_cpp" or None)
    monkeypatch.setattr(build, "check_engine", lambda backend: backend == "llamacpp" and report)
    monkeypatch.setattr(build, "describe", lambda of: f"llama.cpp {of.error}; (as described)")
    monkeypatch.setattr(build, "remember", remembered.append)
    monkeypatch.setattr(build, "_ours", lambda: ours)
    assert build._installed_works() is works
    assert remembered == [report]
    assert capsys.readouterr().err == f"    trying the installed llama.cpp\n{says}"
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    assert build._installed_works() is False


@pytest.mark.parametrize(
    ("outcome", "works", "says"),
    [
        ("works", True, "    llama.cpp 0.3.36 runs on this processor: one, two\n"),
        ("untried", True, ""),
        ("broken", False, ""),
    ],
)
def test_a_wheel_is_put_in_the_place_of_what_is_there(monkeypatch, capsys, outcome, works, says):
    """First alone, whatever is installed; then with what it needs, which the options may say where to find."""
    report = Report("llamacpp", outcome, {"version": "0.3.36"}, ("one", "two"))
    remembered, ran = [], []
    monkeypatch.setattr(build, "check_engine", lambda backend: backend == "llamacpp" and report)
    monkeypatch.setattr(build, "remember", remembered.append)
    monkeypatch.setattr(build, "_pip", lambda *words: ran.append(words))
    assert build._install_wheel(Path("a.whl"), ("--no-index",)) is works
    assert ran == [
        ("install", "--quiet", "--force-reinstall", "--no-deps", "--no-cache-dir", "a.whl"),
        ("install", "--quiet", "--no-index", "a.whl"),
    ]
    assert (remembered, capsys.readouterr().err) == ([report], says)


def test_the_newest_wheel_is_taken(tmp_path):
    assert build._wheel(tmp_path) is None
    for name, second in (("0.3.36-a", 2), ("0.3.37-b", 3), ("0.3.38-c", 1)):
        (tmp_path / f"llama_cpp_python-{name}.whl").touch()
        os.utime(tmp_path / f"llama_cpp_python-{name}.whl", (second, second))
    (tmp_path / "numpy-2.whl").touch()
    assert build._wheel(tmp_path) == tmp_path / "llama_cpp_python-0.3.37-b.whl"


def test_a_folder_is_named_after_the_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/c++")  # asked for its version
    names = []
    for name in ("(C) Some  CPU @ 2.10GHz ", "x" * 60):
        processor = Processor("riscv64", name, ("v",))
        monkeypatch.setattr(build, "read_processor", lambda processor=processor: processor)
        folder = build._folder(())
        assert folder.parent == tmp_path / "engines" / "wheels"
        short, _, digest = folder.name.rpartition("-")
        names.append(short)
        assert len(bytes.fromhex(digest)) == 6
    assert names == ["c-some-cpu-2-10ghz", "x" * 40]
    with monkeypatch.context() as patch:
        for parameters in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):  # in any order
            patch.setattr(build, "_parameters", lambda _, parameters=parameters: parameters)
            names.append(build._folder(()).name)
    assert names.pop() == names.pop()
    monkeypatch.setattr(build, "cmake_args", lambda: "-DX=1")
    monkeypatch.setenv("CFLAGS", "-g")
    for name in ("CC", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    assert build._parameters(("--no-index",)) == {
        "requirement": "llama-cpp-python<0.4,>=0.3.36",
        "CMAKE_ARGS": "-DX=1",
        "flags": {"CC": "", "CXX": "/nowhere/c++", "CFLAGS": "-g", "CXXFLAGS": ""},
        "compiler": "",
        "processor": ["x" * 60, "v"],
        "options": ["--no-index"],
    }


@pytest.mark.skipif(os.name == "nt", reason="a compiler that is a shell script")
def test_a_compiler_is_known_by_the_first_line_that_it_prints(monkeypatch, tmp_path):
    (tmp_path / "c++").write_text('#!/bin/sh\necho "mine $1 4.2"; echo more; echo less >&2; exit 1\n')
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setattr(build, "compiler_command", lambda: [str(tmp_path / "c++")])
    assert build._parameters(())["compiler"] == "mine --version 4.2"


def test_the_time_that_a_build_takes_is_told_in_minutes(monkeypatch, capsys, tmp_path):
    clock = chain([100.0], repeat(1165.9))
    monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    told, say = threading.Event(), build._say
    monkeypatch.setattr(build, "_say", lambda text: (say(text), told.set()))
    monkeypatch.setattr(build, "INTERVAL", {True: 0.01, False: 0.01})
    with build._signs_of_life(tmp_path / "no log yet"):
        assert told.wait(30)
    assert capsys.readouterr().err.startswith("    17:45 preparing\n")


def test_a_command_writes_into_the_log_and_the_handler_of_signals_comes_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    code = "import os, sys; print(os.environ['X'], flush=True); print('bad', file=sys.stderr); sys.exit(3)"
    with (tmp_path / "log").open("wb") as file:
        assert build._run_to_the_end([sys.executable, "-c", code], {**os.environ, "X": "good"}, file) == 3
    assert (tmp_path / "log").read_text().split() == ["good", "bad"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_build_that_fails_leaves_its_log_and_nothing_else(monkeypatch, tmp_path, capsys):
    """Nor what an earlier one left, which was killed."""
    monkeypatch.setattr(build, "cmake_args", lambda: "-DX=1")
    monkeypatch.setattr(build, "read_processor", lambda: Processor("riscv64", "Some CPU", ()))
    commands = []

    def run(command: list[str], environment: dict[str, str], file) -> int:
        commands.append((command, environment["CMAKE_ARGS"], [each.name for each in tmp_path.iterdir()]))
        file.write(b"no such option\n")
        return 2

    monkeypatch.setattr(build, "_run_to_the_end", run)
    (tmp_path / "killed.part" / "half").mkdir(parents=True)
    with pytest.raises(BuildFailed) as caught:
        build._compile(tmp_path / "mine", ("--no-index",))
    log = tmp_path / "mine.log"
    assert str(caught.value) == (f"llama.cpp could not be built: the whole log is {log} (no such option)")
    assert [*tmp_path.iterdir()] == [log]
    assert log.read_text() == "CMAKE_ARGS=-DX=1\nno such option\n"
    ((command, args, there),) = commands
    assert command == [
        sys.executable, "-m", "pip", "wheel", "--verbose", "--no-cache-dir", "--no-deps",
        "--wheel-dir", str(tmp_path / "mine.part"), "--no-index", "llama-cpp-python<0.4,>=0.3.36",
    ]  # fmt: skip
    assert (args, there) == ("-DX=1", ["mine.part"])
    assert capsys.readouterr().err == (
        "    fetching or building llama.cpp for Some CPU: a build takes 5 to 10 minutes on two cores, once\n"
        "    CMAKE_ARGS=-DX=1\n"
    )
    monkeypatch.setattr(build, "_check_compilers", lambda: None)
    with pytest.raises(BuildFailed):
        build._compile(tmp_path / "mine", ())
    assert capsys.readouterr().err.startswith("    building llama.cpp for Some CPU: ")
