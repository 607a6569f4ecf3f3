"""Where the results of `localagent bench` go: tables on the terminal, JSON lines, one HTML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localagent.bench.results import Results, Run, Table, best_cells, in_order, value_text
from localagent.cli.terminal import (
    cell,
    exactly,
    json_escaped,
    require_stdout,
    say,
    show_line,
    show_table,
)
from localagent.errors import UsageError
from localagent.wording import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable


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


@contextmanager
def recording(bench: str, asked: Mapping[str, Any], output: OutputOptions) -> Iterator[Results]:
    """Take a benchmark's results; when it ends, show them.

    `asked`: its options. What was found before a failure is written and shown as well. Raises UsageError for
    files that cannot be written, before anything is measured; OutputLost.
    """
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
                from localagent.bench.report import write_report

                write_report([results.run], output.html)
                say(f"report: {output.html}")


def show_run(run: Run) -> None:
    """Print the tables of a run, and below them what took no part."""
    for name, rows in run.rows.items():
        table = run.tables[name]
        show_line(f"\n{table.title}")
        show_table(_rich(table, in_order(table, rows)), printable(table.told) or None)
    for what, reason in run.skipped.items():
        show_line(f"skipped {what}: {reason}")


def _rich(table: Table, rows: list[dict[str, Any]]) -> RichTable:
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False)
    # A column that nobody has filled would only take room.
    columns = [column for column in table.columns if any(row.get(column.key) is not None for row in rows)]
    best = best_cells(table, rows)
    for column in columns:
        numbers = all(isinstance(row.get(column.key), int | float | None) for row in rows)
        title = f"{column.title}, {column.unit}" if column.unit else column.title
        shown.add_column(cell(title, "bold"), justify="right" if numbers else "left")
    for at, row in enumerate(rows):
        shown.add_row(
            *(
                cell(value_text(row.get(column.key), column), "bold" if (at, column.key) in best else "")
                for column in columns
            )
        )
    return shown


@contextmanager
def _opened(path: Path, mode: str = "w") -> Iterator[Any]:
    try:
        with path.open(mode, encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
