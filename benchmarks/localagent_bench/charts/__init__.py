"""Charts of a table's rows as inline SVG: bars, stacked bars, lines.

Only the places along the width are in per cent, everything else is in pixels: a chart is as wide as its box,
and its text as large on a phone as on a screen. Colours are classes, which the page gives a light and a dark
value; shapes and names say the same as colours. The names of bars stand above them, those of lines at their
ends. What is drawn is told in words as well, for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Sequence

from localagent_bench.charts.bars import draw_bars, draw_stack
from localagent_bench.charts.drawing import Drawing, Row
from localagent_bench.charts.lines import draw_lines
from localagent_bench.results import Chart, Table


def draw(table: Table, chart: Chart, rows: Sequence[Row]) -> Drawing | None:
    """One of a table's charts; None if there is nothing to draw."""
    columns = {column.key: column for column in table.columns}
    y = [columns[key] for key in chart.y if key in columns]
    if chart.x not in columns or not y:
        return None
    match chart.kind:
        case "bars":
            return draw_bars(chart, columns, y, rows)
        case "stack":
            return draw_stack(chart, columns, y, rows)
        case "lines":
            return draw_lines(chart, columns, y, rows)
