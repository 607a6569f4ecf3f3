"""What a constraint costs while the model writes: tokens per second without one and under it, side by side.

    python benchmarks/bounded_decoding.py [nano|smollm2] [--tokens 200] [--rounds 5] [--lanes 1 4]

`free` has no tools. `auto` may call tools and writes text: nothing is masked. `bounded` must write a list
of records, `drawn` the same with nothing forced, so that each token is drawn under its mask. They run in
turn, round by round, in one process; the median of the rounds counts, also of the ratios to `free`. Tokens
are those of all lanes, over the time from the first to the last of them.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any

from localagent.constraint.guide import Guide
from localagent.model import Model, load
from localagent.nano import GGUF
from localagent.turn import Done

QUESTION = "Tell me a long story about a fox, a bear and a hare, and name everybody in it."
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["fox", "bear", "hare", "other"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "says": {"type": "string"},
    },
    "required": ["name", "kind", "age", "says"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "tell",
        "parameters": {
            "type": "object",
            "properties": {"all": {"type": "array", "items": RECORD, "minItems": 500}},
            "required": ["all"],
        },
    },
}
SIDES: dict[str, dict[str, Any]] = {
    "free": {},
    "auto": {"tools": [TOOL]},
    "bounded": {"tools": [TOOL], "tool_choice": "required"},
    "drawn": {"tools": [TOOL], "tool_choice": "required"},
}


def rate(model: Model, side: str, count: int, lanes: int, seed: int) -> float:
    """Tokens per second of all lanes."""

    def one(number: int) -> tuple[int, float, float]:
        options = {"max_tokens": count, "temperature": 1.0, "seed": seed + number, **SIDES[side]}
        system = f"You are narrator {number}."
        began = 0.0
        for event in model.stream(QUESTION, system=system, **options):
            began = began or perf_counter()
            last = event
        assert isinstance(last, Done)
        return len(last.token_ids), began, perf_counter()

    with ThreadPoolExecutor(lanes) as pool:
        found = list(pool.map(one, range(lanes)))
    tokens = sum(each for each, _, _ in found)
    return tokens / (max(end for _, _, end in found) - min(begin for _, begin, _ in found))


def main() -> None:
    """Measure and print a line of JSON for each number of lanes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2", choices=["nano", "smollm2"])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4])
    given = parser.parse_args()
    path, dialect = (GGUF, None) if given.model == "nano" else (None, "hermes")
    options: dict[str, Any] = {"backend": "llamacpp", "context": 1024, "lanes": max(given.lanes)}
    with load(path, dialect=dialect, threads=given.threads, **options) as model:
        assert isinstance(model, Model)
        for lanes in given.lanes:
            rates: dict[str, list[float]] = {side: [] for side in SIDES}
            for number in range(given.rounds + 1):
                for side in SIDES:
                    forced = Guide.forced
                    if side == "drawn":
                        Guide.forced = lambda _: ()  # type: ignore[method-assign,assignment]
                    try:
                        found = rate(model, side, given.tokens, lanes, 100 * number)
                    finally:
                        Guide.forced = forced  # type: ignore[method-assign]
                    if number:  # the first round warms up
                        rates[side].append(found)
            row: dict[str, Any] = {"model": given.model, "lanes": lanes}
            for side, values in rates.items():
                ratios = [value / free for value, free in zip(values, rates["free"], strict=True)]
                row[side] = {"tokens_per_s": round(median(values), 1), "of_free": round(median(ratios), 3)}
            print(json.dumps(row))


if __name__ == "__main__":
    main()
