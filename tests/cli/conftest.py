"""The installed command, run as a person runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localagent.store.weights import default_root
from tests import forking
from tests.forking import COMMAND


def commands() -> set[str]:
    """Every command that there is, such as "models list", from the program itself."""
    from typer.main import get_command

    from localagent.cli.app import app

    def leaves(command: Any, name: str) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield name
            return
        for word, inner in command.commands.items():
            yield from leaves(inner, f"{name} {word}".strip())

    return set(leaves(get_command(app), ""))


class Command:
    """Runs `localagent` in a process of its own."""

    def __init__(self, home: Path) -> None:
        cache = home / "cache"
        (cache / "localagent").mkdir(parents=True)
        (cache / "localagent" / "models").symlink_to(default_root())  # the weights stay where they are
        folders = {f"XDG_{name}_HOME": str(home) for name in ("STATE", "DATA")} | {
            "XDG_CACHE_HOME": str(cache)
        }
        self.environment = {**os.environ, **folders, "TERM": "xterm", "NO_COLOR": "1"}

    def __call__(
        self, *arguments: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return forking.run(arguments, stdin, {**self.environment, **environment})

    def shell(self, script: str) -> subprocess.CompletedProcess[bytes]:
        """Run a line of bash; {} stands for the command."""
        return subprocess.run(
            ["bash", "-c", script.format(COMMAND)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            env=self.environment,
            check=False,
        )

    def refuse(self, *arguments: str, code: int, says: str, stdin: bytes = b"", **environment: str) -> None:
        """The command fails with one line on stderr and nothing on stdout."""
        done = self(*arguments, stdin=stdin, **environment)
        error = done.stderr.decode()
        assert (done.returncode, error.count("\n")) == (code, 1), error
        assert error.startswith("localagent: ")
        assert says in error
        assert "Traceback" not in error
        assert done.stdout == b""


@pytest.fixture
def localagent(tmp_path: Path, gguf: Path) -> Command:
    return Command(tmp_path)
