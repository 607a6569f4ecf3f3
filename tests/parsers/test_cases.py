"""Case tables: outputs with the exact reading expected, in every way of cutting them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from parsers import DIALECTS, CallPart, MalformedPart, collect
from tests.parsers.reading import Piece, characters, check_run, merged, outcome, read, split, whole

TABLES = Path(__file__).parent / "cases"
SHARED = Path(os.environ.get("LFM2_CASES", Path(__file__).parents[3] / "shared" / "cases" / "lfm2.jsonl"))


def rows(dialect: str):
    with (TABLES / f"{dialect}.jsonl").open() as lines:  # a dialect without cases fails collection
        return [pytest.param(dialect, json.loads(line), id=json.loads(line)["why"]) for line in lines]


CASES = [case for dialect in DIALECTS for case in rows(dialect)]


def cuttings(raw: str) -> list[list[Piece]]:
    """Whole, per character, every split in two, and some at random."""
    chosen = random.Random(repr(raw))
    at_random = [chosen.sample(range(len(raw) + 1), k=min(len(raw), 5)) for _ in range(5)]
    return [
        whole(raw),
        characters(raw),
        *(split(raw, [at]) for at in range(1, len(raw))),
        *(split(raw, cuts) for cuts in at_random),
    ]


@pytest.mark.parametrize(("dialect", "row"), CASES)
def test_row(dialect, row):
    raw = row["raw"]
    options = {"inside": row.get("inside")}
    runs = [row["pieces"]] if "pieces" in row else cuttings(raw)
    first = merged(read(dialect, runs[0], **options))
    for pieces in runs:
        events = read(dialect, pieces, **options)
        check_run(raw, events)
        assert merged(events) == first
    expected = {key: row[key] for key in ("content", "reasoning", "calls", "malformed")}
    assert outcome(first) == expected
    parts = collect(first)
    repaired = [part.repaired for part in parts if isinstance(part, CallPart)]
    assert repaired == row.get("repaired", [False] * len(repaired))
    if "partial" in row:
        assert [part.partial for part in parts if isinstance(part, MalformedPart)] == row["partial"]


@pytest.mark.parametrize(("dialect", "row"), [case for case in CASES if "pieces" not in case.values[1]])
def test_every_prefix_of_a_row(dialect, row):
    """Cut anywhere, nothing raises, the spans tile, and the calls are those that were complete."""
    for end in range(len(row["raw"])):
        raw = row["raw"][:end]
        events = read(dialect, whole(raw), finish="length", inside=row.get("inside"))
        check_run(raw, events)


@pytest.mark.skipif(not SHARED.exists(), reason="recorded outputs are kept apart from the repository")
def test_recorded_outputs():
    """Policies that need the declared tools are not read yet: those rows may differ, and only those."""
    differing = set()
    for line in SHARED.read_text().splitlines():
        row = json.loads(line)
        pieces = [(piece["text"], piece["special"]) for piece in row.get("pieces", [])] or whole(row["raw"])
        events = read("lfm2", pieces, row.get("finish", "stop"), tools=row["tools"], inside=row.get("inside"))
        check_run(row["raw"], events)
        found = outcome(events)
        expected = row["expected"]
        calls = [[call["name"], call["arguments"]] for call in expected["tool_calls"]]
        same = (found["content"], found["reasoning"], found["calls"], bool(found["malformed"])) == (
            expected["content"],
            expected["reasoning"],
            calls,
            expected["malformed"],
        )
        if not same:
            differing.add(row["id"])
            assert row["tools"]
    assert differing == {
        "oll-bare-fallback",
        "littlecoder42",
        "swift-wrapper-properties",
        "swift-declared-strings",
    }
