"""The programs that can be connected: where each keeps its configuration, and the settings that it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.connect.document import Document, Keys
from localagent.connect.jsonc import Jsonc
from localagent.connect.toml import Toml
from localagent.connect.yaml import Yaml
from localagent.errors import UsageError
from localagent.wording import listed, quoted

NAME = "localagent"
"""What the server is called in other programs' settings."""
NO_KEY = "localagent"
"""The key for programs that insist on one, where the server wants none."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a client is to use. `url`: the server, without /v1. `context`: the model's window, if known."""

    url: str
    model: str
    context: int | None = None
    key_env: str | None = None
    """The environment variable that holds the key; no key is ever written into a file."""

    @property
    def key(self) -> str:
        """The key itself. Raises UsageError."""
        if self.key_env is None:
            return NO_KEY
        if not (key := os.environ.get(self.key_env)):
            raise UsageError(f"{self.key_env} is not set: it is to hold the server's API key")
        return key


@dataclass(frozen=True, slots=True)
class ValueToSet:
    """A value to be set. `goes_with`: as long as the value there is ours, so is this one, if changed, too."""

    keys: Keys
    value: Any
    goes_with: Keys | None = None
    in_new_file: bool = False
    """What a new file begins with; an old one has it, or does without."""


@dataclass(frozen=True, slots=True)
class Client:
    """One program."""

    name: str
    title: str
    command: tuple[str, ...] = ()
    """What starts it; empty if it is not started from a shell."""
    document: type[Document] | None = None
    """The format of its file; None if it reads nothing but its environment."""
    file: Callable[[], Path] = Path
    entries: Callable[[ServedModel], list[ValueToSet]] = lambda _: []
    environment: Callable[[ServedModel], dict[str, str]] = lambda _: {}
    """What it is started with."""
    hint: str = ""
    """What a user has to know besides."""


def find_client(name: str) -> Client:
    """A client by name. Raises UsageError."""
    if name not in CLIENTS:
        raise UsageError(f"no client {quoted(name)}: there are {listed(CLIENTS)}")
    return CLIENTS[name]


def _folder(variable: str, otherwise: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / otherwise).expanduser().absolute()


def _codex(target: ServedModel) -> list[ValueToSet]:
    provider = {"name": NAME, "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.key_env:
        provider["env_key"] = target.key_env
    chosen = ("model_provider",)
    entries = [ValueToSet(("model",), target.model, chosen), ValueToSet(chosen, NAME)]
    if target.context:
        entries.append(ValueToSet(("model_context_window",), target.context, chosen))
    return [*entries, ValueToSet(("model_providers", NAME), provider)]


def _claude(target: ServedModel) -> list[ValueToSet]:
    base = ("env", "ANTHROPIC_BASE_URL")
    # The small model is for titles and summaries; a name that is not served would be an error.
    names = [f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")]
    entries = [ValueToSet(base, target.url)]
    entries += [ValueToSet(("env", name), target.model, base) for name in ("ANTHROPIC_MODEL", *names)]
    if target.key_env:
        print_key = f"echo %{target.key_env}%" if sys.platform == "win32" else f"printenv {target.key_env}"
        return [*entries, ValueToSet(("apiKeyHelper",), print_key, base)]
    return [*entries, ValueToSet(("env", "ANTHROPIC_AUTH_TOKEN"), NO_KEY, base)]


def _opencode_file() -> Path:
    if given := os.environ.get("OPENCODE_CONFIG"):
        return Path(given).expanduser().absolute()
    folder = _folder("XDG_CONFIG_HOME", ".config") / "opencode"
    commented = folder / "opencode.jsonc"  # read last, if there are both
    return commented if commented.exists() else folder / "opencode.json"


def _opencode(target: ServedModel) -> list[ValueToSet]:
    model: dict[str, Any] = {"name": target.model, "tool_call": True}
    if target.context:
        model["limit"] = {"context": target.context, "output": max(1, target.context // 4)}
    options = {"baseURL": f"{target.url}/v1"}
    options["apiKey"] = f"{{env:{target.key_env}}}" if target.key_env else NO_KEY
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": options,
        "models": {target.model: model},
    }
    return [
        ValueToSet(("$schema",), "https://opencode.ai/config.json", in_new_file=True),
        ValueToSet(("model",), f"{NAME}/{target.model}"),
        ValueToSet(("provider", NAME), provider),
    ]


def _zed_file() -> Path:
    if sys.platform == "win32":
        return _folder("APPDATA", "AppData/Roaming") / "Zed" / "settings.json"
    folder = Path.home() / ".config" if sys.platform == "darwin" else _folder("XDG_CONFIG_HOME", ".config")
    return folder / "zed" / "settings.json"


def _zed(target: ServedModel) -> list[ValueToSet]:
    can = {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False}
    model = {
        "name": target.model,
        "display_name": target.model,
        "max_tokens": target.context or 32_768,
        "capabilities": can,
    }
    provider = {"api_url": f"{target.url}/v1", "available_models": [model]}
    return [
        ValueToSet(("language_models", "openai_compatible", NAME), provider),
        ValueToSet(("agent", "default_model"), {"provider": NAME, "model": target.model}),
    ]


def _continue(target: ServedModel) -> list[ValueToSet]:
    name = f"{target.model} ({NAME})"
    key = f"${{{{ secrets.{target.key_env} }}}}" if target.key_env else NO_KEY
    model: dict[str, Any] = {
        "name": name,
        "provider": "openai",
        "model": target.model,
        "apiBase": f"{target.url}/v1",
        "apiKey": key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
    }
    if target.context:
        model["defaultCompletionOptions"] = {"contextLength": target.context}
    start = {"name": "Local Config", "version": "1.0.0", "schema": "v1"}
    needed = [ValueToSet((key,), value, in_new_file=True) for key, value in start.items()]
    return [*needed, ValueToSet(("models", name), model)]


def _open_webui(target: ServedModel) -> dict[str, str]:
    return {
        "OPENAI_API_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key,
        "ENABLE_OLLAMA_API": "False",  # it would show every model twice
    }


CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client(
            "codex", "Codex", ("codex",), Toml,
            lambda: _folder("CODEX_HOME", ".codex") / "config.toml", _codex,
        ),
        Client(
            "claude", "Claude Code", ("claude",), Jsonc,
            lambda: _folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json", _claude,
        ),
        Client("opencode", "OpenCode", ("opencode",), Jsonc, _opencode_file, _opencode),
        Client(
            "openwebui", "Open WebUI", ("open-webui", "serve"), environment=_open_webui,
            hint="Open WebUI reads these when it starts for the first time. Later, change them under "
            "Admin Settings, Connections.",
        ),
        Client(
            "zed", "Zed", ("zed",), Jsonc, _zed_file, _zed, lambda target: {"LOCALAGENT_API_KEY": target.key},
            hint="Zed reads the key from LOCALAGENT_API_KEY, and wants one even if the server does not: "
            "start it with --run, or set that variable.",
        ),
        Client(
            "continue", "Continue", ("cn",), Yaml,
            lambda: _folder("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml", _continue,
        ),
        Client(
            "ollama", "programs that speak to Ollama",
            environment=lambda target: {"OLLAMA_HOST": target.url},
            hint="In programs with a field for Ollama's address, enter that one.",
        ),
    )
}  # fmt: skip
