"""What parsers make of outputs that models wrote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from localagent_bench.parsers.children import OURS, Child, Gone
from localagent_bench.parsers.corpora import Row
from localagent_bench.parsers.judging import VERDICTS, Verdict, judge
from localagent_bench.parsers.outputs import cut
from localagent_bench.results import Better, Chart, Column, Results, Table
from localagent_bench.statistics import wilson

_BETTER: dict[str, Better] = {"exact": "more", "soft": "more"}
_COUNTS = (
    Column("outputs", "outputs"),
    *(Column(verdict, verdict, "", _BETTER.get(verdict, "less")) for verdict in VERDICTS),
)
_SHARES = (
    Column("outputs", "outputs"),
    *(Column(verdict, verdict, "%", _BETTER.get(verdict, "less"), 1) for verdict in VERDICTS),
)
_TOLD = (
    "Exact: calls, content and reasoning are right. Soft: but for white space. Refused: fewer calls, none "
    "of them wrong, and the parser says so. Missed: anything else that differs, such as a call that is "
    "lost or read as text. Wrong: a call in no list of calls that would be right. At least: the lower end of "
    "Wilson's interval of 95 %. Stream: outputs of which "
    "every way to cut them gives a client what the whole gives. Localagent on the same: what it reads "
    "exactly or softly of the outputs in formats that the parser claims. `canitoolcall` is that package "
    "with its own judge; `cases` are this project's own rows, which also say how it reads what can be read "
    "in several ways."
)
RECORDED = Table(
    "parsers.recorded",
    "Recorded outputs",
    (
        Column("parser", "parser"),
        Column("corpus", "corpus"),
        *_SHARES,
        Column("good", "exact or soft", "%", "more", 1),
        Column("low", "at least", "%", "more", 1),
        Column("equal", "stream as whole", "%", "more", 1),
        Column("ours", "localagent on the same", "%", "more", 1),
    ),
    _TOLD,
    (Chart("stack", "parser", VERDICTS, "Recorded outputs", "corpus"),),
)
FAMILIES = Table(
    "parsers.families",
    "Recorded outputs, by family",
    (Column("corpus", "corpus"), Column("family", "family"), Column("parser", "parser"), *_COUNTS),
)
Judged = tuple[Verdict, str, bool]
"""The verdict, what differs, and whether a stream gives what the whole gives."""


def judged(parser: Child, row: Row) -> Judged:
    """One output, whole, in single characters and at random. Raises Gone."""
    if row.corpus == "canitoolcall":
        from localagent_bench.parsers.canitoolcall import conformance

        return conformance(parser, row)
    whole = parser.read(row.request(flags=parser.flags))
    verdict, told = judge(row, whole)
    equal = True
    if not row.pieces:  # where they are given, the cuts are part of the output
        draw = random.Random(row.id)
        for how in ("1", "random"):
            pieces = [(piece, None) for piece in cut(row.text, how, row.dialect, draw)]
            equal = equal and parser.read(row.request(pieces, flags=parser.flags)).key == whole.key
    return verdict, told, equal


def read_recorded(
    results: Results,
    parsers: Sequence[Child],
    rows: Sequence[Row],
    drop: Callable[[Child, str], object],
    *,
    detailed: bool = True,
    show: bool = False,
) -> None:
    """Read recorded outputs. `drop`: a parser that takes no further part."""
    verdicts: dict[str, list[tuple[Row, Judged]]] = {}
    for parser in list(parsers):
        found = verdicts.setdefault(parser.name, [])
        try:
            for row in rows:
                if not parser.claims(row.dialect, row.tools):
                    continue
                found.append((row, said := judged(parser, row)))
                if said[0] == "wrong" or (show and said[0] != "exact"):
                    results.case(
                        RECORDED,
                        parser=parser.name,
                        id=f"{row.corpus}: {row.id}",
                        dialect=row.dialect,
                        outcome=said[0],
                        text=row.text[:600],
                        read=said[1][:600],
                        right=" or ".join(map(str, row.accepted))[:600],
                    )
        except Gone as gone:
            drop(parser, str(gone))
            del verdicts[parser.name]
    ours = {(row.corpus, row.id): said[0] in ("exact", "soft") for row, said in verdicts.get(OURS, ())}
    for corpus in dict.fromkeys(row.corpus for row in rows):
        for name, all_found in verdicts.items():
            of = [(row, said) for row, said in all_found if row.corpus == corpus]
            if not of:
                continue
            counts = Counter(said[0] for _, said in of)
            good = counts["exact"] + counts["soft"]
            same = [ours[key] for row, _ in of if (key := (row.corpus, row.id)) in ours]
            results.add(
                RECORDED,
                parser=name,
                corpus=corpus,
                outputs=len(of),
                **{verdict: 100 * counts[verdict] / len(of) for verdict in VERDICTS},
                good=100 * good / len(of),
                low=100 * wilson(good, len(of)).low,
                equal=100 * sum(said[2] for _, said in of) / len(of),
                ours=100 * sum(same) / len(same) if same and name != OURS else None,
            )
    for corpus, family in dict.fromkeys((row.corpus, row.family) for row in rows) if detailed else ():
        for name, all_found in verdicts.items():
            if of_family := [
                said[0] for row, said in all_found if (row.corpus, row.family) == (corpus, family)
            ]:
                results.add(FAMILIES, corpus=corpus, family=family, parser=name, **_cells(of_family))


def _cells(verdicts: Iterable[str]) -> dict[str, int]:
    counts = Counter(verdicts)
    return {"outputs": counts.total(), **{verdict: counts[verdict] for verdict in VERDICTS}}
