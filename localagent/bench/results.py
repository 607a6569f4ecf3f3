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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self

from localagent.errors import UsageError

Better = Literal["more", "less", ""]
ChartKind = Literal["bars", "stack", "lines"]
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


@dataclass(slots=True)
class Run:
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
        self.run = Run(
            bench,
            datetime.now(UTC).isoformat(timespec="seconds"),
            describe_machine(),
            installed(PACKAGES),
            dict(options),
        )
        self._write = write
        self._began = monotonic()
        names = ("bench", "started", "machine", "packages", "options")
        self._line("run", {name: getattr(self.run, name) for name in names})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.seconds = round(monotonic() - self._began, 1)
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


def read_runs(path: Path) -> list[Run]:
    """The runs in a file of results, in order. Raises UsageError that names the line at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    runs = list(_runs(text.splitlines(), str(path)))
    if not runs:
        raise UsageError(f"{path} holds no results: make them with `localagent bench ... --out {path}`")
    return runs


def _runs(lines: Iterable[str], name: str) -> Iterator[Run]:
    run: Run | None = None
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            kind = told.pop("kind")
            if kind == "run":
                if run is not None:
                    yield run
                run = Run(**told)
            elif run is not None:
                _take(run, kind, told)
            else:
                raise ValueError("the first line has to be that of a run")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"{name}, line {number:,}, is no result ({error}): remove it") from error
    if run is not None:
        yield run


def _take(run: Run, kind: str, told: dict[str, Any]) -> None:
    match kind:
        case "table":
            columns = tuple(Column(**each) for each in told.pop("columns"))
            charts = tuple(Chart(**{**each, "y": tuple(each["y"])}) for each in told.pop("charts"))
            run.tables[told["name"]] = Table(columns=columns, charts=charts, **told)
        case "row":
            run.rows.setdefault(run.tables[told.pop("table")].name, []).append(told)
        case "skip":
            run.skipped[told["what"]] = told["reason"]
        case "case":
            run.cases.append(told)
        case "end":
            run.seconds = told["seconds"]
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
