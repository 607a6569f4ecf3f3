"""The report says all that the files say, side by side where they are of one benchmark."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import UsageError
from localagent_bench.charts import draw, specify
from localagent_bench.report import render, write_report
from localagent_bench.results import BenchRun, Chart, Column, Results, Table

FAULTS = Table(
    "demo.faults",
    "Injected faults",
    (
        Column("parser", "parser"),
        Column("right", "right", better="more"),
        Column("refused", "refused"),
        Column("wrong", "wrong", better="less"),
        Column("time", "time", "us", "less", 1),
        Column("nothing", "nobody fills this"),
    ),
    "What became of them.",
    (
        Chart("stack", "parser", ("right", "refused", "wrong"), "Outcomes"),
        Chart("bars", "parser", ("time",), "Time"),
        Chart("bars", "parser", ("right", "wrong"), "Both"),
    ),
)
LENGTHS = Table(
    "demo.lengths",
    "Against length",
    (Column("parser", "parser"), Column("pieces", "pieces"), Column("us", "time", "us", "less", 1)),
    "",
    (
        Chart("lines", "pieces", ("us",), "Logarithmic", "parser", True),
        Chart("lines", "pieces", ("us",), "Plain"),
    ),
    within="pieces",
)
PARSERS = (
    "ours",
    "theirs",
    "a parser with a very long name that has to be cut somewhere, and more than once",
)


def run(bench: str = "demo", factor: float = 1.0) -> BenchRun:
    with Results(bench, {"quick": True, "cuts": [1, 2]}) as results:
        for at, parser in enumerate(PARSERS):
            time = None if at == 1 else 3.5 * factor * (at + 1)
            results.add(FAULTS, parser=parser, right=5000 - at, refused=at * 7, wrong=at * 100, time=time)
            for pieces in (10, 1000, 100_000):
                results.add(LENGTHS, parser=parser, pieces=pieces, us=factor * (at + 1) * pieces**0.5)
            results.case(FAULTS, parser=parser, text="<b>raw</b>\nsecond line", calls=[{"name": "f"}])
        results.skip("vllm", "the package vllm is not installed")
    return results.run


class Tags(HTMLParser):
    """The tags, their attributes and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_what_was_run_where_and_how() -> None:
    one = run()
    page = Tags(render([one]))
    for said in (*map(str, one.machine.values()), "quick: yes", "cuts: 1, 2", "vllm", "not installed"):
        assert said in page.text or said.isdecimal(), said
    assert f"{one.started[:10]} {one.started[11:19]} UTC" in page.text
    assert "The best of a column is marked" in page.text
    assert "among rows with the same pieces" in page.text
    assert "nobody fills this" not in page.text
    assert "this run did not come to its end" not in page.text
    assert "3 cases" in page.text
    one.seconds = None
    assert "this run did not come to its end" in render([one])


def test_the_best_is_marked() -> None:
    marked = re.findall(r"<td[^>]*><strong>([^<]*)</strong>", render([run()]))
    assert marked[:3] == ["5,000", "0", "3.5"]
    assert len(marked) == 6, "one for each of three lengths"


def test_the_page_fetches_nothing_and_its_policy_allows_nothing() -> None:
    html = render([run(), run()])
    assert set(re.findall(r"https?://[^\s\"'<>)]*", html)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }, "names of XML, which nothing fetches"
    assert "<script" not in html and "style=" not in html
    policy = html.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    assert "unsafe" not in policy


def test_no_tag_of_a_page_has_an_attribute_without_a_value() -> None:
    page = re.sub("<svg.*?</svg>", "", render([run(), run(factor=30)]), flags=re.DOTALL)
    tags = Tags(page).tags
    assert {"p", "b", "td"} <= {tag for tag, _ in tags}, "those with a class and without one"
    assert [(tag, attrs) for tag, attrs in tags if "" in attrs.values()] == []


def test_runs_of_one_benchmark_stand_side_by_side() -> None:
    page = render([run(), run(factor=2), run("other")])
    tags = Tags(page)
    headings = [attrs["id"] for tag, attrs in tags.tags if tag == "h2"]
    assert headings == ["bench-1", "bench-2"]
    rows = re.findall(r'<th scope="row">(.)</th><td[^>]*>ours</td>', page.replace("\n", ""))
    assert rows[:2] == ["A", "B"]
    alone = Tags(render([run()]))
    bars = [
        sum(tag == "path" and (attrs.get("d") or "").endswith("v14h") for tag, attrs in page.tags)
        for page in (alone, tags)
    ]
    assert bars[1] == 3 * bars[0]
    assert "ours, A" in page and "ours, B" in page


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_report([run()], tmp_path)


def test_no_runs_and_empty_ones_are_pages_too() -> None:
    assert "0 runs" in render([])
    assert "<h2" in render([BenchRun("b")])
    render(
        [BenchRun("b", machine={"cores": None, "more": {"a": [1]}}, tables={"t": FAULTS}, rows={"t": [{}]})]
    )


def between(page: str, start: str, end: str) -> str:
    return page.split(start, 1)[1].split(end, 1)[0]


def cells(page: str) -> list[list[str]]:
    """The text of the cells of all tables, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", re.sub("</?(?:strong|small|span)[^>]*>", "", row))
        for row in rows
    ]


CHECKED = Table(
    "demo.checked",
    "Checked",
    (
        Column("parser", "parser"),
        Column("n", "pieces"),
        Column("us", "time", "us", "less", 1),
        Column("outcome", "outcome"),
        Column("note", "note"),
        Column("empty", "nothing"),
    ),
    "How.",
    within="n",
)
OTHER = Table("demo.other", "Other", (Column("x", "x"),))


def checked(**more: Any) -> BenchRun:
    """A run of which all is known."""
    rows: list[dict[str, Any]] = [
        {"parser": "a", "n": 1, "us": 1.25, "outcome": "passes", "note": "y" * 29},
        {"parser": "b", "n": 1, "us": 2.0, "outcome": "fails", "note": "passes"},
        {"parser": "a", "n": 2, "us": None, "outcome": "not seen", "note": "y" * 28},
    ]
    told: dict[str, Any] = {
        "started": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "P", "cores": 4, "threads": 8, "memory": 16 * 10**9, "system": "S"}
        | {"python": "3.12", "localagent": "1.0", "card": None, "cooled": True, "cards": ["a", 1]},
        "packages": {"x": "1", "y": "2"},
        "options": {
            "quick": True,
            "all": False,
            "cuts": [1, 2],
            "out": None,
            "corpora": [],
            "n": 0,
            "more": {"a": 1},
        },
        "tables": {CHECKED.name: CHECKED, OTHER.name: OTHER},
        "rows": {CHECKED.name: rows, OTHER.name: [{"x": 7}]},
        "skipped": {"v": "it is not here"},
        "cases": [
            {"table": CHECKED.name, "parser": "a", "text": "y" * 4001, "calls": [{"n": None}], "sure": False},
            {"table": "another", "parser": "b"},
        ],
        "seconds": 89.96,
    }
    return BenchRun("demo", **told | more)


def test_the_page_of_one_run_is_all_that_its_file_says() -> None:
    page = render([checked()])
    assert between(page, "<title>", "</title>") == between(page, "<h1>", "</h1>") == "localagent bench demo"
    assert (
        between(page, "</h1>\n<p>", "</p>")
        == "1 run, 2026-01-02. Figures hold for the machine and versions named."
    )
    assert between(page, "<h3>", "</h3>") == "2026-01-02 03:04:05 UTC", "no letter for one alone"
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page.split("<table")[0]) == [
        ("processor", "P"),
        ("cores", "4 (8 threads)"),
        ("memory", "16.0 GB"),
        ("system", "S"),
        ("Python", "3.12"),
        ("localagent", "1.0"),
        ("cooled", "yes"),
        ("cards", "a, 1"),
        ("packages", "x 1, y 2"),
        ("took", "90.0 s"),
    ]
    assert re.findall('<span class="mono">(.*?)</span>', page) == [
        *("quick: yes", "all: no", "cuts: 1, 2", "n: 0", "more: {&#34;a&#34;: 1}")
    ]
    assert re.findall('<section class="panel" id="(.*?)">\n<h3>(.*?)</h3>', page) == [
        ("table-1-1", "Checked"),
        ("table-1-2", "Other"),
    ]
    assert between(page, '<p class="told">', "</p>") == "How."
    assert between(page, "<h3>What took no part</h3><ul>\n", "\n</ul>") == "<li><b>v</b>: it is not here</li>"
    assert re.findall('<p class="key">(.*?)</p>', page) == [
        "The best of a column is <strong>marked</strong>, among rows with the same pieces."
    ]
    case = [("parser", "a"), ("text", "y" * 4000), ("calls", "[{&#34;n&#34;: null}]"), ("sure", "no")]
    assert between(page, "<summary>", "</summary>") == "1 case"
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", between(page, '<dl class="case">', "</dl>")) == case


def test_a_table_is_laid_out_by_what_its_columns_hold() -> None:
    page = render([checked()])
    first, other = re.findall("<table(.*?)</table>", page, re.DOTALL)
    assert first.split("\n")[:6] == [
        ' class="stacks">',
        '<thead><tr><th scope="col">parser</th><th scope="col" class="right">pieces</th>'
        '<th scope="col" class="right">time<small>us</small></th><th scope="col">outcome</th>'
        '<th scope="col">note</th></tr></thead>',
        "<tbody>",
        '<tr><th scope="row">a</th><td class="right" data-head="pieces">1</td>'
        '<td class="right" data-head="time"><strong>1.2</strong></td>'
        '<td data-head="outcome"><span class="good">passes</span></td>'
        f'<td class="long" data-head="note">{"y" * 29}</td></tr>',
        '<tr><th scope="row">b</th><td class="right" data-head="pieces">1</td><td class="right" data-head="time">2.0</td>'
        '<td data-head="outcome"><span class="poor">fails</span></td><td data-head="note">passes</td></tr>',
        '<tr><th scope="row">a</th><td class="right" data-head="pieces">2</td><td class="right" data-head="time"></td>'
        f'<td data-head="outcome">not seen</td><td data-head="note">{"y" * 28}</td></tr>',
    ]
    assert other.startswith(">"), "no cell is long: nothing has to stand below another thing"
    short = checked(rows={CHECKED.name: [{"parser": "y" * 40, "note": "z"}]})
    assert "stacks" not in between(render([short]), "<body>", "</body>"), (
        "what a row begins with does not count"
    )


@pytest.mark.parametrize(
    ("machine", "seconds", "facts"),
    [
        ({"cores": 4, "threads": 4}, 90, [("cores", "4"), ("took", "1.5 minutes")]),
        ({"cores": 4}, 60_060, [("cores", "4"), ("took", "1,001.0 minutes")]),
        ({"memory": "plenty", "processor": ""}, 0, [("memory", "plenty"), ("took", "0.0 s")]),
        ({}, None, []),
    ],
)
def test_facts_are_told_as_far_as_they_are_known(
    machine: dict[str, Any], seconds: float | None, facts: list[tuple[str, str]]
) -> None:
    page = render([checked(machine=machine, packages={}, options={}, seconds=seconds)])
    told = between(page, '<div class="runs">', "<section")
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", told) == facts
    assert "options" not in told
    assert ("did not come to its end" in told) == (seconds is None)


def test_more_rows_and_cases_than_a_page_holds_are_in_the_files() -> None:
    def page(rows: int, cases: int) -> str:
        told = [{"table": OTHER.name, "at": at} for at in range(cases)]
        return render([checked(rows={OTHER.name: [{"x": "x"}] * rows}, cases=told)])

    most, more = page(2000, 200), page(2003, 201)
    assert [len(cells(each)) for each in (most, more)] == [2001, 2001]
    assert "in the files" not in most
    assert '<p class="key">3 more rows are in the files.</p>' in more
    assert [each.count('<dl class="case">') for each in (most, more)] == [200, 200]
    assert "<summary>201 cases</summary>" in more
    assert '<p class="key">The others are in the files.</p></details>' in more


def test_rows_of_several_runs_about_the_same_thing_stand_together() -> None:
    wider = replace(LENGTHS, within="", columns=(*LENGTHS.columns, Column("peak", "peak", "MB")))
    narrow = replace(LENGTHS, within="")
    rows = [{"parser": parser, "pieces": pieces, "us": 1.0} for parser in "ab" for pieces in (10, 20)]
    two = [{"parser": "b", "pieces": 10, "us": 3.0, "peak": 5}, {"parser": "c", "pieces": 10, "us": 4.0}]
    first = checked(tables={narrow.name: narrow}, rows={narrow.name: rows}, cases=[])
    second = checked(
        tables={narrow.name: wider}, rows={narrow.name: two}, started="2026-01-04T00:00:00+00:00"
    )
    second.cases = [{"table": narrow.name, "text": "z"}]
    page = render([first, second])
    assert cells(page) == [
        ["run", "parser", "pieces", "timeus", "peakMB"],
        ["A", "a", "10", "1.0", ""],
        ["A", "a", "20", "1.0", ""],
        ["A", "b", "10", "1.0", ""],
        ["B", "b", "10", "3.0", "5"],
        ["A", "b", "20", "1.0", ""],
        ["B", "c", "10", "4.0", ""],
    ]
    told = re.findall('role="img" aria-label="(.*?)"', page)
    assert told == [
        "Logarithmic. Lines. a, A at 10: 1.0; a, A at 20: 1.0; b, A at 10: 1.0; b, A at 20: 1.0; b, B at 10: 3.0; "
        "c, B at 10: 4.0",
        "Plain. Lines. A at 10: 1.0; A at 10: 1.0; A at 20: 1.0; A at 20: 1.0; B at 10: 3.0; B at 10: 4.0",
    ]
    assert "2 runs, 2026-01-02 to 2026-01-04. Figures" in page
    assert re.findall('<span class="letter">(.)</span>(.*?)<', page) == [
        *(("A", "2026-01-02 03:04:05 UTC"), ("B", "2026-01-04 00:00:00 UTC"), ("A", ""), ("B", ""))
    ]
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", between(page, '<dl class="case">', "</dl>")) == [
        ("run", "B"),
        ("text", "z"),
    ]


def test_rows_that_are_compared_within_a_column_stay_together_by_it() -> None:
    rows = [{"parser": parser, "pieces": pieces, "us": 1.0} for parser in "ab" for pieces in (10, 20)]
    same = [checked(tables={LENGTHS.name: LENGTHS}, rows={LENGTHS.name: rows}) for _ in range(2)]
    assert [row[:3] for row in cells(render(same))[1:]] == [
        *(["A", "a", "10"], ["A", "b", "10"], ["B", "a", "10"], ["B", "b", "10"]),
        *(["A", "a", "20"], ["A", "b", "20"], ["B", "a", "20"], ["B", "b", "20"]),
    ]


def test_a_table_that_one_of_two_runs_has_is_shown_with_its_letter() -> None:
    page = render(
        [checked(tables={}, rows={}), checked(tables={OTHER.name: OTHER}, rows={OTHER.name: [{"x": 7}]})]
    )
    assert cells(page) == [["run", "x"], ["B", "7"]]


def test_runs_of_several_benchmarks_have_a_part_each() -> None:
    page = render([checked(), BenchRun("other"), checked()])
    assert between(page, "<title>", "</title>") == "localagent bench"
    assert re.findall("<b>(.*?)</b>", between(page, "<header", "</header>")) == ["demo", "other"]
    assert re.findall('aria-label="(Contents.*?)"', page) == ["Contents: demo", "Contents: other"]
    assert re.findall('<h2 id="(.*?)">(.*?)</h2>', page) == [("bench-1", "demo"), ("bench-2", "other")]
    assert between(page, '<span class="letter">', "</span>") == "A"


@pytest.mark.parametrize(("count", "last"), [(26, "Z"), (27, "27")])
def test_runs_have_letters_as_far_as_those_go(count: int, last: str) -> None:
    page = render([checked() for _ in range(count)])
    letters = re.findall('<h3><span class="letter">(.*?)</span>', page)
    assert letters[0] == ("A" if last == "Z" else "1")
    assert (len(letters), letters[-1]) == (count, last)


def test_the_policy_names_the_style_of_the_page() -> None:
    page = render([checked()])
    digest = hashlib.sha256(between(page, "<style>", "</style>").encode()).digest()
    told = unescape(between(page, 'http-equiv="Content-Security-Policy" content="', '"'))
    assert told == (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(digest).decode()}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def test_what_is_no_text_in_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report([checked(skipped={"\ud800": "\u4f60"})], path)
    assert "<li><b>\\ud800</b>: \u4f60</li>" in path.read_text(encoding="utf-8")
    assert "Made by localagent bench" in path.read_text(encoding="utf-8")


CHARTS = [
    Chart(kind, "x", ("y", "z"), log=log) for kind in ("bars", "stack", "lines") for log in (False, True)
]  # type: ignore[arg-type]
ODD = [None, True, "text", 0, -3, 5, 0.001, 1e300, 1e-300, 10**400, math.nan, math.inf]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: f"{chart.kind}-{chart.log}")
def test_whatever_the_values_are_a_chart_is_drawn_or_none(chart: Chart) -> None:
    table = Table(
        "t", "T", (Column("x", "x"), Column("y", "y", better="more"), Column("z", "z")), "", (chart,)
    )
    for first in ODD:
        for second in ODD:
            rows = [{"x": first, "y": second, "z": first}, {"x": 7, "y": first}, {}]
            json.dumps(specify(table, chart, rows), allow_nan=False)
            if second in (None, 0, 1e300) and (drawing := draw(table, chart, rows)) is not None:
                assert not re.search(r'"-?(nan|inf)|width="-|[,hvml]-?nan', drawing.svg.lower()), (
                    first,
                    second,
                )
    for rows in ([], [{"x": 1, "y": 0}], [{"x": 1, "y": 1}] * 300):
        draw(table, chart, rows)
    assert draw(table, Chart(chart.kind, "none", ("y",)), [{"y": 1}]) is None
    assert draw(table, Chart(chart.kind, "x", ("none",)), [{"x": 1}]) is None
