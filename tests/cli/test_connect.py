"""`localagent connect`: it shows, asks, writes, starts and undoes."""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pexpect
import pytest

from tests.forking import COMMAND

KEY = "sk-secret"


@pytest.fixture
def url() -> Iterator[str]:
    """What answers as the server does when it is asked for its models."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.path.startswith("/keyed")
            allowed = not wanted or self.headers.get("Authorization") == f"Bearer {KEY}"
            said = {"data": [{"id": "nano", "context_length": 4096}, {"id": "big", "context_length": None}]}
            body = json.dumps(said if allowed else {"error": {}}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def command(localagent, tmp_path):
    """The command with a home of its own, and a `codex` and an `open-webui` that say what they are given."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("codex", "open-webui"):
        program = programs / name
        program.write_text(
            '#!/bin/sh\necho "started $0 $*"\nenv | grep -E "^(OPENAI|ENABLE)" | sort\nexit 7\n'
        )
        program.chmod(0o755)
    drop = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "LOCALAGENT_HOME")
    kept = {name: value for name, value in localagent.environment.items() if name not in drop}
    home = tmp_path / "home"
    home.mkdir()
    localagent.environment = {
        **kept,
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    localagent.home = home
    return localagent


def test_the_first_model_and_its_window_are_written_and_taken_back(command, url):
    done = command("connect", "codex", "--url", f"{url}/v1/", "--yes")
    assert done.returncode == 0, done.stderr
    file = command.home / ".codex" / "config.toml"
    written = tomllib.loads(file.read_text())
    assert written == {
        "model": "nano",
        "model_provider": "localagent",
        "model_context_window": 4096,
        "model_providers": {
            "localagent": {"name": "localagent", "base_url": f"{url}/v1", "wire_api": "responses"}
        },
    }
    shown = done.stdout.decode()
    assert f"+++ {file}" in shown
    assert '+model = "nano"' in shown
    again = command("connect", "codex", "--url", url, "--yes")
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"needs no change" in again.stderr
    back = command("connect", "codex", "--undo", "--yes")
    assert back.returncode == 0, back.stderr
    assert '-model = "nano"' in back.stdout.decode()
    assert list(command.home.iterdir()) == []
    command.refuse("connect", "codex", "--undo", code=2, says="Codex is not connected")


def test_print_writes_nothing(command, url):
    done = command("connect", "zed", "--url", url, "--model", "big", "--print")
    assert done.returncode == 0, done.stderr
    assert '"api_url"' in done.stdout.decode()
    assert b"LOCALAGENT_API_KEY" in done.stderr
    assert list(command.home.iterdir()) == []


def test_without_a_terminal_and_without_yes_nothing_is_written(command, url):
    done = command("connect", "claude", "--url", url)
    assert done.returncode == 2
    assert b"say --yes" in done.stderr
    assert list(command.home.iterdir()) == []


def test_a_no_changes_nothing_and_a_yes_does(command, url):
    for answer, code in (("n", 1), ("y", 0)):
        program = pexpect.spawn(
            str(COMMAND), ["connect", "claude", "--url", url], env=command.environment, timeout=120
        )
        program.expect(r"settings.json\? \[y/N\]: ")
        program.sendline(answer)
        program.expect(pexpect.EOF)
        program.close()
        assert program.exitstatus == code
        assert (command.home / ".claude" / "settings.json").exists() == (answer == "y")


def test_run_starts_the_client_with_its_arguments_and_environment(command, url):
    done = command("connect", "codex", "--url", url, "--yes", "--run", "--", "exec", "-q", "say hi")
    assert done.returncode == 7, "the client's own exit code"
    assert done.stdout.decode().splitlines()[-1].endswith("/codex exec -q say hi")
    done = command("connect", "openwebui", "--url", url, "--run")
    lines = done.stdout.decode().splitlines()
    assert lines[-4].endswith("open-webui serve")
    assert lines[-3:] == [
        "ENABLE_OLLAMA_API=False",
        f"OPENAI_API_BASE_URL={url}/v1",
        "OPENAI_API_KEY=localagent",
    ]
    missing = command("connect", "opencode", "--url", url, "--run", "--yes", PATH="/nowhere")
    assert (missing.returncode, b"opencode is not installed" in missing.stderr) == (2, True)


def test_environments_are_printed_without_the_key(command, url):
    done = command("connect", "openwebui", "--url", f"{url}/keyed", "--api-key-env", "MY_KEY", MY_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert 'export OPENAI_API_KEY="$MY_KEY"' in done.stdout.decode()
    assert KEY.encode() not in done.stdout + done.stderr
    ollama = command("connect", "ollama", "--url", "http://127.0.0.1:9")
    assert ollama.stdout.decode() == "export OLLAMA_HOST=http://127.0.0.1:9\n", "nobody needs to answer"


def test_what_cannot_be_done_is_said_in_a_line(command, url):
    free = "http://127.0.0.1:9"
    command.refuse("connect", "emacs", code=2, says="no client emacs: there are codex, claude")
    command.refuse("connect", "codex", "--url", free, code=1, says="no server answers at http://127.0.0.1:9")
    command.refuse("connect", "codex", "--url", "ftp://x", code=2, says="the address ftp://x is no URL")
    command.refuse("connect", "codex", "--url", f"{url}/keyed", code=2, says="--api-key-env")
    command.refuse("connect", "codex", "--url", url, "--api-key-env", "sk-1", code=2, says="not a key")
    command.refuse(
        "connect", "codex", "--url", url, "--api-key-env", "NOT_SET", code=2, says="NOT_SET is not set"
    )
    command.refuse("connect", "codex", "x", "--url", url, code=2, says="need --run")
    command.refuse("connect", "codex", "--undo", "--run", code=2, says="exclude each other")
    command.refuse("connect", "ollama", "--run", "--url", url, code=2, says="no single program")
    command.refuse("connect", "openwebui", "--undo", code=2, says="unset OPENAI_API_BASE_URL")


def test_a_server_that_is_not_up_yet_needs_the_model_named(command):
    done = command("connect", "codex", "--url", "http://127.0.0.1:9", "--model", "nano", "--yes")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads((command.home / ".codex" / "config.toml").read_text())["model"] == "nano"
