"""Calls that are rendered and read back, and how such outcomes are counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from localagent_bench.parsers.children import OURS, Child, Gone
from localagent_bench.parsers.judging import OUTCOMES, Outcome, Reading, judge_trip
from localagent_bench.parsers.outputs import CUTS, Output, cut
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.statistics import wilson

SHARES = (
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
        *SHARES,
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
        *SHARES,
        Column("equal", "stream as whole", "%", "more", 1),
    ),
)
MOST_CASES = 20
"""Wrong readings of a parser that go into the results, unless all are asked for."""


def share(outcomes: Counter[Outcome], outcome: Outcome) -> float:
    """In percent; 0 of none."""
    return 100 * outcomes[outcome] / max(1, outcomes.total())


@dataclass
class Count:
    """Outcomes of one parser in one group of outputs."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    tokens: Counter[Outcome] = field(default_factory=Counter)
    """Of streams that are cut at the borders of tokens."""
    streamed: Counter[Outcome] = field(default_factory=Counter)
    """Of all streams."""
    known: Counter[Outcome] = field(default_factory=Counter)
    """Of streams that say which tokens are special."""
    against: int = 0
    """Wrong ones of `outcomes` that contradict the declared tools."""
    known_against: int = 0
    """The same of `known`."""
    equal: int = 0
    dialects: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    """The outputs, to compare with what another parser made of the same."""

    def cells(self) -> dict[str, float | int | None]:
        """The columns that all of these tables have."""
        return {"outputs": self.outcomes.total(), **{name: share(self.outcomes, name) for name in OUTCOMES}}


class Counts(dict[tuple[str, str, str], Count]):
    """By parser, group and dialect; `verdicts` by parser and output."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: dict[tuple[str, str], Outcome] = {}

    def of(self, parser: str, groups: Collection[str] = (), *, dialect: str | None = None) -> Count:
        """The sum over everything that is not named."""
        total = Count()
        for (name, group, its_dialect), each in self.items():
            if name == parser and (not groups or group in groups) and dialect in (None, its_dialect):
                total.outcomes += each.outcomes
                total.tokens += each.tokens
                total.streamed += each.streamed
                total.known += each.known
                total.equal += each.equal
                total.against += each.against
                total.known_against += each.known_against
                total.dialects.add(its_dialect)
                total.ids += each.ids
        return total

    def ours_on(self, ids: Iterable[str], outcome: Outcome) -> float | None:
        """The share of `outcome` among what localagent made of these outputs, in percent."""
        found = [verdict for each in ids if (verdict := self.verdicts.get((OURS, each))) is not None]
        return 100 * sum(verdict == outcome for verdict in found) / len(found) if found else None


@contextmanager
def counted(parser: Child, counts: Counts, drop: Callable[[Child, str], object]) -> Iterator[None]:
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
    counts = Counts()
    for parser in list(parsers):
        shown = 0
        with counted(parser, counts, drop):
            for number, (writer, output) in enumerate(outputs):
                if not parser.claims(output.dialect, output.tools):
                    continue
                draw = random.Random(f"{seed} {number}")
                whole = parser.read(output.request())
                outcome = judge_trip(output.calls, output.tools, whole)
                count = counts.setdefault((parser.name, writer, output.dialect), Count())
                count.outcomes[outcome] += 1
                count.ids.append(key := f"{writer} {output.dialect} {output.id}")
                counts.verdicts[parser.name, key] = outcome
                for how in CUTS:
                    found = parser.read(output.request(cut(output.text, how, output.dialect, draw)))
                    count.streamed[piecemeal := judge_trip(output.calls, output.tools, found)] += 1
                    count.tokens[piecemeal] += how == "token"
                    count.equal += found.key == whole.key
                if outcome != "right" and (show or (outcome == "wrong" and shown < MOST_CASES)):
                    shown += 1
                    tell(results, TRIPS, parser, output, outcome, whole)
    for parser in parsers:
        for writer in dict.fromkeys(writer for name, writer, _ in counts if name == parser.name):
            total = counts.of(parser.name, [writer])
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


def tell(results: Results, table: Table, parser: Child, output: Output, outcome: str, found: Reading) -> None:
    """Put a single reading into the results."""
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
