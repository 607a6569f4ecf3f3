"""`localagent bench report`: results that were written to files, as tables or as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", show_default=False, help="What --out of a benchmark wrote."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write one HTML file with plots, in place of tables here."
        ),
    ] = None,
) -> None:
    """Show results again: as tables, or as one HTML file with plots.

    In the HTML file, runs of the same benchmark stand side by side, from as many files and machines as you
    like; it needs no network and no script. A file that cannot be read is named, and the others are shown.

    \b
    Examples:
      localagent bench report mine.jsonl
      localagent bench report mine.jsonl theirs.jsonl --html report.html
    """
    from localagent.cli.terminal import say, show_line
    from localagent.errors import UsageError
    from localagent_bench.cli.output import show_run
    from localagent_bench.report import write_report
    from localagent_bench.results import read_runs

    runs = []
    broken: list[UsageError] = []
    for path in paths:
        try:
            runs += read_runs(path)
        except UsageError as error:
            broken.append(error)
    if not runs:
        raise broken[0]
    if html is not None:
        write_report(runs, html)
        say(f"report: {html}")
    else:
        for at, run in enumerate(runs):
            told = ", ".join(f"{name}: {value}" for name, value in run.options.items())
            show_line(f"{chr(10) if at else ''}{run.bench}, {run.started}{f' ({told})' if told else ''}")
            show_run(run)
    for fault in broken:
        say(str(fault))
    if broken:
        raise typer.Exit(broken[0].exit_code)
