"""`run` and `chat` with the address of a server that gives tokens: the parser is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localagent.nano import MLX
from localagent.remote.tokens.vocabulary import read_model_files
from tests.cli.conftest import Command
from tests.remote.scripted import DONE, Scripted, chunk, event, head, scripted, stream, whole

LISTING = {"data": [{"id": "nano", "max_model_len": 2048, "root": str(MLX)}]}
REFUSED = whole({"error": {"message": "token_ids is missing"}}, 400)
CALL = "<|tool_call_start|>[current_time()]<|tool_call_end|><|im_end|>"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    found = Command(tmp_path)
    found.environment["LOCALAGENT_HOME"] = str(tmp_path / "home")
    return found


def answer(text: str) -> list[bytes]:
    ids = list(read_model_files(MLX).vocabulary.tokenize(text, special=True))
    return [head(), event({"choices": [{"token_ids": ids, "finish_reason": "stop"}]}), DONE]


def address(server: Scripted) -> str:
    return f"vllm://{server.url.removeprefix('http://')}"


def test_run_at_an_address(command: Command) -> None:
    with scripted(
        models=LISTING, routes={"/inference/v1/generate": [REFUSED, answer("Hello.<|im_end|>")]}
    ) as server:
        done = command("run", "Hi.", "-m", address(server), "--json")
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout)
    assert (message["model"], message["raw"]) == ("nano", "Hello.<|im_end|>")


def test_calls_are_read_here_and_run(command: Command) -> None:
    answers = [REFUSED, answer(CALL), answer("It is late.<|im_end|>")]
    with scripted(models=LISTING, routes={"/inference/v1/generate": answers}) as server:
        done = command("run", "What time is it?", "-m", address(server), "--tools", "time")
    assert (done.returncode, done.stdout) == (0, b"It is late.\n"), done.stderr
    sent = [each.body["token_ids"] for each in server.asked if "generate" in each.line and each.body]
    assert len(sent[-1]) > len(sent[-2]), "with the call and its result"


def test_an_address_may_be_the_default_and_is_kept_by_a_chat(command: Command) -> None:
    routes = {
        "/inference/v1/generate": [
            REFUSED,
            answer("One.<|im_end|>"),
            REFUSED,
            answer("Two.<|im_end|>"),
        ]
    }
    with scripted(models=LISTING, routes=routes) as server:
        assert command("models", "default", address(server)).stdout.decode().strip() == address(server)
        assert command("chat", stdin=b"Hi.\n").stdout == b"One.\n"
        done = command("run", "-c", "And?")
        assert done.stdout == b"Two.\n", done.stderr


def test_where_the_tokenizer_is_may_be_said_and_is_kept(command: Command, tmp_path: Path) -> None:
    listing = {"data": [{"id": "nano", "max_model_len": 2048, "root": "/nowhere"}]}
    (tmp_path / "mine").symlink_to(MLX)
    routes = {"/inference/v1/generate": [REFUSED, *[REFUSED, answer("One.<|im_end|>")] * 2]}
    with scripted(models=listing, routes=routes) as server:
        command.refuse("run", "Hi.", "-m", address(server), code=2, says="no tokenizer at")
        asked = f"-m {address(server)} --tokenizer mine"
        done = command.shell(f"cd {tmp_path} && {{}} chat {asked} <<< Hi.")
        assert done.stdout == b"One.\n", done.stderr
        done = command("run", "-c", "And?")  # from another folder
        assert done.stdout == b"One.\n", done.stderr


def test_how_it_writes_calls_may_be_said(command: Command) -> None:
    text = "<|tool_call_start|>[f()]<|tool_call_end|><|im_end|>"
    routes = {"/inference/v1/generate": [REFUSED, answer(text)]}
    with scripted(models=LISTING, routes=routes) as server:
        done = command("run", "Hi.", "-m", address(server), "--dialect", "plain", "--json")
    [part] = json.loads(done.stdout)["content"]
    assert part["text"].startswith("<|tool_call_start|>")
    command.refuse("run", "Hi.", "-m", "lfm2-nano", "--dialect", "no-such", code=2, says="no-such")


def test_a_server_that_parses_calls_itself_is_one_of_another_level(command: Command) -> None:
    answers = stream(chunk({"content": "Hello."}), chunk({}, "stop"), DONE)
    with scripted(answers, models={"data": [{"id": "m"}]}) as server:
        named = f"openai://{server.url.removeprefix('http://')}/m"
        done = command("run", "Hi.", "-m", named)
        assert done.stdout == b"Hello.\n"
        assert b"(m: its server parses the calls, without what this parser promises)" in done.stderr
        wrong = "means nothing to"
        command.refuse("run", "Hi.", "-m", named, "--tokenizer", str(MLX), code=2, says=wrong)
        command.refuse("run", "Hi.", "--url", server.url, "--dialect", "lfm2", code=2, says=wrong)


def test_what_is_wrong_with_an_address_is_one_line(command: Command) -> None:
    command.refuse(
        "run", "Hi.", "-m", "vllm://127.0.0.1:1", code=1, says="no server answers at http://127.0.0.1:1"
    )
    command.refuse("run", "Hi.", "-m", "vllm://", code=2, says="is none of a model on a server")
    command.refuse(
        "run",
        "Hi.",
        "-m",
        "vllm://127.0.0.1:1",
        "--threads",
        "2",
        code=2,
        says="threads is an option of models on",
    )


def test_what_takes_weights_takes_no_address(command: Command) -> None:
    for words in (("serve", "--ray", "-m"), ("bench", "model")):
        says = "vllm://127.0.0.1:1/m"
        command.refuse(*words, "vllm://127.0.0.1:1/m", code=2, says=says)
    # Not the default port, which another server may have.
    serve = ("serve", "--port", "0", "-m")
    command.refuse(*serve, "vllm://127.0.0.1:1/m", code=1, says="no server answers at http://127.0.0.1:1")
