"""The generator: repeatable, right by the parser's own reading, and fair: no value was seen in training."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from localagent.nano.conversations import Author, common_words
from localagent.nano.exchanges import Turn
from localagent.nano.requests import KINDS, make_requests
from localagent.nano.values import SORTS
from localagent.nano.words import Lexicon, is_held_out
from localagent.wire import chat_template, openai
from localagent_bench.training.corpus import MAIN, conversation
from parsers import DIALECTS, CallPart, StreamParser, collect

CONSTANTS = {option.lower() for sort in SORTS.values() for option in sort.schema.get("enum", ())}
CONSTANTS |= {"item", "count", "txt", "md", "py", "csv", "org", "s", "t", "ll"}


def values(value):
    """Every string in a call's arguments, keys of mappings included."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield key
                yield from values(item)
        case list():
            for item in value:
                yield from values(item)


def words(calls):
    texts = [text for _, arguments in calls for value in arguments.values() for text in values(value)]
    found = {word.lower() for text in texts for word in re.findall(r"[^\W\d_]+", text)}
    return {word for word in found if len(word) > 1} - CONSTANTS


@pytest.mark.parametrize("kind", KINDS)
def test_same_arguments_give_the_same_requests(kind):
    assert make_requests(kind, 5, seed=3) == make_requests(kind, 5, seed=3)
    assert make_requests(kind, 5, seed=3)[:2] == make_requests(kind, 2, seed=3)
    assert [r.messages for r in make_requests(kind, 5, seed=3)] != [
        r.messages for r in make_requests(kind, 5, seed=4)
    ]


def test_words_of_training_and_evaluation_are_disjoint():
    trained, asked = set(), set()
    for number in range(1500):
        for turn in conversation(0, number, MAIN).turns:
            trained |= words(turn.calls)
    for kind in KINDS:
        for request in make_requests(kind, 40, seed=5):
            asked |= words(request.calls)
    assert len(trained) > 3000
    assert len(asked) > 300
    assert not trained & asked


@pytest.mark.parametrize("held_out", [False, True])
def test_a_lexicon_stays_on_its_side(held_out):
    lexicon = Lexicon(random.Random(1), held_out, common_words())
    drawn = {lexicon.word() for _ in range(2000)} | {lexicon.key() for _ in range(500)}
    assert {is_held_out(word) for word in drawn} == {held_out}
    assert all(is_held_out(word) == held_out for _ in range(300) for word in lexicon.name().split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_parser_reads_the_calls_that_are_expected(kind):
    for request in make_requests(kind, 20, seed=6):
        parser = StreamParser(DIALECTS["lfm2"], tools=list(request.tools))
        parts = collect([*parser.feed(request.output, special=True), *parser.close()])
        read = [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)]
        assert read == [(name, arguments) for name, arguments in request.calls]
        offered = {tool["function"]["name"] for tool in request.tools}
        assert {name for name, _ in request.calls} <= offered
        assert request.reasoning == "" or request.messages[0]["content"].find("Think before you answer.") >= 0


@pytest.mark.parametrize(
    ("kind", "calls", "last"),
    [
        ("single", 1, "user"),
        ("parallel", 2, "user"),
        ("answers", 0, "tool"),
        ("sequence", 1, "tool"),
        ("chain", 0, "tool"),
        ("no_tool", 0, "user"),
        ("think_call", 1, "user"),
    ],
)
def test_kinds_are_what_they_say(kind, calls, last):
    for request in make_requests(kind, 20, seed=8):
        assert len(request.calls) == calls
        assert request.messages[-1]["role"] == last


def test_long_conversations_are_long():
    assert all(
        sum(message["role"] == "user" for message in request.messages) == 10
        for request in make_requests("long", 10, seed=9)
    )


def test_an_author_can_be_told_the_form_of_tools():
    lexicon = Lexicon(random.Random(2), False, common_words())
    (first, *_) = Author(lexicon).write("single", "terse").tools
    assert set(first) == {"name", "parameters"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_openai_form_says_the_same(kind):
    for request in make_requests(kind, 5, seed=14):
        stored = openai.from_wire(request.openai_messages)
        rendered = chat_template.to_wire(stored, DIALECTS["lfm2"])
        assert [(m["role"], str(m["content"])) for m in rendered] == [
            (m["role"], m["content"]) for m in request.messages
        ]


def test_every_call_of_a_history_has_an_id_of_its_own():
    """Also from the third turn with calls on, which no kind has today."""
    request = make_requests("single", 1, seed=1)[0]
    asked = Turn("assistant", "", calls=(("f", {}), ("g", {})))
    answered = (asked, Turn("tool", "1"), Turn("tool", "2"))
    messages = dataclasses.replace(request, turns=answered * 3).openai_messages
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 6
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids
