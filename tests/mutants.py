"""Do the tests notice a fault? `make mutants SEED=7 COUNT=200`, or `python -m tests.mutants --help`.

A seeded sample of small faults, in parsers, localagent and localagent_bench in proportion to their size, each put into a copy of
the tree, where the tests of the fitting folder run until one fails. mutmut makes most faults; its runner, which
does not sample, has one set of tests and no decorated functions, and one process for all, is not used.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any
from xml.etree import ElementTree

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from tests.faults import Mutant, sample

ROOT = Path(__file__).parents[1]
JUDGED = Path(__file__).with_suffix(".toml")
ENOUGH, PATIENCE = 0.92, 30  # of the faults; seconds, besides four times those of the baseline
# What is tested under another name than its own, or under that too, by the beginning of its path.
ELSEWHERE = {
    "localagent/__": ("tests/test_layers.py",),
    "localagent/chat_model.py": ("tests/test_turn.py", "tests/remote"),
    "benchmarks/localagent_bench/": ("tests/bench",),
    "benchmarks/localagent_bench/fleet/": ("tests/test_fleet_simulation.py",),
    "benchmarks/localagent_bench/harness/": ("tests/test_benchmarks.py",),
    "localagent/cli/plugins.py": ("tests/test_packaging.py",),
    "localagent/cli/fleet.py": ("tests/server/fleet",),
    "localagent/cli/loading.py": ("tests/store/test_models_command.py",),
    "localagent/cli/models.py": ("tests/store/test_models_command.py",),
    "localagent/cli/serve.py": ("tests/server/test_serve.py", "tests/server/test_hanging.py"),
    "localagent/constraint/passing.py": ("tests/remote/tokens/test_holding.py",),
    "localagent/constraint/request.py": ("tests/remote/tokens/test_holding.py",),
    "localagent/control.py": ("tests/constraint/test_guide.py",),
    "localagent/distribution.py": ("tests/test_packaging.py",),
    "localagent/errors.py": ("tests/test_turn.py",),
    "localagent/hosts/llamacpp/compiling.py": ("tests/engines/test_compiling.py",),
    "localagent/hosts/mlx/library.py": ("tests/engines/test_check.py",),
    "localagent/model.py": ("tests/test_turn.py", "tests/test_astream.py"),
    "localagent/prompt/probe.py": ("tests/test_detection.py",),
    "localagent/settings.py": ("tests/files",),
    "localagent/transport.py": ("tests/remote/test_server.py", "tests/toolbox/test_web.py"),
    "localagent/prompt/": ("tests/messages", "tests/test_turn.py", "tests/wire/test_chat_template.py"),
}


def tests_for(root: Path, path: str) -> tuple[str, ...]:
    """The folder or the files with the tests of a source file."""
    parts = Path(path.removeprefix("benchmarks/")).with_suffix("").parts
    name = parts[1] if parts[0] == "localagent" else parts[0]
    named = [each for each in (f"tests/{name}", f"tests/test_{name}.py") if (root / each).exists()]
    return (*named, *(each for start, tests in ELSEWHERE.items() if path.startswith(start) for each in tests))


def distance(root: Path, path: str, test: str) -> int:
    """How far a test file is from a source file, by its name, ELSEWHERE, and what it names: the nearest run first."""
    parts = Path(path.removeprefix("benchmarks/")).with_suffix("").parts
    if Path(test).stem == f"test_{parts[-1]}" or test in tests_for(root, path):
        return 0
    text = (root / test).read_text()
    return next(
        (at for at in range(1, len(parts)) if ".".join(parts[: len(parts) + 1 - at]) in text), len(parts)
    )


class Copy:
    """The tree in a folder of its own, with an environment whose `localagent` is the copy's."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        packages = [each for each in sys.path if each.endswith("site-packages")]
        (site / "copy.pth").write_text("\n".join([str(self.root), str(self.root / "benchmarks"), *packages]))
        for entry in entry_points(
            group="console_scripts"
        ):  # what tests run: localagent, and others' programs
            command = self.python.with_name(entry.name)
            call = f"from {entry.module} import {entry.attr}\nraise SystemExit({entry.attr}())"
            command.write_text(f"#!{self.python}\n{call}\n")
            command.chmod(0o755)
        for stamp in filter(Path.is_file, Path(sys.prefix).glob(".*")):  # what `make` has installed already
            (folder / "venv" / stamp.name).touch()
        self._writes = 10**9
        self._process: subprocess.Popen | None = None
        self._ended = False

    def write(self, path: str, text: str) -> None:
        """Python tells a stale compiled file by the second and the size: no two writes are of one second."""
        (self.root / path).write_text(text)
        self._writes += 1
        os.utime(self.root / path, (self._writes, self._writes))

    def run(self, tests: Iterable[str], limit: float | None, *options: str) -> str:
        """What the tests say; whatever they started is ended with them."""
        command = [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(command, cwd=self.root, start_new_session=True, **streams)
        try:
            end = "killed" if self._process.wait(limit) else "survived"
        except subprocess.TimeoutExpired:
            end = "timed out"
        finally:
            self._kill()
            self._process.wait()
        if self._ended:  # which says nothing of the fault
            raise CancelledError
        return end

    def end(self) -> None:
        """From another thread: what runs is killed, and `run` raises CancelledError from now on."""
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def baseline(self, tests: str) -> tuple[dict[str, float], set[str]]:
        """How long each test file of a folder takes without a fault, and the tests that fail."""
        file, started, seconds = self.root / ".report.xml", perf_counter(), Counter[str]()
        self.run([tests], None, "--maxfail=0", f"--junitxml={file}", "-o", "junit_family=xunit1")
        cases = [*ElementTree.parse(file).iter("testcase")]
        failed = {
            node_id(case)
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        }
        for case in cases:
            seconds[case.get("file", tests)] += float(case.attrib["time"])
        idle = (perf_counter() - started - seconds.total()) / max(
            1, len(seconds)
        )  # imports, and what modules set up
        return {test: took + idle for test, took in seconds.items()}, failed


def node_id(case: ElementTree.Element) -> str:
    """What pytest calls a test of its report. A file that cannot be imported has a name alone, of a module."""
    file = case.get("file")
    if file is None:
        return case.attrib["name"].replace(".", "/") + ".py"
    inside = case.attrib["classname"].removeprefix(file.removesuffix(".py").replace("/", "."))
    return "::".join([file, *filter(None, inside.split(".")), case.attrib["name"]])


def share(copies: list[Copy], work: Callable[[Copy, Any], None], groups: Iterable[Any]) -> None:
    """Each copy takes the next group when it is done with one; on Ctrl-C, or if one fails, what runs is killed."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def with_one(group: Any) -> None:
        copy = free.get()
        try:
            work(copy, group)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            for done in as_completed([pool.submit(with_one, group) for group in groups]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.end()
            raise


class Notes:
    """What is known already, in a file of JSON lines: a run takes hours, and may go on another day."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.seconds: dict[str, dict[str, float]] = {}
        """Of each test file, by the folder that was run."""
        self.ends: dict[str, str] = {}
        """Of each fault, by its key."""
        for line in file.read_text().splitlines() if file is not None and file.exists() else ():
            note = json.loads(line)
            if "folder" in note:
                self.seconds[note["folder"]] = note["seconds"]
            else:
                self.ends[note["key"]] = note["end"]

    def add(self, **note: Any) -> None:
        """Keep a folder's seconds, or a fault's end."""
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(note) + "\n")


def told(mutant: Mutant, end: str) -> str:
    """The end of a fault; one that no test failed for is printed at once, since a run takes hours."""
    if end in ("survived", "timed out"):
        print(f"{mutant.path}:{mutant.line} {end} ({mutant.key})\n{mutant.diff}\n", flush=True)
    return end


def report(results: list[tuple[Mutant, str]]) -> int:
    """Print what became of the faults; 0 if enough of those that change anything were noticed."""
    columns, counts = ("killed", "timed out", "survived", "of no effect"), {"": Counter()}
    for mutant, judged in results:
        for row in (str(Path(mutant.path).parent), ""):
            counts.setdefault(row, Counter())[judged] += 1
    print(f"{'':30}", *(f"{column:>12}" for column in columns))
    for row, of_row in sorted(counts.items()):
        print(f"{row or 'all':30}", *(f"{of_row[column]:>12}" for column in columns))
    noticed = counts[""]["killed"] + counts[""]["timed out"]
    every = noticed + counts[""]["survived"]
    print(f"{noticed} of {every} noticed, {noticed / max(every, 1):.1%}; {ENOUGH:.0%} is enough")
    return int(noticed < ENOUGH * max(every, 1))


def end_of(mutant: Mutant, copy: Copy, seconds: dict[str, float]) -> str:
    """What the tests say of a fault: the nearest alone first, since those that need no engine run before others."""
    far = {file: distance(ROOT, mutant.path, file) for file in seconds}
    order = sorted(seconds, key=lambda file: (far[file], seconds[file]))
    nearest = [file for file in order if far[file] == far[order[0]]]
    copy.write(mutant.path, mutant.after)
    try:
        for part in (nearest, order[len(nearest) :]):
            limit = PATIENCE + 4 * sum(seconds[file] for file in part)
            if part and (end := copy.run(part, limit)) != "survived":
                return end
        return "survived"
    finally:
        copy.write(mutant.path, mutant.before)


def try_again(copy: Copy, failed: set[str]) -> None:
    """Each test that failed beside others, alone: one that depends on time may pass. Ends the program otherwise."""
    for test in sorted(failed):
        if copy.run([test], None) != "survived":
            raise SystemExit(f"without a fault: {test}")
        print(f"{test} failed without a fault, and passed alone", flush=True)


def run(chosen: list[Mutant], copies: list[Copy], notes: Notes, bar: Progress) -> list[tuple[Mutant, str]]:
    """Time the tests, and run them with each fault. No two copies run the tests of one folder at once."""
    groups, results = defaultdict[tuple[str, ...], list[Mutant]](list), []
    for mutant in chosen:
        groups[tests_for(ROOT, mutant.path)].append(mutant)
    folders = sorted({tests for fitting in groups for tests in fitting} - {*notes.seconds})
    timing = bar.add_task("without a fault", total=len(folders))
    trying = bar.add_task("with a fault", total=len(chosen))
    reasons = tomllib.loads(JUDGED.read_text())["equivalent"]

    failed: dict[str, set[str]] = {}

    def time(copy: Copy, tests: str) -> None:
        notes.seconds[tests], failing = copy.baseline(tests)
        if failing:
            failed[tests] = failing
        else:
            notes.add(folder=tests, seconds=notes.seconds[tests])
        bar.advance(timing)

    def attempt(copy: Copy, fitting: tuple[str, ...]) -> None:
        seconds = {file: took for tests in fitting for file, took in notes.seconds[tests].items()}
        for mutant in groups[fitting]:
            end = "of no effect" if mutant.key in reasons else notes.ends.get(mutant.key)
            if end is None:
                end = end_of(mutant, copy, seconds)
                notes.add(key=mutant.key, end=end)
            results.append((mutant, told(mutant, end)))
            bar.advance(trying)

    with suppress(KeyboardInterrupt):
        share(copies, time, folders)
        for tests, failing in failed.items():
            try_again(copies[0], failing)
            notes.add(folder=tests, seconds=notes.seconds[tests])
        share(copies, attempt, sorted(groups, key=lambda each: len(groups[each]), reverse=True))
    return results


def main(arguments: list[str] | None = None) -> int:
    """Sample, run, and print what became of the faults: of those that were run when it is interrupted."""
    options = argparse.ArgumentParser(prog="make mutants", description="Do the tests notice a fault?")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--only", default="", help="only files whose path begins so")
    options.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="how many at once")
    options.add_argument("--notes", type=Path, help="keep each result here, and go on with what is kept")
    given = options.parse_args(arguments)
    chosen = sample(ROOT, given.seed, given.count, given.only)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns) as bar:
        copies = [Copy(ROOT, Path(folder) / str(number)) for number in range(given.jobs)]
        results = run(chosen, copies, Notes(given.notes), bar)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
