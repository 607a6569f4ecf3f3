"""What the runtime costs per token above the bare engine loop, on the same weights and threads.

    python benchmarks/host_overhead.py [MODEL.gguf] [--tokens 200] [--rounds 9] [--threads N] [--json]

Three lanes: `bare` is llama_decode and llama.cpp's greedy sampler; `host` adds the host (owner thread,
UTF-8, special flags); `stream` is `model.stream`, which adds the turn and the LFM2 parser. They run in turn,
round by round, in one process; the median of the rounds counts. Each lane prefills the same prompt and
decodes greedily; only the decode time is compared. The lanes agree on the tokens, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from localagent.catalog import load_catalog
from localagent.hosts.llamacpp import LlamaCppHost
from localagent.hosts.llamacpp.host import physical_cores
from localagent.hosts.llamacpp.library import library
from localagent.hosts.protocol import Prompt, Sampling
from localagent.messages import UserMessage
from localagent.model import Model
from localagent.store import WeightStore
from localagent.turn import Done
from localagent.wire.chat_template import to_wire
from parsers import DIALECTS

CONTEXT = 2_048
QUESTION = "Write a long story about a fox and a bear."


@dataclass(frozen=True)
class Run:
    """One lane's run: seconds from the first token to the last, and the ids."""

    seconds: float
    ids: list[int]


class BareLoop:
    """llama_decode and llama.cpp's greedy sampler, with nothing around them."""

    def __init__(self, path: Path, threads: int) -> None:
        self.native = native = library()
        model = native.llama_model_default_params()
        self.model = native.llama_model_load_from_file(str(path).encode(), model)
        parameters = native.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, 512, 512
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self.context = native.llama_init_from_model(self.model, parameters)
        self.memory = native.llama_get_memory(self.context)
        self.sampler = native.llama_sampler_init_greedy()

    def run(self, ids: tuple[int, ...], tokens: int) -> Run:
        """Decode `tokens` tokens."""
        native, context, sampler = self.native, self.context, self.sampler
        native.llama_memory_clear(self.memory, False)
        prompt = (ctypes.c_int32 * len(ids))(*ids)
        native.llama_decode(context, native.llama_batch_get_one(prompt, len(ids)))
        one = (ctypes.c_int32 * 1)()
        batch = native.llama_batch_get_one(one, 1)
        one[0] = native.llama_sampler_sample(sampler, context, -1)
        found = [one[0]]
        started = perf_counter()
        for _ in range(tokens - 1):
            native.llama_decode(context, batch)
            one[0] = native.llama_sampler_sample(sampler, context, -1)
            found.append(one[0])
        return Run(perf_counter() - started, found)

    def close(self) -> None:
        """Free everything."""
        self.native.llama_sampler_free(self.sampler)
        self.native.llama_free(self.context)
        self.native.llama_model_free(self.model)


def run_host(host: LlamaCppHost, prompt: Prompt, tokens: int) -> Run:
    """Consume `host.generate` token by token."""
    generation = host.generate(prompt, Sampling(max_tokens=tokens))
    found = [next(generation).id]
    started = perf_counter()
    found += [token.id for token in generation]
    return Run(perf_counter() - started, found)


def run_stream(model: Model, tokens: int) -> Run:
    """Consume `model.stream` event by event, from the first token's event on."""
    events = model.stream(QUESTION, max_tokens=tokens)
    next(events)
    started = perf_counter()
    *_, done = events
    seconds = perf_counter() - started
    assert isinstance(done, Done)
    return Run(seconds, list(done.token_ids))


def measure(path: Path, tokens: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds per token of every round, by lane."""
    host = LlamaCppHost.load(path, context=CONTEXT, threads=threads)
    bare = BareLoop(path, threads)
    model = Model(host, DIALECTS["lfm2"])
    prompt = host.render(to_wire([UserMessage(content=QUESTION)], model.dialect))
    lanes: dict[str, Callable[[], Run]] = {
        "bare": lambda: bare.run(prompt.ids, tokens),
        "host": lambda: run_host(host, prompt, tokens),
        "stream": lambda: run_stream(model, tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(rounds + 1):
        order = names if number % 2 else names[::-1]
        runs = {name: lanes[name]() for name in order}
        if any(run.ids != runs["bare"].ids[: len(run.ids)] for run in runs.values()):
            raise SystemExit("the lanes disagree on the tokens")
        if number == 0:  # warm-up
            continue
        for name, run in runs.items():
            seconds[name].append(run.seconds / (len(run.ids) - 1))
    bare.close()
    host.close()
    return seconds


def report(seconds: dict[str, list[float]]) -> list[dict[str, str | float]]:
    """One row per lane: median tokens/s, the ratio to the first lane, and microseconds per token above it.

    The difference is the median of the differences within rounds, so that drift of the machine cancels.
    """
    reference = next(iter(seconds.values()))
    pairs = {name: list(zip(reference, values, strict=True)) for name, values in seconds.items()}
    return [
        {
            "lane": name,
            "tokens_per_second": round(1 / median(values), 1),
            "ratio": round(median(first / own for first, own in pairs[name]), 4),
            "extra_us_per_token": round(1e6 * median(own - first for first, own in pairs[name]), 1),
        }
        for name, values in seconds.items()
    ]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file; none: the default model")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = options.model or WeightStore().pull(load_catalog().default, "llamacpp")
    rows = report(measure(path, options.tokens, options.rounds, options.threads))
    if options.json:
        print(json.dumps({"threads": options.threads, "tokens": options.tokens, "lanes": rows}))
        return
    print(f"{'lane':<10}{'tokens/s':>12}{'ratio':>10}{'extra us':>12}")
    for row in rows:
        print(
            f"{row['lane']:<10}{row['tokens_per_second']:>12}{row['ratio']:>10}{row['extra_us_per_token']:>12}"
        )


if __name__ == "__main__":
    main()
