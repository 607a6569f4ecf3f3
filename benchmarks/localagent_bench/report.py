"""One HTML file made of results, for phones, screens and paper, light and dark, without network or script.

Runs of the same benchmark stand side by side: a letter for each of them, one table with the rows of all, and
charts that tell the letters apart. Whatever a result says is text: templates escape it, and the page's policy
allows nothing but the page's own style.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from localagent.errors import UsageError
from localagent.wording import printable, size_text
from localagent_bench.charts import Drawing, draw
from localagent_bench.results import BenchRun, Column, Table, best_cells, in_order, number, value_text

_MOST_ROWS = 2000
_MOST_CASES = 200
_LONGEST_CASE = 4000
"""Characters of one field of a case."""
_LONG = 28
"""Characters from which a text may be wrapped in its cell."""
_RUN = Column("\0run", "run")
"""The letter of a row's run; no column of a file is called that."""
_HIDDEN = "\0of "
"""Begins the key of a column that is drawn and not shown."""


_POLICY = "default-src 'none'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'"


def write_report(runs: Sequence[BenchRun], path: Path) -> None:
    """Write the page. Raises UsageError."""
    try:
        path.write_text(render(runs), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def render(runs: Sequence[BenchRun]) -> str:
    """The page as text."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    from localagent.distribution import version

    def shown(cell: _Cell) -> Markup:
        text = escape(printable(cell.text))
        if cell.best:
            return Markup("<strong>{}</strong>").format(text)
        return Markup('<span class="{}">{}</span>').format(cell.tone, text) if cell.tone else text

    source = files("localagent_bench").joinpath("report.html").read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    benches = _benches(runs)
    names = ", ".join(bench.name for bench in benches)
    title = f"localagent bench {names}" if len(benches) == 1 else "localagent bench"
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters["plain"] = lambda value: printable(str(value))
    return page.from_string(source).render(
        title=printable(title),
        subtitle=_subtitle(runs),
        policy=_POLICY.format(digest),
        benches=benches,
        shown=shown,
        version=version() or "",
    )


def _subtitle(runs: Sequence[BenchRun]) -> str:
    days = sorted({run.started[:10] for run in runs})
    when = printable(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}") if days else ""
    return (
        f"{len(runs)} run{'s' * (len(runs) != 1)}, {when}. Figures hold for the machine and versions named."
    )


# -- what the page shows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Head:
    title: str
    unit: str
    right: bool


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    right: bool
    best: bool = False
    tone: str = ""

    @property
    def kind(self) -> str:
        """The class of its cell."""
        return "right" if self.right else "long" if len(self.text) > _LONG else ""


@dataclass(frozen=True, slots=True)
class _Section:
    """A table with its charts and cases."""

    id: str
    title: str
    told: str
    heads: list[_Head]
    rows: list[list[_Cell]]
    drawings: list[Drawing]
    left_out: int
    within: str
    has_best: bool
    stacks: bool
    """On a phone the cells of a row stand below each other: some are long."""
    cases: list[list[tuple[str, str]]]
    case_count: int


@dataclass(frozen=True, slots=True)
class _Told:
    """A run, but for its rows."""

    letter: str
    when: str
    facts: list[tuple[str, str]]
    options: list[tuple[str, str]]
    unfinished: bool


@dataclass(frozen=True, slots=True)
class _Bench:
    """The runs of one benchmark."""

    id: str
    name: str
    runs: list[_Told] = field(default_factory=list)
    sections: list[_Section] = field(default_factory=list)
    skipped: list[tuple[str, str, str]] = field(default_factory=list)


def _benches(runs: Sequence[BenchRun]) -> list[_Bench]:
    by_name: dict[str, list[BenchRun]] = {}
    for run in runs:
        by_name.setdefault(run.bench, []).append(run)
    found = []
    for at, (name, same) in enumerate(by_name.items(), 1):
        letters = _letters(len(same))
        bench = _Bench(f"bench-{at}", name)
        for letter, run in zip(letters, same, strict=True):
            bench.runs.append(_describe(letter, run))
            bench.skipped.extend((letter, what, why) for what, why in run.skipped.items())
        tables = dict.fromkeys(name for run in same for name in run.rows)
        bench.sections.extend(
            _section(f"table-{at}-{place}", name, same, letters) for place, name in enumerate(tables, 1)
        )
        found.append(bench)
    return found


def _letters(count: int) -> list[str]:
    """A, B, C...; numbers where they do not suffice, and nothing for one alone."""
    if count == 1:
        return [""]
    return [chr(ord("A") + at) if count <= 26 else str(at + 1) for at in range(count)]


def _describe(letter: str, run: BenchRun) -> _Told:
    machine = dict(run.machine)
    processor, cores, threads = (machine.pop(name, None) for name in ("processor", "cores", "threads"))
    memory, system, python = (machine.pop(name, None) for name in ("memory", "system", "python"))
    shown = size_text(memory) if isinstance(memory, int) else memory
    facts = {
        "processor": processor,
        "cores": f"{cores} ({threads} threads)" if threads not in (None, cores) else cores,
        "memory": shown,
        "system": system,
        "Python": python,
        "localagent": machine.pop("localagent", None),
        **machine,
        "packages": ", ".join(f"{name} {version}" for name, version in run.packages.items()),
        "took": None if run.seconds is None else _duration(run.seconds),
    }
    return _Told(
        letter,
        run.started.replace("T", " ").replace("+00:00", " UTC"),
        [(name, _plain(value)) for name, value in facts.items() if value not in (None, "")],
        [(name, _plain(value)) for name, value in run.options.items() if value not in (None, [], (), "")],
        run.seconds is None,
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:,.1f} minutes"


def _section(place: str, name: str, runs: Sequence[BenchRun], letters: Sequence[str]) -> _Section:
    table, rows = _beside(name, runs, letters)
    columns = [
        column
        for column in table.columns
        if not column.key.startswith(_HIDDEN) and any(row.get(column.key) is not None for row in rows)
    ]
    right = {
        column.key: all(
            row.get(column.key) is None or number(row.get(column.key)) is not None for row in rows
        )
        for column in columns
    }
    best = best_cells(table, rows)
    shown = [
        [
            _Cell(
                value_text(row.get(column.key), column),
                right[column.key],
                (at, column.key) in best,
                _TONES.get(str(row.get(column.key)), "") if column.key == "outcome" else "",
            )
            for column in columns
        ]
        for at, row in enumerate(rows[:_MOST_ROWS])
    ]
    cases = [
        {**({"run": letter} if letter else {}), **case}
        for letter, run in zip(letters, runs, strict=True)
        for case in run.cases
        if case.get("table") == name
    ]
    within = next((column.title for column in table.columns if column.key == table.within), "")
    return _Section(
        place,
        table.title,
        table.told,
        [_Head(column.title, column.unit, right[column.key]) for column in columns],
        shown,
        [drawing for chart in table.charts if (drawing := draw(table, chart, rows)) is not None],
        max(len(rows) - _MOST_ROWS, 0),
        within,
        bool(best),
        any(cell.kind == "long" for row in shown for cell in row[1:]),
        [_fields(case) for case in cases[:_MOST_CASES]],
        len(cases),
    )


_TONES = {"passes": "good", "fails": "poor"}
"""How the outcomes of checks look."""


def _fields(case: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _plain(value)[:_LONGEST_CASE]) for name, value in case.items() if name != "table"]


def _plain(value: Any) -> str:
    """A value of any kind as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- several runs -----------------------------------------------------------------------------------------


def _beside(
    name: str, runs: Sequence[BenchRun], letters: Sequence[str]
) -> tuple[Table, list[dict[str, Any]]]:
    """A table with the rows of all runs. Those that are about the same thing stand together."""
    tables = [run.tables[name] for run in runs if name in run.tables]
    if len(runs) == 1:
        return tables[0], in_order(tables[0], runs[0].rows[name])
    columns: dict[str, Column] = {}
    for table in reversed(tables):
        columns = {column.key: column for column in table.columns} | columns
    rows = in_order(
        tables[0],
        [
            {_RUN.key: letter, **row}
            for letter, run in zip(letters, runs, strict=True)
            for row in run.rows.get(name, ())
        ],
    )
    charts = []
    for chart in tables[0].charts:
        series = columns.get(chart.series)
        key = f"{_HIDDEN}{chart.series}" if series else _RUN.key
        if series:  # a line, or a bar, for each of its values in each run
            columns[key] = Column(key, series.title)
            for row in rows:
                row[key] = f"{value_text(row.get(series.key), series)}, {row[_RUN.key]}"
        charts.append(replace(chart, series=key))
    if not tables[0].within:
        telling = {chart.x for chart in charts}
        order: dict[str, int] = {}
        places = [order.setdefault(_about(row, columns, telling), len(order)) for row in rows]
        rows = [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]
    return replace(tables[0], columns=(_RUN, *columns.values()), charts=tuple(charts)), rows


def _about(row: Mapping[str, Any], columns: Iterable[str], telling: Collection[str]) -> str:
    """What a row is about: its texts, and the numbers over which something is drawn."""
    values = {key: row.get(key) for key in columns if not key.startswith(_HIDDEN)}
    return repr([(key, value) for key, value in values.items() if key in telling or isinstance(value, str)])
