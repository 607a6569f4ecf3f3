"""The clients that live outside this environment: command lines from npm, and litellm, which pins an older openai.

    python -m tests.server.acceptance.installed

installs their current versions into the user's cache folder, where the tests look for them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localagent.files.paths import user_path
from tests.server.acceptance.scenes import must_run

COMMANDS = {"codex": "@openai/codex", "opencode": "opencode-ai"}
"""The command lines, and their packages."""


def folder() -> Path:
    return user_path("cache", "clients")


def command(name: str) -> Path:
    """The binary itself: the scripts around it only choose the one for this machine."""
    root = folder() / "node_modules"
    found = [
        each
        for pattern in (f"@openai/codex-*/vendor/*/bin/{name}", f"opencode-*/bin/{name}")
        for each in sorted(root.glob(pattern))
    ]
    if not found:
        missing(name)
    return found[0]


def litellm() -> Path:
    """The Python of the environment that has litellm."""
    python = folder() / "litellm" / "bin" / "python"
    if not python.exists():
        missing("litellm")
    return python


def missing(name: str) -> None:
    why = f"{name} is not in {folder()}: make clients"
    if must_run():
        pytest.fail(why)
    pytest.skip(why)


def install() -> None:
    """Install all of them, or what is newer."""
    folder().mkdir(parents=True, exist_ok=True)
    python = folder() / "litellm" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder() / "litellm"], check=True)
    # Without mcp, which it does not require, litellm fails at the first request with tools.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "litellm", "mcp"], check=True)
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is not here, so neither are the command lines")
    packages = [f"{each}@latest" for each in COMMANDS.values()]
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder())]
    subprocess.run([npm, "install", *options, *packages], check=True)


if __name__ == "__main__":
    install()
