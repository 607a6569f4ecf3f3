"""What a running generation and its reader share, and the reader's side of it.

The owner thread puts steps into a `Channel`; `EngineGeneration` takes them out, in any thread or on an event
loop. A lane may be a few tokens ahead of its reader, so that the next one is computed while the reader works
on this one; if it is further ahead it rests, unless somebody waits for a lane (see `scheduler`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter

from localagent.hosts.owner import OwnerThread, on_an_owner_thread
from localagent.hosts.protocol import Finish, Step, Token

Record = Callable[[Sequence[Token]], None]

AHEAD = 16
"""Steps that a lane may be ahead of its reader before it rests."""
_PATIENCE = 4e-3  # seconds


@dataclass(frozen=True, slots=True)
class End:
    """The last thing in a channel: how the generation finished, or what broke it off."""

    finish: Finish | None = None
    error: BaseException | None = None


class Channel:
    """The owner thread calls `put` and `end`, and `tell` for all of them at once; the reader all else. Where
    the thread hangs, somebody else calls `end`.
    """

    __slots__ = (
        "_asleep", "_bell", "_call", "_loop", "_put", "_steps", "_taken", "_told", "_untold", "_wake",
        "cancelled", "resting",
    )  # fmt: skip

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake`: has the owner thread look at this again."""
        self._steps: deque[Step | End] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._told = 0.0
        self._untold = False
        self._wake = wake
        self._put = self._taken = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: Callable[[], None] | None = None
        self.cancelled = False
        self.resting = False
        """The lane rests until the reader has caught up."""

    def put(self, step: Step) -> None:
        """Give the reader a step. One that sleeps is not woken: see `tell`."""
        self._put += 1
        self._steps.append(step)
        self._untold = True

    def end(self, end: End) -> None:
        """Nothing comes after this."""
        self._steps.append(end)
        self._untold = True
        tell((self,))

    @property
    def ahead(self) -> bool:
        """Whether there are so many steps that the reader has not taken that the lane may rest."""
        if self._put - self._taken < AHEAD:
            return False
        # First the mark, then another look: the reader first takes, and then looks for the mark.
        self.resting = True
        tell((self,))
        if self._put - self._taken < AHEAD:
            self.resting = False
        return self.resting

    def take(self) -> Step | End:
        """The next step, awaited."""
        while not self._steps:
            # First the mark, then another look: the owner thread first puts, and then looks for the mark.
            self._asleep = True
            if not self._steps:
                self._bell.get()
        return self._taking()

    @property
    def more(self) -> bool:
        """Whether there is a step to take."""
        return bool(self._steps)

    def take_now(self, most: int | None = None) -> list[Step | End]:
        """The steps that are there, in order, `most` of them at most."""
        return [self._taking() for _ in range(len(self._steps))[:most]]

    def notify(self, loop: asyncio.AbstractEventLoop | None, call: Callable[[], None] | None) -> None:
        """Have `call` called on an event loop when something has been put, instead of waking a thread."""
        self._loop, self._call = loop, call

    def cancel(self) -> None:
        """Ask for the end. Safe inside a garbage collection: no waiting, no lock."""
        self.cancelled = True
        self._wake()

    def _taking(self) -> Step | End:
        step = self._steps.popleft()
        self._taken += 1
        if self.resting:
            self.resting = False
            self._wake()
        return step


def tell(channels: Iterable[Channel], patiently: bool = False) -> None:
    """Tell the readers of what was put. Those on one event loop are woken with one call.

    Waking somebody takes a tenth of the time that a tiny model needs for a token, and slows the engine down
    meanwhile: whoever is woken takes the interpreter from it. So it is done once for all lanes of a step, and
    `patiently` only if one of their readers has not been told for `_PATIENCE`; a reader that is awake finds
    every step at once.
    """
    now = perf_counter()
    untold = [channel for channel in channels if channel._untold]
    if patiently and all(now - channel._told < _PATIENCE for channel in untold):
        return
    called: dict[asyncio.AbstractEventLoop, list[Channel]] = {}
    for channel in untold:
        channel._told, channel._untold = now, False
        if channel._asleep:
            channel._asleep = False
            channel._bell.put(None)
        if (loop := channel._loop) is not None:  # looked up once: the reader may take it back meanwhile
            called.setdefault(loop, []).append(channel)
    for loop, readers in called.items():
        try:
            loop.call_soon_threadsafe(_call, readers)
        except RuntimeError:  # the event loop is closed: its readers will take nothing any more
            for channel in readers:
                channel.cancelled = True


def _call(channels: Iterable[Channel]) -> None:
    """On their event loop."""
    for channel in channels:
        if channel._call is not None:
            channel._call()


class EngineGeneration:
    """A running generation: an iterator of tokens. Dropping it cancels it. One reader at a time."""

    def __init__(self, owner: OwnerThread, channel: Channel, record: Record) -> None:
        self._owner = owner  # keeps its host alive
        self._channel = channel
        self._record = record
        self._tokens: list[Token] = []
        self._end: End | None = None

    def __iter__(self) -> EngineGeneration:
        return self

    def __next__(self) -> Token:
        for step in self.steps():
            if isinstance(step, Token):
                return step
        raise StopIteration

    def steps(self) -> Iterator[Step]:
        """The place in the queue and the progress of the prefill, then the tokens.

        Raises OwnerClosed in a fork, and what the engine raised.
        """
        take = self._channel.take
        while self._end is None:
            self._owner.check_process()
            if (step := self._taken(take())) is not None:
                yield step

    async def asteps(self, most: int | None = None) -> AsyncGenerator[Sequence[Step], None]:
        """The same on an event loop, in groups of those that are there, `most` of them at most. Leaving it
        early, also by cancelling the task, cancels the generation.

        It does not wait then until the engine has stopped: its lane is free before a later generation begins.
        The loop turns at least once after every group.
        """
        arrived = asyncio.Event()
        self._channel.notify(asyncio.get_running_loop(), arrived.set)
        try:
            while self._end is None:
                self._owner.check_process()
                items = self._channel.take_now(most)
                end = items.pop() if items and isinstance(items[-1], End) else None
                if steps := [step for item in items if (step := self._taken(item)) is not None]:
                    yield steps
                if end is not None:
                    self._taken(end)
                elif self._channel.more:  # as there always is where the engine is the faster one
                    await asyncio.sleep(0)
                elif not steps:
                    await arrived.wait()
                    arrived.clear()
        finally:
            self._channel.notify(None, None)
            if self._end is None:
                self._channel.cancel()
            self._remember()

    @property
    def finish(self) -> Finish | None:
        """How it ended; None while tokens may still come, and after an error."""
        return self._end.finish if self._end is not None else None

    def abandon(self, error: Exception) -> None:
        """Let the reader wait no longer: the owner thread hangs. `error` is raised there."""
        self._channel.end(End(error=error))

    def close(self) -> None:
        """Stop early, and wait until the engine has stopped. Safe to call twice and after the end.

        On an owner thread it does not wait: the garbage collector also runs there and closes abandoned
        generations, and an owner that waited for itself, or two for each other, would deadlock.
        """
        if self._end is None and not self._owner.foreign:
            self._channel.cancel()
            if on_an_owner_thread():
                return
            while not isinstance(item := self._channel.take(), End):
                pass
            self._end = item
        self._remember()

    def _taken(self, item: Step | End) -> Step | None:
        """What the reader gets; None at the end. Raises what broke the generation off."""
        if isinstance(item, End):
            self._end = item
            if item.error is not None:
                raise item.error
            self._remember()
            return None
        if isinstance(item, Token):
            self._tokens.append(item)
        return item

    def _remember(self) -> None:
        tokens, self._tokens = self._tokens, []
        if tokens:
            self._record(tokens)

    def __del__(self) -> None:
        # Only what is safe inside a garbage collection: see `Channel.cancel`.
        if getattr(self, "_end", True) is None:
            with contextlib.suppress(Exception):
                self._channel.cancel()
