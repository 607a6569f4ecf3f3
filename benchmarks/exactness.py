"""Whether both engines, and every way of reusing a prefix, give the same greedy tokens on lfm2-nano.

    python benchmarks/exactness.py [--count 10] [--calls 200] [--engines llamacpp mlx] [--json]

    answers     of `--calls` unseen requests of each kind, how many are answered exactly, to the end token
    engines     `--count` prompts of each kind: the same ids from llama.cpp and from MLX
    reuse       the same prompts, one after the other, in a host that reuses them and in one that does not
    rewind      long conversations: back to every checkpoint and on from there with other words, against cold
    snapshots   the same conversations in a host that has only the files of one that was closed, against cold

Every comparison counts prompts and differences; a difference is a bug.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from localagent.hosts.host import EngineHost, Reuse
from localagent.hosts.prefix import SnapshotFolder
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF, MLX
from localagent.nano.requests import KINDS, Request, make_requests
from localagent.prompt import Prompt, Trusted
from localagent_bench.training.measure import wrong

GREEDY = Sampling(temperature=0, max_tokens=200)
SEED = 20_26


def load(engine: str, reuse: Reuse) -> EngineHost:
    """lfm2-nano on one of the engines."""
    if engine == "mlx":
        from localagent.hosts.mlx.host import MlxHost

        return MlxHost.load(MLX, reuse=reuse)
    from localagent.hosts.llamacpp.host import LlamaCppHost

    return LlamaCppHost.load(GGUF, threads=1, reuse=reuse)


def prompt_of(host: EngineHost, request: Request) -> Prompt:
    """The conversation of a request; calls in the model's own turns are meant as such."""
    turns = [
        {**turn, "content": Trusted(turn["content"])} if turn["role"] == "assistant" else turn
        for turn in request.messages
    ]
    return host.render(turns, list(request.tools) or None)


def ids_of(host: EngineHost, prompt: Prompt) -> tuple[int, ...]:
    """What the host generates."""
    return tuple(token.id for token in host.generate(prompt, GREEDY))


def compare(found: Iterator[bool], total: int, label: str) -> dict[str, int]:
    """Count, with a line of progress."""
    counted = different = 0
    for same in found:
        counted += 1
        different += not same
        progress(f"{label}: {counted} of {total}, {different} different")
    progress("")
    return {"prompts": counted, "different": different}


def progress(text: str) -> None:
    """One line on a terminal, rewritten."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def answers(engine: str, count: int) -> dict[str, Any]:
    """Exactly answered requests by kind, and the seconds it took."""
    found: dict[str, int] = {}
    started = perf_counter()
    with closing(load(engine, Reuse())) as host:
        for kind in KINDS:
            progress(f"answers, {engine}: {kind}")
            found[kind] = count - len(list(wrong(host, make_requests(kind, count, SEED))))
    progress("")
    return {"count": count, "exact": found, "seconds": round(perf_counter() - started, 1)}


def reuse(engine: str, requests: list[Request]) -> Iterator[bool]:
    """Whatever the prompts share with each other is reused."""
    with closing(load(engine, Reuse())) as warm, closing(load(engine, Reuse(0))) as cold:
        for request in requests:
            prompt = prompt_of(warm, request)
            yield ids_of(warm, prompt) == ids_of(cold, prompt)


def rewind(engine: str, requests: list[Request]) -> Iterator[bool]:
    """From every checkpoint of a conversation on with its last words, which come too early there."""
    with closing(load(engine, Reuse())) as warm, closing(load(engine, Reuse(0))) as cold:
        for request in requests:
            prompt = prompt_of(warm, request)
            first = ids_of(warm, prompt)
            points = [point.length for point in warm._prefix._seats[0].checkpoints]
            tail = prompt.ids[points[-2] :]
            for length in reversed(points[:-1]):
                shorter = Prompt((*prompt.ids[:length], *tail), "")
                generation = warm.generate(shorter, GREEDY)
                ids = tuple(token.id for token in generation)
                assert generation.finish is not None
                reused = generation.finish.cached >= length
                yield reused and ids == ids_of(cold, shorter)
            yield ids_of(warm, prompt) == first


def snapshots(engine: str, requests: list[Request]) -> Iterator[bool]:
    """A first host reads the conversations and is closed; a second one has only its files."""
    with tempfile.TemporaryDirectory() as folder, closing(load(engine, Reuse(0))) as cold:
        stored = Reuse(snapshots=SnapshotFolder(Path(folder)))
        with closing(load(engine, stored)) as host:
            for request in requests:
                ids_of(host, prompt_of(host, request))
        with closing(load(engine, stored)) as host:
            for request in requests:
                prompt = prompt_of(host, request)
                generation = host.generate(prompt, GREEDY)
                ids = tuple(token.id for token in generation)
                assert generation.finish is not None
                yield generation.finish.cached > len(prompt.ids) // 2 and ids == ids_of(cold, prompt)


def engines(requests: list[Request]) -> Iterator[bool]:
    """llama.cpp against MLX."""
    with closing(load("llamacpp", Reuse(0))) as one, closing(load("mlx", Reuse(0))) as other:
        for request in requests:
            prompt, same = prompt_of(one, request), prompt_of(other, request)
            yield prompt.ids == same.ids and ids_of(one, prompt) == ids_of(other, same)


def main() -> None:
    """Parse the command line, compare, print; the exit code says whether all was the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="prompts of each kind to compare")
    parser.add_argument("--calls", type=int, default=200, help="requests of each kind to answer; 0 for none")
    parser.add_argument("--engines", nargs="+", default=["llamacpp", "mlx"], choices=["llamacpp", "mlx"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    requests = [request for kind in KINDS for request in make_requests(kind, options.count, SEED)]
    long = [r for r in requests if len(r.messages) > 6][: options.count]
    found: dict[str, Any] = {}
    ways: dict[str, tuple[Callable[[str, list[Request]], Iterator[bool]], list[Request]]] = {
        "reuse": (reuse, requests), "rewind": (rewind, long), "snapshots": (snapshots, long),
    }  # fmt: skip
    if len(options.engines) == 2:
        found["engines"] = compare(engines(requests), len(requests), "engines")
    for engine in options.engines:
        for name, (way, given) in ways.items():
            found[f"{name} {engine}"] = compare(way(engine, given), len(given), f"{name}, {engine}")
        if options.calls:
            found[f"answers {engine}"] = answers(engine, options.calls)
    if options.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(f"{name:<20}", ", ".join(f"{key} {value}" for key, value in row.items()))
    raise SystemExit(any(row.get("different") for row in found.values()))


if __name__ == "__main__":
    main()
