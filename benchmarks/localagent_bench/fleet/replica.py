"""What one replica does with its requests, and when. What is assumed of it is said in `simulation.py`."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count


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


@dataclass(slots=True)
class SimulatedTurn:
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


class SimulatedReplica:
    """One of them: what it reads and writes, and what it keeps. `load`: requests that it has."""

    def __init__(self, times: Times, cache: float, now: float) -> None:
        """`cache`: tokens that it keeps."""
        self._times = times
        self._most = cache
        self._at = now
        self._clock = 0.0  # tokens that a lane would have written which wrote all the time
        self._writing: list[tuple[float, int, SimulatedTurn]] = []  # by the clock at their end
        self._reading: deque[SimulatedTurn] = deque()
        self._waiting: deque[SimulatedTurn] = deque()
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

    def take(self, turn: SimulatedTurn, now: float) -> None:
        """A request has come."""
        self._advance(now)
        self.load += 1
        self._waiting.append(turn)

    def happens(self, now: float) -> list[SimulatedTurn]:
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

    def dies(self, now: float) -> tuple[list[SimulatedTurn], list[SimulatedTurn]]:
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

    def _begin(self, turn: SimulatedTurn, now: float, system: int) -> None:
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
