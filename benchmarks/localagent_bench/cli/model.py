"""`localagent bench model`: models on this machine, alone or side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localagent.cli.completing import dialect_names, model_names
from localagent.cli.options import Backend, Context, Threads, grouped
from localagent.cli.terminal import on_terminal, say
from localagent.errors import UsageError
from localagent.wording import printable
from localagent_bench.cli.output import OutputOptions, recording

if TYPE_CHECKING:
    from localagent_bench.model.sides import Opener, Side
    from localagent_bench.model.speed import Tell

_NORMAL = {"depths": "0,512,2048", "prompt": 256, "decode": 64, "rounds": 3, "exchanges": 10, "sample": 100}
_QUICK = {"depths": "0,256", "prompt": 64, "decode": 32, "rounds": 2, "exchanges": 3, "sample": 21}


@grouped
def model(
    output: OutputOptions,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="As for `run`: a name, an alias, a path or hf:owner/name. Further ones are held against "
            "the first.",
            autocompletion=model_names,
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="KEY=VALUE,...",
            help="Hold the first model with these settings against it as it is, such as threads=1, "
            "backend=mlx, constraint=off, temperature=0.7 or thinking=off; may be given again.",
        ),
    ] = None,
    constraint: Annotated[
        Literal["auto", "off", "required", "both"],
        typer.Option(
            help="Whether a grammar bounds calls: auto, once the model has begun one; off; required, a call "
            "must come; both, off held against auto."
        ),
    ] = "auto",
    tools: Annotated[
        Literal["nano", "bfcl", "none"] | None,
        typer.Option(
            help="Which tool calling tasks: lfm2-nano's own, BFCL's single-turn ones, or none. Default: nano "
            "for lfm2-nano, else bfcl."
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="How many of the tasks, drawn at random. Default: 100.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All tasks: hours, unless the model is fast.")] = False,
    seed: Annotated[int, typer.Option(help="Draws other tasks.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer to a task.")] = 512,
    depths: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="Tokens in the context when speed is measured; none skips speed and memory. "
            "Default: 0,512,2048.",
        ),
    ] = None,
    exchanges: Annotated[
        int | None,
        typer.Option(min=0, help="Exchanges of the conversation that shows reuse; 0: none. Default: 10."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often each time is taken. Default: 3.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: figures to look at, not to publish.")
    ] = False,
    dialect: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the models write calls: a name from `localagent parse --list`, a TOML file, or auto. "
            "Default: what is known of each.",
            autocompletion=dialect_names,
        ),
    ] = None,
    backend: Backend = None,
    context: Context = None,
    threads: Threads = None,
) -> None:
    """Measure models on this machine: speed, memory, the first token, tool calling.

    Speed is that of reading a prompt and of decoding, at each depth of the context. A conversation shows what
    the first token of a turn costs with the evaluated prefix reused and without. Tool calling is asked the
    way programs ask it, and judged task by task: names and arguments must be right. Of several models, each
    is held against the first on the same tasks, with the interval in which the difference lies.

    BFCL's tasks and checker are those of the package bfcl-eval: install it, or unpack its wheel in a folder
    that LOCALAGENT_BFCL names. Nothing else should be running while this measures. Ctrl-C ends it, and what
    was found until then is shown.

    \b
    Examples:
      localagent bench model lfm2-nano --quick
      localagent bench model lfm2.5-1.2b-instruct --constraint both --html report.html
      localagent bench model lfm2.5-1.2b-instruct lfm2.5-350m --tools bfcl --all --out calls.jsonl
      localagent bench model lfm2.5-350m --against threads=2 --depths 0,4096,16384 --tools none
    """
    from localagent_bench.model.plan import ModelPlan, measure
    from localagent_bench.model.speed import Sizes

    if every and sample is not None:
        raise UsageError("--all and --sample contradict each other: leave one out")
    chosen: dict[str, Any] = dict(_QUICK if quick else _NORMAL)
    given = {"depths": depths, "rounds": rounds, "exchanges": exchanges, "sample": sample}
    chosen |= {name: value for name, value in given.items() if value is not None}
    common = {"dialect": dialect, "backend": backend, "context": context, "threads": threads}
    common = {name: value for name, value in common.items() if value is not None}
    sides = _sides(models or (), common, against or (), constraint)
    plan = ModelPlan(
        sides,
        Sizes(_depths(chosen["depths"]), chosen["prompt"], chosen["decode"], chosen["rounds"]),
        chosen["exchanges"],
        tools,
        None if every else chosen["sample"],
        seed,
        max_tokens,
    )
    asked = {"sides": [side.name for side in sides], **common, **chosen, "tools": tools, "seed": seed}
    with recording("model", {**asked, "all": every, "max_tokens": max_tokens}, output) as results:
        load = _fetch(sides)
        with _progress() as tell:
            measure(results, plan, load, tell)


def _sides(
    models: Sequence[str], common: Mapping[str, Any], against: Sequence[str], constraint: str
) -> list[Side]:
    from localagent.cli.home import choose
    from localagent.cli.naming import default_model, resolve
    from localagent_bench.model.sides import Side, read_settings

    ask = choose if on_terminal() else None
    names = [resolve(name, ask=ask) for name in models] or [default_model(common.get("backend"))]
    sides = [Side(name, common=tuple(common.items())) for name in names]
    if constraint == "both":
        sides = [each for side in sides for each in (side, side.with_settings({"constraint": "off"}))]
    elif constraint != "auto":
        sides = [side.with_settings({"constraint": constraint}) for side in sides]
    return [*sides, *(sides[0].with_settings(read_settings(text)) for text in against)]


def _depths(text: str) -> tuple[int, ...]:
    try:
        found = () if text == "none" else tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        found = (-1,)
    if min((*found, 0)) < 0:
        raise UsageError(f"--depths {text}: write numbers of tokens, such as 0,512,2048, or none")
    return found


def _fetch(sides: Sequence[Side]) -> Opener:
    """Fetch the weights that are not here, and show how that goes. Returns what loads them."""
    from localagent.cli.loading import PullReport, find
    from localagent.engines.check import require_engine
    from localagent.model import load_weights
    from localagent.store import WeightStore

    names = {}
    for side in sides:
        asked = side.loading.get("backend")
        with PullReport(found := find(side.model, asked)) as report:
            if found is not None:
                engine = asked or found.preferred_backend()
                require_engine(engine)  # before its weights are fetched
                WeightStore().pull(found, engine, report)
        names[side.model, asked] = side.model if found is None else found.name

    return lambda name, options: load_weights(names[name, options.get("backend")], lanes=1, **options)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal; elsewhere a line for each quarter of what is done."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich import progress
    from rich.console import Console

    # The bar moves the cursor, which `Output` would escape.
    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=sys.__stderr__),
        redirect_stdout=False,
        redirect_stderr=False,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=printable(what), completed=done, total=total
        )


def _lines() -> Callable[[str, int, int], None]:
    said: list[tuple[str, int]] = []

    def tell(what: str, done: int, total: int) -> None:
        step = what, 4 * done // total  # a line for each quarter
        if step not in said:
            said.append(step)
            say(f"{what}: {done} of {total}")

    return tell
