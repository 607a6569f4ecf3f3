"""Installs llama.cpp into this environment, compiled for this machine, and sees that it runs.

    python -m localagent.engines.build [PIP OPTION ...]

is what `make setup` calls. An engine that is installed and works is left alone. Otherwise the wheel comes
from a folder of our own, named by the processor and by everything that shapes a build; pip's cache is passed
over, since pip takes what it compiled before whatever CMAKE_ARGS say now, and a bad wheel would come back.
pip's options go through, such as `--find-links FOLDER --only-binary llama-cpp-python` for a prebuilt wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from localagent.distribution import requirements
from localagent.engines.check import check_engine, describe, engine_folder, passed, remember
from localagent.engines.processor import read_processor
from localagent.errors import BuildFailed, EngineBroken, LocalAgentError
from localagent.hosts.llamacpp.compiling import cmake_args, compiler_command

PACKAGE: Final = "llama-cpp-python"
_STEP = re.compile(rb"\[(\d+)/(\d+)\]")
"""How ninja counts, in pip's verbose output."""
INTERVAL: Final = {True: 5, False: 15}
"""Seconds between signs of life: shorter where somebody watches a terminal."""


def install(options: Sequence[str] = ()) -> None:
    """Have a working llama.cpp in this environment. `options` are pip's. Raises BuildFailed, EngineBroken."""
    if passed("llamacpp"):
        return
    _check_tools(options)
    if _installed():
        _say("checking the llama.cpp that is installed")
        report = check_engine("llamacpp")
        if report.outcome == "works":
            remember(report)
            return
        if not _ours():
            place = find_spec("llama_cpp")
            where = place.origin if place else "?"
            raise EngineBroken(f"{describe(report)}; it lies in {where}, outside this environment: remove it")
        _say(f"{describe(report)}: installing it anew")
    folder = _folder(options)
    wheel = _wheel(folder) or _compile(folder, options)
    _pip("install", "--quiet", "--force-reinstall", "--no-deps", "--no-cache-dir", str(wheel))
    _pip("install", "--quiet", *options, str(wheel))  # what it needs
    report = check_engine("llamacpp")
    if report.outcome != "works":
        shutil.rmtree(folder, ignore_errors=True)  # a wheel that does not run is not kept
        raise EngineBroken(describe(report))
    remember(report)
    _say(f"llama.cpp {report.facts['version']} runs on this processor: {', '.join(report.ran)}")


def _check_tools(options: Sequence[str]) -> None:
    """Raise BuildFailed when something that compiles is missing, unless a prebuilt wheel may be meant."""
    compilers = (os.environ.get("CC", "cc").split()[0], compiler_command()[0])
    missing = [tool for tool in (*compilers, "cmake") if not shutil.which(tool)]
    if missing and not options:
        raise BuildFailed(
            f"llama.cpp is built from source and needs {' and '.join(missing)}: install that first"
        )


def _compile(folder: Path, options: Sequence[str]) -> Path:
    """Build the wheel and keep it in `folder`, which appears only when the wheel is whole."""
    stage = folder.with_name(f"{folder.name}.{os.getpid()}")
    stage.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    environment = {**os.environ, "CMAKE_ARGS": cmake_args()}
    _say(f"building llama.cpp for {read_processor().name}: 5 to 10 minutes on two cores, once")
    _say(f"CMAKE_ARGS={environment['CMAKE_ARGS']}")
    command = ["wheel", "--verbose", "--no-cache-dir", "--no-deps", "--wheel-dir", str(stage), *options]
    try:
        with log.open("wb") as file, _signs_of_life(log):
            file.write(f"CMAKE_ARGS={environment['CMAKE_ARGS']}\n".encode())
            file.flush()
            done = subprocess.run(
                [sys.executable, "-m", "pip", *command, _requirement()],
                env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False,
            )  # fmt: skip
        wheel = _wheel(stage)
        if done.returncode or wheel is None:
            raise BuildFailed(f"llama.cpp could not be built: the whole log is {log} ({_reason(log)})")
        (stage / "build.json").write_text(json.dumps(_parameters(options), indent=2))
        shutil.rmtree(folder, ignore_errors=True)
        stage.replace(folder)
        log.replace(folder / "build.log")
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return folder / wheel.name


@contextmanager
def _signs_of_life(log: Path) -> Iterator[None]:
    """A line every few seconds while the log grows: how long it has been, and how far ninja is."""
    done = threading.Event()

    def tell() -> None:
        began = time.monotonic()
        while not done.wait(INTERVAL[sys.stderr.isatty()]):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            steps = _STEP.findall(log.read_bytes())
            told = f"{int(steps[-1][0])} of {int(steps[-1][1])} files compiled" if steps else "preparing"
            _say(f"{minutes}:{seconds:02} {told}")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _folder(options: Sequence[str]) -> Path:
    """Where the wheel for these parameters is kept: readable, and different for all that shapes a build."""
    processor = re.sub(r"[^A-Za-z0-9]+", "-", read_processor().name).strip("-").lower()[:40]
    text = json.dumps(_parameters(options), sort_keys=True)
    return (
        engine_folder()
        / "wheels"
        / f"{processor}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    )


def _parameters(options: Sequence[str]) -> dict[str, object]:
    """All that shapes a build."""
    compiler = compiler_command()
    try:
        said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        said = ""
    return {
        "requirement": _requirement(),
        "CMAKE_ARGS": cmake_args(),
        "flags": {name: os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS")},
        "compiler": (said.splitlines() or [""])[0],
        "processor": [read_processor().name, *read_processor().features],
        "options": list(options),
    }


def _requirement() -> str:
    """llama-cpp-python with the versions that localagent works with."""
    return next(requirements("llamacpp", [PACKAGE]))


def _wheel(folder: Path) -> Path | None:
    """The newest wheel in a folder."""
    return max(folder.glob("llama_cpp_python-*.whl"), default=None, key=lambda path: path.stat().st_mtime)


def _installed() -> bool:
    return find_spec("llama_cpp") is not None


def _ours() -> bool:
    """Whether the llama_cpp that Python finds is the one in this environment, which pip can replace."""
    found = find_spec("llama_cpp")
    return bool(found and found.origin and Path(found.origin).is_relative_to(sys.prefix))


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise BuildFailed(f"pip {' '.join(arguments)} failed: see what it said above")


def _reason(log: Path) -> str:
    """The line of a build's log that says what went wrong, as far as one can tell."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines or ["nothing was said"])[0][:200]


def _say(text: str) -> None:
    sys.stderr.write(f"    {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Install, and say in one line why not."""
    try:
        install(sys.argv[1:])
    except (LocalAgentError, OSError) as error:
        sys.stderr.write(f"localagent: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("localagent: interrupted; what was compiled is lost, what was there is untouched\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
