"""What masks cost: each of them, compiling, and how much of what is written is forced.

    python benchmarks/masks.py [smollm2|nano|FILE.gguf] [--tools 20] [--calls 200]
        [--dialects lfm2,hermes] [--json]

token      the time for a token that is not forced: whether any is, the mask, and accepting what was drawn.
           Median and 99th percentile over tokens drawn at random, so that strings are long and strange; a
           model's are not
cold       from the tools to the first mask, with nothing kept: the grammar is built and compiled
cached     from the tools to the first mask of the next request with the same tools
forced     the share of tokens that the grammar leaves no choice about

Only the vocabulary is loaded, no weights. Times are of one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from localagent.constraint import calls, layout, leaves
from localagent.constraint.grammar import block_grammar
from localagent.constraint.matching import Factory, Matcher
from localagent.errors import LocalAgentError
from localagent.parsers import DIALECTS, Dialect

LONGEST = 150
"""Tokens after which a call is left as it is."""


@contextmanager
def vocabulary(name: str) -> Iterator[Any]:
    """The vocabulary of a model, without its weights."""
    from localagent.catalog import load_catalog
    from localagent.hosts.llamacpp.library import library
    from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary
    from localagent.nano import GGUF
    from localagent.store import WeightStore

    if name == "smollm2":
        path = WeightStore().pull(load_catalog().default, "llamacpp")
    else:
        path = GGUF if name == "nano" else Path(name)
    native = library()
    options = native.llama_model_default_params()
    options.vocab_only = True
    model = native.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise LocalAgentError(f"{path}: cannot be loaded")
    try:
        yield LlamaCppVocabulary(native, native.llama_model_get_vocab(model))
    finally:
        native.llama_model_free(model)


def make_tools(count: int) -> list[dict[str, Any]]:
    """Tools with a little of everything."""
    properties = {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        "order": {"enum": ["relevance", "date", "size"]},
        "since": {"type": "string", "format": "date"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "lat": {"type": "number"}, "lon": {"type": "number"}},
            "required": ["city"],
        },
    }
    parameters = {"type": "object", "properties": properties, "required": ["query", "limit", "place"]}
    return [
        {"type": "function", "function": {"name": f"search_{number}", "parameters": parameters}}
        for number in range(count)
    ]


def draw(matcher: Matcher, choose: random.Random, costs: list[float]) -> tuple[int, int]:
    """Draw one block of calls at random; the counts of tokens and of those forced."""
    import numpy as np

    count = forced = 0
    while not matcher.stopped and count < LONGEST:
        start = perf_counter()
        if tokens := list(matcher.forced()):
            for token in tokens:
                matcher.accept(token)
        else:
            mask = matcher.mask()
            spent = perf_counter() - start
            found = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token = int(found[choose.randrange(len(found))])
            start = perf_counter()
            matcher.accept(token)
            costs.append(spent + perf_counter() - start)
        forced += len(tokens)
        count += len(tokens) or 1
        if matcher.accepting:
            break
    return count, forced


def measure(dialect: Dialect, known: Any, tools: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """The figures of one dialect; times in milliseconds."""
    special = {text: token for token, text in known.special.items()}
    factory = Factory(known)
    factory.compile('start: "a"')  # its process is there
    for kept in (
        calls.call_rules,
        layout.layout,
        layout._argument,
        layout._member,
        leaves._refusal,
    ):
        kept.cache_clear()

    def first_mask() -> float:
        start = perf_counter()
        factory.compile(block_grammar(dialect, tools, special=special).text).mask()
        return perf_counter() - start

    cold, cached = first_mask(), [first_mask() for _ in range(20)]
    grammar, choose, costs = block_grammar(dialect, tools, special=special), random.Random(1), [0.0]
    drawn = [draw(factory.compile(grammar.text), choose, costs) for _ in range(count)]
    return {
        "token_median_ms": 1000 * median(costs),
        "token_p99_ms": 1000 * quantiles(costs, n=100)[-1],
        "cold_ms": 1000 * cold,
        "cached_ms": 1000 * median(cached),
        "forced": sum(forced for _, forced in drawn) / sum(tokens for tokens, _ in drawn),
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--dialects", default="lfm2,hermes,qwen3-coder,gemma4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        with vocabulary(options.model) as known:
            tools = make_tools(options.tools)
            found = {
                name: measure(DIALECTS[name], known, tools, options.calls)
                for name in options.dialects.split(",")
            }
    except (LocalAgentError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"tokens": known.size, "tools": options.tools, "dialects": found}))
        return 0
    print(f"{options.model}: {known.size:,} tokens, {options.tools} tools, {options.calls} calls drawn")
    print(f"{'dialect':<14}{'token ms':>10}{'99 %':>10}{'cold ms':>10}{'cached ms':>11}{'forced':>9}")
    for name, row in found.items():
        print(
            f"{name:<14}{row['token_median_ms']:>10.3f}{row['token_p99_ms']:>10.2f}{row['cold_ms']:>10.1f}"
            f"{row['cached_ms']:>11.2f}{row['forced']:>9.0%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
