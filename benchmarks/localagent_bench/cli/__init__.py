"""`localagent bench`: measures parsers, models and servers, and shows what was found."""

from __future__ import annotations

import typer

from localagent_bench.cli.model import model
from localagent_bench.cli.parsers import parsers
from localagent_bench.cli.report import report
from localagent_bench.cli.server import server

# Its help is in `localagent.cli.app`, which also lists it where this package is missing.
app = typer.Typer(rich_markup_mode=None)
app.command()(model)
app.command()(parsers)
app.command()(report)
app.command()(server)
