"""A replica: some of the models on one machine, each loaded when it is asked for."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from time import monotonic, sleep
from typing import Any

from ray import serve

from localagent.errors import EngineFailed, LocalAgentError
from localagent.messages import UserMessage
from localagent.model import Model, load_weights
from localagent.server.fleet.model import Call, Failed, Item, Spelled
from localagent.server.fleet.plan import Plan
from localagent.server.models import ServedModel, alive, stalled
from localagent.server.raw import continuing
from localagent.server.service import log_to_standard_error
from localagent.turn import Done, Scored

GROUP = 0.02
"""Seconds for which events are collected: each group is serialized, and tells a few processes of itself."""

_TICK = 0.05

log = logging.getLogger("localagent.server")


class Replica:
    """What Ray starts as often as it is told. Its methods run on one event loop."""

    async def __init__(self, plan: Plan) -> None:  # type: ignore[misc]  # Ray waits for it
        log_to_standard_error(plan.log_prompts, sys.__stderr__)  # Ray puts another one in its place
        self._plan = plan
        self._held: set[Held] = set()
        loading = serve.multiplexed(max_num_models_per_replica=plan.models_per_replica or len(plan.models))

        async def load_model(name: str) -> Held:
            held = await asyncio.to_thread(self._load, name)
            self._held.add(held)
            return held

        self._model = loading(load_model)
        await self._model(next(iter(plan.models)))  # it is asked for nothing before

    async def check_health(self) -> None:
        """Asked by Ray every few seconds. A replica that raises is replaced by a new one."""
        self._held = {held for held in self._held if held.users or not held.leaving}
        for held in self._held:
            if not alive(held.model) or stalled(held.model):
                raise EngineFailed(f"the engine of {held.model.name} has ended, or hangs")

    async def described(self, name: str) -> dict[str, Any] | Failed:
        """What a `Window` needs to know, and the dialect. Loads the model."""
        try:
            async with self._using(name) as held:
                host = held.model.host
                return {
                    "context": host.context,
                    "lanes": held.model.lanes,
                    "architecture": host.architecture,
                    "engine": host.engine,
                    "template_source": host.template_source,
                    "dialect": held.model.dialect,
                }
        except LocalAgentError as error:
            return Failed(error)

    async def count(self, call: Call) -> int | Failed:
        """The tokens of a prompt."""
        try:
            async with self._using(serve.get_multiplexed_model_id()) as held:
                return await asyncio.to_thread(held.model.count_tokens, call.messages, **call.options)
        except LocalAgentError as error:
            return Failed(error)

    async def turn(self, call: Call, marks: object = None) -> AsyncGenerator[list[Item], None]:
        """The events of a turn, in groups. Closing it ends the generation. `marks`: see `router`."""
        events = self._events(serve.get_multiplexed_model_id(), call)
        async with aclosing(grouped(events, GROUP)) as groups:
            async for group in groups:
                yield group

    async def _events(self, name: str, call: Call) -> AsyncGenerator[Item, None]:
        try:
            async with self._using(name) as held:
                model: ServedModel = held.scoped(call.scope)
                messages = call.messages
                if call.raw is not None:
                    model, messages = continuing(model, call.raw), [UserMessage(content="-")]  # not rendered
                async with aclosing(model.agroups(messages, **call.options)) as groups:
                    async for events in groups:
                        for event in events:
                            if isinstance(event, Done):
                                usage = event.message.usage
                                told = f"{usage.input} ({usage.cache_read} cached) + {usage.output} tokens"
                                log.info("%s %s", name, told)
                            elif isinstance(event, Scored):
                                yield _spelled(model, event)
                            yield event
        except LocalAgentError as error:
            yield Failed(error)

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[Held]:
        """The model, which is not unloaded meanwhile. Raises what loading raises."""

        async def take() -> Held:
            held: Held = await self._model(name)
            held.users += 1  # at once: Ray may want it to be gone as soon as something else runs
            return held

        def leave(taken: asyncio.Task[Held]) -> None:
            if not taken.cancelled() and taken.exception() is None:
                taken.result().users -= 1

        # A load goes on if this request is given up: Ray would forget what it has begun to unload.
        taking = asyncio.create_task(take())
        try:
            yield await asyncio.shield(taking)
        finally:
            taking.add_done_callback(leave)

    def _load(self, name: str) -> Held:
        plan = self._plan
        model = load_weights(
            plan.models[name],
            backend=plan.backend,
            dialect=plan.dialect,
            context=plan.context,
            threads=plan.threads,
            lanes=plan.lanes,
            offline=plan.offline,
        )
        model.name = name
        log.info("%s is loaded, with %d lanes", name, model.lanes)
        return Held(model)


class Held:
    """A loaded model, until another one is to have its place."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.users = 0
        self.leaving = False
        self._scoped: dict[str, Model] = {}

    def scoped(self, scope: str) -> Model:
        """The model for clients of this scope."""
        if scope not in self._scoped:
            self._scoped[scope] = self.model.scoped(scope)
        return self._scoped[scope]

    def __del__(self) -> None:
        """Called by Ray, in a thread, when the replica has more models than it may: free the weights once the
        last answer has ended.
        """
        self.leaving = True
        while self.users:
            sleep(_TICK)
        self.model.close()


async def grouped(items: AsyncGenerator[Item, None], every: float) -> AsyncGenerator[list[Item], None]:
    """The items in lists: the first one at once, and then a list `every` so many seconds at most."""
    waiting: list[Item] = []
    arrived = asyncio.Event()

    async def take() -> None:
        try:
            async for item in items:
                waiting.append(item)
                arrived.set()
        finally:
            arrived.set()

    taking, sent = asyncio.create_task(take()), -every
    try:
        while not taking.done() or waiting:
            await arrived.wait()
            await asyncio.wait({taking}, timeout=max(0.0, sent + every - monotonic()))
            arrived.clear()
            group, waiting[:] = waiting[:], []
            if group:
                yield group
                sent = monotonic()
        await taking  # raises what the items did
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


def _spelled(model: ServedModel, scored: Scored) -> Spelled:
    """The bytes of all tokens that the log-probabilities name."""
    ids = sorted({scored.id, *(token for token, _ in scored.logprobs.top)})
    return Spelled(dict(zip(ids, model.host.token_bytes(ids), strict=True)))
