"""What the grammar accepts is a valid call, and what is a valid call it accepts, in every dialect.

Each law is tried with schemas and arguments drawn at random, on a vocabulary of a real model. With
HYPOTHESIS_PROFILE=long each is tried three thousand times.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from localagent.constraint.grammar import Grammar, block_grammar
from localagent.constraint.layout import layout
from localagent.constraint.matching import matcher_factory
from parsers import DIALECTS, CallEnd, Dialect, Malformed, StreamParser
from tests.conftest import LONG
from tests.constraint.drawing import draw, read, records, special_of, takes, text_of, tool_of, words_in

CALLING = [dialect for dialect in DIALECTS.values() if dialect.renderers]
EXAMPLES = 200 if LONG else 6
OTHER = tool_of("ping", {"type": "object", "properties": {"n": {"type": "integer"}}})


@pytest.mark.parametrize("name", ["smollm2", "nano"])
@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
@settings(max_examples=EXAMPLES)
@given(record=records(), seed=st.integers(0, 2**32))
def test_what_is_accepted_is_a_valid_call(
    dialect: Dialect, name: str, record: Any, seed: int, vocabularies: dict[str, Any]
) -> None:
    vocabulary, (schema, _) = vocabularies[name], record
    tools = [tool_of("do.it", schema), OTHER]
    ends = [token for token in range(vocabulary.size) if vocabulary.piece(token).end]
    grammar = block_grammar(dialect, tools, special=special_of(vocabulary), ends=ends)
    drawn = draw(vocabulary, matcher_factory(vocabulary).compile(grammar.text), dialect, Random(seed))
    assume(drawn is not None)
    text = text_of(vocabulary, drawn)
    calls = read(dialect, tools, text)
    # No grammar keeps a map from naming a key twice; the parser takes the last and counts it as a repair.
    assume(calls != "repaired" or "additionalProperties" not in str(schema))
    assert not isinstance(calls, str), (calls, text)
    check_that_they_fit(calls, tools, grammar, text)


def check_that_they_fit(
    calls: list[CallEnd], tools: list[dict[str, Any]], grammar: Grammar, text: str
) -> None:
    checked = {relaxed.tool for relaxed in grammar.relaxed}
    for call in calls:
        if call.name not in checked:
            (tool,) = (each["function"] for each in tools if each["function"]["name"] == call.name)
            errors = [
                error.message
                for error in Draft202012Validator(tool["parameters"]).iter_errors(dict(call.arguments))
            ]
            assert not errors, (errors, text)


@pytest.mark.parametrize("fenced", [False, True], ids=["bare", "fenced"])
@pytest.mark.parametrize("name", ["hermes", "mistral", "harmony", "qwen3-coder", "json"])
@settings(max_examples=EXAMPLES)
@given(record=records(), seed=st.integers(0, 2**32))
def test_objects_without_markers_are_calls_that_fit(
    name: str, fenced: bool, record: Any, seed: int, vocabulary: Any
) -> None:
    dialect, (schema, _) = DIALECTS[name], record
    tools = [tool_of("do.it", schema), OTHER]
    grammar = block_grammar(dialect, tools, special=special_of(vocabulary), bare=True)
    matcher = matcher_factory(vocabulary).compile(grammar.text)
    begun = vocabulary.tokenize('{"name": "', special=False)
    for token in begun:
        matcher.accept(token)
    drawn = draw(vocabulary, matcher, None, Random(seed))
    assume(drawn is not None)
    text = ("```json\n" if fenced else "") + text_of(vocabulary, [*begun, *drawn])
    parser = StreamParser(dialect, tools)
    events = [*parser.feed(text), *parser.close()]
    malformed = [event for event in events if isinstance(event, Malformed)]
    assert not malformed, text
    calls = [event for event in events if isinstance(event, CallEnd)]
    assert calls, text
    check_that_they_fit(calls, tools, grammar, text)


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
@settings(max_examples=EXAMPLES * 2)
@given(record=records(), data=st.data())
def test_a_valid_call_is_accepted(dialect: Dialect, record: Any, data: Any, vocabulary: Any) -> None:
    schema, fitting = record
    arguments = data.draw(fitting)
    # Its lists and objects are elements where they can be; what is written under a grammar is JSON, which it reads.
    assume(
        dialect.name != "minimax-m3"
        or not any(isinstance(value, (list, dict)) for value in arguments.values())
    )
    tools = [tool_of("do.it", schema), OTHER]
    try:
        text = dialect.render([("do.it", arguments)])
    except ValueError:
        assume(False)
    calls = read(dialect, tools, text)
    # A dialect may have no way to write these values for this schema.
    assume(not isinstance(calls, str) and dict(calls[0].arguments) == arguments)
    text = text[text.index(dialect.calls.open) :] if dialect.calls and dialect.calls.open in text else text
    # Not every vocabulary has a token for every byte, and its own markers would not be text here.
    assume(not any(marker in value for marker in special_of(vocabulary) for value in words_in(arguments)))
    assume(text_of(vocabulary, vocabulary.tokenize(text, special=True)) == text)
    # Between tags more is refused than the parser would take for a tag.
    assume(not layout(dialect).near or not any("</" in word for word in words_in(arguments)))
    grammar = block_grammar(dialect, tools, special=special_of(vocabulary))
    assert takes(vocabulary, matcher_factory(vocabulary).compile(grammar.text), text), (
        schema,
        arguments,
        text,
    )
