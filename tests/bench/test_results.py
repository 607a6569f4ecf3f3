"""Results as JSON lines: what is written is read again, what is broken is named, and tables show it on a terminal."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import localagent_bench
from localagent.errors import UsageError
from localagent_bench.cli.output import show_run
from localagent_bench.results import (
    BenchRun,
    Chart,
    Column,
    Results,
    Table,
    best_cells,
    in_order,
    installed,
    number,
    read_runs,
    value_text,
)

SPEED = Table(
    "demo.speed",
    "Speed",
    (
        Column("side", "side"),
        Column("n", "n"),
        Column("speed", "speed", "tokens/s", "more", 1),
        Column("none", "none"),
    ),
    "How fast.",
    (Chart("lines", "n", ("speed",), "Speed", "side", True),),
    within="n",
)


def written(path: Path, options: dict[str, Any] | None = None) -> BenchRun:
    with path.open("w") as file, Results("demo", options or {"quick": True}, file.write) as results:
        results.add(SPEED, side="a", n=1, speed=1.5)
        results.add(SPEED, side="b", n=1, speed=math.inf)
        results.skip("c", "not here")
        results.case(SPEED, side="a", text="\u2028x", calls=[{"name": "f"}])
    return results.run


def test_a_run_says_when_it_was_started_in_utc() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    started = datetime.fromisoformat(Results("demo", {}).run.started)
    assert started.utcoffset() == timedelta(0)
    assert before <= started <= datetime.now(UTC)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "results"
    run = written(path)
    assert run.rows["demo.speed"][1]["speed"] is None, "what is not finite was not measured"
    assert read_runs(path) == [run]
    path.write_text(path.read_text() * 2 + "\n")
    assert read_runs(path) == [run, run], "files may be put together"
    unescaped = "\n".join(
        json.dumps(json.loads(line), ensure_ascii=False) for line in path.read_text().split("\n") if line
    )
    path.write_text(unescaped)
    assert read_runs(path) == [run, run], "a line separator in a text ends no line"


def test_a_run_that_did_not_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results"
    written(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    (run,) = read_runs(path)
    assert run.seconds is None
    assert len(run.rows["demo.speed"]) == 1


def test_a_run_that_broke_off_has_no_end() -> None:
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt), Results("demo", {}, lines.append):
        raise KeyboardInterrupt
    assert [json.loads(line)["kind"] for line in lines] == ["run"]


def test_each_line_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "results"
    run = written(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    columns = [asdict(column) for column in SPEED.columns]
    table = {
        "title": "Speed",
        "told": "How fast.",
        "within": "n",
        "columns": columns,
        "charts": [asdict(SPEED.charts[0])],
    }
    table["charts"][0]["y"] = ["speed"]
    head = {"bench": "demo", "started": run.started, "machine": run.machine, "packages": run.packages}
    assert lines == [
        {"kind": "run", **head, "options": {"quick": True}},
        {"kind": "table", "name": "demo.speed", **table},
        {"kind": "row", "table": "demo.speed", "side": "a", "n": 1, "speed": 1.5},
        {"kind": "row", "table": "demo.speed", "side": "b", "n": 1, "speed": None},
        {"kind": "skip", "what": "c", "reason": "not here"},
        {"kind": "case", "table": "demo.speed", "side": "a", "text": "\u2028x", "calls": [{"name": "f"}]},
        {"kind": "end", "seconds": run.seconds},
    ]
    assert run == BenchRun(
        **head,
        options={"quick": True},
        tables={"demo.speed": SPEED},
        rows={"demo.speed": [{"side": "a", "n": 1, "speed": 1.5}, {"side": "b", "n": 1, "speed": None}]},
        skipped={"c": "not here"},
        cases=[{"table": "demo.speed", "side": "a", "text": "\u2028x", "calls": [{"name": "f"}]}],
        seconds=run.seconds,
    )


def test_a_run_lasts_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 101.26))
    monkeypatch.setattr("localagent_bench.results.monotonic", lambda: next(times))
    with Results("demo", {}) as results:
        assert results.run.seconds is None
    assert results.run.seconds == 1.3


def test_what_no_table_has_a_column_for_is_a_fault_of_the_benchmark() -> None:
    results = Results("demo", {})
    with pytest.raises(AssertionError, match=r"demo\.speed has no columns"):
        results.add(SPEED, side="a", colour="red")
    with pytest.raises(AssertionError, match="take the place"):
        results.case(SPEED, kind="x")


def test_a_run_says_on_which_machine_and_with_which_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {True: 8, False: 4}
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: cores[logical])
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=7))
    monkeypatch.setattr("platform.platform", lambda: "S")
    monkeypatch.setattr("platform.python_version", lambda: "3")
    monkeypatch.setattr("localagent.engines.processor.read_processor", lambda: "P")
    monkeypatch.setattr("localagent.distribution.version", lambda: None)
    told = {"processor": "P", "cores": 4, "threads": 8, "memory": 7, "system": "S", "python": "3"}
    assert Results("demo", {}).run.machine == told | {"localagent": "unknown"}
    cores[False] = None  # type: ignore[assignment]
    monkeypatch.setattr("localagent.distribution.version", lambda: "1.2")
    assert Results("demo", {}).run.machine == told | {"cores": 8, "localagent": "1.2"}
    assert installed(["pytest", "nothing-of-that-name"]) == {"pytest": pytest.__version__}


def test_runs_put_together_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text('{"kind": "run", "bench": "a"}\n{"kind": "run", "bench": "b", "started": "s"}\n\n')
    assert read_runs(path) == [BenchRun("a"), BenchRun("b", "s")]
    with pytest.raises(UsageError, match=r"^.*/none cannot be read: No such file or directory$"):
        read_runs(tmp_path / "none")
    path.write_text("\n")
    with pytest.raises(UsageError) as empty:
        read_runs(path)
    assert str(empty.value) == f"{path} holds no results: make them with `localagent bench ... --out {path}`"


HEAD = '{"kind": "run", "bench": "b"}\n'
BROKEN = {
    "nothing": ("", "holds no results"),
    "no JSON": (HEAD + "{", "line 2"),
    "a list": ("[]\n", "line 1"),
    "a number": ("7\n", "line 1"),
    "no kind": ("{}\n", "line 1, is no result (kind is missing)".replace("kind", "'kind'")),
    "another kind": (HEAD + '{"kind": "x"}', "no kind of line is called x"),
    "a row first": ('{"kind": "row", "table": "t"}', "has to be that of a run"),
    "no such table": (HEAD + '{"kind": "row", "table": "t"}', "'t' is missing"),
    "no name of the run": ('{"kind": "run"}', "bench"),
    "options that are none": ('{"kind": "run", "bench": "b", "options": 7}', "options"),
    "columns that are none": (HEAD + '{"kind": "table", "name": "t", "title": "T", "columns": 7}', "columns"),
    "a chart of another kind": (
        HEAD + '{"kind": "table", "name": "t", "title": "T", "columns": [], "charts": [{"kind": "pie", "x": "a", "y": []}]}',
        "charts.0.kind",
    ),
    "another kind of value": (HEAD + '{"kind": "case", "x": 1}\n7\n', "line 3, is no result ('int' object has no attribute 'pop'): remove it"),
    "a column of another kind": (
        HEAD + '{"kind": "table", "name": "t", "title": "T", "columns": [{"key": 7, "title": "x"}]}',
        "line 2, is no result (columns.0.key: Input should be a valid string): remove it",
    ),
    "no columns": (HEAD + '{"kind": "table", "name": "t", "title": "T"}', "(columns: Field required)"),
    "a case without an end": (HEAD + "\n \n" + '{"kind": "end"}', "line 4, is no result ('seconds' is missing): remove it"),
    "no reason": (HEAD + '{"kind": "skip", "what": "x"}', "'reason' is missing"),
    "too deep": (HEAD + '{"kind": "case", "x": ' + "[" * 100_000, "line 2"),
    "no time": (HEAD + '{"kind": "end", "seconds": "long"}', "line 2"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=[*BROKEN])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "results"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_runs(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_runs(path)
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_runs(path)


def test_the_best_is_looked_for_among_what_is_comparable() -> None:
    rows = [
        {"side": side, "n": n, "speed": speed}
        for n, side, speed in ((1, "a", 2.0), (1, "b", 3), (2, "a", 9), (2, "b", None))
    ]
    assert best_cells(SPEED, rows) == {(1, "speed")}, "one alone is not the best"
    mixed = [rows[0], rows[2], rows[1], rows[3]]
    assert in_order(SPEED, mixed) == rows
    less = Table("t", "T", (Column("x", "x", better="less"),))
    assert best_cells(less, [{"x": 1}, {"x": 1}, {"x": "0"}, {"x": True}, {}]) == set()
    assert best_cells(less, [{"x": 1}, {"x": 1.0}, {"x": 2}]) == {(0, "x"), (1, "x")}
    assert best_cells(Table("t", "T", (Column("x", "x"),)), [{"x": 1}, {"x": 2}]) == set()
    assert in_order(less, mixed) == mixed
    odd = [{"n": 1, "at": 0}, {"at": 1}, {"n": "1", "at": 2}, {"n": None, "at": 3}]
    assert [row["at"] for row in in_order(SPEED, odd)] == [0, 2, 1, 3], "as their words are the same"


def tables() -> dict[str, Table]:
    """Every table of the benchmarks."""
    names = [each.name for each in pkgutil.walk_packages(localagent_bench.__path__, "localagent_bench.")]
    modules = [
        importlib.import_module(name) for name in names if not {"adapters", "training"} & {*name.split(".")}
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Table)]
    return {table.name: table for table in found}


TABLES = tables()
LESS = {"s", "s, median", "ms", "us", "MB", "J", "W", "bytes per character"}
MORE = {"tokens/s", "per second"}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_which_measures_are_good(name: str) -> None:
    columns = TABLES[name].columns
    for column in columns:
        interval = column.key.endswith(("_low", "_high"))
        good = "" if interval else "less" if column.unit in LESS else "more" if column.unit in MORE else None
        assert column.better in (("", "less", "more") if good is None else (good,)), column
        assert column.title and column.decimals in range(5), column
    keys = [column.key for column in columns]
    assert len(keys) == len({*keys})
    of_charts = [key for chart in TABLES[name].charts for key in (chart.x, *chart.y, chart.series or chart.x)]
    assert {*of_charts, TABLES[name].within or keys[0]} <= {*keys}


def test_values_are_told_as_people_read_them() -> None:
    column = Column("x", "x", decimals=2)
    shown = [value_text(value, column) for value in (None, True, False, 1234, 1234.5, "a", [1])]
    assert shown == ["", "yes", "no", "1,234", "1,234.50", "a", "[1]"]
    assert value_text(0.5, Column("x", "x", decimals=-7)) == "0"
    assert value_text(0.5, Column("x", "x", decimals=99)) == "0.500000000000"
    assert value_text(1.26, Column("x", "x", decimals=1)) == "1.3"
    assert [number(value) for value in (3, 0.5, True, "3", None, math.nan, 10**400)] == [3, 0.5, *[None] * 5]


def test_tables_on_a_terminal_show_what_was_filled(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results("demo", {})
    results.add(SPEED, side="a", n=2, speed=1234.56)
    results.add(SPEED, side="b", n=1, speed=2.0)
    results.add(SPEED, side="b", n=2, speed=7.0)
    results.skip("c", "not here")
    show_run(results.run)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "",
        "Speed",
        "side n speed, tokens/s",
        "a    2         1,234.6",
        "b    2             7.0",
        "b    1             2.0",
        "How fast.",
        "skipped c: not here",
    ]


def test_names_and_numbers_are_never_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Titles are broken where there is no room, and then columns stand below each other."""
    columns = [Column(f"c{at}", f"a long title number {at}") for at in range(5)]
    table = Table("t", "T", (Column("name", "name"), *columns, Column("text", "text")))
    results = Results("demo", {})
    results.add(table, name="localagent", text="word " * 30, **{column.key: 1234567 for column in columns})
    shown = {}
    for width in (400, 90, 65):
        monkeypatch.setattr("localagent_bench.cli.output.table_width", lambda width=width: width)
        monkeypatch.setattr("localagent.cli.terminal.table_width", lambda width=width: width)
        show_run(results.run)
        shown[width] = capsys.readouterr().out
        assert all(len(line) <= width for line in shown[width].splitlines())
        assert shown[width].count("1,234,567") == 5
    assert shown[400].count("a long title number 3") == shown[65].count("a long title number 3: ") == 1
    assert "a long title number 3" not in shown[90]
    assert "localagent" in shown[90]


def test_nothing_that_was_found_controls_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "[red]x\x1b[31m\u202e\r\x00[/red]"
    table = Table(evil, evil, (Column(evil, evil, evil),), evil)
    results = Results(evil, {})
    results.add(table, **{evil: evil})
    results.skip(evil, evil)
    show_run(results.run)
    shown = capsys.readouterr().out
    assert not set("\x1b\u202e\r\x00") & set(shown)
    assert shown.count("[red]x\\x1b[31m\\u202e\\x0d\\x00[/red]") >= 6


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text(HEAD + json.dumps({"kind": "k" * 300}))
    with pytest.raises(UsageError) as error:
        read_runs(path)
    assert len(str(error.value).split(" (")[1].removesuffix("): remove it")) == 200
