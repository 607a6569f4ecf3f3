"""What the words of a command line become, before anything is loaded: which function gets which options."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from localagent.cli.app import app
from localagent.cli.options import AnswerOptions, ModelOptions, RunOptions, ServeOptions, ToolOptions, fill
from localagent.errors import UsageError


@pytest.fixture
def given(monkeypatch, tmp_path):
    """What these functions are called with, in place of what they do."""
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALAGENT_URL", raising=False)

    def of(words, *names):
        calls = []
        for name in names:

            def called(*arguments, name=name, **more):
                calls.append((name.rpartition(".")[2], *arguments, *([more] if more else [])))
                return SimpleNamespace(run=lambda: calls.append("run"))

            monkeypatch.setattr(name, called)
        app(words, standalone_mode=False)
        return calls

    return of


MODEL = [
    "-m", "m", "-s", "s", "--role", "r", "--max-tokens", "1", "--temperature", "0.5", "--top-p", "0.6", "--top-k", "2",
    "--stop", "x", "--stop", "y", "--seed", "3", "--no-think", "--think-level", "low", "--think-budget", "4", "--url", "u",
    "--backend", "mlx", "--context", "5", "--threads", "6", "--dialect", "d", "--tokenizer", "t",
]  # fmt: skip
MODEL_OPTIONS = ModelOptions(
    model="m", system="s", role="r", max_tokens=1, temperature=0.5, top_p=0.6, top_k=2, stop=["x", "y"], seed=3,
    think=False, think_level="low", think_budget=4, url="u", backend="mlx", context=5, threads=6, dialect="d",
    tokenizer="t",
)  # fmt: skip
TOOLS = [
    "-t", "a", "-t", "b", "--tool", "m:f", "--root", "/r", "--mcp", "/m", "--allow", "p", "--ask", "q", "--deny", "o",
]  # fmt: skip
TOOL_OPTIONS = ToolOptions(
    tools=["a", "b"], functions=["m:f"], root=Path("/r"), mcp=Path("/m"), allow=["p"], ask=["q"], deny=["o"]
)


def test_run_gets_every_option(given):
    once = "localagent.cli.run.run_once"
    words = [
        "run", *MODEL, *TOOLS, "--tool-choice", "none", "--no-parallel", "--schema", "f", "--strict", "-c", "--json",
        "--events", "--stats", "--no-save", "-f", "one", "-f", "two", "Say", "this.",
    ]  # fmt: skip
    answer = AnswerOptions(tool_choice="none", parallel=False, schema=Path("f"), strict=True)
    assert given(words, once) == [
        ("run_once", ["Say", "this."], MODEL_OPTIONS, TOOL_OPTIONS, answer, RunOptions(True, True, True, True, True), [Path("one"), Path("two")]),
    ]  # fmt: skip
    assert given(["run"], once) == [
        ("run_once", (), ModelOptions(), ToolOptions(), AnswerOptions(), RunOptions(), ())
    ]
    assert given(["run", "lfm2-nano", "Hi."], once)[0][1:3] == (["Hi."], ModelOptions(model="lfm2-nano"))


def test_chat_gets_every_option(given):
    names = "localagent.cli.talk.chat.Chat.open", "localagent.cli.home.offer"

    def chat(*words):
        return given(["chat", *words], names[0])

    usual = {"stats": False, "resume": None, "save": True, "files": ()}
    assert chat() == [("open", ModelOptions(), ToolOptions(), usual), "run"]
    words = [each for each in MODEL if each not in ("--role", "r")]
    options = ModelOptions(
        **{each: getattr(MODEL_OPTIONS, each) for each in ModelOptions.__slots__ if each != "role"}
    )
    how = {"stats": True, "resume": "x", "save": False, "files": [Path("one")]}
    assert chat(*words, *TOOLS, "--stats", "-r", "x", "--no-save", "-f", "one") == [
        ("open", options, TOOL_OPTIONS, how), "run",
    ]  # fmt: skip
    assert chat("name")[0][1] == ModelOptions(model="name")
    with pytest.raises(UsageError) as error:
        chat("name", "-m", "other")
    assert str(error.value) == "name and --model other both name the model: leave one out"


def test_a_first_chat_is_offered_a_model_and_a_resumed_one_is_not(given, monkeypatch):
    monkeypatch.setattr("localagent.cli.home.offer", lambda options: ModelOptions(model="offered"))
    chat = "localagent.cli.talk.chat.Chat.open"
    assert given(["chat"], chat)[0][1] == ModelOptions(model="offered")
    assert given(["chat", "-r", "last"], chat)[0][1] == ModelOptions()


def test_serve_is_by_this_process_or_by_ray(given):
    names = (
        "localagent.cli.serve.serve",
        "localagent.cli.fleet.serve_fleet",
        "localagent.cli.fleet.refuse_without_ray",
    )
    assert given(["serve", "--port", "1"], *names) == [
        ("refuse_without_ray", ServeOptions(port=1)), ("serve", ServeOptions(port=1)),
    ]  # fmt: skip
    assert given(["serve", "--buffer-tool-calls"], *names)[1] == (
        "serve",
        ServeOptions(buffer_tool_calls=True),
    )
    assert given(["serve", "--ray"], *names) == [("serve_fleet", ServeOptions(ray=True))]
    words = [
        "serve", "-m", "a", "--alias", "b=a", "--host", "h", "--api-key-file", "k", "--origin", "o", "--allow-host", "x", "--max-queue", "1",
        "--deadline", "2", "--lanes", "3", "--idle", "4", "--restart", "--stall-limit", "5", "--stream-tool-calls",
        "--metrics", "--no-page", "--log-prompts", "--share-prefixes", "--no-snapshots", "--ray", "--replicas", "1:2",
        "--address", "auto", "--gpus", "0.5", "--models-per-replica", "6", "--print-config", "--dialect", "d",
        "--backend", "mlx", "--context", "7", "--threads", "8",
    ]  # fmt: skip
    assert given(words, *names) == [
        (
            "serve_fleet",
            ServeOptions(
                models=["a"], aliases=["b=a"], host="h", api_key_file=Path("k"), origins=["o"], allow_hosts=["x"], max_queue=1, deadline=2,
                lanes=3, idle=4, restart=True, stall_limit=5, buffer_tool_calls=False, metrics=True, no_page=True,
                log_prompts=True, share_prefixes=True, no_snapshots=True, ray=True, replicas="1:2", address="auto", gpus=0.5,
                models_per_replica=6, print_config=True, dialect="d", backend="mlx", context=7, threads=8,
            ),
        )
    ]  # fmt: skip


def test_other_commands_get_their_options(given):
    assert given(["tools", "--json"], "localagent.cli.tools.list_tools") == [
        ("list_tools", {"as_json": True})
    ]
    assert given(["doctor"], "localagent.cli.doctor.examine") == [
        ("examine", {"as_json": False, "timeout": 120})
    ]
    assert given(["doctor", "--json", "--timeout", "7"], "localagent.cli.doctor.examine") == [
        ("examine", {"as_json": True, "timeout": 7})
    ]
    client = "localagent.cli.connect.connect_client"
    usual = {"url": "http://127.0.0.1:8080", "model": None, "key_env": None, "yes": False, "run": False, "only_print": False, "undo": False}  # fmt: skip
    [(_, name, arguments, options)] = given(["connect", "codex"], client)
    assert (name, list(arguments or ()), options) == ("codex", [], usual)
    words = ["connect", "codex", "--url", "u", "--model", "m", "--api-key-env", "K", "--yes", "--run", "--print", "--undo", "--", "a", "-b"]  # fmt: skip
    assert given(words, client) == [
        ("connect_client", "codex", ["a", "-b"], {**dict.fromkeys(usual, True), "url": "u", "model": "m", "key_env": "K"}),
    ]  # fmt: skip


def test_what_reads_an_output_is_chosen_by_its_form(given, monkeypatch, tmp_path):
    file = tmp_path / "x"
    file.write_bytes(b"read")
    names = (
        "localagent.cli.parse.parse_lines",
        "localagent.cli.parse.parse_text",
        "localagent.cli.parse.list_dialects",
    )
    [(name, dialect, source)] = given(["parse", str(file)], *names)
    assert (name, dialect.name, source.name) == ("parse_text", "lfm2", str(file))
    [(name, dialect, _)] = given(["parse", str(file), "--jsonl", "-d", "auto"], *names)
    assert (name, dialect) == ("parse_lines", None)
    for more, as_json in (([], False), (["--jsonl"], True)):
        assert given(["parse", "--list", *more], *names) == [("list_dialects", {"as_json": as_json})]


def test_the_version_is_told(monkeypatch, capsys):
    monkeypatch.setattr("localagent.distribution.version", lambda: "1.2")
    app(["--version"], standalone_mode=False)
    monkeypatch.setattr("localagent.distribution.version", lambda: None)
    app(["--version"], standalone_mode=False)
    assert capsys.readouterr().out == "localagent 1.2\nlocalagent of unknown version\n"


def test_wishes_about_thinking_are_one():
    assert ModelOptions(think=True, think_level="low", think_budget=3).of_turns() == {
        "thinking": "low", "thinking_budget": 3,
    }  # fmt: skip
    assert ModelOptions(think=False).of_turns() == {"thinking": False}
    with pytest.raises(UsageError) as error:
        MODEL_OPTIONS.of_turns()
    assert str(error.value) == "--no-think and --think-level low: choose one of them"
    assert [ModelOptions(url=url).server for url in (None, "none", "http://a")] == [None, None, "http://a"]


def test_what_was_kept_fills_what_was_not_given():
    kept = {"model": "kept", "seed": 3, "later": 1}
    assert fill(ModelOptions(model="given"), kept, "it") == ModelOptions(model="given", seed=3)
    with pytest.raises(UsageError) as error:
        fill(ToolOptions(), {"tools": ["a", 3]}, "it")
    assert str(error.value) == "it: tools[1]: Input should be a valid string"


# The cache


def test_the_cache_is_listed_and_cleared(monkeypatch, tmp_path, capsys):
    from localagent.cli import cache

    known = {"a": (SimpleNamespace(name="m\x1b", engine="llama.cpp 1"), 1234), "b": None}
    for number, name in enumerate(known):
        (tmp_path / name).write_bytes(bytes(2_000_000 * (number + 1)))
        os.utime(tmp_path / name, (number, datetime(2026, 1, 2, 3, 4 + number, tzinfo=UTC).timestamp()))

    class Folder:
        root = tmp_path

        def files(self):
            return [tmp_path / name for name in known if (tmp_path / name).exists()]

        def describe(self, path):
            return known[path.name]

        def clear(self):
            found = self.files()
            size = sum(each.stat().st_size for each in found)
            for each in found:
                each.unlink()
            return len(found), size

    monkeypatch.setattr("localagent.hosts.prefix.SnapshotFolder", Folder)
    app(["cache", "list"], standalone_mode=False)
    printed = capsys.readouterr()
    assert [line.rstrip() for line in printed.out.splitlines()] == [
        "model        tokens  size  used              engine",
        "m\\x1b         1,234  2 MB  2026-01-02 03:04  llama.cpp 1",
        "?      not readable  4 MB  2026-01-02 03:05",
    ]
    assert printed.err == f"2 kept, 6 MB, in {tmp_path}\n"
    app(["cache", "list", "--json"], standalone_mode=False)

    assert json.loads(capsys.readouterr().out)[1] == {
        "model": None, "engine": None, "tokens": None, "size": 4_000_000, "used": "2026-01-02T03:05:00+00:00",
        "path": str(tmp_path / "b"),
    }  # fmt: skip
    questions = []
    monkeypatch.setattr(cache, "agrees", lambda question: questions.append(question) or len(questions) > 1)
    assert app(["cache", "clear"], standalone_mode=False) == 1
    assert len(Folder().files()) == 2
    app(["cache", "clear"], standalone_mode=False)
    assert questions == [f"Remove 2 evaluated conversations in {tmp_path}?"] * 2
    assert capsys.readouterr().err == "removed 2, 6 MB\n"
    app(["cache", "clear"], standalone_mode=False)
    assert len(questions) == 2, "there is nothing to ask about"
    app(["cache", "list"], standalone_mode=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[1]) == ("", f"0 kept, 0 bytes, in {tmp_path}")
