"""A scheduler that is stepped in the test's own thread, so that what happens is the same every time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from localagent.hosts.channel import Channel, End
from localagent.hosts.engine import Engine
from localagent.hosts.generation import Cuts, GenerationState
from localagent.hosts.job import Job
from localagent.hosts.prefix import PrefixCache, Snapshots
from localagent.hosts.prefix.cache import DEFAULT_BUDGET
from localagent.hosts.protocol import Constraint, Finish, Prefilled, StopReason, Token
from localagent.hosts.sampling import Sampling
from localagent.hosts.scheduler import Scheduler


class Asked:
    """A generation and all that its reader has taken."""

    def __init__(
        self,
        engine: Engine,
        ids: Sequence[int],
        sampling: Sampling,
        wake: list[int],
        constraint: Constraint | None = None,
    ) -> None:
        self.cancel = threading.Event()
        self.channel = Channel(lambda: wake.append(1))
        generation = GenerationState(ids, sampling, engine.vocabulary, engine.context_size, Cuts.of(engine))
        self.job = Job(generation, self.channel, self.cancel, constraint)
        self.tokens: list[Token] = []
        self.progress: list[Prefilled] = []
        self.end: End | None = None

    def take(self, most: int | None = None) -> int:
        """Take what there is, at most so many; how many there were."""
        taken = 0
        for item in self.channel.take_now(most):
            assert self.end is None, "nothing comes after the end"
            taken += 1
            match item:
                case Token():
                    self.tokens.append(item)
                case Prefilled():
                    assert not self.tokens, "progress comes before the tokens"
                    self.progress.append(item)
                case End():
                    self.end = item
        return taken

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens taken."""
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        """Their text."""
        return "".join(token.text for token in self.tokens)

    @property
    def finish(self) -> Finish:
        """How it finished; it has not failed."""
        assert self.end is not None, "it goes on"
        assert self.end.finish is not None, self.end.error
        return self.end.finish

    @property
    def outcome(self) -> StopReason | type[BaseException] | None:
        """Why it stopped, or what it failed with; None as long as it goes on."""
        if self.end is None:
            return None
        return self.end.finish.stop_reason if self.end.finish else type(self.end.error)


class Stepping:
    """An engine, its prefix cache and its scheduler. Readers take at once what comes, unless told otherwise."""

    def __init__(
        self,
        engine: Engine,
        budget: int = DEFAULT_BUDGET,
        reading: bool = True,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.engine = engine
        self.prefix = PrefixCache(
            engine.lanes,
            budget,
            snapshots,
            context=engine.context_size,
            capacity=engine.capacity,
            anywhere=engine.spacing is None,
            left=2 if engine.divisible else 1,
        )
        self.stopping = False
        self.scheduler = Scheduler(engine, self.prefix, lambda: self.stopping)
        self.asked: list[Asked] = []
        self.wakes: list[int] = []
        """One for every time that a reader asked the owner thread to look again."""
        self.reading = reading

    def ask(
        self, ids: Sequence[int], sampling: Sampling | None = None, constraint: Constraint | None = None
    ) -> Asked:
        """Queue a generation."""
        asked = Asked(self.engine, ids, sampling or Sampling(), self.wakes, constraint)
        self.asked.append(asked)
        self.scheduler.add(asked.job)
        return asked

    def step(self) -> bool:
        """One step, as the owner thread does it."""
        try:
            more = self.scheduler.step()
        except BaseException as error:
            self.scheduler.fail(error)
            more = False
        if not more:
            assert not any(asked.channel._untold for asked in self.asked), (
                "who waits was told of all there is"
            )
        if self.reading:
            self.take()
        return more

    def take(self) -> None:
        """Every reader takes what there is."""
        for asked in self.asked:
            asked.take()
        self.asked = [asked for asked in self.asked if asked.end is None]

    def run(self, most: int = 100_000) -> int:
        """Steps until there is nothing to do; how many there were."""
        for count in range(most):
            if not self.step():
                return count
        raise AssertionError(f"it goes on after {most} steps")

    @property
    def busy(self) -> int:
        """How many lanes are in use."""
        return sum(seat.need is not None for seat in self.prefix._seats)
