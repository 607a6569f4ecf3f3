"""One run of the benchmark: which parsers read what, and how much of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localagent.distribution import bench_install_command
from localagent.errors import UsageError
from localagent.parsers import DIALECTS
from localagent_bench.bfcl import NoData
from localagent_bench.parsers.children import OURS, Child, Gone
from localagent_bench.parsers.corpora import AskedCalls, Row, bfcl_tasks, case_rows, file_rows
from localagent_bench.parsers.injected import inject
from localagent_bench.parsers.outputs import Output, model_templates, rendered, templated
from localagent_bench.parsers.recorded import read_recorded
from localagent_bench.parsers.speed import COMPARED, QUICK_SIZES, SIZES, measure_dialects, measure_speed
from localagent_bench.parsers.trips import read_back
from localagent_bench.results import Column, Results, Table

CORPORA = ("canitoolcall", "cases", "bfcl")
_QUICK_TASKS, _QUICK_ROWS = 3, 4
"""With `quick`: tasks for each format, and recorded outputs of each family."""
_LARGE = 100_000
PARSERS = Table(
    "parsers.parsers",
    "Parsers",
    (Column("parser", "parser"), Column("version", "version"), Column("dialects", "formats that it claims")),
)


@dataclass(frozen=True, slots=True)
class ParserPlan:
    """What is measured."""

    parsers: Sequence[Child]
    corpora: Sequence[str] = CORPORA
    """Names in CORPORA, or files."""
    dialects: Sequence[str] = ()
    """Empty: all."""
    templates: Path | None = None
    faults: bool = True
    speed: bool = True
    seed: int = 1
    tasks: int | None = None
    """Tasks of bfcl for each format; None: all."""
    quick: bool = False
    show: bool = False
    kinds: Sequence[str] = ()
    """Of the faults only these; empty: all."""


def measure(results: Results, plan: ParserPlan, say: Callable[[str], object]) -> None:
    """Measure what the plan says. `say` gets a line of progress."""
    parsers: list[Child] = []

    def drop(parser: Child, reason: str) -> None:
        results.skip(parser.name, reason)
        say(f"{parser.name} takes no further part: {reason}")
        parser.close()
        parsers[:] = [each for each in parsers if each is not parser]

    try:
        for parser in plan.parsers:
            try:
                parser.open()
            except Gone as gone:
                drop(parser, str(gone))
                continue
            parsers.append(parser)
            claims = "whatever it is asked" if parser.dialects is None else ", ".join(sorted(parser.dialects))
            results.add(PARSERS, parser=parser.name, version=parser.version, dialects=claims)
        if not parsers:
            raise UsageError("no parser can be measured")
        _measure(results, plan, parsers, drop, say)
    finally:
        for parser in plan.parsers:
            if parser.failures and parser in parsers:
                what = f"{len(parser.failures)} outputs ended its process and count as refused"
                results.skip(f"{parser.name}, single outputs", f"{what}; the last one: {parser.failures[-1]}")
            parser.close()


def _measure(
    results: Results,
    plan: ParserPlan,
    parsers: list[Child],
    drop: Callable[[Child, str], None],
    say: Callable[[str], object],
) -> None:
    def note(line: str) -> None:
        what, _, reason = line.partition(" is left out: ")
        results.skip(what.rstrip(",") if reason else line.split(" ", maxsplit=1)[0], reason or line)
        say(line)

    dialects = list(plan.dialects or DIALECTS)
    rows = [row for row in _rows(plan, results, note) if row.dialect in dialects]
    if rows:
        say(f"{len(rows):,} recorded outputs")
        read_recorded(results, parsers, rows, drop, detailed=not plan.quick, show=plan.show)
    if "bfcl" in plan.corpora:
        try:
            tasks = bfcl_tasks()
        except NoData as error:
            results.skip("bfcl", str(error))
            say(str(error))
        else:
            outputs = list(_outputs(plan, dialects, tasks, parsers))
            say(f"{len(outputs):,} outputs of BFCL's calls, read whole and in pieces")
            read_back(results, parsers, outputs, plan.seed, drop, detailed=not plan.quick, show=plan.show)
            if plan.faults:
                ours = [output for writer, output in outputs if writer == _RENDERERS]
                say(f"faults in {len(ours):,} outputs")
                inject(
                    results,
                    parsers,
                    ours,
                    tasks,
                    plan.seed,
                    drop,
                    kinds=plan.kinds,
                    detailed=not plan.quick,
                    show=plan.show,
                )
    if plan.speed:
        say("time and memory")
        compared = [name for name in COMPARED if name in dialects] or dialects[:1]
        sizes = QUICK_SIZES if plan.quick else SIZES if plan.tasks is None else SIZES[:-1]
        measure_speed(results, parsers, compared[:1] if plan.quick else compared, sizes, drop)
        own = next((parser for parser in parsers if parser.name == OURS), None)
        if own is not None and not plan.quick:
            writing = [name for name in dialects if DIALECTS[name].renderers]
            measure_dialects(results, own, writing, _LARGE, drop)


def _rows(plan: ParserPlan, results: Results, note: Callable[[str], None]) -> Iterator[Row]:
    """The recorded outputs; with `quick` a few of each family."""
    found: list[Row] = []
    for corpus in plan.corpora:
        if corpus == "canitoolcall":
            from localagent_bench.parsers.canitoolcall import conformance_rows

            try:
                found += conformance_rows()
            except ImportError:
                results.skip(
                    "canitoolcall", f"the package canitoolcall is not here: {bench_install_command()}"
                )
        elif corpus == "cases":
            cases = list(case_rows())
            if not cases:
                results.skip("cases", "they are part of a checkout of the repository: tests/parsers/cases")
            found += cases
        elif corpus != "bfcl":
            try:
                found += file_rows(Path(corpus), note)
            except UsageError as error:  # the others go on
                note(str(error))
    if not plan.quick:
        yield from found
        return
    draw = random.Random(plan.seed)
    draw.shuffle(found)
    taken: dict[tuple[str, str], int] = {}
    for row in found:
        group = row.corpus, row.family
        taken[group] = taken.get(group, 0) + 1
        if taken[group] <= _QUICK_ROWS:
            yield row


_RENDERERS, _OTHER, _TEMPLATES = "localagent", "other notations", "models' templates"
"""Who wrote the calls: our renderers as models usually do, or in rarer notations; or chat templates."""


def _outputs(
    plan: ParserPlan, dialects: Sequence[str], tasks: Sequence[AskedCalls], parsers: Sequence[Child]
) -> Iterator[tuple[str, Output]]:
    """The calls in each format that some parser claims, and who wrote them."""
    count = _QUICK_TASKS if plan.quick and plan.tasks is None else plan.tasks

    def some(name: str) -> Sequence[AskedCalls]:
        """Drawn for each format by itself: those of one are the same whatever others are read."""
        if count is None or count >= len(tasks):
            return tasks
        return random.Random(f"{plan.seed} {name}").sample(tasks, count)

    def read(dialect: str) -> bool:
        return dialect in dialects and any(parser.claims(dialect, True) for parser in parsers)

    for dialect in dialects:
        if DIALECTS[dialect].renderers and read(dialect):
            first = next(iter(DIALECTS[dialect].renderers))
            for output in rendered(dialect, some(dialect)):
                yield _RENDERERS if output.how == first else _OTHER, output
    folder = plan.templates
    if folder is None and (source := os.environ.get("LLAMACPP_SOURCE")):
        folder = Path(source) / "models" / "templates"
    if folder is None or (plan.quick and plan.templates is None):
        return
    for template in model_templates(folder):
        if read(template.dialect):
            yield from ((_TEMPLATES, output) for output in templated(template, some(template.name)))
