"""Outputs recorded elsewhere, kept apart from the repository: LFM2's are read exactly, nearly all others are, and no
call is wrong.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.rows import Row, judge, recorded_rows
from parsers import DIALECTS
from tests.parsers.outputs import in_pieces
from tests.parsers.reading import Piece, check_run, exact, outcome
from tests.parsers.test_cases import cuttings

LFM2, FORMATS = list(recorded_rows("lfm2")), list(recorded_rows("formats"))


def name(row: Row) -> str:
    return row.id


@pytest.mark.skipif(not FORMATS, reason="the recorded outputs are not here")
def test_outputs_of_all_families_are_read_without_a_wrong_call():
    verdicts = {row.id: judge(row) for row in FORMATS}
    counts = Counter(verdict for verdict, _ in verdicts.values())
    assert {id: said for id, (verdict, said) in verdicts.items() if verdict == "wrong"} == {}
    off = {id: said for id, said in verdicts.items() if said[0] in ("refused", "missed")}
    assert counts["exact"] + counts["soft"] >= 0.99 * counts.total(), off


@pytest.mark.parametrize("row", [*LFM2, *FORMATS], ids=name)
def test_a_recorded_output_is_read_alike_however_it_is_cut(row):
    first = row.read()
    check_run(row.raw, first)
    for pieces in () if row.pieces else cuttings(row.raw):
        assert exact(row.read(pieces)) == exact(first)


# With flags a marker in a string ends it, and a cut marker is text: these two readings differ by policy 4 and 28.
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


@pytest.mark.parametrize("row", LFM2, ids=name)
def test_an_output_of_lfm2_is_read_exactly_with_flags_and_without(row):
    assert judge(row) == ("exact", "")
    flagged = row.read(as_a_host_sends(row.raw))
    check_run(row.raw, flagged)
    if row.id not in FLAGS_DECIDE and not row.pieces:
        assert {**outcome(flagged), "malformed": []} == {**outcome(row.read()), "malformed": []}
