"""What charts plot: which values, in which series, with which labels and colours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from localagent_bench.charts import PALETTE, Drawing, draw, save, specify
from localagent_bench.results import Chart, Column, Table

COLUMNS = (
    Column("name", "parser"),
    Column("right", "right", "", "more"),
    Column("odd", "odd"),
    Column("wrong", "wrong", "", "less"),
    Column("time", "time", "us", "less", 1),
    Column("n", "pieces", "tokens"),
)
NAME = "a parser with a name that is too long for the room beside its bar"
COUNTED = [
    {"name": "ours", "right": 6, "odd": 0, "wrong": 2, "time": 1.5},
    {"name": NAME, "right": 3, "odd": 1.0, "time": None},
    {"name": "theirs", "right": -2, "odd": 2, "wrong": 1, "time": -0.5},
]
TIMED = [{"name": "a", "n": n, "time": time} for n, time in ((30, 8.0), (10, 2.0), (20, 5.0))]
TIMED += [{"name": "b", "n": 10, "time": 7.9}, {"name": "b", "n": 30, "time": 7.8}, {"n": 5}, {"time": 5}]


def drawn(chart: Chart, rows: list[dict[str, Any]]) -> Drawing:
    drawing = draw(Table("t", "T", COLUMNS, "", (chart,)), chart, rows)
    assert drawing is not None
    return drawing


def plotted(chart: Chart, rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    """Of each mark what `keys` name."""
    spec = specify(Table("t", "T", COLUMNS, "", (chart,)), chart, rows)
    assert spec is not None
    return [tuple(value[key] for key in keys) for value in spec["data"]["values"]]


def texts(svg: str) -> list[str]:
    return re.findall("<text[^>]*>([^<]*)</text>", svg)


def bars(svg: str) -> list[tuple[float, str]]:
    """The length and the colour of each bar."""
    groups = re.findall('<g class="mark-rect role-mark[^>]*>(.*?)</g>', svg)
    marks = [mark for group in groups for mark in re.findall("<path[^>]*>", group)]
    lengths = [re.search(r'd="M[\d.-]+,[\d.-]+h([\d.]+)', mark) for mark in marks]
    colours = [re.search('fill="(.*?)"', mark) for mark in marks]
    return [(float(length[1]), colour[1]) for length, colour in zip(lengths, colours, strict=True)]  # type: ignore[index]


def test_a_bar_has_its_name_and_its_number() -> None:
    chart = Chart("bars", "name", ("time",))
    assert plotted(chart, COUNTED, "name", "value", "text", "best") == [
        ("ours", 1.5, "1.5", False),
        (NAME, None, "not measured", False),
        ("theirs", -0.5, "-0.5", True),
    ]
    drawing = drawn(chart, COUNTED)
    assert (drawing.title, drawing.note) == ("time", "us, less is better")
    assert drawing.words == f"Bars. ours: 1.5; {NAME}: not measured; theirs: -0.5"
    assert {"ours", "theirs", "1.5", "-0.5", "not measured"} <= {*texts(drawing.svg)}
    assert any(text.startswith("a parser with") and text.endswith("…") for text in texts(drawing.svg))
    assert [
        re.search('font-weight="bold"', text) is not None
        for text in re.findall("<text.*?>[^<]*5<", drawing.svg)
    ] == [
        False,
        True,
    ], "the best one is bold"


def test_bars_of_two_measures_stand_together() -> None:
    chart = Chart("bars", "name", ("right", "wrong"), "Both")
    assert plotted(chart, COUNTED[:2], "name", "series", "value") == [
        *(("ours", "right", 6), ("ours", "wrong", 2), (NAME, "right", 3), (NAME, "wrong", None))
    ]
    drawing = drawn(chart, COUNTED[:2])
    assert drawing.title == "Both" and drawing.note == "", "one is better the more, the other the less"
    assert {"right", "wrong", "6", "2", "3"} <= {*texts(drawing.svg)}
    lengths = [length for length, _ in bars(drawing.svg)]
    assert lengths[0] == pytest.approx(2 * lengths[2], rel=0.01) == pytest.approx(3 * lengths[1], rel=0.01)


def test_a_group_of_bars_that_is_called_by_a_number_has_the_title_of_its_column() -> None:
    chart = Chart("bars", "n", ("right",), "", "name")
    rows = [
        {"name": name, "n": n, "right": right}
        for name, n, right in (("a", 1, 4), ("b", 1, 8), ("a", 2000, 8))
    ]
    assert plotted(chart, rows, "name", "series", "value") == [
        *(("pieces: 1", "a", 4), ("pieces: 1", "b", 8), ("pieces: 2,000", "a", 8))
    ]
    assert {"pieces: 1", "pieces: 2,000", "a", "b"} <= {*texts(drawn(chart, rows).svg)}


def test_a_stack_has_the_parts_of_a_row_in_their_order_and_names_each() -> None:
    chart = Chart("stack", "name", ("right", "odd", "wrong"))
    assert plotted(chart, COUNTED, "series", "value", "words")[::3] == [
        ("right", 6, "6 right, 0 odd, 2 wrong"),
        ("right", 3, "3 right, 1.00 odd, - wrong"),
        ("right", 0, "-2 right, 2 odd, 1 wrong"),
    ]
    drawing = drawn(chart, COUNTED)
    assert drawing.words.startswith("Stacked bars. ours: 6 right, 0 odd, 2 wrong; a parser")
    assert {"ours", "theirs", "6 right, 0 odd, 2 wrong", "right", "odd", "wrong"} <= {*texts(drawing.svg)}
    lengths = [length for length, _ in bars(drawing.svg)]
    assert lengths[0] == pytest.approx(3 * lengths[2], rel=0.01)
    series = drawn(Chart("stack", "name", ("odd",), "Odd", "n"), [{"name": "a", "n": 1, "odd": 2}])
    assert series.words == "Stacked bars. a, 1: 2 odd"


def test_rows_of_one_name_are_stacks_of_their_own() -> None:
    same = drawn(Chart("stack", "name", ("right",)), [{"name": "a", "right": 1}, {"name": "a", "right": 2}])
    assert texts(same.svg).count("a") == 2
    assert [round(length / bars(same.svg)[0][0]) for length, _ in bars(same.svg)] == [1, 2]


def test_lines_go_from_left_to_right() -> None:
    chart = Chart("lines", "n", ("time",), "", "name")
    assert plotted(chart, TIMED, "series", "x", "value") == [
        *(("a", 10, 2.0), ("a", 20, 5.0), ("a", 30, 8.0), ("b", 10, 7.9), ("b", 30, 7.8))
    ], "what has no place is not drawn"
    drawing = drawn(chart, TIMED)
    assert drawing.note == "us, less is better, over pieces (tokens)"
    assert drawing.words.startswith("Lines. a at 10: 2.0; a at 20: 5.0;")
    assert {"a", "b", "pieces (tokens)"} <= {*texts(drawing.svg)}
    two = Chart("lines", "n", ("right", "wrong"))
    rows = [{"n": n, "right": 10 * n, "wrong": 5 * n} for n in (1, 2)]
    assert plotted(two, rows, "series", "value") == [
        ("right", 10),
        ("right", 20),
        ("wrong", 5),
        ("wrong", 10),
    ]


def test_a_logarithm_is_drawn_where_there_is_one() -> None:
    chart = Chart("lines", "n", ("time",), "Time", "name", True)
    rows = [{"name": "a", "n": n, "time": time} for n, time in ((100, 8.0), (10, 3.0), (20, 0.0), (0, 5.0))]
    assert plotted(chart, rows, "x", "value") == [(10, 3.0), (100, 8.0)]
    assert drawn(chart, rows).note.endswith(", both axes logarithmic")


def test_an_axis_is_marked_at_each_of_a_few_places_with_short_numbers() -> None:
    rows = [{"n": n, "time": value} for n, value in ((0.3, 0.0), (1000, 0.5), (20_000, 19_999))]
    assert {"0.3", "1,000", "20k", "0", "5,000", "15k"} <= {
        *texts(drawn(Chart("lines", "n", ("time",)), rows).svg)
    }
    many = [{"n": n, "time": 1} for n in range(3, 40)]
    assert "7" not in texts(drawn(Chart("lines", "n", ("time",)), many).svg)


def test_a_picture_of_several_tables_is_written(tmp_path: Path) -> None:
    chart = Chart("bars", "name", ("time",), "Time")
    table = Table("t", "T", COLUMNS, "", (chart, Chart("lines", "n", ("time",), "Lines", "name")))
    save([(table, COUNTED), (table, TIMED)], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    save([], tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists(), "there is nothing to draw"


def test_a_chart_of_too_many_bars_is_left_out() -> None:
    for chart, measures in (
        (Chart("bars", "name", ("time", "right")), 2),
        (Chart("stack", "name", ("right",)), 1),
    ):
        table = Table("t", "T", COLUMNS, "", (chart,))
        rows: list[dict[str, Any]] = [{"name": "a", "right": at, "time": at} for at in range(122)]
        assert specify(table, chart, rows[: 120 // measures]) is not None
        assert specify(table, chart, rows[: 120 // measures + 1]) is None


def test_what_has_no_numbers_is_no_chart() -> None:
    for kind in ("bars", "stack", "lines"):
        chart = Chart(kind, "n", ("time", "right"))  # type: ignore[arg-type]
        table = Table("t", "T", COLUMNS, "", (chart,))
        assert draw(table, chart, [{"n": 1, "time": "long", "right": None}, {}]) is None
        assert draw(table, chart, []) is None
    chart = Chart("lines", "n", ("time",), log=True)
    table = Table("t", "T", COLUMNS, "", (chart,))
    assert draw(table, chart, [{"n": 1, "time": 0}, {"n": 0, "time": 1}]) is None, "without a logarithm"


def test_a_chart_puts_as_many_values_into_words_as_one_may_listen_to() -> None:
    def words(count: int) -> str:
        rows = [{"name": f"p{number}", "right": number} for number in range(count)]
        return drawn(Chart("bars", "name", ("right",)), rows).words

    assert words(2) == "Bars. p0: 0; p1: 1"
    assert words(60).endswith("; p58: 58; p59: 59")
    assert words(62).endswith("; p58: 58; p59: 59; and 2 more")


def test_colours_begin_again_when_there_are_no_more() -> None:
    rows = [{"name": f"p{at}", "n": n, "right": at + 1} for at in range(10) for n in (1, 2)]
    colours = [colour for _, colour in bars(drawn(Chart("bars", "n", ("right",), "", "name"), rows).svg)]
    assert colours[::2] == [*PALETTE, *PALETTE[:2]] == colours[1::2]


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
    assert [colour for _, colour in bars(drawing.svg)] == [PALETTE[colour] for colour in colours]


@pytest.mark.parametrize(
    ("measures", "note"),
    [
        (("a",), "s, less is better"),
        (("a", "b"), "s, less is better"),
        (("a", "b", "c"), "s, ms"),
        (("d",), ""),
        (("c",), "ms, more is better"),
    ],
)
def test_a_line_says_its_unit_and_which_values_are_better(measures: tuple[str, ...], note: str) -> None:
    columns = (
        Column("x", "x"),
        Column("a", "a", "s", "less"),
        Column("b", "b", "s", "less"),
        Column("c", "c", "ms", "more"),
        Column("d", "d"),
    )
    chart = Chart("bars", "x", measures)
    drawing = draw(Table("t", "T", columns, "", (chart,)), chart, [{"x": "x", **dict.fromkeys(measures, 1)}])
    assert drawing is not None and drawing.note == note
