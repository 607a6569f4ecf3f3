"""Many requests at once: how many tokens in all, how soon the first, and who has to wait for whom.

    python benchmarks/concurrency.py [smollm2|nano|nano-mlx|MODEL] [--rounds 3] [--only long,shared]
        [--plot [FILE.png]]     by default benchmarks/concurrency_MODEL.png

N streams     N requests at once: tokens per second in all; the time to the first token, its median and its
              worst; the longest gap between two tokens of a stream
long prompt   three streams are being written when a long prompt arrives: the longest gap in them until its
              first token; the time to that, and how many tokens they got meanwhile
shared        as many requests as there are lanes, all with one long system prompt: how many tokens of the
              prompts were evaluated, of how many; the time to the first token, its median and its worst
churn         as many requests as there are lanes, of which every second one writes a quarter of the tokens:
              those that go on are no neighbours in the batch
tool turns    one after the other, on llama.cpp only: tokens per second of localagent with drafts from the
              prompt (see `localagent.hosts.lookup`) and without, and how many of the drafted tokens came

Each side takes its turn in every round, on the same weights, threads and token ids: localagent with its
lanes, localagent with one lane (a queue), and llama-server from the package xllamacpp or, with nano-mlx,
mlx_lm.server (see `sides`). Figures are medians of the rounds; ratios are taken within a round. Every prompt
is new, so no side finds it evaluated, but for what the requests of one scenario share. All write the same
number of tokens; with quantized weights not always the same ones, because a batch is computed by other
kernels than a single token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from localagent.errors import LocalAgentError
from localagent.hosts.llamacpp.host import physical_cores
from localagent.hosts.lookup import PromptLookup
from localagent.hosts.sampling import Sampling
from localagent.nano.requests import make_requests
from localagent.prompt import Prompt
from localagent_bench.charts import save
from localagent_bench.harness.bare_loops import endless_weights
from localagent_bench.harness.scenarios import (
    Scenario,
    ScenarioRun,
    ScenarioSide,
    Tokens,
    ask,
    long_prompt,
    measure,
    numbers,
    ratios,
    streams,
    streams_title,
)
from localagent_bench.harness.servers import Settings, SideFailed, missing, running
from localagent_bench.harness.sides import SERVERS, Localagent
from localagent_bench.results import Chart, Column, Table
from localagent_bench.server.load import RUNNING, LoadRequest, RequestWriter, gaps, lasted

ALL = ("stream", "long", "shared", "churn", "tool")
TOOL_TURNS = ("single", "parallel", "repeat", "answers", "third_turn", "mapping", "quoted")
"""The kinds of lfm2-nano's requests whose answers repeat words of the prompt."""


class Renderer(RequestWriter):
    """Makes requests of ids, since not every server renders messages as localagent does."""

    def __init__(self, side: Localagent, options: argparse.Namespace, seed: str) -> None:
        super().__init__(seed, options.tokens)
        self._side = side
        self.options = options

    def about(self, count: int) -> str:
        """Words that come to about so many tokens."""
        words = self.words(count).split()
        each = len(self._side.host.tokenize(" ".join(words), False)) / count
        return " ".join(words[: max(1, round(count / each))])

    def request(self, user: str, system: str | None = None) -> LoadRequest:
        """A request, rendered. Raises Failed if it does not fit."""
        request = super().request(user, system)
        prompt = self._side.model.render(user, system=request.system, limit=float("inf"))
        if len(prompt.ids) + request.count > self.options.context:
            raise SideFailed(
                f"a prompt of {len(prompt.ids):,} tokens and {request.count:,} more do not fit into a "
                f"context of {self.options.context:,}: use a smaller --words or a greater --context"
            )
        return replace(request, ids=tuple(prompt.ids))


async def shared(side: ScenarioSide, writer: Renderer) -> ScenarioRun:
    """As many requests as there are lanes, all at once, with the same system prompt."""
    requests = writer.questions(writer.options.lanes, system=writer.about(writer.options.system))
    seen = [Tokens() for _ in requests]
    await asyncio.gather(*map(partial(ask, side), requests, seen))
    figures = {
        "evaluated": float(sum(each.evaluated for each in seen)),
        "of": float(sum(len(request.ids) for request in requests)),
        "first, s": median(each.first for each in seen),
        "worst, s": max(each.first for each in seen),
    }
    return ScenarioRun(figures, seen)


async def churn(side: ScenarioSide, writer: Renderer) -> ScenarioRun:
    """All arrive at once, and every second one ends early."""
    requests = writer.questions(writer.options.lanes)
    for number in range(1, len(requests), 2):
        requests[number] = replace(requests[number], count=max(2, requests[number].count // 4))
    seen = [Tokens() for _ in requests]
    await asyncio.gather(*map(partial(ask, side), requests, seen))
    figures = {
        "tokens/s": sum(request.count for request in requests) / lasted(seen),
        "gap, s": max(gaps(seen)),
    }
    return ScenarioRun(figures, seen)


def tool_turns(side: Localagent) -> dict[str, Any]:
    """Requests that have tools, one after the other, with drafts and without: each as long as its answer."""
    drafted = came = 0
    took = PromptLookup.took

    def counted(lookup: PromptLookup, seconds: float, drafts: int = 0, tokens: int = 1) -> None:
        nonlocal drafted, came
        drafted, came = drafted + drafts, came + (tokens - 1 if drafts else 0)
        took(lookup, seconds, drafts, tokens)

    seconds, tokens, turns, parted = {True: 0.0, False: 0.0}, 0, 0, 0
    for number, request in enumerate(each for kind in TOOL_TURNS for each in make_requests(kind, 2, 16)):
        ids = side.host.render(list(request.messages), list(request.tools), limit=float("inf")).ids
        sampling = Sampling(max_tokens=len(side.host.tokenize(request.output, True)))
        if len(ids) + (sampling.max_tokens or 0) > side.host.context:
            continue
        written = {}
        for drafts in (True, False) if number % 2 else (False, True):
            with ExitStack() as patches:
                patches.enter_context(patch.object(PromptLookup, "took", counted))
                if not drafts:
                    patches.enter_context(patch.object(PromptLookup, "draft", lambda *_: ()))
                generation = side.host.generate(Prompt(ids, ""), sampling)
                written[drafts] = [token.id for token in generation]
            assert generation.finish is not None
            seconds[drafts] += generation.finish.timings.decode
        turns += 1
        tokens += len(written[True]) - 1  # the first one belongs to the prompt
        parted += written[True] != written[False]
    return {
        "tokens/s with drafts": tokens / seconds[True],
        "without": tokens / seconds[False],
        "ratio": seconds[False] / seconds[True],
        "drafted": drafted,
        "of these came": came / drafted if drafted else None,
        "tokens": tokens,
        "turns": turns,
        "turns that differ": parted,
    }


def scenarios(options: argparse.Namespace) -> dict[str, Scenario]:
    """What is measured, by title. One more is a function and a line here; tables, JSON and ratios follow."""
    every: dict[str, Scenario] = {
        **{streams_title(count): partial(streams, count=count) for count in options.streams},
        "long prompt": partial(long_prompt, words=options.words),
        "shared": shared,
        "churn": churn,
    }
    return {title: run for title, run in every.items() if any(word in title for word in options.only)}


def report(
    found: dict[str, dict[str, list[ScenarioRun]]], names: list[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """By scenario and side: medians, the ratio to the last side, and how many requests got other tokens than
    in the second, which serves one at a time.
    """
    alone, reference = names[1], names[-1]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for title, by_side in found.items():
        for name in names:
            runs = by_side[name]
            heads = list(runs[0].figures)
            pairs = [
                (own.ids, other.ids)
                for run, queued in zip(runs, by_side[alone], strict=True)
                for own, other in zip(run.seen, queued.seen, strict=True)
            ]
            rows.setdefault(title, {})[name] = {
                **{head: median(run.figures[head] for run in runs) for head in heads},
                "ratio": ratios(runs, by_side[reference], heads[0]),
                "other tokens": sum(own != other for own, other in pairs) if runs[0].seen[0].ids else None,
                "requests": len(pairs),
                "rounds": [run.figures for run in runs],
            }
    return rows


def tables(rows: dict[str, dict[str, dict[str, Any]]]) -> Iterator[RichTable]:
    """One for every scenario."""
    for title, by_side in rows.items():
        heads = list(next(iter(by_side.values()))["rounds"][0])
        table = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
        table.add_column(no_wrap=True)
        for head in (heads[0], "ratio", *heads[1:], "others"):
            table.add_column(head, justify="right")
        for name, row in by_side.items():
            ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
            other = "-" if row["other tokens"] is None else f"{row['other tokens']} of {row['requests']}"
            cells = [f"{row[head]:.3f}" if head.endswith(" s") else f"{row[head]:,.0f}" for head in heads]
            table.add_row(name, cells[0], ratio, *cells[1:], other)
        yield table


def plot(rows: dict[str, dict[str, dict[str, Any]]], options: argparse.Namespace, path: Path) -> None:
    """Tokens per second and the first token over the streams; the gap and the prompt tokens as bars."""

    def bars(scenario: str, column: Column, title: str) -> tuple[Table, list[dict[str, Any]]]:
        chart = Chart("bars", "side", (column.key,), title)
        sides = [{"side": name, **row} for name, row in rows.get(scenario, {}).items()]
        return Table(scenario, title, (Column("side", "side"), column), charts=(chart,)), sides

    columns = [Column(key, key) for key in ("side", "streams", "tokens/s", "first, s")]
    together = f"{options.model}, {options.threads} threads: all streams together, tokens/s"
    over_streams = (
        Chart("lines", "streams", ("tokens/s",), together, "side"),
        Chart("lines", "streams", ("first, s",), "first token, at the median, s", "side"),
    )
    counted = [
        {"side": name, "streams": count, **row}
        for count in options.streams
        for name, row in rows.get(streams_title(count), {}).items()
    ]
    arrives = f"{RUNNING} streams, and a prompt of {options.words:,} words arrives: gap, s"
    common = f"{options.lanes} requests with one system prompt: tokens evaluated"
    save(
        [
            (Table("streams", together, tuple(columns), charts=over_streams), counted),
            bars("long prompt", Column("gap, s", "gap", decimals=3), arrives),
            bars("shared", Column("evaluated", "evaluated", decimals=0), common),
        ],
        path,
    )


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="smollm2, nano, nano-mlx or a path")
    parser.add_argument("--streams", type=numbers, default=[1, 4, 8], help="how many at once")
    parser.add_argument("--tokens", type=int, default=96, help="that each request writes")
    parser.add_argument("--words", type=int, help="of the long prompt: 1,500, or on nano 1,000")
    parser.add_argument("--system", type=int, default=1000, help="tokens of the shared system prompt")
    parser.add_argument("--lanes", type=int, default=8, help="lanes of localagent, slots of a server")
    parser.add_argument("--context", type=int, default=4096, help="tokens that a lane holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores(), help="llama.cpp only")
    parser.add_argument(
        "--llama-server", metavar="PROGRAM", help="instead of the one in the package xllamacpp"
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], help="|".join(ALL))
    parser.add_argument("--plot", type=Path, nargs="?", const=Path(), help="default: beside this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.words is None:  # nano's vocabulary is small: more words do not fit into its context
        options.words = 1000 if options.model.startswith("nano") else 1500
    sizes = (*options.streams, options.tokens - 1, options.words, options.system, options.rounds)
    if min(sizes) < 1 or options.lanes <= RUNNING:
        parser.error(f"numbers must be 1 or more, --tokens 2 or more, --lanes more than {RUNNING}")
    options.tools = any(word in "tool turns" for word in options.only)
    if not scenarios(options) and not options.tools:
        parser.error(f"--only fits no scenario: {', '.join(ALL)}")
    if options.plot == Path():
        options.plot = Path(__file__).with_name(f"concurrency_{Path(options.model).stem}.png")
    return options


def main() -> None:
    """Load every side, measure, print."""
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy of the weights is removed
    skipped = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = endless_weights(options.model, work)
        settings = Settings(
            str(weights), options.context, options.lanes, options.threads, options.llama_server
        )
        ours = stack.enter_context(closing(Localagent(settings)))
        sides: list[ScenarioSide] = [ours, ours.one_at_a_time()]
        name = "mlx_lm.server" if weights.is_dir() else "llama-server"
        if reason := missing(name, options.llama_server):
            skipped[name] = reason
        else:
            child = stack.enter_context(running(name, settings, work))
            sides.append(SERVERS[name](child.port, child.build))
        runner = stack.enter_context(asyncio.Runner())
        names = [side.name for side in sides]

        def write(seed: str) -> Renderer:
            ours.forget()  # one side's turn is to leave nothing for the next one's
            return Renderer(ours, options, seed)

        for side in sides:  # warm-up: the first computations of an engine are slower
            runner.run(streams(side, write("warm-up"), count=options.lanes))
        rows = report(measure(sides, scenarios(options), options.rounds, write, runner), names)
        drafts = tool_turns(ours) if options.tools and not weights.is_dir() else None
        builds = {side.name: side.build for side in sides}
    if options.plot:
        plot(rows, options, options.plot)
        options.plot = str(options.plot)
    if options.json:
        found = {"builds": builds, "skipped": skipped, "scenarios": rows, "tool turns": drafts}
        print(json.dumps({**vars(options), **found}))
        return
    console = Console()
    console.print(
        f"{options.model}, {options.tokens} tokens each, {options.threads} threads, medians of "
        f"{options.rounds} rounds. Ratios are to {names[-1]}; others: requests that got other tokens than "
        "with one lane."
    )
    for table in tables(rows):
        console.print(table)
    if drafts:
        shown = (f"{key} {value:,.4g}" for key, value in drafts.items() if value is not None)
        console.print(f"tool turns: {', '.join(shown)}", highlight=False)
    for name, build in builds.items():
        console.print(f"{name}: {build}", highlight=False)
    for name, reason in skipped.items():
        console.print(f"{name} took no part: {reason}")


if __name__ == "__main__":
    try:
        main()
    except (SideFailed, LocalAgentError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
