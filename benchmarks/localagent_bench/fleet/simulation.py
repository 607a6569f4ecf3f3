"""A fleet of replicas, simulated event by event: which replica a conversation goes to, and what that costs.

Nothing is computed here but time. What a replica needs for a token of a prompt and for a step of its lanes is
measured (`service_times.py`), and the way to a replica is that of `localagent.server.fleet.affinity` itself.
What is assumed:

- A replica reads one prompt at a time, first come, first served, and writes with all its lanes in step.
  While both happen, a chunk of the prompt and a step follow each other, as in `localagent.hosts.scheduler`.
  Between two events these go on at steady rates: no token is an event.
- A token of a prompt takes longer the more tokens are before it, and a step the more its lanes hold
  together, in proportion. A step for a number of lanes takes as long as was measured for it.
- A conversation is kept whole but for its last token, or not at all; what was used least recently is dropped
  when all that a replica keeps is beyond the budget. A prompt that all share is kept once it has been read.
- A replica takes as many requests at once as Ray lets it (`room`). When all of a rank are full, the next rank
  is tried, and when all are, the same is asked again later, as Ray does: after 25 ms, twice that, and so on
  up to half a second. Whoever asks knows exactly how many requests each replica has.
  Of Ray's own bound, fifty requests that ask at once, nothing is simulated.
- A request beyond all lanes and the places in the queue is refused, and its conversation ends. Else people
  wait for an answer, think, and ask on. Nobody goes back to an earlier turn.
- The network, the server and Ray take the same time for every request, and no replica slows another one.
- A replica that dies loses what it has begun to write, and is asked for it again a second later; what it had
  not begun goes to another one at once. A new replica knows nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import numpy as np

from localagent_bench.fleet.policies import Policy
from localagent_bench.fleet.replica import SimulatedReplica, SimulatedTurn, Times

RETRY, RETRY_MOST = 0.025, 0.5
"""Seconds after which Ray tries anew, at first and at most."""
ASKED_AGAIN = 1.0
"""Seconds after which an answer that broke off is asked for again."""


@dataclass(frozen=True)
class Workload:
    """Conversations. The turns of conversation `c` are those from `begins[c]` to `begins[c + 1]`."""

    starts: Sequence[float]
    """Seconds at which each begins, in order."""
    begins: Sequence[int]
    asked: Sequence[float]
    """Tokens by which the prompt of each turn is longer than prompt and answer of the turn before."""
    answers: Sequence[float]
    thinks: Sequence[float]
    """Seconds between the answer before and this turn."""
    system: int = 0
    """Tokens that all prompts begin with."""

    @classmethod
    def drawn(
        cls,
        seed: int,
        conversations: int,
        rate: float,
        turns: float,
        asked: float,
        answer: float,
        think: float,
        system: int = 0,
        most: int = 1 << 30,
    ) -> Workload:
        """Conversations begin at random, `rate` of them in a second.

        The number of turns is geometric, but `most` at most; questions, answers and times to think are
        exponential around their means: many short ones and few long ones.
        """
        draw = np.random.default_rng(seed)
        lengths = np.minimum(draw.geometric(1 / turns, conversations), most)
        total = int(lengths.sum())
        return cls(
            np.cumsum(draw.exponential(1 / rate, conversations)).data,
            np.concatenate([[0], np.cumsum(lengths)]).data,
            np.ceil(draw.exponential(asked, total)).data,
            np.ceil(draw.exponential(answer, total)).data,
            draw.exponential(think, total).data,
            system,
        )


@dataclass(frozen=True)
class FleetChange:
    """At some time replicas die, or others come: `replicas` below 0, or above."""

    at: float
    replicas: int


@dataclass
class Answers:
    """Of each answer, in the order in which they ended."""

    asked: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    """Seconds to the first token."""
    waited: array[float] = field(default_factory=lambda: array("d"))
    """Of these, those until a lane was free."""
    prompt: array[float] = field(default_factory=lambda: array("d"))
    cached: array[float] = field(default_factory=lambda: array("d"))
    written: array[float] = field(default_factory=lambda: array("d"))
    moved: array[int] = field(default_factory=lambda: array("b"))
    """Whether it came from another replica than the one before; -1 where there was none before."""
    numbers: array[int] = field(default_factory=lambda: array("l"))
    broken: int = 0
    """Answers that broke off, and were asked for again."""
    refused: array[float] = field(default_factory=lambda: array("d"))
    """When a request was, with which its conversation ended."""
    dropped: int = 0
    """Turns that were not asked, because one before was refused."""
    ended: float = 0.0
    busy: list[float] = field(default_factory=list)
    """The share of the time in which each replica had something to do, until the last conversation began."""

    def figures(self, since: float = 0.0, until: float = math.inf) -> dict[str, Any]:
        """Of the requests of this time. Seconds, and shares of 1."""
        asked = np.asarray(self.asked)
        at = (asked >= since) & (asked < until)
        first, moved = np.asarray(self.first)[at], np.asarray(self.moved)[at]
        refused = sum(since <= each < until for each in self.refused)
        if not at.any():
            return {"turns": 0, "refused": 1.0 if refused else 0.0}
        p50, p95, p99 = np.percentile(first, [50, 95, 99])
        return {
            "turns": int(at.sum()),
            "refused": refused / (refused + int(at.sum())),
            "hit rate": float(np.asarray(self.cached)[at].sum() / np.asarray(self.prompt)[at].sum()),
            "first p50": float(p50),
            "first p95": float(p95),
            "first p99": float(p99),
            "waited": float(np.asarray(self.waited)[at].mean()),
            "busy": float(np.mean(self.busy)),
            "busiest": float(np.max(self.busy) / max(np.mean(self.busy), 1e-12)),
            "moved": float((moved == 1).sum() / max(1, (moved >= 0).sum())),
            "broken": self.broken,
        }


class Simulation:
    """A workload on a fleet."""

    def __init__(
        self,
        times: Times,
        workload: Workload,
        replicas: int,
        policy: Policy,
        room: float = math.inf,
        queue: float = math.inf,
        cache: float = math.inf,
        changes: Iterable[FleetChange] = (),
        seed: int = 1,
    ) -> None:
        """`room`: requests that a replica takes at once. `queue`: those that may wait for a lane of the whole
        fleet. `cache`: tokens that a replica keeps.
        """
        self._times, self._work, self._policy = times, workload, policy
        self._most = replicas * times.lanes + queue
        self._under_way = 0
        self._room, self._cache = room, cache
        self._random = Random(seed)
        self._ticks = count()
        self._events: list[tuple[float, int, Callable[..., None], Any, int]] = []
        self._replicas: dict[int, SimulatedReplica] = {}
        self._alive: list[int] = []
        self._marks: dict[int, list[str]] = {}
        self._length: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._seen = Answers()
        self._now = 0.0
        self._add(replicas)
        for change in changes:
            self._at(change.at, self._changes, change.replicas)

    def run(self) -> Answers:
        """To the end of the last answer."""
        if len(self._work.starts):
            self._at(self._work.starts[0], self._starts, 0)
        events = self._events
        while events:
            self._now, _, happens, what, version = heappop(events)
            happens(what, version)
        return self._seen

    def knowing_the_system_prompt(self) -> None:
        """All replicas have read it before."""
        for replica in self._replicas.values():
            replica.shared = True

    def _at(self, time: float, happens: Callable[..., None], what: object, version: int = 0) -> None:
        heappush(self._events, (time, next(self._ticks), happens, what, version))

    def _starts(self, conversation: int, _: int) -> None:
        if conversation + 1 < len(self._work.starts):
            self._at(self._work.starts[conversation + 1], self._starts, conversation + 1)
        else:
            self._seen.busy = [self._replicas[each].busy / max(self._now, 1e-12) for each in self._alive]
        self._length[conversation] = self._work.system
        self._marks[conversation] = []
        self._asks((conversation, self._work.begins[conversation]), 0)

    def _asks(self, what: tuple[int, int], _: int) -> None:
        conversation, number = what
        if self._under_way >= self._most:
            self._seen.refused.append(self._now)
            self._seen.dropped += self._work.begins[conversation + 1] - number - 1
            self._forgets(conversation)
            return
        self._under_way += 1
        self._marks[conversation].append(f"{conversation}.{number}")
        prompt = self._length[conversation] + self._work.asked[number]
        turn = SimulatedTurn(conversation, number, self._now, prompt, max(1.0, self._work.answers[number]))
        self._send(turn, 0)

    def _send(self, turn: SimulatedTurn, _: int) -> None:
        """Through the policy, and by Ray's rule of ranks."""
        load, marks = self._load, self._marks[turn.conversation]
        if self._alive:
            for rank in self._policy.ranks(marks, self._alive, load, self._random):
                free = [each for each in rank if load(each) < self._room]
                if free:
                    chosen = min(free, key=load)
                    self._policy.note(marks, chosen)
                    self._replicas[chosen].take(turn, self._now)
                    self._foretell(chosen)
                    return
        self._at(self._now + min(RETRY * 2.0 ** min(turn.tries, 10), RETRY_MOST), self._send, turn)
        turn.tries += 1

    def _load(self, number: int) -> float:
        return self._replicas[number].load

    def _foretell(self, number: int) -> None:
        replica = self._replicas[number]
        time = replica.next(self._now, self._work.system)
        if time < math.inf:
            self._at(time, self._happens, number, replica.version)

    def _happens(self, number: int, version: int) -> None:
        replica = self._replicas.get(number)
        if replica is None or replica.version != version:
            return  # something else came first
        for turn in replica.happens(self._now):
            self._ends(turn, number)
        self._foretell(number)

    def _ends(self, turn: SimulatedTurn, replica: int) -> None:
        seen, conversation = self._seen, turn.conversation
        seen.asked.append(turn.asked)
        seen.first.append(turn.first - turn.asked + self._times.request)
        seen.waited.append(turn.began - turn.asked)
        seen.prompt.append(turn.prompt)
        seen.cached.append(turn.cached)
        seen.written.append(turn.answer)
        last = self._last.get(conversation)
        seen.moved.append(-1 if last is None else last != replica)
        seen.numbers.append(turn.number)
        seen.ended = self._now
        self._under_way -= 1
        if turn.number + 1 < self._work.begins[conversation + 1]:
            self._last[conversation] = replica
            self._length[conversation] = turn.prompt + turn.answer
            following = turn.number + 1
            self._at(self._now + self._work.thinks[following], self._asks, (conversation, following))
        else:
            self._forgets(conversation)

    def _forgets(self, conversation: int) -> None:
        self._last.pop(conversation, None)
        del self._marks[conversation], self._length[conversation]

    def _add(self, count: int) -> None:
        for _ in range(count):
            number = len(self._replicas)
            self._replicas[number] = SimulatedReplica(self._times, self._cache, self._now)
            self._alive.append(number)

    def _changes(self, replicas: int, _: int) -> None:
        self._add(max(0, replicas))
        for _ in range(min(-replicas, len(self._alive))):
            number = self._alive.pop(self._random.randrange(len(self._alive)))
            broken, others = self._replicas[number].dies(self._now)
            self._seen.broken += len(broken)
            for turn in others:
                self._at(self._now, self._send, turn)
            for turn in broken:
                self._at(self._now + ASKED_AGAIN, self._send, replace(turn, asked=self._now + ASKED_AGAIN))
