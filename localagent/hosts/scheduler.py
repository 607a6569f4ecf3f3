"""Shares the lanes of one engine among generations. It is the owner thread's work, and runs on it alone.

A step is one token for every lane that is generating, all in one call of the engine, and then one chunk of
the oldest prompt. So no reader waits longer for somebody else's prompt than one chunk takes. The rules:

- First come, first served: prompts are read one at a time, in the order in which they came. So each finds
  what those before it have evaluated, and a prefix that many share is evaluated once.
- A generation begins when a lane is free and the tokens that it may come to fit beside those of the others.
- A lane that is too far ahead of its reader rests, unless somebody waits for a lane: then it goes on to its
  end, so that a thread which reads two generations in any order cannot wait for ever.
- What fails, fails alone: an error that an engine reports for one lane ends that generation and empties that
  lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from localagent.errors import EngineFailed
from localagent.hosts.channel import Channel, End
from localagent.hosts.engine import Engine
from localagent.hosts.generation import Generation
from localagent.hosts.lookup import PromptLookup
from localagent.hosts.prefix.cache import Loading, PrefixCache, Seat
from localagent.hosts.protocol import CancelFlag, Queued


class Job:
    """A generation, its reader's channel, and its seat once it has begun."""

    __slots__ = (
        "_cancel",
        "channel",
        "error",
        "generation",
        "loaded",
        "loading",
        "lookup",
        "need",
        "place",
        "scope",
        "seat",
    )

    def __init__(
        self, generation: Generation, channel: Channel, cancel: CancelFlag | None = None, scope: str = ""
    ) -> None:
        """`cancel`: another way than the channel to end it early. `scope`: see `prefix.cache`."""
        self.scope = scope
        self.generation = generation
        self.channel = channel
        self.seat: Seat | None = None
        self.error: Exception | None = None
        """What asking for a cancel raised."""
        self.loading: Loading | None = None
        self.loaded = False
        """What is on disk of its prompt is in memory."""
        self.need = len(generation.ids) + generation.most - 1
        """The most tokens that it may come to hold."""
        # Log-probabilities are those of a call for one token. And a batch may change the last bits of logits,
        # which a random draw may show: a seed is to be repeatable.
        sampling = generation.sampling
        drafts = sampling.logprobs is None and sampling.temperature == 0
        self.lookup = PromptLookup(generation.ids) if drafts else None
        self.place = 0
        """Its place in the queue, as its reader was last told; 0 when it does not wait."""
        self._cancel = cancel

    @property
    def cancelled(self) -> bool:
        """Whether the reader wants no more. A flag that fails ends the generation with its error."""
        try:
            return self.channel.cancelled or (self._cancel is not None and self._cancel.is_set())
        except Exception as error:
            self.error = error
            return True


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
        self._reading: Job | None = None
        self._running: list[Job] = []

    def add(self, job: Job) -> None:
        """Serve `job` when its turn comes."""
        if self._stopping():
            self._end(job)
            return
        self._waiting.append(job)
        self._moved = True

    def step(self) -> bool:
        """A token for each that generates, and a chunk of the oldest prompt. False when all rest or wait."""
        self._drop_cancelled()
        running = self._running if self._waiting else [job for job in self._running if not job.channel.ahead]
        if len(self._running) == 1 and running and self._reading is None:
            self._advance_alone(running[0])
        elif running:
            self._advance(running)
        if self._reading is None:
            self._begin()
        if self._moved:  # only now: a job that begins at once has not waited
            self._number()
        if self._reading is None and running:
            return True
        for job in self._running:
            job.channel.flush()
        if self._reading is None:
            return False
        self._read(self._reading)
        return True

    def fail(self, error: BaseException) -> None:
        """End everything with `error`."""
        for job in self._all():
            with suppress(Exception):  # the engine fails again while its lane is emptied: the others end, too
                self._broke(job, error)

    def end(self) -> None:
        """Cancel everything."""
        for job in self._all():
            self._end(job)

    def _all(self) -> list[Job]:
        reading = [self._reading] if self._reading is not None else []
        return [*self._running, *reading, *self._waiting]

    def _drop_cancelled(self) -> None:
        for job in self._running:
            if job.cancelled:
                self._end(job)
        if self._waiting and any(job.cancelled for job in self._waiting):
            for job in [job for job in self._waiting if job.cancelled]:
                self._end(job)

    # -- the oldest prompt -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Give the first in the queue a lane, if there is one; where that fails, the next is the first."""
        while self._waiting:
            job = self._waiting[0]
            started = perf_counter()
            try:
                if (self._running or job.loading) and not self._has_loaded(job):
                    return
                seat = self._prefix.open(job.generation.ids, job.need, job.scope)
            except Exception as error:
                self._broke(job, error)
                continue
            if seat is None:
                return
            self._waiting.popleft()
            self._moved = True
            self._reading, job.seat, job.place = job, seat, 0
            job.generation.resume(len(seat.lane.ids))
            job.generation.prefill += perf_counter() - started
            return

    def _has_loaded(self, job: Job) -> bool:
        """Whether what is on disk of its prompt has been read, while others generate."""
        if job.loaded:
            return True
        if job.loading is None:
            job.loading = self._prefix.stored(job.generation.ids, job.scope)
            if job.loading is not None:
                job.loading.start(self._wake)
        if job.loading is not None:
            if not job.loading.done:
                return False
            self._prefix.loaded(job.loading)
        job.loaded = True
        return True

    def _read(self, job: Job) -> None:
        """Evaluate a chunk; after the last one draw the first token, while the engine has its logits."""
        generation, seat = job.generation, job.seat
        assert seat is not None
        job.channel.put(generation.progress())
        chunk = generation.chunk
        assert chunk is not None
        started = perf_counter()
        try:
            whole = seat.lane.evaluate(chunk, lambda: job.cancelled or self._stopping())
            generation.prefill += perf_counter() - started
            if not whole:
                self._prefix.recover(seat)
                self._end(job)
                return
            worth_a_checkpoint = generation.evaluated()
            if generation.chunk is not None:
                if worth_a_checkpoint:
                    self._prefix.mark(seat)
                return
            seat.lane.begin(generation.sampling, generation.ids)
        except Exception as error:
            self._broke(job, error)
            return
        self._reading = None
        self._running.append(job)
        self._advance([job])

    # -- tokens ----------------------------------------------------------------------------------------

    def _advance(self, jobs: Sequence[Job]) -> None:
        """Draw a token for each."""
        started = perf_counter()
        lanes = [job.seat.lane for job in jobs if job.seat is not None]
        try:
            drawn: Sequence[int | EngineFailed] = self._engine.advance(lanes)
        except Exception as error:  # whose fault it was is not known, nor what the lanes hold
            for job in list(jobs):
                self._broke(job, error)
            return
        seconds = perf_counter() - started
        for job, token in zip(list(jobs), drawn, strict=True):
            if isinstance(token, EngineFailed):
                self._broke(job, token)
            else:
                self._give(job, token, seconds)

    def _advance_alone(self, job: Job) -> None:
        """The same for one that has the engine to itself, which may go faster by drafts: see `lookup`."""
        generation, seat, lookup = job.generation, job.seat, job.lookup
        assert seat is not None
        if lookup is None or not seat.lane.can_verify:
            self._advance([job])
            return
        draft = lookup.draft(min(generation.most - generation.generated - 1, self._engine.chunk - 1))
        started = perf_counter()
        if not draft:
            self._advance([job])
            lookup.took(perf_counter() - started)
            return
        try:
            drawn = seat.lane.verify(draft, self._ends)
        except Exception as error:
            self._broke(job, error)
            return
        seconds = perf_counter() - started
        lookup.took(seconds, len(draft), len(drawn))
        for token in drawn:
            if job.seat is not None:  # else it has ended within the draft
                self._give(job, token, seconds / len(drawn))

    def _ends(self, token: int) -> bool:
        return self._engine.vocabulary.piece(token).end

    def _give(self, job: Job, token: int, seconds: float) -> None:
        """Hand a token to the reader, unless he has left meanwhile."""
        generation, seat = job.generation, job.seat
        assert seat is not None
        if generation.generated:
            generation.decode += seconds
        else:
            generation.prefill += seconds
        if job.lookup is not None:
            job.lookup.drawn((token,))
        try:
            for each in generation.drawn(token, seat.lane.logprobs):
                job.channel.put(each)
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
        self._leave(job)
        job.channel.end(End(error=job.error) if job.error else End(generation.finish()))

    def _broke(self, job: Job, error: BaseException) -> None:
        """End with an error. What the lane holds is not known then, and nothing of it is used again."""
        try:
            if job.seat is not None:
                self._prefix.clear(job.seat)
        finally:
            self._leave(job)
            job.channel.end(End(error=error))

    def _leave(self, job: Job) -> None:
        """Free the lane, or the place in the queue."""
        if job is self._reading:
            self._reading = None
        self._running = [other for other in self._running if other is not job]
        if job in self._waiting:
            self._waiting.remove(job)
            self._moved, job.place = True, 0
        if job.seat is not None:
            job.seat.lane.end()
            self._prefix.release(job.seat)
            job.seat = None

    def _number(self) -> None:
        """Tell those who wait how many begin before them, themselves included."""
        self._moved = False
        for place, job in enumerate(self._waiting, 1):
            if job.place != place:
                job.place = place
                job.channel.put(Queued(place))
