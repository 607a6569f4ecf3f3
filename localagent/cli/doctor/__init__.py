"""`localagent doctor`: checks everything that can keep a model from running, and says how to fix it.

It changes nothing. Results go to stdout.
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from localagent.cli.terminal import Style, show_json, show_line, styled, takes_colour, write_raw
from localagent.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localagent.cli.doctor.findings import Finding, Status

_COLOURS: Final[dict[Status, Style]] = {"ok": "green", "note": "yellow", "problem": "red"}


def examine(*, as_json: bool, timeout: float) -> None:
    """Print all findings. Exits with code 1 if no engine works.

    `timeout`: seconds that an engine may take to answer.
    """
    findings = collect(timeout)
    works = any_engine(findings)
    if as_json:
        show_json({"works": works, "findings": [asdict(each) for each in findings]})
    else:
        _print(findings, works)
    if not works:
        raise typer.Exit(1)


def collect(timeout: float) -> list[Finding]:
    """All findings, in the order of the sections."""
    from localagent.cli.doctor.engines import engine_findings
    from localagent.cli.doctor.machine import (
        folder_findings,
        machine_findings,
        program_findings,
        setting_findings,
    )
    from localagent.cli.doctor.models import model_findings
    from localagent.hosts.memory import read_machine

    machine = read_machine()
    return [
        *program_findings(),
        *engine_findings(timeout),
        *machine_findings(machine),
        *folder_findings(),
        *model_findings(machine),
        *setting_findings(),
    ]


def any_engine(findings: Sequence[Finding]) -> bool:
    """Whether an engine works that models can be loaded on."""
    from localagent.hosts.backends import BACKENDS

    return any(
        each.section == "engines" and each.data["outcome"] == "works" and each.data["backend"] in BACKENDS
        for each in findings
    )


def _print(findings: Sequence[Finding], works: bool) -> None:
    section = ""
    width = max(len(each.name) for each in findings)
    for each in findings:
        if each.section != section:
            write_raw(sys.stdout, ("\n" if section else "") + _styled(each.section, "bold") + "\n")
            section = each.section
        mark = _styled(f"{each.status:<7}", _COLOURS[each.status])
        margin = " " * (2 + 7 + 2 + width + 2)
        lines = _wrapped(printable(each.text), len(margin))
        write_raw(sys.stdout, f"  {mark}  {printable(each.name):<{width}}  {lines[0]}\n")
        for line in lines[1:]:
            show_line(margin + line)
        if each.fix:
            show_line(f"{margin}fix: {each.fix}")  # never wrapped: it is there to be copied
    problems = sum(each.status == "problem" for each in findings)
    found = "no problems" if not problems else "1 problem" if problems == 1 else f"{problems} problems"
    show_line(f"\n{found} found; {'models can run' if works else 'no engine works, so no model can run'}")


def _wrapped(text: str, margin: int) -> list[str]:
    """The text wrapped to a terminal's width; on one line in a pipe."""
    if not sys.stdout.isatty():
        return [text]
    try:
        width = os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return [text]
    return textwrap.wrap(text, max(width - margin, 30), break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _styled(text: str, style: Style) -> str:
    return styled(text, style if takes_colour(sys.stdout) else None)
