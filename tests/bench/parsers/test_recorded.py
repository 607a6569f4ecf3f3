"""Outputs recorded elsewhere, kept apart from the repository, and the case tables: LFM2's are read exactly, nearly all
others are, and no call is wrong.
"""

from __future__ import annotations

from collections import Counter

import pytest

from localagent_bench.parsers.corpora import case_rows
from localagent_bench.parsers.judging import judge

ROWS = list(case_rows())


def verdicts(ours, corpus: str) -> dict[str, tuple[str, str]]:
    rows = [row for row in ROWS if row.corpus == corpus]
    if not rows:
        pytest.skip("the recorded outputs are not here")
    return {row.id: judge(row, ours.read(row.request(flags=True))) for row in rows}


def test_the_case_tables_are_read_exactly(ours):
    assert {id: said for id, said in verdicts(ours, "cases").items() if said[0] != "exact"} == {}


def test_outputs_of_lfm2_are_read_exactly(ours):
    assert {id: said for id, said in verdicts(ours, "lfm2").items() if said[0] != "exact"} == {}


def test_outputs_of_all_families_are_read_without_a_wrong_call(ours):
    found = verdicts(ours, "formats")
    counts = Counter(verdict for verdict, _ in found.values())
    assert {id: said for id, said in found.items() if said[0] == "wrong"} == {}
    off = {id: said for id, said in found.items() if said[0] in ("refused", "missed")}
    assert counts["exact"] + counts["soft"] >= 0.99 * counts.total(), off
