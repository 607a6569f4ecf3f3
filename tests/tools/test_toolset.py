"""Names of tools and parameters are shown as identifiers, and found again as models write them."""

from __future__ import annotations

import keyword
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from localagent.errors import InvalidTool
from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolContext, ToolSet, tool
from localagent.tools.toolset import normal_name, shown_name, shown_to_models
from parsers import DIALECTS, StreamParser, collect

CONTEXT = ToolContext(call=ToolCallPart(id="1", name="f"))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def plain(name: str, *parameters: str, required: tuple[str, ...] = ()) -> Tool:
    return Tool(
        name=name,
        description="",
        parameters={
            "type": "object",
            "properties": {each: {"type": "integer"} for each in parameters},
            "required": list(required),
        },
        bind=lambda arguments: lambda context: dict(arguments),
    )


def call(found: Tool | None, **arguments: Any) -> Any:
    assert found is not None
    return found.bind(arguments)(CONTEXT)


@pytest.mark.parametrize(
    ("name", "shown", "normal"),
    [
        ("search", "search", "search"),
        ("my-server.search", "my_server_search", "my_server_search"),
        ("a/b c:d", "a_b_c_d", "a_b_c_d"),
        ("getWeather", "getWeather", "getweather"),
        ("3d", "_3d", "_3d"),
        ("class", "_class", "_class"),
        ("None", "_None", "_none"),
        ("none", "none", "_none"),
        ("größe", "gr__e", "gr__e"),
    ],
)
def test_a_name_is_shown_as_an_identifier_and_compared_without_case(name, shown, normal):
    assert shown_name(name) == shown
    assert normal_name(name) == normal
    assert normal_name(shown) == normal


@given(st.text(min_size=1))
def test_a_shown_name_is_a_name_and_means_its_tool(name):
    shown = shown_name(name)
    assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", shown)
    assert not keyword.iskeyword(shown)
    assert normal_name(shown) == normal_name(name)
    assert shown_name(shown) == shown


def test_a_set_of_tools():
    other = plain("my-server.search", "q")
    tools = ToolSet([add, other])
    assert [each["function"]["name"] for each in tools.schemas] == ["add", "my_server_search"]
    assert tools.schemas[0] == add.schema
    assert tools.names == ("add", "my-server.search")
    assert len(tools) == 2
    assert next(iter(tools)) is add
    assert [each.name for each in tools] == ["add", "my-server.search"]
    assert [each.name for each in ToolSet(tools)] == ["add", "my-server.search"]
    assert repr(tools) == "ToolSet(add, my-server.search)"
    assert len(ToolSet()) == 0
    assert ToolSet().schemas == []


@pytest.mark.parametrize(
    "written",
    ["my-server.search", "my_server_search", "my_server.search", "My-Server/search", "my server:search"],
)
def test_a_tool_is_found_by_what_models_write(written):
    tools = ToolSet([add, plain("my-server.search")])
    assert tools.find(written).name == "my-server.search"
    assert written in tools


def test_what_is_not_there_is_not_found():
    tools = ToolSet([add])
    assert tools.find("ad") is None
    assert tools.find("") is None
    assert "ad" not in tools
    assert 3 not in tools


def test_functions_become_tools():
    def f(x: int) -> int:
        return x

    assert call(ToolSet([f]).find("F"), x="1") == 1


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([add, add], "two tools that models cannot tell apart: add and add; rename one"),
        ([plain("a.b"), plain("A-b")], "two tools that models cannot tell apart: a.b and A-b; rename one"),
        ([3], "3 is not a function but a int"),
        (add, "tools must be a list of tools, not a FunctionTool"),
        ("abc", "tools must be a list of tools, not a str"),
        ([plain("f", "a-b", "a_b")], "tool f: models cannot tell its parameters a-b and a_b apart"),
    ],
)
def test_what_is_no_set_of_tools_is_refused(tools, says):
    with pytest.raises(InvalidTool) as refused:
        ToolSet(tools)
    assert str(refused.value) == says


def test_parameters_that_are_no_identifiers():
    given_ = plain("f", "max-results", "from", "3d", "x", required=("max-results", "x"))
    shown = shown_to_models(given_)
    assert shown.normal({"max_results": 1, "X": 4, "other": 5}) == {"max-results": 1, "x": 4, "other": 5}
    assert list(shown.parameters["properties"]) == ["max_results", "from", "_3d", "x"]
    assert shown.parameters["required"] == ["max_results", "x"]
    Draft202012Validator.check_schema(shown.parameters)
    assert shown.name == "f"
    written = {"max_results": 1, "from": 2, "_3d": 3, "X": 4}
    assert call(shown, **written) == {"max-results": 1, "from": 2, "3d": 3, "x": 4}
    assert call(shown, **{"max-results": 1, "unknown": 2}) == {"max-results": 1, "unknown": 2}
    assert given_.parameters["required"] == ["max-results", "x"]


def test_names_shown_exactly_go_before_similar_ones():
    shown = shown_to_models(plain("f", "a-b", "A_B"))
    assert list(shown.parameters["properties"]) == ["a_b", "A_B"]
    assert call(shown, a_b=1) == {"a-b": 1}
    assert call(shown, A_B=1) == {"A_B": 1}


def test_a_call_in_lfm2s_own_syntax_reaches_its_tool():
    tools = ToolSet([plain("my-server.search", "max-results", "from")])
    (schema,) = tools.schemas
    name = schema["function"]["name"]
    first, second = schema["function"]["parameters"]["properties"]
    parser = StreamParser(DIALECTS["lfm2"], tools=tools.schemas)
    text = f"<|tool_call_start|>[{name}({first}=1, {second}=2)]<|tool_call_end|>"
    (found,) = collect(parser.feed(text) + parser.close())
    assert call(tools.find(found.name), **found.arguments) == {"max-results": 1, "from": 2}


def test_a_schema_without_properties_is_left_alone():
    odd = Tool(
        name="f", description="", parameters={"type": "object"}, bind=lambda arguments: lambda context: 1
    )
    assert shown_to_models(odd) is odd


def test_an_unknown_tool_is_answered_with_what_there_is():
    tools = ToolSet([add, plain("my-server.search"), plain("notes")])
    assert tools.unknown("my_server_serch") == (
        "There is no tool my_server_serch. Did you mean my_server_search? "
        "The tools are: my_server_search, add, notes."
    )
    assert tools.unknown("zzz") == "There is no tool zzz. The tools are: add, my_server_search, notes."
    assert ToolSet().unknown("x") == "There is no tool x. There are no tools."


def test_the_answer_is_bounded():
    tools = ToolSet([plain(f"tool{n}") for n in range(100)])
    assert "and 80 more." in tools.unknown("other")
    found = tools.unknown("\ud800\n" * 100_000)
    assert len(found) < 500
    found.encode()
