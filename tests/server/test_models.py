"""The models that are served, without a socket: their names, states and places, and when each comes and goes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import (
    EngineFailed,
    InvalidWeights,
    NotEnoughMemory,
    UnknownModel,
    Unsupported,
    UsageError,
)
from localagent.hosts.owner import OwnerClosed
from localagent.hosts.replay import ReplayHost
from localagent.server.models import ModelPool, Served
from localagent.server.queue import FairQueue, Overloaded
from localagent.server.weights import Weights
from parsers import DIALECTS


class Host:
    """As much of one as a pool looks at."""

    def __init__(self) -> None:
        self.alive = True
        self.busy_seconds = 0.0


class Fake:
    """A model that only notes what is done with it."""

    def __init__(self, name: str = "made", lanes: int = 2, scope: str = "") -> None:
        self.name, self.lanes, self.scope = name, lanes, scope
        self.host = Host()
        self.dialect = DIALECTS["plain"]
        self.closed = 0

    def scoped(self, scope: str) -> Fake:
        return Fake(self.name, self.lanes, scope)

    def close(self) -> None:
        self.closed += 1


def pool_of(*names: str, **options: Any) -> ModelPool:
    return ModelPool(dict.fromkeys(names, Fake), **options)  # type: ignore[arg-type]


def soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it; what waits for ever fails."""

    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


async def wanting(queue: FairQueue) -> AsyncIterator[None]:
    """One who wants a place, and leaves it when he has it."""
    async with queue.place("other"):
        yield


async def until(met: Callable[[], object]) -> None:
    while not met():  # which `soon` bounds
        await asyncio.sleep(0.002)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "exactly", "found"),
    [
        ("a", False, "a"),
        ("b", True, "b"),
        ("b:latest", False, "b"),
        ("c:latest", True, "c:latest"),
        ("claude-9", False, "b"),
        ("claude-9", True, "b"),
        ("", False, "a"),
        ("", True, None),
        ("A", False, None),
    ],
)
def test_which_model_is_asked(asked: str, exactly: bool, found: str | None) -> None:
    pool = pool_of("a", "b", "c:latest", aliases=[("claude-*", "b"), ("claude-9", "a")])
    if found is not None:
        assert pool.find(asked, exactly).name == found
        return
    with pytest.raises(UnknownModel) as caught:
        pool.find(asked, exactly)
    assert str(caught.value) == f"no model {asked} is served here; served are a, b, c:latest"


def test_one_model_alone_answers_to_any_name_unless_it_is_meant() -> None:
    pool = pool_of("a")
    assert pool.find("gpt").name == "a"
    with pytest.raises(UnknownModel, match=r"^no model gpt is served here; served are a$"):
        pool.find("gpt", exactly=True)


def test_a_pool_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"^no model is served$"):
        ModelPool({})
    with pytest.raises(UsageError) as caught:
        pool_of("a", aliases=[("x*", "a"), ("y*", "b")])
    assert str(caught.value) == "alias y*=b: 'b' is not served; served are a"


def test_so_many_may_wait_for_a_model_and_for_the_length_of_a_prompt() -> None:
    async def come() -> None:
        one = pool_of("a", queue=1).served["a"]
        for queue in (one.queue, one.counts):
            async with queue.place("first"):
                waiting = asyncio.create_task(anext(wanting(queue)))
                await until(lambda queue=queue: queue.waiting == 1)  # type: ignore[misc]
                with pytest.raises(Overloaded):
                    await anext(wanting(queue))
            await waiting

    soon(come())


# -- states ------------------------------------------------------------------------------------------------


def served(**fields: Any) -> Served:
    made = Served("m", Fake, 3)  # type: ignore[arg-type]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def fake(alive: bool = True, busy: float = 0.0) -> Fake:
    made = Fake()
    made.host.alive, made.host.busy_seconds = alive, busy
    return made


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "unloaded"),
        ({"error": EngineFailed("no")}, "failed"),
        ({"error": EngineFailed("no"), "loading": object()}, "loading"),
        ({"model": fake(), "loading": object()}, "ready"),
        ({"model": fake(busy=60.0)}, "ready"),
        ({"model": fake(busy=60.5)}, "stalled"),
        ({"model": fake(alive=False, busy=90)}, "failed"),
    ],
)
def test_the_state_of_a_model(fields: dict[str, Any], state: str) -> None:
    assert served(**fields).state == state


def test_a_host_without_a_thread_always_answers() -> None:
    model = fake()
    model.host = ReplayHost([[]])  # type: ignore[assignment]
    assert served(model=model).state == "ready"


def test_clients_who_share_nothing_have_a_model_each() -> None:
    made, model = served(), Fake()
    assert made.for_scope(model, "") is model  # type: ignore[arg-type]
    first, other = made.for_scope(model, "k1"), made.for_scope(model, "k2")  # type: ignore[arg-type]
    assert made.for_scope(model, "k1") is first is not other  # type: ignore[arg-type]
    assert (first.scope, other.scope) == ("k1", "k2")  # type: ignore[attr-defined]


def test_what_weights_say_is_read_once_and_what_cannot_be_read_is_not_known() -> None:
    told = Weights("lfm2", 4096, "gguf", "", DIALECTS["lfm2"])
    reads: list[int] = []

    def header() -> Weights:
        reads.append(1)
        if len(reads) == 1:
            raise InvalidWeights(Path("m.gguf"), "no header")
        return told

    async def read() -> None:
        made = Served("m", Fake, 3, header)  # type: ignore[arg-type]
        assert [await made.weights() for _ in range(3)] == [None, told, told]
        assert await served().weights() is None

    soon(read())
    assert len(reads) == 2


# -- coming ------------------------------------------------------------------------------------------------


def test_a_model_is_loaded_for_a_request_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        pool = pool_of("a")
        one = pool.served["a"]
        assert one.queue.slots == 1
        with caplog.at_level(logging.INFO, "localagent.server"):
            async with pool.use(one, 7.0) as lease:
                assert lease.model is one.model is not None
                assert (lease.served, one.users, lease.model.name, one.keep_alive) == (one, 1, "a", None)
                assert one.queue.slots == 3, "a prompt is ready when a lane is free"
                assert lease.load_seconds > 0
                async with pool.use(one) as second:
                    assert (second.load_seconds, one.users) == (0.0, 2)
                    before = one.used
        assert (one.users, one.keep_alive, one.state, one.error) == (0, 7.0, "ready", None)
        assert one.used > before
        assert caplog.messages == ["a is loaded, with 2 lanes"]

    soon(use())


def test_a_model_may_be_loaded_before_there_is_an_event_loop() -> None:
    pool = pool_of("a")
    pool.begin_with("a")
    assert (pool.served["a"].state, pool.served["a"].queue.slots) == ("ready", 3)


def test_an_engine_that_ends_under_an_answer_is_told_as_what_it_is() -> None:
    async def use(error: Exception | None) -> str:
        pool = pool_of("a")
        with pytest.raises(EngineFailed) as caught:
            async with pool.use(pool.served["a"]):
                pool.served["a"].error = error
                raise OwnerClosed
        assert pool.served["a"].users == 0
        return str(caught.value)

    again = "load it again with POST /v1/models/load"
    assert soon(use(None)) == f"the engine of a has ended: {again}"
    assert soon(use(EngineFailed("the engine of a hung"))) == f"the engine of a hung: {again}"


@pytest.mark.parametrize("restart", [False, True])
def test_a_dead_engine_is_loaded_again_where_that_is_wanted(restart: bool) -> None:
    async def use() -> None:
        pool = pool_of("a", restart=restart)
        one = pool.served["a"]
        first: Any = await pool.ready(one)
        assert await pool.ready(one) is await pool.load(one) is first
        first.host.alive = False
        if not restart:
            with pytest.raises(EngineFailed, match="the engine of a has ended"):
                await pool.ready(one)
        second = await (pool.ready(one) if restart else pool.load(one))
        assert second is one.model is not first
        assert first.closed == 1

    soon(use())


@pytest.mark.parametrize(
    ("problem", "state"),
    [(NotEnoughMemory("no room"), "failed"), (OSError("secret"), "failed"), (Overloaded("full"), "unloaded")],
)
def test_a_load_that_fails_says_why_to_all_who_wait_and_is_tried_again(
    problem: Exception, state: str
) -> None:
    left = [problem]

    def load() -> Fake:
        if left:
            raise left.pop()
        return Fake()

    async def use() -> None:
        pool = ModelPool({"a": load})  # type: ignore[dict-item]
        one = pool.served["a"]
        told = await asyncio.gather(pool.ready(one), pool.ready(one), return_exceptions=True)
        assert told == [problem, problem]
        assert (one.loading, one.state) == (None, state)
        assert one.error is (problem if state == "failed" else None)
        await pool.ready(one)
        assert (one.state, one.error) == ("ready", None)

    soon(use())


# -- going -------------------------------------------------------------------------------------------------


def test_a_model_is_unloaded_when_nobody_uses_it() -> None:
    async def use() -> None:
        pool = pool_of("a")
        one = pool.served["a"]
        async with pool.use(one) as lease, pool.use(one):
            model: Any = lease.model
            one.for_scope(model, "k")
            with pytest.raises(Overloaded, match=r"^a is in use by 2 requests$"):
                await pool.unload(one)
        await pool.unload(one)
        assert (one.model, one.scoped, model.closed, one.state) == (None, {}, 1, "unloaded")
        await pool.unload(one)  # which it is

    soon(use())


def test_replicas_decide_that_themselves() -> None:
    pool = pool_of("a", unloads=False)
    pool.begin_with("a")
    with pytest.raises(Unsupported) as caught:
        soon(pool.unload(pool.served["a"]))
    assert str(caught.value) == ("a runs in replicas: another model takes its place when it is asked for")
    assert pool.served["a"].model is not None


async def watched(pool: ModelPool, then: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.create_task(pool.watch())
    try:
        await then()
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_what_is_idle_for_longer_than_it_may_is_unloaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("localagent.server.models._WATCH", 0.005)
    clock = [1000.0]
    monkeypatch.setattr("localagent.server.models.monotonic", lambda: clock[0])
    names = ("never loaded", "idle", "asked to stay", "asked to go", "busy", "last")

    async def use() -> None:
        pool = pool_of(*names, idle=60)
        for name in names[1:]:
            pool.begin_with(name)
        one = pool.served
        one["asked to stay"].keep_alive, one["asked to go"].keep_alive = math.inf, 5.0
        one["busy"].users = 1

        def loaded() -> set[str]:
            return {name for name in names if one[name].model is not None}

        async def then() -> None:
            clock[0] += 5.5
            await until(lambda: "asked to go" not in loaded())
            clock[0] += 54.5  # 60 seconds are not longer than 60
            await asyncio.sleep(0.03)
            assert loaded() == {"idle", "asked to stay", "busy", "last"}
            clock[0] += 0.5
            await until(lambda: loaded() == {"asked to stay", "busy"})

        with caplog.at_level(logging.INFO, "localagent.server"):
            await watched(pool, then)

    soon(use())
    assert caplog.messages == [f"{name} was idle and is unloaded" for name in ("asked to go", "idle", "last")]


@pytest.mark.parametrize("options", [{"idle": None}, {"idle": 0, "unloads": False}])
def test_without_a_limit_and_in_replicas_nothing_is_idle(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("localagent.server.models._WATCH", 0.005)

    async def use() -> None:
        pool = pool_of("a", **options)
        pool.begin_with("a")
        await watched(pool, lambda: asyncio.sleep(0.05))
        assert pool.served["a"].model is not None

    soon(use())


def test_the_failure_of_one_model_does_not_end_the_watch_over_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("localagent.server.models._WATCH", 0.005)

    async def use() -> None:
        loads = [Fake()]
        pool = ModelPool({"a": loads.pop, "b": Fake}, restart=True, idle=0)  # type: ignore[dict-item]
        for name in ("a", "b"):
            pool.begin_with(name)
        one: Any = pool.served["a"].model
        one.host.alive = False
        await watched(pool, lambda: until(lambda: pool.served["b"].model is None and pool.served["a"].error))

    soon(use())
    assert "a: pop from empty list" in caplog.messages


def test_a_model_makes_room_for_another_and_who_is_in_use_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded: set[str] = set()

    def loader(name: str) -> Callable[[], Any]:
        def load() -> Fake:
            if len(loaded) == 2:
                raise NotEnoughMemory(f"{name} does not fit")
            loaded.add(name)
            made = Fake()
            made.close = lambda: loaded.discard(name)  # type: ignore[method-assign]
            return made

        return load

    async def use() -> None:
        pool = ModelPool({name: loader(name) for name in "abc"})
        for at, name in enumerate("ab"):
            await pool.ready(pool.served[name])
            pool.served[name].used = 100.0 + at
        pool.served["a"].users = pool.served["b"].users = 1
        with pytest.raises(Overloaded) as caught:
            await pool.ready(pool.served["c"])
        assert str(caught.value) == "c does not fit into memory beside a, b, which are in use"
        pool.served["a"].users = pool.served["b"].users = 0
        with caplog.at_level(logging.INFO, "localagent.server"):
            await pool.ready(pool.served["c"])
        assert caplog.messages[0] == "a makes room for c", "which was not used for longest"
        assert loaded == {"b", "c"}
        loaded.update("xyz")  # by others
        for name in "bc":
            await pool.unload(pool.served[name])
        loaded.clear()
        loaded.update("xy")
        with pytest.raises(NotEnoughMemory, match=r"^a does not fit$"):
            await pool.ready(pool.served["a"])

    soon(use())


def test_at_the_end_everything_is_freed_and_what_loads_is_waited_for() -> None:
    made: list[Fake] = []

    def load() -> Fake:
        made.append(Fake())
        return made[-1]

    def fails() -> Fake:
        raise OSError

    async def use() -> None:
        pool = ModelPool({"a": load, "b": load, "c": fails, "d": load})  # type: ignore[dict-item]
        await pool.ready(pool.served["a"])
        waiting = [asyncio.create_task(pool.ready(pool.served[name])) for name in "bc"]
        await asyncio.sleep(0)
        await pool.close()
        assert [one.model for one in pool.served.values()] == [None] * 4
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not pool.hangs

    soon(use())
    assert [each.closed for each in made] == [1, 1]
