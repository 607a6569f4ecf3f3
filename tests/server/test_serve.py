"""`localagent serve` as people run it: in a process of its own, which is asked, signalled, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Running

CHAT = "/v1/chat/completions"
QUESTION = "What colour is the sky over a small town in the morning, when it has rained for a week? " * 3


class Process:
    """A server in a child process, and what it has written."""

    def __init__(
        self,
        arguments: Sequence[str],
        home: Path,
        words: str = "listens on",
        python: Sequence[str] = ("-m", "localagent"),
        **settings: str,
    ) -> None:
        """`words`: those that it is waited for to say. `python`: what Python is to run."""
        self.child = subprocess.Popen(
            [sys.executable, *python, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LOCALAGENT_HOME": str(home), **settings},
        )
        self.said = ""
        self.client = Running(0, None)  # type: ignore[arg-type]
        self.read_until(words)

    def read_until(self, words: str) -> None:
        """Read what it says up to a line with these words, or to the end."""
        while line := self._line():
            self.said += line
            if found := re.search(r"listens on http://127\.0\.0\.1:(\d+)", line):
                self.client.port = int(found[1])
            if words in line:
                break

    def _line(self) -> str:
        assert self.child.stderr is not None
        line = b""
        # Byte by byte: `communicate` would lose what a buffer holds of the lines after this one.
        while not line.endswith(b"\n") and (byte := os.read(self.child.stderr.fileno(), 1)):
            line += byte
        return line.decode()

    def ask(self, text: str = QUESTION, **more: Any) -> Any:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **more}
        answer = self.client.ask(body, path=CHAT)
        assert answer.status == 200, answer.data
        return answer.json

    def cached(self) -> int:
        return int(self.ask()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it, unless the number is 0, and wait for it."""
        if number and self.child.poll() is None:
            self.child.send_signal(number)
        try:
            out, rest = self.child.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            raise
        assert out == ""
        self.said += rest
        return self.child.returncode


@contextmanager
def served(*arguments: str, home: Path, **settings: str) -> Iterator[Process]:
    process = Process(arguments, home, **settings)
    try:
        assert process.client.port, process.said + str(process.end())
        yield process
    finally:
        for connection in process.client.connections:
            connection.close()
        if process.child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.end(signal.SIGKILL)


def refused(*arguments: str, **settings: str) -> tuple[int, str]:
    """The exit code and what a server says that does not start."""
    command = [sys.executable, "-m", "localagent", "serve", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **settings}, check=False
    )
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def weights(nano: dict[str, Path]) -> str:
    return str(nano["llamacpp"])


@pytest.mark.parametrize(("dialect", "more"), [("plain", ["thinking"]), ("auto", ["tools", "thinking"])])
def test_a_dialect_holds_for_every_model(weights: str, tmp_path: Path, dialect: str, more: list[str]) -> None:
    models = ("--model", weights, "--model", "lfm2-nano")
    with served(*models, "--dialect", dialect, "--lanes", "1", home=tmp_path) as server:
        for name in (Path(weights).stem, "lfm2-nano"):  # of these, the second one is not loaded
            shown = server.client.ask({"model": name}, path="/api/show").json
            assert shown["capabilities"] == ["completion", *more]
            assert shown["details"]["family"] == "lfm2"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_how_to_connect_and_ends_when_asked(weights: str, tmp_path: Path, number: int) -> None:
    with served("--model", weights, "--lanes", "2", home=tmp_path) as server:
        name = Path(weights).stem
        models = server.client.ask(path="/v1/models", method="GET").json
        assert [each["id"] for each in models["data"]] == [name]
        assert server.client.ask(path="/", method="GET").status == 200
        assert server.client.ask(path="/metrics", method="GET").status == 404
        server.ask("A secret question.")
        assert server.end(number) == 0
    for words in (f"{name} (2 answers at once)", "/v1\n", "ANTHROPIC_BASE_URL=", "OLLAMA_HOST=", "stopped"):
        assert words in server.said
    (line,) = (each for each in server.said.splitlines() if "POST /v1/chat/completions 200 ok" in each)
    assert re.search(rf"ok {name} \d\d \(0 cached\) \+ 4 tokens first \d\.\d{{3}} s \d\.\d{{3}} s$", line), (
        line
    )
    assert "secret" not in server.said


def test_running_streams_end_with_an_error_when_it_is_asked_to_end(weights: str, tmp_path: Path) -> None:
    with served("--model", weights, home=tmp_path) as server:
        body = {
            "messages": [{"role": "user", "content": "Go on."}],
            "stream": True,
            "temperature": 2,
            "seed": 3,
        }
        streams = []
        for _ in range(3):
            connection = server.client.connect()
            connection.sendall(server.client.request(body, path=CHAT))
            assert connection.recv(100)
            streams.append(connection)
        began = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        data = []
        for connection in streams:
            connection.settimeout(5)
            received = b""
            with suppress(ConnectionError):
                while more := connection.recv(1 << 16):
                    received += more
            data.append(received)
        assert server.end() == 0
        assert time.monotonic() - began < 5
    for received in data:
        assert b"the server is stopping" in received or b"[DONE]" in received


def test_evaluated_prompts_survive_the_end_and_a_kill(weights: str, tmp_path: Path) -> None:
    with served("--model", weights, home=tmp_path) as server:
        assert server.cached() == 0
        answer = server.ask()["choices"][0]["message"]["content"]
        assert server.end() == 0
    with served("--model", weights, home=tmp_path) as server:
        assert server.cached() > 30
        server.ask("Another one that is never written.")
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with served("--model", weights, home=tmp_path) as server:
        assert server.cached() > 30
        assert server.ask()["choices"][0]["message"]["content"] == answer
        assert server.end() == 0
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert file.stat().st_mode & 0o077 == 0, file
    with served("--model", weights, "--no-snapshots", home=tmp_path) as server:
        assert server.cached() == 0


def test_a_new_key_finds_no_prompts_of_the_old_one(weights: str, tmp_path: Path) -> None:
    """How fast they are read would tell the new owner what the old one has asked."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1}
    cached = []
    for key, more in (("old", ()), ("old", ()), ("new", ()), ("new", ("--share-prefixes",)), ("old", ())):
        with served("--model", weights, *more, home=tmp_path, LOCALAGENT_API_KEYS=key) as server:
            answer = server.client.ask(body, path=CHAT, x_api_key=key)
            cached.append(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 30)
            assert server.end() == 0
    assert cached == [False, True, False, False, True]


def test_what_is_said_is_logged_only_if_asked_for(weights: str, tmp_path: Path) -> None:
    with served("--model", weights, "--log-prompts", home=tmp_path) as server:
        server.ask("A secret question.")
        server.end()
    assert "what is asked and answered is logged here" in server.said
    assert "A secret question." in server.said


def test_metrics(weights: str, tmp_path: Path) -> None:
    with served("--model", weights, "--metrics", home=tmp_path) as server:
        for _ in range(2):
            server.ask()
        server.client.ask({"messages": 3}, path=CHAT)
        text = server.client.ask(path="/metrics", method="GET").body.decode()
        server.end()
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = f'model="{Path(weights).stem}"'

    def value(name: str, labels: str = label) -> float:
        return float(numbers[f"localagent_{name}{{{labels}}}"])

    assert value("generated_tokens_total") == 8
    assert value("prompt_tokens_total") > value("cached_tokens_total") > 30
    assert value("cache_hits_total") == 1
    assert value("requests_total", f'{label},outcome="ok"') == 2
    assert value("requests_total", 'model="",outcome="refused"') == 1
    assert value("time_to_first_token_seconds_count") == 2
    assert value("longest_gap_seconds_count") == 2
    assert value("decode_tokens_per_second_count") == 2
    assert value("requests_running") == value("requests_waiting") == 0
    assert value("model_ready") == 1
    assert value("cache_bytes") > 0
    for name in ("malformed_calls", "repaired_calls", "relaxed_parameters"):
        assert f"# TYPE localagent_{name}_total counter" in text


def test_keys_from_a_file_and_from_the_environment(weights: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\nfirst\n")
    keys.chmod(0o644)
    arguments = ("--model", weights, "--api-key-file", str(keys))
    with served(*arguments, home=tmp_path, LOCALAGENT_API_KEYS="second, third") as server:
        for key, status in (("first", 200), ("second", 200), ("third", 200), ("# mine", 401), ("", 401)):
            assert server.client.ask(path="/v1/models", method="GET", x_api_key=key).status == status
        server.end()
    assert "other users of this machine can read" in server.said


# -- what does not start -----------------------------------------------------------------------------------


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused("--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 is taken" in said


def test_other_machines_without_a_key(tmp_path: Path) -> None:
    code, said = refused("--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "give a key" in said
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    empty.chmod(0o600)
    assert "holds no key" in refused("--host", "0.0.0.0", "--api-key-file", str(empty))[1]
    assert "No such file" in refused("--api-key-file", str(tmp_path / "nothing"))[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "no-such-model"), "no model no-such-model: "),
        (("--model", "lfm2-nano", "--alias", "x"), "'claude-*=NAME'"),
        (("--model", "lfm2-nano", "--alias", "x=y"), "'y' is not served"),
        (("--model", "lfm2-nano", "--model", "lfm2-nano"), "given twice"),
        (("--model", "lfm2-nano", "--origin", "null"), "origin is 'null'"),
        (("--model", "lfm2-nano", "--allow-host", "x:1"), "allowed host is 'x:1'"),
        (("--model", "lfm2-nano", "--dialect", "no-such"), "no dialect 'no-such'"),
        (("--model", "lfm2-nano", "--host", "no.such.host.invalid"), "give a key"),
    ],
)
@pytest.mark.engine
def test_options_that_make_no_sense(arguments: tuple[str, ...], said: str) -> None:
    code, told = refused("--port", "0", *arguments)
    assert code == 2
    assert said in told


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['uvicorn'] = None")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, said = refused(PYTHONPATH=path)
    assert code == 1
    assert "the server is not installed: " in said
    assert "pip install" in said
