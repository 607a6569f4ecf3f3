"""Whenever a program is killed while an agent works, its session can be continued."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).parents[2]
KILLS = 500 if LONG else 6


@pytest.mark.engine
def test_a_session_goes_on_after_every_kill(tmp_path):
    """Real weights, real SIGKILLs: while generating, in a tool, before the answer, and in what follows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.killing", tmp_path, str(KILLS), str(time.time_ns())],
        cwd=ROOT, capture_output=True, text=True, timeout=120 + 10 * KILLS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["interrupted"] > 0
    assert all(figures[state] > 0 for state in ("generating", "in a tool", "before the answer"))
