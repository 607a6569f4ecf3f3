"""Installs llama.cpp into this environment, compiled for this machine, and checks that it runs.

    python -m localagent.engines.build [PIP OPTION ...]

is what `make setup` calls. An installed engine that works is left alone. Otherwise the wheel comes from a
folder of our own, named after the processor and everything else that affects a build. pip's cache is not
used: pip would reuse an earlier build whatever CMAKE_ARGS say now, and a bad wheel would come back.
Options are passed to pip, such as `--find-links FOLDER --only-binary llama-cpp-python` for a prebuilt wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

from packaging.requirements import Requirement

from localagent.distribution import requirements
from localagent.engines.check import check_engine, describe, engine_folder, passed, remember
from localagent.engines.processor import read_processor
from localagent.errors import BuildFailed, EngineBroken, LocalAgentError
from localagent.hosts.llamacpp.backend import LLAMACPP
from localagent.hosts.llamacpp.compiling import cmake_args, compiler_command

PACKAGE: Final = LLAMACPP.distributions[0]
_STEP = re.compile(rb"\[(\d+)/(\d+)\]")
"""ninja's progress in pip's verbose output, such as [12/250]."""
INTERVAL: Final = {True: 5, False: 10}
"""Seconds between progress lines: fewer if stderr is a terminal."""


def install(options: Sequence[str] = ()) -> None:
    """Make sure that this environment has a working llama.cpp. `options` are passed to pip.

    Raises BuildFailed, EngineBroken, UsageError.
    """
    from filelock import FileLock

    if _is_fit() and passed(LLAMACPP.name):
        return
    engine_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(engine_folder() / "build.lock"):  # another `make setup` may be at work
        if _is_fit() and (passed(LLAMACPP.name) or _installed_works()):
            return
        if find_spec("llama_cpp") and not _ours():
            broken = describe(check_engine(LLAMACPP.name))
            raise EngineBroken(f"{broken}; it is in {_place()}, outside this environment: remove it there")
        folder = _folder(options)
        kept = _wheel(folder)
        if kept is None or not _install_wheel(kept, options):
            shutil.rmtree(folder, ignore_errors=True)  # a wheel that does not run must not be used again
            if not _install_wheel(_compile(folder, options), options):
                shutil.rmtree(folder, ignore_errors=True)
                broken = describe(check_engine(LLAMACPP.name))
                raise EngineBroken(
                    f"{broken}; it was built just now: try another compiler (CC=clang CXX=clang++)"
                )


def _installed_works() -> bool:
    """Whether the installed llama.cpp works, or at least could not be shown to be broken."""
    if not find_spec("llama_cpp"):
        return False
    _say("trying the installed llama.cpp")
    report = check_engine(LLAMACPP.name)
    if report.outcome == "untried":
        _say(f"it could not be tried: {report.error}")
    if report.outcome == "broken" and _ours():
        _say(f"{describe(report)}: installing it again")
    remember(report)
    return report.outcome in {"works", "untried"}


def _install_wheel(wheel: Path, options: Sequence[str]) -> bool:
    """Install a wheel. Returns False if its engine does not work."""
    _pip("install", "--quiet", "--force-reinstall", "--no-deps", "--no-cache-dir", str(wheel))
    _pip("install", "--quiet", *options, str(wheel))  # what it needs
    report = check_engine(LLAMACPP.name)
    remember(report)
    if report.outcome == "works":
        _say(f"llama.cpp {report.facts['version']} runs on this processor: {', '.join(report.ran)}")
    return report.outcome in {"works", "untried"}


def _check_compilers() -> None:
    """Raise BuildFailed if a compiler is missing. pip installs everything else that a build needs."""
    compilers = (*(os.environ.get("CC", "").split()[:1] or ["cc"]), compiler_command()[0])
    if missing := [tool for tool in compilers if not shutil.which(tool)]:
        raise BuildFailed(
            f"llama.cpp is built from source and needs {' and '.join(missing)}: install that first"
        )


def _compile(folder: Path, options: Sequence[str]) -> Path:
    """Build the wheel, or fetch it if `options` find one. `folder` appears once the wheel is complete.

    Call it with the lock held: it removes what killed builds left behind.
    """
    if not options:  # with other options pip may find a prebuilt wheel
        _check_compilers()
    for left in folder.parent.glob("*.part"):
        shutil.rmtree(left, ignore_errors=True)
    stage = folder.with_suffix(".part")
    stage.mkdir(parents=True)
    log = stage / "build.log"
    environment = {**os.environ, "CMAKE_ARGS": cmake_args()}
    work = "fetching or building llama.cpp" if options else "building llama.cpp"
    _say(f"{work} for {read_processor().name}: a build takes 5 to 10 minutes on two cores, once")
    _say(f"CMAKE_ARGS={environment['CMAKE_ARGS']}")
    # Without pip's cache, which may hold the very build that is being replaced.
    command = ["wheel", "--verbose", "--no-cache-dir", "--no-deps", "--wheel-dir", str(stage), *options]
    with log.open("wb") as file, _signs_of_life(log):
        file.write(f"CMAKE_ARGS={environment['CMAKE_ARGS']}\n".encode())
        file.flush()
        code = _run_to_the_end([sys.executable, "-m", "pip", *command, _requirement()], environment, file)
    wheel = _wheel(stage)
    if code or wheel is None:
        failed = folder.with_suffix(".log")
        log.replace(failed)
        shutil.rmtree(stage, ignore_errors=True)
        raise BuildFailed(f"llama.cpp could not be built: the whole log is {failed} ({_reason(failed)})")
    (stage / "build.json").write_text(json.dumps(_parameters(options), indent=2))
    stage.replace(folder)
    return folder / wheel.name


def _run_to_the_end(command: Sequence[str], environment: Mapping[str, str], output: BinaryIO) -> int:
    """Run a command; if this program is interrupted or terminated, end it and all that it started."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=os.name != "nt",
    )  # fmt: skip
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            if os.name == "nt":
                child.kill()
            else:
                os.killpg(child.pid, signal.SIGTERM)
            child.wait()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _signs_of_life(log: Path) -> Iterator[None]:
    """Print the time taken and ninja's progress every few seconds."""
    done = threading.Event()

    def tell() -> None:
        began = time.monotonic()
        while not done.wait(INTERVAL[sys.stderr.isatty()]):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            steps = _STEP.findall(log.read_bytes()) if log.exists() else []
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
    """The folder of the wheel for these parameters; its name is readable, and unique to them."""
    processor = re.sub(r"[^A-Za-z0-9]+", "-", read_processor().name).strip("-").lower()[:40]
    text = json.dumps(_parameters(options), sort_keys=True)
    return (
        engine_folder()
        / "wheels"
        / f"{processor}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    )


def _parameters(options: Sequence[str]) -> dict[str, object]:
    """Everything that affects a build."""
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
    """The requirement on llama-cpp-python, with the versions that localagent supports."""
    return next(requirements(LLAMACPP.name, [PACKAGE]))


def _wheel(folder: Path) -> Path | None:
    """The newest wheel in a folder."""
    return max(folder.glob("llama_cpp_python-*.whl"), default=None, key=lambda path: path.stat().st_mtime)


def _is_fit() -> bool:
    """Whether a supported version is installed."""
    try:
        return Requirement(_requirement()).specifier.contains(version(PACKAGE), prereleases=True)
    except PackageNotFoundError:
        return find_spec("llama_cpp") is not None  # copied here by hand, without metadata: the trial decides


def _place() -> str:
    """The folder of the llama_cpp that Python finds."""
    found = find_spec("llama_cpp")  # origin is None if an interrupted installation left only a folder
    return (found and (found.origin or next(iter(found.submodule_search_locations or ()), ""))) or ""


def _ours() -> bool:
    """Whether the llama_cpp that Python finds is in this environment, where pip can replace it."""
    return Path(_place()).is_relative_to(sys.prefix)


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise BuildFailed(f"pip {' '.join(arguments)} failed; its output is above")


def _reason(log: Path) -> str:
    """The line of a build's log that most likely says what went wrong."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["the log is empty"])[0][:200]


def _say(text: str) -> None:
    sys.stderr.write(f"    {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Install, or print in one line why it failed."""
    try:
        install(sys.argv[1:])
    except LocalAgentError as error:
        sys.stderr.write(f"localagent: {error}\n")
        return 1
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        sys.stderr.write(
            f"localagent: {error.strerror or error}{where}; LOCALAGENT_HOME names another folder\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("localagent: interrupted; run the same command to start again\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
