"""Bars below each other, whole or in parts, with their names above them and their numbers at their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
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
    svg,
    text_of,
    title_of,
    unit_of,
)
from localagent_bench.results import Chart, Column, number, value_text

_NARROWEST = 250
"""Pixels of a chart on the smallest phone."""
_LINE = 31
"""Letters in a line of a name."""
_MOST_BARS = 120


@dataclass(frozen=True, slots=True, eq=False)
class _Bar:
    name: str
    value: float | None
    text: str
    colour: int


def draw_bars(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """Groups of bars below each other: one for each text of `x`."""
    groups: dict[str, list[_Bar]] = {}
    series: dict[str, int] = {}
    for row in rows:
        for column in y:
            names = [text_of(row, columns, chart.series)] if chart.series in columns else []
            names += [column.title] if len(y) > 1 else []
            name = ", ".join(names)
            value = number(row.get(column.key))
            text = "not measured" if value is None else value_text(row[column.key], column)
            bar = _Bar(name, value, text, series.setdefault(name, len(series)))
            head = text_of(row, columns, chart.x)
            if number(row.get(chart.x)) is not None:  # a number alone says too little
                head = f"{columns[chart.x].title}: {head}"
            groups.setdefault(head, []).append(bar)
    bars = [bar for group in groups.values() for bar in group]
    values = [bar.value for bar in bars if bar.value is not None]
    if not values or len(bars) > _MOST_BARS:
        return None
    least, most = min(0.0, *values), max(0.0, *values)
    # The longest number has to fit beside the longest bar, and above a bar that goes to the left.
    room = 100 - 100 * (max(len(bar.text) for bar in bars) * LETTER + 10) / _NARROWEST
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
    return Drawing("bars", title_of(chart, y), unit_of(y), in_words("Bars", told), picture.svg())


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


def draw_stack(
    chart: Chart, columns: Mapping[str, Column], y: list[Column], rows: Sequence[Row]
) -> Drawing | None:
    """A bar for each row, in parts. Each part is named with its number, since the smallest matter most."""
    totals = [sum(max(number(row.get(column.key)) or 0, 0) for column in y) for row in rows]
    if not rows or not max(totals) or len(rows) > _MOST_BARS:
        return None
    colours = _meanings(y)
    picture, told = _Picture(), []
    for row in rows:
        names = [text_of(row, columns, key) for key in (chart.x, chart.series) if key in columns]
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
    return Drawing("stack", title_of(chart, y), unit_of(y), in_words("Stacked bars", told), picture.svg())


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
            self._parts.append(element("text", line, kind, x="0", y=px(self.height - 4)))

    def bar(self, parts: Sequence[tuple[float, float, int]]) -> None:
        """A bar of one or more parts: where each begins and how long it is, in per cent, and its colour."""
        for at, length, colour in parts:
            box = {"x": per_cent(at), "y": px(self.height), "width": per_cent(length), "height": "14"}
            self._parts.append(element("rect", "", f"bar c{colour % COLOURS}", rx="2", **box))
        self._beside = self.height + 11.5
        self.height += 22

    def beside(self, at: float, text: str, kind: str) -> None:
        """A number at the end of the last bar."""
        place = {"x": per_cent(at), "y": px(self._beside)}
        self._parts.append(element("text", text, kind, dx="6", **place))

    def words(self, words: Sequence[tuple[str, int]]) -> None:
        """What the parts of the last bar are, each with a square of its colour."""
        lines: list[list[tuple[str, int]]] = [[]]
        for word in words:
            if lines[-1] and sum(len(text) + 3 for text, _ in (*lines[-1], word)) > _LINE + 7:
                lines.append([])
            lines[-1].append(word)
        for line in lines:
            self.height += 16
            shown = element("text", "", "parts", x="0", y=px(self.height - 8))
            for at, (text, colour) in enumerate(line):
                square = element("tspan", "\u25a0 ", f"square c{colour % COLOURS}")
                if at:
                    square.set("dx", "9")
                shown.extend([square, element("tspan", text, "")])
            self._parts.append(shown)
        self.height += 8

    def svg(self) -> str:
        """The element."""
        return svg("100%", self.height, self._parts)
