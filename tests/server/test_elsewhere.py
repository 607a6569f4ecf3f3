"""Models on a server of tokens are served like those of this machine: one address for a mixed pool."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localagent.model import load
from localagent.nano.tasks import TASKS, make_tasks
from localagent.remote import RemoteModel
from tests.server.fleet.running import free_port, started

pytest.importorskip("xllamacpp", reason="the package xllamacpp, which has a llama-server, is not installed")
from localagent_bench.harness.servers import Settings, running

pytestmark = pytest.mark.engine
COMMAND = Path(sys.executable).with_name("localagent")


@pytest.fixture(scope="module")
def pool(nano: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The address of a server with a model on llama-server and one of its own; and the llama-server."""
    settings = Settings(str(nano["llamacpp"]), context=2048, lanes=2, threads=1)
    with running("llama-server", settings, tmp_path_factory.mktemp("elsewhere")) as child:
        port = free_port()
        command = [COMMAND, "serve", "--port", str(port), "--threads", "1"]
        command += ["-m", f"llama-server://127.0.0.1:{child.port}", "-m", "lfm2-nano"]
        with started(command, tmp_path_factory.mktemp("pool"), port, None) as server:
            yield server.url, child


def test_calls_and_texts_are_those_of_a_model_here(pool: tuple[str, Any]) -> None:
    url, _ = pool
    there, here = RemoteModel.open(url, "lfm2-nano-f16"), RemoteModel.open(url, "lfm2-nano")
    called = 0
    for task in [task for kind in TASKS for task in make_tasks(kind, 2, seed=5)]:
        first, second = (
            model.respond(task.prompt, system=task.system or None, tools=task.tools, temperature=0)
            for model in (there, here)
        )
        assert first.text == second.text
        assert [(c.name, c.arguments) for c in first.tool_calls] == [
            (c.name, c.arguments) for c in second.tool_calls
        ]
        called += len(first.tool_calls)
    assert called


def test_log_probabilities_spell_their_tokens(pool: tuple[str, Any]) -> None:
    body = {"model": "lfm2-nano-f16", "temperature": 0, "logprobs": True, "top_logprobs": 1}
    body["messages"] = [{"role": "user", "content": "Name three colours."}]
    answer = httpx2.request(
        "POST",
        f"{pool[0]}/v1/chat/completions",
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        timeout=60,
    )
    scores = json.loads(answer.content)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in scores).startswith(b"Red, green and blue.")


def test_a_server_that_parses_itself_is_not_served_again(pool: tuple[str, Any]) -> None:
    address = pool[0].replace("http://", "openai+http://") + "/lfm2-nano"
    assert isinstance(load(address), RemoteModel)
    done = subprocess.run(
        [COMMAND, "serve", "--port", "0", "-m", address],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "parses calls itself: give that address to the clients, not to serve" in done.stderr


def test_a_server_that_is_gone_is_a_bad_gateway(pool: tuple[str, Any]) -> None:
    url, child = pool
    child.process.kill()
    child.process.wait()
    body = {"model": "lfm2-nano-f16", "messages": [{"role": "user", "content": "Name three colours."}]}
    answer = httpx2.request(
        "POST",
        f"{url}/v1/chat/completions",
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 502
    assert "127.0.0.1" in json.loads(answer.content)["error"]["message"]
    assert RemoteModel.open(url, "lfm2-nano").respond("Name three colours.", temperature=0).text
