"""What parsing costs: microseconds per piece, and memory, against the length of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from localagent.parsers import DIALECTS
from localagent_bench.parsers.children import Child, Gone
from localagent_bench.results import Chart, Column, Results, Table

PIECE = 4
"""Characters of a piece, about a token."""
SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 4_000)
COMPARED = ("hermes", "lfm2")
"""The formats in which parsers are compared: one that nearly all read, and the one of LFM2."""
_ENOUGH = 0.1
"""Seconds for an output after which none ten times as long follows: that may take a hundred times this."""
_SECONDS = 120.0

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    for name, properties in (("write", {"text": {"type": "string"}}), ("save", {"rows": {"type": "array"}}))
]


def _content(dialect: str, size: int) -> str:
    return ("The quick brown fox jumps over the lazy dog; then it rests. " * (size // 60 + 1))[:size]


def _string(dialect: str, size: int) -> str:
    return DIALECTS[dialect].render([("write", {"text": _content(dialect, size - 60)})])


def _nested(dialect: str, size: int) -> str:
    item = {"id": 17, "tags": ["a", "b"], "ok": True, "at": 3.25}
    length = len(DIALECTS[dialect].render([("save", {"rows": [item] * 10})])) // 10
    return DIALECTS[dialect].render([("save", {"rows": [item] * max(1, (size - 60) // length)})])


OUTPUTS: dict[str, Callable[[str, int], str]] = {"text": _content, "string": _string, "nested": _nested}
"""Content, one long string argument, and dense nested arguments."""

SPEED = Table(
    "parsers.speed",
    "Cost of a piece",
    (
        Column("parser", "parser"),
        Column("dialect", "format"),
        Column("output", "output"),
        Column("series", "parser, output"),
        Column("size", "characters"),
        Column("piece", "a piece", "us", "less"),
        Column("memory", "peak memory", "bytes per character", "less"),
    ),
    f"Outputs of growing length in pieces of {PIECE} characters, each read up to nine times in the parser's "
    "own process, up to three times from 100,000 characters on, and once at a million: the median of these "
    "times, divided by the number of pieces. Memory is what Python allocates at most while it reads; of "
    f"parsers in other languages only their Python part shows. A parser that needs more than {_ENOUGH:g} s "
    "for an output gets no longer ones.",
    (Chart("lines", "size", ("piece",), "Cost of a piece of four characters", "series", log=True),),
)
SPEED_OF = Table(
    "parsers.speed_of",
    "Cost of a piece, by format (localagent)",
    (
        Column("dialect", "format"),
        Column("output", "output"),
        Column("small", "at 10,000 characters", "us", "less"),
        Column("large", "at the largest", "us", "less"),
        Column("flatness", "largest / 10,000"),
        Column("to_lfm2", "to lfm2"),
    ),
)


def measure_speed(
    results: Results,
    parsers: Sequence[Child],
    dialects: Sequence[str],
    sizes: Sequence[int],
    drop: Callable[[Child, str], object],
) -> None:
    """Compare parsers in the formats that most of them read."""
    for parser in list(parsers):
        try:
            for dialect in dialects:
                if parser.dialects is None or dialect not in parser.dialects:
                    continue
                for kind in OUTPUTS:
                    for size in sizes:
                        taken = _timed(parser, dialect, kind, size)
                        if taken is None:
                            break
                        length, seconds, peak = taken
                        results.add(
                            SPEED,
                            parser=parser.name,
                            dialect=dialect,
                            output=kind,
                            series=f"{parser.name}, {dialect}, {kind}",
                            size=length,
                            piece=1e6 * seconds / -(-length // PIECE),
                            memory=peak / length,
                        )
                        if seconds > _ENOUGH:
                            break
        except Gone as gone:
            drop(parser, str(gone))


def measure_dialects(
    results: Results, ours: Child, dialects: Sequence[str], size: int, drop: Callable[[Child, str], object]
) -> None:
    """Every format, in turn with lfm2."""
    try:
        for kind in OUTPUTS:
            lfm2 = _timed(ours, "lfm2", kind, size)
            for dialect in dialects:
                small, large = _timed(ours, dialect, kind, 10_000), _timed(ours, dialect, kind, size)
                if small is None or large is None or lfm2 is None:
                    continue
                first, last = small[1] / small[0], large[1] / large[0]
                results.add(
                    SPEED_OF,
                    dialect=dialect,
                    output=kind,
                    small=1e6 * PIECE * first,
                    large=1e6 * PIECE * last,
                    flatness=last / first,
                    to_lfm2=last / (lfm2[1] / lfm2[0]),
                )
    except Gone as gone:
        drop(ours, str(gone))


def _timed(parser: Child, dialect: str, kind: str, size: int) -> tuple[int, float, float] | None:
    """Length, seconds and bytes; None where the parser loses the call, or does not measure. Raises Gone."""
    raw = OUTPUTS[kind](dialect, size)
    pieces = [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]
    rounds = 9 if size <= 10_000 else 3 if size <= 100_000 else 1
    request = {"dialect": dialect, "tools": TOOLS, "chunks": pieces, "rounds": rounds}
    answer = parser.ask(request, _SECONDS)
    found = answer.get("tool_calls")
    if not isinstance(found, list) or len(found) != (kind != "text") or "seconds" not in answer:
        return None
    return len(raw), float(answer["seconds"]), float(answer.get("peak") or 0)
