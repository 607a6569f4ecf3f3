"""Which result answers which call: by position, id and name, and never a call that was not meant."""

from __future__ import annotations

import pytest

from localagent.errors import UnpairedResult
from localagent.messages import (
    AssistantMessage,
    FlushMessage,
    MalformedToolCallPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from localagent.prompt.pairing import describe_unpaired, has_results, pair, unanswered


def calls(*said: str) -> list[ToolCallPart | MalformedToolCallPart]:
    """ "a:f" is a call of f with id a, "!a:f" one that could not be read."""
    found: list[ToolCallPart | MalformedToolCallPart] = []
    for each in said:
        call_id, _, name = each.removeprefix("!").partition(":")
        if each.startswith("!"):
            found.append(MalformedToolCallPart(raw="f(", reason="truncated", id=call_id, name=name or None))
        else:
            found.append(ToolCallPart(id=call_id, name=name, arguments={}))
    return found


def results(*said: str) -> list[ToolResultPart]:
    """ "a:f=1" has id a, name f and content 1."""
    found = []
    for each in said:
        key, _, content = each.partition("=")
        call_id, _, name = key.partition(":")
        found.append(ToolResultPart(call_id=call_id, name=name, content=content))
    return found


@pytest.mark.parametrize(
    ("asked", "came", "paired"),
    [
        (["a:f", "b:g"], ["a:=1", "b:=2"], ["1", "2"]),
        (["a:f", "b:g"], ["b:=2", "a:=1"], ["1", "2"]),  # ids, where the order is another
        (["a:f", "b:g"], [":g=2", ":f=1"], ["1", "2"]),  # names
        (["a:f", "b:f"], [":=1", ":=2"], ["1", "2"]),  # position alone
        (["a:f", "b:f"], [":=1"], ["1", None]),
        (["a:f", "b:f"], ["b:=2"], [None, "2"]),
        (["x:f", "x:f"], ["x:=1", "x:=2"], ["1", "2"]),  # one id for all
        (["x:f", "x:g"], ["x:g=2", "x:f=1"], ["1", "2"]),
        (["x:f", "x:g"], ["x:g=2"], [None, "2"]),
        (["a:f", "b:g"], [":=1", "a:=2"], ["2", "1"]),  # what says most goes first
        (["a:f", "b:g", "c:h"], [":=3", ":g=2", "a:=1"], ["1", "2", "3"]),
        (["a:f", "b:g"], ["a:other=1"], ["1", None]),  # an id that only one call has outweighs the name
        ([":f", "b:g"], [":=1", "b:=2"], ["1", "2"]),  # an empty id fits the calls without one
        (["b:g", ":f"], [":=1"], [None, "1"]),
        (
            ["!a:f", "b:g"],
            [":=1"],
            [None, "1"],
        ),  # a result without an id is a call's before a malformed one's
        (["!a:f", "b:g"], [":=1", ":=2"], ["1", "2"]),  # unless there are more
        (["!a:f", "b:g"], ["a:=1"], ["1", None]),
        (["!a:f", "b:g"], ["b:=2", "a:=1"], ["1", "2"]),
        (["!a:", "b:g"], ["a:whatever=1"], ["1", None]),  # of the name that was not read nothing is known
        (["!x:f", "x:g"], ["x:=1"], ["1", None]),  # position, where the id is that of both
        (
            ["x:f", "x:g", "x:f"],
            ["x:=1", "x:g=2", "x:f=3"],
            ["1", "2", "3"],
        ),  # in order, so no name is needed
        (["a:f", "b:f"], [":=1", ":f=2"], ["1", "2"]),
        (["!a:x", "b:g", "c:h"], [":h=3", ":=2"], [None, "2", "3"]),
        (["!a:x", "b:g", "c:h"], [":h=3", "a:=1"], ["1", None, "3"]),
        (["a:f"], ["a:other=1"], ["1"]),
        ([], [], []),
    ],
)
def test_pairs(asked, came, paired):
    assert [found and found.content for found in pair(calls(*asked), results(*came))] == paired


@pytest.mark.parametrize(
    ("asked", "came"),
    [
        ([], ["a:=1"]),
        (["a:f"], ["b:=1"]),
        (["a:f"], ["a:=1", "a:=2"]),
        (["a:f"], [":=1", ":=2"]),
        (["a:f"], [":g=1"]),
        (["x:f", "x:f"], ["x:g=1"]),  # neither the name nor an id tells which
        ([":f"], ["a:=1"]),
        (["a:f", "b:g"], ["b:=1", "a:=2", ":=3"]),
    ],
)
def test_a_result_that_fits_no_call_is_refused(asked, came):
    with pytest.raises(UnpairedResult, match="answers no call of the turn before it"):
        pair(calls(*asked), results(*came))


def test_the_refusal_names_the_result():
    named, nameless = results("a:f=1", "b:=1")
    assert describe_unpaired(named).startswith("the tool result of 'f' with call id 'a' answers")
    assert describe_unpaired(nameless).startswith("the tool result with call id 'b' answers")
    (long,) = results(f"{'i' * 200}:{'n' * 200}=1")
    assert len(describe_unpaired(long)) < 220


def test_which_calls_are_open():
    asked = AssistantMessage(content=calls("a:f", "!m:f", "b:g"))
    first, second = (ToolMessage(content=results(each)) for each in ("a:=1", "b:=2"))
    question = UserMessage(content="And?")
    assert unanswered([]) == []
    assert unanswered([question]) == []
    assert [call.id for call in unanswered([asked])] == [
        "a",
        "b",
    ]  # a malformed one is told of, and never run
    assert [call.id for call in unanswered([asked, first])] == ["b"]
    assert [call.id for call in unanswered([asked, second, question])] == ["a"]
    assert unanswered([asked, second, first]) == []
    assert unanswered([asked, UserMessage(content=[*results("b:=2", "a:=1")])]) == []
    assert [call.id for call in unanswered([asked, first, second, question, asked])] == ["a", "b"]
    assert unanswered([asked, AssistantMessage(content="Done.")]) == []
    assert unanswered([asked, FlushMessage()]) == []
    assert [call.id for call in unanswered([asked, FlushMessage(), asked, first])] == ["b"]
    with pytest.raises(UnpairedResult):
        unanswered([asked, ToolMessage(content=results("c:=1"))])


def test_what_answers_calls():
    assert has_results(ToolMessage(content=results("a:=1")))
    assert has_results(UserMessage(content=["See:", *results("a:=1")]))
    assert not has_results(UserMessage(content="See"))
    assert not has_results(AssistantMessage(content=calls("a:f")))
