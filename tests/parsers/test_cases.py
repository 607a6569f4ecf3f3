"""Case tables: outputs with the exact reading expected, in every way of cutting them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from parsers import DIALECTS, CallPart, MalformedPart, collect, segments
from tests.parsers.outputs import LONG
from tests.parsers.reading import Piece, characters, check_run, exact, merged, outcome, read, split, whole

TABLES = Path(__file__).parent / "cases"


ROWS = 20  # the least that a dialect must have


def rows(dialect: str):
    table = TABLES / f"{dialect}.jsonl"
    found = map(json.loads, table.read_text().splitlines()) if table.exists() else ()
    return [pytest.param(dialect, row, id=f"{dialect}: {row['why']}") for row in found]


CASES = [case for dialect in DIALECTS for case in rows(dialect)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_has_rows_each_with_its_reason(dialect):
    reasons = [case.values[1]["why"] for case in rows(dialect)]
    assert len(reasons) >= ROWS
    assert all(reasons)
    assert len(set(reasons)) == len(reasons)


LONE = ("functionary", "minicpm5")
"""The dialects whose calls stand between no markers but their own tags."""


def test_every_table_belongs_to_a_dialect():
    assert {table.stem for table in TABLES.glob("*.jsonl")} <= set(DIALECTS)


STRIDE = 16


def cuttings(raw: str) -> list[list[Piece]]:
    """Whole, per character, some at random, and cut at every place: at every sixteenth of them at once.

    In the long run each place also has a cutting of its own.
    """
    chosen = random.Random(repr(raw))
    at_random = [chosen.sample(range(len(raw) + 1), k=min(len(raw), 5)) for _ in range(5 if LONG else 2)]
    alone = [[at] for at in range(1, len(raw))] if LONG else []
    together = [list(range(at, len(raw), STRIDE)) for at in range(1, min(len(raw), STRIDE + 1))]
    return [whole(raw), characters(raw), *(split(raw, cuts) for cuts in (*together, *alone, *at_random))]


def prefixes(raw: str) -> list[str]:
    """Beginnings of an output: a dozen of them, all in the long run."""
    ends = range(len(raw))
    return [
        raw[:end] for end in (ends if LONG else random.Random(repr(raw)).sample(ends, k=min(len(raw), 12)))
    ]


@pytest.mark.parametrize(("dialect", "row"), CASES)
def test_a_case_is_read_as_its_row_says(dialect, row):
    """Read as it says however it is cut; and cut short anywhere, the laws still hold."""
    raw = row["raw"]
    options = {key: row[key] for key in ("inside", "tools", "strict", "atomic") if key in row}
    runs = [row["pieces"]] if "pieces" in row else cuttings(raw)
    first = merged(read(dialect, runs[0], **options))
    check_run(raw, first)
    for pieces in runs:
        assert exact(read(dialect, pieces, **options)) == exact(first)
    expected = {key: row[key] for key in ("content", "reasoning", "calls", "malformed")}
    assert outcome(first) == expected
    parts = collect(first)
    repaired = [part.repaired for part in parts if isinstance(part, CallPart)]
    assert repaired == row.get("repaired", [False] * len(repaired))
    if "partial" in row:
        assert [part.partial for part in parts if isinstance(part, MalformedPart)] == row["partial"]
    if "names" in row:
        assert [part.name for part in parts if isinstance(part, MalformedPart)] == row["names"]
    stretches = [[kind, raw[start:end]] for kind, start, end in segments(first)]
    if "segments" in row:
        assert stretches == row["segments"]
    else:  # what frames a call is no part of it
        frame = () if dialect in LONE or DIALECTS[dialect].calls is None else DIALECTS[dialect].calls.open
        for call in (text for kind, text in stretches if kind == "call"):
            assert call == call.strip()
            assert not call.startswith(frame)
    for cut in prefixes(raw) if "pieces" not in row else ():
        events = read(dialect, whole(cut), finish="length", **options)
        check_run(cut, events)
        assert exact(read(dialect, characters(cut), finish="length", **options)) == exact(events)
