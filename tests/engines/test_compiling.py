"""How llama.cpp is compiled: AMX stays in only where a program that uses it runs."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from localagent.engines.processor import read_processor
from localagent.errors import UsageError
from localagent.hosts.llamacpp import compiling
from localagent.hosts.llamacpp.compiling import AMX_OFF, PARTS_LEFT_OUT, amx_is_safe, cmake_args

OFF = " ".join(AMX_OFF)


@pytest.fixture(autouse=True)
def x86(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def compiler(folder: Path, program: str, status: int = 0) -> str:
    """A C++ compiler whose programs are the shell script `program`."""
    path = folder / "c++"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > {folder}/asked\n'
        'while [ "$1" != -o ]; do shift; done\n'
        f'printf \'#!/bin/sh\\n{program}\\n\' > "$2"; chmod +x "$2"\n'
        f"exit {status}\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("program", "status", "safe"),
    [("exit 0", 0, True), ("exit 1", 0, False), ("kill -SEGV $$", 0, False), ("exit 0", 1, False)],
    ids=["runs", "loads garbage", "crashes", "does not compile"],
)
def test_what_the_probe_does_decides(tmp_path, program, status, safe):
    environment = {"CXX": compiler(tmp_path, program, status), "CXXFLAGS": "-pipe -O1"}
    assert amx_is_safe(environment) is safe
    assert (tmp_path / "asked").read_text().startswith("-pipe -O1 -O3 -march=native ")
    assert (OFF in cmake_args(environment)) is not safe


def test_a_compiler_that_is_not_there_is_not_trusted():
    assert not amx_is_safe({"CXX": "/nowhere/c++"})


def test_other_processors_have_no_amx(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert amx_is_safe({"CXX": "/nowhere/c++"})
    assert shlex.split(cmake_args({})) == list(PARTS_LEFT_OUT)


def test_the_compiler_that_cmake_is_told_to_use_is_asked(tmp_path):
    named = compiler(tmp_path, "exit 1")
    assert not amx_is_safe({"CMAKE_ARGS": f"-DCMAKE_CXX_COMPILER:FILEPATH={named}", "CXX": "/nowhere/c++"})
    assert (tmp_path / "asked").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for AMX")
@pytest.mark.skipif("amx_tile" not in read_processor().features, reason="this processor has no AMX")
@pytest.mark.parametrize("stores", ["kept", "dropped"])
def test_the_probe_itself_finds_a_configuration_of_garbage(tmp_path, stores):
    """On a processor with AMX, whatever its compiler does: without the stores, and with stores that stay."""
    program = compiling._PROBE
    if stores == "dropped":
        program = program.replace("wanted.rows[i] = 16;", "").replace("= {}", "")
    else:
        program = program.replace("struct tiles wanted", "volatile struct tiles wanted").replace(
            "= {}", "= {0}"
        )
        program = program.replace(
            "_tile_loadconfig(&wanted)", '__asm__ volatile("ldtilecfg %0" :: "m"(wanted))'
        )
    (tmp_path / "amx.c").write_text(program)
    subprocess.run(
        ["cc", "-O3", "-march=native", tmp_path / "amx.c", "-o", tmp_path / "amx"],
        check=True,
        capture_output=True,
    )
    done = subprocess.run([tmp_path / "amx"], capture_output=True, check=False)
    assert (done.returncode == 0) == (stores == "kept")


def test_without_amx_in_the_target_the_probe_is_empty():
    """The real compiler: flags that take AMX out leave nothing that could go wrong."""
    assert amx_is_safe({"CXXFLAGS": OFF})


@pytest.mark.parametrize(
    ("environment", "c", "cxx"),
    [
        ({}, OFF, OFF),
        ({"CFLAGS": "-g", "CXXFLAGS": "-pipe"}, f"-g {OFF}", f"-pipe {OFF}"),
        ({"CMAKE_ARGS": "-DCMAKE_C_FLAGS='-g -O1'", "CFLAGS": "-pipe"}, f"-g -O1 {OFF}", OFF),
        ({"CMAKE_ARGS": "-DCMAKE_CXX_FLAGS:STRING=-g -DGGML_CUDA=on"}, OFF, f"-g {OFF}"),
    ],
)
def test_flags_join_those_that_the_environment_asks_for(environment, c, cxx):
    args = shlex.split(cmake_args({**environment, "CXX": "/nowhere/c++"}))
    assert args[-2:] == [f"-DCMAKE_C_FLAGS={c}", f"-DCMAKE_CXX_FLAGS={cxx}"]
    own = shlex.split(environment.get("CMAKE_ARGS", ""))
    assert args[: len(PARTS_LEFT_OUT) + len(own)] == [*PARTS_LEFT_OUT, *own]


@pytest.mark.parametrize("safe", [True, False])
def test_commands_for_people_build_it_the_same_way(monkeypatch, safe):
    monkeypatch.setattr(compiling, "amx_is_safe", lambda *_: safe)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    monkeypatch.delenv("CFLAGS", raising=False)
    for command in (compiling.build_command(), compiling.first_install_command()):
        words = shlex.split(command)
        assert words[0].startswith("CMAKE_ARGS=") is not safe
        if not safe:
            assert f"-DCMAKE_C_FLAGS={OFF}" in shlex.split(words[0].removeprefix("CMAKE_ARGS="))
        assert "install" in words
        assert "--no-cache-dir" in words  # where a bad wheel may lie


@pytest.mark.parametrize("name", ["CMAKE_ARGS", "CXXFLAGS", "CXX"])
def test_a_quotation_mark_that_is_not_closed(monkeypatch, name):
    with pytest.raises(UsageError, match=f"^{name}=-DX='a: no closing quotation; fix the variable"):
        cmake_args({name: "-DX='a"})
    monkeypatch.setenv(name, "-DX='a")
    assert "install" in compiling.first_install_command()  # a hint has something else to say


def test_a_command_for_people_gives_the_environments_own_words_and_no_others(monkeypatch):
    monkeypatch.setattr(compiling, "amx_is_safe", lambda *_: False)
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_C_FLAGS='-g -O1' -DX=$HOME")
    printed = compiling.build_command().split(" /")[0]
    done = subprocess.run(
        ["sh", "-c", f'{printed}; printf %s "$CMAKE_ARGS"'], capture_output=True, text=True, check=True
    )
    words = shlex.split(done.stdout)
    assert words[:2] == ["-DCMAKE_C_FLAGS=-g -O1", "-DX=$HOME"]
    assert words[2] == f"-DCMAKE_C_FLAGS=-g -O1 {OFF}"
