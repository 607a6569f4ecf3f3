"""What the requests of one server share, and its end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TextIO

from localagent.server.access import Access
from localagent.server.bounds import Bounds
from localagent.server.metrics import Metrics
from localagent.server.models import ModelPool, ServedModel
from localagent.server.queue import FairQueue
from localagent.server.weights import Weights
from localagent.store.disk import Progress
from localagent.wording import quoted

log = logging.getLogger("localagent.server")
_MOST_MENTIONED = 1000
_LOOK = 0.1
"""Seconds between two looks whether answers may still go on."""
STOPPING = "the server is stopping: ask again when it is back"
_LAST_WORDS = 2
"""Seconds that answers have to say that the server stops."""


Prepared = tuple[str, Callable[[], ServedModel], Callable[[], Weights] | None, bool]
"""The name under which a model is served, what loads it, what reads the header of its weights, and whether
those are in the store.
"""


@dataclass(frozen=True, slots=True)
class Pulling:
    """What may be done to the models on the disk; both take long, and are called in a thread."""

    fetch: Callable[[str, Progress], Prepared]
    """Fetches the weights of a model, if need be. Raises LocalAgentError."""
    remove: Callable[[str], object]
    """Deletes the weights of a model. Raises LocalAgentError."""


class Service:
    """What the requests of one server share."""

    def __init__(
        self,
        pool: ModelPool,
        access: Access | None = None,
        bounds: Bounds | None = None,
        *,
        metrics: bool = False,
        log_prompts: bool = False,
        buffer_tool_calls: bool = True,
        pulling: Pulling | None = None,
    ) -> None:
        """`metrics`: offer /metrics. `log_prompts`: log what is said. `buffer_tool_calls`: see `Answer`.
        `pulling`: what fetches and deletes models, where clients may have that done.
        """
        self.pool = pool
        self.access = access or Access()
        self.bounds = bounds or Bounds()
        self.metrics = Metrics(pool)
        self.offers_metrics = metrics
        self.log_prompts = log_prompts
        self.buffer_tool_calls = buffer_tool_calls
        self.pulling = pulling
        self.bodies = FairQueue(self.bounds.bodies, self.bounds.queue)
        """The room for large bodies, a slot a byte."""
        self.parsing = asyncio.Lock()
        """Held while a large body is parsed, which takes much memory."""
        self.stopping = False
        self._running: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._mentioned: set[str] = set()

    @contextmanager
    def running(self, turn: asyncio.Task[None], answers: bool = True) -> Iterator[None]:
        """The turn is to be ended if the server stops meanwhile. `answers`: False while it is being asked."""
        tasks = self._running if answers else self._asking
        tasks.add(turn)
        if self.stopping:
            turn.cancel()
        try:
            yield
        finally:
            tasks.discard(turn)

    async def stop(self, drains: Callable[[], bool] = lambda: False) -> None:
        """End all answers with an error, and begin no more.

        Those that run may come to their own end before that, within `Bounds.drain` and as long as `drains`.
        """
        self.stopping = True
        for turn in self._asking:
            turn.cancel()
        until = monotonic() + self.bounds.drain
        while self._running and drains() and monotonic() < until:
            await asyncio.wait(self._running, timeout=_LOOK)
        for turn in self._running:
            turn.cancel()
        if ending := self._running | self._asking:
            await asyncio.wait(ending, timeout=_LAST_WORDS)

    def mention(self, path: str, ignored: Sequence[str]) -> None:
        """Log each field that is ignored once."""
        for name in ignored:
            if name not in self._mentioned and len(self._mentioned) < _MOST_MENTIONED:
                self._mentioned.add(name)
                log.info("%s: %s is ignored", path, quoted(name))


def log_to_standard_error(prompts: bool, stream: TextIO | None = None) -> None:
    """Log what the server does, a line each; what is said only if `prompts` asks for it.

    `stream`: what is standard error, if something else was put in its place.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("localagent", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger("localagent").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what is no HTTP is refused without a word
    logging.getLogger("localagent.prompts").disabled = not prompts
