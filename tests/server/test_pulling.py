"""Models that come and go while the server runs: Ollama's pull and delete, with a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ollama
import pytest

from localagent.cli.options import ServeOptions
from localagent.cli.serve import pulling_for
from localagent.server.app import all_wires
from tests.agent.replaying import scripted
from tests.server.serving import Running, serving
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
