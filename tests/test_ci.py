"""CI runs the targets that people have; tests without the mark find no engine; the fast lane names what is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from localagent.hosts.backends import BACKENDS
from tests import fast
from tests.engineless.sitecustomize import ENGINES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"].values()
STEPS = [step for job in JOBS for step in job["steps"]]
MAKEFILE = (ROOT / "Makefile").read_text()
PROBE = f"from importlib.util import find_spec; print([bool(find_spec(name)) for name in {ENGINES}])"


def test_it_says_that_it_has_never_run():
    assert TEXT.startswith("# NEVER RUN")


def test_every_command_is_a_target_that_people_have():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    commands = [shlex.split(step["run"]) for step in STEPS if "run" in step]
    assert {words[1] for words in commands} == {"test-parsers", "test-core", "check", "clients", "test"}
    for make, target, *settings in commands:
        assert make == "make"
        assert target in targets
        assert all(f"$({each.partition('=')[0]})" in MAKEFILE for each in settings)
        assert all((ROOT / path).exists() for each in settings for path in each.partition("=")[2].split())


def test_what_the_fast_lane_leaves_out_is_there():
    for path in fast.LEFT_OUT:
        file, _, name = path.partition("::")
        assert (ROOT / file).exists(), path
        assert f"def {name}(" in (ROOT / file).read_text() if name else True, path


def test_the_help_of_make_names_every_target_of_tests():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^(test[a-z-]*):", MAKEFILE, re.MULTILINE)
    assert set(targets) == set(re.findall(r"make (test[a-z-]*) ", said))


def test_it_may_do_little_and_not_for_long():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert WORKFLOW["concurrency"]["cancel-in-progress"] is True
    assert set(WORKFLOW[True]) == {"push", "pull_request", "workflow_dispatch"}  # YAML reads `on` as true
    assert all("permissions" not in job and job["timeout-minutes"] <= 120 for job in JOBS)
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", each) for each in used), used


def test_it_runs_on_every_platform():
    core, every = (set(WORKFLOW["jobs"][name]["strategy"]["matrix"]["os"]) for name in ("core", "all"))
    assert core - every == {"windows-2025"}
    assert every == {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"}


def test_the_cache_holds_what_the_build_keeps(monkeypatch):
    from localagent.engines.build import _folder

    monkeypatch.delenv("LOCALAGENT_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    kept = _folder(()).parent.relative_to(Path.home()).as_posix()
    (cached,) = [step["with"]["path"].split() for step in STEPS if "/cache@" in step.get("uses", "")]
    assert f"~/{kept}" in cached


def test_every_engine_is_hidden():
    assert set(ENGINES) == {package for row in BACKENDS.values() for package in row.packages}


def test_without_the_mark_no_engine_is_found():
    assert [find_spec(name) for name in ENGINES] == [None] * len(ENGINES)
    child = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert "True" not in child.stdout


@pytest.mark.engine
def test_with_the_mark_engines_are_found():
    assert all(find_spec(name) for name in ENGINES)
    child = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert "False" not in child.stdout
