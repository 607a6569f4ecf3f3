"""Two servers, asked over real sockets by the same client: `localagent serve` beside llama-server.

    python benchmarks/serving.py [smollm2|nano|MODEL] [--rounds 3] [--streams 1,4,8,16] [--busy 2]
        [--llama-server PROGRAM] [--json] [--out FILE] [--html FILE]

What is measured is the load of `localagent bench server`: streams at once, a long prompt that arrives among
streams, answers of one token. Here both servers are started for it, each a process of its own, on the same
weights, threads and number of tokens. CPU is what the process of a server has computed meanwhile, on all
cores: other work on the machine changes that much less than it changes the time.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from localagent.cli.terminal import say
from localagent.errors import LocalAgentError
from localagent_bench.cli.output import OutputOptions, recording
from localagent_bench.harness.bare_loops import endless_weights
from localagent_bench.harness.scenarios import numbers
from localagent_bench.harness.servers import Settings, SideFailed, missing, running
from localagent_bench.results import Results
from localagent_bench.server.load import RUNNING, Load
from localagent_bench.server.loading import load_servers
from localagent_bench.server.target import MeasuredServer, describe

# The quickest sampler of llama-server: its default chain looks at forty candidates for every token.
_EXTRA: dict[str, dict[str, Any]] = {
    "llama-server": {"samplers": ["top_k"], "top_k": 1},
    "localagent": {},
}
"""The servers, the one that ratios are taken to first, and what their requests have beside the usual."""


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
    parser.add_argument("--threads", type=int, help="of both servers; by default each chooses")
    parser.add_argument("--busy", type=int, default=0, help="programs that compute meanwhile")
    parser.add_argument(
        "--llama-server", metavar="PROGRAM", help="instead of the one in the package xllamacpp"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines, and no tables")
    parser.add_argument("--out", type=Path, help="write the JSON lines to this file as well")
    parser.add_argument("--html", type=Path, help="write a report with plots")
    options = parser.parse_args()
    if options.words is None:  # nano's vocabulary is small: more words do not fit into its context
        options.words = 1000 if options.model.startswith("nano") else 1500
    options.lanes = options.lanes or max(*options.streams, RUNNING + 1)
    sizes = (*options.streams, *options.clients, options.tokens - 1, options.words, options.rounds)
    if min(sizes) < 1 or options.lanes <= RUNNING or options.answers < max(options.clients):
        parser.error(
            f"numbers must be 1 or more, --tokens 2 or more, --lanes more than {RUNNING}, and --answers no "
            "fewer than --clients"
        )
    return options


def measure(results: Results, settings: Settings, load: Load, work: Path) -> None:
    """Start the servers that are here, and measure them in turns."""
    with ExitStack() as stack:
        targets = []
        for name, extra in _EXTRA.items():
            if reason := missing(name, settings.llama_server):
                results.skip(name, reason)
                continue
            child = stack.enter_context(running(name, settings, work))
            found = MeasuredServer.at(f"http://127.0.0.1:{child.port}", None, load.limit, name)
            targets.append(replace(found, extra=extra, cpu=child.cpu_seconds, build=child.build))
        if not targets:
            raise SideFailed("; ".join(results.run.skipped.values()))
        describe(results, targets)
        # As many words as were asked for: where they do not fit, the server says so.
        load_servers(results, [replace(target, context=None) for target in targets], load, say)
    for row in results.run.rows.get("server.streams", ()):
        if row["tokens"] != row["streams"] * load.tokens:
            raise SideFailed(
                f"{row['server']}: {row['tokens']} tokens came, not {row['streams'] * load.tokens}: does the "
                "model end its turn? Use a smaller --tokens"
            )


def main() -> None:
    """Start both servers, measure, print."""
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy of the weights is removed
    load = Load(
        options.streams, options.clients, options.tokens, options.words, options.answers, options.rounds
    )
    asked = {"model": options.model, **asdict(load)}
    asked |= {name: getattr(options, name) for name in ("lanes", "context", "threads", "busy")}
    output = OutputOptions(options.json, options.out, options.html)
    with (
        tempfile.TemporaryDirectory() as folder,
        recording("server", asked, output) as results,
        ExitStack() as stack,
    ):
        weights = endless_weights(options.model, Path(folder))
        settings = Settings(
            str(weights), options.context, options.lanes, options.threads, options.llama_server
        )
        for _ in range(options.busy):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        measure(results, settings, load, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except (SideFailed, LocalAgentError) as error:
        raise SystemExit(f"{error or type(error).__name__}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
