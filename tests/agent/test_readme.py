"""The examples in the agent's README run, its tree is the folder, and its tables list what there is."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest

import localagent
from localagent.agent import AgentEvent
from localagent.agent.middleware import HOOKS, Hooks
from tests.agent.replaying import block, scripted

FOLDER = Path(__file__).parents[2] / "localagent" / "agent"
README = (FOLDER / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


@pytest.mark.engine
@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_examples_run(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert re.search(r"RunDone\(|^answer, 2 turns, \d+ tokens$", capsys.readouterr().out, re.MULTILINE)


def test_the_tree_is_the_tree():
    (tree,) = (text for kind, text in BLOCKS if not kind)
    named = {line.split()[0] for line in tree.splitlines()}
    assert named == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}


def test_the_loop_shows_what_it_should(monkeypatch, capsys):
    (code,) = (text for kind, text in BLOCKS if "case Reasoning" in text)
    calls = block("send_message(to='Bob', text='red fox')", "send_message(to='Eve', text='no')")
    model = scripted(f"<think>Hm.</think>Moment. {calls}", "Done.")
    monkeypatch.setattr(localagent, "load", lambda name: model)
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    for shown in (
        "(Hm.)", "Moment.", 'may I? send_message(to="Bob", text="red fox")', "Allow(always=False)",
        "Deny(reason='not today'", "send_message ...", "send_message: connecting 50%",
        "send_message answered: ok", "send_message failed: Denied", "Done.\nanswer, 2 turns, ",
    ):  # fmt: skip
        assert shown in said, shown


def rows(heading: str) -> list[list[str]]:
    """The cells of the table of which this is the first column."""
    table = README.partition(f"\n| {heading} | when |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_table_lists_all_events_with_their_fields():
    told = {row[0]: row[2] for row in rows("event")}
    assert all(len(row) == 3 and row[1] for row in rows("event"))
    events = typing.get_args(AgentEvent)
    assert sorted(told) == sorted(f"`{event.__name__}`" for event in events)
    for event in events:
        fields = [field.name for field in dataclasses.fields(event)]
        if {"start", "end"} <= {*fields}:  # the span that every event of the parser has
            fields = [name for name in fields if name not in ("start", "end")]
        assert re.findall("`(.*?)`", told[f"`{event.__name__}`"]) == fields, event


def test_the_table_lists_all_hooks():
    found = [re.fullmatch(r"`(\w+)\((.*), run\)`|`(\w+)\(run\)`", row[0]) for row in rows("hook")]
    assert all(len(row) == 3 and all(row) for row in rows("hook"))
    assert [match[1] or match[3] for match in found if match] == list(HOOKS)
    documented = inspect.getdoc(inspect.getmodule(Hooks))
    for row in rows("hook"):
        assert f"    {row[0].strip('`')} " in documented, row[0]
