"""The one handler of all wires: read, ask the model, write; and the end of an answer, however it comes.

    body --Wire.read--> TurnRequest --ModelPool--> Model.astream --Writer--> frames, or one object

An answer ends when the model has finished, when the client leaves (within a step of the engine, streaming or
not), at the deadline, or when the server stops. Only then is its place free for the next one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import aclosing, asynccontextmanager, suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from localagent.errors import LocalAgentError
from localagent.model import Model
from localagent.server.access import Head
from localagent.server.bounds import Bounds, Gone, Receive, parse_json, read_body
from localagent.server.exchange import (
    Answer,
    BadRequest,
    Frame,
    Framing,
    TurnRequest,
    Wire,
    Writer,
    dump,
    header_word,
)
from localagent.server.metrics import Watched
from localagent.server.queue import Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from localagent.server.app import Service

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_MEDIA = {"sse": b"text/event-stream; charset=utf-8", "ndjson": b"application/x-ndjson"}
_MOST_NAMES = 30  # in a header
_WORTH_A_THREAD = 1 << 16
_DRAINED = 4
"""How many times the largest body is read and thrown away after a refusal."""

log = logging.getLogger("localagent.server")
prompts = logging.getLogger("localagent.prompts")


class Stopping(LocalAgentError):
    """The server is about to end."""


class Reply:
    """One HTTP answer. Its head goes out with the first bytes, so that an error before them has a status."""

    def __init__(self, send: Send, bounds: Bounds, framing: Framing = "sse") -> None:
        self._send = send
        self._bounds = bounds
        self.framing = framing
        self.opening: list[Frame] = []
        self._one_at_a_time = asyncio.Lock()
        self.headers: list[tuple[bytes, bytes]] = []
        self.started = False
        self.touched = monotonic()
        """When something was last sent."""

    async def json(self, status: int, value: Any, more: Headers = (), last: bool = True) -> None:
        """A whole answer; without `last`, `end` has to follow."""
        body = dump(value).encode("utf-8", "replace")
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
        self.started = True
        await self._give({"type": "http.response.start", "status": status, "headers": [*head, *self.headers]})
        await self._give({"type": "http.response.body", "body": body, "more_body": not last})

    async def end(self) -> None:
        """Nothing more comes."""
        await self._give({"type": "http.response.body", "body": b""})

    async def write(self, frames: Iterable[Frame], last: bool = False) -> None:
        """A part of a stream; the first one brings what the writer begins with."""
        async with self._one_at_a_time:  # the turn and the keep-alive both write
            if not self.started:
                self.started = True
                head = [
                    (b"content-type", _MEDIA[self.framing]),
                    (b"cache-control", b"no-cache"),
                    *self.headers,
                ]
                await self._give({"type": "http.response.start", "status": 200, "headers": head})
                frames = [*self.opening, *frames]
            data = b"".join(frame.encode(self.framing) for frame in frames)
            if data or last:
                await self._give({"type": "http.response.body", "body": data, "more_body": not last})

    async def _give(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._bounds.write_time):
                await self._send(message)
        except TimeoutError:
            raise Gone from None
        self.touched = monotonic()


class Endpoint:
    """An ASGI application for one wire."""

    def __init__(self, wire: Wire, service: Service) -> None:
        self.wire = wire
        self._service = service

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        bounds, head = self._service.bounds, Head.of(scope)
        try:
            request = await self._read(await read_body(receive, bounds, head.one(b"content-length")))
        except BadRequest as refusal:
            scope["state"]["outcome"] = "refused"
            await refuse(self.wire, refusal, head, bounds, receive, send)
            return
        except Gone:
            return
        turn = asyncio.create_task(
            self._answer(request, scope["state"], Reply(send, bounds, self.wire.framing))
        )
        gone = asyncio.create_task(_left(receive))
        with self._service.running(turn):
            try:
                await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                turn.cancel()  # nothing, if it has ended
                with suppress(asyncio.CancelledError):
                    await turn

    async def _read(self, body: bytes) -> TurnRequest:
        """The request. A long one is read in a thread, since others are being served."""

        def read() -> TurnRequest:
            return self.wire.read(parse_json(body, self._service.bounds.depth))

        return await asyncio.to_thread(read) if len(body) > _WORTH_A_THREAD else read()

    async def _answer(self, request: TurnRequest, note: dict[str, Any], reply: Reply) -> None:
        """Run the turn to whatever end it comes to, and count it."""
        watched = Watched()
        note |= {"outcome": "failed", "watched": watched}
        failure: Exception
        try:
            async with asyncio.timeout(self._service.bounds.deadline):
                await self._turn(request, note, reply, watched)
            note["outcome"] = "ok"
            return
        except Gone:
            note["outcome"] = "cancelled"
            return
        except asyncio.CancelledError:
            if not self._service.stopping:
                note["outcome"] = "cancelled"
                raise
            failure = Stopping("the server is stopping: ask again when it is back")
        except Exception as error:
            failure = error
        with suppress(Gone):
            await self._fail(failure, request.stream, note, reply)

    async def _turn(self, request: TurnRequest, note: dict[str, Any], reply: Reply, watched: Watched) -> None:
        service, wire, client = self._service, self.wire, note["client"]
        async with service.pool.use(request.model) as lease:
            served, model = lease.served, lease.model
            options, left_out = turn_options(request)
            note |= {"model": served.name, "dialect": model.dialect.name}
            ignored = (*request.ignored, *left_out)
            reply.headers = [(b"x-localagent-model", header_word(served.name).encode())]
            if ignored:
                shown = ", ".join(map(header_word, ignored[:_MOST_NAMES]))
                reply.headers.append((b"x-localagent-ignored", shown.encode()))
                service.mention(wire.path, ignored)
            if service.log_prompts:
                prompts.info("%s %s", wire.path, request)
            answer = Answer(
                model=served.name,
                created=time(),
                key=secrets.token_hex(12),
                buffer_tool_calls=service.buffer_tool_calls,
                load_seconds=lease.load_seconds,
                spell=service.speller(model),
            )
            writer = note["writer"] = wire.writer(request, answer)
            reply.opening = writer.begin()
            every = service.bounds.keep_alive if request.stream else None
            async with _signs_of_life(writer, reply, every), served.queue.place(client.name):
                events = service.scoped(model, client.scope).astream(request.messages, **options)
                async with aclosing(events):
                    async for event in events:
                        watched.feed(event)
                        frames = writer.feed(event)
                        if request.stream and frames:
                            await reply.write(frames)
            if service.log_prompts and watched.done:
                prompts.info("%s %r", wire.path, watched.done.message.raw)
            if request.stream:
                await reply.write((), last=True)
            else:
                await reply.json(200, writer.whole())

    async def _fail(self, error: Exception, streaming: bool, note: dict[str, Any], reply: Reply) -> None:
        """Say what went wrong, in the stream if that has begun."""
        if isinstance(error, BadRequest):
            note["outcome"] = "refused"
        elif not isinstance(error, LocalAgentError | TimeoutError):
            log.error("%s failed", self.wire.path, exc_info=error)
        writer = note.get("writer")
        if writer is not None and (reply.started or (streaming and self.wire.fails_in_stream(error))):
            await reply.write(writer.fail(error), last=True)
            return
        status, said = self.wire.error(error)
        if status < 500:
            note["outcome"] = "refused"
        await reply.json(status, said, retry_after(error, status))


def turn_options(request: TurnRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments of `Model.astream` for a request, and the names of those that it does not take."""
    options: dict[str, Any] = {
        "system": request.system,
        "tools": request.tools or None,
        "progress": True,
        **request.options,
    }
    left_out = []
    for name, default in _TURN_OPTIONS.items():
        value = getattr(request, name)
        if value == default:
            continue
        if name in _TAKEN:
            options[name] = value
        else:
            left_out.append(name)
    return options, tuple(left_out)


_TURN_OPTIONS = {each.name: each.default for each in dataclasses.fields(TurnRequest) if each.name in {
    "tool_choice", "parallel_tool_calls", "response_format", "strict", "thinking", "thinking_budget"
}}  # fmt: skip
_TAKEN = frozenset(inspect.signature(Model.astream).parameters)


async def refuse(
    wire: Wire,
    refusal: Exception,
    head: Head,
    bounds: Bounds,
    receive: Receive,
    send: Send,
    more: Headers = (),
) -> None:
    """Answer in the API's own shape, and close the connection if there is a body that nobody read.

    Most clients send all of it before they read anything, and would be cut off before they see the answer.
    """
    reply = Reply(send, bounds)
    status, said = wire.error(refusal)
    more = [*more, *retry_after(refusal, status)]
    with suppress(Gone):
        if not head.has_body:
            await reply.json(status, said, more)
            return
        expecting = head.one(b"expect") is not None  # it sends no body before it is told to
        await reply.json(status, said, [*more, (b"connection", b"close")], last=expecting)
        if not expecting:
            with suppress(TimeoutError):
                await _drain(receive, bounds)
            await reply.end()


async def _drain(receive: Receive, bounds: Bounds) -> None:
    """Read what the client still sends, within bounds."""
    left = _DRAINED * bounds.body
    async with asyncio.timeout(bounds.drain_time):
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


def retry_after(error: Exception, status: int) -> Headers:
    """When to ask again, where that may help."""
    if status != 503:
        return []
    return [(b"retry-after", str(error.retry_after if isinstance(error, Overloaded) else 5).encode())]


async def _left(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _signs_of_life(writer: Writer, reply: Reply, every: float | None) -> AsyncIterator[None]:
    """Send something `every` so many seconds in which nothing else was sent; None: never."""

    async def tell() -> None:
        assert every is not None
        while True:
            await asyncio.sleep(max(0.001, reply.touched + every - monotonic()))
            if monotonic() - reply.touched >= every:
                with suppress(Gone):  # the turn finds out, too
                    await reply.write(writer.keep_alive())
                reply.touched = monotonic()

    task = asyncio.create_task(tell()) if every is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
