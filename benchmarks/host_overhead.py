"""What the runtime adds per token to the cost of the bare engine loop, on the same weights and threads.

    python benchmarks/host_overhead.py [nano|nano-mlx|smollm2|MODEL] [--tokens 3000] [--rounds 5] [--chat]

Lanes: `bare` is the engine's own loop (see `bare_loops`); `host` adds the host (owner thread, UTF-8, special
flags); `stream` is `model.stream`, which adds the turn and the LFM2 parser; with --chat also `chat`,
llama-cpp-python's `create_chat_completion(stream=True)`. They run in turn, round by round, in one process,
and the median of the rounds counts. Every lane prefills the same prompt and decodes greedily; only decoding
is timed, from token to token, in windows, so that a cost that grows shows. The lanes agree on the tokens, or
the benchmark fails. lfm2-nano and SmolLM2 are copied so that they never end their turn, and can generate any
number of tokens; a model at a path must not end its turn before that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from localagent.hosts.host import EngineHost, Reuse
from localagent.hosts.llamacpp.host import LlamaCppHost, physical_cores
from localagent.hosts.sampling import Sampling
from localagent.messages import UserMessage
from localagent.model import Model
from localagent.parsers import DIALECTS
from localagent.turn import Done
from localagent.wire.chat_template import to_wire
from localagent_bench.harness.bare_loops import BareLlamaCpp, BareMlx, endless_weights

QUESTION = "Write a long story about a fox and a bear."
LEAST = 20
"""Fewer tokens have no first and last tenth."""
Lane = Callable[[], tuple[list[float], list[int]]]


def window(count: int) -> int:
    """The tokens between two looks at the clock: 100, or fewer in a short run, so that it has ten windows."""
    return min(100, (count - 1) // 10)


def timed(tokens: Iterator[Any], count: int) -> tuple[list[float], list[Any]]:
    """Consume `count` items; the times at which a window began or ended."""
    items, times, size = [], [], window(count)
    for number, item in enumerate(islice(tokens, count)):
        if number % size == 0:
            times.append(perf_counter())
        items.append(item)
    return times, items


def host_lane(host: EngineHost, count: int) -> Lane:
    """Consume `host.generate` token by token."""

    def run() -> tuple[list[float], list[int]]:
        prompt = host.render(to_wire([UserMessage(content=QUESTION)], DIALECTS["lfm2"]))
        times, tokens = timed(host.generate(prompt, Sampling(max_tokens=count)), count)
        return times, [token.id for token in tokens]

    return run


def stream_lane(host: EngineHost, count: int) -> Lane:
    """Consume `model.stream`; a window ends with the first event after its tokens."""
    model, size = Model(host, DIALECTS["lfm2"]), window(count)

    def run() -> tuple[list[float], list[int]]:
        times, arrived = [], 0
        feed = host.generate

        def counting(*arguments: Any) -> Any:
            return Counted(feed(*arguments))

        class Counted:
            def __init__(self, generation: Any) -> None:
                self.generation = generation

            def steps(self) -> Iterator[Any]:
                nonlocal arrived
                for step in self.generation.steps():
                    if hasattr(step, "id"):
                        if arrived % size == 0:
                            times.append(perf_counter())
                        arrived += 1
                    yield step

            def __getattr__(self, name: str) -> Any:
                return getattr(self.generation, name)

        host.generate = counting  # type: ignore[method-assign,assignment]
        try:
            *_, done = model.stream(QUESTION, max_tokens=count)
        finally:
            del host.generate
        assert isinstance(done, Done)
        return times, list(done.token_ids)

    return run


def chat_lane(path: Path, threads: int, context: int, count: int) -> tuple[Lane, Callable[[], None]]:
    """llama-cpp-python's own chat completion, streamed: it gives text, a chunk per token."""
    from llama_cpp import Llama

    llama = Llama(str(path), n_ctx=context, n_batch=512, n_threads=threads, verbose=False)
    messages: Any = [{"role": "user", "content": QUESTION}]

    def run() -> tuple[list[float], list[int]]:
        chunks = llama.create_chat_completion(messages, stream=True, max_tokens=count, temperature=0)
        return timed(iter(chunks), count)[0], []

    return run, llama.close


def lanes_of(name: str, threads: int, count: int, chat: bool, work: Path) -> Iterator[dict[str, Lane]]:
    """The lanes on a model, loaded while they are in use."""
    path = endless_weights(name, work)
    context = count + 600
    bare: BareLlamaCpp | BareMlx
    if path.is_dir():
        from localagent.hosts.mlx.host import MlxHost

        host: EngineHost = MlxHost.load(path, context=context, reuse=Reuse(0))
        bare = BareMlx(path)
    else:
        host = LlamaCppHost.load(path, context=context, threads=threads, reuse=Reuse(0))
        bare = BareLlamaCpp(path, threads, context)
    ids = host.render(to_wire([UserMessage(content=QUESTION)], DIALECTS["lfm2"])).ids
    with closing(host), closing(bare):
        lanes: dict[str, Lane] = {
            "bare": lambda: timed(bare.tokens(ids), count),
            "host": host_lane(host, count),
            "stream": stream_lane(host, count),
        }
        if chat:
            lanes["chat"], close = chat_lane(path, threads, context, count)
        yield lanes
        if chat:
            close()


def measure(lanes: dict[str, Lane], rounds: int, count: int) -> dict[str, list[list[float]]]:
    """For every lane and round, the seconds per token of every window."""
    found: dict[str, list[list[float]]] = {name: [] for name in lanes}
    size = window(count)
    names = list(lanes)
    for number in range(rounds + 1):
        runs = {name: lanes[name]() for name in (names if number % 2 else names[::-1])}
        reference = runs["bare"][1]  # which goes on after an end token
        for name, (times, ids) in runs.items():
            if len(times) != len(runs["bare"][0]):
                came = f"{len(ids)} tokens" if ids else "fewer chunks"
                raise SystemExit(
                    f"{name}: the model ended its turn after {came}, not {count}: use a smaller --tokens"
                )
        if any(ids and ids != reference[: len(ids)] for _, ids in runs.values()):
            raise SystemExit("the lanes disagree on the tokens")
        if number == 0:  # warm-up
            continue
        for name, (times, _) in runs.items():
            found[name].append([(b - a) / size for a, b in pairwise(times)])
    return found


def report(found: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """One row per lane. Differences are taken within rounds, so that the drift of the machine cancels."""
    bare = found["bare"]
    whole = {name: [sum(windows) / len(windows) for windows in rounds] for name, rounds in found.items()}

    def extra(name: str, part: slice) -> float:
        each = [
            1e6 * (sum(own[part]) - sum(first[part])) / len(first[part])
            for own, first in zip(found[name], bare, strict=True)
        ]
        return round(median(each), 1)

    last = len(bare[0])
    return [
        {
            "lane": name,
            "tokens_per_second": round(1 / median(whole[name]), 1),
            "ratio": round(median(b / own for b, own in zip(whole["bare"], whole[name], strict=True)), 4),
            "extra_us": extra(name, slice(None)),
            "extra_us_first_tenth": extra(name, slice(1, max(2, last // 10 + 1))),
            "extra_us_last_tenth": extra(name, slice(last - max(1, last // 10), last)),
        }
        for name in found
    ]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="nano", help="nano, nano-mlx, smollm2 or a path")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--chat", action="store_true", help="also llama-cpp-python's chat completion")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tokens < LEAST or options.rounds < 1:
        parser.error(f"--tokens must be {LEAST} or more, --rounds 1 or more")
    with tempfile.TemporaryDirectory() as work:
        for lanes in lanes_of(options.model, options.threads, options.tokens, options.chat, Path(work)):
            rows = report(measure(lanes, options.rounds, options.tokens))
    if options.json:
        print(json.dumps({**vars(options), "lanes": rows}))
        return
    print(f"{options.model}, {options.tokens} tokens, {options.threads} threads, {options.rounds} rounds")
    print(f"{'lane':<8}{'tokens/s':>10}{'ratio':>9}{'us above':>10}{'first tenth':>13}{'last tenth':>12}")
    for row in rows:
        print(
            f"{row['lane']:<8}{row['tokens_per_second']:>10}{row['ratio']:>9}{row['extra_us']:>10}"
            f"{row['extra_us_first_tenth']:>13}{row['extra_us_last_tenth']:>12}"
        )


if __name__ == "__main__":
    main()
