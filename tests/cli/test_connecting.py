"""`connect` step by step, in this process: what is asked of the server, what is said, and when nothing is written."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import typer

from localagent.cli import connect
from localagent.cli.connect import connect_client
from localagent.connect.clients import ServedModel
from localagent.errors import ServerRefused, ServerUnreachable, StreamBroken, UnknownModel, UsageError

FREE = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "LOCALAGENT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def server():
    """Answers with what it is told to, and keeps the keys that came."""
    said = SimpleNamespace(status=200, body=b"", keys=[])

    class Models(BaseHTTPRequestHandler):
        def do_GET(self):
            said.keys.append((self.path, self.headers.get("Authorization")))
            self.send_response(said.status)
            self.send_header("content-length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        said.url = f"http://127.0.0.1:{http.server_address[1]}"
        yield said
        http.shutdown()


def run(name, *arguments, **options):
    """`connect` with these options and no others."""
    given = {
        "url": FREE,
        "model": "m",
        "key_env": None,
        "yes": False,
        "run": False,
        "only_print": False,
        "undo": False,
    }
    connect_client(name, arguments, **{**given, **options})


def models(*ids, **more):
    return json.dumps({"data": [{"id": each, **more} for each in ids]}).encode()


# What the client is to use


@pytest.mark.parametrize(
    ("url", "base"),
    [("http://a:1", "http://a:1"), ("https://a:1/v1/", "https://a:1"), ("http://a:1/x/", "http://a:1/x")],
)
def test_an_address_is_taken_with_and_without_v1(url, base):
    assert connect._target(url, "m", None, ask=False) == ServedModel(base, "m", None, None)
    assert connect._target(url, None, "KEY", ask=False) == ServedModel(base, "", None, "KEY")


@pytest.mark.parametrize("url", ["ftp://a", "a:1", "http://", "http:///x", "http://a b", "http://a\x07b", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError) as error:
        connect._target(url, "m", None, ask=False)
    assert str(error.value).startswith("the address ")
    assert str(error.value).endswith(": it must be like http://127.0.0.1:8080")


def test_a_key_is_no_name_of_a_variable():
    with pytest.raises(UsageError) as error:
        connect._target(FREE, "m", "sk-1", ask=True)
    assert str(error.value) == "--api-key-env is sk-1: it must be the name of a variable, not a key"


def test_the_server_says_what_was_not_given(server, capsys, monkeypatch):
    server.body = models("a", "b", context_length=7)
    assert connect._target(f"{server.url}/v1", None, None, ask=True) == ServedModel(server.url, "a", 7)
    assert connect._target(server.url, "b", None, ask=True) == ServedModel(server.url, "b", 7)
    assert server.keys == [("/v1/models", None)] * 2
    assert capsys.readouterr().err == ""
    assert connect._target(server.url, "c", None, ask=True) == ServedModel(server.url, "c")
    assert capsys.readouterr().err == "note: c is none of the models there, unless by an alias\n"
    server.body = models("a", context_length="7")
    monkeypatch.setenv("KEY", "secret")
    assert connect._target(server.url, "a", "KEY", ask=True) == ServedModel(server.url, "a", None, "KEY")
    assert server.keys[-1] == ("/v1/models", "Bearer secret")


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (500, b"", ServerRefused, "URL failed (500)"),
        (
            200,
            b'{"data": []}',
            UnknownModel,
            "the server at URL does not say which models it has: give --model",
        ),
        (200, models("\x1b"), UnknownModel, "the server at URL does not say"),
        (200, b"{", StreamBroken, "URL answers with something else than JSON: correct the address"),
        (200, b"{}", UnknownModel, "the server at URL does not say"),
        (200, b'{"data": [{"id": 3}]}', UnknownModel, "the server at URL does not say"),
        (200, b'{"data": 3}', UnknownModel, "the server at URL does not say"),
    ],
)
def test_a_server_that_cannot_say_its_models(server, status, body, kind, says):
    server.status, server.body = status, body
    with pytest.raises(kind) as error:
        connect._target(server.url, None, None, ask=True)
    assert says.replace("URL", server.url) in str(error.value)
    assert connect._target(server.url, "m", None, ask=True) == ServedModel(server.url, "m"), (
        "it is not needed"
    )


def test_a_server_that_wants_a_key(server):
    server.status = 401
    with pytest.raises(UsageError) as error:
        connect._target(server.url, "m", None, ask=True)
    assert str(error.value) == (
        f"the server at {server.url} wants a key: name the variable that holds it with --api-key-env"
    )


def test_nobody_there():
    with pytest.raises(ServerUnreachable) as error:
        connect._target(FREE, None, None, ask=True)
    assert str(error.value).startswith(f"no server answers at {FREE} (")
    assert connect._target(FREE, "m", None, ask=True) == ServedModel(FREE, "m"), "it is not needed"


# What is shown, asked and written


def test_a_change_is_shown_and_made_if_the_user_agrees(home, monkeypatch, capsys):
    file = home / ".claude" / "settings.json"
    questions = []
    monkeypatch.setattr(connect, "agrees", lambda question: questions.append(question) or len(questions) > 1)
    with pytest.raises(typer.Exit) as end:
        run("claude")
    assert (end.value.exit_code, file.exists()) == (1, False)
    printed = capsys.readouterr()
    assert printed.out.startswith(f"--- (none)\n+++ {file}\n")
    assert printed.err == "nothing is changed\n"
    run("claude")
    assert questions == [f"Write this to {file}?"] * 2
    assert (
        capsys.readouterr().err
        == "Claude Code is connected; localagent connect claude --undo takes it back\n"
    )
    assert json.loads(file.read_text())["env"]["ANTHROPIC_MODEL"] == "m"
    run("claude")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"Claude Code is connected: {file} needs no change\n")
    assert len(questions) == 2


def test_a_change_is_taken_back_if_the_user_agrees(home, monkeypatch, capsys):
    file = home / ".claude" / "settings.json"
    run("claude", yes=True)
    said = json.loads(file.read_text())
    said["env"]["ANTHROPIC_BASE_URL"] = "http://mine"
    file.write_text(json.dumps(said))
    monkeypatch.setattr(connect, "agrees", lambda _: False)
    capsys.readouterr()
    run("claude", undo=True, only_print=True)
    printed = capsys.readouterr()
    assert printed.err == "env.ANTHROPIC_BASE_URL was changed since, and stays as it is\n"
    assert f"--- {file}\n+++ {file}\n" in printed.out
    assert json.loads(file.read_text()) == said, "it is only shown"
    with pytest.raises(typer.Exit) as end:
        run("claude", undo=True)
    assert (end.value.exit_code, json.loads(file.read_text())) == (1, said)
    assert capsys.readouterr().err.endswith(" stays as it is\nnothing is changed\n")
    questions = []
    monkeypatch.setattr(connect, "agrees", lambda question: not questions.append(question))
    run("claude", undo=True)
    assert questions == [f"Write this to {file}?"]
    assert capsys.readouterr().err.endswith("\nClaude Code is as it was before\n")
    assert json.loads(file.read_text()) == {"env": {"ANTHROPIC_BASE_URL": "http://mine"}}


def test_where_nothing_is_left_nobody_is_asked_about_taking_it_back(home, monkeypatch, capsys):
    run("claude", yes=True)
    (home / ".claude" / "settings.json").unlink()
    monkeypatch.setattr(connect, "agrees", pytest.fail)
    capsys.readouterr()
    run("claude", undo=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Claude Code is as it was before\n")
    with pytest.raises(UsageError, match="Claude Code is not connected"):
        run("claude", undo=True)


def test_what_has_to_be_set_in_the_shell_is_printed_without_the_key(home, monkeypatch, capsys):
    monkeypatch.setenv("KEY", "sec ret")
    run("openwebui", key_env="KEY")
    printed = capsys.readouterr()
    assert printed.out == (
        f'export OPENAI_API_BASE_URL={FREE}/v1\nexport OPENAI_API_KEY="$KEY"\nexport ENABLE_OLLAMA_API=False\n'
    )
    assert printed.err.startswith("Open WebUI reads these when it starts for the first time.")
    run("openwebui")
    assert "export OPENAI_API_KEY=localagent\n" in capsys.readouterr().out
    run("claude", only_print=True)
    printed = capsys.readouterr()
    assert "export" not in printed.out
    assert (printed.err, list(home.iterdir())) == ("", [])
    run("ollama", url="http://a:1/it's")
    assert capsys.readouterr().out == "export OLLAMA_HOST='http://a:1/it'\"'\"'s'\n"


@pytest.mark.parametrize(
    ("name", "arguments", "options", "says"),
    [
        ("codex", (), {"undo": True, "run": True}, "--undo and --run exclude each other"),
        ("codex", ("x",), {}, "x: arguments for Codex need --run"),
        ("ollama", (), {"run": True}, "ollama is no single program that could be started"),
        (
            "openwebui", (), {"undo": True},
            "nothing was written for Open WebUI: unset OPENAI_API_BASE_URL, OPENAI_API_KEY, ENABLE_OLLAMA_API",
        ),
        ("codex", (), {"model": "\udcff"}, "--model is not UTF-8 text: see character 1"),
        ("opencode", (), {"run": True, "yes": True}, "opencode is not installed, or not in PATH"),
    ],
)  # fmt: skip
def test_what_cannot_be(home, monkeypatch, name, arguments, options, says):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError) as error:
        run(name, *arguments, **options)
    assert str(error.value) == says


@pytest.mark.parametrize("system", ["posix", "nt"])
def test_a_client_is_started_with_its_environment(home, monkeypatch, capsys, system):
    """On Windows a process that was replaced would lose its terminal."""
    started = []
    monkeypatch.setattr(connect.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(
        connect,
        "os",
        SimpleNamespace(environ={"A": "b"}, name=system, execve=lambda *given: started.append(given)),
    )

    def wait(words, env, check):
        started.append((words[0], words, env))
        return subprocess.CompletedProcess(words, 7)

    monkeypatch.setattr(connect.subprocess, "run", wait)
    if system == "nt":
        with pytest.raises(typer.Exit) as end:
            run("openwebui", "--port", "1", run=True)
        assert end.value.exit_code == 7
    else:
        run("openwebui", "--port", "1", run=True)
    told = {"OPENAI_API_BASE_URL": f"{FREE}/v1", "OPENAI_API_KEY": "localagent", "ENABLE_OLLAMA_API": "False"}
    words = ["/bin/open-webui", "serve", "--port", "1"]
    assert started == [("/bin/open-webui", words, {"A": "b", **told})]
    assert capsys.readouterr().out == ""
    run("openwebui", run=True, only_print=True)
    assert len(started) == 1, "it is only shown"
    assert os.environ.get("OPENAI_API_BASE_URL") is None
