"""The matrix of dialects and laws, printed at the end of a run; and `make test-parsers`, which has no localagent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from parsers import DIALECTS

if os.environ.get("PARSERS_ALONE"):
    sys.modules["localagent"] = None  # type: ignore[assignment]  # to import it is an error

LAWS = (
    "chunks", "monotone", "json", "total", "lossless", "prompt", "linear", "markers", "complete", "roundtrip", "finish",
)  # fmt: skip
BROKEN = "broken law: "
"""Begins the note on a failure that says which of several laws was broken."""
_OUTCOMES: pytest.StashKey[dict[tuple[str, str], bool]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "law(*names): the test shows that a dialect keeps these laws")
    config.stash[_OUTCOMES] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    mark = item.get_closest_marker("law")
    if mark is not None and isinstance(item, pytest.Function) and (report.when == "call" or report.failed):
        assert set(mark.args) <= set(LAWS)
        dialect = item.callspec.params.get("dialect", "lfm2") if hasattr(item, "callspec") else "lfm2"
        notes = getattr(call.excinfo.value, "__notes__", ()) if call.excinfo else ()
        broken = [note.removeprefix(BROKEN) for note in notes if note.startswith(BROKEN)]
        outcomes = item.config.stash[_OUTCOMES]
        for law in () if report.skipped else broken or mark.args:
            outcomes[dialect, law] = outcomes.get((dialect, law), True) and report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash.get(_OUTCOMES, {})
    if not outcomes:
        return
    terminalreporter.section("dialects and laws")
    width = max(map(len, DIALECTS))
    terminalreporter.write_line(f"{'':{width}}  {'  '.join(LAWS)}")
    for dialect in DIALECTS:
        cells = (_cell(outcomes.get((dialect, law)), len(law)) for law in LAWS)
        if any(known == dialect for known, _ in outcomes):
            terminalreporter.write_line(f"{dialect:{width}}  {'  '.join(cells)}")
    kept = sum(outcomes.values())
    terminalreporter.write_line(
        f"{kept} of {len(outcomes)} kept; a dot: not tested in this run, or not for this dialect"
    )


def _cell(kept: bool | None, width: int) -> str:
    return f"{'·' if kept is None else '✓' if kept else '✗':^{width}}"
