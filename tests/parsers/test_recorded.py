"""Outputs recorded elsewhere, kept apart from the repository: each is read alike however it is
cut, and LFM2's with special tokens and without. What is right for the others is judged in tests/bench/parsers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from parsers import DIALECTS
from tests.parsers.outputs import in_pieces
from tests.parsers.reading import Piece, check_run, exact, outcome, read, whole
from tests.parsers.test_cases import cuttings

FOLDER = Path(os.environ.get("RECORDED_CASES", Path(__file__).parents[3] / "shared" / "cases"))


def rows(table: str) -> list:
    path = FOLDER / f"{table}.jsonl"
    return [
        pytest.param(row, id=row["id"])
        for row in map(json.loads, path.read_text().splitlines() if path.exists() else ())
    ]


LFM2, FORMATS = rows("lfm2"), rows("formats")


def events(row: dict, pieces: list[Piece] | None = None) -> list:
    given = (
        pieces or [(piece["text"], piece["special"]) for piece in row.get("pieces", ())] or whole(row["raw"])
    )
    settings = {"tools": row["tools"], "inside": row.get("inside"), "finish": row.get("finish", "stop")}
    return read(row.get("dialect", "lfm2"), given, **settings)


@pytest.mark.parametrize("row", [*LFM2, *FORMATS])
def test_a_recorded_output_is_read_alike_however_it_is_cut(row):
    first = events(row)
    check_run(row["raw"], first)
    for pieces in () if "pieces" in row else cuttings(row["raw"]):
        assert exact(events(row, pieces)) == exact(first)


# With flags a marker in a string ends it, and a cut marker is text: these two readings differ by the rules special-flags and marker-in-string.
FLAGS_DECIDE = {"der-end-marker-in-string", "der-start-marker-in-string", "der-trunc-end-marker"}


def as_a_host_sends(raw: str) -> list[Piece]:
    """Markers as special tokens, the rest in ordinary ones of a few characters."""
    markers = DIALECTS["lfm2"].markers
    pieces: list[Piece] = []
    for part in in_pieces(markers, raw):
        if part in markers:
            pieces.append((part, True))
        else:
            pieces += [(part[at : at + 4], False) for at in range(0, len(part), 4)]
    return pieces


@pytest.mark.parametrize("row", LFM2)
def test_an_output_of_lfm2_is_read_alike_with_flags_and_without(row):
    flagged = events(row, as_a_host_sends(row["raw"]))
    check_run(row["raw"], flagged)
    if row["id"] not in FLAGS_DECIDE and "pieces" not in row:
        assert {**outcome(flagged), "malformed": []} == {**outcome(events(row)), "malformed": []}
