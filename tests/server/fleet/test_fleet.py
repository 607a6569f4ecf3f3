"""Two replicas on Ray Serve: conversations stay, clients spread, one may die, and answers are as of one process.

By hand with HYPOTHESIS_PROFILE=long: more requests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx2
import psutil
import pytest
from ruamel.yaml import YAML

from localagent.errors import LocalAgentError
from localagent.messages import AssistantMessage, Message, UserMessage
from localagent.model import load
from localagent.nano.tasks import TASKS, make_tasks
from localagent.remote import RemoteModel
from localagent.turn import BrokenOff, Done
from parsers import Text
from tests.conftest import LONG
from tests.server.fleet.running import Fleet, free_port, started

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.skipif(sys.platform == "win32", reason="signals")]
REQUESTS = 200 if LONG else 40
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    return {**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def fleet(nano: dict[str, Path], gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    port = free_port()
    command = [BIN / "localagent", "serve", "--ray", "--replicas", "2", "--models-per-replica", "2"]
    command += [
        "--port",
        str(port),
        "--lanes",
        "4",
        "--threads",
        "1",
        "-m",
        "lfm2-nano",
        "-m",
        "smollm2-135m",
    ]
    with started(command, tmp_path_factory.mktemp("fleet"), port, environment()) as running:
        running.until(lambda: len(running.loaded("lfm2-nano")) == 2, "two replicas")
        yield running


def busy(pid: int) -> bool:
    """Whether a process computes. On a machine with much to do it may have to wait for its turn."""
    process = psutil.Process(pid)
    for _ in range(10):
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        if sum(process.cpu_times()[:2]) - before > 0.1:
            return True
    return False


def nano_on(fleet: Fleet) -> RemoteModel:
    return RemoteModel.open(fleet.url, "lfm2-nano")


def test_a_conversation_of_ten_turns_stays_with_its_replica(fleet: Fleet) -> None:
    model, since = nano_on(fleet), len(fleet.turns())
    history: list[Message] = []
    reused, before = [], 0
    for number in range(10):
        history.append(UserMessage.text(f"What is {number} plus {number + 3}?"))
        answer = model.respond(history, temperature=0, max_tokens=40)
        reused.append(answer.usage.cache_read)
        # All of the turn before but its last token is reused: what is said anew is evaluated, and no more.
        assert answer.usage.cache_read >= before - 1
        before = answer.usage.input
        history.append(answer)
    assert reused == sorted(reused)
    assert reused[-1] > reused[1] > 0
    assert len(fleet.counted(10, since)) == 1


def test_eight_clients_are_spread_over_both_and_stay(fleet: Fleet) -> None:
    since = len(fleet.turns())
    begin = threading.Barrier(8)

    def client(number: int) -> list[int]:
        model, history, cached = nano_on(fleet), [], []
        begin.wait()
        for turn in range(4):
            history.append(
                UserMessage.text(f"Client {number} asks: name {turn + 2} colours. {'Please. ' * 60}")
            )
            answer = model.respond(history, temperature=0, max_tokens=60)
            cached.append(answer.usage.cache_read)
            history.append(answer)
        return cached

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(client, range(8)))
    counts = fleet.counted(32, since)
    assert len(counts) == 2
    assert min(counts.values()) >= 8, "two of the clients, at least"
    # One may have gone to the other replica, where there was much more to do at its own.
    stayed = sum(now > last for cached in found for last, now in pairwise(cached))
    assert stayed >= 20, found


def test_answers_are_those_of_one_process(fleet: Fleet) -> None:
    each = -(-REQUESTS // len(TASKS))
    tasks = [task for kind in TASKS for task in make_tasks(kind, each, seed=33)][:REQUESTS]
    there = nano_on(fleet)

    def ask(task: object) -> AssistantMessage:
        return there.respond(
            task.prompt, system=task.system or None, tools=task.tools, max_tokens=500, temperature=0
        )

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, tasks))
    called = 0
    with load("lfm2-nano", threads=1) as here:
        for task, answer in zip(tasks, answers, strict=True):
            alone = here.respond(
                task.prompt, system=task.system or None, tools=task.tools, max_tokens=500, temperature=0
            )
            assert answer.text == alone.text
            assert [(c.name, c.arguments) for c in answer.tool_calls] == [
                (c.name, c.arguments) for c in alone.tool_calls
            ]
            assert answer.stop_reason == alone.stop_reason
            assert (answer.usage.input, answer.usage.output) == (alone.usage.input, alone.usage.output)
            called += bool(alone.tool_calls)
    assert called > REQUESTS / 4


def test_a_client_that_leaves_ends_the_generation(fleet: Fleet) -> None:
    model, since = RemoteModel.open(fleet.url, "smollm2-135m"), len(fleet.turns())
    for number in range(6):  # more than the lanes of one replica
        events = model.stream(f"Write a long story about {number} ships.", temperature=0, max_tokens=5000)
        next(event for event in events if isinstance(event, Text))
        events.close()
    pids = fleet.loaded("lfm2-nano")
    fleet.until(lambda: not any(map(busy, pids)), "rest", patience=60)
    assert not fleet.turns(since), "what nobody reads is not written to its end"


def test_the_other_endpoints_are_those_of_one_process(fleet: Fleet) -> None:
    def post(path: str, **body: object) -> tuple[int, dict]:
        told = json.dumps({"model": "lfm2-nano", **body}).encode()
        headers = {"content-type": "application/json"}
        answer = httpx2.request("POST", f"{fleet.url}{path}", content=told, headers=headers, timeout=300)
        return answer.status_code, json.loads(answer.content)

    question = [{"role": "user", "content": "Name three colours."}]
    with load("lfm2-nano", threads=1) as here:
        count = here.count_tokens("Name three colours.")
    assert post("/v1/messages/count_tokens", messages=question) == (200, {"input_tokens": count})
    _, told = post("/v1/chat/completions", messages=question, logprobs=True, top_logprobs=2, temperature=0)
    scores = told["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in scores).startswith(b"Red, green and blue.")
    assert all(top["bytes"] for each in scores for top in each["top_logprobs"][:1])
    text = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
    _, told = post("/v1/completions", prompt=text, temperature=0)
    assert told["choices"][0]["text"] == "Red, green and blue."
    status, told = post("/v1/models/unload")
    assert (status, told["error"]["message"].partition(":")[0]) == (400, "lfm2-nano runs in replicas")
    status, told = post("/v1/chat/completions", messages=[{"role": "user", "content": "word " * 9000}])
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")


def test_a_replica_that_is_killed_loses_its_streams_alone_and_comes_back(fleet: Fleet) -> None:
    """smollm2-135m, since it takes some time to write a thousand tokens."""
    model = RemoteModel.open(fleet.url, "smollm2-135m")
    with ThreadPoolExecutor(8) as pool:  # more than one replica has lanes for: both load it
        list(pool.map(lambda number: model.respond(f"{number} ships.", max_tokens=60), range(8)))
    fleet.until(lambda: len(fleet.loaded(model.name)) == 2, "second replica with the model")
    ends: dict[int, object] = {}
    writing = [threading.Event() for _ in range(8)]

    def stream(number: int) -> None:
        text = ""
        try:
            asked = f"Write a long story about {number} ships."
            for event in model.stream(asked, temperature=0, max_tokens=600):
                text += event.text if isinstance(event, Text) else ""
                if len(text) > 40:
                    writing[number].set()
                if isinstance(event, Done | BrokenOff):
                    ends[number] = event
        except LocalAgentError as error:
            assert isinstance(ends[number], BrokenOff), f"{number} ended without its text: {error}"
            assert ends[number].message.text == text
            ends[number] = error

    before = fleet.loaded("lfm2-nano")[-2:]
    threads = [threading.Thread(target=stream, args=(number,)) for number in range(8)]
    for thread in threads:  # as many as both have lanes for, so that none has ended when the last one writes
        thread.start()
    assert all(event.wait(180) for event in writing)
    # On a busy machine one of the two may be late to take its share.
    os.kill(next(filter(busy, before)), signal.SIGKILL)
    killed = time.monotonic()
    other = nano_on(fleet).respond("Name three colours.", temperature=0)
    assert other.text == "Red, green and blue."
    fleet.until(lambda: fleet.loaded("lfm2-nano")[-1] not in before, "new replica")
    print(f"a new replica {time.monotonic() - killed:.1f} s after the kill")
    for thread in threads:
        thread.join(180)
    assert len(ends) == len(threads)
    lost = [end for end in ends.values() if isinstance(end, LocalAgentError)]
    whole = [end for end in ends.values() if isinstance(end, Done)]
    assert len(lost) + len(whole) == len(threads)
    assert lost, "a stream ran there"
    assert whole, "a stream ran on the other one"
    assert all("has ended" in str(error) for error in lost)
    new = fleet.loaded("lfm2-nano")[-1]
    model = nano_on(fleet)
    for number in range(200):  # new conversations, until one is given to it
        model.respond(f"Say {number}.", max_tokens=1)
        if new in fleet.turns():
            return
        time.sleep(0.1)
    raise AssertionError("the new replica is asked nothing")


def test_answers_that_are_stopped_say_so(fleet: Fleet) -> None:
    """The last one for this fleet."""
    model, text = RemoteModel.open(fleet.url, "smollm2-135m"), ""
    with pytest.raises(LocalAgentError, match="the server is stopping"):
        for event in model.stream("Write a long story about ships.", temperature=0, max_tokens=3000):
            if isinstance(event, Text):
                if not text:
                    fleet.process.send_signal(signal.SIGINT)
                text += event.text
    assert text
    assert fleet.process.wait(60) == 0


def test_replicas_that_cannot_start_are_one_line(nano: dict[str, Path]) -> None:
    command = [BIN / "localagent", "serve", "--ray", "--port", str(free_port()), "-m", "lfm2-nano"]
    command += ["--context", "2000000000"]
    done = subprocess.run(
        [*map(str, command)], check=False, capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if "replicas could not be started" in line]
    assert len(said) == 1
    assert "2,000,000,000" in said[0], "what the model says of it, and not what Ray does"


def test_replicas_come_with_the_load_and_go_without(nano: dict[str, Path], tmp_path: Path) -> None:
    """As `serve deploy` would have it: from the file that the command line prints."""
    port = free_port()
    command = [BIN / "localagent", "serve", "--ray", "--replicas", "1:2", "--lanes", "1", "--threads", "1"]
    command += ["--port", str(port), "-m", "lfm2-nano", "--print-config"]
    printed = subprocess.run(
        [*map(str, command)], check=True, capture_output=True, text=True, env=environment()
    )
    yaml = YAML()
    config = yaml.load(printed.stdout)
    config["applications"][0]["args"] |= {"scale_up_after": 2.0, "scale_down_after": 3.0}
    with (tmp_path / "fleet.yaml").open("w") as file:
        yaml.dump(config, file)
    here = {**environment(), "RAY_ADDRESS": "local"}  # and no cluster that somebody has left
    with started([BIN / "serve", "run", "fleet.yaml"], tmp_path, port, here) as fleet:
        fleet.until(lambda: fleet.loaded("lfm2-nano"), "replica")
        model, stop = nano_on(fleet), threading.Event()

        def client(number: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                model.respond(f"Client {number}, {turn}: tell me a story.", max_tokens=300)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        try:
            fleet.until(lambda: len(set(fleet.loaded("lfm2-nano"))) == 2, "second replica")
            fleet.until(lambda: len(set(fleet.turns()[-40:])) == 2, "answers by both")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        pids = set(fleet.loaded("lfm2-nano"))
        fleet.until(lambda: sum(map(psutil.pid_exists, pids)) == 1, "end of one of them")
        assert nano_on(fleet).respond("Name three colours.", temperature=0).text == "Red, green and blue."
