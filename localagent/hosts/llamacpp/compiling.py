"""How llama.cpp has to be compiled on this machine.

gcc before 12.4, 13.3 and 14.1 drops the stores in front of `_tile_loadconfig` (gcc bug 114098). llama.cpp,
compiled natively on an x86 processor with AMX, then loads its tile configuration from stale stack memory, and
crashes at the first multiplication with quantized weights. So AMX stays out of the build unless a small
program that does the same, compiled the same way, runs correctly.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from localagent.distribution import install_command
from localagent.errors import UsageError

PARTS_LEFT_OUT: Final = (
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
)
"""No vision, no tools, no server: a third less to compile, and nothing here uses them."""
_ROOT: Final = Path(__file__).parents[3]
AMX_OFF: Final = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")

# Does what ggml does with AMX. The stack is dirtied first, so that dropped stores always show; without AMX
# in the compiler's target there is nothing to go wrong.
_PROBE: Final = """
#ifdef __AMX_TILE__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

struct tiles { unsigned char palette, start, rest[14]; unsigned short columns[16]; unsigned char rows[16]; };
static struct tiles loaded;

__attribute__((noinline)) static void dirty_the_stack() {
    volatile char stack[4096];
    for (unsigned i = 0; i < sizeof stack; i++) stack[i] = 85;
}

__attribute__((noinline)) static void configure() {
    struct tiles wanted = {};
    wanted.palette = 1;
    for (int i = 0; i < 8; i++) { wanted.rows[i] = 16; wanted.columns[i] = 64; }
    _tile_loadconfig(&wanted);
    __asm__ volatile("sttilecfg %0" : "=m"(loaded));
}

int main() {
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 0;  /* no AMX from the kernel: ggml uses none */
    dirty_the_stack();
    configure();
    return !(loaded.palette == 1 && loaded.rows[7] == 16 && loaded.columns[7] == 64 && loaded.rows[8] == 0);
}
#else
int main() { return 0; }
#endif
"""


def cmake_args(environment: Mapping[str, str] = os.environ) -> str:
    """CMAKE_ARGS for building llama.cpp: ours, then the environment's own, which win.

    Where AMX has to stay out, its flags join the compiler flags that the environment asks for, for a
    `-DCMAKE_C_FLAGS` of ours alone would replace both those and CFLAGS. Raises UsageError where a quotation
    mark is not closed.
    """
    return shlex.join([*PARTS_LEFT_OUT, *_words("CMAKE_ARGS", environment), *_amx_options(environment)])


def amx_is_safe(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine's compiler may be left to use AMX, or has none to use."""
    if sys.platform == "win32" or platform.machine().lower() not in {"x86_64", "amd64", "i686"}:
        return True  # the fault is in gcc, and Windows builds with another compiler
    compiler = compiler_command(environment)
    return _probe_runs(tuple(compiler), tuple(_flags("CXX", environment)))


def compiler_command(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The C++ compiler that CMake would take."""
    named = _option("CMAKE_CXX_COMPILER", environment)
    return [named] if named else _words("CXX", environment) or ["c++"]


def build_command(*wanted: str) -> str:
    """The shell command that builds llama.cpp anew in this environment, with these options for CMake."""
    options = ("--force-reinstall", "--no-cache-dir", "--no-deps")
    command = install_command("llamacpp", only=["llama-cpp-python"], options=options)
    return f"{_assignment(*wanted)}{command}"


def first_install_command() -> str:
    """The shell command that installs localagent's llama.cpp into this environment."""
    # pip would take what it compiled before from its cache, whatever the flags.
    return f"{_assignment()}{install_command('llamacpp', options=['--no-cache-dir'])}"


def mending_command() -> str:
    """The shell command that reinstalls llama.cpp correctly for this machine."""
    checkout, environment = _ROOT, Path(sys.prefix)
    if not (checkout / "Makefile").is_file() or not (environment / ".pip").is_file():
        return build_command()
    # The Makefile made this environment, and its target replaces the build.
    command = ["make", *(() if Path.cwd() == checkout else ("-C", str(checkout))), "setup", "ENGINE=llamacpp"]
    if environment != checkout / ".venv":
        command.append(f"VENV={environment}")
    return shlex.join(command)


def _assignment(*wanted: str) -> str:
    """What a command needs in front for this machine: nothing, where a plain build is right."""
    try:
        own, options = _words("CMAKE_ARGS", os.environ), _amx_options(os.environ)
    except UsageError:  # the command itself says so when it is run; this hint is about something else
        return ""
    if not wanted and not options:
        return ""
    value = shlex.join([*own, *wanted, *options])
    # Double quotes outside read better; what they would not keep literal goes into single ones.
    quoted = shlex.quote(value) if set(value) & set('"$`\\!') else f'"{value}"'
    return f"CMAKE_ARGS={quoted} "


def _amx_options(environment: Mapping[str, str]) -> list[str]:
    """The options for CMake that keep AMX out; none where it may stay."""
    if amx_is_safe(environment):
        return []
    return [
        f"-DCMAKE_{language}_FLAGS={' '.join((*_flags(language, environment), *AMX_OFF))}"
        for language in ("C", "CXX")
    ]


def _flags(language: str, environment: Mapping[str, str]) -> list[str]:
    """The compiler flags that a build would use: CMake reads CFLAGS and CXXFLAGS unless told otherwise."""
    option = _option(f"CMAKE_{language}_FLAGS", environment)
    return _words(f"{language}FLAGS", environment) if option is None else _split("CMAKE_ARGS", option)


def _option(name: str, environment: Mapping[str, str]) -> str | None:
    """The value of the last `-DNAME=` or `-DNAME:TYPE=` in the environment's CMAKE_ARGS."""
    last = None
    for word in _words("CMAKE_ARGS", environment):
        key, equals, value = word.partition("=")
        if equals and key.removeprefix("-D").partition(":")[0] == name:
            last = value
    return last


def _words(name: str, environment: Mapping[str, str]) -> list[str]:
    return _split(name, environment.get(name, ""))


def _split(name: str, text: str) -> list[str]:
    """The words of a variable as a shell splits them. Raises UsageError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{name}={text}: {str(error).lower()}; fix the variable, or unset it") from error


@cache
def _probe_runs(compiler: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "amx.cpp", Path(folder) / "amx"
        source.write_text(_PROBE)
        command = [*compiler, *flags, "-O3", "-march=native", str(source), "-o", str(program)]
        try:
            for step in (command, [str(program)]):
                if subprocess.run(step, capture_output=True, timeout=60, check=False).returncode:
                    return False
        except (OSError, subprocess.TimeoutExpired):
            return False
    return True
