"""llama-server's own tests of its interface, run against `localagent serve`, with a judgement of each failure.

    python -m tests.server.foreign [PYTEST ARGUMENTS]

takes them out of llama-cpp-python's source distribution, makes an environment of what they require, both in the
user's cache folder, and runs them with `plugin.py`, which starts our server instead of theirs. `not_ours.toml` says
which tests ask for what is no part of this server, and why. Failures that it does not know end the run with 1; so
do its rows that no longer fit a failure, if all tests were run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

from localagent.files.paths import user_path
from tests.server.acceptance.scenes import NOWHERE

VERSION = "0.3.36"
"""Of llama-cpp-python, which has llama.cpp's sources within it."""
HERE = Path(__file__).parent
TESTS = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/tools/server/tests"


def judgements() -> dict[str, str]:
    """Why a test is not ours to pass, by patterns of `file::name`; the first that fits counts."""
    reasons = tomllib.loads((HERE / "not_ours.toml").read_text())
    return {pattern: reason for reason, patterns in reasons.items() for pattern in patterns}


def prepare(folder: Path) -> tuple[Path, Path]:
    """Where the tests are, and the Python that has what they require."""
    tests, python = folder / TESTS, folder / "environment" / "bin" / "python"
    if not tests.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
        ]
        subprocess.run([*pip, "--dest", folder, f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(folder / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            wanted = [member for member in archive if member.name.startswith(f"{TESTS}/")]
            archive.extractall(folder, wanted, filter="data")
    (tests / "tmp").mkdir(exist_ok=True)  # where some of the tests write
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        required = [python, "-m", "pip", "install", "--quiet", "-r", tests / "requirements.txt"]
        subprocess.run(required, check=True)
    return tests, python


def run(folder: Path, arguments: Sequence[str]) -> dict[str, str]:
    """What became of each test by `file::name`: passed, skipped, or the first line of why not."""
    tests, python = prepare(folder)
    report = folder / "report.xml"
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        "-p",
        "plugin",
        "--tb=line",
        f"--junitxml={report}",
        *arguments,
    ]
    env = {**os.environ, **NOWHERE, "PYTHONPATH": str(HERE), "LOCALAGENT_PYTHON": sys.executable}
    env["LOCALAGENT_ROOT"] = str(HERE.parents[2])
    subprocess.run(command, cwd=tests, env=env, stdout=subprocess.DEVNULL, check=False)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].split('.')[1]}.py::{case.attrib['name']}"
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if problem is None:
            outcomes[name] = "passed"
        else:
            first = problem.attrib.get("message", "").splitlines() or ["it says nothing"]
            outcomes[name] = "skipped" if problem.tag == "skipped" else first[0]
    return outcomes


def judge(outcomes: Mapping[str, str], whole: bool) -> int:
    """Print the numbers and what nobody has judged; returns how much that is."""
    known = judgements()
    failed = {name: why for name, why in outcomes.items() if why not in ("passed", "skipped")}
    fits = {name: next((p for p in known if fnmatchcase(name, p)), None) for name in failed}
    counted = {how: sum(why == how for why in outcomes.values()) for how in ("passed", "skipped")}
    print(f"{counted['passed']} passed, {len(failed)} failed, {counted['skipped']} skipped")
    for reason in dict.fromkeys(known.values()):
        if number := sum(pattern is not None and known[pattern] == reason for pattern in fits.values()):
            print(f"  {number:4} not ours: {reason}")
    unjudged = [f"{name}: {failed[name]}" for name, pattern in fits.items() if pattern is None]
    stale = [
        f"{pattern}: fits no failure any more" for pattern in known if whole and pattern not in fits.values()
    ]
    for line in (*unjudged, *stale):
        print(f"  {line}")
    return len(unjudged) + len(stale)


def main(arguments: Sequence[str]) -> int:
    folder = user_path("cache", "foreign")
    folder.mkdir(parents=True, exist_ok=True)
    return min(1, judge(run(folder, arguments), whole=not arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
