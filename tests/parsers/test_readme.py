"""parsers/README.md tells the truth: its example runs, its tables are complete and its rules hold."""

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
_TABLE = README.partition("| rule | what | output |")[2].partition("\n\n")[0]
LFM2 = set(re.findall(r"^\| ([a-z0-9-]+) \|", _TABLE, re.MULTILINE))
N_ALONE = {"properties": {"n": {"type": "integer"}}}
ANY_OTHERS = {**N_ALONE, "additionalProperties": True}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": ANY_OTHERS}},
    {"type": "function", "function": {"name": "g", "parameters": N_ALONE}},
]


def rules():
    for line in README.splitlines():
        cells = [cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").split("|")][1:-1]
        if len(cells) == 6 and cells[0] in LFM2:
            yield pytest.param(*cells[2:], id=f"{cells[0]}: {cells[1]}")


def plain(cell: str) -> str:
    return cell.strip("`").replace("START", START).replace("END", END)


@pytest.mark.parametrize(("output", "content", "calls", "kept"), list(rules()))
def test_the_rules_hold(output, content, calls, kept):
    flagged = output.startswith("(flags)")
    raw = plain(output.removeprefix("(flags) "))
    found = outcome(read("lfm2", [(raw, False if flagged else None)], tools=TOOLS))
    described = [
        f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments.items())})"
        for name, arguments in found["calls"]
    ]
    assert found["content"] == plain(content)
    assert " ".join(described) == plain(calls)
    assert " ".join(found["malformed"]) == kept


def test_every_rule_with_an_example_is_there():
    assert len(list(rules())) >= 26


def test_the_rules_that_the_code_cites_are_in_the_tables():
    named = set(re.findall(r"^\| ([a-z-]+) \|", README, re.MULTILINE))
    folder = Path(parsers.__file__).parent
    texts = [path.read_text() for path in folder.rglob("*.py")]
    cited = {name for text in texts for name in re.findall(r"[^\w\[`.]\[([a-z]+(?:-[a-z]+)+)\]", text)}
    assert len(cited) > 25
    assert cited - {"a-z"} <= named


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
