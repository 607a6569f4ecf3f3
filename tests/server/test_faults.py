"""What a server does when something breaks or leaves: clients, engine threads, queues, deadlines, the server itself.

Over a real socket; with an engine that never ends by itself, and with lfm2-nano on llama.cpp.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from localagent.errors import EngineFailed, NotEnoughMemory
from localagent.hosts.host import EngineHost
from localagent.hosts.sampling import Sampling
from localagent.model import Model, load
from localagent.server.access import Access
from localagent.server.app import all_wires
from localagent.server.bounds import Bounds
from localagent.server.models import ModelPool
from localagent.server.wires.messages import COUNT_TOKENS_WIRE
from parsers import DIALECTS
from tests.agent.replaying import scripted
from tests.conftest import LONG
from tests.hosts.speaking import Speaking, speaking_host
from tests.server.serving import Answered, PlainWire, read, serving

HELLO = list(b"Hello.")
CHAT = "/v1/chat/completions"


def slowly(seconds: float) -> Callable[[str, object], object]:
    return lambda work, _: time.sleep(seconds) if work == "step" else None


def speaking(script: list[int] | None = None, step: float = 0.002, lanes: int = 1) -> Model:
    """A model that writes `script`, or goes on until it is stopped."""
    engine = Speaking(script, slowly(step), lanes=lanes, context_size=100_000)
    return Model(speaking_host(engine), DIALECTS["lfm2"])


def until(met: Callable[[], bool], seconds: float = 30) -> float:
    """Wait until something is so; the seconds that it took."""
    began = time.monotonic()
    while not met():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.005)
    return time.monotonic() - began


def busy(model: Model) -> bool:
    """Whether a lane of the model is in use."""
    assert isinstance(model.host, EngineHost)
    scheduler = model.host._scheduler
    return bool(scheduler._running or scheduler._reading or scheduler._waiting)


def events(answer: Answered) -> list[Any]:
    lines = answer.body.decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def at_once(count: int, ask: Callable[[int], Answered]) -> list[Answered]:
    """What `count` clients get who all ask now."""
    answers: dict[int, Answered] = {}

    def client(number: int) -> None:
        answers[number] = ask(number)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == count, "somebody was never answered"
    return [answers[number] for number in range(count)]


# -- clients that leave ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_a_lane_is_free_at_once_when_its_client_leaves(stream: bool, half: bool) -> None:
    """Who only stops writing cannot be told from who has left."""
    model = speaking()
    with serving(model) as server:
        connection = server.connect()
        connection.sendall(server.request({"prompt": "Go.", "stream": stream}))
        if stream:
            assert connection.recv(1000)
        until(lambda: busy(model))
        if half:
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.close()
        assert until(lambda: not busy(model)) < 1
        until(lambda: server.service.pool.served["model-1"].queue.running == 0)
        assert server.service.pool.served["model-1"].users == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_lane_of_nano_is_free_at_once_when_its_client_leaves(nano: dict[str, Path], stream: bool) -> None:
    loaded = load(nano["llamacpp"], lanes=1)
    model = Model(
        loaded.host, loaded.dialect, Sampling(temperature=9.0), "nano"
    )  # it hardly ever ends by itself
    with serving(model, wires=all_wires()) as server:
        body = {"model": "nano", "messages": [{"role": "user", "content": "Go on."}], "stream": stream}
        with server.connect() as connection:
            connection.sendall(server.request(body, path=CHAT))
            if stream:
                assert connection.recv(1000)
            until(lambda: busy(model))
        assert until(lambda: not busy(model)) < 1
        again = server.ask({**body, "stream": False, "max_tokens": 3, "temperature": 0}, path=CHAT)
        assert again.status == 200
        assert again.json["usage"]["completion_tokens"] == 3


def test_who_waits_and_leaves_is_not_waited_for() -> None:
    model = speaking()
    with serving(model) as server:
        queue = server.service.pool.served["model-1"].queue
        first, second, third = server.connect(), server.connect(), server.connect()
        for connection in (first, second, third):
            connection.sendall(server.request({"prompt": "Go.", "stream": True}))
            time.sleep(0.1)
        until(lambda: queue.waiting == 1)
        third.close()
        until(lambda: queue.waiting == 0)
        first.close()
        second.close()
        until(lambda: queue.running == 0 and not busy(model))


def test_who_does_not_read_is_given_up() -> None:
    """He holds a lane, and others wait for it."""
    model = speaking(step=0)
    with serving(model, bounds=Bounds(write_time=1)) as server:
        with server.connect() as connection:
            connection.sendall(server.request({"prompt": "Go.", "stream": True, "pad": 50_000}))
            until(lambda: busy(model))
            until(lambda: server.service.pool.served["model-1"].users == 0, 20)
        assert until(lambda: not busy(model)) < 1


# -- engines that break ------------------------------------------------------------------------------------


def kill(host: EngineHost) -> None:
    """End the owner thread by an exception that nothing there expects."""

    def end() -> None:
        # Not by PyThreadState_SetAsyncExc: that may strike between taking a call and knowing whose it is.
        raise SystemExit

    host._owner.post(end)
    host._owner._thread.join(30)
    assert not host._owner._thread.is_alive()


def test_health_tells_of_a_dead_engine_at_once_and_everybody_is_answered() -> None:
    model = speaking(lanes=2)
    with serving(model) as server:
        assert server.ask(path="/health", method="GET").status == 200
        waiting = [server.connect() for _ in range(6)]
        for number, connection in enumerate(waiting):
            connection.sendall(server.request({"prompt": "Go.", "stream": number % 2 == 0}))
        until(lambda: server.service.pool.served["model-1"].queue.waiting == 3)
        assert isinstance(model.host, EngineHost)
        kill(model.host)
        began = time.monotonic()
        health = server.ask(path="/health", method="GET")
        assert health.status == 503
        assert health.json["models"]["model-1"]["state"] == "failed"
        answers = [read(connection, 20, began) for connection in waiting]
        assert max(answer.seconds for answer in answers) < 10
        for answer in answers:
            if answer.status == 200:
                assert "failed" in events(answer)[-1]
            else:
                assert answer.status == 500
        again = server.ask({"prompt": "Go."})
        assert again.status == 500
        assert "/v1/models/load" in again.json["plain"]["message"]


@pytest.mark.parametrize("how", ["flag", "endpoint"])
def test_a_dead_engine_can_be_started_again(how: str) -> None:
    made: list[Model] = []

    def loader() -> Model:
        made.append(speaking(HELLO))
        return made[-1]

    pool = ModelPool({"one": loader}, restart=how == "flag")
    with serving(pool=pool) as server:
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."
        assert isinstance(made[0].host, EngineHost)
        kill(made[0].host)
        if how == "endpoint":
            assert server.ask({"prompt": "Go."}).status == 500
            assert server.ask({"model": "one"}, path="/v1/models/load").status == 200
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."
        assert server.ask(path="/health", method="GET").status == 200
        assert len(made) == 2


def test_with_the_flag_it_is_started_again_before_anybody_asks() -> None:
    made: list[Model] = []

    def loader() -> Model:
        made.append(speaking(HELLO))
        return made[-1]

    with serving(pool=ModelPool({"one": loader}, restart=True)) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        assert isinstance(made[0].host, EngineHost)
        kill(made[0].host)
        until(lambda: len(made) == 2)


def test_an_engine_that_fails_once_goes_on() -> None:
    left = [1]

    def works(work: str, _: object) -> None:
        if work == "draw" and left:
            left.pop()
            raise EngineFailed("the engine gave up")

    model = Model(speaking_host(Speaking(HELLO, works)), DIALECTS["lfm2"])
    with serving(model) as server:
        answer = server.ask({"prompt": "Go."})
        assert (answer.status, answer.json["plain"]["message"]) == (500, "the engine gave up")
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."
        assert server.ask(path="/health", method="GET").status == 200


# -- too much at once --------------------------------------------------------------------------------------


def test_prompts_are_counted_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the engine's thread for as long as it takes, and streams wait for that."""
    now = most = 0

    def count(*_: object, **__: object) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.05)
        now -= 1
        return 7

    monkeypatch.setattr(Model, "count_tokens", count)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    with serving(speaking(), wires=[COUNT_TOKENS_WIRE]) as server:
        answers = at_once(5, lambda _: server.ask(body, path=COUNT_TOKENS_WIRE.path))
    assert [answer.json for answer in answers] == [{"input_tokens": 7}] * 5
    assert most == 1


def test_counts_that_find_the_queue_full_are_told_to_come_back() -> None:
    goes_on = threading.Event()
    model = speaking(HELLO)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    pool = ModelPool({"one": lambda: model}, queue=2)

    def slowly(text: str, special: bool) -> tuple[int, ...]:
        assert goes_on.wait(20)
        return tuple(text.encode())

    with serving(pool=pool, wires=[COUNT_TOKENS_WIRE, PlainWire()]) as server:
        assert server.ask({"prompt": "Go."}).status == 200  # the model is loaded
        assert isinstance(model.host, EngineHost)
        model.host._engine.vocabulary.tokenize = slowly  # type: ignore[method-assign]
        with server.connect() as gone:
            gone.sendall(server.request(body, path=COUNT_TOKENS_WIRE.path))
            until(lambda: pool.served["one"].counts.running == 1)
        answers: list[Answered] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask(body, path=COUNT_TOKENS_WIRE.path)))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) == 3)  # who has left has his place until his prompt is counted
        for answer in answers:
            assert (answer.status, "retry-after: " in answer.head) == (503, True)
            assert answer.json["error"]["type"] == "overloaded_error"
        goes_on.set()
        for thread in threads:
            thread.join(20)
        assert [answer.json for answer in answers[3:]] == [{"input_tokens": 15}] * 2


def test_two_hundred_at_once_get_an_answer_or_are_told_to_come_back() -> None:
    model = speaking(HELLO, 0.01, lanes=4)
    pool = ModelPool({"one": lambda: model}, queue=32)
    with serving(pool=pool) as server:
        server.ask({"prompt": "Go."})
        answers = at_once(200, lambda _: server.ask({"prompt": "Go."}))
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status != 200]
        assert all(answer.json["text"] == "Hello." for answer in served)
        assert len(served) >= 37  # the lanes, one ready for the next, and the queue
        for answer in refused:
            assert answer.status == 503
            assert "retry-after: " in answer.head
            assert answer.json["plain"]["code"] == "overloaded"
        assert refused
        assert server.ask({"prompt": "Go."}).status == 200


def test_a_client_who_asks_much_does_not_keep_others_out() -> None:
    """The greedy one loses a place in a full queue, and the other one is served before the rest of his."""
    goes_on = threading.Event()
    engine = Speaking(HELLO, lambda *_: goes_on.wait(30))
    model = Model(speaking_host(engine), DIALECTS["lfm2"])
    pool = ModelPool({"one": lambda: model}, queue=10)
    answered: list[tuple[str, int]] = []

    def ask(who: str) -> None:
        answered.append((who, server.ask({"prompt": f"I am {who}."}, user_agent=f"{who}/1", wait=60).status))

    with serving(pool=pool) as server:
        threads = [threading.Thread(target=ask, args=(who,)) for who in ["greedy"] * 12 + ["modest"]]
        for thread in threads[:-1]:
            thread.start()
        until(lambda: pool.served["one"].queue.waiting == 10, 30)
        threads[-1].start()
        until(lambda: answered == [("greedy", 503)], 30)
        goes_on.set()
        for thread in threads:
            thread.join(60)
        assert sorted(answered[1:]) == [("greedy", 200)] * 11 + [("modest", 200)]
    # Not the order of `answered`: which client's thread runs next is for the machine to say.
    modest = [b"modest" in bytes(token for token in history if token < 256) for history in engine.histories]
    assert modest == [number == 3 for number in range(12)]


def test_a_request_ends_at_its_deadline() -> None:
    model = speaking()
    with serving(model, bounds=Bounds(deadline=0.5)) as server:
        plain = server.ask({"prompt": "Go."})
        assert plain.status == 504
        assert 0.4 < plain.seconds < 10
        streamed = server.ask({"prompt": "Go.", "stream": True})
        assert streamed.status == 200
        assert "longer than the server allows" in events(streamed)[-1]["failed"]
        until(lambda: not busy(model))


def test_a_stream_that_waits_is_kept_alive() -> None:
    """While others have the lane, and while the prompt is read."""

    def works(work: str, _: object) -> None:
        time.sleep(0.5 if work == "evaluate" else 0)

    model = Model(speaking_host(Speaking(HELLO, works, chunk=16)), DIALECTS["lfm2"])
    with serving(model, bounds=Bounds(keep_alive=0.2)) as server:
        answer = server.ask({"prompt": "a" * 30, "stream": True})
    assert answer.body.count(b": alive\n\n") >= 2
    assert answer.body.index(b'{"begin"') < answer.body.index(b": alive")
    assert b"".join(line["text"].encode() for line in events(answer)[1:]) == b"Hello."


def test_errors_before_the_first_token_have_a_status_also_for_streams() -> None:
    model = Model(speaking_host(Speaking(HELLO, context_size=20)), DIALECTS["lfm2"])
    with serving(model) as server:
        answer = server.ask({"prompt": "a" * 100, "stream": True})
        assert answer.status == 400
        assert "context window" in answer.json["plain"]["message"]


# -- models ------------------------------------------------------------------------------------------------


def test_models_are_loaded_when_asked_for_and_make_room_for_each_other() -> None:
    loaded: list[str] = []
    room = [2]

    def loader(name: str) -> Callable[[], Model]:
        def make() -> Model:
            if len(loaded) - len(closed) >= room[0]:
                raise NotEnoughMemory(f"{name} does not fit")
            loaded.append(name)
            model = scripted(f"I am {name}.")
            model.host.close = lambda: closed.append(name)  # type: ignore[method-assign]
            return model

        return make

    closed: list[str] = []
    pool = ModelPool({name: loader(name) for name in "abc"}, aliases=[("claude-*", "b"), ("?", "c")])
    with serving(pool=pool) as server:

        def said(model: str) -> str:
            return str(server.ask({"prompt": "Who?", "model": model}).json["text"])

        assert loaded == []
        assert said("a") == "I am a."
        assert said("claude-sonnet-4-5") == "I am b."
        assert (loaded, closed) == (["a", "b"], [])
        assert said("a:latest") == "I am a."
        assert said("x") == "I am c."  # b has been unused for longest
        assert (loaded, closed) == (["a", "b", "c"], ["b"])
        answer = server.ask({"prompt": "Who?", "model": "gpt-5"})
        assert answer.status == 404
        assert "a, b, c" in answer.json["plain"]["message"]
        assert said("") == "I am a."
        states = server.ask(path="/health", method="GET").json["models"]
        assert [states[name]["state"] for name in "abc"] == ["ready", "unloaded", "ready"]
        assert server.ask({"model": "a"}, path="/v1/models/unload").status == 200
        assert closed == ["b", "a"]
        room[0] = 0
        answer = server.ask({"prompt": "Who?", "model": "a"})
        assert (answer.status, answer.json["plain"]["message"]) == (503, "a does not fit")
        health = server.ask(path="/health", method="GET")
        assert (health.status, health.json["models"]["a"]["state"]) == (200, "failed")
    assert closed == ["b", "a", "c"]


def test_a_model_in_use_is_not_unloaded() -> None:
    busy_one, other = speaking(), scripted("Other.")

    def no_room() -> Model:
        if pool.served["busy"].model is not None:
            raise NotEnoughMemory("other does not fit")
        return other

    pool = ModelPool({"busy": lambda: busy_one, "other": no_room})
    with serving(pool=pool) as server:
        with server.connect() as connection:
            connection.sendall(server.request({"prompt": "Go.", "model": "busy", "stream": True}))
            assert connection.recv(1000)
            answer = server.ask({"prompt": "Go.", "model": "other"})
            assert answer.status == 503
            assert "retry-after: " in answer.head
            assert "busy" in answer.json["plain"]["message"]
            assert server.ask({"model": "busy"}, path="/v1/models/unload").status == 503
        until(lambda: pool.served["busy"].users == 0)
        assert server.ask({"prompt": "Go.", "model": "other"}).json["text"] == "Other."
        assert pool.served["busy"].model is None


def test_a_model_that_nobody_asks_for_is_unloaded() -> None:
    pool = ModelPool({"one": lambda: speaking(HELLO)}, idle=0.2)
    with serving(pool=pool) as server:
        assert server.ask({"prompt": "Go."}).status == 200
        first = pool.served["one"].model
        assert first is not None
        until(lambda: not first.host.alive)
        assert pool.served["one"].model is None
        assert server.ask({"prompt": "Go."}).json["text"] == "Hello."


def test_one_model_answers_to_every_name_and_says_which_it_is() -> None:
    with serving(scripted("Yes.")) as server:
        answer = server.ask({"prompt": "Go.", "model": "gpt-5", "ignored": ["user", "né\r\nx: y"]})
        assert answer.status == 200
        assert "x-localagent-model: model-1\r\n" in answer.head + "\r\n"
        assert "x-localagent-ignored: user, n???x: y" in answer.head
        assert server.ask(path="/v1/models/gpt-5", method="GET").status == 404
        assert server.ask(path="/v1/models/model-1", method="GET").json["id"] == "model-1"
        listed = server.ask(path="/v1/models", method="GET").json
        assert [each["id"] for each in listed["data"]] == ["model-1"]


def test_everybody_waits_for_one_load() -> None:
    loads = []

    def loader() -> Model:
        loads.append(1)
        time.sleep(0.5)
        return speaking(HELLO, lanes=4)

    with serving(pool=ModelPool({"one": loader})) as server:
        gone = server.connect()
        gone.sendall(server.request({"prompt": "Go."}))
        until(lambda: bool(loads))
        gone.close()
        answers = at_once(8, lambda _: server.ask({"prompt": "Go."}))
        assert [answer.status for answer in answers] == [200] * 8
        assert loads == [1]


def test_a_load_that_fails_is_tried_again() -> None:
    fails = [True]

    def loader() -> Model:
        if fails.pop() if fails else False:
            raise OSError("the disk is gone")
        return speaking(HELLO)

    with serving(pool=ModelPool({"one": loader})) as server:
        answer = server.ask({"prompt": "Go."})
        assert answer.status == 500
        assert b"disk" not in answer.data  # what nobody raised on purpose stays here
        assert server.ask(path="/health", method="GET").status == 503
        assert server.ask({"prompt": "Go."}).status == 200
        assert server.ask(path="/health", method="GET").status == 200


# -- prompts of others -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "cached"), [(False, 0), (True, 50)])
def test_evaluated_prompts_are_not_reused_across_keys(share: bool, cached: int) -> None:
    """How fast the first token comes would tell whether somebody else has asked the same."""
    model = speaking(HELLO, 0, lanes=2)
    access = Access(keys=("one", "two"), share=share)
    with serving(model, access=access, wires=all_wires()) as server:

        def ask(key: str) -> int:
            body = {"messages": [{"role": "user", "content": "a" * 200}]}
            answer = server.ask(body, path=CHAT, x_api_key=key)
            return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert ask("one") == 0
        assert ask("one") > 50
        assert (ask("two") > 50) == (cached > 0)
        assert ask("two") > 50


# -- the server's own end ----------------------------------------------------------------------------------


def test_when_the_server_stops_streams_end_with_an_error() -> None:
    model = speaking()
    with serving(model) as server:
        streaming, plain = server.connect(), server.connect()
        streaming.sendall(server.request({"prompt": "Go.", "stream": True}))
        assert streaming.recv(100)
        plain.sendall(server.request({"prompt": "Go."}))
        until(lambda: server.service.pool.served["model-1"].queue.running == 2)
        began = time.monotonic()
        server.stop()
        streamed, answered = read(streaming, 20, began), read(plain, 20, began)
        assert b"the server is stopping" in streamed.data[-200:]
        assert streamed.closed
        assert answered.status == 503
        server.stopped(20)
        assert time.monotonic() - began < 10
    assert not model.host.alive


@pytest.mark.parametrize("count", [1000 if LONG else 200])
def test_many_requests_leave_memory_as_it_was(nano: dict[str, Path], count: int) -> None:
    with serving(load(nano["llamacpp"], lanes=4), wires=all_wires()) as server:
        body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 1}

        def ask(times: int) -> None:
            for number in range(times):
                asked = {**body, "stream": number % 2 == 0}
                assert server.ask(asked, path=CHAT).status == 200

        ask(100)
        before = psutil.Process().memory_info().rss
        ask(count)
        grown = psutil.Process().memory_info().rss - before
        assert grown < 8 << 20
