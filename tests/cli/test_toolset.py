"""Tools and completions of a command without a model: which are opened, what is refused, what is listed."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from localagent.agent import Rule
from localagent.cli import completing, tools
from localagent.cli.naming import Preferences
from localagent.cli.options import ToolOptions
from localagent.connect.clients import CLIENTS
from localagent.errors import UsageError
from localagent.session import SessionStore
from localagent.toolbox import SHIPPED
from localagent.tools import tool
from parsers import DIALECTS


@tool
def look() -> str:
    """Look."""
    return ""


def opened(said=None, **options):
    with ExitStack() as stack:
        return tools.open_tools(ToolOptions(**options), stack, (said if said is not None else []).append)


def test_rules_that_forbid_come_first():
    options = ToolOptions(allow=["a", "b"], ask=["c"], deny=["d"])
    assert tools.rules(options) == [
        Rule("deny", "d"),
        Rule("allow", "a"),
        Rule("allow", "b"),
        Rule("ask", "c"),
    ]
    assert tools.rules(ToolOptions()) == []


def test_what_is_kept_is_kept_for_a_folder_and_not_where_one_asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    assert tools.permissions(ToolOptions()).folder == tmp_path
    assert tools.permissions(ToolOptions(root=tmp_path / "inner")).folder == tmp_path / "inner"
    assert tools.permissions(ToolOptions(ask=["x"])) is None


def test_tools_are_opened_by_their_names_and_functions(tmp_path, monkeypatch):
    (tmp_path / "own_of_a_test.py").write_text(
        'class A:\n    @staticmethod\n    def ring(times: int) -> str:\n        """Ring."""\n        return ""\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    found = opened(tools=["time, calculator,", "files"], functions=["own_of_a_test:A.ring"], root=tmp_path)
    names = [each.name for each in found]
    assert names == ["current_time", "calculate", "list_files", "read_file", "search_files", "ring"]
    assert sys.path[0] == str(tmp_path)
    opened(functions=["own_of_a_test:A.ring"])
    assert sys.path.count(str(tmp_path)) == 1
    assert opened() == []


@pytest.mark.parametrize("named", ["x", "x:", ":y", ""])
def test_a_function_is_named_with_its_module(named):
    with pytest.raises(UsageError) as error:
        tools.read_function(named)
    assert str(error.value).endswith(": name a module and a function in it, as MODULE:FUNCTION")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no_such_module_here:f", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("json:no.such", "AttributeError: module 'json' has no attribute 'no'"),
    ],
)
def test_a_function_that_cannot_be_imported(named, says):
    with pytest.raises(UsageError) as error:
        tools.read_function(named)
    assert str(error.value) == f"--tool {named} cannot be imported: {says}"


def test_a_pattern_that_fits_nothing_is_refused_and_with_servers_only_told(monkeypatch, tmp_path):
    for how in ("allow", "ask", "deny"):
        with pytest.raises(UsageError) as error:
            opened(tools=["time"], **{how: ["current_*", "x*"]})
        assert str(error.value) == f"--{how} x* fits none of the tools: current_time"
    made, problems = [], []

    class Servers:
        def __enter__(self):
            made.append("opened")
            return self

        def __exit__(self, *_):
            made.append("closed")

        def tools(self):
            return [look]

        @classmethod
        def from_file(cls, file, on_problem):
            made.append(file)
            problems.append(on_problem)
            return cls()

    monkeypatch.setattr("localagent.mcp.McpServers", Servers)
    file = tmp_path / "mcp.json"
    for typing in (False, True):
        monkeypatch.setattr(
            tools, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda typing=typing: typing))
        )
        said = []
        found = opened(said, tools=["time"], mcp=file, deny=["look", "x"])
        assert [getattr(each, "name", "servers") for each in found] == ["current_time", "servers"]
        assert said == [
            *([f"(starting the MCP servers of {file})"] if typing else []),
            "warning: --deny x fits none of the tools: current_time, look",
        ]
        assert made == [file, "opened", "closed"]
        made.clear()
        said.clear()
        problems.pop()("a", UsageError("it ended"))
        assert said == ["localagent: it ended"]


def test_the_tools_are_listed_with_those_that_ask(capsys):
    tools.list_tools(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == [f"{name:<12}{entry.description}" for name, entry in SHIPPED.items()]
    assert "  current_time(timezone)" in lines
    assert "  write_file(path, content) (asks)" in lines
    tools.list_tools(as_json=True)
    schemas = json.loads(capsys.readouterr().out)
    assert [*schemas] == [*SHIPPED]
    assert [each["function"]["name"] for each in schemas["files"]] == [
        "list_files",
        "read_file",
        "search_files",
    ]


# Completion


def test_names_are_completed_from_what_there_is(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    Preferences(aliases={"lfast": "lfm2-nano"}).write()
    session = SessionStore().create(title="t")
    monkeypatch.setattr(
        "localagent.store.repository.installed",
        lambda _: [SimpleNamespace(name="hf:a/b"), SimpleNamespace(name="hf:a/\x1b")],
    )
    assert completing.model_names("lf")[0] == "lfast"
    assert "lfm2-nano" in completing.model_names("lfm2-")
    assert completing.model_names("hf:") == ["hf:a/b"], "what could control a terminal is left out"
    assert completing.session_names("") == ["last", session.id]
    assert completing.tool_names("time,c") == ["time,calculator"]
    assert completing.tool_names("time,web,c") == ["time,web,calculator"]
    assert completing.tool_names("") == [*SHIPPED]
    assert completing.dialect_names("") == ["auto", *DIALECTS]
    assert completing.client_names("c") == [each for each in CLIENTS if each.startswith("c")]


def test_a_completion_that_fails_completes_nothing():
    @completing._quietly
    def names():
        yield "a"
        raise OSError

    assert names("a") == []
