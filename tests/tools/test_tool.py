"""A tool as a value: what makes two of them the same one, to a person who said that it may run."""

from __future__ import annotations

import dataclasses

import pytest

from localagent.errors import InvalidTool
from localagent.tools import Tool, tool


def work(arguments):
    return lambda _: None


def made(**changed) -> Tool:
    given = {
        "name": "send",
        "description": "Send a text.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        "bind": work,
    }
    return Tool(**given | changed)


def test_a_tool_of_which_nothing_is_said_is_an_ordinary_one():
    one = made()
    assert not (one.side_effects or one.sequential or one.repeatable)
    assert one.timeout is one.kind is None


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "show"},
        {"description": "Send a text to everybody."},
        {"parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 3}}}},
        {"side_effects": True},
        {"kind": "edit"},
        {"bind": lambda _: work},
        {"origin": "another server's"},
    ],
)
def test_a_tool_that_looks_or_works_otherwise_is_another(changed):
    assert made().identity == made().identity
    assert made(**changed).identity != made().identity


@pytest.mark.parametrize("changed", [{"timeout": 3.0}, {"sequential": True}, {"repeatable": True}])
def test_how_it_is_run_makes_no_other_tool(changed):
    assert made(**changed).identity == made().identity


def test_the_order_in_which_a_schema_is_written_means_nothing():
    one = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}
    other = {"properties": {"b": {}, "a": {"type": "string"}}, "type": "object"}
    assert made(parameters=one).identity == made(parameters=other).identity


def test_a_copy_with_another_binding_does_the_same_work():
    original = made()
    copy = dataclasses.replace(original, bind=lambda _: original.bind({}))
    assert copy.identity == original.identity
    assert copy.origin is original.origin is work


def test_an_origin_that_cannot_be_hashed_is_itself_alone():
    listed, equal = {"name": "send"}, {"name": "send"}
    assert made(origin=listed).identity == made(origin=listed).identity
    assert made(origin=listed).identity != made(origin=equal).identity
    hash(made(origin=listed).identity)


def test_parameters_that_are_no_json_have_an_identity_too():
    odd = object()
    assert made(parameters={"default": odd}).identity == made(parameters={"default": odd}).identity
    assert made(parameters={"default": odd}).identity != made(parameters={"default": object()}).identity


def test_it_is_shown_as_a_function_tool():
    assert made().schema == {
        "type": "function",
        "function": {
            "name": "send",
            "description": "Send a text.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
    assert "origin" not in repr(made())


def test_arguments_are_as_they_were_written_unless_the_tool_says_more():
    given = {"text": "x"}
    normal = made().normal(given)
    assert normal == given
    assert normal is not given
    assert made(normalise=lambda arguments: {**arguments, "more": 1}).normal(given) == {
        "text": "x",
        "more": 1,
    }

    @tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add.normal({"a": "2"}) == {"a": 2, "b": 1}


@pytest.mark.parametrize("kind", ["a\nb", "\x1b[2J", 7, True])
def test_a_kind_is_a_word(kind):
    with pytest.raises(InvalidTool, match=r"^tool send: kind=.* is no word, such as 'read'$"):
        made(kind=kind)
    assert made(kind="read").kind == "read"
    assert made().kind is None
