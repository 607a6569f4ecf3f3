"""What all charts are made of: elements of SVG, numbers and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from localagent.wording import printable
from localagent_bench.results import Chart, Column, value_text

Row = Mapping[str, Any]
COLOURS = 8
"""How many the page has; further series have them again."""
LETTER = 7.2
"""Pixels of a letter, more or less."""
_MOST_TOLD = 60
"""Values in the words for a chart."""


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


# -- words -------------------------------------------------------------------------------------------------


def text_of(row: Row, columns: Mapping[str, Column], key: str) -> str:
    """A value of a row, as it is shown."""
    return printable(value_text(row.get(key), columns[key]))


def title_of(chart: Chart, y: Sequence[Column]) -> str:
    """What stands above a chart."""
    return chart.title or ", ".join(column.title for column in y)


def unit_of(y: Sequence[Column]) -> str:
    """The units of what is drawn, and which values are better."""
    units = dict.fromkeys(column.unit for column in y if column.unit)
    better = {column.better for column in y}
    words = {"more": "more is better", "less": "less is better"}
    said = words.get(better.pop(), "") if len(better) == 1 else ""
    return ", ".join(filter(None, [*units, said]))


def in_words(what: str, values: Iterable[str]) -> str:
    """What a chart shows, for those who cannot see it."""
    every = list(values)
    more = f"; and {len(every) - _MOST_TOLD} more" if len(every) > _MOST_TOLD else ""
    return f"{what}. {'; '.join(every[:_MOST_TOLD])}{more}"


def short(value: float) -> str:
    """A number beside an axis."""
    size = abs(value)
    for bound, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= bound:
            return f"{value / (1000 if letter == 'k' else bound):.4g}{letter}"
    return f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"


# -- elements ----------------------------------------------------------------------------------------------


def px(value: float) -> str:
    """A length in pixels."""
    return f"{value:.1f}"


def per_cent(value: float) -> str:
    """A length along the width."""
    return f"{value:.2f}%"


def element(name: str, text: str, kind: str, **attributes: str) -> ElementTree.Element:
    """An element of the class `kind`, whose text is made harmless."""
    made = ElementTree.Element(name, {"class": kind, **attributes} if kind else attributes)
    made.text = printable(text) or None
    return made


def svg(width: str, height: float, parts: Sequence[ElementTree.Element], kind: str = "") -> str:
    """A picture. What it shows is said in words by the box around it."""
    root = element("svg", "", kind, width=width, height=px(height))
    root.set("aria-hidden", "true")
    root.extend(parts)
    return ElementTree.tostring(root, encoding="unicode")
