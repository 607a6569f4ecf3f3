"""What each client is told, as a new file says it, and where its file is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from localagent.connect import clients
from localagent.connect.clients import CLIENTS, ServedModel, ValueToSet, find_client
from localagent.connect.connection import Connection
from localagent.errors import UsageError

NANO = ServedModel("http://127.0.0.1:8080", "nano", 4096)
KEYED = ServedModel("http://127.0.0.1:8080", "nano", None, "MY_KEY")
"""With a key, and a window that nobody knows."""

CODEX = """\
model = "nano"
model_provider = "localagent"
{more}
[model_providers.localagent]
name = "localagent"
base_url = "http://127.0.0.1:8080/v1"
wire_api = "responses"
"""
CLAUDE = {
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
    "ANTHROPIC_MODEL": "nano",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "nano",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "nano",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "nano",
}
CONTINUE = """\
name: Local Config
version: "1.0.0"
schema: v1
models:
  - name: nano (localagent)
    provider: openai
    model: nano
    apiBase: http://127.0.0.1:8080/v1
    apiKey: {key}
    roles: ["chat", "edit", "apply"]
    capabilities: ["tool_use"]
"""


def opencode(key: str, **model: object) -> dict:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localagent",
        "options": {"baseURL": "http://127.0.0.1:8080/v1", "apiKey": key},
        "models": {"nano": {"name": "nano", "tool_call": True, **model}},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "model": "localagent/nano",
        "provider": {"localagent": provider},
    }


def zed(tokens: int) -> dict:
    can = {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False}
    model = {"name": "nano", "display_name": "nano", "max_tokens": tokens, "capabilities": can}
    provider = {"api_url": "http://127.0.0.1:8080/v1", "available_models": [model]}
    return {
        "language_models": {"openai_compatible": {"localagent": provider}},
        "agent": {"default_model": {"provider": "localagent", "model": "nano"}},
    }


NEW_FILES = [
    ("codex", NANO, CODEX.format(more="model_context_window = 4096\n")),
    ("codex", KEYED, CODEX.format(more="") + 'env_key = "MY_KEY"\n'),
    ("claude", NANO, {"env": {**CLAUDE, "ANTHROPIC_AUTH_TOKEN": "localagent"}}),
    ("claude", KEYED, {"env": CLAUDE, "apiKeyHelper": "printenv MY_KEY"}),
    ("opencode", NANO, opencode("localagent", limit={"context": 4096, "output": 1024})),
    ("opencode", ServedModel(NANO.url, "nano", 3), opencode("localagent", limit={"context": 3, "output": 1})),
    ("opencode", KEYED, opencode("{env:MY_KEY}")),
    ("zed", NANO, zed(4096)),
    ("zed", KEYED, zed(32_768)),
    (
        "continue",
        NANO,
        CONTINUE.format(key="localagent") + '    defaultCompletionOptions: {"contextLength": 4096}\n',
    ),
    ("continue", KEYED, CONTINUE.format(key='"${{ secrets.MY_KEY }}"')),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    variables = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "OPENCODE_CONFIG", "XDG_CONFIG_HOME", "APPDATA")
    for name in (*variables, "CONTINUE_GLOBAL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "ours"))
    return tmp_path


@pytest.mark.parametrize(("name", "target", "said"), NEW_FILES)
def test_a_new_file(name, target, said, monkeypatch):
    monkeypatch.setattr(clients.sys, "platform", "linux")
    change = Connection(find_client(name)).connect(find_client(name).entries(target))
    text = change.after.decode()
    assert (change.before, change.original, change.nothing) == (None, None, False)
    assert text == (said if isinstance(said, str) else json.dumps(said, indent=2) + "\n")


def test_windows_has_another_command_that_prints_a_key(monkeypatch):
    monkeypatch.setattr(clients.sys, "platform", "win32")
    assert find_client("claude").entries(KEYED)[-1] == ValueToSet(
        ("apiKeyHelper",), "echo %MY_KEY%", ("env", "ANTHROPIC_BASE_URL")
    )


def test_what_clients_are_started_with(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    assert {
        name: (client.title, client.command, client.environment(NANO), client.environment(KEYED))
        for name, client in CLIENTS.items()
    } == {
        "codex": ("Codex", ("codex",), {}, {}),
        "claude": ("Claude Code", ("claude",), {}, {}),
        "opencode": ("OpenCode", ("opencode",), {}, {}),
        "openwebui": (
            "Open WebUI",
            ("open-webui", "serve"),
            *(
                {
                    "OPENAI_API_BASE_URL": "http://127.0.0.1:8080/v1",
                    "OPENAI_API_KEY": key,
                    "ENABLE_OLLAMA_API": "False",
                }
                for key in ("localagent", "sk-secret")
            ),
        ),
        "zed": ("Zed", ("zed",), {"LOCALAGENT_API_KEY": "localagent"}, {"LOCALAGENT_API_KEY": "sk-secret"}),
        "continue": ("Continue", ("cn",), {}, {}),
        "ollama": ("programs that speak to Ollama", (), *[{"OLLAMA_HOST": "http://127.0.0.1:8080"}] * 2),
    }
    assert {name for name, client in CLIENTS.items() if client.hint} == {"openwebui", "zed", "ollama"}
    assert find_client("ollama").entries(NANO) == []


@pytest.mark.parametrize("value", [None, ""])
def test_a_key_that_is_not_there(monkeypatch, value):
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(UsageError, match=r"^MY_KEY is not set: it is to hold the server's API key$"):
        _ = KEYED.key


PLACES = [
    ("codex", "linux", {}, "~/.codex/config.toml"),
    ("codex", "linux", {"CODEX_HOME": "~/c"}, "~/c/config.toml"),
    ("claude", "linux", {}, "~/.claude/settings.json"),
    ("claude", "linux", {"CLAUDE_CONFIG_DIR": "~/c"}, "~/c/settings.json"),
    ("opencode", "linux", {}, "~/.config/opencode/opencode.json"),
    ("opencode", "linux", {"XDG_CONFIG_HOME": "~/x"}, "~/x/opencode/opencode.json"),
    ("opencode", "linux", {"OPENCODE_CONFIG": "~/o.json"}, "~/o.json"),
    ("zed", "linux", {}, "~/.config/zed/settings.json"),
    ("zed", "linux", {"XDG_CONFIG_HOME": "~/x"}, "~/x/zed/settings.json"),
    ("zed", "darwin", {"XDG_CONFIG_HOME": "~/x"}, "~/.config/zed/settings.json"),
    ("zed", "win32", {}, "~/AppData/Roaming/Zed/settings.json"),
    ("zed", "win32", {"APPDATA": "~/a"}, "~/a/Zed/settings.json"),
    ("continue", "linux", {}, "~/.continue/config.yaml"),
    ("continue", "linux", {"CONTINUE_GLOBAL_DIR": "~/c"}, "~/c/config.yaml"),
]


@pytest.mark.skipif(os.name == "nt", reason="HOME")
@pytest.mark.parametrize(("name", "platform", "variables", "place"), PLACES)
def test_where_the_files_are(name, platform, variables, place, monkeypatch):
    monkeypatch.setattr(clients.sys, "platform", platform)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert find_client(name).file() == Path(place).expanduser()


def test_a_relative_path_is_one_from_here(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setenv("CODEX_HOME", "here")
    monkeypatch.setenv("OPENCODE_CONFIG", "here.json")
    assert find_client("codex").file() == home / "here" / "config.toml"
    assert find_client("opencode").file() == home / "here.json"
