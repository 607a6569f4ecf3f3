"""The same workload on a real fleet and in the simulation: `fleet.py --check`.

Two replicas on Ray Serve are started from the command line, and each conversation has a client of its own,
which asks over HTTP, waits for the answer, thinks, and asks on. What the server says of the lengths that came
of it, with the clients' own times to think, is what the simulation is given. Right before and after, a few
prompts tell how quick the machine is at that time, and the measured times are stretched by that.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from localagent.messages import Message, UserMessage
from localagent.parsers import Text
from localagent.remote import RemoteModel
from localagent.server.fleet.plan import ROOM
from localagent.turn import Done
from localagent_bench.fleet.policies import ByPrefix
from localagent_bench.fleet.replica import Times
from localagent_bench.fleet.simulation import Answers, Simulation, Workload
from localagent_bench.harness.servers import free_port, healthy, started
from localagent_bench.server.load import RequestWriter

_PATIENCE = 300.0
_PROBES, _PROBE = 3, 120
"""Requests to each replica before and after, and the words of the prompt and tokens of the answer of each."""
_IDLE = 8
"""Requests of one token, from which it is seen what a request takes that is not the replica's."""


@dataclass
class RealAnswer:
    """One turn of a real conversation. Times in seconds from the beginning."""

    asked: float
    first: float
    ended: float
    prompt: int
    cached: int
    written: int


@contextmanager
def fleet(weights: Path, replicas: int, lanes: int, threads: int) -> Iterator[str]:
    """Its URL, when all replicas have loaded. It and all its processes end with the context."""
    port = free_port()
    command = [sys.executable, "-m", "localagent", "serve", "--ray", "--replicas", replicas]
    command += ["--lanes", lanes, "--threads", threads, "--port", port, "--model", weights]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # In a folder of its own: Ray would join a cluster that it finds in the usual one.
        environment = {"RAY_DEDUP_LOGS": "0", "RAY_TMPDIR": folder}

        def ready(text: str) -> bool:
            return healthy(port) and text.count("is loaded") >= replicas

        log = Path(folder) / "log"
        with started("the fleet", command, log, ready, patience=_PATIENCE, environment=environment):
            yield f"http://127.0.0.1:{port}"


def drive(url: str, work: Workload, seed: str) -> list[list[RealAnswer]]:
    """Every conversation, by a client of its own. Raises what an answer raises."""
    model = RemoteModel.open(url)
    begin = perf_counter()

    def converse(conversation: int) -> list[RealAnswer]:
        writer = RequestWriter(f"{seed}.{conversation}", 0)  # only its words are used
        history: list[Message] = []
        answers: list[RealAnswer] = []
        sleep(max(0.0, begin + work.starts[conversation] - perf_counter()))
        for number in range(work.begins[conversation], work.begins[conversation + 1]):
            if answers:
                sleep(work.thinks[number])
            history.append(UserMessage.text(writer.words(max(1, round(work.asked[number])))))
            answers.append(ask(model, history, max(2, round(work.answers[number])), begin))
        return answers

    count = len(work.starts)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(converse, range(count)))


def ask(model: RemoteModel, history: list[Message], tokens: int, begin: float) -> RealAnswer:
    """One turn, which is added to the history."""
    asked, first = perf_counter(), None
    for event in model.stream(history, temperature=0, max_tokens=tokens):
        if isinstance(event, Text) and first is None:
            first = perf_counter()
        if isinstance(event, Done):
            ended, message = perf_counter(), event.message
    history.append(message)
    used = message.usage
    return RealAnswer(
        asked - begin, (first or ended) - begin, ended - begin, used.input, used.cache_read, used.output
    )


def realised(work: Workload, answers: list[list[RealAnswer]], preamble: int) -> Workload:
    """The workload as it came about: with the lengths that the server counted."""
    asked, written = [], []
    for turns in answers:
        before = preamble
        for turn in turns:
            asked.append(max(1, turn.prompt - before))
            written.append(turn.written)
            before = turn.prompt + turn.written
    starts = [turns[0].asked for turns in answers]
    assert starts == sorted(starts), "conversations began in another order"
    return Workload(starts, work.begins, asked, written, work.thinks, preamble)


def check(weights: Path, times: Times, work: Workload, replicas: int, threads: int) -> dict[str, Any]:
    """Figures of both, and what was measured of a request beside the replica. Raises Failed."""
    lanes = times.lanes
    with fleet(weights, replicas, lanes, threads) as url:
        model = RemoteModel.open(url)
        together(
            model, [(f"{number} ships.", 16) for number in range(2 * lanes)]
        )  # all replicas are warm then
        paces = [Pace.of(model, times, replicas, f"before {number}") for number in range(_PROBES)]
        idle = [together(model, [(f"Say {number}.", 2)])[0] for number in range(_IDLE)]
        answers = drive(url, work, f"check {times.model}")
        paces += [Pace.of(model, times, replicas, f"after {number}") for number in range(_PROBES)]
    pace = Pace(median(each.read for each in paces), median(each.write for each in paces))
    times = pace.applied(times)
    beside = [each.first - each.asked - (each.prompt - each.cached) * times.token for each in idle]
    times = replace(times, request=max(0.0, median(beside)))
    told = realised(work, answers, times.preamble)
    cache = (512 << 20) / times.bytes_per_token
    policy = ByPrefix(lanes)
    simulation = Simulation(times, told, replicas, policy, room=ROOM * lanes, queue=64, cache=cache)
    simulation.knowing_the_system_prompt()
    seen = simulation.run()
    return {
        "real": _figures(answers),
        "simulated": _simulated(seen),
        "request": times.request,
        "pace": asdict(pace),
        "paces": [asdict(each) for each in paces],
    }


def together(model: RemoteModel, asked: Sequence[tuple[str, int]]) -> list[RealAnswer]:
    """Conversations of one turn, all at once: text, and tokens of the answer."""
    barrier, begin = threading.Barrier(len(asked)), perf_counter()

    def one(what: tuple[str, int]) -> RealAnswer:
        barrier.wait()
        return ask(model, [UserMessage.text(what[0])], what[1], begin)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


@dataclass(frozen=True)
class Pace:
    """What the machine takes now, as a multiple of what was measured: other programs may run on it."""

    read: float
    write: float

    @classmethod
    def of(cls, model: RemoteModel, times: Times, replicas: int, seed: str) -> Pace:
        """By a prompt for each replica, all at once."""
        writer = RequestWriter(seed, 0)  # only its words are used
        found = together(model, [(writer.words(_PROBE), _PROBE) for _ in range(replicas)])
        reads = [
            (each.first - each.asked)
            / ((each.prompt - each.cached) * (times.token + times.token_depth * each.prompt / 2))
            for each in found
        ]
        writes = [
            (each.ended - each.first)
            / ((each.written - 1) * (times.steps[0] + times.step_depth * (each.prompt + each.written / 2)))
            for each in found
        ]
        return cls(median(reads), median(writes))

    def applied(self, times: Times) -> Times:
        """The times at this pace."""
        return replace(
            times,
            token=times.token * self.read,
            token_depth=times.token_depth * self.read,
            steps=[step * self.write for step in times.steps],
            step_depth=times.step_depth * self.write,
        )


def _figures(answers: list[list[RealAnswer]]) -> dict[str, float]:
    turns = [turn for each in answers for turn in each]
    first = [turn.first - turn.asked for turn in turns]
    return {
        "turns": len(turns),
        "hit rate": sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns),
        "first mean": float(np.mean(first)),
        "first p50": float(np.percentile(first, 50)),
        "first p95": float(np.percentile(first, 95)),
        "tokens/s": sum(turn.written for turn in turns) / (max(t.ended for t in turns) - turns[0].asked),
    }


def _simulated(seen: Answers) -> dict[str, float]:
    figures = seen.figures()
    return {
        "turns": figures["turns"],
        "hit rate": figures["hit rate"],
        "first mean": float(np.mean(seen.first)),
        "first p50": figures["first p50"],
        "first p95": figures["first p95"],
        "tokens/s": sum(seen.written) / (seen.ended - min(seen.asked)),
    }
