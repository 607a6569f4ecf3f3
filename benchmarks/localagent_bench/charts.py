"""Charts of a table's rows: bars, stacked bars, lines.

`specify` describes in Vega-Lite what is drawn, and `draw` makes SVG of it. Colours are those of the page's
light palette; where it is dark, its style replaces them and that of the text. What is drawn is also put into
words, for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.wording import printable
from localagent_bench.results import Chart, Column, Table, best_cells, number, value_text

Row = Mapping[str, Any]
Spec = dict[str, Any]
PALETTE = ("#0069a8", "#c44f00", "#00815f", "#ad4585", "#8f6a00", "#6b7672", "#6a4fb3", "#a9b2ae")
"""`--k0` to `--k7` in report.html; further series have them again."""
_GRID = "#e7e5df"
_SHORT = "format(datum.value, abs(datum.value) >= 10000 ? '~s' : ',~r')"
"""A number beside an axis: 0.3, 1,000, 10k."""
_WIDTH = 400
_MOST_BARS = 120
_FEW = 8
"""Places along an axis of which each is marked."""
_MOST_WORDS = 60
"""Values in the words for a chart."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart. `svg` is harmless as it is: text in it is escaped, and nothing in it runs or is fetched."""

    title: str
    note: str
    """The unit, and what lies along the axes."""
    words: str
    """The same in words."""
    svg: str


def draw(table: Table, chart: Chart, rows: Sequence[Row]) -> Drawing | None:
    """One of a table's charts; None if there is nothing to draw."""
    spec = specify(table, chart, rows)
    if spec is None:
        return None
    import vl_convert

    columns = {column.key: column for column in table.columns}
    y = [columns[key] for key in chart.y if key in columns]
    return Drawing(
        chart.title or ", ".join(column.title for column in y),
        _note(chart, columns[chart.x], y),
        _words(chart.kind, spec["data"]["values"]),
        vl_convert.vegalite_to_svg(spec),
    )


def save(charts: Sequence[tuple[Table, Sequence[Row]]], path: Path) -> None:
    """All charts of some tables as one picture, two beside each other, with their titles."""
    import vl_convert

    kept = ("data", "encoding", "layer", "mark", "width", "height")
    panels, config = [], {}
    for table, rows in charts:
        for chart in table.charts:
            if (spec := specify(table, chart, rows)) is not None:
                config = spec["config"]
                panels.append({"title": chart.title} | {key: spec[key] for key in kept if key in spec})
    if panels:
        resolve = {"scale": {"color": "independent", "shape": "independent"}}
        together = {"concat": panels, "columns": 2, "resolve": resolve, "config": config}
        path.write_bytes(vl_convert.vegalite_to_png(together, scale=1.5))


def specify(table: Table, chart: Chart, rows: Sequence[Row]) -> Spec | None:
    """What is drawn, in Vega-Lite; its data has a value for each mark. None if there is nothing to draw."""
    columns = {column.key: column for column in table.columns}
    y = [columns[key] for key in chart.y if key in columns]
    if chart.x not in columns or not y:
        return None
    best = best_cells(table, rows)
    values = [
        {
            "name": _text(row, columns[chart.x]),
            "series": ", ".join(_text(row, columns[key]) for key in (chart.series,) if key in columns),
            "measure": printable(column.title),
            "x": number(row.get(chart.x)),
            "value": number(row.get(column.key)),
            "text": "not measured" if number(row.get(column.key)) is None else _text(row, column),
            "best": (place, column.key) in best,
        }
        for place, row in enumerate(rows)
        for column in y
    ]
    match chart.kind:
        case "bars":
            return _bars(values, columns[chart.x], several=len(y) > 1)
        case "stack":
            return _stack(values, y)
        case "lines":
            return _lines(values, chart, columns[chart.x], y)


def _bars(values: list[dict[str, Any]], x: Column, *, several: bool) -> Spec | None:
    """Bars below each other, in a group for each text of `x`."""
    measured = [value["value"] for value in values if value["value"] is not None]
    if not measured or len(values) > _MOST_BARS:
        return None
    for value in values:
        if value["x"] is not None:  # a number alone says too little
            value["name"] = f"{printable(x.title)}: {value['name']}"
        value["series"] = ", ".join(filter(None, [value["series"], value["measure"] if several else ""]))
        value["end"] = max(value["value"] or 0, 0)  # where its number is written
    least, most = min(0.0, *measured), max(0.0, *measured)
    # The number has to fit beside the longest bar.
    length = _length("value") | {"scale": {"domain": [least, most + (most - least) / 4]}}
    band = {"y": _names(values), "yOffset": {"field": "series", "sort": None}}
    bars = {
        "mark": {"type": "bar", "height": 14},
        "encoding": {"x": length, "color": _colours(values)},
    }
    weight = {"expr": "datum.best ? 'bold' : 'normal'"}
    numbers = {
        "mark": {"type": "text", "align": "left", "dx": 5, "fontWeight": weight},
        "encoding": {"x": {"field": "end", "type": "quantitative"}, "text": {"field": "text"}},
    }
    return _spec(values, encoding=band, layer=[bars, numbers], height={"step": 20, "for": "offset"})


def _stack(values: list[dict[str, Any]], y: Sequence[Column]) -> Spec | None:
    """A bar for each row, in parts. Each part is named with its number, since the smallest matter most."""
    rows = [values[start : start + len(y)] for start in range(0, len(values), len(y))]
    if not any(value["value"] and value["value"] > 0 for value in values) or len(rows) > _MOST_BARS:
        return None
    for place, parts in enumerate(rows):
        name = ", ".join(filter(None, [parts[0]["name"], parts[0]["series"]]))
        words = ", ".join(
            f"{part['text'] if part['value'] is not None else '-'} {part['measure']}" for part in parts
        )
        for order, part in enumerate(parts):
            # The place tells rows of one name apart; the axis shows what follows it.
            part |= {"name": f"{place} {name}", "words": words, "order": order, "series": part["measure"]}
            part["value"] = max(part["value"] or 0, 0)
    band = _names(values)
    band["axis"]["labelExpr"] = "slice(datum.label, indexof(datum.label, ' '))"
    colours = {"domain": [printable(column.title) for column in y], "range": _meanings(y)}
    bars = {
        "mark": {"type": "bar", "height": 14, "yOffset": -8},
        "encoding": {
            "x": {**_length("value"), "stack": "zero"},
            "color": {**_colours(values), "scale": colours},
            "order": {"field": "order"},
        },
    }
    words_below = {
        "transform": [{"filter": "datum.order == 0"}],
        "mark": {"type": "text", "align": "left", "dy": 8, "x": 0},
        "encoding": {"text": {"field": "words"}},
    }
    return _spec(values, encoding={"y": band}, layer=[bars, words_below], height={"step": 38})


def _lines(values: list[dict[str, Any]], chart: Chart, x: Column, y: Sequence[Column]) -> Spec | None:
    """Lines over numbers, whose marks differ as their colours do."""
    for value in values:
        value["series"] = ", ".join(filter(None, [value["series"], value["measure"] if len(y) > 1 else ""]))
    least = 0.0 if chart.log else float("-inf")
    values = [
        value
        for value in values
        if None not in (value["x"], value["value"]) and min(value["x"], value["value"]) > least
    ]
    if not values:
        return None
    order = [*dict.fromkeys(value["series"] for value in values)]
    values.sort(key=lambda value: (order.index(value["series"]), value["x"]))
    colours = _colours(values)
    places = sorted({value["x"] for value in values})
    scale: Spec = {"type": "log"} if chart.log else {}
    encoding = {
        "x": {
            "field": "x",
            "type": "quantitative",
            "title": _titled(x),
            "scale": scale or {"zero": False},
            "axis": {"values": places} if len(places) <= _FEW else {},
        },
        "y": {"field": "value", "type": "quantitative", "title": None, "scale": scale},
        "color": colours,
        "shape": {**colours, "scale": {"domain": colours["scale"]["domain"]}},
    }
    mark = {"type": "line", "point": {"size": 45, "filled": True}}
    return _spec(values, encoding=encoding, mark=mark, height=230)


def _spec(values: list[dict[str, Any]], **rest: Any) -> Spec:
    axis = {"labelLimit": 140, "gridColor": _GRID, "domainColor": _GRID, "tickColor": _GRID}
    return {
        "data": {"values": values},
        "width": _WIDTH,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 16, "right": 5, "top": 5, "bottom": 5},  # the reader's font may be a wider one
        "background": None,
        "config": {
            # The page has the words; here titles would become expressions, which read `\\x1b` as a character.
            "aria": False,
            "font": "Arial, Liberation Sans, sans-serif",
            "view": {"stroke": None},
            "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", **axis},
            "axisQuantitative": {"tickCount": 6, "labelOverlap": True, "labelExpr": _SHORT},
            "legend": {"labelFontSize": 12, "labelLimit": 240},
            "text": {"fontSize": 12},
        },
        **rest,
    }


def _names(values: Sequence[Row]) -> Spec:
    names = list(dict.fromkeys(value["name"] for value in values))
    axis = {"ticks": False, "domain": False, "labelPadding": 6}
    return {"field": "name", "type": "nominal", "sort": names, "title": None, "axis": axis}


def _length(field: str) -> Spec:
    return {"field": field, "type": "quantitative", "axis": None}


def _colours(values: Sequence[Row]) -> Spec:
    """A colour for each series, with a legend where there are several."""
    names = list(dict.fromkeys(value["series"] for value in values))
    legend = {"title": None, "orient": "bottom", "columns": 1} if len(names) > 1 else None
    colours = [PALETTE[place % len(PALETTE)] for place in range(len(names))]
    return {"field": "series", "sort": None, "legend": legend, "scale": {"domain": names, "range": colours}}


def _meanings(y: Sequence[Column]) -> list[str]:
    """Colours that say what is good and what is not: blue and green; the last of what is bad is orange; grey
    for neither.
    """
    free = {"more": [0, 2, 6], "less": [1, 3, 4], "": [5, 7, 6]}
    colours: dict[str, int] = {}
    for column in (*(column for column in y if column.better != "less"), *reversed(y)):
        if column.key not in colours:
            colours[column.key] = free[column.better].pop(0) if free[column.better] else 7
    return [PALETTE[colours[column.key]] for column in y]


def _text(row: Row, column: Column) -> str:
    return printable(value_text(row.get(column.key), column))


def _titled(column: Column) -> str:
    return printable(column.title + (f" ({column.unit})" if column.unit else ""))


def _note(chart: Chart, x: Column, y: Sequence[Column]) -> str:
    """The units of what is drawn, which values are better, and what lies along the axes."""
    notes = [*dict.fromkeys(column.unit for column in y if column.unit)]
    better = {column.better for column in y}
    if len(better) == 1 and better != {""}:
        notes.append(f"{better.pop()} is better")
    if chart.kind == "lines":
        notes.append(f"over {x.title}" + (f" ({x.unit})" if x.unit else ""))
        if chart.log:
            notes.append("both axes logarithmic")
    return ", ".join(notes)


def _words(kind: str, values: Sequence[Row]) -> str:
    """What a chart shows, for those who cannot see it."""
    if kind == "stack":
        firsts = [value for value in values if value["order"] == 0]
        every = [f"{value['name'].partition(' ')[2]}: {value['words']}" for value in firsts]
    elif kind == "bars":
        every = [": ".join([value["name"], f"{value['series']} {value['text']}".strip()]) for value in values]
    else:
        every = [
            f"{value['series'] or value['measure']} at {value['name']}: {value['text']}" for value in values
        ]
    more = f"; and {len(every) - _MOST_WORDS} more" if len(every) > _MOST_WORDS else ""
    titles = {"bars": "Bars", "stack": "Stacked bars", "lines": "Lines"}
    return f"{titles[kind]}. {'; '.join(every[:_MOST_WORDS])}{more}"
