"""Who comes next: clients take turns, and a queue that is full says so at once."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from localagent.server.exchange import BadRequest

_LONGEST_RETRY = 60


class Overloaded(BadRequest):
    """There is no room now; `retry_after`: seconds after which it is worth another try."""

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message, code="overloaded", status=503)
        self.retry_after = retry_after


class FairQueue:
    """Lets `slots` requests run at once. The others wait: each client's in order, and clients in turn.

    A request may take several slots. Above `most` waiting requests, the client who has most of them loses his
    last one. Used on one event loop.
    """

    def __init__(self, slots: int, most: int) -> None:
        self.slots = slots
        self.running = 0
        self._most = most
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        self._mean = 1.0  # seconds that a request runs, the last ones counting most

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, client: str, slots: int = 1) -> AsyncIterator[Callable[[int], None]]:
        """Wait for a place, and hold it; what it gives keeps only so many of the slots. Raises Overloaded."""
        await self._enter(client, slots)
        began = monotonic()

        def keep(some: int) -> None:
            nonlocal slots
            slots, freed = min(some, slots), slots - min(some, slots)
            self._leave(freed)

        try:
            yield keep
        finally:
            self._mean += (monotonic() - began - self._mean) / 8
            keep(0)

    async def _enter(self, client: str, slots: int) -> None:
        if self.running + slots <= self.slots and not self._waiting:
            self.running += slots
            return
        if self.waiting >= self._most:
            self._make_room(client)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((future, slots))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._leave(slots)  # its turn had come just before
            elif (future, slots) in (waiting := self._waiting.get(client, deque())):
                waiting.remove((future, slots))
                if not waiting:
                    del self._waiting[client]
                self._leave(0)  # those behind may want fewer slots
            raise

    def _make_room(self, client: str) -> None:
        """Send somebody away: whoever has most requests here, if that is not who asks."""
        full = Overloaded(
            f"{self.waiting} requests are waiting already: try again later", self._retry_after()
        )
        greediest = max(self._waiting, key=lambda name: len(self._waiting[name]), default=None)
        if greediest is None or len(self._waiting[greediest]) <= len(self._waiting.get(client, ())) + 1:
            raise full
        self._waiting[greediest].pop()[0].set_exception(full)

    def _leave(self, slots: int) -> None:
        self.running -= slots
        while self._waiting:
            client, futures = next(iter(self._waiting.items()))
            future, wanted = futures[0]
            if self.running + wanted > self.slots:
                break
            del self._waiting[client]
            futures.popleft()
            if futures:
                self._waiting[client] = futures  # behind all others
            if not future.done():
                self.running += wanted
                future.set_result(None)

    def _retry_after(self) -> int:
        rounds = sum(slots for futures in self._waiting.values() for _, slots in futures) / max(1, self.slots)
        return max(1, min(_LONGEST_RETRY, math.ceil(rounds * self._mean)))
