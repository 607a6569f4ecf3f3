"""Loading a model for a command: fetch what is missing, with its licence and a progress bar, then load."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from localagent.model import Model, load

if TYPE_CHECKING:
    from localagent.catalog import Backend, ModelSpec


def open_model(
    name: str | None,
    *,
    backend: Backend | None,
    context: int | None,
    threads: int | None,
    snapshots: bool = False,
) -> Model:
    """The model, its weights fetched if need be. Raises LocalAgentError."""
    from localagent.cli.progress import Report

    with Report(_entry(name, backend)) as report:
        return load(
            name, backend=backend, context=context, threads=threads, progress=report, snapshots=snapshots
        )


def _entry(name: str | None, backend: Backend | None) -> ModelSpec | None:
    """What the catalogue says of the model; None for a path, which is never fetched."""
    from localagent.catalog import load_catalog
    from localagent.errors import UnknownModel

    catalog = load_catalog()
    with suppress(UnknownModel):
        return catalog.default_for(backend) if name is None else catalog.get(name)
    return None
