"""Ollama's `/api/pull` and `/api/delete`: models come and go while the server runs.

A model that is served is there at once. Whatever else is asked for is fetched, served and deleted only where
the server was started with the option for that: it fills a disk, and takes models from others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from localagent.errors import LocalAgentError, UnknownModel, UsageError
from localagent.server.bounds import Gone, left
from localagent.server.exchange import BadRequest, Frame, message_of
from localagent.server.models import Served
from localagent.server.queue import Overloaded
from localagent.server.routes import JsonAnswer, OwnRoutes
from localagent.server.service import STOPPING, Prepared, Pulling
from localagent.server.wires.ollama_models import asked_model, asked_pull
from localagent.store.disk import Phase, Progress
from localagent.wording import quoted

log = logging.getLogger("localagent.server")
T = TypeVar("T")
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
            return JsonAnswer(await _last(lines, request))
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
            if not served.stored:  # whatever its name: a catalogue's model may have the same
                raise UsageError(f"{quoted(name)} was not pulled: its weights are files of the user's")
            pool.remove(served)  # first: nobody is to load it again meanwhile, and who asks for it gets 404
            try:
                await pool.unload(served)
                await asyncio.to_thread(allowed.remove, served.name)
            except Exception:
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
        service, this, gone = self._own.service, asyncio.current_task(), Event()
        assert this is not None
        with service.running(this, answers=False):
            try:
                await self._one_at_a_time.acquire()
                told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
                fetching = _in_thread(partial(fetch, name, _teller(name, told, gone)))
                fetching.add_done_callback(partial(self._fetched, told))
                while (line := await told.get()) is not None:
                    yield line
                called, load, header, stored = await fetching
                self._own.pool.add(Served(called, load, self._own.pool.queue, header, stored), name)
            except asyncio.CancelledError:
                if not service.stopping:
                    raise
                this.uncancel()
                raise Overloaded(STOPPING) from None
            finally:  # the thread ends when it next has progress to tell; another pull goes on from there
                gone.set()
        yield {"status": "writing manifest"}
        yield {"status": "success"}

    def _fetched(
        self, told: asyncio.Queue[dict[str, Any] | None], fetching: asyncio.Future[Prepared]
    ) -> None:
        self._one_at_a_time.release()  # not before: a thread whose client has left still writes to the disk
        fetching.exception()  # looked at here, since nobody may wait for it
        told.put_nowait(None)


async def _last(lines: AsyncGenerator[dict[str, Any], None], request: Request) -> dict[str, Any]:
    """The last line of a pull, which ends when the client leaves. Raises LocalAgentError, Gone."""

    async def read() -> dict[str, Any]:
        async with aclosing(lines):
            return [line async for line in lines][-1]

    reading, gone = asyncio.create_task(read()), asyncio.create_task(left(request.receive))
    try:
        await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise Gone
        return reading.result()
    finally:
        reading.cancel()
        gone.cancel()
        await asyncio.gather(reading, gone, return_exceptions=True)


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do something in a thread for which the interpreter does not wait at its end: a hub may stall."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    Thread(target=run, name="pull", daemon=True).start()
    return asyncio.wrap_future(done)


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
        except Exception as error:
            if not isinstance(error, LocalAgentError):
                log.error("a pull failed: %s", type(error).__name__)
            yield Frame({"error": message_of(error)}).encode("ndjson")
