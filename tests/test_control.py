"""Options of a turn beside the sampling: what they mean, and what means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.control import Control, after_calls, control_of, prompt_options, prose_options
from localagent.errors import UsageError

SCHEMA = {"type": "object"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "add")]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CHOICES = "it must be 'auto', 'none', 'required' or the name of a tool"
FORMATS = '{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"} or None'
NEEDS = 'response_format of the type "json_schema" needs "json_schema": {"name": ..., "schema": ...}'
EITHER = "and response_format asks for an answer: a turn can end in a call or in an answer"


@pytest.mark.parametrize(
    ("said", "choice", "named"),
    [
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ("look", "", "look"),
        ({"type": "function", "function": {"name": "look"}}, "", "look"),
        ({"type": "function", "name": "look"}, "", "look"),
        ({"type": "function", "function": {"name": "auto"}}, "", "auto"),
    ],
)
def test_which_tool_is_to_be_called(said, choice, named):
    made = Control(tool_choice=said)
    assert (made.choice, made.named) == (choice, named)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strict": 1}, "strict is 1: it must be True or False"),
        ({"parallel_tool_calls": None}, "parallel_tool_calls is None: it must be True or False"),
        *(
            ({"tool_choice": wrong}, f"tool_choice is {wrong!r}: {CHOICES}")
            for wrong in (
                "", 3, None, {"type": "any"}, {"type": "function"}, {"type": "function", "function": {}},
                {"type": "function", "function": {"name": ""}}, {"type": "function", "function": {"name": 3}},
                {"type": "function", "function": "look"},
            )
        ),
        ({"response_format": "json"}, f"response_format is 'json': it must be {FORMATS}"),
        ({"response_format": {}}, f"response_format is {{}}: it must be {FORMATS}"),
        ({"response_format": {"type": "xml"}}, f"response_format is {{'type': 'xml'}}: it must be {FORMATS}"),
        ({"response_format": {"type": "json_schema"}}, NEEDS),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, NEEDS),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, NEEDS),
        ({"response_format": FORMAT, "tool_choice": "required"}, f"tool_choice is 'required', {EITHER}"),
        ({"response_format": {"type": "json_object"}, "tool_choice": "look"}, f"tool_choice is 'look', {EITHER}"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(options, says):
    with pytest.raises(UsageError) as refused:
        Control(**options)
    assert str(refused.value) == says


def test_what_an_answer_has_to_be():
    text: dict[str, Any] = {"response_format": {"type": "text"}}
    assert not Control().answers and not Control(**text).answers
    assert Control(**text, tool_choice="required").choice == "required"
    assert Control(response_format=FORMAT, tool_choice="none").answers
    anything = Control(response_format={"type": "json_object"})
    assert (anything.answers, anything.answer_schema) == (True, None)
    fitting = Control(response_format=FORMAT)
    assert (fitting.answers, fitting.answer_schema) == (True, SCHEMA)
    never = {"type": "json_schema", "json_schema": {"schema": False}}
    assert Control(response_format=never).answer_schema is False


@pytest.mark.parametrize(
    ("choice", "tools", "says"),
    [
        ("auto", None, None),
        ("none", TOOLS, None),
        ("required", TOOLS, None),
        ("look", TOOLS, None),
        ("look", [{"name": "look"}], None),
        ("required", [], "tool_choice is 'required', and there are no tools: give some"),
        ("fly", TOOLS, "tool_choice is 'fly', and no tool has that name: there are look, add"),
        ("fly", None, "tool_choice is 'fly', and no tool has that name: there are none"),
        ("auto", [*TOOLS, TOOLS[0]], "two tools are called 'look': a call would not say which is meant"),
        *(
            (
                "auto",
                [wrong],
                f"{wrong!r} is no tool: it must be "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}',
            )
            for wrong in (3, {}, {"function": "look"}, {"function": {"name": 3}})
        ),
    ],
)
def test_the_tools_have_to_be_there(choice, tools, says):
    if says is None:
        Control(tool_choice=choice).check_tools(tools)
        return
    with pytest.raises(UsageError) as refused:
        Control(tool_choice=choice).check_tools(tools)
    assert str(refused.value) == says


def test_which_options_are_for_what():
    sampling = {"temperature": 0.5, "stop": "x"}
    thinking = {"thinking": True, "thinking_budget": 9}
    bounds = {"tool_choice": "look", "parallel_tool_calls": False, "response_format": None, "strict": True}
    options = {**sampling, **thinking, **bounds}
    made = control_of(options)
    assert made == Control(**thinking, **bounds)
    assert control_of(sampling) == Control()
    assert prose_options(options) == {**sampling, **thinking}
    assert prompt_options(options) == thinking
    assert prompt_options({"thinking": None}) == {"thinking": None}
    free = {name: value for name, value in options.items() if name != "tool_choice"}
    for choice in ("look", "required", {"type": "function", "function": {"name": "look"}}):
        assert after_calls({**options, "tool_choice": choice}) == free
    for choice in ("auto", "none"):
        assert after_calls({**options, "tool_choice": choice}) == {**options, "tool_choice": choice}
    assert options["tool_choice"] == "look", "what was given stays as it was"
    plain = Control()
    assert (plain.tool_choice, plain.parallel_tool_calls, plain.strict) == ("auto", True, False)
    assert (plain.response_format, plain.thinking, plain.thinking_budget, plain.end_thinking) == (None,) * 4
