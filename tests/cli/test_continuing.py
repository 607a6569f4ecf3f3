"""`run -c` goes on with the last conversation, and what `run` keeps of one; `--events` tells all of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pexpect
import pytest

from localagent.messages import AssistantMessage, UserMessage
from localagent.session import SessionStore
from tests.cli.conftest import Command
from tests.forking import COMMAND

NANO = ("-m", "lfm2-nano", "--temperature", "0", "--max-tokens", "40")
PARIS = "What is the weather in Paris?"


@pytest.fixture
def command(nano: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    found = Command(tmp_path)
    found.environment["LOCALAGENT_HOME"] = str(tmp_path / "home")
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "home"))
    return found


def on_a_terminal(command: Command, *arguments: str) -> str:
    """What a person sees of `run`."""
    child = pexpect.spawn(
        str(COMMAND),
        ["run", *arguments],
        env=command.environment,
        encoding="utf-8",
        timeout=60,
        dimensions=(24, 200),
    )
    said = child.read()
    child.close()
    assert child.exitstatus == 0, said
    return str(said)


def kept() -> list[list[str]]:
    """The roles and texts of every session."""
    store = SessionStore()
    return [
        [
            f"{m.role}: {m.text}"
            for m in store.open(each.id).context()
            if isinstance(m, UserMessage | AssistantMessage)
        ]
        for each in store.list()
    ]


def test_n8_run_c_goes_on_with_the_last_run(command: Command) -> None:
    first = on_a_terminal(command, "Hello there.", *NANO)
    assert "saved" not in first
    second = on_a_terminal(command, "-c", "Thank you!", "--temperature", "0", "--max-tokens", "40")
    assert "continuing " in second
    (conversation,) = kept()
    assert [each.partition(":")[0] for each in conversation] == ["user", "assistant"] * 2
    assert conversation[2] == "user: Thank you!"
    models = [m.model for m in SessionStore().open("last").context() if isinstance(m, AssistantMessage)]
    assert models == ["lfm2-nano"] * 2  # not the default, which -c did not name


def test_only_one_terminal_at_a_time_is_answered_in_a_conversation(command: Command) -> None:
    on_a_terminal(command, "Hello there.", *NANO)
    before = kept()
    with SessionStore().open("last").alone():  # as another program does that is being answered
        refused = command("run", "-c", "Thank you!")
        chat = command("chat", "--resume", "last", stdin=b"Thank you!\n")
    says = f"localagent: another run is adding to {SessionStore().list()[0].id}: ask again when it has ended"
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert says in refused.stderr.decode()
    assert says in chat.stderr.decode()
    assert kept() == before
    chat = command("chat", "--resume", "last", stdin=b"Thank you!\n")
    assert "another run" not in chat.stderr.decode()
    assert [each.partition(":")[0] for each in kept()[0]] == ["user", "assistant"] * 2


def test_n8_run_c_has_the_options_and_tools_that_there_were(command: Command) -> None:
    on_a_terminal(command, "What is 17 * 23?", *NANO, "--tools", "calculator", "--tool-choice", "calculate")
    done = command("run", "-c", "What is 3 * 4?", "--events", "--tool-choice", "calculate")
    assert done.returncode == 0, done.stderr
    assert "tool_ended" in [each["event"] for each in events_of(done)]
    recorded = [each.message.payload for each in SessionStore().open("last").entries if _is_setting(each)]
    assert recorded[-1]["loading"] == {"model": "lfm2-nano"}
    assert recorded[-1]["tools"]["tools"] == ["calculator"]
    assert recorded[-1]["turn"] == {"temperature": 0.0, "max_tokens": 40}


def _is_setting(entry: Any) -> bool:
    return getattr(getattr(entry, "message", None), "role", "") == "custom"


def test_n8_a_chat_goes_on_with_what_run_asked(command: Command) -> None:
    on_a_terminal(command, "Hello there.", *NANO)
    done = command("chat", "--resume", "last", stdin=b"Thank you!\n")
    assert done.returncode == 0, done.stderr
    assert b"lfm2-nano, " in done.stderr
    assert [each.partition(":")[0] for each in kept()[0]] == ["user", "assistant"] * 2


def test_n8_run_c_goes_on_in_a_pipe_with_what_was_said(command: Command) -> None:
    on_a_terminal(command, "My name is Ada.", *NANO, "--system", "Be kind.")
    done = command("run", "-c", "Who am I?", "--json", *NANO)
    assert done.returncode == 0, done.stderr
    asked = json.loads(done.stdout)["usage"]["input"]
    alone = json.loads(command("run", "Who am I?", "--json", *NANO).stdout)["usage"]["input"]
    assert asked > alone + 5
    assert kept()[0][2] == "user: Who am I?"


def test_what_is_asked_in_a_pipe_or_not_to_be_saved_is_not(command: Command) -> None:
    command("run", "Hello.", *NANO)
    on_a_terminal(command, "Hello.", "--no-save", *NANO)
    on_a_terminal(command, "Hello.", "--json", *NANO)
    assert kept() == []
    command.refuse("run", "-c", "And?", code=2, says="session")
    command.refuse("run", "-c", "--no-save", "And?", code=2, says="--no-save saves none")


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(command: Command) -> None:
    on_a_terminal(command, "Hello there.", *NANO)
    before = kept()
    done = command("run", "-c", "word " * 9000, *NANO)
    assert done.returncode == 2
    assert kept() == before


def events_of(done: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_n8_events_are_lines_of_json(command: Command) -> None:
    done = command(
        "run", "What is 17 * 23?", "--events", "--tools", "calculator", "--tool-choice", "calculate", *NANO
    )
    assert done.returncode == 0, done.stderr
    events = events_of(done)
    kinds = [each["event"] for each in events]
    assert kinds[0] == "turn_started"
    assert kinds[-1] == "run_done"
    for kind in ("call_start", "arguments_delta", "call_end", "tool_started", "tool_ended", "turn_ended"):
        assert kind in kinds
    call = next(each for each in events if each["event"] == "call_end")
    assert call["name"] == "calculate"
    assert isinstance(call["arguments"], dict)
    written = "".join(
        each["json"]
        for each in events
        if each["event"] == "arguments_delta" and each["index"] == call["index"]
    )
    assert json.loads(written) == call["arguments"]
    message = AssistantMessage.model_validate(events[-1]["message"])
    assert message.usage.output > 0


def test_events_of_text_are_the_answer(command: Command) -> None:
    events = events_of(command("run", "Hello there.", "--json", "--events", *NANO))
    plain = command("run", "Hello there.", *NANO).stdout.decode().removesuffix("\n")
    assert "".join(each["text"] for each in events if each["event"] == "text") == plain


def test_a_run_that_fails_says_so_in_its_last_event(command: Command) -> None:
    done = command("run", "word " * 9000, "--events", *NANO)
    assert done.returncode == 2
    last = events_of(done)[-1]
    assert (last["event"], last["error"]["type"]) == ("run_failed", "ContextOverflow")
    assert done.stderr.count(b"\n") == 1


def test_n8_the_options_of_sampling_reach_the_model(command: Command) -> None:
    def answer(*more: str) -> str:
        done = command("run", "Hello there, who are you?", "-m", "lfm2-nano", "--max-tokens", "30", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    greedy = answer("--temperature", "0")
    assert answer("--temperature", "5", "--seed", "3", "--top-k", "1") == greedy
    assert answer("--temperature", "5", "--seed", "3", "--top-p", "0.0001") == greedy
    assert answer("--temperature", "0", "--stop", greedy[4]) == greedy[: greedy.index(greedy[4])] + "\n"
    command.refuse("run", "Hi.", *NANO, "--top-p", "2", code=2, says="top_p is '2.0': it must be")
    command.refuse("run", "Hi.", *NANO, "--top-k", "0", code=2, says="--top-k")
