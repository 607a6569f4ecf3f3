"""Calls that are rendered and read back, and what becomes of them when there is a fault in the text."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from localagent.bench.parsers.children import OURS, Child, Gone
from localagent.bench.parsers.corpora import Task
from localagent.bench.parsers.judging import OUTCOMES, Outcome, Reading, judge_fault, judge_trip
from localagent.bench.parsers.outputs import CUTS, FAULTS, FAULTS_TOLD, Output, cut, with_fault
from localagent.bench.results import Chart, Column, Results, Table
from localagent.bench.statistics import wilson

_SHARES = (
    Column("right", "right", "%", "more", 1),
    Column("refused", "refused", "%", "less", 1),
    Column("wrong", "wrong", "%", "less"),
)
_TRIPS = (
    "The calls of BFCL's single-turn tasks, written in each format by this project's renderers and, where "
    "they are at hand, by the models' own chat templates, and read whole. Right: the calls, with the types "
    "that the tools declare; at least: the lower end of Wilson's interval of 95 %. Refused: fewer calls. "
    "Wrong: a call that was not written. In tokens: in pieces that end where tokens do, markers whole, as "
    "hosts send them. In any pieces: also of 1, 2, 3 and 7 characters and at random, as where markers are "
    "no single tokens, or text passes through a proxy. Stream as whole: a client gets the same from the "
    "pieces, white space included. On the same: what localagent reads right of the outputs that the parser "
    "claims to read. A parser is asked only for the formats that it claims. In a few tasks the value that "
    "BFCL wants contradicts the type that its tool declares: a parser that heeds types refuses those."
)
TRIPS = Table(
    "parsers.trips",
    "Calls read back",
    (
        Column("parser", "parser"),
        Column("written", "written by"),
        Column("dialects", "formats"),
        Column("outputs", "outputs"),
        *_SHARES,
        Column("low", "right, at least", "%", "more", 1),
        Column("tokens", "right in tokens", "%", "more", 1),
        Column("streamed", "right in any pieces", "%", "more", 1),
        Column("equal", "stream as whole", "%", "more", 1),
        Column("ours", "localagent on the same", "%", "more", 1),
    ),
    _TRIPS,
    (Chart("stack", "parser", OUTCOMES, "Calls read back", "written"),),
)
TRIPS_OF = Table(
    "parsers.trips_of",
    "Calls read back, by format",
    (
        Column("dialect", "format"),
        Column("parser", "parser"),
        Column("outputs", "outputs"),
        *_SHARES,
        Column("equal", "stream as whole", "%", "more", 1),
    ),
)
_FAULTY = (
    Column("outputs", "outputs"),
    *_SHARES,
    Column("low", "wrong, from", "%", "less"),
    Column("high", "to", "%", "less"),
    Column("streamed", "wrong in a stream", "%", "less"),
    Column("ours", "localagent wrong on the same", "%", "less"),
)
FAULTY = Table(
    "parsers.faults",
    "Outputs with one fault",
    (Column("parser", "parser"), *_FAULTY),
    f"One fault in each output: {FAULTS_TOLD}. Right: all calls, but for one edit in a name, a key or a "
    "value, which is then the model's own word. Refused: fewer calls, none of them wrong. Wrong: a call "
    "that the model did not write, or only wrote as a draft. A block that stands twice may be read once "
    "or twice. The interval is Wilson's, 95 %. Stream: the same outputs in tokens.",
    (Chart("stack", "parser", OUTCOMES, "Outputs with one fault"),),
)
FAULTY_BY = Table(
    "parsers.faults_by",
    "Outputs with one fault, by fault",
    (Column("fault", "fault"), Column("parser", "parser"), *_FAULTY),
)
FAULTY_OF = Table(
    "parsers.faults_of",
    "Outputs with one fault, by format",
    (Column("dialect", "format"), Column("parser", "parser"), Column("outputs", "outputs"), *_SHARES),
)
_MOST_CASES = 20
"""Wrong readings of a parser that go into the results, unless all are asked for."""


def share(outcomes: Counter[Outcome], outcome: Outcome) -> float:
    """In percent; 0 of none."""
    return 100 * outcomes[outcome] / max(1, outcomes.total())


@dataclass
class _Count:
    """Outcomes of one parser in one group of outputs."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    tokens: Counter[Outcome] = field(default_factory=Counter)
    """Of streams that are cut at the borders of tokens."""
    streamed: Counter[Outcome] = field(default_factory=Counter)
    """Of all streams."""
    equal: int = 0
    dialects: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    """The outputs, to compare with what another parser made of the same."""

    def cells(self) -> dict[str, float | int | None]:
        """The columns that all of these tables have."""
        return {"outputs": self.outcomes.total(), **{name: share(self.outcomes, name) for name in OUTCOMES}}


class _Counts(dict[tuple[str, str, str], _Count]):
    """By parser, group and dialect; `verdicts` by parser and output."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: dict[tuple[str, str], Outcome] = {}

    def of(self, parser: str, *, group: str | None = None, dialect: str | None = None) -> _Count:
        """The sum over everything that is not named."""
        total = _Count()
        for (name, its_group, its_dialect), each in self.items():
            if name == parser and group in (None, its_group) and dialect in (None, its_dialect):
                total.outcomes += each.outcomes
                total.tokens += each.tokens
                total.streamed += each.streamed
                total.equal += each.equal
                total.dialects.add(its_dialect)
                total.ids += each.ids
        return total

    def ours_on(self, ids: Iterable[str], outcome: Outcome) -> float | None:
        """The share of `outcome` among what localagent made of these outputs, in percent."""
        found = [verdict for each in ids if (verdict := self.verdicts.get((OURS, each))) is not None]
        return 100 * sum(verdict == outcome for verdict in found) / len(found) if found else None


@contextmanager
def _counted(parser: Child, counts: _Counts, drop: Callable[[Child, str], object]) -> Iterator[None]:
    """A parser that goes half-way is not counted at all: the outputs it was spared may be the hard ones."""
    try:
        yield
    except Gone as gone:
        drop(parser, str(gone))
        for key in [key for key in counts if key[0] == parser.name]:
            del counts[key]


def read_back(
    results: Results,
    parsers: Sequence[Child],
    outputs: Sequence[tuple[str, Output]],
    seed: int,
    drop: Callable[[Child, str], object],
    *,
    detailed: bool = True,
    show: bool = False,
) -> None:
    """Read outputs, each with who wrote it, whole and in pieces; `drop` is told of a parser that is gone."""
    counts = _Counts()
    for parser in list(parsers):
        shown = 0
        with _counted(parser, counts, drop):
            for number, (writer, output) in enumerate(outputs):
                if not parser.claims(output.dialect, output.tools):
                    continue
                draw = random.Random(f"{seed} {number}")
                whole = parser.read(output.request())
                outcome = judge_trip(output.calls, output.tools, whole)
                count = counts.setdefault((parser.name, writer, output.dialect), _Count())
                count.outcomes[outcome] += 1
                count.ids.append(key := f"{writer} {output.dialect} {output.id}")
                counts.verdicts[parser.name, key] = outcome
                for how in CUTS:
                    found = parser.read(output.request(cut(output.text, how, output.dialect, draw)))
                    count.streamed[piecemeal := judge_trip(output.calls, output.tools, found)] += 1
                    count.tokens[piecemeal] += how == "token"
                    count.equal += found.key == whole.key
                if outcome != "right" and (show or (outcome == "wrong" and shown < _MOST_CASES)):
                    shown += 1
                    _tell(results, TRIPS, parser, output, outcome, whole)
    for parser in parsers:
        for writer in dict.fromkeys(writer for name, writer, _ in counts if name == parser.name):
            total = counts.of(parser.name, group=writer)
            results.add(
                TRIPS,
                parser=parser.name,
                written=writer,
                dialects=len(total.dialects),
                **total.cells(),
                low=100 * wilson(total.outcomes["right"], total.outcomes.total()).low,
                tokens=share(total.tokens, "right"),
                streamed=share(total.streamed, "right"),
                equal=100 * total.equal / max(1, total.streamed.total()),
                ours=counts.ours_on(total.ids, "right") if parser.name != OURS else None,
            )
    for dialect in dict.fromkeys(dialect for _, _, dialect in counts) if detailed else ():
        for parser in parsers:
            total = counts.of(parser.name, dialect=dialect)
            if total.outcomes:
                equal = 100 * total.equal / max(1, total.streamed.total())
                results.add(TRIPS_OF, dialect=dialect, parser=parser.name, **total.cells(), equal=equal)


def inject(
    results: Results,
    parsers: Sequence[Child],
    outputs: Sequence[Output],
    others: Sequence[Task],
    seed: int,
    drop: Callable[[Child, str], object],
    *,
    detailed: bool = True,
    show: bool = False,
) -> None:
    """Read each output with each of the faults in it; `others` has the calls of drafts."""
    counts = _Counts()
    faulty = []
    for number, output in enumerate(outputs):
        for fault in FAULTS:
            draw = random.Random(f"{seed} {fault} {number}")
            broken = with_fault(output, fault, draw.choice(others), draw)
            if broken is not None:
                faulty.append((fault, broken, cut(broken.text, "token", broken.dialect, draw)))
    for parser in list(parsers):
        shown = 0
        with _counted(parser, counts, drop):
            for fault, output, pieces in faulty:
                if not parser.claims(output.dialect, output.tools):
                    continue
                found = parser.read(output.request())
                outcome = judge_faulty(fault, output, found)
                count = counts.setdefault((parser.name, fault, output.dialect), _Count())
                count.outcomes[outcome] += 1
                count.tokens[judge_faulty(fault, output, parser.read(output.request(pieces)))] += 1
                count.ids.append(key := f"{fault} {output.dialect} {output.id}")
                counts.verdicts[parser.name, key] = outcome
                if outcome == "wrong" and (show or shown < _MOST_CASES):
                    shown += 1
                    _tell(results, FAULTY, parser, output, f"{fault}: {outcome}", found)
    _add_faulty(results, parsers, counts, detailed)


def _add_faulty(results: Results, parsers: Sequence[Child], counts: _Counts, detailed: bool) -> None:
    for fault in (None, *FAULTS):
        for parser in parsers:
            total = counts.of(parser.name, group=fault)
            if not total.outcomes:
                continue
            interval = wilson(total.outcomes["wrong"], total.outcomes.total())
            results.add(
                FAULTY_BY if fault else FAULTY,
                **({"fault": fault} if fault else {}),
                parser=parser.name,
                **total.cells(),
                low=100 * interval.low,
                high=100 * interval.high,
                streamed=share(total.tokens, "wrong"),
                ours=counts.ours_on(total.ids, "wrong") if parser.name != OURS else None,
            )
    for dialect in dict.fromkeys(dialect for _, _, dialect in counts) if detailed else ():
        for parser in parsers:
            total = counts.of(parser.name, dialect=dialect)
            if total.outcomes:
                results.add(FAULTY_OF, dialect=dialect, parser=parser.name, **total.cells())


def judge_faulty(fault: str, output: Output, found: Reading) -> Outcome:
    """As `judge_fault`, with what is right after a fault of this kind."""
    match fault:
        case "marker":  # the text is as it should be
            return judge_trip(output.calls, output.tools, found)
        case "twice":
            once = judge_trip(output.calls, output.tools, found)
            return once if once != "wrong" else judge_trip(output.calls * 2, output.tools, found)
        case "cut" | "draft":  # what is there is whole
            return judge_trip(output.calls, output.tools, found)
    return judge_fault(output.calls, found)


def _tell(
    results: Results, table: Table, parser: Child, output: Output, outcome: str, found: Reading
) -> None:
    results.case(
        table,
        parser=parser.name,
        id=output.id,
        dialect=output.dialect,
        outcome=outcome,
        text=output.text[:600],
        read=str(list(found.calls))[:600] or found.error,
        right=str(output.calls)[:600],
    )
