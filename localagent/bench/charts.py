"""Charts of a table's rows as inline SVG: bars, stacked bars, lines.

Only the places along the width are in per cent, everything else is in pixels: a chart is as wide as its box,
and its text as large on a phone as on a screen. Colours are classes, which the page gives a light and a dark
value; shapes and names say the same as colours. The names of bars stand above them, those of lines at their
ends. What is drawn is told in words as well, for those who cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import wrap
from typing import Any
from xml.etree import ElementTree

from localagent.bench.results import Chart, Column, Table, number, value_text
from localagent.wording import printable

Row = Mapping[str, Any]
COLOURS = 8
"""How many the page has; further series have them again."""
_NARROWEST = 250
"""Pixels of a chart on the smallest phone."""
_LETTER = 7.2
"""Pixels of a letter, more or less."""
_LINE = 31
"""Letters in a line of a name."""
_MOST_BARS = 120
_MOST_TOLD = 60
"""Values in the words for a chart."""
_MARKS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "M-4,-4h8v8h-8z",
    "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "M0,-5L5,4H-5z",
    "M0,5L5,-4H-5z",
    "M-5,-1.6h3.4v-3.4h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4z",
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart. `svg`: the elements beside each other, which are harmless as they are; so is `key`."""

    kind: str
    title: str
    note: str
    """The unit, and what lies along the axes."""
    told: str
    """The same in words."""
    svg: str
    key: str = ""
    """The names of lines, for where there is no room at their ends."""


def draw(table: Table, chart: Chart, rows: Sequence[Row]) -> Drawing | None:
    """One of a table's charts; None if there is nothing to draw."""
    columns = {column.key: column for column in table.columns}
    y = [columns[key] for key in chart.y if key in columns]
    if chart.x not in columns or not y:
        return None
    match chart.kind:
        case "bars":
            return _bars(chart, columns, y, rows)
        case "stack":
            return _stack(chart, columns, y, rows)
        case "lines":
            return _lines(chart, columns, y, rows)


# -- bars -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    value: float | None
    text: str
    colour: int


def _bars(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """Groups of bars below each other: one for each text of `x`."""
    groups: dict[str, list[_Bar]] = {}
    series: dict[str, int] = {}
    for row in rows:
        for column in y:
            names = [_text(row, columns, chart.series)] if chart.series in columns else []
            names += [column.title] if len(y) > 1 else []
            name = ", ".join(names)
            value = number(row.get(column.key))
            text = "not measured" if value is None else value_text(row[column.key], column)
            bar = _Bar(name, value, text, series.setdefault(name, len(series)))
            head = _text(row, columns, chart.x)
            if number(row.get(chart.x)) is not None:  # a number alone says too little
                head = f"{columns[chart.x].title}: {head}"
            groups.setdefault(head, []).append(bar)
    bars = [bar for group in groups.values() for bar in group]
    values = [bar.value for bar in bars if bar.value is not None]
    if not values or len(bars) > _MOST_BARS:
        return None
    least, most = min(0.0, *values), max(0.0, *values)
    # The longest number has to fit beside the longest bar, and above a bar that goes to the left.
    room = 100 - 100 * (max(len(bar.text) for bar in bars) * _LETTER + 10) / _NARROWEST
    scale = max(room, 30) / ((most - least) or 1)
    zero = -least * scale
    picture = _Picture()
    alone = all(len(group) == 1 for group in groups.values())
    best = {bar for group in _compared(groups, alone) for bar in _best(group, y)}
    for name, group in groups.items():
        if not alone:
            picture.text(name, "head", gap=6)
        for bar in group:
            picture.text(name if alone else bar.name, "name")
            length = (bar.value or 0) * scale
            picture.bar([(zero + min(0.0, length), abs(length), bar.colour)])
            picture.beside(zero + max(0.0, length), bar.text, "best" if bar in best else "value")
    told = (f"{name}: {_named(bar)}" for name, group in groups.items() for bar in group)
    return Drawing("bars", _title(chart, y), _unit(y), _told("Bars", told), picture.svg())


def _compared(groups: Mapping[str, list[_Bar]], alone: bool) -> Iterable[list[_Bar]]:
    """The bars among which there is a best one."""
    return [[bar for group in groups.values() for bar in group]] if alone else groups.values()


def _best(bars: list[_Bar], y: list[Column]) -> list[_Bar]:
    values = [bar.value for bar in bars if bar.value is not None]
    if len(y) > 1 or not y[0].better or len(set(values)) < 2:
        return []
    best = max(values) if y[0].better == "more" else min(values)
    return [bar for bar in bars if bar.value == best]


def _named(bar: _Bar) -> str:
    return f"{bar.name} {bar.text}".strip()


def _stack(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """A bar for each row, in parts. Each part is named with its number, since the smallest matter most."""
    totals = [sum(max(number(row.get(column.key)) or 0, 0) for column in y) for row in rows]
    if not rows or not max(totals) or len(rows) > _MOST_BARS:
        return None
    colours = _meanings(y)
    picture, told = _Picture(), []
    for row in rows:
        names = [_text(row, columns, key) for key in (chart.x, chart.series) if key in columns]
        picture.text(", ".join(names), "name")
        at, parts, words = 0.0, [], []
        for column, colour in zip(y, colours, strict=True):
            share = 100 * max(number(row.get(column.key)) or 0, 0) / max(totals)
            parts.append((at, share, colour))
            at += share
            words.append((f"{value_text(row.get(column.key), column) or '-'} {column.title}", colour))
        picture.bar(parts)
        picture.words(words)
        told.append(f"{', '.join(names)}: {', '.join(word for word, _ in words)}")
    return Drawing("stack", _title(chart, y), _unit(y), _told("Stacked bars", told), picture.svg())


def _meanings(y: Sequence[Column]) -> list[int]:
    """Colours that say what is good and what is not: blue and green; the last of what is bad is orange; grey
    for neither.
    """
    free = {"more": [0, 2, 6], "less": [1, 3, 4], "": [5, 7, 6]}
    colours = {}
    for column in (*(each for each in y if each.better != "less"), *reversed(y)):
        if column.key not in colours:
            left = free[column.better]
            colours[column.key] = left.pop(0) if left else 7
    return [colours[column.key] for column in y]


@dataclass(slots=True)
class _Picture:
    """Bars and words below each other."""

    height: float = 2
    _parts: list[ElementTree.Element] = field(default_factory=list)
    _beside: float = 0

    def text(self, text: str, kind: str, gap: float = 0) -> None:
        """A name, in up to two lines."""
        self.height += gap if self._parts else 0
        for line in wrap(text, _LINE, max_lines=2, placeholder="\u2026") if text else ():
            self.height += 17
            self._parts.append(_element("text", line, kind, x="0", y=_px(self.height - 4)))

    def bar(self, parts: Sequence[tuple[float, float, int]]) -> None:
        """A bar of one or more parts: where each begins and how long it is, in per cent, and its colour."""
        for at, length, colour in parts:
            box = {"x": _per_cent(at), "y": _px(self.height), "width": _per_cent(length), "height": "14"}
            self._parts.append(_element("rect", "", f"bar c{colour % COLOURS}", rx="2", **box))
        self._beside = self.height + 11.5
        self.height += 22

    def beside(self, at: float, text: str, kind: str) -> None:
        """A number at the end of the last bar."""
        place = {"x": _per_cent(at), "y": _px(self._beside)}
        self._parts.append(_element("text", text, kind, dx="6", **place))

    def words(self, words: Sequence[tuple[str, int]]) -> None:
        """What the parts of the last bar are, each with a square of its colour."""
        lines: list[list[tuple[str, int]]] = [[]]
        for word in words:
            if lines[-1] and sum(len(text) + 3 for text, _ in (*lines[-1], word)) > _LINE + 7:
                lines.append([])
            lines[-1].append(word)
        for line in lines:
            self.height += 16
            shown = _element("text", "", "parts", x="0", y=_px(self.height - 8))
            for at, (text, colour) in enumerate(line):
                square = _element("tspan", "\u25a0 ", f"square c{colour % COLOURS}")
                if at:
                    square.set("dx", "9")
                shown.extend([square, _element("tspan", text, "")])
            self._parts.append(shown)
        self.height += 8

    def svg(self) -> str:
        """The element."""
        return _svg("100%", self.height, self._parts)


# -- lines ------------------------------------------------------------------------------------------------


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


def _lines(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """Lines over numbers, between the marks of the axis at the left and their names at the right."""
    lines: dict[str, _Line] = {}
    for column in y:
        for row in rows:
            names = [_text(row, columns, chart.series)] if chart.series in columns else []
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
    svg = [_marks(up, height), _plot(list(lines.values()), across, up, height)]
    key = ""
    if named := [line for line in lines.values() if line.name]:
        named.sort(key=lambda line: line.points[-1][1], reverse=True)  # as they are at the right
        svg.append(_ends(named, [*lines], up, height))
        key = "".join(_key(line, [*lines].index(line.name)) for line in named)
    over = columns[chart.x]
    unit = f" ({over.unit})" if over.unit else ""
    note = ", ".join(filter(None, [_unit(y), f"over {over.title}{unit}"]))
    if chart.log:
        note += ", both axes logarithmic"
    told = (
        f"{line.name or y[0].title} at {_short(point[0])}: {point[2]}"
        for line in lines.values()
        for point in line.points
    )
    return Drawing("lines", _title(chart, y), note, _told("Lines", told), "".join(svg), key)


_TOP, _BOTTOM = 12.0, 26.0


def _down(axis: _Axis, value: float, height: float) -> float:
    return _TOP + (1 - axis.place(value)) * height


def _aside(axis: _Axis, value: float) -> float:
    """Per cent of the plot's width, which has a margin for the marks."""
    return 4 + 92 * axis.place(value)


def _marks(up: _Axis, height: float) -> str:
    width = max(len(_short(tick)) for tick in up.ticks) * _LETTER + 4
    texts = [
        _element("text", _short(tick), "tick end", x=_px(width - 2), y=_px(_down(up, tick, height) + 4))
        for tick in up.ticks
    ]
    return _svg(_px(width), height + _TOP + _BOTTOM, texts)


def _plot(lines: Sequence[_Line], across: _Axis, up: _Axis, height: float) -> str:
    parts = [
        _element("line", "", "grid", x1="0", x2="100%", y1=_px(at), y2=_px(at))
        for at in (_down(up, tick, height) for tick in up.ticks)
    ]
    before = -100.0
    for tick in across.ticks:
        at = _aside(across, tick)
        parts.append(
            _element(
                "line", "", "grid", x1=_per_cent(at), x2=_per_cent(at), y1=_px(_TOP), y2=_px(height + _TOP)
            )
        )
        if at - before >= 4 + 4 * len(_short(tick)):  # of the narrowest plot
            where = {"x": _per_cent(at), "y": _px(height + _TOP + 18)}
            kind = "middle"
            if at > 90:  # the plot ends soon after
                kind, where["dx"] = "end", "8"
            parts.append(_element("text", _short(tick), f"tick {kind}", **where))
            before = at
    for order, line in enumerate(lines):
        colour = f"c{order % COLOURS}"
        places = [(_aside(across, x), _down(up, y, height)) for x, y, _ in line.points]
        for (x1, y1), (x2, y2) in pairwise(places):
            ends = {"x1": _per_cent(x1), "y1": _px(y1), "x2": _per_cent(x2), "y2": _px(y2)}
            parts.append(_element("line", "", f"line {colour}", **ends))
        for (x, y), point in zip(places, line.points, strict=True):
            # A path knows no per cent: it stands in an element that does.
            place = _element("svg", "", "place", x=_per_cent(x), y=_px(y), overflow="visible")
            mark = _element("path", "", f"mark {colour}", d=_MARKS[order % len(_MARKS)])
            mark.append(_element("title", f"{line.name} at {_short(point[0])}: {point[2]}".strip(), ""))
            place.append(mark)
            parts.append(place)
    return _svg("100%", height + _TOP + _BOTTOM, parts, "plot")


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
        place = _element("svg", "", "place", x="8", y=_px(at - 4), overflow="visible")
        place.append(_element("path", "", f"mark c{where % COLOURS}", d=_MARKS[where % len(_MARKS)]))
        text = _element("text", f"{name} ", "end-name", x="17", y=_px(at))
        text.append(_element("tspan", value, "best"))
        text.append(_element("title", texts[line.name], ""))
        parts += [place, text]
    return _svg(
        _px(most * _LETTER + 24 + 2 * max(len(line.points[-1][2]) for line in named)),
        height + _TOP + _BOTTOM,
        parts,
        "ends",
    )


def _key(line: _Line, order: int) -> str:
    """A line's mark, name and last value, in a paragraph below the chart."""
    place = _element("svg", "", "", x="7", y="7", overflow="visible")
    place.append(_element("path", "", f"mark c{order % COLOURS}", d=_MARKS[order % len(_MARKS)]))
    words = _element("p", "", "")
    words.append(_element("svg", "", "", width="14", height="14"))
    words[0].append(place)
    words.append(_element("span", f"{line.name} ", ""))
    words.append(_element("b", line.points[-1][2], ""))
    return ElementTree.tostring(words, encoding="unicode", method="html")


# -- words and elements -----------------------------------------------------------------------------------


def _text(row: Row, columns: Mapping[str, Column], key: str) -> str:
    return printable(value_text(row.get(key), columns[key]))


def _title(chart: Chart, y: Sequence[Column]) -> str:
    return chart.title or ", ".join(column.title for column in y)


def _unit(y: Sequence[Column]) -> str:
    units = dict.fromkeys(column.unit for column in y if column.unit)
    better = {column.better for column in y}
    words = {"more": "more is better", "less": "less is better"}
    said = words.get(better.pop(), "") if len(better) == 1 else ""
    return ", ".join(filter(None, [*units, said]))


def _told(what: str, values: Iterable[str]) -> str:
    every = list(values)
    more = f"; and {len(every) - _MOST_TOLD} more" if len(every) > _MOST_TOLD else ""
    return f"{what}. {'; '.join(every[:_MOST_TOLD])}{more}"


def _short(value: float) -> str:
    """A number beside an axis."""
    size = abs(value)
    for bound, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= bound:
            return f"{value / (1000 if letter == 'k' else bound):.4g}{letter}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def _px(value: float) -> str:
    return f"{value:.1f}"


def _per_cent(value: float) -> str:
    return f"{value:.2f}%"


def _element(name: str, text: str, kind: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(name, {"class": kind, **attributes} if kind else attributes)
    element.text = printable(text) or None
    return element


def _svg(width: str, height: float, parts: Sequence[ElementTree.Element], kind: str = "") -> str:
    # What it shows is said in words by the box around it.
    root = _element("svg", "", kind, width=width, height=_px(height))
    root.set("aria-hidden", "true")
    root.extend(parts)
    return ElementTree.tostring(root, encoding="unicode")
