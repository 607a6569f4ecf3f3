"""Shares the lanes of one engine among generations. It is the owner thread's work, and runs on it alone.

A step is one token for every lane that is generating, all in one call of the engine, and then at most one
chunk of tokens of prompts. So no reader waits longer for other people's prompts than one chunk takes. The
rules:

- First come, first served: prompts begin in the order in which they came. A long one is read alone. Short
  ones are read together, a chunk of each in turn, and several chunks in one call where the engine can: they
  end at about the same time, and then generate together, which takes much less than a few lanes in each step.
- A prompt waits while one before it evaluates what both begin with. So a prefix that many share is evaluated
  once.
- A generation begins when a lane is free, the most tokens that it may need fit beside those of the others,
  and what is on disk of its prompt has been read.
- A cancel frees the lane, or the place in the queue, in the next step.
- A lane that is too far ahead of its reader rests, unless somebody waits for a lane: then it goes on to its
  end, so that a thread which reads two generations in any order cannot wait for ever.
- What fails, fails alone: an error that an engine reports for one lane, or that a constraint raises, ends
  that generation and empties that lane.
- A constraint is asked before each draw. Where it leaves no choice for several tokens, they are evaluated in
  one call, and handed out like any others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from localagent.errors import EngineFailed
from localagent.hosts.bounds import Bounds
from localagent.hosts.channel import End, tell
from localagent.hosts.engine import Engine
from localagent.hosts.job import Job
from localagent.hosts.prefix.cache import PrefixCache
from localagent.hosts.protocol import Queued

_SHORT = 16
"""The most chunks' worth of tokens that are read together: one or two seconds, by which the first token of
one prompt may come later for the others. Sixteen short questions are then read in two groups."""
_LEAST_EACH = 8
"""Tokens of each of several prompts that are read in one call: with fewer, attention costs more than the
larger matrices save."""
_LATE = 0.1
"""Seconds that the masks of one step may take."""
_PATIENCE = 0.02
"""Seconds after which cancel flags are looked at again where no token is drawn meanwhile."""


class Scheduler:
    """See the module, and `owner.Work`."""

    def __init__(
        self,
        engine: Engine,
        prefix: PrefixCache,
        stopping: Callable[[], bool],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`stopping`: whether the owner thread is to end. `wake`: has it step again, from any thread."""
        self._engine = engine
        self._prefix = prefix
        self._stopping = stopping
        self._wake = wake
        self._waiting: deque[Job] = deque()
        self._moved = False  # not everybody who waits has been told the new place
        self._reading: deque[Job] = deque()  # the next one to have its turn first
        self._together = 0  # tokens that these had to read when they began, and those that began with them
        self._running: list[Job] = []

    def add(self, job: Job) -> None:
        """Serve `job` when its turn comes."""
        if self._stopping():
            self._end(job)
            return
        self._waiting.append(job)
        self._moved = True

    def step(self) -> bool:
        """A token for each that generates, and a chunk of what is read. False when all rest or wait."""
        self._drop_cancelled()
        running = self._running if self._waiting else [job for job in self._running if not job.channel.ahead]
        if len(self._running) == 1 and running and not self._reading:
            self._advance_alone(running[0])
        elif running:
            self._advance(running)
        self._tell(patiently=True)
        if self._waiting:
            self._begin()
        if self._moved:  # only now: a job that begins at once has not waited
            self._number()
        if not self._reading and running:
            return True
        if not self._reading:
            self._tell()
            self._engine.rest()
            return False
        self._read()
        self._tell()
        return True

    @property
    def patience(self) -> float | None:
        """See `owner.Work`: nobody wakes the thread when a cancel flag is set."""
        return _PATIENCE if any(job.flagged for job in self._all()) else None

    def fail(self, error: BaseException) -> None:
        """End everything with `error`."""
        for job in self._all():
            with suppress(Exception):  # the engine fails again while its lane is emptied: the others end, too
                self._broke(job, error)

    def end(self) -> None:
        """Cancel everything."""
        for job in self._all():
            with suppress(Exception):  # as in `fail`
                self._end(job)

    def _tell(self, patiently: bool = False) -> None:
        """Tell all readers of what was put; without `patiently`, since nothing may be put for a while."""
        tell([job.channel for job in self._all()], patiently)

    def _all(self) -> list[Job]:
        return [*self._running, *self._reading, *self._waiting]

    def _drop_cancelled(self) -> None:
        for job in self._all():
            if job.cancelled:
                self._end(job)

    # -- prompts ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Give the first in the queue a lane, if there is one, and so on; one where that fails has ended."""
        while self._waiting:
            job = self._waiting[0]
            started = perf_counter()
            try:
                if self._reading and not self._joins(job):
                    return
                if not self._prefix.fits(job.generation.ids, job.need) or not self._has_loaded(job):
                    return
                seat = self._prefix.open(job.generation.ids, job.need, job.scope)
            except Exception as error:
                self._broke(job, error)
                continue
            if seat is None:
                return
            self._waiting.popleft()
            self._moved = True
            if not self._reading:
                self._together = 0
            self._reading.append(job)
            job.seat, job.place = seat, 0
            job.generation.resume(len(seat.lane.ids))
            self._together += len(job.generation.ids) - len(seat.lane.ids)
            job.generation.prefill += perf_counter() - started

    def _joins(self, job: Job) -> bool:
        """Whether it is to be read together with those that are being read."""
        ids = job.generation.ids
        known = self._prefix.reach(ids, job.scope)
        if self._together + len(ids) - known > _SHORT * self._engine.chunk:
            return False
        return all(
            other.scope != job.scope or other.generation.will_reach(ids) <= known for other in self._reading
        )

    def _has_loaded(self, job: Job) -> bool:
        """Whether what is on disk of its prompt has been read, while others are served and may cancel."""
        if job.loading is None:
            job.loading = self._prefix.load(job.generation.ids, self._wake, job.scope)
        return self._prefix.loaded(job.loading)

    def _read(self) -> None:
        """Evaluate a chunk, or several at once; after the last one of a prompt draw its first token, while
        the engine has its logits.
        """
        jobs, size = self._turn()
        for job in jobs:
            job.channel.put(job.generation.progress())
        self._tell()
        try:
            whole = self._evaluate(jobs, size)
        except Exception as error:  # whose fault it was is not known, nor what the lanes hold
            for job in jobs:
                self._broke(job, error)
            return
        begun = []
        for job in jobs:
            try:
                if whole and self._evaluated(job, size):
                    begun.append(job)
                elif not whole:
                    assert job.seat is not None
                    self._prefix.recover(job.seat, job.generation.position)
                    self._end(job)
            except Exception as error:
                self._broke(job, error)
        self._running += begun
        # Where tokens are forced, evaluating them overwrites the logits of all: those lanes come last.
        forced = [job for job in begun if job.bounds is not None and job.bounds.will_force()]
        if free := [job for job in begun if job not in forced]:
            # What another thread has forced meanwhile, as the end of the reasoning, waits for the next step.
            self._advance(free, forcing=False)
        if forced:
            self._advance(forced)

    def _evaluate(self, jobs: Sequence[Job], size: int) -> bool:
        """Evaluate their chunks in one call. False if all of them were cancelled meanwhile."""
        chunks = [job.generation.chunk(size) for job in jobs]
        lanes = [job.lane for job in jobs]

        def cancelled() -> bool:  # as long as one of them is wanted, all are computed
            return self._stopping() or all(job.cancelled for job in jobs)

        started = perf_counter()
        if len(jobs) == 1:
            whole = lanes[0].evaluate(chunks[0], cancelled)
        else:
            whole = self._engine.evaluate(lanes, chunks, cancelled)
        seconds = perf_counter() - started
        for job in self._reading:
            job.generation.prefill += seconds
        for job in self._running:  # they have waited for it, too, unless they rest
            if not job.channel.resting:
                job.generation.decode += seconds
        return whole

    def _turn(self) -> tuple[list[Job], int]:
        """Whose chunks are evaluated now, and their length: the next one's, and those of others that can have
        the same one, as long as there is room in one call.
        """
        joint = self._engine.joint
        most = self._engine.chunk if self._running else self._engine.batch
        share = most // max(1, min(len(self._reading), most // _LEAST_EACH)) if joint else most
        size = self._size(max(2, share))
        room = most // size if joint and size > 1 else 1  # a single token has a kernel of its own
        jobs = [job for job in self._reading if job.generation.takes(size)][: max(1, room)]
        for job in jobs:
            self._reading.remove(job)
            self._reading.append(job)
        return jobs, size

    def _size(self, share: int) -> int:
        """The length, about `share` or less, with which one call evaluates most tokens."""
        generations = [job.generation for job in self._reading]
        sizes = {generations[0].size(share)}
        if len(generations) > 1 and self._engine.joint:
            ends = {generation.size(share) for generation in generations}
            sizes |= {size - less for size in ends for less in (0, 2) if size - less > 1}
        fitting = [size for size in sizes if generations[0].takes(size)]
        return max(fitting, key=lambda size: (size * sum(other.takes(size) for other in generations), size))

    def _evaluated(self, job: Job, size: int) -> bool:
        """Its chunk has been evaluated. Whether that was the last one, and tokens can be drawn."""
        generation, seat = job.generation, job.seat
        assert seat is not None
        for length in generation.evaluated(size):
            if length < len(generation.ids):
                self._prefix.mark(seat, length)
        if not generation.whole:
            return False
        seat.lane.begin(generation.sampling, generation.ids)
        self._reading.remove(job)
        return True

    # -- tokens ----------------------------------------------------------------------------------------

    def _advance(self, jobs: Sequence[Job], forcing: bool = True) -> None:
        """Draw a token for each. `forcing`: see `_bound`."""
        late = perf_counter() + _LATE
        # After a mask that took long, everybody else has a token before the next one is made. A lane's first
        # token is drawn at once all the same, while the engine has its logits.
        jobs = [
            job
            for job in jobs
            if job.bounds is None
            or (
                (not job.generation.generated or perf_counter() < late)
                and self._bound(job, job.bounds, forcing)
            )
        ]
        if not jobs:
            return
        started = perf_counter()
        try:
            drawn = self._engine.advance([job.lane for job in jobs])
        except Exception as error:  # whose fault it was is not known, nor what the lanes hold
            for job in jobs:
                self._broke(job, error)
            return
        seconds = perf_counter() - started
        for job, token in zip(jobs, drawn, strict=True):
            if isinstance(token, EngineFailed):
                self._broke(job, token)
            else:
                self._give(job, token, seconds)

    def _advance_alone(self, job: Job) -> None:
        """The same for one that has the engine to itself, which may go faster by drafts: see `lookup`."""
        generation, lookup, bounds = job.generation, job.lookup, job.bounds
        if lookup is None or not job.lane.can_verify or not (bounds is None or bounds.frees()):
            self._advance([job])
            return
        draft = lookup.draft(min(generation.most - generation.generated, self._engine.chunk) - 1)
        started = perf_counter()
        if not draft:
            self._advance([job])
            lookup.took(perf_counter() - started)
            return
        told = 0

        def last(token: int) -> bool:
            """What follows may be bounded, so the constraint is told here; but not of the last token."""
            nonlocal told
            if self._engine.vocabulary.piece(token).end:
                return True
            if bounds is None:
                return False
            told += 1
            bounds.accept(token)
            return not bounds.frees()

        try:
            drawn = job.lane.verify(draft, last)
        except Exception as error:
            self._broke(job, error)
            return
        seconds = perf_counter() - started
        lookup.took(seconds, len(draft), len(drawn))
        for number, token in enumerate(drawn):
            if job.seat is not None:  # else it has ended within the draft
                self._give(job, token, seconds / len(drawn), told=number < told)

    def _bound(self, job: Job, bounds: Bounds, forcing: bool) -> bool:
        """Have a lane draw as its constraint says. False if it draws nothing now: it has ended, or more is
        forced than a chunk. `forcing`: whether forced tokens may be evaluated in one call; without it the
        mask alone holds, which allows no other.
        """
        try:
            if forcing and (forced := bounds.forced(self._engine.chunk)):
                started = perf_counter()
                for token in forced:
                    self._give(job, token, 0.0)
                    if job.seat is None:
                        return False
                job.lane.force(forced)
                job.generation.decode += perf_counter() - started
                if bounds.forced(2):
                    return False
            if (mask := bounds.mask(self._engine.vocabulary.size)) is not None:
                job.lane.bound(mask, bounds.otherwise())
        except Exception as error:
            self._broke(job, error)
            return False
        return True

    def _give(self, job: Job, token: int, seconds: float, told: bool = False) -> None:
        """Hand a token to the reader, unless he has left meanwhile, and tell the constraint, unless it is
        `told`.
        """
        generation = job.generation
        if generation.generated:
            generation.decode += seconds
        else:
            generation.prefill += seconds
        if job.lookup is not None:
            job.lookup.drawn((token,))
        try:
            for each in generation.drawn(token, job.lane.logprobs):
                job.channel.put(each)
            if job.bounds is not None and not told and generation.ended is None:
                job.bounds.accept(token)
        except Exception as error:
            self._broke(job, error)
            return
        if generation.ended is not None:
            self._end(job)

    # -- ends ------------------------------------------------------------------------------------------

    def _end(self, job: Job) -> None:
        """Tell the reader how it ended; what is not over yet is cancelled."""
        generation = job.generation
        if generation.ended is None:
            for token in generation.cancelled():
                job.channel.put(token)
        self._leave(job, End(error=job.error) if job.error else End(generation.finish()))

    def _broke(self, job: Job, error: BaseException) -> None:
        """End with an error. What the lane holds is not known then, and nothing of it is used again."""
        try:
            if job.seat is not None:
                self._prefix.clear(job.seat)
        finally:
            self._leave(job, End(error=error))

    def _leave(self, job: Job, end: End) -> None:
        """Free the lane, or the place in the queue, and tell the reader, even if the engine fails at that:
        the job is in no list any more, so nobody else would.
        """
        if job in self._reading:
            self._reading.remove(job)
        self._running = [other for other in self._running if other is not job]
        if job in self._waiting:
            self._waiting.remove(job)
            self._moved, job.place = True, 0
        seat, job.seat = job.seat, None
        try:
            if seat is not None:
                try:
                    seat.lane.end()
                finally:
                    self._prefix.release(seat)
        finally:
            job.channel.end(end)

    def _number(self) -> None:
        """Tell those who wait how many begin before them, themselves included."""
        self._moved = False
        for place, job in enumerate(self._waiting, 1):
            if job.place != place:
                job.place = place
                job.channel.put(Queued(place))
