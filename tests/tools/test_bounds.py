"""Tools that are too large, or too many, are refused by name, with their length and the bound."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.agent import Agent
from localagent.errors import InvalidTool
from localagent.tools import Tool, tool
from localagent.tools.bounds import TOOL_BOUNDS, ToolBounds, ToolRoom
from tests.agent.replaying import scripted

SOME = {"name": "f", "description": "", "parameters": {}}
ENDLESS: dict[str, Any] = {}
ENDLESS["a"] = ENDLESS
DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"a": DEEP}
LARGE = [
    ({"name": ""}, "a tool without a name: models call tools by name", "name"),
    (
        {"name": "n" * 100_000},
        f"tool '{'n' * 59}: its name has 100,000 characters, and at most 256 are taken",
        "name",
    ),
    (
        {"description": "d" * 50_001},
        "tool f: its description has 50,001 characters, and at most 50,000 are taken",
        "description",
    ),
    (
        {"parameters": {"enum": ["é" * 499_987]}},
        "tool f: its schema has 500,001 characters, and at most 500,000 are taken",
        "schema",
    ),
    ({"parameters": ENDLESS}, "tool f: its schema is not JSON: Circular reference detected", "schema"),
    ({"parameters": DEEP}, "tool f: its schema is not JSON: it is nested too deep", "schema"),
]


def schemas(count: int, **more: Any) -> list[dict[str, Any]]:
    named = ({**SOME, "name": f"f{number}", **more} for number in range(count))
    return [{"type": "function", "function": function} for function in named]


def made(**fields: Any) -> Tool:
    return Tool(**{**SOME, **fields}, bind=lambda arguments: lambda context: 1)


@pytest.mark.parametrize(("fields", "says", "part"), LARGE)
def test_a_tool_that_is_too_large_is_refused(fields, says, part):
    with scripted("Hello.") as model:
        for attempt in (
            lambda: model.stream("Go.", tools=[{"type": "function", "function": {**SOME, **fields}}]),
            lambda: made(**fields),
        ):
            with pytest.raises(InvalidTool) as refused:
                attempt()
            assert (str(refused.value), refused.value.part) == (says, part)


def test_what_is_not_json_is_measured_all_the_same():
    """What else is wrong with a schema is for others to say."""
    assert TOOL_BOUNDS.check("f", None, {"a": {1}, (2,): 3, "nan": float("nan")}) > 0


def test_a_function_that_is_too_large_is_no_tool():
    with pytest.raises(InvalidTool, match=r"^tool f: its description has 50,001 characters"):

        @tool(description="d" * 50_001)
        def f() -> None: ...


TOGETHER = [
    (1_000, {}, None),
    (1_001, {}, "tool f1000: it is one more than the 1,000 that are taken"),
    (40, {"description": "d" * 49_995}, None),
    (
        41,
        {"description": "d" * 49_995},
        "tool f40: with it all tools together have 2,049,990 characters, and at most 2,000,000 are taken",
    ),
]


@pytest.mark.parametrize(("count", "more", "says"), TOGETHER)
def test_tools_that_are_too_many_or_too_large_together_are_refused(count, more, says):
    every = schemas(count, **more)
    functions = [made(**schema["function"]) for schema in every]
    with scripted("Hello.") as model:
        for attempt in (lambda: model.stream("Go.", tools=every), lambda: Agent(model, functions)):
            if says is None:
                attempt()
                continue
            with pytest.raises(InvalidTool) as refused:
                attempt()
            assert str(refused.value) == says


def test_what_was_refused_takes_no_room():
    room = ToolRoom(ToolBounds(together=20, count=2))
    room.add("f", "", {})
    for large in ("d" * 99, "d" * 15):
        with pytest.raises(InvalidTool):
            room.add("g", large, {})
    room.add("h", "d" * 13, {})
    with pytest.raises(InvalidTool, match="one more than the 2 that are taken"):
        room.add("i", "", {})
