"""Each client's file is changed in one place and given back byte for byte."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from localagent.connect.clients import CLIENTS, ServedModel, find_client
from localagent.connect.connection import Connection
from localagent.errors import SaveFailed, UsageError

WITH_FILES = [name for name, client in CLIENTS.items() if client.document]
TARGET = ServedModel("http://127.0.0.1:8080", "nano", 4096)

FILES: dict[str, list[str]] = {
    "codex": [
        "",
        'model = "gpt-5" # mine\napproval_policy = "never"\n\n[mcp_servers.x]\ncommand = "a"\n',
        '# about the table below\n[mcp_servers.x]\ncommand = "a"\nargs = ["[not]", """\n[a]\n""", # no\n]',
        'a = 1\n\n[model_providers.other]\nname = "x"\n\n[tools]\nq = 1\n\n\n# end\n',
        "notify = [\n  \"x\", # [y]\n]\nmodel_provider = 'openai'",
        '[model_providers.localagent]\nname = "old"\nbase_url = "x"\n[[z]]\nb = 2\n',
        "[tui]\nx = '''\nmodel = \"no\"\n'''\n",
        "# only a comment",
    ],
    "claude": [
        "",
        "{}",
        "{\n}\n",
        '{"permissions": {"allow": []}}',
        '{\n  "env": {\n    "ANTHROPIC_MODEL": "opus",\n    "A": "b"\n  },\n  "x": [1, 2]\n}\n',
        '{\n\t"model": "sonnet"\n}',
        '{\n    "env": {}\n}\n',
    ],
    "opencode": [
        "",
        '{\n  // mine\n  "$schema": "x", /* both */ "theme": "dark", // the end\n}\n',
        '{"provider": {"other": {"npm": "y"}}, "model": "other/z"}',
        '{\n  "provider": {\n    "other": {}, // last\n  },\n}\n',
        '{\n  "provider": {\n    // nothing yet\n  }\n}\n',
    ],
    "zed": [
        "",
        '// Zed settings\n//\n// https://zed.dev\n{\n  "theme": {\n    "mode": "system"\n  }\n}\n',
        '// a\n{\n  "agent": {\n    "default_model": {"provider": "z", "model": "m"}, // mine\n    "x": 1,\n  },\n'
        '  "language_models": { "openai_compatible": {} }\n} // end',
    ],
    "continue": [
        "",
        "name: Local Agent\nversion: 1.0.0\nschema: v1\nmodels: []\n",
        "name: a\nmodels:\n  - name: GPT\n    provider: openai\n    roles: [chat]   # mine\n\n# rules\nrules:\n  - be brief\n",
        "models:\n- name: a\n  model: b\n  prompt: |\n    x\n\n    y\nname: z",
        "# nothing\nname: 'q' # q\n",
        "name: a\nmodels: [] # none\nx: 1",
        "name: a\nmodels:\n  - name: only",
    ],
}
CASES = [(name, text) for name, texts in FILES.items() for text in texts]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (
        "CODEX_HOME",
        "CLAUDE_CONFIG_DIR",
        "OPENCODE_CONFIG",
        "XDG_CONFIG_HOME",
        "CONTINUE_GLOBAL_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path / "ours"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def connect(name: str, target: ServedModel = TARGET) -> Path:
    client = find_client(name)
    connection = Connection(client)
    change = connection.connect(client.entries(target))
    connection.write(change)
    return change.path


def undo(name: str) -> tuple[str, ...]:
    connection = Connection(find_client(name))
    change = connection.undo()
    connection.write(change)
    return change.kept


def write(name: str, text: str | bytes) -> Path:
    path = find_client(name).file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def ends(text: str, kind: str) -> bytes:
    return {"lf": text, "crlf": text.replace("\n", "\r\n"), "bom": "\ufeff" + text}[kind].encode()


@pytest.mark.parametrize("kind", ["lf", "crlf", "bom"])
@pytest.mark.parametrize(("name", "text"), CASES)
def test_undo_gives_back_every_byte(name, text, kind):
    before = ends(text, kind)
    path = write(name, before)
    connect(name)
    changed = path.read_bytes()
    assert changed != before
    assert b"127.0.0.1:8080" in changed
    if b"\r\n" in before:
        assert changed.count(b"\n") == changed.count(b"\r\n")
    assert undo(name) == ()
    assert path.read_bytes() == before


# What a user or the client itself may add meanwhile, at the end or at the beginning of the file.
ADDED = {
    "codex": ["\n[added]\nx = 1\n", "# added\n"],
    "claude": ["\n", " "],
    "opencode": ["\n// added\n", "// added\n"],
    "zed": ["\n// added\n", "/* added */"],
    "continue": ["\n# added\n", "# added\n"],
}


@pytest.mark.parametrize("kind", ["lf", "crlf"])
@pytest.mark.parametrize(("name", "text"), [case for case in CASES if case[1]])
def test_undo_takes_out_only_ours_from_a_file_that_was_changed_meanwhile(name, text, kind):
    if kind == "crlf" and "\n" not in text:
        pytest.skip("its line ends cannot be told")
    last, first = ADDED[name]
    if not text.endswith("\n") and not last.startswith("\n"):
        last = "\n" + last
    path = write(name, ends(text, kind))
    connect(name)
    now = path.read_bytes()
    path.write_bytes(ends(first, kind) + now + ends(last, kind))
    assert undo(name) == ()
    text = text.replace("{\n}", "{}")  # whether an empty object had a line end inside is not told any more
    assert path.read_bytes() == ends(first + text + last, kind)


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_file_and_folders_that_were_made_go_again(name, home):
    path = connect(name)
    assert path.is_file()
    assert path.stat().st_mode & 0o777 == 0o600, "others' settings may hold secrets"
    undo(name)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", WITH_FILES)
def test_connecting_again_changes_nothing_and_another_model_replaces_the_first(name):
    path = write(name, before := FILES[name][-1].encode())
    connect(name)
    first = path.read_bytes()
    connect(name)
    assert path.read_bytes() == first
    connect(name, ServedModel("http://127.0.0.1:9999", "other"))
    assert b"9999" in path.read_bytes()
    assert b"8080" not in path.read_bytes()
    undo(name)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_record_that_is_gone_means_there_is_nothing_to_undo(name):
    with pytest.raises(UsageError, match="not connected"):
        undo(name)
    connect(name)
    undo(name)
    with pytest.raises(UsageError, match="not connected"):
        undo(name)


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_file_that_was_removed_meanwhile_stays_away(name):
    path = write(name, FILES[name][1])
    connect(name)
    path.unlink()
    undo(name)
    assert not path.exists()


BROKEN = {
    "codex": ['model = "x', "[a\n", "a = 1\na = 2\n"],
    "claude": ["{", '{"a": }', '{"a" 1}', "[1]", '{"a": 1} x', "{'a': 1}", '{"a": nope}', "[" * 500, "{" * 9],
    "opencode": ['{"a": 1 "b": 2}', '{"a": [1 2]}', '"text"', "/* open"],
    "zed": ["{,}", '{"a": tru}'],
    "continue": ["a: [", "a: b: c", "- a\n- b\n", "a: &x\n  b: *y\n"],
}


@pytest.mark.parametrize(("name", "text"), [(name, each) for name, texts in BROKEN.items() for each in texts])
def test_a_broken_file_is_refused_in_one_line_and_left_alone(name, text):
    path = write(name, text)
    with pytest.raises(UsageError) as refused:
        connect(name)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("codex", 'model_providers = { other = { name = "x" } }\n'),
        ("codex", 'model_providers.localagent.name = "x"\n'),
        ("claude", '{"env": "nothing"}'),
        ("opencode", '{"provider": []}'),
        ("continue", 'models: [{name: "a", model: "b"}]\n'),
        ("continue", "models: text\n"),
        ("continue", "{name: a, models: []}"),
        ("continue", "models:\n  - uses: hub/model\n"),
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(name, text):
    path = write(name, text)
    try:
        connect(name)
    except UsageError as refused:
        assert "\n" not in str(refused)
        assert path.read_text() == text
        assert str(path) in str(refused)
    else:
        undo(name)
        assert path.read_text() == text


def test_what_only_looks_like_a_name_is_text():
    path = write("codex", before := '"a\\"b" = """\nmodel = "x"\n"""\n')
    connect("codex")
    assert tomllib.loads(path.read_text())['a"b'] == tomllib.loads(before)['a"b'] == 'model = "x"\n'
    write("codex", path.read_text() + "# mine\n")
    undo("codex")
    assert path.read_text() == before + "# mine\n"


@pytest.mark.parametrize("name", ["claude", "opencode", "zed"])
def test_a_new_file_that_the_client_only_wrote_anew_goes(name, home):
    path = connect(name)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=5))
    undo(name)
    assert list(home.iterdir()) == []


def test_not_text_and_not_a_file(home):
    path = write("codex", b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        connect("codex")
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="not a file"):
        connect("codex")


def test_a_read_only_file_is_refused():
    path = write("codex", "a = 1\n")
    path.chmod(0o444)
    with pytest.raises(UsageError, match="read-only"):
        connect("codex")
    assert path.read_text() == "a = 1\n"
    with pytest.raises(UsageError, match="not connected"):
        undo("codex")


def test_a_file_that_cannot_be_read_or_is_far_too_large(monkeypatch):
    path = write("codex", "a = 1\n")
    client = find_client("codex")
    monkeypatch.setattr("localagent.connect.connection._LARGEST", 6)
    assert Connection(client).connect(client.entries(TARGET)).before == b"a = 1\n"
    monkeypatch.setattr("localagent.connect.connection._LARGEST", 5)
    with pytest.raises(UsageError) as large:
        connect("codex")
    assert str(large.value) == f"{path} is larger than a configuration can be"

    opened = Path.open

    def refused(self, *arguments, **options):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(UsageError) as unreadable:
        connect("codex")
    assert str(unreadable.value) == f"{path} cannot be read: Permission denied"


def test_a_record_that_cannot_be_read_or_written(monkeypatch, home):
    path = write("codex", "a = 1\n")
    connection = Connection(find_client("codex"))
    folder = connection.backup.parent

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refused)
        with pytest.raises(
            SaveFailed, match=rf"^cannot write to {folder}/codex\.json \(Permission denied\): "
        ):
            connect("codex")
    assert path.read_text() == "a = 1\n"
    connect("codex")
    (folder / "codex.json").write_text("{")
    for call in (connect, undo):
        with pytest.raises(UsageError) as refused:
            call("codex")
        assert re.fullmatch(
            rf"{folder}/codex\.json, which says what was changed, cannot be read \(Expecting .*\): undo the change "
            rf"by hand, and remove that file; {folder}/codex\.backup is what the configuration was",
            str(refused.value),
        )
    assert (folder / "codex.backup").read_text() == "a = 1\n"
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_there_is_no_such_client():
    with pytest.raises(
        UsageError, match=r"^no client emacs: there are codex, claude, opencode, openwebui, zed, "
    ):
        find_client("emacs")


def test_what_is_said_where_nothing_is_changed(home, monkeypatch):
    client = find_client("codex")
    with pytest.raises(UsageError, match=r"^Codex is not connected: there is nothing to undo$"):
        undo("codex")
    path = connect("codex")
    assert Connection(client).connect(client.entries(TARGET)).nothing
    monkeypatch.setenv("CODEX_HOME", str(home / "other"))
    with pytest.raises(UsageError) as refused:
        connect("codex")
    assert str(refused.value) == f"Codex is connected in {path}: take that back first with --undo"
    undo("codex")
    path = write("codex", b"abc\xff")
    with pytest.raises(
        UsageError, match=r"^.*/config\.toml is not UTF-8 text \(byte 3\): nothing is changed$"
    ):
        connect("codex")


def test_mode_and_links_stay(home):
    real = home / "dotfiles" / "codex.toml"
    real.parent.mkdir()
    real.write_text("a = 1\n")
    real.chmod(0o640)
    link = home / ".codex" / "config.toml"
    link.parent.mkdir()
    link.symlink_to(real)
    connect("codex")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert "127.0.0.1" in real.read_text()
    undo("codex")
    assert (link.is_symlink(), real.read_text()) == (True, "a = 1\n")
    real.unlink()
    with pytest.raises(UsageError, match="link"):
        connect("codex")


def test_a_failed_write_leaves_the_file_and_no_record(monkeypatch):
    path = write("codex", "a = 1\n")
    replace = Path.replace

    def full(self, target):
        if Path(target) == path:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SaveFailed, match="No space left"):
        connect("codex")
    assert path.read_text() == "a = 1\n"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(UsageError, match="not connected"):
        undo("codex")


def test_a_process_that_is_killed_before_it_writes_can_be_undone(monkeypatch):
    path = write("codex", before := 'model = "gpt-5"\n')
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(
            "localagent.connect.connection._put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        connect("codex")
    undo("codex")
    assert path.read_text() == before


def test_a_model_chosen_in_the_editor_from_ours_goes_too_and_another_provider_stays():
    for chosen, after in (("localagent", None), ("other", {"provider": "other", "model": "big"})):
        path = write("zed", "{}")
        connect("zed")
        settings = json.loads(path.read_text())
        settings["agent"]["default_model"] = {"provider": chosen, "model": "big"}
        path.write_text(json.dumps(settings))
        undo("zed")
        assert json.loads(path.read_text()) == ({"agent": {"default_model": after}} if after else {})


def test_a_change_between_question_and_answer_is_not_overwritten():
    path = write("codex", "a = 1\n")
    client = find_client("codex")
    connection = Connection(client)
    change = connection.connect(client.entries(TARGET))
    path.write_text("a = 2\n")
    with pytest.raises(UsageError, match="changed by somebody else"):
        connection.write(change)
    assert path.read_text() == "a = 2\n"


def test_values_that_the_user_changed_since_stay_and_are_named():
    path = write("claude", '{"env": {"ANTHROPIC_MODEL": "opus"}}')
    connect("claude")
    settings = json.loads(path.read_text())
    settings["env"] |= {"ANTHROPIC_BASE_URL": "https://other.example", "ANTHROPIC_MODEL": "theirs"}
    path.write_text(json.dumps(settings, indent=4))
    kept = undo("claude")
    assert kept == ("env.ANTHROPIC_BASE_URL", "env.ANTHROPIC_MODEL")
    assert json.loads(path.read_text())["env"] == {
        "ANTHROPIC_BASE_URL": "https://other.example",
        "ANTHROPIC_MODEL": "theirs",
    }


def test_a_model_that_the_client_chose_from_ours_goes_with_our_provider():
    path = write("codex", 'model = "gpt-5"\n')
    connect("codex")
    path.write_text(path.read_text().replace('model = "nano"', 'model = "bigger"'))
    assert undo("codex") == ()
    assert path.read_text() == 'model = "gpt-5"\n'


def test_a_file_that_the_client_wrote_anew_loses_only_ours():
    path = write("claude", '{"env": {"A": "b"}, "x": 1}')
    connect("claude")
    path.write_text(json.dumps({**json.loads(path.read_text()), "added": True}, indent=2))
    undo("claude")
    assert json.loads(path.read_text()) == {"env": {"A": "b"}, "x": 1, "added": True}


def test_neighbours_that_came_later_stay():
    path = write("opencode", '{\n  "theme": "dark"\n}\n')
    connect("opencode")
    settings = json.loads(path.read_text())
    assert "$schema" not in settings, "that is for a file of our own"
    settings["provider"]["other"] = {"npm": "y"}
    path.write_text(json.dumps(settings, indent=2))
    undo("opencode")
    assert json.loads(path.read_text()) == {"theme": "dark", "provider": {"other": {"npm": "y"}}}


def test_a_new_file_says_which_schema_it_has():
    assert json.loads(connect("opencode").read_text())["$schema"] == "https://opencode.ai/config.json"


def test_what_a_new_file_began_with_stays_if_somebody_adds_to_it():
    path = connect("continue")
    path.write_text(path.read_text() + "  - name: mine\n    provider: ollama\n    model: z\n")
    undo("continue")
    assert path.read_text() == (
        'name: Local Config\nversion: "1.0.0"\nschema: v1\nmodels:\n  - name: mine\n    provider: ollama\n    model: z\n'
    )


def test_names_that_a_format_could_misread():
    hostile = ServedModel("http://[::1]:1", 'no"\n]: {}#\\\x7f', 5)
    for name in WITH_FILES:
        path = connect(name, hostile)
        text = path.read_text()
        if name == "codex":
            assert tomllib.loads(text)["model"] == hostile.model
        elif name == "zed":
            assert json.loads(text)["agent"]["default_model"]["model"] == hostile.model
        undo(name)
        assert not path.exists()


@pytest.mark.parametrize("name", WITH_FILES)
def test_no_key_is_ever_written(name, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    path = connect(name, ServedModel("http://127.0.0.1:8080", "nano", None, "MY_KEY"))
    assert "sk-secret" not in path.read_text()
    assert ("MY_KEY" in path.read_text()) == (name != "zed"), "zed has a variable of its own"


@pytest.mark.skipif(sys.platform == "win32", reason="folders")
def test_where_clients_say_their_files_are(home, monkeypatch):
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    assert connect("codex") == home / "elsewhere" / "config.toml"
    monkeypatch.setenv("CODEX_HOME", str(home / "third"))
    with pytest.raises(UsageError, match="is connected in"):
        connect("codex")
    undo("codex")
    assert not list(home.iterdir())
    (home / ".config" / "opencode").mkdir(parents=True)
    commented = home / ".config" / "opencode" / "opencode.jsonc"
    commented.write_text("{}")
    assert connect("opencode") == commented
