"""Two servers, asked over real sockets by the same client: `localagent serve` beside llama-server.

    python benchmarks/serving.py [smollm2|nano|MODEL] [--rounds 3] [--streams 1,4,8,16] [--json]
        [--plot [FILE.png]]     by default benchmarks/serving_MODEL.png

N streams        N requests at once, streamed: tokens per second in all; the time to the first token, its
                 median and its worst; the longest gap between two tokens of a stream
long prompt      three streams are being written when a long prompt arrives: the longest gap in them until
                 its first token, and the time to that
1-token answers  the same short prompt again and again, by one client and by several at once: what is left is
                 mostly the cost of HTTP and JSON. Answers per second, and the time that one takes

Each server is a process of its own and takes its turn in every round, on the same weights, threads, messages
and number of tokens, the likeliest one each time. Figures are medians of the rounds, ratios are taken within
a round. CPU is what the process of a server has computed meanwhile, on all cores: other work on the machine
changes that much less than it changes the time. The client is httpx in this process, on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx
from bare_loops import endless_weights
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scenarios import (
    QUESTION,
    RUNNING,
    Request,
    Run,
    Scenario,
    Seen,
    Side,
    Writer,
    check,
    first,
    long_prompt,
    measure,
    numbers,
    ratios,
    streams,
    streams_title,
)
from servers import Child, Failed, Settings, missing, running

from localagent.errors import LocalAgentError
from localagent.hosts.llamacpp.host import physical_cores

LONG = "long prompt"
_COLUMNS = ("tokens/s", "first, s", "worst, s", "gap, s", "CPU, s")
# Its quickest sampler: the default chain looks at forty candidates for every token.
_GREEDY: dict[str, dict[str, Any]] = {
    "localagent": {"temperature": 0},
    "llama-server": {"samplers": ["top_k"], "top_k": 1},
}


class Server:
    """A server as its clients see it, over connections that stay open."""

    def __init__(self, name: str, child: Child, client: httpx.AsyncClient) -> None:
        self.name = name
        self.build = child.build
        self.child = child
        self._client = client
        self._url = f"http://127.0.0.1:{child.port}/v1/chat/completions"

    async def complete(self, request: Request, seen: Seen) -> None:
        """A streamed answer: a chunk for each token that completes a text."""
        body = {**self._body(request), "stream": True, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                raise Failed(f"{self.name}: {(await response.aread()).decode(errors='replace')[:500]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise Failed(f"{self.name}: {chunk['error']}")
                if usage := chunk.get("usage"):
                    self._count(usage, seen)
                # The role comes before the first token, and is none.
                if any(
                    value
                    for each in chunk["choices"]
                    for key, value in each["delta"].items()
                    if key != "role"
                ):
                    seen.arrived(None)

    async def answer(self, request: Request, seen: Seen) -> None:
        """A whole answer."""
        seen.started = perf_counter()
        response = await self._client.post(self._url, json=self._body(request))
        if response.status_code != 200:
            raise Failed(f"{self.name}: {response.text[:500]}")
        seen.arrived(None)
        self._count(response.json()["usage"], seen)
        check(self, request, seen)

    def _body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": role, "content": getattr(request, role)} for role in ("system", "user")]
        return {"messages": messages, "max_tokens": request.count, **_GREEDY[self.name]}

    def _count(self, usage: dict[str, Any], seen: Seen) -> None:
        seen.written, seen.prompt = usage["completion_tokens"], usage["prompt_tokens"]


async def short_answers(side: Server, writer: Writer, *, clients: int) -> Run:
    """Answers of one token each, all to the same words, one after the other for each client."""
    request = Request("Answer briefly.", QUESTION + writer.words(8), 1)
    await asyncio.gather(*(side.answer(request, Seen()) for _ in range(clients)))  # its prompt is known then
    seen = [Seen() for _ in range(writer.options.answers)]

    async def ask(mine: list[Seen]) -> None:
        for each in mine:
            await side.answer(request, each)

    await asyncio.gather(*(ask(seen[number::clients]) for number in range(clients)))
    seconds = max(each.times[-1] for each in seen) - min(each.started for each in seen)
    taken = [first(each) for each in seen]
    return Run({"tokens/s": len(seen) / seconds, "first, s": median(taken), "worst, s": max(taken)}, seen)


def metered(scenario: Scenario) -> Scenario:
    """The same with the CPU-seconds of the server."""

    async def run(side: Side, writer: Writer) -> Run:
        assert isinstance(side, Server)
        before = side.child.cpu_seconds()
        found = await scenario(side, writer)
        found.figures["CPU, s"] = side.child.cpu_seconds() - before
        return found

    return run


def scenarios(options: argparse.Namespace) -> dict[str, Scenario]:
    """What is measured, by title."""
    every: dict[str, Any] = {
        **{streams_title(count): partial(streams, count=count) for count in options.streams},
        LONG: long_prompt,
        **{answers_title(clients): partial(short_answers, clients=clients) for clients in options.clients},
    }
    return {title: metered(run) for title, run in every.items()}


def answers_title(clients: int) -> str:
    """How the scenario of so many clients is called."""
    return f"1-token answers, {clients} client{'s' * (clients > 1)}"


def report(found: dict[str, dict[str, list[Run]]], names: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """By scenario and side: medians, ratios to the last side, and the tokens of the prompts."""
    return {
        title: {
            name: {
                **{head: median(run.figures[head] for run in runs) for head in runs[0].figures},
                "ratios": {head: ratios(runs, by_side[names[-1]], head) for head in runs[0].figures},
                "prompt tokens": sum(each.prompt for run in runs for each in run.seen),
                "rounds": [run.figures for run in runs],
            }
            for name, runs in ((name, by_side[name]) for name in names)
        }
        for title, by_side in found.items()
    }


def table(rows: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """All of it. A column of ratios compares the column to its left."""
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for head in ("", "server", *_COLUMNS[:1], "ratio", *_COLUMNS[1:], "ratio"):
        shown.add_column(head, justify="left" if head in ("", "server") else "right", no_wrap=True)
    for title, by_side in rows.items():
        for number, (name, row) in enumerate(by_side.items()):
            cells = {
                head: f"{row[head]:{',.1f' if head == 'tokens/s' else '.3f'}}"
                for head in _COLUMNS
                if head in row
            }
            compared = {
                head: f"{row['ratios'][head]:.2f}" for head in cells if row["ratios"][head] is not None
            }
            speed, *others = (cells.get(head, "-") for head in _COLUMNS)
            shown.add_row(
                "" if number else title,
                name,
                speed,
                compared.get("tokens/s", "-"),
                *others,
                compared.get("CPU, s", "-"),
                end_section=number == len(by_side) - 1,
            )
    return shown


def plot(rows: dict[str, dict[str, dict[str, Any]]], options: argparse.Namespace, path: Path) -> None:
    """Speed, first token and CPU over the streams; the gap and the short answers as bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(15, 8))
    names = list(rows[LONG])
    over_streams = (
        ("tokens/s", f"{options.model}, {options.threads} threads: all streams together"),
        ("first, s", "first token, at the median"),
        ("CPU, s", f"CPU of the server, {options.tokens} tokens each"),
    )
    for panel, (head, title) in zip(axes[0], over_streams, strict=True):
        for name in names:
            values = [rows[streams_title(count)][name][head] for count in options.streams]
            panel.plot(options.streams, values, "o-", label=name)
        panel.set(title=title, xlabel="streams", ylabel=head, ylim=0, xticks=options.streams)
        panel.legend()
    most = answers_title(max(options.clients))
    bars = (
        (LONG, "gap, s", f"gap of {RUNNING} streams, as {options.words:,} words are read"),
        (most, "tokens/s", f"{most}: answers/s"),
        (most, "CPU, s", f"CPU of the server, {options.answers} of these answers"),
    )
    for panel, (scenario, head, title) in zip(axes[1], bars, strict=True):
        panel.bar(names, [rows[scenario][name][head] for name in names], color=["C0", "C1"][: len(names)])
        panel.set(title=title, ylabel=head)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="smollm2, nano or a GGUF file")
    parser.add_argument("--streams", type=numbers, default=[1, 4, 8, 16], help="how many at once")
    parser.add_argument("--tokens", type=int, default=64, help="that each stream writes")
    parser.add_argument("--words", type=int, help="of the long prompt: 1,500, or on nano 1,000")
    parser.add_argument("--answers", type=int, default=200, help="of one token each")
    parser.add_argument("--clients", type=numbers, default=[1, 8], help="who ask for these at once")
    parser.add_argument("--lanes", type=int, help="answers at once: as many as the most streams")
    parser.add_argument("--context", type=int, default=4096, help="tokens that a lane holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--plot", type=Path, nargs="?", const=Path(), help="default: beside this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.words is None:  # nano's vocabulary is small: more words do not fit into its context
        options.words = 1000 if options.model.startswith("nano") else 1500
    options.lanes = options.lanes or max(*options.streams, RUNNING + 1)
    sizes = (
        *options.streams,
        *options.clients,
        options.answers,
        options.tokens - 1,
        options.words,
        options.rounds,
    )
    if min(sizes) < 1 or options.lanes <= RUNNING or options.answers < max(options.clients):
        parser.error(
            f"numbers must be 1 or more, --tokens 2 or more, --lanes more than {RUNNING}, and --answers no "
            "fewer than --clients"
        )
    if options.plot == Path():
        options.plot = Path(__file__).with_name(f"serving_{Path(options.model).stem}.png")
    return options


def main() -> None:
    """Start both servers, measure, print."""
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy of the weights is removed
    skipped = {name: reason for name in _GREEDY if (reason := missing(name))}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = endless_weights(options.model, work)
        settings = Settings(str(weights), options.context, options.lanes, options.threads)
        runner = stack.enter_context(asyncio.Runner())
        client = httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None), trust_env=False)
        stack.callback(lambda: runner.run(client.aclose()))
        sides: list[Side] = [
            Server(name, stack.enter_context(running(name, settings, work)), client)
            for name in _GREEDY
            if name not in skipped
        ]
        if not sides:
            raise Failed("; ".join(skipped.values()))
        for side in sides:  # warm-up: the first computations of an engine are slower
            runner.run(streams(side, Writer(options, "warm-up"), count=options.lanes))
        found = measure(sides, scenarios(options), options.rounds, partial(Writer, options), runner)
    builds = {side.name: side.build for side in sides}
    rows = report(found, list(builds))
    if options.plot:
        plot(rows, options, options.plot)
        options.plot = str(options.plot)
    if options.json:
        print(json.dumps({**vars(options), "builds": builds, "skipped": skipped, "scenarios": rows}))
        return
    console = Console()
    console.width = max(console.width, 110)
    console.print(
        f"{options.model}, {options.tokens} tokens in each stream, {options.threads} threads, "
        f"{options.lanes} lanes, a long prompt of {options.words:,} words, {options.answers} answers of one "
        f"token; medians of {options.rounds} rounds, ratios to {sides[-1].name}.",
        highlight=False,
    )
    console.print(table(rows))
    for title, by_side in rows.items():
        prompts = {name: row["prompt tokens"] for name, row in by_side.items()}
        if len(set(prompts.values())) > 1:
            console.print(
                f"{title}: the prompts were not rendered alike, in tokens: {prompts}", highlight=False
            )
    for name, build in builds.items():
        console.print(f"{name}: {build}", highlight=False)
    for name, reason in skipped.items():
        console.print(f"{name} took no part: {reason}")


if __name__ == "__main__":
    try:
        main()
    except (Failed, httpx.HTTPError, LocalAgentError) as error:
        raise SystemExit(f"{error or type(error).__name__}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
