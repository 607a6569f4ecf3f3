"""`localagent bench`: measures parsers, models and servers, and shows what was found."""

from __future__ import annotations

import typer

from localagent.cli.bench.model import model
from localagent.cli.bench.report import report
from localagent.cli.bench.server import server
from localagent.cli.home import help_alone

app = typer.Typer(
    help="Measure parsers of tool calls, models on this machine, and servers.",
    callback=help_alone,
    invoke_without_command=True,
)
app.command()(model)
app.command()(report)
app.command()(server)
