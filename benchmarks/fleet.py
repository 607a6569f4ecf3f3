"""What a fleet of replicas gains by sending a conversation to where it was read: simulated, and checked.

    python benchmarks/fleet.py [smollm2|nano|GGUF] [--times FILE.json] [--replicas 100] [--conversations N]
        [--loads 0.2,0.4,0.6,0.8] [--rooms 9,24,inf] [--change -5 | --change 20] [--plot [FILE.png]]
    python benchmarks/fleet.py [smollm2|nano|GGUF] [--times FILE.json] --check

First it is measured what one replica takes for a token of a prompt and for a step of its lanes, unless `FILE`
says so already; there it is written. Then every way to choose a replica gets the same conversations:

one drawn, in turn    any replica, whatever it has to do
two drawn             the less busy one of two that are drawn (the power of two choices)
slack N               `Affinity` of `localagent.server.fleet`: the one that has read the most of it, while
                      that has no more than N requests more than another one; else two drawn

Load 1 is what the fleet could do if every prompt were reused and all lanes were always full. `--change` has
so many replicas die, or come, in the middle. `--check` starts two real replicas on Ray Serve, lets real
clients hold conversations over HTTP, and prints their figures beside those of the simulation, given the same
arrivals and lengths. `localagent_bench.fleet.simulation` says what is assumed, and so does the output.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from localagent.errors import LocalAgentError
from localagent_bench.charts import save
from localagent_bench.fleet import simulation
from localagent_bench.fleet.policies import Blindly, ByPrefix, Policy
from localagent_bench.fleet.replica import Times
from localagent_bench.fleet.simulation import FleetChange, Simulation, Workload
from localagent_bench.harness.bare_loops import endless_weights
from localagent_bench.harness.servers import SideFailed
from localagent_bench.results import Chart, Column, Table

WARM = 0.2
"""The share of the time that is not counted: the fleet fills."""
MOST_TURNS = 8
"""Of a conversation with real replicas: it has to fit into a context."""
AFTER = 60.0
"""Seconds after a change that are looked at by themselves."""
_SECONDS = ("first p50", "first p95", "first p99", "waited")


def policies(lanes: int) -> list[Callable[[], Policy]]:
    """All that are compared, each made anew for every run."""
    slacks = sorted({0.0, lanes // 2, lanes, 2 * lanes, math.inf})
    return [
        lambda: Blindly(in_turn=False),
        lambda: Blindly(in_turn=True),
        lambda: ByPrefix(0, knowing=False),
        *(partial(ByPrefix, slack) for slack in slacks),
    ]


def workload(times: Times, options: argparse.Namespace, load: float) -> Workload:
    """Conversations that come so quickly that the fleet has this load."""
    rate = load * options.replicas * times.turns_per_second(options.asked, options.answer) / options.turns
    return Workload.drawn(
        options.seed,
        options.conversations,
        rate,
        options.turns,
        options.asked,
        options.answer,
        options.think,
        options.system + times.preamble,
        most=MOST_TURNS if options.check else 1 << 30,
    )


def compare(times: Times, options: argparse.Namespace, load: float, room: float) -> Iterator[dict[str, Any]]:
    """A row for every policy, all with the same conversations."""
    work = workload(times, options, load)
    begin, end = WARM * work.starts[-1], work.starts[-1]
    middle = (begin + end) / 2
    for make in policies(times.lanes):
        policy, started = make(), perf_counter()
        if options.policies and policy.name not in options.policies:
            continue
        seen = Simulation(
            times,
            work,
            options.replicas,
            policy,
            room=room,
            queue=options.queue,
            cache=options.cache * (1 << 20) / times.bytes_per_token,
            changes=[FleetChange(middle, options.change)] if options.change else [],
            seed=options.seed,
        ).run()
        spans = {"": (begin, end)}
        if options.change:
            spans = {"before": (middle - AFTER, middle), "after": (middle, middle + AFTER)}
        for span, (since, until) in spans.items():
            row = {
                "room": room,
                "load": load,
                "policy": policy.name,
                "when": span,
                **seen.figures(since, until),
            }
            yield {**row, "computed, s": perf_counter() - started}


def table(rows: list[dict[str, Any]]) -> RichTable:
    """All rows; the time to the first token in seconds, everything else in percent."""
    shown = RichTable(box=SIMPLE_HEAD, collapse_padding=True)
    heads = ["room", "load", "policy", "turns", "refused", "hit rate", *_SECONDS, "busy", "busiest", "moved"]
    if any(row["when"] for row in rows):
        heads = [*heads[:3], "when", *heads[3:], "broken"]
    for head in heads:
        name = f"{head}, s" if head in _SECONDS else head
        shown.add_column(name, justify="left" if head in ("policy", "when") else "right")
    for row in rows:
        shown.add_row(*(_cell(head, row.get(head)) for head in heads))
    return shown


def _cell(head: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case str():
            return value
        case int():
            return f"{value:,}"
    if head == "room":
        return f"{value:g}"
    if head in ("refused", "hit rate", "busy", "moved"):
        return f"{100 * value:.1f} %"
    return f"{value:.3g}" if head in _SECONDS else f"{value:.2f}"


def compared(found: dict[str, Any]) -> RichTable:
    """Real and simulated side by side, with the error of the simulation."""
    shown = RichTable(box=SIMPLE_HEAD, collapse_padding=True)
    for head in ("", "real", "simulated", "error"):
        shown.add_column(head, justify="right" if head else "left")
    for name, real in found["real"].items():
        told = found["simulated"][name]
        shown.add_row(
            name, f"{real:.3g}", f"{told:.3g}", f"{100 * (told / real - 1):+.0f} %" if real else "-"
        )
    return shown


def plot(rows: list[dict[str, Any]], options: argparse.Namespace, path: Path) -> None:
    """Hit rate and the first token at the 95th percentile against load."""
    first = "first p95"
    columns = (Column("policy", "policy"), Column("load", "load"), Column("hits", ""), Column(first, ""))
    tables = []
    for room in dict.fromkeys(row["room"] for row in rows):
        fleet = f"{options.replicas:,} replicas, each of which takes {room:g} requests at once"
        charts = (
            Chart("lines", "load", ("hits",), f"{fleet}: prompt tokens that were reused, %", "policy"),
            Chart(
                "lines",
                "load",
                (first,),
                f"{options.model}: first token, 95th percentile, s",
                "policy",
                log=True,
            ),
        )
        here = [row for row in rows if row["room"] == room and "hit rate" in row]
        shares = [row | {"hits": 100 * row["hit rate"]} for row in here]
        tables.append((Table(f"{room:g}", "", columns, charts=charts), shares))
    save(tables, path)


def assumptions() -> str:
    """As the module of the simulation states them."""
    return (simulation.__doc__ or "").partition("What is assumed:")[2].strip()


def times_of(options: argparse.Namespace, weights: Callable[[], Path]) -> Times:
    """From the file, or measured and written there. Raises Failed for a file that has no times."""
    path: Path | None = options.times
    if path is not None and path.exists():
        try:
            return Times(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise SideFailed(
                f"{path} has no times of a replica: remove it, and they are measured [{error}]"
            ) from None
    from localagent_bench.fleet.service_times import measure

    times = measure(options.model, weights(), options.lanes, options.threads, options.rounds)
    if path is not None:
        path.write_text(json.dumps(asdict(times), indent=1) + "\n")
    return times


def numbers(text: str) -> list[float]:
    """Numbers with commas between them."""
    return [float(word) for word in text.split(",")]


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="smollm2, nano or a GGUF file")
    parser.add_argument("--times", type=Path, help="read from here, or measured and written here")
    parser.add_argument("--replicas", type=int, help="100, or 2 with --check")
    parser.add_argument("--conversations", type=int, help="20,000, or 16 with --check")
    parser.add_argument("--loads", type=numbers, help="0.2 to 0.9, or 0.5 with --check")
    parser.add_argument("--turns", type=float, default=5, help="of a conversation, on average")
    parser.add_argument("--asked", type=float, help="tokens that a turn adds: 80; with --check words: 40")
    parser.add_argument("--answer", type=float, help="tokens of an answer: 100; with --check 32")
    parser.add_argument("--think", type=float, help="seconds before a turn: 30; with --check 3")
    parser.add_argument("--system", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument(
        "--rooms", type=numbers, help="requests that a replica takes: lanes + 1, and 3 * lanes"
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), help="such as 'two drawn,slack 8'")
    parser.add_argument("--queue", type=float, default=64, help="requests that wait for a lane of all")
    parser.add_argument("--cache", type=float, default=512, help="MB that a replica keeps")
    parser.add_argument("--change", type=int, default=0, help="replicas that die (-5) or come (5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=8, help="of a replica, where times are measured")
    parser.add_argument("--threads", type=int, default=1, help="of a replica, where times are measured")
    parser.add_argument("--rounds", type=int, default=2, help="of measuring times")
    parser.add_argument("--check", action="store_true", help="against real replicas")
    parser.add_argument("--plot", type=Path, nargs="?", const=Path(), help="default: beside this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    usual: dict[str, Any] = {"replicas": 100, "conversations": 20_000, "asked": 80, "answer": 100}
    usual |= {"think": 30, "loads": [0.2, 0.4, 0.6, 0.8, 0.9]}
    if options.check:
        usual = {"replicas": 2, "conversations": 16, "asked": 40, "answer": 32, "think": 3, "loads": [0.5]}
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    means = (options.turns, options.asked, options.answer, options.replicas, options.conversations)
    if min(*means, options.lanes, options.threads, options.rounds) < 1 or min(options.loads) <= 0:
        parser.error("numbers must be 1 or more, and loads more than 0")
    if options.replicas + options.change < 1:
        parser.error("--change leaves no replica")
    if options.plot == Path():
        options.plot = Path(__file__).with_name("fleet.png")
    return options


def main() -> None:
    """Measure, simulate or check, print."""
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy of the weights is removed
    console = Console(width=None if sys.stdout.isatty() else 130)
    with tempfile.TemporaryDirectory() as folder:
        times = times_of(options, lambda: endless_weights(options.model, Path(folder)))
        options.rooms = options.rooms or [times.lanes + 1, 3 * times.lanes]
        told: dict[str, Any] = {"times": asdict(times), "assumed": assumptions()}
        if options.check:
            from localagent_bench.fleet.real_fleet import check

            weights = endless_weights(options.model, Path(folder))
            work = workload(times, options, options.loads[0])
            told |= check(weights, times, work, options.replicas, options.threads)
        else:
            told["rows"] = [
                row
                for room in options.rooms
                for load in options.loads
                for row in compare(times, options, load, room)
            ]
    if options.plot is not None and "rows" in told:
        plot(told["rows"], options, options.plot)
    if options.json:
        print(json.dumps(told))
        return
    steps = ", ".join(f"{1000 * step:.2f}" for step in times.steps)
    console.print(f"Assumed:\n\n{told['assumed']}\n", markup=False, highlight=False)
    token = f"{1000 * times.token:.3f} ms for a token of a prompt"
    console.print(
        f"{times.model} ({times.machine}): {token}; ms for a step of 1 to {times.lanes} lanes: {steps}",
        highlight=False,
    )
    if options.check:
        pace, request = told["pace"], told["request"]
        console.print(
            f"meanwhile prompts took {pace['read']:.2f} times as long, and steps {pace['write']:.2f} times; "
            f"{1000 * request:.0f} ms of each request are not the replica's",
            highlight=False,
        )
    console.print(compared(told) if options.check else table(told["rows"]))


if __name__ == "__main__":
    try:
        main()
    except (SideFailed, LocalAgentError) as error:
        raise SystemExit(f"{error or type(error).__name__}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
