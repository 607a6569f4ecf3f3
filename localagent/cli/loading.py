"""Loading a model for a command: fetch what is missing with a progress bar, then load."""

from __future__ import annotations

from localagent.model import Model, load


def open_model(name: str | None, *, context: int | None, threads: int | None) -> Model:
    """The model, its weights fetched if need be. Raises LocalAgentError."""
    from localagent.cli.models import Report

    with Report() as report:
        return load(name, context=context, threads=threads, progress=report)
