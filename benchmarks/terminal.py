"""What a long answer costs that is rendered on a terminal while it is written.

    python benchmarks/terminal.py [nano | smollm2] [--tokens 5000] [--rounds 3] [--rates 70 300] [--threads 1]

    paced    a Markdown answer of so many tokens, which come at a steady rate: the CPU time of all threads
             over the same without a view, as a share of the time that the answer takes
    decoded  the model, without its end token, writes as many tokens, or as fill its window: with a view and
             without, in turn

The terminal is a real one, 100 columns by 40 rows, whose other end is read all the time. What it is sent is
counted as well: bytes for each token, and frames that clear the whole screen, of which there must be none.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep

from localagent.cli.show import open_view
from localagent.hosts.host import Reuse
from localagent.hosts.llamacpp.host import LlamaCppHost
from localagent.messages import UserMessage
from localagent.model import Model
from localagent.parsers import DIALECTS, Reasoning, Text
from localagent_bench.harness.bare_loops import endless_weights

PARTS = (
    """\
## Part {n}

Sorting is **stable** in Python, so `sorted(words, key=len)` keeps the order of words that are equally long;
that is what makes it possible to sort by *two* keys, one after the other.

1. Collect the words, without their punctuation.
2. Sort them by `str.casefold`.
3. Sort them by length.

```python
def by_length(words: list[str]) -> list[str]:
    \'\'\'The shortest first.\'\'\'
    words = sorted(words, key=str.casefold)  # {n}
    return sorted(words, key=len)
```

| way | memory | stable |
|-----|-------:|--------|
| `sort` | n/2 | yes |
| `nsmallest` | k | yes |

""",
    "The rest is a matter of taste, of habit and of what one has read lately. " * 12 + "\n\n",
)


def answer(tokens: int) -> list[Text]:
    """An answer as events, one for each token of four characters."""
    text = "".join(PARTS[n % len(PARTS)].replace("{n}", str(n)) for n in range(tokens))[: 4 * tokens]
    return [Text(text[at : at + 4], at, at + 4) for at in range(0, len(text), 4)]


@contextmanager
def terminal() -> Iterator[list[bytes]]:
    """Standard output on a pseudo-terminal; yields what it is sent."""
    ours, theirs = os.openpty()
    sent: list[bytes] = []

    def drain() -> None:
        while data := _read(ours):
            sent.append(data)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    before = sys.stdout
    sys.stdout = open(theirs, "w", closefd=False)  # noqa: SIM115
    try:
        yield sent
    finally:
        sys.stdout.flush()
        sys.stdout = before
        os.close(theirs)
        reader.join(5)
        os.close(ours)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""


def paced(events: Sequence[Text], rate: float, *, shown: bool) -> tuple[float, float, bytes]:
    """The time that the answer took, the CPU time spent meanwhile, and what the terminal was sent."""
    with terminal() as sent:
        view = open_view()
        begun, spent = perf_counter(), process_time()
        for number, event in enumerate(events):
            if (rest := begun + number / rate - perf_counter()) > 0:
                sleep(rest)
            if shown:
                view.show(event)
        view.end()
        took, spent = perf_counter() - begun, process_time() - spent
    return took, spent, b"".join(sent)


def decoded(model: Model, tokens: int, *, shown: bool) -> float:
    """Tokens a second."""
    question = [UserMessage(content="Write a long story about a fox and a bear.")]
    with terminal(), open_view(keys=False) as view:
        begun = perf_counter()
        for event in model.stream(question, temperature=0, max_tokens=tokens):
            if shown and isinstance(event, Text | Reasoning):
                view.show(event)
        return tokens / (perf_counter() - begun)


def main() -> None:
    """Print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="*", default=[70, 300, 2000])
    given = parser.parse_args()
    os.environ.update(COLUMNS="100", LINES="40", TERM="xterm-256color")
    events = answer(given.tokens)
    paced(events[:200], 1e6, shown=True)  # loads rich
    print("| tokens/s | CPU, % of the time | bytes for a token | cleared screens |\n|---|---|---|---|")
    for rate in given.rates:
        took, spent, sent = paced(events, rate, shown=True)
        _, idle, _ = paced(events, rate, shown=False)
        share = 100 * (spent - idle) / took
        print(
            f"| {rate:,.0f} | {share:.1f} | {len(sent) / len(events):.0f} | {sent.count(b'[2J')} |",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        path = endless_weights(given.model, Path(folder))
        host = LlamaCppHost.load(path, context=None, threads=given.threads, reuse=Reuse(0))
        model = Model(host, DIALECTS["lfm2"])
        tokens = min(given.tokens, host.context - 100)
        lanes: dict[str, Callable[[], float]] = {
            "without": lambda: decoded(model, tokens, shown=False),
            "rendered": lambda: decoded(model, tokens, shown=True),
        }
        rounds = [{name: lane() for name, lane in lanes.items()} for _ in range(given.rounds)]
        host.close()
    for name in lanes:
        print(f"{name}: {median(each[name] for each in rounds):,.0f} tokens/s")
    ratio = median(each["rendered"] / each["without"] for each in rounds)
    print(
        f"{given.model}, {tokens:,} tokens, rendered / without, median of {given.rounds} rounds: {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
