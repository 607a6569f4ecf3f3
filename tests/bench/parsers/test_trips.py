"""What is counted of calls that are read back, and which wrong readings go into the results."""

from __future__ import annotations

import pytest

from localagent_bench.parsers.children import Child
from localagent_bench.parsers.corpora import AskedCalls
from localagent_bench.parsers.faults import FURTHER
from localagent_bench.parsers.injected import inject
from localagent_bench.parsers.outputs import CUTS, FAULTS, Output, rendered
from localagent_bench.parsers.trips import read_back
from localagent_bench.results import Results

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in "fg"]
WRONG = 'for asked in lines(): answer(asked, tool_calls=[{"name": "h", "arguments": {}}])'
MOST = 20
"""Wrong readings of a parser that are told, unless all are asked for."""
SLOW_START = 20.0


def outputs(count: int) -> list[Output]:
    tasks = [AskedCalls(f"t{at}", TOOLS, [("f", {"a": at})]) for at in range(count)]
    return [output for output in rendered("hermes", tasks) if output.how == "json"]


def gone(parser: Child, why: str) -> None:
    pytest.fail(f"{parser.name}: {why}")


@pytest.mark.parametrize(("show", "told"), [(False, MOST), (True, MOST + 3)])
def test_the_first_wrong_readings_are_told_and_all_of_them_when_asked_for(program, show, told):
    results = Results("parsers", {})
    written = [("localagent", output) for output in outputs(MOST + 3)]
    read_back(results, [program(WRONG, SLOW_START)], written, 1, gone, show=show)
    assert [case["id"] for case in results.run.cases] == [output.id for _, output in written[:told]]
    assert {(case["table"], case["parser"], case["outcome"]) for case in results.run.cases} == {
        ("parsers.trips", "program", "wrong")
    }
    assert results.run.cases[0]["read"] == "[('h', {})]"
    assert results.run.cases[0]["right"] == "[('f', {'a': 0})]"


@pytest.mark.parametrize("show", [False, True])
def test_the_same_holds_for_outputs_with_a_fault(program, show):
    results = Results("parsers", {})
    draft = AskedCalls("o", TOOLS, [("g", {"a": 1})])
    inject(results, [program(WRONG, SLOW_START)], outputs(6), [draft], 1, gone, show=show)
    rows = results.run.rows["parsers.faults"]
    assert [row["set"] for row in rows] == ["one", "further"]
    for row, faults in zip(rows, (FAULTS, FURTHER), strict=True):
        assert (row["wrong"], row["streamed"], row["known"]) == (100, 100, 100)
        assert (row["against"], row["known_against"]) == (100, 100), "no tool is called h"
        assert MOST < row["outputs"] <= 6 * len(faults)
    assert len(results.run.cases) == (sum(row["outputs"] for row in rows) if show else 2 * MOST)
    assert results.run.cases[0]["outcome"] == "lost: wrong, against the tools"


def test_what_is_read_of_the_whole_and_of_pieces_is_counted_apart(program):
    """This one reads the whole, and of pieces those of tokens alone, which it knows by their markers."""
    reads = program(
        "for asked in lines():\n"
        "    pieces = asked.get('chunks') or [asked['text']]\n"
        "    number = int(''.join(filter(str.isdigit, ''.join(pieces))))\n"
        "    reads = 'text' in asked or '<tool_call>' in pieces\n"
        "    answer(asked, tool_calls=[{'name': 'f', 'arguments': {'a': number}}] * reads)",
        SLOW_START,
    )
    results = Results("parsers", {})
    read_back(results, [reads], [("localagent", output) for output in outputs(4)], 1, gone)
    (row,) = results.run.rows["parsers.trips"]
    assert (row["outputs"], row["right"], row["refused"], row["wrong"]) == (4, 100, 0, 0)
    assert row["tokens"] == 100
    assert row["streamed"] == row["equal"] == pytest.approx(100 / len(CUTS))
    assert results.run.cases == []
