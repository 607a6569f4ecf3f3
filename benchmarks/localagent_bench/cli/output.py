"""Where the results of `localagent bench` go: tables on the terminal, JSON lines, one HTML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localagent.cli.terminal import (
    cell,
    exactly,
    json_escaped,
    require_stdout,
    say,
    show_line,
    show_table,
    table_width,
)
from localagent.errors import UsageError
from localagent.wording import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from localagent_bench.results import BenchRun, Results, Table


@dataclasses.dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where results go. Without any, tables are printed."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines as they are found, and no tables.")
    ] = False
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON lines to FILE as well.")
    ] = None
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a report with plots: one file, no network."),
    ] = None


_LONG = 20
"""Letters above which a text may be broken."""


@contextmanager
def recording(bench: str, asked: Mapping[str, Any], output: OutputOptions) -> Iterator[Results]:
    """Take a benchmark's results; when it ends, show them.

    `asked`: its options. What was found before a failure is written and shown as well. Raises UsageError for
    files that cannot be written, before anything is measured; OutputLost.
    """
    from localagent_bench.results import Results  # here: every command would start later for it

    require_stdout()
    with ExitStack() as files:
        file = files.enter_context(_opened(output.out)) if output.out else None
        if output.html:
            files.enter_context(_opened(output.html, "a"))  # a folder that is not there is told at once

        def write(line: str) -> None:
            if output.as_json:
                exactly(json_escaped(line))
            if file is not None:
                file.write(line)
                file.flush()

        results = Results(bench, asked, write)
        try:
            with results:
                yield results
        finally:
            if not output.as_json:
                show_run(results.run)
            if output.html:
                from localagent_bench.report import write_report

                write_report([results.run], output.html)
                say(f"report: {output.html}")


def show_run(run: BenchRun) -> None:
    """Print the tables of a run, and below them what took no part."""
    from localagent_bench.results import in_order

    for name, rows in run.rows.items():
        table = run.tables[name]
        show_line(f"\n{table.title}")
        shown, fits = _rich(table, in_order(table, rows))
        show_table(shown, printable(table.told) or None, stacked=not fits)
    for what, reason in run.skipped.items():
        show_line(f"skipped {what}: {reason}")


def _rich(table: Table, rows: list[dict[str, Any]]) -> tuple[RichTable, bool]:
    """The table, and whether its columns have room beside each other.

    Where they have none as they are, titles are broken between their words; numbers and names never are.
    """
    from rich.table import Table as RichTable

    from localagent_bench.results import best_cells, value_text

    shown = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    # A column that nobody has filled would only take room.
    columns = [column for column in table.columns if any(row.get(column.key) is not None for row in rows)]
    titles = [f"{column.title}, {column.unit}" if column.unit else column.title for column in columns]
    texts = [[value_text(row.get(column.key), column) for column in columns] for row in rows]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    room, fits = table_width() - len(columns), True
    if sum(map(max, widths, map(len, titles))) > room:
        least = [max([width, *map(len, title.split())]) for width, title in zip(widths, titles, strict=True)]
        fits = sum(min(width, _LONG) for width in least) <= room
        if fits:
            titles = ["\n".join(wrap(title, width)) for title, width in zip(titles, least, strict=True)]
    for title, column in zip(titles, columns, strict=True):
        numbers = all(isinstance(row.get(column.key), int | float | None) for row in rows)
        long = any(len(row[len(shown.columns)]) > _LONG for row in texts)
        shown.add_column(
            cell(title, "bold"), justify="right" if numbers else "left", no_wrap=not long, overflow="fold"
        )
    best = best_cells(table, rows)
    for at, row in enumerate(texts):
        styles = ("bold" if (at, column.key) in best else "" for column in columns)
        shown.add_row(*map(cell, row, styles))
    return shown, fits


@contextmanager
def _opened(path: Path, mode: str = "w") -> Iterator[Any]:
    try:
        with path.open(mode, encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
