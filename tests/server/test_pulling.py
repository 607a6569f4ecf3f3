"""Models that come and go while the server runs: Ollama's pull and delete, with a hub on this machine."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import ollama
import pytest

from localagent.cli.options import ServeOptions
from localagent.cli.serve import _prepared, pulling_for
from localagent.errors import UsageError
from localagent.server.app import all_wires
from localagent.server.models import ModelPool
from localagent.server.service import Pulling
from tests.agent.replaying import scripted
from tests.server.serving import Running, read, serving
from tests.server.test_serve import served
from tests.store.loopback import Loopback

NAME = "hf:acme/nano"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nano: dict[str, Path]) -> Iterator[Loopback]:
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "LOCALAGENT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with Loopback() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        hub.repos["acme/nano"] = {"nano-f16.gguf": nano["llamacpp"].read_bytes()}
        yield hub


@pytest.fixture
def server(hub: Loopback) -> Iterator[Running]:
    pulling = pulling_for(ServeOptions(backend="llamacpp", context=512, lanes=1, no_snapshots=True), "")
    with serving(scripted("x"), wires=all_wires(), pulling=pulling) as running:
        yield running


def pull(server: Running, name: str, **more: Any) -> tuple[int, list[dict[str, Any]]]:
    answer = server.ask({"model": name, **more}, path="/api/pull")
    return answer.status, [json.loads(line) for line in answer.body.splitlines()]


def delete(server: Running, name: str) -> tuple[int, bytes]:
    answer = server.ask({"model": name}, path="/api/delete", method="DELETE")
    return answer.status, answer.body


@pytest.mark.engine
def test_a_model_is_fetched_served_and_deleted(server: Running) -> None:
    client = ollama.Client(server.url)
    with closing(client._client):
        follow(client)


def follow(client: ollama.Client) -> None:
    lines = list(client.pull(NAME, stream=True))
    assert lines[0].status == "pulling manifest" and lines[-1].status == "success"
    totals = [line for line in lines if line.total]
    assert totals and totals[-1].completed == totals[-1].total and len({line.digest for line in totals}) == 1
    (name,) = [each.model for each in client.list().models if each.model != "model-1"]
    assert name and name.startswith(NAME)
    assert client.chat(name, [{"role": "user", "content": "Hello."}], options={"num_predict": 4}).eval_count
    assert client.pull(name).status == "success"
    assert client.delete(name).status == "success"
    assert [each.model for each in client.list().models] == ["model-1"]
    with pytest.raises(ollama.ResponseError) as caught:
        client.delete(name)
    assert caught.value.status_code == 404


@pytest.mark.engine
def test_a_model_answers_to_the_name_that_it_was_pulled_by(server: Running, hub: Loopback) -> None:
    pull(server, NAME)
    assert [*server.service.pool.served] == ["model-1", f"{NAME}:F16"]
    ask = {"messages": [{"role": "user", "content": "Hi"}], "stream": False, "options": {"num_predict": 2}}
    for name in (NAME, f"{NAME}:latest", f"{NAME}:F16"):
        answer = server.ask({"model": name, **ask}, path="/api/chat")
        assert (answer.status, f"x-localagent-model: {NAME}:f16" in answer.head) == (200, True)
        assert server.ask({"model": name}, path="/api/show").status == 200
    asked = len(hub.requests)
    assert pull(server, NAME) == (200, [{"status": "success"}]) and len(hub.requests) == asked
    assert delete(server, NAME)[0] == 200 and [*server.service.pool.served] == ["model-1"]
    assert delete(server, NAME)[0] == 404


def stalled_pull(server: Running, hub: Loopback, stream: bool) -> socket.socket:
    hub.pause_after = 100_000
    connection = server.connect()
    connection.sendall(server.request({"model": NAME, "stream": stream}, path="/api/pull"))
    hub.wait_served("nano-f16.gguf", 100_000)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_a_pull_whose_hub_stalls(server: Running, hub: Loopback, stream: bool) -> None:
    connection = stalled_pull(server, hub, stream)
    server.stop()
    answer = read(connection, 20, 0)
    assert answer.closed and "the server is stopping" in json.loads(answer.body.splitlines()[-1])["error"]
    assert answer.status == (200 if stream else 503)
    server.stopped(20)
    assert not any(thread.name == "server under test" for thread in enumerate_threads())


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.engine
def test_the_process_ends_while_a_hub_stalls(hub: Loopback, nano: dict[str, Path], tmp_path: Path) -> None:
    options = ("--model", str(nano["llamacpp"]), "--lanes", "1", "--allow-pull")
    with served(*options, home=tmp_path, HF_ENDPOINT=hub.url) as process:
        connection = stalled_pull(process.client, hub, True)
        assert process.end(signal.SIGTERM) == 0 and "Traceback" not in process.said
        assert process.said.splitlines()[-1] == "stopped"
        assert b"the server is stopping" in read(connection, 5, 0).data


@pytest.mark.parametrize("stream", [False, True])
def test_a_pull_ends_when_its_client_leaves(server: Running, hub: Loopback, stream: bool) -> None:
    connection = stalled_pull(server, hub, stream)
    assert server.service._asking
    connection.close()
    until = time.monotonic() + 20
    while server.service._asking:
        assert time.monotonic() < until
        time.sleep(0.01)
    hub.go.set()
    assert pull(server, "hf:acme/nothing")[1][-1].keys() == {"error"}  # it waits for the one before it
    assert [*server.service.pool.served] == ["model-1"]


def test_a_failure_of_any_kind_is_the_last_line() -> None:
    def fetch(name: str, progress: Any) -> Any:
        raise OSError(28, "no space left for what nobody may read")

    with serving(scripted("x"), wires=all_wires(), pulling=Pulling(fetch, lambda name: None)) as server:
        status, lines = pull(server, NAME)
    assert status == 200 and lines[-1].keys() == {"error"} and "nobody" not in lines[-1]["error"]


def of_names(*names: str, stored: tuple[str, ...] = ()) -> ModelPool:
    return ModelPool({name: lambda: scripted("x") for name in names}, stored=stored)


@pytest.mark.parametrize("error", [OSError(13, "no"), UsageError("no")])
def test_a_model_whose_weights_cannot_be_deleted_is_served_as_before(error: Exception) -> None:
    def remove(name: str) -> None:
        raise error

    pulling = Pulling(lambda name, progress: pytest.fail("nothing is pulled"), remove)
    with serving(wires=all_wires(), pool=of_names("a", "b", stored=("a", "b")), pulling=pulling) as server:
        assert delete(server, "b")[0] >= 400
        assert [*server.service.pool.served] == ["a", "b"]


def test_a_file_of_the_users_may_have_the_name_of_another_model() -> None:
    removed: list[str] = []
    pulling = Pulling(lambda name, progress: pytest.fail("nothing is pulled"), removed.append)
    with serving(
        wires=all_wires(), pool=of_names("lfm2-nano", "b", stored=("b",)), pulling=pulling
    ) as server:
        status, said = delete(server, "lfm2-nano")
        assert status == 400 and b"was not pulled" in said
        assert (removed, [*server.service.pool.served]) == ([], ["lfm2-nano", "b"])
        assert delete(server, "b")[0] == 200 and removed == ["b"]


def test_which_weights_are_in_the_store(nano: dict[str, Path]) -> None:
    options = ServeOptions(backend="llamacpp", context=512, lanes=1, no_snapshots=True)
    for asked, stored in (("lfm2-nano", True), (str(nano["llamacpp"]), False)):
        assert _prepared(asked, options)[3] is stored


def test_who_asks_for_a_model_that_is_being_deleted_is_told_that_there_is_none() -> None:
    closing, goes_on = Event(), Event()
    pool, pulling = of_names("a", "b", "c", stored=("b",)), Pulling(lambda name, progress: None, print)  # type: ignore[arg-type, return-value]
    with serving(wires=all_wires(), pool=pool, pulling=pulling) as server:
        ask = {"model": "b", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
        assert server.ask(ask, path="/api/chat").status == 200
        model: Any = pool.served["b"].model
        model.close = lambda: (closing.set(), goes_on.wait(20))
        connection = server.connect()
        connection.sendall(server.request({"model": "b"}, path="/api/delete", method="DELETE"))
        assert closing.wait(20)
        assert server.ask(ask, path="/api/chat").status == 404
        goes_on.set()
        assert read(connection, 20, 0).status == 200


def test_a_model_that_is_here_is_there_at_once() -> None:
    with serving(scripted("x"), wires=all_wires()) as server:
        assert pull(server, "model-1") == (200, [{"status": "success"}])
        assert pull(server, "model-1:latest", stream=False) == (200, [{"status": "success"}])


def test_without_the_option_nothing_is_fetched_or_deleted() -> None:
    with serving(scripted("x"), scripted("y"), wires=all_wires()) as server:
        for status, said in (pull(server, "smollm2-135m"), delete(server, "model-1")):
            assert status == 403 and "--allow-pull" in str(said)
        assert server.ask({"model": 7}, path="/api/pull").status == 400


@pytest.mark.parametrize("name", ["/etc/passwd", "./x.gguf", "vllm://127.0.0.1:1/x", "nothing"])
def test_clients_name_no_files_and_no_servers(server: Running, name: str) -> None:
    status, [said] = pull(server, name, stream=False)
    assert status == 404 and said["error"].startswith("no model ")
    status, said = pull(server, name)
    assert status == 200 and said[-1].keys() == {"error"}


def test_the_last_model_and_one_in_use_stay(server: Running) -> None:
    assert delete(server, "model-1")[0] == 400
    pull(server, "lfm2-nano")
    status, said = delete(server, "model-1")
    assert status == 400 and b"was not pulled" in said
    assert len(server.service.pool.served) == 2
    assert delete(server, "nothing")[0] == 404


def test_a_hub_that_fails_is_told_in_the_stream(server: Running) -> None:
    status, lines = pull(server, "hf:acme/nothing")
    assert status == 200 and "acme/nothing" in lines[-1]["error"]
    assert pull(server, "hf:acme/nothing", stream=False)[0] >= 400
