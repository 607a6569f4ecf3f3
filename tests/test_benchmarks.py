"""The benchmarks that load an engine run on lfm2-nano, if only for a few tokens, and refuse what has no figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.engine
def test_the_cost_above_the_bare_loop_is_measured_in_short_runs_too():
    done = run("host_overhead.py", "nano", "--tokens", "20", "--rounds", "1", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    lanes = json.loads(done.stdout)["lanes"]
    assert [row["lane"] for row in lanes] == ["bare", "host", "stream"]
    assert all(row["tokens_per_second"] > 0 for row in lanes)


@pytest.mark.engine
def test_a_run_too_short_for_tenths_is_refused():
    done = run("host_overhead.py", "nano", "--tokens", "19")
    assert done.returncode == 2
    assert "--tokens must be 20 or more" in done.stderr
