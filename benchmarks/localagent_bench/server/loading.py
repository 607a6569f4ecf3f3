"""The load on several servers, which take turns within a round, and the tables made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from localagent.errors import LocalAgentError, ServerUnreachable
from localagent.wording import one_line
from localagent_bench.results import Chart, Column, Results, Table
from localagent_bench.server.load import (
    RUNNING,
    Figures,
    Load,
    RequestWriter,
    long_prompt,
    short_answers,
    streams,
)
from localagent_bench.server.target import MeasuredServer

Scenario = Callable[[MeasuredServer, RequestWriter, Load], Figures]
_SERVER = Column("server", "server")
_RATIO = Column("ratio", "ratio", decimals=2)
_CPU = Column("cpu", "CPU", "s", "less", 2)
STREAMS = Table(
    "server.streams",
    "Many streams at once",
    (
        Column("streams", "streams"),
        _SERVER,
        Column("speed", "all together", "tokens/s", "more", 1),
        _RATIO,
        Column("first", "first token", "s, median", "less", 3),
        Column("worst", "worst", "s", "less", 3),
        Column("gap", "longest gap", "s", "less", 3),
        Column("tokens", "tokens"),
        Column("prompt", "prompt tokens"),
        _CPU,
    ),
    "Requests that arrive at the same moment. The gap is the longest between two chunks of a stream. Servers "
    "whose templates differ count other tokens for the same prompts.\n"
    "In this table and those below, servers take turns within a round, with the same prompts, none of which "
    "comes twice; figures are medians of the rounds, ratios are to the first server within a round. "
    "Temperature 0, a connection for each request.",
    (
        Chart("lines", "streams", ("speed",), "All streams together", "server"),
        Chart("lines", "streams", ("first",), "First token, at the median", "server"),
    ),
    within="streams",
)
LONG = Table(
    "server.long",
    "A long prompt among streams",
    (
        Column("words", "words"),
        _SERVER,
        Column("gap", "longest gap", "s", "less", 3),
        _RATIO,
        Column("first", "its first token", "s", "less", 3),
        Column("meanwhile", "chunks meanwhile", "", "more"),
        _CPU,
    ),
    f"{RUNNING} streams are written when a long prompt arrives: the longest gap in them until its first "
    "token, and the time to that.",
    (
        Chart("bars", "server", ("gap",), f"Longest gap in {RUNNING} streams"),
        Chart("bars", "server", ("first",), "First token of the long prompt"),
    ),
)
SHORT = Table(
    "server.short",
    "Answers of one token",
    (
        Column("clients", "clients"),
        _SERVER,
        Column("speed", "answers", "per second", "more", 1),
        _RATIO,
        Column("first", "one takes", "s, median", "less", 4),
        Column("worst", "worst", "s", "less", 4),
        _CPU,
    ),
    "The same short prompt again and again: mostly the cost of HTTP and JSON.",
    (Chart("bars", "clients", ("speed",), "Answers per second, by the number of clients", "server"),),
    within="clients",
)


def load_servers(
    results: Results, targets: Sequence[MeasuredServer], load: Load, tell: Callable[[str], object]
) -> None:
    """Run every scenario on every server. `tell`: gets a line about how far it is."""
    here = list(targets)
    known = [target.context // 4 for target in targets if target.context]
    load = replace(load, words=min([load.words, *known]))  # a word may be three tokens
    for target in targets:  # the first computations of an engine are slower
        tell(f"{target.name}: warm-up")
        _run(results, target, "warm-up", partial(streams, count=1), RequestWriter("warm-up", 2), load, here)
    for table, title, place, scenario in _scenarios(load):
        found: dict[str, list[Figures]] = {}
        taking = list(here)
        for number in range(load.rounds):
            for target in taking[:: 1 if number % 2 else -1]:
                tell(f"round {number + 1}, {title}, {target.name}")
                writer = RequestWriter(f"{title} {number}", load.tokens)
                figures = _run(results, target, title, scenario, writer, load, here)
                if figures is None:  # it would fail again, or be waited for again
                    taking.remove(target)
                    found.pop(target.name, None)
                else:
                    found.setdefault(target.name, []).append(figures)
        for target in taking:
            results.add(table, server=target.name, **place, **_row(found, target.name, taking[0].name))


def _scenarios(load: Load) -> Iterator[tuple[Table, str, dict[str, Any], Scenario]]:
    """The table, the title, the columns that say which it is, and the scenario."""
    for count in load.streams:
        title = f"{count} stream{'s' * (count > 1)}"
        yield STREAMS, title, {"streams": count}, partial(streams, count=count)
    yield LONG, "long prompt", {"words": load.words}, long_prompt
    for clients in load.clients:
        title = f"answers of one token, {clients} client{'s' * (clients > 1)}"
        yield SHORT, title, {"clients": clients}, partial(short_answers, clients=clients)


def _run(
    results: Results,
    target: MeasuredServer,
    title: str,
    scenario: Scenario,
    writer: RequestWriter,
    load: Load,
    here: list[MeasuredServer],
) -> Figures | None:
    """One scenario on one server; None if it failed, and without the server in `here` if that is gone."""
    before = target.cpu() if target.cpu else 0.0
    try:
        figures = scenario(target, writer, load)
    except LocalAgentError as error:
        results.skip(f"{target.name}, {title}", one_line(str(error), 300))
        if isinstance(error, ServerUnreachable) and target in here:
            here.remove(target)
        return None
    return {**figures, **({"cpu": target.cpu() - before} if target.cpu else {})}


def _row(found: Mapping[str, Sequence[Figures]], name: str, reference: str) -> dict[str, Any]:
    """The medians of a server's figures, and the median of the ratios of the first of them."""
    rounds = found[name]
    row: dict[str, Any] = {}
    for key in rounds[0]:
        values = [value for each in rounds if (value := each[key]) is not None]
        row[key] = median(values) if values else None
    for key in ("tokens", "prompt", "meanwhile"):
        if row.get(key) is not None:
            row[key] = round(row[key])
    if len(found) > 1:
        head = next(iter(rounds[0]))
        pairs = zip(rounds, found[reference], strict=True)
        ratios = [mine[head] / theirs[head] for mine, theirs in pairs if mine[head] and theirs[head]]  # type: ignore[operator]
        row["ratio"] = median(ratios) if ratios else None
    return row
