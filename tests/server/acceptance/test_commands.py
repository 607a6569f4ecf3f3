"""Command lines as people install them, against a scripted model on loopback: Codex, OpenCode, qwen-code, aider."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.replaying import block
from tests.server.acceptance import installed
from tests.server.acceptance.scenes import NOWHERE, heard, playing, spoken
from tests.server.serving import Running

ORDER = "Say hello from the shell."
SAID = "It says hello."
WITHIN = 150
"""Seconds for a whole run, on a machine that has other things to do."""


def run(program: Path, arguments: Sequence[str], work: Path, **settings: str) -> list[Any]:
    """Run a command line to its end; the events that it prints, one object a line."""
    home = work / "home"
    (home / "work").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **NOWHERE, **settings}
    child = subprocess.Popen(
        [program, *arguments],
        cwd=home / "work",
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=WITHIN)
    finally:
        # What it started goes with it; the group is gone already if there is nobody left.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert child.returncode == 0, f"{out}\n{err}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def told(server: Running) -> list[Mapping[str, Any]]:
    """What the model was told last: the order, its call, and what came of it."""
    return list(heard(server)[-1])


def check_told(server: Running) -> None:
    roles = [message["role"] for message in told(server)]
    assert roles[-3:] == ["user", "assistant", "tool"]
    assert ORDER in "".join(told(server)[-3]["content"])
    assert "hello-from-shell" in told(server)[-1]["content"]


def codex_home(server: Running, folder: Path, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f"""\
model = "model-1"
model_provider = "local"
check_for_update_on_startup = false
{more}
[model_providers.local]
name = "local"
base_url = "{server.url}/v1"
wire_api = "responses"
[analytics]
enabled = false
[otel]
exporter = "none"
"""
    )
    return folder


CODEX = ("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access")


@installed.client("@openai/codex")
def test_codex_runs_a_command_and_answers(client: str, tmp_path: Path) -> None:
    codex = installed.command("codex")
    shell = block('exec_command(cmd="echo hello-from-shell")')
    with playing(f"<think>A shell, then.</think>Let me look.{shell}", SAID) as server:
        home = codex_home(server, tmp_path / "codex")
        events = run(codex, [*CODEX, ORDER], tmp_path, CODEX_HOME=str(home))
        check_told(server)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (ran,) = (item for item in items if item["type"] == "command_execution")
    assert (ran["aggregated_output"], ran["exit_code"]) == ("hello-from-shell\n", 0)
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["Let me look.", SAID]
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["output_tokens"] > 0


@installed.client("opencode-ai")
def test_opencode_runs_a_command_and_answers(client: str, tmp_path: Path) -> None:
    opencode = installed.command("opencode")
    shell = block('bash(command="echo hello-from-shell", description="Says hello")')
    with playing(f"Let me look.{shell}", SAID) as server:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": f"{server.url}/v1", "apiKey": "any"},
            "models": {"model-1": {"name": "local"}},
        }
        config = {
            "model": "local/model-1",
            "small_model": "local/model-1",
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "provider": {"local": provider},
        }
        events = run(
            opencode,
            # With a title given, it asks for none: that request would take the first of the answers.
            ["run", "--title", "hello", "--format", "json", ORDER],
            tmp_path,
            OPENCODE_CONFIG_CONTENT=json.dumps(config),
            OPENCODE_DISABLE_MODELS_FETCH="1",
            OPENCODE_DISABLE_AUTOUPDATE="1",
            OPENCODE_DISABLE_LSP_DOWNLOAD="1",
        )
        check_told(server)
    parts = [event["part"] for event in events]
    (ran,) = (part for part in parts if part["type"] == "tool")
    assert ran["state"]["output"] == "hello-from-shell\n"
    assert [part["text"] for part in parts if part["type"] == "text"] == ["Let me look.", SAID]
    assert parts[-1]["reason"] == "stop"


@installed.client("@qwen-code/qwen-code")
def test_qwen_code_runs_a_command_and_answers(client: str, tmp_path: Path) -> None:
    script = installed.folder() / "node_modules" / "@qwen-code" / "qwen-code" / "cli.js"
    shell = block('run_shell_command(command="echo hello-from-shell", is_background=False)')
    with playing(f"<think>A shell, then.</think>Let me look.{shell}", SAID) as server:
        events = run(
            Path(installed.node()),
            [str(script), "--bare", "--approval-mode", "yolo", "--output-format", "stream-json", ORDER],
            tmp_path,
            **dict.fromkeys(NOWHERE, ""),  # it sends all to a proxy, what is on this machine, too
            QWEN_TELEMETRY_ENABLED="false",
            OPENAI_BASE_URL=f"{server.url}/v1",
            OPENAI_API_KEY="any",
            OPENAI_MODEL="model-1",
        )
        check_told(server)
    contents = [part for event in events if "message" in event for part in event["message"]["content"]]
    texts = [part.get("thinking") or part.get("text") or part.get("name") for part in contents]
    assert texts == ["A shell, then.", "Let me look.", "run_shell_command", None, SAID]


@installed.client("aider-chat")
def test_aider_writes_a_file(client: str, tmp_path: Path) -> None:
    """It calls no tools: what is to be in a file is part of the text."""
    written = 'print("hello from aider")'
    options = (
        *(
            "--message",
            ORDER,
            "--model",
            "ollama_chat/model-1",
            "--edit-format",
            "whole",
            "--map-tokens",
            "0",
        ),
        *("--yes-always", "--no-git", "--no-pretty", "--no-show-model-warnings"),
        *("--no-analytics", "--no-check-update", "--no-show-release-notes"),
    )
    with playing(f"hello.py\n```\n{written}\n```\n") as server:
        bases = {
            "OPENAI_API_BASE": f"{server.url}/v1",
            "OLLAMA_API_BASE": server.url,
            "OPENAI_API_KEY": "any",
        }
        run(installed.program("aider", "aider"), [*options, "hello.py"], tmp_path, **bases)
        assert ORDER in spoken(heard(server)[-1])[-1]
    assert (tmp_path / "home" / "work" / "hello.py").read_text() == f"{written}\n"


FETCH = (
    "fetch(process.argv[1], {method: 'POST', body: process.argv[2]}).then(r => r.text()).then(console.log)"
)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("curl", ["--silent", "URL", "-d", "BODY"]), ("node", ["-e", FETCH, "URL", "BODY"])],
)
def test_what_names_no_json_reaches_ollamas_api(program: str, arguments: list[str], tmp_path: Path) -> None:
    """As in the examples of Ollama's documentation: curl says that it sends a form, and Node text."""
    if (found := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed")
    body = json.dumps({"model": "model-1", "prompt": ORDER, "stream": False})
    with playing(SAID) as server:
        given = {"URL": f"{server.url}/api/generate", "BODY": body}
        (said,) = run(Path(found), [given.get(each, each) for each in arguments], tmp_path)
    assert said.get("response") == SAID, said
