"""How often a host answers requests exactly: `python -m localagent_bench.training.measure`.

An answer counts when every character is right, to the end token. `--weights` takes another GGUF file, such as
one that was just trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from localagent.hosts.protocol import Host
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF
from localagent.nano.requests import KINDS, Request, make_requests
from localagent.prompt import Trusted

GREEDY = Sampling(temperature=0, max_tokens=600)


def answer(host: Host, request: Request) -> str:
    """What the model writes, special tokens visible, without the end token."""
    prompt = host.render(list(_messages(request)), request.tools or None)
    return "".join(token.text for token in host.generate(prompt, GREEDY) if not token.end)


def wrong(host: Host, requests: Iterable[Request]) -> Iterator[tuple[Request, str]]:
    """The requests that were not answered exactly, with what came instead."""
    for request in requests:
        written = answer(host, request)
        if written != request.output:
            yield request, written


def _messages(request: Request) -> Iterator[dict[str, Any]]:
    """The messages; calls in the model's own turns are trusted, so their markers become control tokens."""
    for message in request.messages:
        own = message["role"] == "assistant"
        yield message | {"content": Trusted(message["content"])} if own else message


def main() -> None:
    """Print a line for each kind and, if asked to, every wrong answer."""
    from localagent.hosts.llamacpp.host import LlamaCppHost

    parser = argparse.ArgumentParser(description="Measure lfm2-nano on llama.cpp.")
    parser.add_argument("--weights", type=Path, default=GGUF)
    parser.add_argument("--count", type=int, default=200, help="requests of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="one is quickest for so small a model")
    parser.add_argument("--show", action="store_true", help="print the wrong answers")
    options = parser.parse_args()
    with closing(LlamaCppHost.load(options.weights, threads=options.threads)) as host:
        for kind in KINDS:
            missed = list(wrong(host, make_requests(kind, options.count, options.seed)))
            sys.stdout.write(f"{kind:14} {options.count - len(missed):>5} of {options.count}\n")
            for request, written in missed if options.show else ():
                asked = request.messages[-1]["content"]
                sys.stdout.write(f"  asked  {asked!r}\n  wanted {request.output!r}\n  wrote  {written!r}\n")


if __name__ == "__main__":
    main()
