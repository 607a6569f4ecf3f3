"""The models that are served: found by name, loaded when they are asked for, unloaded when nobody uses them.

A request for a model that is not loaded waits until it is: clients try again after a refusal, but only twice
and within seconds. Nothing is fetched here, so that takes as long as reading weights from a disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from time import monotonic, time
from typing import Literal, Protocol

from localagent.errors import (
    EngineFailed,
    LocalAgentError,
    NotEnoughMemory,
    UnknownModel,
    Unsupported,
    UsageError,
)
from localagent.hosts.host import EngineHost
from localagent.hosts.owner import OwnerClosed
from localagent.hosts.protocol import Watched
from localagent.parsers import Dialect
from localagent.server.queue import FairQueue, Overloaded
from localagent.server.weights import Weights
from localagent.turn import TurnEvent
from localagent.wording import listed, quoted

State = Literal["unloaded", "loading", "ready", "failed", "stalled"]
_WATCH = 1.0
"""Seconds between two looks at what is idle and at what has died."""

_STALLED = 60.0
"""Seconds in which any step of an engine is over, but for one that hangs."""

log = logging.getLogger("localagent.server")


class ServedModel(Protocol):
    """What is asked of a model that is served: a `Model`, or a `fleet.model.FleetModel`."""

    name: str
    dialect: Dialect

    @property
    def host(self) -> Watched:
        """Where it runs; of a `Model`, more is known."""

    @property
    def lanes(self) -> int:
        """How many turns run at once; the others wait."""

    @property
    def agroups(self) -> Callable[..., AsyncGenerator[Sequence[TurnEvent], None]]:
        """`ChatModel.agroups`; a property, so that a model's own options need not be written here again."""

    @property
    def count_tokens(self) -> Callable[..., int]:
        """See `Model.count_tokens`."""

    def scoped(self, scope: str) -> ServedModel:
        """The model for clients who share their evaluated prompts with nobody else."""

    def close(self) -> None:
        """Free what it holds."""


class Served:
    """One model under one name."""

    def __init__(
        self,
        name: str,
        load: Callable[[], ServedModel],
        waiting: int,
        header: Callable[[], Weights] | None = None,
        stored: bool = False,
    ) -> None:
        """`waiting`: the most requests that wait for it. `header`: reads what its weights say of it.
        `stored`: whether they are in the store, and not files of the user's.
        """
        self.name = name
        self.queue = FairQueue(1, waiting)
        self.counts = FairQueue(1, waiting)
        """The queue of those who only have tokens counted."""
        self.model: ServedModel | None = None
        self.created = int(time())
        self.users = 0
        """Requests that keep it from being unloaded."""
        self.used = monotonic()
        self.keep_alive: float | None = None
        """Seconds after the last request for which it stays loaded, as that asked; None: as the pool says."""
        self.error: Exception | None = None
        """Why the last attempt to load it failed, or why its engine was given up."""
        self.looks = 0
        """How many looks at it, one after the other, have found it stalled."""
        self.scoped: dict[str, ServedModel] = {}
        """The model as clients use it who do not share their prompts with others, by scope."""
        self.load = load
        self.stored = stored
        self.loading: asyncio.Task[ServedModel] | None = None
        self._header = header
        self._weights: Weights | None = None

    async def weights(self) -> Weights | None:
        """What its weights say of it; None where there are none, or none that can be read."""
        if self._weights is None and self._header is not None:
            with suppress(LocalAgentError):
                self._weights = await asyncio.to_thread(self._header)
        return self._weights

    def for_scope(self, model: ServedModel, scope: str) -> ServedModel:
        """The loaded model as clients of this scope use it."""
        if scope and scope not in self.scoped:
            self.scoped[scope] = model.scoped(scope)
        return self.scoped[scope] if scope else model

    @property
    def state(self) -> State:
        """Whether it answers: "failed" if its engine thread has ended or it could not be loaded, "stalled" if
        that thread has not come back from the engine for a minute.
        """
        if self.model is not None:
            return "failed" if not alive(self.model) else "stalled" if stalled(self.model) else "ready"
        return "loading" if self.loading is not None else "failed" if self.error else "unloaded"


@dataclass(frozen=True, slots=True)
class Lease:
    """A loaded model that stays loaded. `load_seconds`: what the request waited for it."""

    served: Served
    model: ServedModel
    load_seconds: float


class ModelPool:
    """Used on one event loop."""

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], ServedModel]],
        *,
        headers: Mapping[str, Callable[[], Weights]] | None = None,
        stored: Collection[str] = (),
        aliases: Sequence[tuple[str, str]] = (),
        idle: float | None = None,
        restart: bool = False,
        stall: float = 300.0,
        queue: int = 64,
        unloads: bool = True,
        end: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`loaders`: what loads the model of each name; the first one answers where none is named. `headers`:
        what reads the header of its weights, to describe it before that. `stored`: the names of those whose
        weights are in the store.

        `aliases`: (pattern, name) pairs; patterns as in shells. `idle`: seconds after which an unused model
        is unloaded. `restart`: load a model again whose engine thread has ended, or was given up. `stall`:
        seconds, at least 60, after which an engine that does not come back from one step is given up; 0: only
        if it is to be unloaded, and then after 60. `queue`: requests that may wait for one model. `unloads`:
        whether it is decided here when a model is unloaded; replicas decide that themselves. `end`: with
        `restart`, called with the reason when only another process could load a model again. Raises
        UsageError.
        """
        if not loaders:
            raise UsageError("no model is served")
        for pattern, name in aliases:
            if name not in loaders:
                raise UsageError(
                    f"alias {pattern}={name}: {name!r} is not served; served are {listed(loaders)}"
                )
        read = headers or {}
        self.served = {
            name: Served(name, load, queue, read.get(name), name in stored) for name, load in loaders.items()
        }
        self.queue = queue
        self._aliases = tuple(aliases)
        self._pulled: dict[str, str] = {}
        """Names by which models were pulled that are served under longer ones, which tell files apart."""
        self._idle = idle
        self._restart = restart
        self._stall = stall
        self._unloads = unloads
        self._end = end
        self._abandoned: list[EngineHost] = []
        self._one_at_a_time = asyncio.Lock()  # what one load leaves free, the next one may count on

    def find(self, asked: str, exactly: bool = False) -> Served:
        """The model of that name or alias. Where only one is served it answers to every name, unless
        `exactly` that one is meant.

        Raises UnknownModel.
        """
        # Ollama's clients add the tag.
        name = asked if asked in self.served else asked.removesuffix(":latest")
        name = self._pulled.get(name, name)
        if name not in self.served:
            name = next((to for pattern, to in self._aliases if fnmatchcase(asked, pattern)), name)
        if name in self.served:
            return self.served[name]
        if not exactly and (not asked or len(self.served) == 1):
            return next(iter(self.served.values()))
        raise UnknownModel(f"no model {quoted(asked)} is served here; served are {listed(self.served)}")

    def add(self, served: Served, asked: str = "") -> None:
        """Serve one more model, unless there is one of that name. `asked`: another name for it."""
        if asked not in ("", served.name):
            self._pulled[asked] = served.name
        if served.name not in self.served:  # a new mapping, since others are in the middle of the old one
            self.served = {**self.served, served.name: served}

    def remove(self, served: Served) -> None:
        """Serve a model no longer, which is unloaded."""
        self.served = {name: each for name, each in self.served.items() if each is not served}

    def begin_with(self, name: str) -> None:
        """Load a model now, before there is an event loop. Raises what loading raises."""
        served = self.served[name]
        self._loaded(served, served.load())

    @asynccontextmanager
    async def use(self, served: Served, keep_alive: float | None = None) -> AsyncIterator[Lease]:
        """A loaded model, which stays loaded meanwhile, and for `keep_alive` seconds after that.

        Raises Overloaded, EngineFailed and what loading raises.
        """
        served.users += 1
        began = monotonic()
        try:
            loaded = served.model is not None
            model = await self.ready(served)
            yield Lease(served, model, 0.0 if loaded else monotonic() - began)
        except OwnerClosed as error:
            raise _dead(served) from error
        finally:
            served.users -= 1
            served.used = monotonic()
            served.keep_alive = keep_alive

    async def ready(self, served: Served) -> ServedModel:
        """The model, loaded first if it is not. Raises as `use`."""
        if served.model is not None and alive(served.model):
            return served.model
        if served.model is not None and not self._restart:
            raise _dead(served)
        return await self.load(served)

    async def load(self, served: Served) -> ServedModel:
        """The model, loaded if need be: also if its engine has ended, or is stalled. Raises as `use`."""
        if served.state == "stalled":
            self._abandon(served)
        if served.model is not None and alive(served.model):
            return served.model
        if served.loading is None:
            served.loading = asyncio.create_task(self._load(served))
            # Looked at here, since all who waited for it may have left.
            served.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # The load goes on for those who ask next, if this client leaves.
        return await asyncio.shield(served.loading)

    async def unload(self, served: Served) -> None:
        """Free its memory. Raises Overloaded while somebody uses it, and Unsupported: see `unloads`."""
        if not self._unloads:
            raise Unsupported(
                f"{served.name} runs in replicas: another model takes its place when it is asked for"
            )
        async with self._one_at_a_time:
            if served.users:
                raise Overloaded(f"{served.name} is in use by {served.users} requests")
            await self._drop(served)

    @property
    def hangs(self) -> bool:
        """Whether an engine that was given up still hangs: the process cannot end by itself then."""
        self._abandoned = [host for host in self._abandoned if host.hangs]
        return bool(self._abandoned)

    async def watch(self) -> None:
        """Unload what is idle, give up what hangs, load again what has died. Runs until it is cancelled."""
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._watch_for_hanging())
            watching.create_task(self._watch_for_idle_and_dead())

    async def _watch_for_hanging(self) -> None:
        """A watch of its own: the other one waits for models that are being loaded."""
        while True:
            await asyncio.sleep(_WATCH)
            for served in self.served.values():
                # Looks are counted, and not the seconds of the step: to a process that was stopped for an
                # hour and goes on, every engine seems to have hung.
                served.looks = served.looks + 1 if served.state == "stalled" else 0
                if served.looks and self._stall and served.looks * _WATCH >= self._stall - _STALLED:
                    self._abandon(served)

    async def _watch_for_idle_and_dead(self) -> None:
        while True:
            await asyncio.sleep(_WATCH)
            for served in self.served.values():
                most = self._idle if served.keep_alive is None else served.keep_alive
                idle = not served.users and most is not None and monotonic() - served.used > most
                try:
                    if served.model is None:
                        continue
                    if self._restart and not alive(served.model):
                        await self.ready(served)
                    elif idle and self._unloads:
                        await self.unload(served)
                        log.info("%s was idle and is unloaded", served.name)
                except Exception as error:  # one model's failure is not to end the watch over the others
                    log.warning("%s: %s", served.name, error)

    async def close(self) -> None:
        """Unload everything; evaluated prompts are written to disk where they are kept."""
        for served in self.served.values():
            if served.loading is not None:
                with suppress(Exception):
                    await served.loading
            await self._drop(served)

    async def _load(self, served: Served) -> ServedModel:
        try:
            async with self._one_at_a_time:
                await self._drop(served)  # one whose engine has died
                while True:
                    try:
                        model = await asyncio.to_thread(served.load)
                        break
                    except NotEnoughMemory as error:
                        await self._make_room(served, error)
            self._loaded(served, model)
        except Overloaded:
            raise
        except Exception as error:
            served.error = error
            if isinstance(error, OnlyRestartHelps) and self._restart:
                self._end(str(error))
            raise
        finally:
            served.loading = None
        log.info("%s is loaded, with %d lanes", served.name, model.lanes)
        return model

    def _loaded(self, served: Served, model: ServedModel) -> None:
        model.name = served.name  # what it is called in errors
        served.model, served.error, served.used = model, None, monotonic()
        # One more than there are lanes, so that the next prompt is ready when a lane is free. And a lane
        # whose reader is slow goes on to its end only if the engine sees that somebody waits.
        served.queue.slots = model.lanes + 1

    async def _make_room(self, wanting: Served, error: NotEnoughMemory) -> None:
        """Unload the model that has been unused for longest."""
        others = [each for each in self.served.values() if each.model is not None and each is not wanting]
        unused = [each for each in others if not each.users]
        if not others and self.hangs:
            raise OnlyRestartHelps(
                f"{wanting.name} does not fit into memory beside an engine that hangs: restart the server"
            ) from error
        if not others:
            raise error
        if not unused:
            names = listed(each.name for each in others)
            raise Overloaded(f"{wanting.name} does not fit into memory beside {names}, which are in use")
        least = min(unused, key=lambda each: each.used)
        log.info("%s makes room for %s", least.name, wanting.name)
        await self._drop(least)

    async def _drop(self, served: Served) -> None:
        model, served.model = served.model, None
        served.scoped.clear()
        if model is None:
            return
        closing = asyncio.create_task(asyncio.to_thread(model.close))
        while not (await asyncio.wait({closing}, timeout=_WATCH))[0]:
            if stalled(model):
                self._give_up(model)
        await closing

    def _abandon(self, served: Served) -> None:
        """Give up a stalled engine. Nothing can end its thread, but nobody has to wait for it."""
        assert served.model is not None
        self._give_up(served.model)
        served.looks = 0
        served.error = EngineFailed(f"the engine of {served.name} hung and was given up")
        log.error("%s", served.error)

    def _give_up(self, model: ServedModel) -> None:
        assert isinstance(model.host, EngineHost)
        self._abandoned.append(model.host)
        model.host.abandon(model.name)


class OnlyRestartHelps(EngineFailed):
    """A model cannot be loaded again while an engine hangs that cannot be ended."""


def stalled(model: ServedModel) -> bool:
    """Whether its engine has not come back from one step for longer than any takes."""
    return model.host.busy_seconds > _STALLED


def alive(model: ServedModel) -> bool:
    """Whether the model's engine thread still runs; hosts without one always answer."""
    return model.host.alive


def _dead(served: Served) -> EngineFailed:
    what = served.error or f"the engine of {served.name} has ended"
    return EngineFailed(f"{what}: load it again with POST /v1/models/load")
