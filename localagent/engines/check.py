"""Whether an engine works on this machine: tried once in a child process, then remembered.

`check_engine` always tries the engine. `require_engine`, which `load` calls before importing an engine, tries
it only if this installation has not yet been tried on this processor, and raises EngineBroken for one that
crashes or computes wrong tokens. LOCALAGENT_ENGINE_CHECK=0 skips that.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from localagent.distribution import install_command
from localagent.engines.children import describe_end
from localagent.engines.processor import read_processor
from localagent.errors import EngineBroken
from localagent.files.paths import replace_file, user_path
from localagent.hosts.backends import BACKENDS, BackendName
from localagent.settings import ENGINE_CHECK, MEMORY_CHECK, switched_off

TIMEOUT: Final = 120.0
"""Seconds that a trial may take. It takes one or two, but longer on a machine that swaps."""

_TRIAL: Final = 1  # increased when `trial` tries more, so that engines are tried again
_LIBRARIES: Final = {".so", ".dylib", ".dll", ".pyd", ".metallib"}
_ROOT: Final = Path(__file__).parents[2]

Outcome = Literal["works", "missing", "broken", "untried"]
"""Untried: something else prevented the trial, such as too little memory."""

_FAULTS: Final = {f"SIG{name}" for name in ("SEGV", "ILL", "ABRT", "BUS", "FPE")}
"""Signals of a crash in the engine; others come from outside."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a trial."""

    backend: BackendName
    outcome: Outcome
    facts: dict[str, Any] = field(default_factory=dict)
    """What the engine reports: `version`, `build`, `devices`, `gpu`; empty if it got no further."""
    ran: tuple[str, ...] = ()
    """The models that wrote the right tokens."""
    error: str = ""
    """Why the engine is broken or could not be tried, as the rest of a sentence that begins with its name:
    "crashes (SIGSEGV: …) while …".
    """


def check_engine(backend: BackendName, timeout: float = TIMEOUT) -> Report:
    """Try an engine in a new interpreter with this one's module path. Raises nothing."""
    if getattr(sys, "frozen", False) or not sys.executable:  # a frozen executable would start itself again
        return Report(backend, "untried", error="there is no Python interpreter to run the trial")
    paths = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100  (of strings, and of "" as well)
    code = (
        f"import sys; sys.path[:] = {[*paths, str(_ROOT)]!r}; "
        f"from localagent.engines.trial import main; sys.exit(main({backend!r}))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            # Both checks are off in the child: the trial needs little memory, and if `sys.executable` is a
            # launcher that runs this program again, it must not start another trial.
            env={**os.environ, MEMORY_CHECK: "0", ENGINE_CHECK: "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        told = _read(error.stdout or b"")
        return _report(backend, "untried", told, f"gave no answer in {timeout:g} seconds{_while(told)}")
    except OSError as error:
        why = f"cannot start {sys.executable}: {error.strerror or error}"
        return Report(backend, "untried", error=why)
    return _judge(backend, done.returncode, _read(done.stdout), done.stderr)


def _judge(backend: BackendName, code: int, told: dict[str, Any], errors: bytes) -> Report:
    """The report on an engine, from the child's exit code and what it printed before."""
    if end := describe_end(code):
        crashed = not end.startswith("SIG") or end.partition(":")[0] in _FAULTS
        outcome: Outcome = "broken" if crashed and told else "untried"
        word = "crashes" if crashed else "was ended"
        return _report(backend, outcome, told, f"{word} ({end}){_while(told)}{_last_line(errors)}")
    if told.get("missing"):
        return Report(backend, "missing")
    if wrong := told.get("wrong"):
        return _report(backend, "broken", told, wrong)
    if "error" in told or not told:
        return _report(backend, "untried", told, told.get("error") or f"gave no answer{_last_line(errors)}")
    if "done" not in told:  # it ended in the middle of a step
        return _report(backend, "broken", told, f"gave no answer{_while(told)}{_last_line(errors)}")
    return _report(backend, "works", told, "")


def require_engine(backend: BackendName) -> None:
    """Raise EngineBroken for an engine that does not work on this machine.

    Takes a second or two for an engine that was not tried yet, else a few milliseconds. An engine that could
    not be tried passes, and so does one that is not installed: its host says what to install.
    """
    if switched_off(ENGINE_CHECK):
        return
    build = _identity(backend)
    if build is None or _passed(build) or BACKENDS[backend].trial is None:
        return
    report = check_engine(backend)
    if report.outcome == "broken":
        raise EngineBroken(
            f"{describe(report)}; to fix it: {mending_command(backend)} ({ENGINE_CHECK}=0 loads it anyway)"
        )
    if report.outcome == "works":
        remember(report)


def remember(report: Report) -> None:
    """Record for later processes that this engine works. If that fails, it is tried again next time."""
    build = _identity(report.backend)
    if report.outcome == "works" and build is not None:
        with suppress(OSError):
            path = _record(build)
            path.parent.mkdir(parents=True, exist_ok=True)
            processor = read_processor()
            facts = {"processor": [processor.name, *processor.features], **report.facts}
            replace_file(path, json.dumps(facts, indent=2).encode())


def passed(backend: BackendName) -> bool:
    """Whether this installation of the engine is recorded as working on this processor."""
    build = _identity(backend)
    return build is not None and _passed(build)


def describe(report: Report) -> str:
    """A sentence about a broken engine: what it does, its build and the processor."""
    row = BACKENDS[report.backend]
    distribution = row.distributions[0]
    build = f"{distribution} {report.facts.get('version', _version(distribution))}"
    if uses := report.facts.get("uses"):
        build += f" built with {' '.join(uses)}"
    return f"{row.title} {report.error}; engine: {build}; processor: {read_processor()}"


def mending_command(backend: BackendName) -> str:
    """The shell command that reinstalls the engine correctly for this machine."""
    row = BACKENDS[backend]
    if row.mend is not None:
        return row.mend()
    return install_command(row.name, only=row.distributions, options=["--force-reinstall", "--no-cache-dir"])


def engine_folder() -> Path:
    """`$LOCALAGENT_HOME/engines`, else `engines` in the user's cache folder. Raises UsageError."""
    return user_path("cache", "engines")


def _report(backend: BackendName, outcome: Outcome, told: dict[str, Any], error: str) -> Report:
    facts, ran = told.get("facts", {}), tuple(told.get("ran", ()))
    return Report(backend, outcome, facts, ran, " ".join(error.split()))


def _read(output: bytes) -> dict[str, Any]:
    """The child's reports, found among anything else it printed: the last of each kind, and all of `ran`."""
    told: dict[str, Any] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                ran = told.get("ran", [])
                told |= event
                if "ran" in event:
                    told["ran"] = [*ran, event["ran"]]
    return told


def _while(told: dict[str, Any]) -> str:
    return f" while {told['doing']}" if told.get("doing") else ""


def _last_line(errors: bytes) -> str:
    """The last line on the child's stderr, where a failed assert of a C library appears."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _passed(build: str) -> bool:
    with suppress(OSError):
        return _record(build).is_file()
    return False


def _record(build: str) -> Path:
    return engine_folder() / "checked" / f"{build}-{read_processor().key}.json"


def _identity(backend: BackendName) -> str | None:
    """A key for this installation of the engine; None if it is not installed.

    It is made of the paths, sizes and times of the libraries: importing a bad engine may already crash.
    """
    digest = hashlib.blake2b(f"{_TRIAL} {backend}".encode(), digest_size=8)
    for package in BACKENDS[backend].packages:
        # Not importlib.util.find_spec, which answers from sys.modules if the package is imported already.
        spec = PathFinder.find_spec(package)
        if spec is None:
            return None
        for place in sorted(spec.submodule_search_locations or ()):
            digest.update(place.encode("utf-8", "replace"))
            for path, status in _libraries(Path(place)):
                digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "replace"))
    return f"{backend}-{digest.hexdigest()}"


def _libraries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of a package's compiled libraries and of the module that wraps them."""
    for path in sorted({*folder.glob("*"), *folder.glob("lib/*")}):
        if path.suffix in _LIBRARIES or path.suffix == ".py" or ".so." in path.name:
            with suppress(OSError):
                yield path, path.stat()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"
