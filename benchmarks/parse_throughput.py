"""What parsing costs: per piece while it streams, for a whole text, and in memory.

    python benchmarks/parse_throughput.py [--sizes 1000,10000,100000] [--rounds 5] [--json] [--plot FILE.png]

Three outputs of growing size: content, one long string argument, and dense nested arguments. `stream` feeds
pieces of four characters, about a token each, and gives microseconds per piece: flat means that the cost of a
token does not grow with what came before. `whole` feeds the text at once. `memory` is the peak that Python
allocates while streaming, beside the output itself.

Where mlx-lm is installed, its text state machine and its parser for this format run on the same outputs, in
turn with ours; its parser runs once, when the block has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from parsers import DIALECTS, CallEnd, StreamParser

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
PIECE = 4


def content(size: int) -> str:
    """Prose without calls."""
    return ("The quick brown fox jumps over the lazy dog; then it rests. " * (size // 60 + 1))[:size]


def string_argument(size: int) -> str:
    """One call whose one argument is nearly all of the output."""
    return f"{START}[write(text='{content(size - 60)}')]{END}"


def nested_arguments(size: int) -> str:
    """One call whose argument is a long list of small mappings."""
    item = '{"id": 17, "tags": ["a", "b"], "ok": true, "at": 3.25}, '
    return f"{START}[save(rows=[{item * max(1, (size - 60) // len(item))}])]{END}"


OUTPUTS = {"text": content, "string": string_argument, "nested": nested_arguments}


def pieces_of(raw: str) -> list[str]:
    """Four characters at a time."""
    return [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]


class Ours:
    """The parser of this repository."""

    name = "localagent"

    def stream(self, pieces: list[str]) -> int:
        """Feed the pieces; returns how many calls came out."""
        parser = StreamParser(DIALECTS["lfm2"])
        calls = 0
        for piece in pieces:
            for event in parser.feed(piece):
                calls += type(event) is CallEnd
        return calls + sum(type(event) is CallEnd for event in parser.close())


class MlxLm:
    """mlx-lm's state machine, and its parser once a block has ended."""

    name = "mlx-lm"

    def __init__(self) -> None:
        from mlx_lm.generate import TextStateMachine
        from mlx_lm.tool_parsers.pythonic import parse_tool_call

        self._split: Callable[..., Any] = TextStateMachine.split
        self._parse: Callable[..., Any] = parse_tool_call
        self._machine = TextStateMachine(
            {
                "normal": [("<think>", "reasoning"), (START, "tool")],
                "reasoning": [("</think>", "normal"), (START, "tool")],
                "tool": [(END, "normal")],
            }
        )

    def stream(self, pieces: list[str]) -> int:
        """Feed the pieces; returns how many calls came out."""
        state = self._machine.make_state()
        body: list[str] = []
        calls = 0
        for piece in pieces:
            state, segments = self._split(state, piece)
            for place, (name, text) in enumerate(segments):
                if name == "tool":
                    body.append(text)
                    if place < len(segments) - 1:
                        found = self._parse("".join(body))
                        calls += len(found) if isinstance(found, list) else 1
                        body.clear()
        return calls


def seconds(run: Callable[[], int], expected: int) -> float:
    """One timed run; a parser that loses the call is not measured."""
    started = perf_counter()
    calls = run()
    elapsed = perf_counter() - started
    if calls != expected:
        raise SystemExit(f"expected {expected} calls, got {calls}")
    return elapsed


def peak_memory(run: Callable[[], int]) -> int:
    """Bytes that Python allocates at most during one run."""
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def measure(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row per output, size and parser."""
    parsers: list[Ours | MlxLm] = [Ours()]
    with contextlib.suppress(ImportError):
        parsers.append(MlxLm())
    rows = []
    for kind, make in OUTPUTS.items():
        expected = int(kind != "text")
        for size in sizes:
            raw = make(size)
            pieces = pieces_of(raw)
            repeat = max(1, 20_000 // len(pieces))
            times: dict[tuple[str, str], list[float]] = {}
            for _ in range(rounds):
                for parser in parsers:
                    for way, given in (("stream", pieces), ("whole", [raw])):
                        taken = [
                            seconds(lambda p=parser, g=given: p.stream(g), expected) for _ in range(repeat)
                        ]  # type: ignore[misc]
                        times.setdefault((parser.name, way), []).append(median(taken))
            rows += [
                {
                    "output": kind,
                    "size": len(raw),
                    "parser": parser.name,
                    "us_per_piece": round(1e6 * median(times[parser.name, "stream"]) / len(pieces), 2),
                    "whole_mb_per_s": round(len(raw) / median(times[parser.name, "whole"]) / 1e6, 2),
                    "memory_per_char": round(
                        peak_memory(lambda p=parser, g=pieces: p.stream(g)) / len(raw),
                        2,  # type: ignore[misc]
                    ),
                }
                for parser in parsers
            ]
    return rows


def flatness(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Cost per piece at the largest size over that at 10 kB (or the smallest), ours."""
    ratios = {}
    for kind in OUTPUTS:
        own = [row for row in rows if row["output"] == kind and row["parser"] == Ours.name]
        reference = next((row for row in own if row["size"] >= 9_000), own[0])
        ratios[kind] = round(own[-1]["us_per_piece"] / reference["us_per_piece"], 2)
    return ratios


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Microseconds per piece over the size of the output, one panel per kind of output."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(OUTPUTS), figsize=(12, 4), sharey=True)
    for panel, kind in zip(panels, OUTPUTS, strict=True):
        for name in dict.fromkeys(row["parser"] for row in rows):
            chosen = [row for row in rows if row["output"] == kind and row["parser"] == name]
            panel.plot([r["size"] for r in chosen], [r["us_per_piece"] for r in chosen], "o-", label=name)
        panel.axhline(5, color="grey", linestyle=":", label="target")
        panel.set(xscale="log", yscale="log", title=kind, xlabel="characters of output")
        panel.grid(True, alpha=0.3)
    panels[0].set_ylabel("microseconds per piece of 4 characters")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Parse the command line, measure, print."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--sizes", default="1000,10000,100000,1000000")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--plot", type=Path, metavar="FILE.png", help="needs matplotlib")
    options = arguments.parse_args()
    rows = measure([int(size) for size in options.sizes.split(",")], options.rounds)
    if options.plot:
        plot(rows, options.plot)
    machine = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}"
    if options.json:
        print(json.dumps({"machine": machine, "rows": rows, "flatness": flatness(rows)}))
        return
    print(machine)
    print(
        f"{'output':<8}{'characters':>11}  {'parser':<12}{'us/piece':>9}{'whole MB/s':>12}{'memory/char':>13}"
    )
    for row in rows:
        print(
            f"{row['output']:<8}{row['size']:>11,}  {row['parser']:<12}{row['us_per_piece']:>9}"
            f"{row['whole_mb_per_s']:>12}{row['memory_per_char']:>13}"
        )
    for kind, ratio in flatness(rows).items():
        print(f"{kind}: cost per piece at the largest size is {ratio} of that at 10 kB")


if __name__ == "__main__":
    main()
