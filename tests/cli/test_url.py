"""`run` and `chat` with --url ask a server, and print and save the same as with a model on this machine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Command
from tests.forking import COMMAND
from tests.mcp.conftest import eventually
from tests.remote.scripted import HANG, chunk, scripted, stream, whole
from tests.server.test_serve import Process, served

NANO = ("--temperature", "0", "--max-tokens", "40")
QUESTION = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def server(nano: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with served("--model", "lfm2-nano", "--lanes", "1", home=tmp_path_factory.mktemp("home")) as process:
        yield process


@pytest.fixture
def command(tmp_path: Path) -> Command:
    found = Command(tmp_path)
    found.environment["LOCALAGENT_HOME"] = str(tmp_path / "home")
    return found


def at(command: Command, url: str, *arguments: str, **environment: str) -> Any:
    return command("run", "--url", url, *arguments, **environment)


@pytest.mark.parametrize("tools", [(), ("--tools", "time,calculator")])
def test_n8_run_with_a_url_prints_what_run_prints(
    command: Command, server: Process, tools: tuple[str, ...]
) -> None:
    asked = ("What is 17 * 23?", *NANO, *tools)
    here = command("run", "-m", "lfm2-nano", *asked)
    there = at(command, server.client.url, *asked)
    assert (there.returncode, there.stdout, there.stderr) == (0, here.stdout, here.stderr)
    assert there.stdout.strip()


def test_n8_the_message_and_the_options_go_through(command: Command, server: Process, tmp_path: Path) -> None:
    schema = tmp_path / "answer.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    for more in ((), ("--stop", "a", "--stop", "o"), ("--schema", str(schema)), ("--top-p", "0.5", "--top-k", "3", "--seed", "1", "--temperature", "1")):  # fmt: skip
        asked = ("Hello there.", *NANO, "--json", "--system", "Be kind.", *more)
        here, there = (
            json.loads(done.stdout)
            for done in (command("run", "-m", "lfm2-nano", *asked), at(command, server.client.url, *asked))
        )
        for message in (here, there):
            for name in ("id", "timestamp", "timings", "raw", "usage"):
                message.pop(name)
        assert there == here


def test_a_variable_names_the_server(command: Command, server: Process) -> None:
    done = command("run", "Hello.", *NANO, "--stats", LOCALAGENT_URL=server.client.url)
    assert done.returncode == 0
    assert b"prompt tokens: " in done.stderr
    ours = command(
        "run", "Hello.", *NANO, "--url", "", "-m", "lfm2-nano", LOCALAGENT_URL="http://127.0.0.1:9"
    )
    assert ours.stdout == done.stdout


def test_n8_a_chat_with_a_url(command: Command, server: Process) -> None:
    child = pexpect.spawn(
        str(COMMAND), ["chat", "--url", server.client.url, *NANO, "--tools", "time"],
        env={**command.environment, "PROMPT_TOOLKIT_NO_CPR": "1"}, encoding="utf-8", timeout=120, dimensions=(24, 100),
    )  # fmt: skip
    child.expect("4,096 tokens of context")
    child.expect("\\?25h")  # the cursor waits
    child.sendline("Hello there.")
    child.expect("continue with: localagent chat --resume")
    child.expect("\\?25h")  # the cursor waits
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_chat_does_not_know_the_context_that_nobody_tells(command: Command) -> None:
    said = stream(chunk({"content": "Hello."}, "stop"))
    with scripted(said, models={"data": [{"id": "theirs"}, {"id": "other"}]}) as server:
        lines = b"Hi.\n/model other\nAnd?\n/stats\n"
        done = command("chat", "--url", server.url, stdin=lines)
        again = command("run", "-c", "Once more.")
    assert done.returncode == 0, done.stderr
    assert b"theirs. /help tells more." in done.stderr
    assert b"tokens of context" not in done.stderr
    assert done.stdout == b"Hello.\nHello.\n"
    assert again.stdout == b"Hello.\n", again.stderr  # the session knows the server
    assert [each["model"] for each in server.chats] == ["theirs", "other", "other"]
    assert [len(each["messages"]) for each in server.chats] == [1, 3, 5]


def test_ctrl_c_while_a_server_counts_the_tokens_of_a_file(command: Command, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("Remember the milk.")
    with scripted(stream(chunk({"content": "Hello."}, "stop")), counts=[HANG]) as server:
        child = pexpect.spawn(
            str(COMMAND), ["chat", "--url", server.url, "--no-save"],
            env={**command.environment, "PROMPT_TOOLKIT_NO_CPR": "1"}, encoding="utf-8", timeout=120, dimensions=(24, 100),
        )  # fmt: skip
        child.expect("\\?25h")  # the cursor waits
        child.sendline(f"What is in @{notes}")
        eventually(lambda: any("count_tokens" in each.line for each in server.asked))
        child.sendintr()
        child.expect_exact("(stopped: nothing was sent)")
        assert server.left.wait(60)
        child.expect("What is in @")  # it waits to be sent again
        child.sendintr()
        child.sendline("/exit")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    assert not server.chats


def test_what_was_said_to_a_server_goes_on_with_a_model_of_this_machine(
    command: Command, nano: dict[str, Path]
) -> None:
    said = stream(chunk({"content": "Hello."}, "stop"))
    with scripted(said) as server:
        assert command("chat", "--url", server.url, stdin=b"Hi.\n").returncode == 0
    assert b"no server answers" in command("run", "-c", "And?").stderr
    done = command("run", "-c", "And?", "--url", "none", "-m", "lfm2-nano", *NANO, LOCALAGENT_URL=server.url)
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
    assert command("run", "-c", "So?", *NANO).returncode == 0, "it stays here"


def test_a_role_cannot_say_where_a_conversation_goes(command: Command, tmp_path: Path) -> None:
    role = tmp_path / "role.md"
    role.write_text('+++\nurl = "http://elsewhere"\n+++\nBe kind.\n')
    command.refuse("run", "Hi.", "--role", str(role), code=2, says="no option url")


def test_what_goes_wrong_is_one_line(command: Command) -> None:
    run = ("run", "Hi.", "--url")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # which keeps the port from others
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        says = f"no server answers at {url} (Connection refused): start it with"
        command.refuse(*run, url, code=1, says=says)
    command.refuse(*run, "nonsense", code=2, says="is no URL")
    command.refuse(*run, url, "--threads", "2", code=2, says="--threads is for a model on this machine")
    command.refuse(
        *run, url, "--backend", "llamacpp", code=2, says="--backend is for a model on this machine"
    )
    with scripted(whole({"error": {"message": "the \x1b[31mengine\x1b[0m died"}}, 500)) as server:
        done = command(*run, server.url)
        assert done.returncode == 1
        assert b"failed (500): the " in done.stderr
        assert b"\x1b" not in done.stderr
        assert done.stderr.count(b"\n") == 1
    with scripted(stream(chunk({"content": "Half an ans"}))) as server:
        done = command(*run, server.url)
        assert (done.returncode, done.stdout) == (1, b"Half an ans\n")
        assert b"broke the answer off" in done.stderr


def test_ctrl_c_leaves_the_server(command: Command) -> None:
    with scripted([*stream(chunk({"content": "Some"})), HANG]) as server:
        child = pexpect.spawn(
            str(COMMAND),
            ["run", "Hi.", "--url", server.url],
            env=command.environment,
            encoding="utf-8",
            timeout=120,
        )
        child.expect("Some")
        child.sendintr()
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 130
        assert server.left.wait(60)
