"""The one handler of all wires: read, ask the model, write; and the end of an answer, however it comes.

    body --Wire.read--> TurnRequest --ModelPool--> Model.agroups --Writer--> frames, or one object

An answer ends when the model has finished, when the client leaves (within a step of the engine, streaming or
not), at the deadline, or when the server stops. Only then is its place free for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from time import monotonic, time
from typing import Any, cast

from localagent.control import CONTROLS
from localagent.errors import EngineFailed, LocalAgentError
from localagent.messages import UserMessage
from localagent.prompt import RequestWarning
from localagent.prompt.segments import Raw
from localagent.server.access import Head
from localagent.server.bounds import BACKED_UP, SMALL, Gone, Receive, left, parse_json, read_body
from localagent.server.exchange import (
    Answer,
    BadRequest,
    ChoicesWriter,
    Frame,
    TurnRequest,
    Wire,
    Writer,
    header_word,
)
from localagent.server.metrics import Watched
from localagent.server.models import Served, ServedModel
from localagent.server.queue import Overloaded
from localagent.server.raw import check, continuing, spelled
from localagent.server.reply import Reply, Send, refuse, retry_after
from localagent.server.service import STOPPING, Service
from localagent.turn import Done, TurnEvent

_PROMPTING = ("system", "tools", "thinking", "thinking_budget")
"""The options of a turn that its prompt depends on."""

log = logging.getLogger("localagent.server")
prompts = logging.getLogger("localagent.prompts")


class Endpoint:
    """An ASGI application for one wire."""

    def __init__(self, wire: Wire, service: Service) -> None:
        self.wire = wire
        self._service = service

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with AsyncExitStack() as held:
            await self._serve(scope, receive, send, held)

    async def _serve(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send, held: AsyncExitStack
    ) -> None:
        """`held`: what is given back when the answer has ended, as are the messages."""
        bounds, head = self._service.bounds, Head.of(scope)
        keep: Callable[[int], None] | None = None

        async def make_room(size: int) -> None:
            nonlocal keep
            place = self._service.bodies.place(scope["state"]["client"].name, min(size, bounds.bodies))
            keep = await held.enter_async_context(place)

        unread, this = True, asyncio.current_task()
        assert this is not None
        try:
            with self._service.running(this, answers=False):
                body = await read_body(receive, bounds, head.one(b"content-length"), make_room)
            unread = False
            if keep is not None:
                keep(len(body))
            request = await self._read(body)
            del body  # the messages are made of it, and the answer may take long
            if self._service.stopping:
                raise Overloaded(STOPPING)
        except BadRequest as refusal:
            scope["state"]["outcome"] = "refused"
            await refuse(self.wire, refusal, head if unread else None, bounds, send)
            return
        except Gone:
            return
        except asyncio.CancelledError:
            if not self._service.stopping:
                raise
            this.uncancel()
            await refuse(self.wire, Overloaded(STOPPING), head, bounds, send)
            return
        state = scope["state"]
        reply = Reply(send, bounds, self.wire.framing, state.get(BACKED_UP, lambda: True))
        turn = asyncio.create_task(self._answer(request, state, reply))
        gone = asyncio.create_task(left(receive))
        with self._service.running(turn):
            try:
                await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                turn.cancel()  # nothing, if it has ended
                with suppress(asyncio.CancelledError):
                    await turn

    async def _read(self, body: bytes) -> TurnRequest:
        """The request. A large one is read in a thread, since others are being served, and one at a time."""

        def read() -> TurnRequest:
            return self.wire.read(parse_json(body, self._service.bounds))

        if len(body) <= SMALL:
            return read()
        async with self._service.parsing:
            return await asyncio.to_thread(read)

    async def _answer(self, request: TurnRequest, note: dict[str, Any], reply: Reply) -> None:
        """Run the turn to whatever end it comes to, and count it."""
        watched = Watched()
        note |= {"outcome": "failed", "watched": watched}
        # No variable keeps an error: its traceback would refer to this frame, and that to the request, which
        # would all stay in memory until Python looks for garbage.
        with suppress(Gone):
            try:
                async with asyncio.timeout(self._service.bounds.deadline):
                    await self._turn(request, note, reply, watched)
                note["outcome"] = "ok"
            except Gone:
                note["outcome"] = "cancelled"
            except asyncio.CancelledError:
                if not self._service.stopping:
                    note["outcome"] = "cancelled"
                    raise
                await self._fail(Overloaded(STOPPING), request.stream, note, reply)
            except Exception as error:
                await self._fail(error, request.stream, note, reply)

    async def _turn(self, request: TurnRequest, note: dict[str, Any], reply: Reply, watched: Watched) -> None:
        service, wire, client = self._service, self.wire, note["client"]
        if request.only_loads and request.keep_alive == 0:
            await self._unload(request, note, reply)
            return
        served = self._find(request, note, reply)
        if service.log_prompts:
            prompts.info("%s %s", wire.path, request)
        answer = self._about(served.name, request)
        writer = note["writer"] = wire.writer(request, answer)
        reply.opening = writer.begin()
        streams = request.stream and not request.only_loads
        every = service.bounds.keep_alive if streams else None
        # From here on, since a large model may take a minute to load.
        async with (
            _signs_of_life(writer, reply, every),
            service.pool.use(served, request.keep_alive) as lease,
        ):
            model = lease.model
            note["dialect"] = model.dialect.name
            answer.load_seconds, answer.spell = lease.load_seconds, model.host.token_bytes
            if request.echo:
                answer.prompts = await asyncio.to_thread(spelled, model, request.raw_prompts)
            if len(request.raw_prompts) > 1:
                async with served.counts.place(client.name):  # tokenizing is what takes long in both
                    await asyncio.to_thread(check, model, request.raw_prompts)
            if not request.only_loads:
                turns = turns_of(request, model)
                asked = served.for_scope(model, client.scope)
                place = partial(served.queue.place, client.name)
                await self._run(asked, request, turns, writer, reply, watched, place)
            if service.log_prompts:
                for done in watched.done:
                    prompts.info("%s %r", wire.path, done.message.raw)
        if streams:
            await reply.write((), last=True)
        else:
            await reply.json(200, writer.whole())

    async def _run(
        self,
        model: ServedModel,
        request: TurnRequest,
        turns: Sequence[tuple[Raw | None, dict[str, Any]]],
        writer: Writer,
        reply: Reply,
        watched: Watched,
        place: Callable[[], AbstractAsyncContextManager[object]],
    ) -> None:
        """Run the turns, as many at once as there are lanes. One that fails ends the others.

        Each has a place of its own: a request that held several to its end, or waited for several to be free
        at once, would let others wait over idle lanes.
        """
        if len(turns) == 1:
            async with place():
                await self._run_one(model, request, *turns[0], writer.feed, reply, watched)
            return
        lanes = asyncio.Semaphore(model.lanes)

        async def run(number: int, raw: Raw | None, options: dict[str, Any]) -> None:
            feed = partial(cast(ChoicesWriter, writer).feed_choice, number)
            async with lanes, place():
                await self._run_one(model, request, raw, options, feed, reply, watched)

        failed: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for number, turn in enumerate(turns):
                    group.create_task(run(number, *turn))
        except ExceptionGroup as errors:
            failed, errors.__traceback__ = errors.exceptions[0], None
        try:
            if failed is not None:
                raise failed  # outside of the handler, or it would refer to the group and the group to it
        finally:
            del failed

    async def _run_one(
        self,
        model: ServedModel,
        request: TurnRequest,
        raw: Raw | None,
        options: dict[str, Any],
        feed: Callable[[TurnEvent], list[Frame]],
        reply: Reply,
        watched: Watched,
    ) -> None:
        """Run a turn, and send what is written of it if the client wants a stream."""
        messages = request.messages
        if raw is not None:
            model = continuing(model, raw)
            messages = [UserMessage(content="-")]  # not rendered
        async with aclosing(model.agroups(messages, **options)) as groups:
            async for events in groups:
                frames: list[Frame] = []  # sent at once, since sending costs more than all else of a token
                for event in events:
                    match event:
                        case Done() if event.message.stop_reason == "cancelled":
                            raise EngineFailed(f"{model.name} was unloaded, or its engine has ended")
                        # Without a switch the thinking is ended at once: only a wish for it is not met.
                        case RequestWarning(kind="thinking") if request.thinking is not False:
                            self._ignore([request.thinking_field], reply)
                        case RequestWarning(kind="images_removed"):  # those that a tool has shown
                            self._ignore(["image"], reply)
                    watched.feed(event)
                    frames += feed(event)
                if request.stream and frames:
                    await reply.write(frames)

    def _find(self, request: TurnRequest, note: dict[str, Any], reply: Reply) -> Served:
        """The model that is asked, which the head names, as it does what is ignored. Raises UnknownModel."""
        served = self._service.pool.find(request.model)
        note["model"] = served.name
        reply.headers = [(b"x-localagent-model", header_word(served.name).encode())]
        self._ignore(request.ignored, reply)
        return served

    def _ignore(self, fields: Sequence[str], reply: Reply) -> None:
        """Say that these fields are ignored: in the log, and in a header unless the head has been sent."""
        reply.ignored += [each for each in fields if each and each not in reply.ignored]
        self._service.mention(self.wire.path, [*filter(None, fields)])

    async def _unload(self, request: TurnRequest, note: dict[str, Any], reply: Reply) -> None:
        served = self._find(request, note, reply)
        await self._service.pool.unload(served)
        writer = self.wire.writer(request, self._about(served.name, request))
        writer.begin()
        await reply.json(200, writer.whole())

    def _about(self, model: str, request: TurnRequest) -> Answer:
        wanted = request.stream_tool_calls
        buffered = not request.stream or (self._service.buffer_tool_calls if wanted is None else not wanted)
        key = secrets.token_hex(12)
        return Answer(model=model, created=time(), key=key, buffer_tool_calls=buffered)

    async def _fail(self, error: Exception, streaming: bool, note: dict[str, Any], reply: Reply) -> None:
        """Say what went wrong, in the stream if that has begun."""
        if isinstance(error, BadRequest):
            note["outcome"] = "refused"
        elif not isinstance(error, LocalAgentError | TimeoutError):
            # Without its text, which may hold a part of what was said.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s failed: %s\n%s", self.wire.path, type(error).__name__, where)
        writer = note.get("writer")
        if writer is not None and (reply.started or (streaming and self.wire.fails_in_stream(error))):
            await reply.write(writer.fail(error), last=True)
            return
        status, said = self.wire.error(error)
        if status < 500:
            note["outcome"] = "refused"
        await reply.json(status, said, retry_after(error, status))


class AskEndpoint(Endpoint):
    """An ASGI application that asks a loaded model for something, and runs no turn."""

    async def _turn(self, request: TurnRequest, note: dict[str, Any], reply: Reply, watched: Watched) -> None:
        served = self._find(request, note, reply)
        async with (
            self._service.pool.use(served) as lease,
            # Streams go on meanwhile; but a long prompt keeps a core busy, and they need the others.
            served.counts.place(note["client"].name),
        ):
            assert self.wire.tell is not None
            asked = asyncio.to_thread(self.wire.tell, lease.model, request, _prompting(request))
            telling = asyncio.create_task(asked)
            try:
                told = await asyncio.shield(telling)
            finally:  # nothing stops the thread when a client leaves: the place is taken until it ends
                await asyncio.gather(telling, return_exceptions=True)
        await reply.json(200, told)


def _prompting(request: TurnRequest) -> dict[str, Any]:
    asked = turn_options(request)
    return {name: asked[name] for name in _PROMPTING if name in asked}


def turn_options(request: TurnRequest) -> dict[str, Any]:
    """The arguments of `Model.agroups` for a request."""
    given = {
        name: value
        for name in CONTROLS
        if (value := getattr(request, name, None)) != getattr(_UNSET, name, None)
    }
    return {
        "system": request.system,
        "tools": request.tools or None,
        "progress": True,
        **request.options,
        **given,
    }


_UNSET = TurnRequest(model="")


def turns_of(request: TurnRequest, model: ServedModel) -> list[tuple[Raw | None, dict[str, Any]]]:
    """What each turn of a request continues, or None for its conversation, and its options.

    Choices of one prompt have seeds one after the other, or they would all be the same. Raises BadRequest
    for more of them than the model gives at once.
    """
    if request.choices > model.lanes:
        said = f"n: {model.name} gives at most {model.lanes} answers at once, and {request.choices} are asked"
        raise BadRequest(f"{said} (by n, or by best_of)", "n", "unsupported_value")
    turns = []
    for raw in request.raw_prompts or (None,):
        for number in range(request.choices):
            options = turn_options(request)
            if (seed := options.get("seed")) is not None:
                options["seed"] = seed + number
            turns.append((raw, options))
    return turns


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
