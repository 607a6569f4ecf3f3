"""What a benchmark finds: rows of tables, each one written as a line of JSON when it is found.

    {"kind": "run", "bench": "parsers", "started": "...", "machine": {...}, "packages": {...}, ...}
    {"kind": "table", "name": "parsers.faults", "title": "...", "columns": [...], "charts": [...], ...}
    {"kind": "row", "table": "parsers.faults", "parser": "localagent", "right": 5012, "wrong": 0, ...}
    {"kind": "skip", "what": "vllm", "reason": "the package vllm is not installed"}
    {"kind": "case", "table": "parsers.faults", "parser": "...", "id": "...", ...}
    {"kind": "end", "seconds": 41.2}

A table is described before its first row, so that a file says by itself how to show it: `jq`, the terminal
and the report read the same lines. Times are in UTC (ISO 8601).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self

from localagent.errors import UsageError
from localagent.wording import one_line

Better = Literal["more", "less", ""]
ChartKind = Literal["bars", "stack", "lines"]
_HEAD = ("bench", "started", "machine", "packages", "options")
"""What the first line of a run says."""
PACKAGES = (
    "llama-cpp-python",
    "mlx",
    "mlx-lm",
    "transformers",
    "vllm",
    "sglang",
    "xllamacpp",
    "canitoolcall",
    "bfcl-eval",
    "llguidance",
)
"""Packages whose versions a run records, where they are installed."""


@dataclass(frozen=True, slots=True)
class Column:
    """One measure, or what tells the rows apart."""

    key: str
    title: str
    unit: str = ""
    better: Better = ""
    """Which of two values is better; "" if neither is."""
    decimals: int = 2
    """Of numbers that are no whole ones."""


@dataclass(frozen=True, slots=True)
class Chart:
    """How some columns of a table are drawn."""

    kind: ChartKind
    """`bars`: a bar for each row and `y`; `stack`: the `y` of a row end to end; `lines`: `y` over `x`."""
    x: str
    """The key of the column along the axis: names for bars, numbers for lines."""
    y: tuple[str, ...]
    title: str = ""
    series: str = ""
    """The key of the column that tells lines, or groups of bars, apart."""
    log: bool = False
    """Both axes of `lines` are logarithmic."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that belong together. `name` begins with the name of the benchmark."""

    name: str
    title: str
    columns: tuple[Column, ...]
    told: str = ""
    """How it was measured and what its words mean, in a few sentences."""
    charts: tuple[Chart, ...] = ()
    within: str = ""
    """The key of the column whose equal values make rows comparable; "": all of them are."""


@dataclass(slots=True)
class BenchRun:
    """What is in a file of results: one run of one benchmark."""

    bench: str
    started: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By the names of their tables."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What took no part, and why."""
    cases: list[dict[str, Any]] = field(default_factory=list)
    """Single outcomes that a reader may want to see, such as a call that was read wrong."""
    seconds: float | None = None
    """None for a run that did not end."""


class Results:
    """Where a benchmark puts what it finds. `run` is what there is so far."""

    def __init__(
        self, bench: str, options: Mapping[str, Any], write: Callable[[str], object] | None = None
    ) -> None:
        """`options`: how it was asked for. `write` gets each line of JSON, with its end."""
        self.run = BenchRun(
            bench,
            datetime.now(UTC).isoformat(timespec="seconds"),
            describe_machine(),
            installed(PACKAGES),
            dict(options),
        )
        self._write = write
        self._began = monotonic()
        self._line("run", {name: getattr(self.run, name) for name in _HEAD})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.run.seconds = round(monotonic() - self._began, 1)
        if kind is None:  # a report says of a run without its end that it is unfinished
            self._line("end", {"seconds": self.run.seconds})

    def add(self, table: Table, **cells: Any) -> None:
        """A row. Values are texts, numbers, booleans or None: not measured."""
        unknown = cells.keys() - {column.key for column in table.columns}
        assert not unknown, f"{table.name} has no columns {unknown}"
        if table.name not in self.run.tables:
            self.run.tables[table.name] = table
            self._line("table", asdict(table))
        row = {key: _finite(value) for key, value in cells.items()}
        self.run.rows.setdefault(table.name, []).append(row)
        self._line("row", {"table": table.name, **row})

    def skip(self, what: str, reason: str) -> None:
        """Say that something takes no part."""
        self.run.skipped[what] = reason
        self._line("skip", {"what": what, "reason": reason})

    def case(self, table: Table, **told: Any) -> None:
        """A single outcome."""
        case = {"table": table.name, **told}
        self.run.cases.append(case)
        self._line("case", case)

    def _line(self, kind: str, told: Mapping[str, Any]) -> None:
        assert "kind" not in told, "a cell of that name would take the place of the line's"
        if self._write is not None:
            self._write(json.dumps({"kind": kind, **told}, allow_nan=False) + "\n")


# -- values as people read them ---------------------------------------------------------------------------


def value_text(value: Any, column: Column) -> str:
    """A value as people read it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.{min(max(column.decimals, 0), 12)}f}"
        case int():
            return f"{value:,}"
    return str(value)


def number(value: Any) -> float | None:
    """A value that can be compared and drawn; None for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


def in_order(table: Table, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with those together that are comparable."""
    if not table.within:
        return list(rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row.get(table.within)), []).append(row)
    return [row for group in groups.values() for row in group]


def best_cells(table: Table, rows: Sequence[Mapping[str, Any]]) -> set[tuple[int, str]]:
    """The best values, as places of rows and keys of columns. Where all are equal, none is the best."""
    found = set()
    for column in table.columns:
        groups: dict[str, dict[int, float]] = {}
        for at, row in enumerate(rows):
            if column.better and (value := number(row.get(column.key))) is not None:
                groups.setdefault(str(row.get(table.within)), {})[at] = value
        for values in groups.values():
            best = (max if column.better == "more" else min)(values.values())
            if any(value != best for value in values.values()):
                found |= {(at, column.key) for at, value in values.items() if value == best}
    return found


# -- files ------------------------------------------------------------------------------------------------


def read_runs(path: Path) -> list[BenchRun]:
    """The runs in a file of results, in order. Raises UsageError that names the line at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    # Not splitlines: a line separator may stand in a string, unescaped.
    runs = list(_runs(text.split("\n"), str(path)))
    if not runs:
        raise UsageError(f"{path} holds no results: make them with `localagent bench ... --out {path}`")
    return runs


def _runs(lines: Iterable[str], name: str) -> Iterator[BenchRun]:
    from pydantic import TypeAdapter

    run: BenchRun | None = None
    begins = TypeAdapter(BenchRun)
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            kind = told.pop("kind")
            if kind == "run":
                if run is not None:
                    yield run
                run = begins.validate_python({key: told[key] for key in _HEAD if key in told})
            elif run is not None:
                _take(run, kind, told)
            else:
                raise ValueError("the first line has to be that of a run")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = one_line(_why(error), 200)
            raise UsageError(f"{name}, line {place:,}, is no result ({why}): remove it") from error
    if run is not None:
        yield run


def _why(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'value'}: {first['msg']}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _take(run: BenchRun, kind: str, told: dict[str, Any]) -> None:
    from pydantic import TypeAdapter

    match kind:
        case "table":
            run.tables[told["name"]] = TypeAdapter(Table).validate_python(told)
        case "row":
            run.rows.setdefault(run.tables[told.pop("table")].name, []).append(told)
        case "skip":
            run.skipped[str(told["what"])] = str(told["reason"])
        case "case":
            run.cases.append(told)
        case "end":
            run.seconds = TypeAdapter(float).validate_python(told["seconds"])
        case _:
            raise ValueError(f"no kind of line is called {kind}")


def describe_machine() -> dict[str, Any]:
    """The processor, cores, memory, system and Python that a figure belongs to."""
    import os
    import platform

    import psutil  # type: ignore[import-untyped]

    from localagent.distribution import version
    from localagent.engines.processor import read_processor

    return {
        "processor": str(read_processor()),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "localagent": version() or "unknown",
    }


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed here."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _finite(value: Any) -> Any:
    """JSON has no infinity: such a figure was not measured."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
