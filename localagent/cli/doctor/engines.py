"""Findings on the engines, each tried in a separate process (see `localagent.engines`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from localagent.cli.doctor.findings import Finding
from localagent.engines.check import Report, check_engine, mending_command
from localagent.hosts.backend import Advice
from localagent.hosts.backends import BACKENDS


def engine_findings(timeout: float) -> list[Finding]:
    """Try all engines at the same time, for at most `timeout` seconds each."""
    names = [name for name, row in BACKENDS.items() if row.trial is not None]
    with ThreadPoolExecutor(len(names)) as pool:
        reports = list(pool.map(lambda name: check_engine(name, timeout), names))
    working = {report.backend for report in reports if report.outcome == "works"}
    return [describe_engine(report, alone=working <= {report.backend}) for report in reports]


def describe_engine(report: Report, *, alone: bool) -> Finding:
    """`alone`: no other engine works."""
    row = BACKENDS[report.backend]
    match report.outcome:
        case "missing":
            advice = row.missing(alone)
        case "broken":
            text = f"installed, but broken: {report.error}"
            advice = Advice("problem", text, mending_command(report.backend))
        case "untried":
            advice = Advice("note", f"installed, but could not be tried: {report.error}")
        case "works":
            advice = row.working(report.facts, _ran(report))
    data = {
        "backend": report.backend,
        "outcome": report.outcome,
        "error": report.error or None,
        "ran": list(report.ran),
        **report.facts,
    }
    return Finding("engines", row.title, advice.status, advice.text, advice.fix, data)


def _ran(report: Report) -> str:
    """Which models gave the right tokens: "ran lfm2-nano, also quantized to Q8_0 and Q4_0"."""
    plain, *quantized = report.ran
    kinds = " and ".join(model.removeprefix(f"{plain} quantized to ") for model in quantized)
    return f"ran {plain}{f', also quantized to {kinds}' if kinds else ''}"
