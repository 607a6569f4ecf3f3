"""Every table of the benchmarks as people see it: titles, units, decimals, charts; `python -m tests.bench.test_tables`
writes tables.txt anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localagent_bench.results import Table, value_text
from tests.bench.test_results import TABLES

KEPT = Path(__file__).with_name("tables.txt")


def told(table: Table) -> Iterator[str]:
    """A table in lines: what its rows have, with a figure as it is shown, and what is drawn of them."""
    yield f"{table.name}: {table.title}" + (f", compared within {table.within}" if table.within else "")
    for column in table.columns:
        better = f"{column.better} is better" if column.better else ""
        shown = value_text(1234.5678915, column)
        yield "  " + ", ".join(filter(None, [f"{column.key}: {column.title}", column.unit, better, shown]))
    for chart in table.charts:
        of = f", a {chart.series} each" if chart.series else ""
        log = ", logarithmic" if chart.log else ""
        yield f"  {chart.kind} of {', '.join(chart.y)} over {chart.x}{of}{log}: {chart.title}"


def all_told() -> str:
    return "".join(f"{line}\n" for name in sorted(TABLES) for line in told(TABLES[name]))


def test_tables_are_shown_as_ever() -> None:
    assert all_told().splitlines() == KEPT.read_text().splitlines()


if __name__ == "__main__":
    KEPT.write_text(all_told())
