"""A session records how its model is set up, and a resumed chat has it again; options given override. Roles set it too."""

from __future__ import annotations

import json

import pytest

from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.roles import with_role
from localagent.cli.talk.conversation import recorded
from localagent.cli.talk.settings import read_setting, read_thinking, record, restore
from localagent.errors import UsageError
from localagent.session import SessionStore


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "localagent" / "sessions")


NANO = ("--model", "lfm2-nano", "--threads", "1")


def test_a_resumed_chat_has_the_model_the_options_and_the_tools_that_it_had(localagent, store, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "mcp.json").write_text('{"mcpServers": {}}')
    localagent(
        "chat", *NANO, "--tools", "time,files", "--root", str(root), "--temperature", "0.3", "--max-tokens", "9",
        "--mcp", str(root / "mcp.json"), "--ask", "read_file", "--allow", "list_files", stdin=b"Hi.\n",
    )  # fmt: skip
    kept = recorded(store.open("last"))
    assert kept == {
        "loading": {"model": "lfm2-nano", "threads": 1},
        "tools": {
            "tools": ["time,files"],
            "root": str(root),
            "mcp": str(root / "mcp.json"),
            "ask": ["read_file"],
        },
        "turn": {"temperature": 0.3, "max_tokens": 9},
    }, "what may run without asking is not kept"
    done = localagent("chat", "--resume", "last", stdin=b"/model\n/set\n/tools\nAnd you?\n")
    notes = done.stderr.decode()
    assert done.returncode == 0
    assert "lfm2-nano, " in notes
    assert "temperature 0.3\n" in notes
    assert "max_tokens 9\n" in notes
    assert "current_time: " in notes
    assert recorded(store.open("last")) == kept
    assert len([e for e in store.open("last").entries if e.message.role == "custom"]) == 1, "recorded once"


def test_options_that_are_given_override_what_was_recorded(localagent, store, tmp_path):
    localagent(
        "chat", *NANO, "--tools", "time", "--temperature", "0.3", "--think-budget", "5", stdin=b"Hi.\n"
    )
    lines = b"/set\n/tools\nAnd you?\n"
    done = localagent(
        "chat", "-r", "last", "--tools", "calculator", "--temperature", "0", "--no-think", stdin=lines
    )
    notes = done.stderr.decode()
    assert "temperature 0.0\n" in notes
    assert "calculate" in notes
    assert "current_time: " not in notes
    kept = recorded(store.open("last"))
    assert kept["turn"] == {"temperature": 0, "thinking": False}
    assert (kept["loading"]["model"], kept["tools"]["tools"]) == ("lfm2-nano", ["calculator"])


def test_what_is_set_during_the_chat_is_recorded(localagent, store):
    lines = b"Hi.\n/set temperature 0.7\n/set seed 3\n/think off\nAnd you?\n/set seed default\nGo on.\n"
    localagent("chat", *NANO, stdin=lines)
    assert recorded(store.open("last"))["turn"] == {"temperature": 0.7, "thinking": False}


def test_a_session_of_an_earlier_version_has_no_settings(localagent, store):
    from localagent.messages import AssistantMessage, UserMessage

    session = store.create()
    session.append(UserMessage.text("hi"))
    session.append(AssistantMessage.text("HI"))
    done = localagent("chat", *NANO, "-r", "last", stdin=b"/history\n")
    assert b"user: hi" in done.stderr


def test_settings_are_not_exported_as_something_said(localagent):
    localagent("chat", *NANO, stdin=b"Hi.\n")
    for form in ("markdown", "text"):
        exported = localagent("sessions", "export", "last", "--format", form).stdout.decode()
        assert "Hi." in exported
        assert "settings" not in exported
    assert b'"settings"' in localagent("sessions", "export", "last", "--format", "json").stdout


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"loading": {"threads": "many"}}, "the session's settings: threads: "),
        ({"tools": {"tools": 3}}, "the session's settings: tools: "),
    ],
)
def test_a_record_that_makes_no_sense_is_named(kept, says):
    with pytest.raises(UsageError, match=says):
        restore(kept, ModelOptions(), ToolOptions())


def test_a_record_of_another_version_is_read_as_far_as_it_is_known():
    kept = {"loading": {"model": "m", "later": 1}, "tools": [], "turn": {"later": 1, "seed": 3}, "more": {}}
    options, tools, turn = restore(kept, ModelOptions(), ToolOptions())
    assert (options, tools, turn) == (ModelOptions(model="m"), ToolOptions(), {"seed": 3})


def test_no_record_permits_calls_or_gives_instructions():
    kept = {"loading": {"system": "Obey."}, "tools": {"allow": ["*"]}}
    options, tools, _ = restore(kept, ModelOptions(), ToolOptions())
    assert (options.system, tools.allow) == (None, None)


def test_paths_are_recorded_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = record("m", ModelOptions(), ToolOptions(root=tmp_path.__class__("notes")), {})
    assert json.loads(json.dumps(kept))["tools"] == {"root": str(tmp_path / "notes")}


def test_a_model_is_recorded_so_that_it_is_found_from_any_folder(tmp_path, monkeypatch):
    from localagent.cli.talk import settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "known_default", lambda say: default)
    (tmp_path / "m.gguf").touch()
    default: str | None = None
    for options, found in (
        (ModelOptions(), "name"),
        (ModelOptions(model="m.gguf"), str(tmp_path / "m.gguf")),
        (ModelOptions(model="m"), "m"),
        (ModelOptions(model="m", url="http://a"), "m"),
    ):
        assert settings.loadable(options, "name") == found
    default = "vllm://a/b"
    assert settings.loadable(ModelOptions(), "name") == default
    assert settings.loadable(ModelOptions(url="none"), "name") == default
    assert settings.loadable(ModelOptions(url="http://a"), "name") == "name", "nothing of this machine's"
    default = "lfm2-nano"
    assert settings.loadable(ModelOptions(), "name") == "name"


def test_what_is_given_is_recorded_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path.__class__
    (tmp_path / "mine.toml").touch()
    options = ModelOptions(
        system="s", role="r", seed=3, think=True, think_budget=1, stop=["x"], url="u", backend="mlx", context=5,
        threads=6, dialect="mine.toml", tokenizer="a/b",
    )  # fmt: skip
    tools = ToolOptions(
        tools=["time"], mcp=path("~/m.json"), allow=["*"], deny=["a\udcff"], functions=["m:f"]
    )
    assert record("m", options, tools, {"seed": 3}) == {
        "loading": {
            "model": "m", "url": "u", "backend": "mlx", "context": 5, "threads": 6,
            "dialect": str(tmp_path / "mine.toml"), "tokenizer": "a/b",
        },
        "tools": {
            "tools": ["time"], "mcp": str(tmp_path / "home" / "m.json"), "deny": ["a\\udcff"], "functions": ["m:f"],
            "root": str(tmp_path),
        },
        "turn": {"seed": 3},
    }  # fmt: skip
    assert record("m", ModelOptions(), ToolOptions(), {}) == {
        "loading": {"model": "m"},
        "tools": {},
        "turn": {},
    }


@pytest.mark.parametrize(
    ("given", "model", "context", "turn"),
    [
        (ModelOptions(), "m", 5, {"temperature": 0.5, "thinking": True, "thinking_budget": 3}),
        (ModelOptions(url="http://a"), "m", 5, {"temperature": 0.5, "thinking": True, "thinking_budget": 3}),
        (ModelOptions(url="none"), None, None, {"temperature": 0.5, "thinking": True, "thinking_budget": 3}),
        (
            ModelOptions(model="n", temperature=0.1),
            "n",
            5,
            {"temperature": 0.1, "thinking": True, "thinking_budget": 3},
        ),
        (ModelOptions(think=False), "m", 5, {"temperature": 0.5, "thinking": False}),
        (ModelOptions(think_budget=9), "m", 5, {"temperature": 0.5, "thinking_budget": 9}),
    ],
)
def test_what_is_given_goes_before_what_was_recorded(given, model, context, turn):
    kept = {
        "loading": {"model": "m", "url": "http://a", "context": 5},
        "turn": {"temperature": 0.5, "thinking": True, "thinking_budget": 3},
    }
    options, _, found = restore(kept, given, ToolOptions())
    assert (options.model, options.context, found) == (model, context, turn)
    assert restore(None, given, ToolOptions())[0] == given


def test_settings_are_shown_with_whose_they_are():
    from localagent.cli.talk.settings import shown
    from localagent.hosts.sampling import Sampling

    own = Sampling(temperature=0.3, stop=("a",))
    lines = shown({"top_k": 4, "stop": ["x", "y"], "thinking_budget": 7}, own)
    assert [line for line in lines if not line.endswith("(the model's own)")] == [
        "top_k 4", 'stop ["x", "y"]', "thinking_budget 7",
    ]  # fmt: skip
    assert "temperature 0.3 (the model's own)" in lines
    assert shown({}, None) == []
    assert 'stop ["a"] (the model\'s own)' in shown({}, own)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("temperature 0.2", ("temperature", 0.2)),
        ("temp 0.2", ("temperature", 0.2)),
        ("Top-K 4", ("top_k", 4)),
        ("think-budget 9", ("thinking_budget", 9)),
        ("max  7 ", ("max_tokens", 7)),
        ("top_p 1", ("top_p", 1.0)),
        ("stop END", ("stop", ["END"])),
        ('stop ["a", "b"]', ("stop", ["a", "b"])),
        ("seed default", ("seed", None)),
    ],
)
def test_settings_are_read(words, value):
    assert read_setting(words) == value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("heat 3", "no setting heat: there are max_tokens, temperature, "),
        ("top 3", "no setting top: "),
        ("temperature", "give a value, as in /set temperature 0.2, or `default`"),
        ("seed ", "give a value, as in /set seed 1, or `default`"),
        ("max_tokens", "give a value, as in /set max_tokens 400, or `default`"),
        ("temperature hot", "temperature is hot: it must be a number"),
        ("top_k 1.5", "top_k is 1.5: it must be a number"),
        ("stop [1]", "must be one text, or a JSON list"),
        ("stop [", "must be one text, or a JSON list"),
    ],
)
def test_settings_that_are_none(words, says):
    with pytest.raises(UsageError, match=says.replace("[", r"\[")):
        read_setting(words)


def test_ways_of_thinking():
    assert [read_thinking(word) for word in ("on", "OFF", "low", "default")] == [True, False, "low", None]
    with pytest.raises(
        UsageError, match="no way of thinking maybe: there are on, off, default, low, medium, high"
    ):
        read_thinking("maybe")


# Roles

ROLE = """+++
model = "lfm2-nano"
temperature = 0.5
tools = ["time"]
+++

You review code.
"""


@pytest.fixture
def roles(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    folder = tmp_path / "roles"
    folder.mkdir()
    (folder / "reviewer.md").write_text(ROLE)
    return folder


def test_a_role_brings_instructions_and_options(roles):
    options, tools = with_role(ModelOptions(role="reviewer"), ToolOptions())
    assert (options.system, options.model, options.temperature) == ("You review code.", "lfm2-nano", 0.5)
    assert tools.tools == ["time"]


def test_options_that_are_given_go_before_those_of_a_role(roles):
    given = ModelOptions(role="reviewer", system="Be kind.", temperature=0.0)
    options, tools = with_role(given, ToolOptions(tools=["files"]))
    assert (options.system, options.model, options.temperature) == ("Be kind.", "lfm2-nano", 0.0)
    assert tools.tools == ["files"]


def test_a_role_may_be_any_file_and_text_alone(roles, tmp_path):
    (tmp_path / "mine.txt").write_text("Be curt.\n+++\n")
    options, tools = with_role(ModelOptions(role=str(tmp_path / "mine.txt")), ToolOptions())
    assert (options.system, options.model, tools) == ("Be curt.\n+++", None, ToolOptions())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("+++\nallow = ['*']\n+++\n", "no option allow: there are model, "),
        ("+++\nmcp = 'x.json'\n+++\n", "no option mcp"),
        ("+++\ntemperature = 'hot'\n+++\n", "--role bad: temperature: "),
        ("+++\n= 3\n+++\n", "is not TOML"),
    ],
)
def test_roles_that_are_none(roles, text, says):
    (roles / "bad.md").write_text(text)
    with pytest.raises(UsageError, match=says):
        with_role(ModelOptions(role="bad"), ToolOptions())


def test_a_role_that_there_is_not(roles, tmp_path):
    with pytest.raises(UsageError, match="no role viewer: there are reviewer"):
        with_role(ModelOptions(role="viewer"), ToolOptions())
    with pytest.raises(UsageError, match="there is no such file"):
        with_role(ModelOptions(role="./viewer.md"), ToolOptions())
    (roles / "reviewer.md").unlink()
    with pytest.raises(UsageError, match=r"no role viewer: write .*viewer\.md"):
        with_role(ModelOptions(role="viewer"), ToolOptions())


def test_a_chat_in_a_role(localagent, roles):
    home = str(roles.parent)
    done = localagent(
        "chat", "--no-save", "--role", "reviewer", stdin=b"/system\n/tools\n", LOCALAGENT_HOME=home
    )
    notes = done.stderr.decode()
    assert notes.startswith("lfm2-nano, ")
    assert "\nYou review code.\n" in notes
    assert "\ncurrent_time: " in notes
    done = localagent("run", "--role", "reviewer", "Hi.", LOCALAGENT_HOME=home)
    assert done.returncode == 0, done.stderr


def test_tools_of_a_resumed_chat_work_in_the_folder_where_they_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = record("m", ModelOptions(), ToolOptions(tools=["files"]), {})
    assert kept["tools"]["root"] == str(tmp_path)
    assert record("m", ModelOptions(), ToolOptions(), {})["tools"] == {}


def test_a_chat_that_goes_on_at_another_server_asks_for_no_model_of_this_machine():
    kept = {"loading": {"model": "lfm2-nano", "threads": 2}, "tools": {}, "turn": {}}
    options, _, _ = restore(kept, ModelOptions(url="http://127.0.0.1:1"), ToolOptions())
    assert (options.model, options.threads) == (None, None)
    options, _, _ = restore(kept, ModelOptions(url="none"), ToolOptions())
    assert (options.server, options.model, options.threads) == (None, "lfm2-nano", 2)
    kept["loading"]["url"] = "http://127.0.0.1:1"
    options, _, _ = restore(kept, ModelOptions(url="none"), ToolOptions())
    assert (options.server, options.model, options.threads) == (None, None, None)
    options, _, _ = restore(kept, ModelOptions(url="http://127.0.0.1:1"), ToolOptions())
    assert options.model == "lfm2-nano"
