"""Outputs recorded elsewhere, kept apart from the repository: nearly all are read exactly, and no call is wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.rows import judge, recorded_rows
from tests.parsers.reading import characters, check_run, exact, split

FORMATS = list(recorded_rows("formats"))


@pytest.mark.skipif(not FORMATS, reason="the recorded outputs are not here")
def test_outputs_of_all_families_are_read_without_a_wrong_call():
    verdicts = {row.id: judge(row) for row in FORMATS}
    counts = Counter(verdict for verdict, _ in verdicts.values())
    assert {id: said for id, (verdict, said) in verdicts.items() if verdict == "wrong"} == {}
    off = {id: said for id, said in verdicts.items() if said[0] in ("refused", "missed")}
    assert counts["exact"] + counts["soft"] >= 0.99 * counts.total(), off


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in FORMATS])
def test_a_recorded_output_is_read_alike_however_it_is_cut(row):
    first = row.read()
    check_run(row.raw, first)
    chosen = random.Random(row.id)
    cuttings = [chosen.sample(range(len(row.raw) + 1), k=min(len(row.raw), 12)) for _ in range(3)]
    for pieces in (characters(row.raw), *(split(row.raw, cuts) for cuts in cuttings)):
        assert exact(row.read(pieces)) == exact(first)
