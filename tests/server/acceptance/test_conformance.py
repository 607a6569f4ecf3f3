"""What two suites that others wrote find out about a server on a real port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localagent.model import load
from localagent.server.app import all_wires
from tests.server.acceptance.scenes import ANSWER, client, playing
from tests.server.serving import serving


def run(module: str, *arguments: str | Path, folder: Path, within: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=within, check=False)
    print(ended.stdout, ended.stderr)
    return ended


LACKING = re.compile(r"expected (at least \d+|no) tool call|expected a content answer|expected .* answer")
"""What a scenario says of a model that does not do what it is asked, such as one of a million parameters."""


@client("canitoolcall")
def test_canitoolcall_finds_no_violation(client: str, nano: dict[str, Path], tmp_path: Path) -> None:
    """What a scenario asks of the model may fail, what it asks of the protocol may not."""
    report = tmp_path / "report.json"
    # Held back, since a call that the window cuts off has already begun otherwise, and the suite knows no field
    # that takes it back.
    model = load(nano["llamacpp"], context=1024, lanes=4)
    with serving(model, wires=all_wires(), buffer_tool_calls=True) as server:
        base = f"{server.url}/v1"
        run(
            "canitoolcall",
            "probe",
            "--base-url",
            base,
            "--model",
            "lfm2-nano",
            "--json",
            report,
            folder=tmp_path,
            within=300,
        )
    outcomes = json.loads(report.read_text())["outcomes"]
    assert len(outcomes) == 27
    assert not [each for each in outcomes if violates(each)]
    assert sum(each["status"] == "pass" for each in outcomes) > 15


def violates(outcome: dict[str, Any]) -> bool:
    if outcome["status"] == "pass":
        return bool(outcome["warnings"])
    if outcome["check"] != "scenario" or outcome["status"] != "fail":
        return True
    return not all(LACKING.match(fault) for fault in outcome["detail"].split("; "))


@client("schemathesis")
@pytest.mark.parametrize("examples", [3])
def test_schemathesis_causes_no_server_error(client: str, examples: int, tmp_path: Path) -> None:
    with playing(ANSWER) as server:
        ended = run(
            "schemathesis.cli",
            "run",
            f"{server.url}/openapi.json",
            "--checks",
            "not_a_server_error",
            "--max-examples",
            str(examples),
            folder=tmp_path,
            within=300,
        )
    assert ended.returncode == 0, ended.stdout
