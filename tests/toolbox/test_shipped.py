"""The table of what ships, and that looking at it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localagent.errors import UsageError
from localagent.toolbox import SHIPPED, shipped
from localagent.tools import ToolSet

TOOLS = {
    "time": ["current_time"],
    "calculator": ["calculate"],
    "files": ["list_files", "read_file", "search_files"],
    "write": ["list_files", "read_file", "search_files", "write_file"],
    "web": ["http_get"],
    "notes": ["add_note", "find_notes", "remove_note"],
}
ASKS = {"write_file", "http_get", "remove_note"}


def test_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAGENT_HOME", str(tmp_path))
    assert list(SHIPPED) == list(TOOLS)
    for name, names in TOOLS.items():
        assert [tool.name for tool in shipped([name], tmp_path)] == names
        assert SHIPPED[name].description
    tools = shipped([*SHIPPED, "time"], tmp_path)
    assert len({tool.name for tool in tools}) == len(tools) == 10
    assert {tool.name for tool in tools if tool.side_effects} == ASKS
    assert all(tool.description and tool.kind for tool in tools)
    for tool in tools:
        for name, schema in tool.parameters["properties"].items():
            assert schema["description"], f"{tool.name}: {name}"
    ToolSet(tools)
    assert shipped([], tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "nothing is written before a tool is called"


def test_names_and_folders_that_are_none(tmp_path):
    with pytest.raises(
        UsageError, match="no tools called 'shell': choose time, calculator, files, write, web, notes"
    ):
        shipped(["time", "shell"], tmp_path)
    with pytest.raises(UsageError, match="folder of file tools"):
        shipped(["files"], tmp_path / "missing")
    assert shipped(["time"], tmp_path / "missing"), "the others do not look at it"


def test_importing_it_loads_no_tool():
    code = "import sys, localagent.toolbox; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert "localagent.toolbox" in loaded
    assert not loaded & {"pydantic", "http.client", "ssl", "localagent.toolbox.web", "localagent.tools"}


def test_a_missing_package_is_one_line_with_the_command():
    code = (
        "import sys; sys.modules['lxml'] = None; from localagent.toolbox import shipped\n"
        "try: shipped(['web'], '.')\nexcept Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UsageError the web tool is not installed: ")
    assert " install " in done.stdout and "[web]" in done.stdout and done.stdout.count("\n") == 1


def test_the_libraries_of_the_web_tool_wait_for_the_first_call():
    code = "import sys, localagent.toolbox.web; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"httpx2", "lxml", "ssl"}
