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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Protocol

import numpy as np

from localagent.server.fleet.affinity import Affinity

Load = Callable[[int], float]
RETRY, RETRY_MOST = 0.025, 0.5
"""Seconds after which Ray tries anew, at first and at most."""
ASKED_AGAIN = 1.0
"""Seconds after which an answer that broke off is asked for again."""


@dataclass(frozen=True)
class Times:
    """What a replica takes, in seconds."""

    model: str
    token: float
    """For a token at the beginning of a prompt."""
    token_depth: float
    """More of that for each token before it."""
    steps: Sequence[float]
    """For a step of one lane, of two, and so on."""
    step_depth: float
    """More of that for each token that the lanes hold together."""
    chunk: int
    """Tokens of a prompt between two steps."""
    bytes_per_token: int
    """Kept of a conversation."""
    request: float = 0.0
    """For what is not the replica's, of each request until its first token."""
    preamble: int = 0
    """Tokens that the chat template begins every prompt with."""
    machine: str = ""

    @property
    def lanes(self) -> int:
        """Of a replica."""
        return len(self.steps)

    def turns_per_second(self, new: float, answer: float) -> float:
        """What a replica can do at most: all prompts are evaluated but for `new` tokens, all lanes write."""
        return 1 / (new * self.token + answer * self.steps[-1] / self.lanes)


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


class Policy(Protocol):
    """Which replicas are tried, by rank, as `Affinity.ranks`; `note` is told who took the request."""

    name: str

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        """Those of a later rank are tried when all of one are full."""

    def note(self, marks: Sequence[str], replica: int) -> None:
        """This one has taken the conversation with these marks."""


class ByPrefix:
    """What the fleet does, with this slack. `knowing`: whether it remembers; else it is the power of two."""

    def __init__(self, slack: float, knowing: bool = True) -> None:
        self.name = f"slack {slack:g}" if knowing else "two drawn"
        self._affinity: Affinity[int] = Affinity()
        self._slack = slack
        self._knowing = knowing

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        """See `Policy`."""
        return self._affinity.ranks(marks if self._knowing else (), alive, load, self._slack, random)

    def note(self, marks: Sequence[str], replica: int) -> None:
        """See `Policy`."""
        if self._knowing:
            self._affinity.note(marks, replica)


class Blindly:
    """One of all, whatever it has to do: drawn, or the next one."""

    def __init__(self, in_turn: bool) -> None:
        self.name = "in turn" if in_turn else "one drawn"
        self._turn = count() if in_turn else None

    def ranks(
        self, marks: Sequence[str], alive: Sequence[int], load: Load, random: Random
    ) -> list[list[int]]:
        """See `Policy`."""
        return [[random.choice(alive) if self._turn is None else alive[next(self._turn) % len(alive)]]]

    def note(self, marks: Sequence[str], replica: int) -> None:
        """It makes no difference."""


@dataclass(slots=True)
class Turn:
    """A request, while it is under way."""

    conversation: int
    number: int
    """Of its turn among all turns."""
    asked: float
    prompt: float
    answer: float
    cached: float = 0.0
    left: float = 0.0
    """Tokens that are still to be read."""
    token: float = 0.0
    """Seconds for each of them."""
    began: float = 0.0
    """When its prompt had a lane."""
    first: float = math.nan
    """When its first token came."""
    tries: int = 0


class Due(Enum):
    """What happens next at a replica."""

    READ = auto()
    WRITTEN = auto()


class Replica:
    """One of them: what it reads and writes, and what it keeps. `load`: requests that it has."""

    def __init__(self, times: Times, cache: float, now: float) -> None:
        """`cache`: tokens that it keeps."""
        self._times = times
        self._most = cache
        self._at = now
        self._clock = 0.0  # tokens that a lane would have written which wrote all the time
        self._writing: list[tuple[float, int, Turn]] = []  # by the clock at their end
        self._reading: deque[Turn] = deque()
        self._waiting: deque[Turn] = deque()
        self._depth = 0.0
        self._to_read = 0.0
        self._steps = self._reads = 0.0  # tokens in a second, of each lane and of the prompt
        self._kept: OrderedDict[int, float] = OrderedDict()
        self._tokens = 0.0
        self._ticks = count()
        self._due = Due.READ
        self.shared = False
        self.busy = 0.0
        self.load = 0
        self.version = 0

    def take(self, turn: Turn, now: float) -> None:
        """A request has come."""
        self._advance(now)
        self.load += 1
        self._waiting.append(turn)

    def happens(self, now: float) -> list[Turn]:
        """What `next` foretold: a prompt has been read, or answers have ended, which are returned."""
        self._advance(now)
        reading, ended = self._reading, []
        if self._due is Due.READ:  # said by `next`: times are rounded, and tokens with them
            turn = reading.popleft()
            self._to_read -= turn.left
            turn.first = now
            if turn.answer <= 1:
                ended.append(turn)
            else:
                self._depth += turn.prompt + turn.answer / 2
                heappush(self._writing, (self._clock + turn.answer - 1, next(self._ticks), turn))
        if self._due is Due.WRITTEN:
            self._clock = self._writing[0][0]
        while self._writing and self._writing[0][0] <= self._clock:
            turn = heappop(self._writing)[2]
            self._depth -= turn.prompt + turn.answer / 2
            ended.append(turn)
        for turn in ended:
            self.load -= 1
            self._keep(turn.conversation, turn.prompt + turn.answer - 1)
        return ended

    def next(self, now: float, system: int) -> float:
        """Begin what can be begun, and say when something happens next."""
        while self._waiting and len(self._reading) + len(self._writing) < self._times.lanes:
            self._begin(self._waiting.popleft(), now, system)
        self.version += 1
        times, lanes = self._times, len(self._writing)
        step = times.steps[lanes - 1] + times.step_depth * self._depth if lanes else 0.0
        if not self._reading:
            if not lanes:
                self._depth = self._to_read = self._clock = 0.0  # nor does rounding add up
                return math.inf
            self._steps, self._due = 1 / step, Due.WRITTEN
            return now + (self._writing[0][0] - self._clock) * step
        turn = self._reading[0]
        chunk = min(times.chunk, max(self._to_read, 1.0))
        cycle = step + chunk * turn.token
        self._steps, self._reads = 1 / cycle, chunk / cycle
        read, written = turn.left / self._reads, math.inf
        if lanes:
            written = (self._writing[0][0] - self._clock) * cycle
        self._due = Due.READ if read < written else Due.WRITTEN
        return now + max(0.0, min(read, written))

    def dies(self, now: float) -> tuple[list[Turn], list[Turn]]:
        """The requests of which something was written, and the others."""
        self._advance(now)
        self.version += 1
        return [turn for _, _, turn in self._writing], [*self._reading, *self._waiting]

    def _advance(self, now: float) -> None:
        passed, self._at = now - self._at, now
        if self._writing:
            self._clock += passed * self._steps
        if self._reading:
            read = passed * self._reads
            self._reading[0].left -= read
            self._to_read -= read
        if self._writing or self._reading:
            self.busy += passed

    def _begin(self, turn: Turn, now: float, system: int) -> None:
        kept = self._kept.pop(turn.conversation, 0.0)
        self._tokens -= kept
        turn.cached = min(max(kept, system if self.shared else 0.0), turn.prompt - 1)
        turn.began, turn.left = now, turn.prompt - turn.cached
        turn.token = self._times.token + self._times.token_depth * (turn.cached + turn.left / 2)
        self.shared = self._most > 0
        self._to_read += turn.left
        self._reading.append(turn)

    def _keep(self, conversation: int, tokens: float) -> None:
        self._kept[conversation] = tokens
        self._tokens += tokens
        while self._tokens > self._most:
            self._tokens -= self._kept.popitem(last=False)[1]


@dataclass(frozen=True)
class Change:
    """At some time replicas die, or others come: `replicas` below 0, or above."""

    at: float
    replicas: int


@dataclass
class Seen:
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
        changes: Iterable[Change] = (),
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
        self._replicas: dict[int, Replica] = {}
        self._alive: list[int] = []
        self._marks: dict[int, list[str]] = {}
        self._length: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._seen = Seen()
        self._now = 0.0
        self._add(replicas)
        for change in changes:
            self._at(change.at, self._changes, change.replicas)

    def run(self) -> Seen:
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
        turn = Turn(conversation, number, self._now, prompt, max(1.0, self._work.answers[number]))
        self._send(turn, 0)

    def _send(self, turn: Turn, _: int) -> None:
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

    def _ends(self, turn: Turn, replica: int) -> None:
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
            self._replicas[number] = Replica(self._times, self._cache, self._now)
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
