"""Charts, element by element, as they are kept in charts/; `python -m tests.bench.test_charts` writes them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from localagent_bench.charts import draw
from localagent_bench.charts.drawing import Drawing, short, unit_of
from localagent_bench.results import Chart, Column, Table

COLUMNS = (
    Column("name", "parser"),
    Column("right", "right", "", "more"),
    Column("odd", "odd"),
    Column("wrong", "wrong", "", "less"),
    Column("time", "time", "us", "less", 1),
    Column("n", "pieces", "tokens"),
)
KEPT = Path(__file__).parent / "charts"
MARKS = {
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0": "disc",
    "M-4,-4h8v8h-8z": "square",
    "M0,-5.5L5.5,0L0,5.5L-5.5,0z": "diamond",
    "M0,-5L5,4H-5z": "up",
    "M0,5L5,-4H-5z": "down",
    "M-5,-1.6h3.4v-3.4h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4z": "cross",
}


def drawn(chart: Chart, rows: list[dict[str, Any]]) -> Drawing:
    drawing = draw(Table("t", "T", COLUMNS, "", (chart,)), chart, rows)
    assert drawing is not None
    return drawing


def elements(markup: str) -> list[str]:
    """Each element of a picture: what it is, where, and what it says; what it is in stands before it."""
    lines = []

    def walk(node: ElementTree.Element, before: str) -> None:
        given = {name: value for name, value in node.attrib.items() if name not in ("class", "d")}
        what = ".".join(
            [node.tag, *node.get("class", "").split(), *filter(None, [MARKS.get(node.get("d", ""))])]
        )
        told = " ".join(f"{name}={value}" for name, value in given.items())
        lines.append(" ".join(filter(None, [before + what, told, repr(node.text) if node.text else ""])))
        for child in node:
            walk(child, before + "  ")

    for each in ElementTree.fromstring(f"<all>{markup}</all>"):
        walk(each, "")
    return lines


def picture(chart: Chart, rows: list[dict[str, Any]]) -> str:
    """All of a chart as text."""
    found = drawn(chart, rows)
    above = [f"{found.kind}: {found.title} | {found.note} | {found.told}"]
    below = ["--", *elements(found.key)] if found.key else []
    return "\n".join([*above, *elements(found.svg), *below])


NAME = "a parser with a name that is too long for two lines of a narrow chart"
COUNTED = [
    {"name": "ours", "right": 6, "odd": 0, "wrong": 2, "time": 1.5},
    {"name": NAME, "right": 3, "odd": 1.0, "time": None},
    {"name": "theirs", "right": -2, "odd": 2, "wrong": 1, "time": -0.5},
]
TIMED = [{"name": "a", "n": n, "time": time} for n, time in ((30, 8.0), (10, 2.0), (20, 5.0))]
TIMED += [{"name": "b", "n": 10, "time": 7.9}, {"name": "b", "n": 30, "time": 7.8}, {"n": 5}, {"time": 5}]
GROWING = [{"name": "a", "n": n, "time": time} for n, time in ((100, 8.0), (10, 3.0), (20, 5.0), (0, 5.0))]
MANY = {"the longest line of all of them": 900.0, **{f"line {at}": float(at % 3) for at in range(11)}}
CASES = {
    "bars": (Chart("bars", "name", ("time",)), COUNTED),
    "bars of two measures": (Chart("bars", "name", ("right", "wrong"), "Both"), COUNTED[:2]),
    "bars of several series": (
        Chart("bars", "n", ("right",), "", "name"),
        [
            {"name": name, "n": n, "right": right}
            for name, n, right in (("a", 1, 4), ("b", 1, 8), ("a", 2000, 8))
        ],
    ),
    "stack": (Chart("stack", "name", ("right", "odd", "wrong")), COUNTED),
    "stack of several series": (
        Chart("stack", "name", ("odd",), "Odd", "n"),
        [{"name": "a", "n": 1, "odd": 2}],
    ),
    "lines": (Chart("lines", "n", ("time",), "", "name"), TIMED),
    "logarithmic lines": (Chart("lines", "n", ("time",), "Time", "name", True), GROWING),
    "lines of two measures": (
        Chart("lines", "n", ("right", "wrong")),
        [{"n": n, "right": 10 * n, "wrong": 5 * n} for n in (1, 2)],
    ),
    "lines that end together": (
        Chart("lines", "n", ("time",), "", "name"),
        [{"name": name, "n": n, "time": time * n} for name, time in MANY.items() for n in (1, 2)],
    ),
    "marks too near for their words": (
        Chart("lines", "n", ("time",), "", "name"),
        [{"name": "a", "n": n, "time": n} for n in (10, 11, 12, 500, 960, 1000)],
    ),
    "one point": (Chart("lines", "n", ("time",)), [{"n": 7, "time": 0.5}]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_chart_is_drawn_as_ever(name: str) -> None:
    assert picture(*CASES[name]).splitlines() == (KEPT / f"{name}.txt").read_text().splitlines()


# Values, and the labels of the axis: round numbers around them.
TICKS = [
    ((3, 8), False, "0 2 4 6 8"),
    ((1, 1000), False, "0 250 500 750 1,000"),
    ((1, 1001), False, "0 250 500 750 1,000 1,250"),
    ((2, 50), False, "0 20 40 60"),
    ((0, 40.03), False, "0 10 20 30 40 50"),
    ((0, 30), False, "0 10 20 30"),
    ((0, 4), False, "0 1 2 3 4"),
    ((0.5, 0.5), False, "0 0.2 0.4 0.6"),
    ((0, 19_999), False, "0 5,000 10k 15k 20k"),
    ((-3, 8), False, "-5 0 5 10"),
    ((0, 0), False, "0"),
    ((3, 8), True, "2 5 10"),
    ((0.001, 0.004), True, "0.001 0.002 0.005"),
    ((2, 50), True, "2 5 10 20 50"),
    ((1, 999), True, "1 10 100 1,000"),
    ((1, 1001), True, "1 10 100 1,000 10k"),
    ((1, 1e9), True, "1 10 100 1,000 10k 100k 1M 10M 100M 1G"),
    ((1, 1e16), True, "1 100 10k 1M 100M 10G 1000G 1e+05G 1e+07G"),
    ((5, 5), True, "5"),
]


@pytest.mark.parametrize(("values", "log", "marks"), TICKS)
def test_an_axis_is_marked_at_round_numbers(values: tuple[float, ...], log: bool, marks: str) -> None:
    rows = [{"n": n, "time": value} for n, value in enumerate(values, 1)]
    axis, *_ = ElementTree.fromstring(
        f"<all>{drawn(Chart('lines', 'n', ('time',), log=log), rows).svg}</all>"
    )
    assert [text.text for text in axis] == marks.split()


def test_the_axis_of_many_numbers_is_marked_at_round_ones_and_that_of_a_few_at_each() -> None:
    def marks(count: int) -> list[str | None]:
        rows = [{"n": 3 + at, "time": 1.5} for at in range(count)]
        _, plot = ElementTree.fromstring(f"<all>{drawn(Chart('lines', 'n', ('time',)), rows).svg}</all>")
        return [text.text for text in plot.iter("text")]

    assert marks(8) == [str(3 + at) for at in range(8)]
    assert marks(9) == ["5", "10"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.12345, "0.123"), (-7, "-7"), (999.4, "999"), (999.6, "1,000"), (1000, "1,000")),
        *((1234.5, "1,234"), (9999, "9,999"), (10_000, "10k"), (-12_345, "-12.35k"), (999_999, "1000k")),
        *((1e6, "1M"), (2.5e8, "250M"), (1e9, "1G"), (2.5e12, "2500G")),
    ],
)
def test_a_number_beside_an_axis_is_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_chart_of_too_many_bars_is_left_out() -> None:
    for chart, each in (
        (Chart("bars", "name", ("time", "right")), 2),
        (Chart("stack", "name", ("right",)), 1),
    ):
        table = Table("t", "T", COLUMNS, "", (chart,))
        rows: list[dict[str, Any]] = [{"name": "a", "right": at, "time": at} for at in range(122)]
        assert draw(table, chart, rows[: 120 // each]) is not None
        assert draw(table, chart, rows[: 120 // each + 1]) is None


def test_what_has_no_numbers_is_no_chart() -> None:
    for kind in ("bars", "stack", "lines"):
        chart = Chart(kind, "n", ("time", "right"))  # type: ignore[arg-type]
        table = Table("t", "T", COLUMNS, "", (chart,))
        assert draw(table, chart, [{"n": 1, "time": "long", "right": None}, {}]) is None
        assert draw(table, chart, []) is None
    chart = Chart("lines", "n", ("time",), log=True)
    table = Table("t", "T", COLUMNS, "", (chart,))
    assert draw(table, chart, [{"n": 1, "time": 0}, {"n": 0, "time": 1}]) is None, "without a logarithm"


def test_a_chart_tells_as_many_values_in_words_as_one_may_listen_to() -> None:
    def told(count: int) -> str:
        return drawn(
            Chart("bars", "name", ("right",)), [{"name": f"p{at}", "right": at} for at in range(count)]
        ).told

    assert told(2) == "Bars. p0: 0; p1: 1"
    assert told(60).endswith("; p58: 58; p59: 59")
    assert told(62).endswith("; p58: 58; p59: 59; and 2 more")


def test_colours_and_marks_begin_again_when_there_are_no_more() -> None:
    rows = [{"name": f"p{at}", "n": n, "time": at, "right": at} for at in range(10) for n in (1, 2)]
    lines = elements(drawn(Chart("lines", "n", ("time",), "", "name"), rows).svg)
    shapes = [*MARKS.values()]
    marks = [line.split("mark.")[1] for line in lines if line.startswith("    path")]
    assert [*dict.fromkeys(marks)] == [f"c{at % 8}.{shapes[at % 6]}" for at in range(10)]
    bars = elements(drawn(Chart("bars", "n", ("right",), "", "name"), rows).svg)
    colours = [line.split()[0] for line in bars if "rect.bar" in line]
    assert colours == [f"rect.bar.c{at % 8}" for at in range(10)] * 2, "two groups"


@pytest.mark.parametrize(
    ("better", "colours"),
    [
        # What is good is blue or green, what is worst orange, what is neither grey.
        (("more", "", "less"), (0, 5, 1)),
        (("more", "more", "less", "less", "less"), (0, 2, 4, 3, 1)),
        (("more",) * 4, (0, 2, 6, 7)),
        (("",) * 4, (5, 7, 6, 7)),
        (("less",) * 4, (7, 4, 3, 1)),
    ],
)
def test_colours_of_parts_say_what_is_good(better: tuple[Any, ...], colours: tuple[int, ...]) -> None:
    keys = tuple(f"c{at}" for at in range(len(better)))
    chart = Chart("stack", "name", keys)
    columns = [Column(key, key, "", each) for key, each in zip(keys, better, strict=True)]
    table = Table("t", "T", (Column("name", "name"), *columns), "", (chart,))
    drawing = draw(table, chart, [{"name": "a", **dict.fromkeys(keys, 1)}])
    assert drawing is not None
    found = [line.split()[0] for line in elements(drawing.svg) if "rect.bar" in line]
    assert found == [f"rect.bar.c{colour}" for colour in colours]


def test_a_line_says_its_unit_and_which_values_are_better() -> None:
    columns = [
        Column("a", "a", "s", "less"),
        Column("b", "b", "s", "less"),
        Column("c", "c", "ms", "more"),
        Column("d", "d"),
    ]
    assert [
        unit_of(each) for each in ([], columns[:1], columns[:2], columns[:3], columns[3:], columns[2:3])
    ] == [*("", "s, less is better", "s, less is better", "s, ms", "", "ms, more is better")]


if __name__ == "__main__":
    for name, case in CASES.items():
        (KEPT / f"{name}.txt").write_text(picture(*case) + "\n")
