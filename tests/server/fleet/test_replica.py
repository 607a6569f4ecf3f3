"""A replica by itself: what it holds, what it tells of it, and the turns that it runs. Ray is not asked."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from localagent.errors import EngineFailed, Unsupported
from localagent.hosts.protocol import Logprobs
from localagent.hosts.replay import ReplayHost
from localagent.messages import UserMessage
from localagent.model import Model
from localagent.server.fleet.model import Call, Failed, Spelled
from localagent.server.fleet.plan import Plan
from localagent.turn import Done, Scored
from parsers import Text
from tests.agent.replaying import LFM2, recording
from tests.hosts.speaking import Speaking, speaking_host

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")

GO = [UserMessage.text("Go.")]
PLAN = Plan(
    models={"a": "/a.gguf", "b": "/b.gguf"}, backend="llamacpp", dialect="lfm2", context=512, threads=2, lanes=3,
    offline=True, log_prompts=True,
)  # fmt: skip


class Loaded:
    """What was loaded, and what was said of the log."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.logs: list[Any] = []
        self.most: list[Any] = []
        self.error: Exception | None = None
        self.name = "a"

    def load(self, *given: Any, **options: Any) -> Model:
        self.asked.append((given, options))
        if self.error is not None:
            raise self.error
        return Model(ReplayHost([recording("Hi.")], LFM2.markers, context=512, lanes=3), LFM2)

    def multiplexed(self, max_num_models_per_replica: int) -> Any:
        """As Ray's: a model is loaded once, and held."""
        self.most.append(max_num_models_per_replica)

        def decorated(load: Any) -> Any:
            held: dict[str, Any] = {}

            async def found(name: str) -> Any:
                if name not in held:
                    held[name] = await load(name)
                return held[name]

            return found

        return decorated


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    from localagent.server.fleet import replica

    made = Loaded()
    monkeypatch.setattr(replica, "load_weights", made.load)
    monkeypatch.setattr(replica, "log_to_standard_error", lambda *given: made.logs.append(given))
    monkeypatch.setattr(replica.serve, "multiplexed", made.multiplexed)
    monkeypatch.setattr(replica.serve, "get_multiplexed_model_id", lambda: made.name)
    return made


async def begun(plan: Plan = PLAN) -> Any:
    """A replica, as Ray begins one."""
    from localagent.server.fleet.replica import Replica

    made: Any = object.__new__(Replica)
    await made.__init__(plan)
    return made


def soon(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


async def all_of(groups: Any) -> list[Any]:
    return [item async for group in groups for item in group]


def test_the_first_model_is_loaded_at_once_as_the_plan_says(
    loaded: Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "localagent.server"):
        soon(begun())
    options = {
        "backend": "llamacpp",
        "dialect": "lfm2",
        "context": 512,
        "threads": 2,
        "lanes": 3,
        "offline": True,
    }
    assert loaded.asked == [(("/a.gguf",), options)]
    assert (loaded.logs, loaded.most) == ([(True, sys.__stderr__)], [2])
    assert caplog.messages == ["a is loaded, with 3 lanes"]
    soon(begun(PLAN.model_copy(update={"models_per_replica": 1})))
    assert loaded.most == [2, 1]


def test_a_replica_that_cannot_load_its_first_model_does_not_begin(loaded: Loaded) -> None:
    loaded.error = EngineFailed("no room")
    with pytest.raises(EngineFailed, match=r"^no room$"):
        soon(begun())


def test_what_a_replica_tells_of_a_model(loaded: Loaded) -> None:
    async def asked() -> list[Any]:
        replica = await begun()
        told = [await replica.described("b")]
        loaded.error = EngineFailed("no room")
        replica._model = loaded.multiplexed(2)(lambda name: asyncio.to_thread(replica._load, name))
        return [*told, await replica.described("b")]

    told, failed = soon(asked())
    assert told == {
        "context": 512, "lanes": 3, "architecture": "replay", "engine": "", "template_source": None, "dialect": LFM2
    }  # fmt: skip
    assert isinstance(failed, Failed) and str(failed.error) == "no room"
    assert [given for given, _ in loaded.asked] == [("/a.gguf",), ("/b.gguf",), ("/b.gguf",)]


def test_a_turn_is_its_events_and_who_uses_a_model_is_counted(
    loaded: Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    async def asked() -> None:
        replica = await begun()
        (held,) = replica._held
        assert (held.model.name, held.users) == ("a", 0)
        with caplog.at_level(logging.INFO, "localagent.server"):
            items = await all_of(replica.turn(Call(GO, {"max_tokens": 9})))
        assert "".join(each.text for each in items if isinstance(each, Text)) == "Hi."
        assert isinstance(items[-1], Done)
        assert "a 1 (0 cached) + 2 tokens" in caplog.messages
        await asyncio.sleep(0)
        assert held.users == 0
        stream = replica._events("a", Call(GO, {}))
        await anext(stream)
        assert held.users == 1
        await stream.aclose()
        await asyncio.sleep(0)
        assert held.users == 0

    soon(asked())


def test_errors_of_ours_are_told_and_others_are_raised(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> None:
        replica = await begun()
        (item,) = await all_of(replica.turn(Call((), {}, raw="Once")))
        assert isinstance(item, Failed) and isinstance(item.error, Unsupported)
        assert str(item.error) == "a takes conversations, and no text to continue"
        assert await replica.count(Call(GO, {"system": "Hm."})) == 1
        with pytest.raises(TypeError):
            await replica.count(Call(GO, {"warmth": 3}))
        loaded.name, loaded.error = "b", EngineFailed("no room")
        for failed in (await replica.count(Call(GO, {})), *await all_of(replica.turn(Call(GO, {})))):
            assert isinstance(failed, Failed) and failed.error is loaded.error

    soon(asked())


def test_clients_who_share_nothing_have_a_model_each(loaded: Loaded) -> None:
    from localagent.server.fleet.replica import Held

    model = Model(speaking_host(Speaking(list(b"Hi."))), LFM2)
    held = Held(model)
    try:
        assert held.scoped("k") is held.scoped("k") is not held.scoped("l")
    finally:
        held.__del__()
    assert not model.host.alive


def test_a_model_that_is_to_go_waits_for_its_last_answer(loaded: Loaded) -> None:
    from localagent.server.fleet.replica import Held

    model = Model(speaking_host(Speaking(list(b"Hi."))), LFM2)
    held = Held(model)
    held.users = 1
    leaving = threading.Thread(target=held.__del__)
    leaving.start()
    leaving.join(0.2)
    assert leaving.is_alive() and held.leaving and model.host.alive
    held.users = 0
    leaving.join(20)
    assert not model.host.alive


def test_a_replica_whose_engine_has_ended_is_replaced(loaded: Loaded) -> None:
    class Host:
        alive, busy_seconds = True, 0.0

        def close(self) -> None:
            """Nothing is held."""

    async def looked() -> None:
        replica = await begun()
        (held,) = replica._held
        held.model = Model(ReplayHost([recording("Hi.")], LFM2.markers), LFM2)
        held.model.name, held.model.host = "a", Host()
        await replica.check_health()
        for name, value in (("alive", False), ("busy_seconds", 61.0)):
            setattr(held.model.host, name, value)
            with pytest.raises(EngineFailed, match=r"^the engine of a has ended, or hangs$"):
                await replica.check_health()
            setattr(held.model.host, name, getattr(Host, name))
        held.model.host.alive, held.leaving, held.users = False, True, 1
        with pytest.raises(EngineFailed):
            await replica.check_health()
        held.users = 0
        await replica.check_health()
        assert replica._held == set(), "what is gone is looked at no more"

    soon(looked())


def test_the_bytes_of_all_tokens_that_are_named_are_told() -> None:
    from localagent.server.fleet.replica import _spelled

    class Host:
        def token_bytes(self, ids: list[int]) -> list[bytes]:
            return [str(each).encode() for each in ids]

    class Fake:
        host: Any = Host()

    scored = Scored(8, 2, Logprobs(-0.5, ((9, -1.0), (7, -2.0))))
    assert _spelled(Fake(), scored) == Spelled({7: b"7", 8: b"8", 9: b"9"})  # type: ignore[arg-type]
