"""Ollama's `/api/pull` and `/api/delete`: models come and go while the server runs.

A model that is served is there at once. Whatever else is asked for is fetched, served and deleted only where
the server was started with the option for that: it fills a disk, and takes models from others.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from threading import Event
from time import monotonic
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from localagent.errors import LocalAgentError, UnknownModel, UsageError
from localagent.server.bounds import Gone
from localagent.server.exchange import BadRequest, Frame
from localagent.server.models import Served
from localagent.server.routes import JsonAnswer, OwnRoutes
from localagent.server.service import Prepared, Pulling
from localagent.server.wires.ollama_models import asked_model, asked_pull
from localagent.store.disk import Phase, Progress
from localagent.wording import quoted

_EVERY = 0.1
"""Seconds between two lines about one phase."""
_STATUSES = {"wait": "waiting for another pull", "extract": "extracting", "verify": "verifying sha256 digest"}


class _Left(LocalAgentError):
    """Nobody waits for the pull any more."""


class PullRoutes:
    """The endpoints, as methods."""

    def __init__(self, own: OwnRoutes, pulling: Pulling | None) -> None:
        self._own = own
        self._pulling = pulling
        self._one_at_a_time = asyncio.Lock()

    async def pull(self, request: Request) -> Response:
        """Have a model that is not served yet."""
        try:
            name, stream = asked_pull(await self._own.body(request))
            lines = self._lines(name, self._fetcher(name))
            if stream:
                return StreamingResponse(_written(lines), media_type="application/x-ndjson")
            async with aclosing(lines):
                told = [line async for line in lines]
            return JsonAnswer(told[-1])
        except (LocalAgentError, Gone) as error:
            return self._own.refused(request, error)

    async def delete(self, request: Request) -> Response:
        """Unload a model that nobody uses, and delete its weights."""
        try:
            name = asked_model(await self._own.body(request))
            allowed, pool = self._allowed(), self._own.pool
            served = pool.find(name, exactly=True)
            if len(pool.served) == 1:
                raise UsageError(f"{quoted(served.name)} is the only model that is served")
            await pool.unload(served)
            pool.remove(served)  # first: nobody is to load it again meanwhile
            try:
                await asyncio.to_thread(allowed.remove, served.name)
            except LocalAgentError:
                pool.add(served)
                raise
            return Response()
        except (LocalAgentError, Gone) as error:
            return self._own.refused(request, error)

    def _allowed(self) -> Pulling:
        if self._pulling is None:
            said = "the server was not started with --allow-pull: it fetches and deletes no models"
            raise BadRequest(said, status=403)
        return self._pulling

    def _fetcher(self, name: str) -> Callable[[str, Progress], Prepared] | None:
        """What fetches a model; None for one that is here. Raises BadRequest where nothing may be fetched."""
        try:
            self._own.pool.find(name, exactly=True)
        except UnknownModel:
            return self._allowed().fetch
        return None

    async def _lines(
        self, name: str, fetch: Callable[[str, Progress], Prepared] | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The progress of a pull. Raises LocalAgentError."""
        if fetch is None:
            yield {"status": "success"}
            return
        yield {"status": "pulling manifest"}
        async with self._one_at_a_time:
            told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
            left = Event()
            progress = _teller(name, told, left)
            fetching = asyncio.create_task(asyncio.to_thread(fetch, name, progress))
            fetching.add_done_callback(lambda _: told.put_nowait(None))
            try:
                while (line := await told.get()) is not None:
                    yield line
                called, load, header = await fetching
                self._own.pool.add(Served(called, load, self._own.pool.queue, header))
            finally:  # what has been fetched is gone on with next time
                left.set()
                await asyncio.gather(fetching, return_exceptions=True)
        yield {"status": "writing manifest"}
        yield {"status": "success"}


def _teller(name: str, told: asyncio.Queue[dict[str, Any] | None], left: Event) -> Progress:
    """A progress, called in a thread, as lines in a queue of this event loop."""
    loop = asyncio.get_running_loop()
    digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"  # by it clients tell bars apart
    last: tuple[Phase | None, float] = None, 0.0

    def progress(phase: Phase, done: int, total: int | None) -> None:
        nonlocal last
        if left.is_set():
            raise _Left(f"the client has left, and {name} is not fetched")
        if phase == last[0] and done != total and monotonic() - last[1] < _EVERY:
            return
        last = phase, monotonic()
        line: dict[str, Any] = {"status": _STATUSES.get(phase, f"pulling {name}"), "digest": digest}
        if total:
            line |= {"total": total, "completed": done}
        loop.call_soon_threadsafe(told.put_nowait, line)

    return progress


async def _written(lines: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    async with aclosing(lines):
        try:
            async for line in lines:
                yield Frame(line).encode("ndjson")
        except LocalAgentError as error:
            yield Frame({"error": str(error)}).encode("ndjson")
