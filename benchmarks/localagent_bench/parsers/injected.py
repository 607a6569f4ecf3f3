"""What parsers make of outputs with faults in them: wrong calls, and of these the ones that contradict the
declared tools. Each output is read whole, in tokens, and in tokens of which it is known which are special.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence

from localagent.parsers import DIALECTS
from localagent_bench.parsers.children import OURS, Child
from localagent_bench.parsers.corpora import AskedCalls
from localagent_bench.parsers.faults import FURTHER, FURTHER_TOLD, Faulty, with_further_fault
from localagent_bench.parsers.judging import (
    OUTCOMES,
    Outcome,
    Reading,
    Same,
    contradicts,
    is_equal,
    is_own,
    judge_fault,
    judge_trip,
    strangers,
)
from localagent_bench.parsers.outputs import FAULTS, FAULTS_TOLD, Output, cut, tokens, with_fault
from localagent_bench.parsers.trips import MOST_CASES, SHARES, Count, Counts, counted, share, tell
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.statistics import wilson

SETS: dict[str, Collection[str]] = {"one": FAULTS, "further": FURTHER}
"""The faults whose figures are published, and the others, which are counted apart."""
_AGAINST = (
    Column("against", "wrong against the tools", "%", "less"),
    Column("known", "wrong, special tokens known", "%", "less"),
    Column("known_against", "these against the tools", "%", "less"),
)
_FAULTY = (
    Column("outputs", "outputs"),
    *SHARES,
    Column("low", "wrong, from", "%", "less"),
    Column("high", "to", "%", "less"),
    Column("streamed", "wrong in a stream", "%", "less"),
    *_AGAINST,
    Column("ours", "localagent wrong on the same", "%", "less"),
)
FAULTY = Table(
    "parsers.faults",
    "Outputs with one fault",
    (Column("parser", "parser"), Column("set", "faults"), *_FAULTY),
    f"One: a single fault in each output: {FAULTS_TOLD}. Right: all calls, but for one edit in a name, a key "
    "or a value, which is then the model's own word. Refused: fewer calls, none of them wrong. Wrong: a call "
    "that the model did not write, or only wrote as a draft. A block that stands twice may be read once "
    f"or twice. The interval is Wilson's, 95 %. Stream: the same outputs in tokens. Further: {FURTHER_TOLD}. "
    "Right is then what each of these leaves of the words. Against the tools: a wrong call with an "
    "undeclared name or key, without a required one, with a value of another type or with markup in it, so "
    "that a parser which is told the tools can know. Special tokens known: in tokens, and the parser is told "
    "which of them are special; one that cannot be told reads them as before.",
    (Chart("stack", "parser", OUTCOMES, "Outputs with one fault", "set"),),
)
FAULTY_BY = Table(
    "parsers.faults_by",
    "Outputs with one fault, by fault",
    (Column("fault", "fault"), Column("parser", "parser"), *_FAULTY),
)
FAULTY_OF = Table(
    "parsers.faults_of",
    "Outputs with one fault, by format",
    (
        Column("dialect", "format"),
        Column("parser", "parser"),
        Column("set", "faults"),
        Column("outputs", "outputs"),
        *SHARES,
        *_AGAINST,
    ),
)


def inject(
    results: Results,
    parsers: Sequence[Child],
    outputs: Sequence[Output],
    others: Sequence[AskedCalls],
    seed: int,
    drop: Callable[[Child, str], object],
    *,
    kinds: Collection[str] = (),
    detailed: bool = True,
    show: bool = False,
) -> None:
    """Read each output with each of the faults in it; `others` has the calls of drafts. `kinds`: of the
    faults only these.
    """
    counts = Counts()
    faulty = list(_faulty(outputs, others, seed, kinds))
    for parser in list(parsers):
        shown = dict.fromkeys(SETS, 0)
        with counted(parser, counts, drop):
            for broken in faulty:
                output = broken.output
                if not parser.claims(output.dialect, output.tools):
                    continue
                found = parser.read(output.request())
                count = counts.setdefault((parser.name, broken.fault, output.dialect), Count())
                outcome, against = judged(broken, found)
                count.outcomes[outcome] += 1
                count.against += against
                streamed = parser.read(output.request(cut(output.text, "token", output.dialect, _UNUSED)))
                count.tokens[judged(broken, streamed)[0]] += 1
                pieces, special = zip(*tokens(output.text, output.dialect), strict=True)
                known, known_against = judged(broken, parser.read(output.request(pieces, special)))
                count.known[known] += 1
                count.known_against += known_against
                count.ids.append(key := f"{broken.fault} {output.dialect} {output.id}")
                counts.verdicts[parser.name, key] = outcome
                of = next(name for name, faults in SETS.items() if broken.fault in faults)
                if outcome == "wrong" and (show or shown[of] < MOST_CASES):
                    shown[of] += 1
                    told = f"{broken.fault}: wrong" + ", against the tools" * against
                    tell(results, FAULTY, parser, output, told, found)
    _add_faulty(results, parsers, counts, detailed)


_UNUSED = random.Random(0)
"""Nothing is drawn where tokens end."""


def _faulty(
    outputs: Sequence[Output], others: Sequence[AskedCalls], seed: int, kinds: Collection[str]
) -> Iterator[Faulty]:
    """Each fault draws for itself: what it does is the same whatever others there are."""
    for number, output in enumerate(outputs):
        for fault in (fault for faults in SETS.values() for fault in faults):
            if kinds and fault not in kinds:
                continue
            draw = random.Random(f"{seed} {fault} {number}")
            other = draw.choice(others)
            if fault in FURTHER:
                broken = with_further_fault(output, fault, other, draw)
            else:
                changed = with_fault(output, fault, other, draw)
                broken = None if changed is None else Faulty(fault, changed)
            if broken is not None:
                yield broken


def _add_faulty(results: Results, parsers: Sequence[Child], counts: Counts, detailed: bool) -> None:
    rows: list[tuple[Table, dict[str, str], Collection[str]]]
    rows = [(FAULTY, {"set": name}, faults) for name, faults in SETS.items()]
    rows += [(FAULTY_BY, {"fault": fault}, [fault]) for faults in SETS.values() for fault in faults]
    for table, named, faults in rows:
        for parser in parsers:
            total = counts.of(parser.name, faults)
            if not total.outcomes:
                continue
            interval = wilson(total.outcomes["wrong"], total.outcomes.total())
            results.add(
                table,
                **named,
                parser=parser.name,
                **total.cells(),
                **_against(total),
                low=100 * interval.low,
                high=100 * interval.high,
                streamed=share(total.tokens, "wrong"),
                ours=counts.ours_on(total.ids, "wrong") if parser.name != OURS else None,
            )
    for dialect in dict.fromkeys(dialect for _, _, dialect in counts) if detailed else ():
        for parser in parsers:
            for name, faults in SETS.items():
                total = counts.of(parser.name, faults, dialect=dialect)
                if total.outcomes:
                    cells = {**total.cells(), **_against(total)}
                    results.add(FAULTY_OF, dialect=dialect, parser=parser.name, set=name, **cells)


def _against(total: Count) -> dict[str, float]:
    return {
        "against": 100 * total.against / total.outcomes.total(),
        "known": share(total.known, "wrong"),
        "known_against": 100 * total.known_against / total.outcomes.total(),
    }


def judged(broken: Faulty, found: Reading) -> tuple[Outcome, bool]:
    """What was made of an output, and whether a wrong call in it contradicts the declared tools."""
    outcome = judge_faulty(broken, found)
    if outcome != "wrong":
        return outcome, False
    output, table = broken.output, DIALECTS[broken.output.dialect]
    written = [*broken.before, *output.calls]
    markup = [mark for mark in (*table.markers, *table.tags, "</", "<|") if mark.strip()]
    strange = strangers(found.calls, written, same_call(broken))
    return outcome, any(contradicts(call, output.tools, markup) for call in strange)


def judge_faulty(broken: Faulty, found: Reading) -> Outcome:
    """Right are all calls that have to be read, as this fault leaves their words."""
    calls, tools = broken.output.calls, broken.output.tools
    match broken.fault:
        case "twice":
            once = judge_trip(calls, tools, found)
            return once if once != "wrong" else judge_trip(calls * 2, tools, found)
        case "marker" | "cut" | "draft":  # what is there is whole
            return judge_trip(calls, tools, found)
        case fault if fault in FAULTS:
            return judge_fault(calls, found)
    same = same_call(broken)
    if strangers(found.calls, [*broken.before, *calls], same):
        return "wrong"
    missing = strangers(calls, found.calls, lambda due, got: same(got, due))
    return "refused" if missing else "right"


def same_call(broken: Faulty) -> Same:
    """Whether a call is one that was written, after a fault of this kind."""
    if broken.fault in FURTHER:
        return FURTHER[broken.fault].same or is_equal(broken.output.tools)
    return is_equal(broken.output.tools) if broken.fault in ("marker", "cut", "draft", "twice") else is_own
