"""parsers/README.md tells the truth: its example runs, its tables are complete and its policies hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import parsers
from parsers import DIALECTS, CallEnd, Reason, collect
from tests.parsers.outputs import END, START
from tests.parsers.reading import outcome, read

README = (Path(parsers.__file__).parent / "README.md").read_text()
ANY_OTHERS = {"properties": {"n": {"type": "integer"}}, "additionalProperties": True}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": ANY_OTHERS}}]
NO_OTHERS = [{"name": "f", "parameters": {"properties": ANY_OTHERS["properties"]}}]
"""For wrappers, which could be arguments of a tool that takes others."""


def policies():
    for line in README.splitlines():
        cells = [cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").split("|")][1:-1]
        if len(cells) == 6 and cells[0].isdigit():
            yield pytest.param(*cells[2:], id=f"{cells[0]}: {cells[1]}")


def plain(cell: str) -> str:
    return cell.strip("`").replace("START", START).replace("END", END)


@pytest.mark.parametrize(("output", "content", "calls", "kept"), list(policies()))
def test_the_policies_hold(output, content, calls, kept):
    flagged = output.startswith("(flags)")
    raw = plain(output.removeprefix("(flags) "))
    found = outcome(
        read("lfm2", [(raw, False if flagged else None)], tools=NO_OTHERS if "properties=" in raw else TOOLS)
    )
    described = [
        f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments.items())})"
        for name, arguments in found["calls"]
    ]
    assert found["content"] == plain(content)
    assert " ".join(described) == plain(calls)
    assert " ".join(found["malformed"]) == kept


def test_every_policy_with_an_example_is_there():
    assert len(list(policies())) >= 26


def test_every_dialect_is_named():
    assert [name for name in DIALECTS if f"`{name}`" not in README] == []


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["parts"] == collect(names["events"])
    assert any(isinstance(event, CallEnd) for event in names["events"])


def test_every_event_and_reason_is_there():
    for name in (
        "Text",
        "Reasoning",
        "Markup",
        "CallStart",
        "ArgumentsDelta",
        "ArgumentEnd",
        "CallEnd",
        "Malformed",
    ):
        assert f"| `{name}(" in README
    for reason in Reason:
        assert f"`{reason}`" in README
