"""Lines over numbers, on plain or logarithmic axes, with their names and last values at their ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

from localagent_bench.charts.drawing import (
    COLOURS,
    LETTER,
    Drawing,
    Row,
    element,
    in_words,
    per_cent,
    px,
    short,
    svg,
    text_of,
    title_of,
    unit_of,
)
from localagent_bench.results import Chart, Column, number, value_text

_MARKS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "M-4,-4h8v8h-8z",
    "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "M0,-5L5,4H-5z",
    "M0,5L5,-4H-5z",
    "M-5,-1.6h3.4v-3.4h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4z",
)


@dataclass(slots=True)
class _Axis:
    """Where values lie between 0 and 1."""

    ticks: list[float]
    least: float
    most: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], log: bool, ticks: Sequence[float] = ()) -> _Axis:
        """An axis for the values. `ticks`: where it is to be marked, if not at round numbers."""
        least, most = min(values), max(values)
        if log:
            first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
            steps = (1, 2, 5) if last - first < 3 else (1,)
            powers = range(first, last + 1, max(1, (last - first) // 8))
            found = [step * 10.0**power for power in powers for step in steps]
            # The marks next to the values, on either side, are the ends.
            least = max((tick for tick in found if tick <= least), default=least)
            most = min((tick for tick in found if tick >= most), default=most)
            return cls(list(ticks) or [t for t in found if least <= t <= most], least, most, log)
        least = min(least, 0.0)
        step = _round_step((most - least) / 4)
        first, last = math.floor(least / step), math.ceil(most / step)
        found = [each * step for each in range(first, last + 1)]
        return cls(list(ticks) or found, found[0], found[-1], log)

    def place(self, value: float) -> float:
        """Where a value lies."""
        if self.log:
            least = math.log(self.least)  # quotients of such numbers may be infinite
            whole = math.log(self.most) - least
            return (math.log(value) - least) / whole if whole else 0.5
        return (value - self.least) / ((self.most - self.least) or 1)


def _round_step(rough: float) -> float:
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * step for step in (1, 2, 2.5, 5) if power * step >= rough * 0.999), power * 10)


@dataclass(slots=True)
class _Line:
    name: str
    points: list[tuple[float, float, str]]
    """`x`, `y`, and the text of `y`."""


def draw_lines(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """Lines over numbers, between the marks of the axis at the left and their names at the right."""
    lines: dict[str, _Line] = {}
    for column in y:
        for row in rows:
            names = [text_of(row, columns, chart.series)] if chart.series in columns else []
            name = ", ".join([*names, *([column.title] if len(y) > 1 else [])])
            x, value = number(row.get(chart.x)), number(row.get(column.key))
            if x is not None and value is not None and (not chart.log or min(x, value) > 0):
                text = value_text(row[column.key], column)
                lines.setdefault(name, _Line(name, [])).points.append((x, value, text))
    for line in lines.values():
        line.points.sort(key=lambda point: point[0])
    points = [point for line in lines.values() for point in line.points]
    if not points:
        return None
    wheres = sorted({point[0] for point in points})
    height = max(200.0, 18.0 * len(lines) + 20)
    up = _Axis.over([point[1] for point in points], chart.log)
    across = _Axis.over(wheres, chart.log, wheres if len(wheres) <= 8 else ())
    if not chart.log:
        across.least, across.most = (wheres[0], wheres[-1]) if len(wheres) > 1 else (0.0, wheres[0] or 1.0)
        across.ticks = [tick for tick in across.ticks if across.least <= tick <= across.most]
    parts = [_marks(up, height), _plot(list(lines.values()), across, up, height)]
    key = ""
    if named := [line for line in lines.values() if line.name]:
        named.sort(key=lambda line: line.points[-1][1], reverse=True)  # as they are at the right
        parts.append(_ends(named, [*lines], up, height))
        key = "".join(_key(line, [*lines].index(line.name)) for line in named)
    over = columns[chart.x]
    unit = f" ({over.unit})" if over.unit else ""
    note = ", ".join(filter(None, [unit_of(y), f"over {over.title}{unit}"]))
    if chart.log:
        note += ", both axes logarithmic"
    told = (
        f"{line.name or y[0].title} at {short(point[0])}: {point[2]}"
        for line in lines.values()
        for point in line.points
    )
    return Drawing("lines", title_of(chart, y), note, in_words("Lines", told), "".join(parts), key)


_TOP, _BOTTOM = 12.0, 26.0


def _down(axis: _Axis, value: float, height: float) -> float:
    return _TOP + (1 - axis.place(value)) * height


def _aside(axis: _Axis, value: float) -> float:
    """Per cent of the plot's width, which has a margin for the marks."""
    return 4 + 92 * axis.place(value)


def _marks(up: _Axis, height: float) -> str:
    width = max(len(short(tick)) for tick in up.ticks) * LETTER + 4
    texts = [
        element("text", short(tick), "tick end", x=px(width - 2), y=px(_down(up, tick, height) + 4))
        for tick in up.ticks
    ]
    return svg(px(width), height + _TOP + _BOTTOM, texts)


def _plot(lines: Sequence[_Line], across: _Axis, up: _Axis, height: float) -> str:
    parts = [
        element("line", "", "grid", x1="0", x2="100%", y1=px(at), y2=px(at))
        for at in (_down(up, tick, height) for tick in up.ticks)
    ]
    before = -math.inf
    for tick in across.ticks:
        at = _aside(across, tick)
        parts.append(
            element("line", "", "grid", x1=per_cent(at), x2=per_cent(at), y1=px(_TOP), y2=px(height + _TOP))
        )
        if at - before >= 4 + 4 * len(short(tick)):  # of the narrowest plot
            where = {"x": per_cent(at), "y": px(height + _TOP + 18)}
            kind = "middle"
            if at > 90:  # the plot ends soon after
                kind, where["dx"] = "end", "8"
            parts.append(element("text", short(tick), f"tick {kind}", **where))
            before = at
    for order, line in enumerate(lines):
        colour = f"c{order % COLOURS}"
        places = [(_aside(across, x), _down(up, y, height)) for x, y, _ in line.points]
        for (x1, y1), (x2, y2) in pairwise(places):
            ends = {"x1": per_cent(x1), "y1": px(y1), "x2": per_cent(x2), "y2": px(y2)}
            parts.append(element("line", "", f"line {colour}", **ends))
        for (x, y), point in zip(places, line.points, strict=True):
            # A path knows no per cent: it stands in an element that does.
            place = element("svg", "", "place", x=per_cent(x), y=px(y), overflow="visible")
            mark = element("path", "", f"mark {colour}", d=_MARKS[order % len(_MARKS)])
            mark.append(element("title", f"{line.name} at {short(point[0])}: {point[2]}".strip(), ""))
            place.append(mark)
            parts.append(place)
    return svg("100%", height + _TOP + _BOTTOM, parts, "plot")


def _ends(named: Sequence[_Line], order: Sequence[str], up: _Axis, height: float) -> str:
    """The names, each beside the end of its line or as near to that as the others allow."""
    texts = {line.name: f"{line.name} {line.points[-1][2]}".strip() for line in named}
    most = min(max(map(len, texts.values())), 28)
    lowest = height + _TOP + 4
    wanted = [(_down(up, line.points[-1][1], height) + 4, line) for line in named]
    places: list[float] = []
    for at, _ in wanted:
        places.append(max(at, places[-1] + 17 if places else _TOP))
    for number_, at in reversed([*enumerate(places)]):
        bound = lowest - 17 * (len(places) - 1 - number_)
        places[number_] = min(at, bound)
    parts = []
    for (_, line), at in zip(wanted, places, strict=True):
        name, value = line.name, line.points[-1][2]
        if len(name) + len(value) + 1 > most:
            name = f"{name[: max(most - len(value) - 2, 3)]}\u2026"
        where = order.index(line.name)
        place = element("svg", "", "place", x="8", y=px(at - 4), overflow="visible")
        place.append(element("path", "", f"mark c{where % COLOURS}", d=_MARKS[where % len(_MARKS)]))
        text = element("text", f"{name} ", "end-name", x="17", y=px(at))
        text.append(element("tspan", value, "best"))
        text.append(element("title", texts[line.name], ""))
        parts += [place, text]
    return svg(
        px(most * LETTER + 24 + 2 * max(len(line.points[-1][2]) for line in named)),
        height + _TOP + _BOTTOM,
        parts,
        "ends",
    )


def _key(line: _Line, order: int) -> str:
    """A line's mark, name and last value, in a paragraph below the chart."""
    place = element("svg", "", "", x="7", y="7", overflow="visible")
    place.append(element("path", "", f"mark c{order % COLOURS}", d=_MARKS[order % len(_MARKS)]))
    words = element("p", "", "")
    words.append(element("svg", "", "", width="14", height="14"))
    words[0].append(place)
    words.append(element("span", f"{line.name} ", ""))
    words.append(element("b", line.points[-1][2], ""))
    return ElementTree.tostring(words, encoding="unicode", method="html")
