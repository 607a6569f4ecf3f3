"""Hints and answers count for a tool as it was when they were given, and for no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import Tool as ListedTool

from localagent.agent import Agent, Allow, Approvals, Deny, Rule
from localagent.errors import ToolError
from localagent.mcp import McpServers
from localagent.mcp.config import HttpServer, StdioServer
from localagent.mcp.tools import offered_tool
from tests.agent.replaying import block, follow, scripted
from tests.mcp.conftest import context, eventually, hostile, tool_of

SERVER = StdioServer(name="s", command="serve")


def listed(**fields: Any) -> ListedTool:
    tool = {"name": "t", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    return ListedTool.model_validate({**tool, **fields})


def offered(now: ListedTool, first: ListedTool | None, server: Any = SERVER) -> Any:
    return offered_tool(server, now, first, False, lambda *_: None)


@pytest.mark.parametrize(
    ("hints", "asks"),
    [
        ({"readOnlyHint": True}, False),
        ({"readOnlyHint": True, "destructiveHint": False}, False),
        ({"readOnlyHint": True, "destructiveHint": True}, True),
        ({"readOnlyHint": False}, True),
        ({"destructiveHint": False}, True),
        ({}, True),
        (None, True),
    ],
)
def test_which_hints_ask(hints, asks):
    tool = listed(annotations=hints)
    assert offered(tool, tool).side_effects is asks


@pytest.mark.parametrize(
    ("hints", "kind"),
    [
        ({"readOnlyHint": True}, "read"),
        ({"readOnlyHint": True, "destructiveHint": True}, "edit"),
        ({"readOnlyHint": False, "destructiveHint": False}, None),
        ({}, None),
        (None, None),
    ],
)
def test_hints_say_what_kind_of_tool_it_is(hints, kind):
    tool = listed(annotations=hints)
    assert offered(tool, tool).kind == kind
    assert offered(listed(annotations=hints, description="Another."), tool).kind != "read"


CHANGES = [
    {"description": "Another."},
    {"title": "Another"},
    {"inputSchema": {"type": "object", "properties": {"a": {}}}},
    {"outputSchema": {"type": "object"}},
    {"annotations": {"readOnlyHint": True, "openWorldHint": True}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_tool_that_is_not_as_it_was_at_first_asks(change):
    first, now = listed(), listed(**change)
    assert offered(now, first).side_effects
    assert offered(now, None).side_effects, "a new name is no way around it"
    assert not offered(now, now).side_effects
    allowing = StdioServer(name="s", command="serve", allowed=frozenset("t"))
    assert offered(now, first, allowing).side_effects
    assert not offered(now, None, allowing).side_effects


def test_what_is_no_change():
    assert not offered(listed(_meta={"at": 2}), listed(_meta={"at": 1})).side_effects


@pytest.mark.parametrize("change", CHANGES)
def test_always_is_said_of_a_tool_as_it_was(change):
    approvals = Approvals()
    first, now = offered(listed(), listed()), offered(listed(**change), listed())
    approvals.remember(first, Allow(always=True))
    call = context().call
    assert approvals.decide(first, call) == Allow(always=True)
    assert approvals.decide(offered(listed(), listed()), call) == Allow(always=True), "listed once more"
    assert approvals.decide(now, call) is None
    assert (approvals.has_changed(first), approvals.has_changed(now)) == (False, True)
    approvals.remember(now, Allow(always=True))
    assert approvals.decide(now, call) == approvals.decide(first, call) == Allow(always=True)
    assert not approvals.has_changed(now)


@pytest.mark.parametrize("change", CHANGES)
def test_also_one_that_always_asked_may_change(change):
    approvals = Approvals()
    approvals.remember(offered(listed(), None), Allow(always=True))
    assert approvals.decide(offered(listed(**change), None), context().call) is None


@pytest.mark.parametrize(
    "server",
    [
        StdioServer(name="other", command="serve"),
        StdioServer(name="s", command="another"),
        StdioServer(name="s", command="serve", args=("-x",)),
        StdioServer(name="s", command="serve", cwd="/tmp"),
        HttpServer(name="s", url="http://127.0.0.1/"),
    ],
)
def test_always_is_not_said_of_another_servers_tool(server):
    approvals = Approvals([Rule("ask")])
    tool = listed()
    approvals.remember(offered(tool, tool), Allow(always=True))
    call = context().call
    assert approvals.decide(offered(tool, tool), call) == Allow(always=True)
    assert approvals.decide(offered(tool, tool, server), call) is None


def test_never_is_said_of_a_name():
    approvals = Approvals()
    approvals.remember(offered(listed(), listed()), Deny("no", always=True))
    assert approvals.decide(offered(listed(description="Another."), None), context().call) == Deny(
        "no", always=True
    )


SAID = [
    {"description": "Another."},
    {"inputSchema": {"type": "object", "properties": {"a": {}}}},
    {"annotations": {"readOnlyHint": True, "destructiveHint": True}},
    {"annotations": {"readOnlyHint": True, "openWorldHint": False}},
    {"name": "new"},
]


@pytest.mark.parametrize("said", SAID)
def test_a_list_that_changed_asks_anew(said, tmp_path):
    """The tool reads only, and so does not ask; by the second run it says something else of itself."""
    asked: list[tuple[str, bool]] = []

    def approve(requests):
        asked.extend((request.tool.name, request.changed) for request in requests)
        return [Allow(always=True) for _ in requests]

    config = {"h": hostile("changes", json.dumps(said), str(tmp_path / "changed"))}
    name = said.get("name", "t")
    with McpServers(config, prefix=False) as servers:
        approvals = Approvals(approver=approve)

        def run(called):
            _, done = follow(Agent(scripted(block(f"{called}()"), "x"), [servers], approvals=approvals))
            return done.messages[2].results[0]

        before = tool_of(servers, "t")
        assert run("t").text == "fine"
        assert asked == []
        eventually(lambda: servers.tools()[0].identity != before.identity)
        with pytest.raises(ToolError, match="has changed or withdrawn its tool 't' since it was offered"):
            before.bind({})(context())
        assert [run(name).text for _ in range(2)] == ["fine"] * 2
        assert asked == [(name, False)]
