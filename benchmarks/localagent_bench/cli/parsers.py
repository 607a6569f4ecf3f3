"""`localagent bench parsers`: parsers of tool calls on recorded outputs, round trips and injected faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localagent.cli.options import grouped
from localagent.cli.terminal import say, show_line
from localagent.errors import UsageError
from localagent_bench.cli.output import OutputOptions, recording

if TYPE_CHECKING:
    from localagent_bench.parsers.plan import ParserPlan

_TASKS = 50


@dataclasses.dataclass(frozen=True, slots=True)
class ParserOptions:
    """What is read, by whom, and how much of it."""

    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            "-c",
            metavar="NAME|FILE",
            help="What is read: canitoolcall, cases (recorded outputs), bfcl (calls that are rendered), "
            "or a file of JSON lines. May be given again. Default: all three.",
        ),
    ] = None
    parser: Annotated[
        list[str] | None,
        typer.Option(
            "--parser",
            "-p",
            metavar="NAME",
            help="Only these: ours, mlx_lm, transformers, sglang, llamacpp. May be given again.",
        ),
    ] = None
    cmd: Annotated[
        list[str] | None,
        typer.Option(
            "--cmd", metavar="COMMAND", help="A command that speaks the protocol below; may be given again."
        ),
    ] = None
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="NAME=PATH",
            help="The Python in which a parser is installed. Default: this one.",
        ),
    ] = None
    dialect: Annotated[
        list[str] | None,
        typer.Option("--dialect", "-d", metavar="NAME", help="Only these formats; may be given again."),
    ] = None
    templates: Annotated[
        Path | None,
        typer.Option(
            "--templates",
            metavar="FOLDER",
            help="Chat templates (*.jinja) that write calls as their models do. "
            "Default: those of LLAMACPP_SOURCE.",
        ),
    ] = None
    faults: Annotated[
        bool, typer.Option("--faults/--no-faults", help="Read outputs with faults in them, too.")
    ] = True
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="KIND", help="Only these faults; may be given again. Default: all."),
    ] = None
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure time and memory, too.")] = True
    seed: Annotated[int, typer.Option(help="Of everything that is drawn at random.")] = 1
    sample: Annotated[
        int | None, typer.Option(min=1, help=f"Tasks of bfcl in each format. Default: {_TASKS}.")
    ] = None
    every: Annotated[bool, typer.Option("--all", help="All 2,501 tasks of bfcl: an hour or more.")] = False
    quick: Annotated[bool, typer.Option("--quick", help="A small fixed sample of everything: a minute.")] = (
        False
    )
    show: Annotated[bool, typer.Option("--show", help="Print each output that is not read right.")] = False


@grouped
def parsers(options: ParserOptions, output: OutputOptions) -> None:
    """Measure parsers of tool calls: what they read right, refuse and get wrong, and what that costs.

    Recorded outputs of models are read and judged; BFCL's calls are written in each format, whole, in pieces
    and with faults in them, and read back. Each parser runs in a process of its own and is asked only for the
    formats that it claims. One that is not installed, hangs or dies takes no part, and the reason is printed.

    BFCL's calls are in the package bfcl-eval; nothing that it depends on is needed, and LOCALAGENT_BFCL may
    name the folder of its unpacked wheel instead. How to get the parsers of SGLang and llama.cpp without a
    GPU is written at the top of sglang.py and llamacpp.py in benchmarks/localagent_bench/parsers/adapters.

    A command gets a line {"id", "dialect", "text" or "chunks", "tools", "inside", "finish"} and answers each,
    in order and at once, with a line {"id", "content", "reasoning", "tool_calls"} or {"id", "error"}, as
    `localagent parse --jsonl` does.

    The faults: lost, doubled, changed, quote, cut, marker, twice, draft, whose figures are published; and
    counted apart: inserted, two, swapped, span, space, tag, invisible, crlf, quotes, marker-lost,
    marker-doubled, marker-changed, fence, prose, prose-closed, restarted, name-cut, inside, again, unclosed,
    half-draft. Outputs with a fault are read whole, in tokens, and in tokens with "special", a list that says
    of each chunk whether it is a special token. What each fault does, and what is then still the same call,
    is written in benchmarks/METHOD.md.

    \b
    Examples:
      localagent bench parsers --quick
      localagent bench parsers --corpus outputs.jsonl --parser ours --show
      localagent bench parsers --dialect hermes --cmd './my-parser --jsonl' --html report.html
      localagent bench parsers --corpus bfcl --no-speed --fault name-cut --fault inside --show
      localagent bench parsers --python sglang=sglang/bin/python --all --out results.jsonl
    """
    asked = {key: value for key, value in dataclasses.asdict(options).items() if value not in (None, False)}
    asked = {key: str(value) if isinstance(value, Path) else value for key, value in asked.items()}
    plan = _plan(options)
    with recording("parsers", asked, output) as results:
        from localagent_bench.parsers.plan import measure

        measure(results, plan, say)
        if options.show and not output.as_json:
            for case in results.run.cases:
                show_line("\n" + "\n".join(f"  {key:8} {value}" for key, value in case.items()))


def _plan(options: ParserOptions) -> ParserPlan:
    """What the options name. Raises UsageError before anything is measured, UnknownDialect."""
    from localagent.detection import find_dialect
    from localagent_bench.parsers.children import ADAPTERS, adapter, commanded
    from localagent_bench.parsers.plan import CORPORA, ParserPlan

    corpora = list(dict.fromkeys(options.corpus or CORPORA))
    if missing := [name for name in corpora if name not in CORPORA and not Path(name).is_file()]:
        raise UsageError(f"no corpus is called {missing[0]}: there are {', '.join(CORPORA)}, and files")
    if options.every and (options.sample or options.quick):
        raise UsageError("--all leaves nothing to choose: leave out --sample and --quick")
    from localagent_bench.parsers.injected import SETS

    kinds = tuple(dict.fromkeys(options.fault or ()))
    known = [kind for faults in SETS.values() for kind in faults]
    if unnamed := [kind for kind in kinds if kind not in known]:
        raise UsageError(f"no fault is called {unnamed[0]}: there are {', '.join(known)}")
    if kinds and not options.faults:
        raise UsageError("--no-faults leaves out --fault: give one of them")
    pythons = dict(each.partition("=")[::2] for each in options.python or ())
    named = list(dict.fromkeys(options.parser or ADAPTERS))
    if unknown := [name for name in (*named, *pythons) if name not in ADAPTERS]:
        raise UsageError(f"no parser is called {unknown[0]}: there are {', '.join(ADAPTERS)}")
    try:
        commands = [commanded(command) for command in options.cmd or ()]
    except ValueError as error:
        raise UsageError(f"--cmd: {error}") from error
    taken = set(ADAPTERS.values())
    for each in commands:  # results are counted by these names
        if each.name in taken:
            raise UsageError(
                f"--cmd {each.name}: a parser is called that already: write the command differently"
            )
        taken.add(each.name)
    return ParserPlan(
        parsers=[*(adapter(name, pythons.get(name)) for name in named), *commands],
        corpora=corpora,
        dialects=[find_dialect(name).name for name in options.dialect or ()],
        templates=options.templates,
        faults=options.faults,
        speed=options.speed,
        seed=options.seed,
        tasks=None if options.every else options.sample or (None if options.quick else _TASKS),
        quick=options.quick,
        show=options.show,
        kinds=kinds,
    )
