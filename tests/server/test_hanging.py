"""An engine that does not come back from a native call: its thread cannot be ended, and nobody is to wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localagent.errors import NotEnoughMemory
from localagent.hosts.host import EngineHost, Reuse
from localagent.hosts.prefix import SnapshotFolder, Snapshots
from localagent.model import Model
from localagent.server.models import ModelPool
from parsers import DIALECTS
from tests.hosts.speaking import Speaking, speaking_host
from tests.server.serving import Running, read, serving
from tests.server.test_faults import HELLO, events, until
from tests.server.test_serve import served


class Hanging:
    """Engines that answer HELLO, and while `goes_on` is not set, hang in whatever they are asked to do."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.engines: list[Speaking] = []
        self.models: list[Model] = []
        self.most = 9
        """How many fit into memory."""

    def load(self) -> Model:
        if len(self.models) == self.most:
            raise NotEnoughMemory("it does not fit")
        first = not self.models  # the ones after it never hang
        works = (lambda *_: self.goes_on.wait(60)) if first else (lambda *_: None)
        self.engines.append(Speaking(HELLO, works, lanes=2))
        self.models.append(Model(speaking_host(self.engines[-1]), DIALECTS["lfm2"]))
        return self.models[-1]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr("localagent.server.models._STALLED", 0.3)
    monkeypatch.setattr("localagent.server.models._WATCH", 0.1)
    made = Hanging()
    yield made
    made.goes_on.set()
    for model in made.models:
        assert isinstance(model.host, EngineHost)
        model.host._owner._thread.join(60)
        assert not model.host.hangs
    assert all(engine.closed == 1 for engine in made.engines), "who comes back cleans up"


def health(server: Running) -> tuple[int, str, str]:
    answer = server.ask(path="/health", method="GET")
    model = answer.json["models"]["one"]
    return answer.status, model["state"], model.get("error", "")


def test_health_tells_of_it_and_it_may_come_back(hanging: Hanging) -> None:
    with serving(pool=ModelPool({"one": hanging.load}, stall=0)) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        time.sleep(0.5)  # nothing to do is no hanging
        assert health(server) == (200, "ready", "")
        hanging.goes_on.clear()
        waiting = server.connect()
        waiting.sendall(server.request({"prompt": "Go."}))
        until(lambda: health(server) == (503, "stalled", ""))
        time.sleep(0.5)
        hanging.goes_on.set()
        assert read(waiting, 20, time.monotonic()).json["text"] == "Hello."
        assert health(server) == (200, "ready", "")
    assert len(hanging.models) == 1


@pytest.mark.parametrize("restart", [True, False])
def test_it_is_given_up_everybody_is_answered_and_another_one_is_loaded(
    hanging: Hanging, restart: bool
) -> None:
    pool = ModelPool({"one": hanging.load}, stall=1, restart=restart)
    with serving(pool=pool) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        hanging.goes_on.clear()
        began = time.monotonic()
        # Three have a place, whose prompts wait for the engine's thread, and three wait for a place.
        waiting = [server.connect() for _ in range(6)]
        for number, connection in enumerate(waiting):
            connection.sendall(server.request({"prompt": "Go.", "stream": number % 2 == 0}))
        answers = [read(connection, 20, began) for connection in waiting]
        assert all(0.8 < answer.seconds < 20 for answer in answers)
        for answer in answers:
            told = events(answer)[-1]["failed"] if answer.status == 200 else answer.json["plain"]["message"]
            assert told.startswith("the engine of one hung and was given up"), told
        if not restart:
            said = "the engine of one hung and was given up"
            assert health(server) == (503, "failed", said)
            again = server.ask({"prompt": "Go."})
            assert again.status == 500
            assert again.json["plain"]["message"] == f"{said}: load it again with POST /v1/models/load"
            assert server.ask({"model": "one"}, path="/v1/models/load").status == 200
        until(lambda: len(hanging.models) == 2)  # with the flag before anybody asks
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."
        assert health(server) == (200, "ready", "")
        assert pool.hangs
        hanging.goes_on.set()
        until(lambda: not pool.hangs)


def test_a_stream_that_has_begun_ends_with_the_error(hanging: Hanging) -> None:
    with serving(pool=ModelPool({"one": hanging.load}, stall=1)) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        engine = hanging.engines[0]
        engine.script = None  # it goes on until it is stopped
        engine.works = lambda *_: hanging.goes_on.wait(60) and time.sleep(0.01)
        stream = server.connect()
        stream.sendall(server.request({"prompt": "Go.", "stream": True}))
        assert stream.recv(1000)
        hanging.goes_on.clear()
        assert b"was given up" in read(stream, 10, time.monotonic()).data[-300:]


def test_it_is_given_up_while_another_one_is_loaded_again(hanging: Hanging) -> None:
    loads, answered = iter([True, False]), threading.Event()

    def dying() -> Model:
        assert next(loads) or answered.wait(60)
        return Model(speaking_host(Speaking(HELLO, lanes=2)), DIALECTS["lfm2"])

    pool = ModelPool({"dying": dying, "one": hanging.load}, stall=0.6, restart=True)
    with serving(pool=pool) as server:
        for name in pool.served:
            assert server.ask({"prompt": "Go.", "model": name}).status == 200
        dead = pool.served["dying"].model
        assert dead is not None and isinstance(dead.host, EngineHost)
        dead.host._owner.stop()
        until(lambda: pool.served["dying"].loading is not None)
        hanging.goes_on.clear()
        answer = server.ask({"prompt": "Go.", "model": "one"})
        assert answer.status == 500
        assert pool.served["dying"].loading is not None, "nobody waited for that"
        answered.set()
        until(lambda: pool.served["dying"].state == "ready")


def test_a_person_need_not_wait_for_the_limit(hanging: Hanging) -> None:
    with serving(pool=ModelPool({"one": hanging.load}, stall=0)) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        hanging.goes_on.clear()
        waiting = server.connect()
        waiting.sendall(server.request({"prompt": "Go."}))
        until(lambda: health(server)[1] == "stalled")
        assert server.ask({"model": "one"}, path="/v1/models/load").status == 200
        assert read(waiting, 20, time.monotonic()).status == 500
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."


@pytest.mark.parametrize("restart", [True, False])
def test_where_memory_holds_no_second_one_only_a_restart_helps(hanging: Hanging, restart: bool) -> None:
    ended: list[str] = []
    hanging.most = 1
    pool = ModelPool({"one": hanging.load}, stall=1, restart=restart, end=ended.append)
    said = "one does not fit into memory beside an engine that hangs: restart the server"
    with serving(pool=pool) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        hanging.goes_on.clear()
        server.connect().sendall(server.request({"prompt": "Go."}))
        until(lambda: health(server)[1] == "failed")
        if not restart:
            answer = server.ask({"model": "one"}, path="/v1/models/load")
            assert (answer.status, answer.json["plain"]["message"]) == (500, said)
        until(lambda: health(server) == (503, "failed", said))
        assert ended == [said] * restart
        assert server.ask({"prompt": "Go."}).json["plain"]["message"] == said
        hanging.goes_on.set()
        until(lambda: not pool.hangs)
        hanging.most = 2
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."  # it came back, and made room


def test_a_server_ends_although_its_engine_hangs(hanging: Hanging) -> None:
    with serving(pool=ModelPool({"one": hanging.load})) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        hanging.goes_on.clear()
        waiting = server.connect()
        waiting.sendall(server.request({"prompt": "Go.", "stream": True}))
        time.sleep(0.2)
        began = time.monotonic()
        server.stop()
        server.stopped(60)
        assert time.monotonic() - began < 30


def test_who_writes_much_to_a_slow_disk_does_not_hang(hanging: Hanging, tmp_path: Path) -> None:
    class Slow(Snapshots):
        def write(self, *what: Any) -> None:
            time.sleep(0.2)  # less than what counts as hanging
            super().write(*what)

    def load() -> Model:
        reuse = Reuse(snapshots=SnapshotFolder(tmp_path))
        return Model(speaking_host(Speaking(HELLO, lanes=4), reuse), DIALECTS["lfm2"])

    pool = ModelPool({"one": load})
    with pytest.MonkeyPatch.context() as patched, serving(pool=pool) as server:
        patched.setattr("localagent.hosts.host.Snapshots", Slow)
        for prompt in "abcd":
            assert server.ask({"prompt": prompt * 50}).status == 200
        began = time.monotonic()
        assert server.ask({"model": "one"}, path="/v1/models/unload").status == 200
        assert time.monotonic() - began > 0.8
        assert not pool.hangs
    assert len(SnapshotFolder(tmp_path).files()) == 4


HANGS = """
import os, time
from localagent.server import models
from localagent.hosts.llamacpp.lanes import LlamaCppLane
from localagent.hosts.memory import admission

models._STALLED, models._WATCH = 0.5, 0.1
begin = LlamaCppLane.begin

def hangs(lane, sampling, history):
    if len(history) > 200:
        admission.require_memory = no_room
        time.sleep(600)
    begin(lane, sampling, history)

def no_room(name, *_):
    raise models.NotEnoughMemory(f"{name} does not fit")

LlamaCppLane.begin = hangs
"""


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--restart",), 1)])
def test_the_process_ends_too(
    nano: dict[str, Path], tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    """With `--restart` by itself, and not as if all were well, so that it is started again."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    weights = ("--model", str(nano["llamacpp"]), "--stall-limit", "1")
    with served(*weights, *options, home=tmp_path / "home", PYTHONPATH=str(tmp_path)) as server:
        server.ask("Short.")
        body = {"messages": [{"role": "user", "content": "Long. " * 100}]}
        answer = server.client.ask(body, path="/v1/chat/completions")
        assert answer.status == 500
        assert "was given up" in answer.json["error"]["message"]
        if options:
            server.child.wait(60)
        assert server.end() == code
    assert ("restart the server" in server.said) == bool(options)
    assert "stopped" in server.said
