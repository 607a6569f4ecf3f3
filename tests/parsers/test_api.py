"""What a caller gets wrong is refused at once, and what a running turn shows is as the documentation says."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from typing import get_args

import pytest

from parsers import (
    DIALECTS,
    ArgumentsDelta,
    CallPart,
    CallStart,
    Collector,
    Dialect,
    Event,
    MalformedPart,
    Markup,
    Part,
    Reasoning,
    Span,
    StreamParser,
    Text,
    TextPart,
    collect,
    segments,
)
from parsers.dialect import Context
from parsers.engine.tools import MAX_SCHEMA_DEPTH, Tool, declared
from parsers.formats import dialect_named
from tests.parsers.outputs import END, START
from tests.parsers.reading import characters, merged, read, whole

LFM2 = DIALECTS["lfm2"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_parser_reads_one_turn(dialect):
    parser = StreamParser(DIALECTS[dialect])
    assert parser.feed("") == []
    assert parser.feed("x") == [Text("x", 0, 1)]
    assert parser.close() == []
    for again in (lambda: parser.feed("y"), parser.close):
        with pytest.raises(ValueError, match="closed"):
            again()


ALIASES = {
    "lfm2": "lfm2.5", "llama-pythonic": "llama4 pythonic", "hermes": "qwen2.5 qwen3 qwq granite4",
    "hunyuan": "hunyuan-a13b apriel jamba minimax-m1", "phi4-mini": "phi4", "command-r7b": "command-a",
    "ernie": "ernie4.5", "nemotron-nano-v2": "nemotron-json", "gigachat3": "gigachat3.1",
    "llama3-json": "llama3.1 llama3.3", "json": "xlam", "qwen3-coder": "qwen3.5 nemotron3 step3.5",
    "functionary": "functionary3.1", "functionary32": "functionary3.2", "gigachat35": "gigachat3.5", "glm45": "glm46", "glm47": "laguna poolside",
    "longcat": "longcat-flash", "k2-horizon": "ifm", "solar-open2": "solar2",
    "mistral": "ministral devstral magistral", "deepseek-v3": "deepseek-r1", "solar-open": "solar",
    "harmony": "gpt-oss", "muse": "muse-glimmer atem onyx", "inkling": "tml",
}  # fmt: skip
"""The names that a person may give instead."""


def test_every_name_and_alias_means_one_dialect():
    names = [name.casefold() for dialect in DIALECTS.values() for name in (dialect.name, *dialect.aliases)]
    assert len(set(names)) == len(names)
    found = {dialect.name: " ".join(dialect.aliases) for dialect in DIALECTS.values() if dialect.aliases}
    assert found == ALIASES
    assert dialect_named("xLAM") is DIALECTS["json"]
    assert dialect_named("Jamba") is dialect_named("minimax-m1") is DIALECTS["hunyuan"]
    with pytest.raises(ValueError, match="no dialect 'klingon'"):
        dialect_named("klingon")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_wrong_arguments_are_errors(dialect):
    with pytest.raises(ValueError, match="inside='call'"):
        StreamParser(DIALECTS[dialect], inside="call")
    with pytest.raises(ValueError, match="finish='never'"):
        StreamParser(DIALECTS[dialect]).close("never")
    for tools in ([{}], [{"function": {}}], [{"function": 3}], [{"name": 3}]):
        with pytest.raises(ValueError, match="function tool"):
            StreamParser(DIALECTS[dialect], tools)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_prompt_opens_reasoning_only_where_there_is_any(dialect):
    if DIALECTS[dialect].reasoning is None:
        with pytest.raises(ValueError, match="no such stretch"):
            StreamParser(DIALECTS[dialect], inside="reasoning")
    else:
        events = StreamParser(DIALECTS[dialect], inside="reasoning").feed("word")
        assert events == [Reasoning("word", 0, 4)]


def test_tools_may_be_given_without_their_wrapper():
    parser = StreamParser(LFM2, [{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}])
    events = parser.feed("[f(a='1')]")
    assert any(getattr(event, "arguments", None) == {"a": 1} for event in events)


def test_a_schema_is_followed_a_few_levels_deep():
    """Alternatives of alternatives end somewhere, since a schema may hold itself."""
    endless: dict = {"oneOf": [{"type": "string"}]}
    endless["oneOf"].append(endless)
    deep: dict = {"type": "integer"}
    for _ in range(MAX_SCHEMA_DEPTH - 1):
        deep = {"anyOf": [deep, {"type": "null"}]}
    properties = {"endless": endless, "deep": deep, "deeper": {"anyOf": [deep]}, "any": True}
    (tool,) = declared([{"name": "f", "parameters": {"properties": properties}}]).values()
    assert tool.kinds == {"deep": {"integer", "null"}}


def test_a_collector_can_be_read_at_any_time():
    collector = Collector()
    parser = StreamParser(LFM2)
    for piece in ("a", "b<think>", "c"):
        for event in parser.feed(piece):
            collector.add(event)
    text, thought = collector.parts
    assert (text, thought.text) == (TextPart("ab"), "c")
    for event in [*parser.feed(f"</think>{END}d"), *parser.close()]:
        collector.add(event)
    assert [type(part) for part in collector.parts][2:] == [MalformedPart, TextPart]
    assert collector.parts == collector.parts


@pytest.mark.parametrize("value", [*get_args(Event), *get_args(Part), Span, Dialect, Context, Tool])
def test_values_are_frozen_and_hold_nothing_else(value):
    """Events are handed to others while the turn still runs."""
    made = value(
        *range(sum(field.default is MISSING for field in fields(value) if field.default_factory is MISSING))
    )
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(value)[0].name, None)
    assert not hasattr(made, "__dict__")


def test_segments_say_what_every_stretch_was_read_as():
    """Neighbours of one kind are one, each call stands alone, and what spans nothing is no segment."""
    raw = f"a<think>b</think> {START}[f(a=1), g(2), h(b='x', c=[2])]{END}c{START}[i()] d"
    tiles = [(kind, raw[start:end]) for kind, start, end in segments(read("lfm2", characters(raw)))]
    assert tiles == [
        ("text", "a"), ("markup", "<think>"), ("reasoning", "b"), ("markup", "</think>"), ("text", " "),
        ("markup", f"{START}["), ("call", "f(a=1)"), ("markup", ", "), ("malformed", "g(2)"), ("markup", ", "),
        ("call", "h(b='x', c=[2])"), ("markup", f"]{END}"), ("text", "c"), ("markup", f"{START}["), ("call", "i()"),
        ("markup", "]"), ("text", " d"),
    ]  # fmt: skip
    assert segments([Text("a", 0, 1), Markup(1, 1), Text("b", 1, 2)]) == [("text", 0, 2)]
    assert segments([CallStart(0, "f", 0, 1), CallStart(1, "g", 1, 2)]) == [("call", 0, 1), ("call", 1, 2)]
    assert segments([]) == []


def test_the_parts_of_a_turn_are_those_of_its_calls_alone():
    """What an interrupted call has streamed is not counted towards the next one."""
    parts = collect(read("lfm2", characters(f"{START}[f(a=1, b=*), g(c='x')]{END}")))
    assert [type(part) for part in parts] == [MalformedPart, CallPart]
    assert (parts[0].name, parts[0].partial) == ("f", {"a": 1})
    assert (parts[1].arguments_text, parts[1].repaired) == ('{"c": "x"}', False)


def test_a_name_is_known_before_the_arguments_and_those_as_they_arrive():
    parser = StreamParser(LFM2)
    assert [type(event).__name__ for event in parser.feed(f"{START}[get_weather(")][-2:] == [
        "CallStart",
        "ArgumentsDelta",
    ]
    assert [event.json for event in parser.feed("text='Hel")] == ['"text": "Hel']
    assert [event.json for event in parser.feed("lo")] == ["lo"]
    assert parser.feed("'") == []
    assert parser.feed(", n") == []  # the quote is undecided until the next argument shows itself
    first, end = parser.feed("=")
    assert (first.json, end.key, end.value) == ('"', "text", "Hello")
    assert [event.json for event in parser.feed("[1, ")] == [', "n": [1']


@pytest.mark.parametrize(
    ("written", "streamed"),
    [
        ("[f(a='x' 'y", '"xy'),
        (f"[f(a='x' 'y {END}", '"x'),
        ("[f(a=['x', 'y", '["x", "y'),
        ("[f(a=[['x']", '[["x"]'),
        ("[f(a=['x', tr", '["x", '),
        ("[f(a=['x', -", '["x", '),
        ("[f(a={'k': ['x'] ", '{"k": ["x"]'),
    ],
)
def test_what_a_call_that_breaks_off_has_streamed(written, streamed):
    """Where the output ends, nothing contradicts that a quote closes its string."""
    events = read("lfm2", whole(START + written))
    assert "".join(event.json for event in events if isinstance(event, ArgumentsDelta)) == '{"a": ' + streamed


@pytest.mark.parametrize(
    "start",
    [
        "[ping(); ",
        "[ping(), other(",
        "[ping(), other(x='it's",
        "[get(city=f(",
        "[ping(a b c",
        "see [ping(0",
        "[ping] ",
    ],
)
def test_a_bare_list_that_is_none_does_not_hold_the_text_back(start):
    tools = [{"function": {"name": "ping"}}, {"function": {"name": "get"}}]
    parser = StreamParser(LFM2, tools)
    prose = " and so on, as people write, in words without an end."
    fed, end = start, 0
    for event in parser.feed(start):
        end = event.end
    for char in prose:
        fed += char
        for event in parser.feed(char):
            end = event.end
    assert len(fed) - end <= 8


@pytest.mark.parametrize(
    ("dialect", "start"),
    [
        ("json", "[see"),
        ("json", "{x"),
        ("json", "[{ x"),
        ("json", "``x"),
        ("json", "```python\nx"),
        ("json", '{"n": 1}'),
        ("phi4-mini", "functionx"),
        ("phi4-mini", "functools("),
        ("smollm3", "<coder"),
        ("smollm3", "<code>x ="),
        ("smollm3", "<code>\nping ="),
        ("smollm3", "<code>\nother("),
        ("gemma4", "``x"),
        ("gemma4", "```python\nx"),
        ("gemma4", "```tool_codes"),
        ("gemma4", "```\nso it is"),
        ("gemma4", "```\nother("),
        ("gemma4", "```\nping()"),
        ("gemma4", "```tool_code\nprint(ping ="),
        ("gemma4", "```tool_code\nother("),
        ("gemma4", "```\ntool_code = x +"),
        ("hermes", "<func"),
        ("hermes", "<function=other>"),
        ("hermes", "<function=ping>x"),
        ("hermes", "<function='ping\">"),
        ("hermes", "<function=ping>\n<p>"),
        ("gigachat3", "\n\nfunction calls"),
        ("gigachat3", "\nfunction call"),
        ("gigachat3", "function call:"),
        ("llama3-json", "{x"),
        ("llama3-json", "[1,"),
        ("llama-pythonic", "[ping]"),
        ("llama-pythonic", "[other x"),
        ("lfm2", "[pingo("),
    ],
)
def test_what_begins_like_a_call_without_a_marker_is_text_once_it_cannot_be_one(dialect, start):
    """And not only at the end of the output: somebody waits for it."""
    tools = [{"function": {"name": "ping"}}, {"function": {"name": "get"}}]
    parser = StreamParser(DIALECTS[dialect], tools)
    events = [event for char in f"{start} !" for event in parser.feed(char)]
    assert merged(events) == [Text(f"{start} !", 0, len(start) + 2)]


@pytest.mark.parametrize("value", ["'", "r'", "[1, '", "['", "5, b='", "True, b='"])
def test_declared_types_do_not_hold_strings_back(value):
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}]
    parser = StreamParser(LFM2, tools)
    parser.feed(f"{START}[f(a={value}")
    assert [event.json for event in parser.feed("word")] == ["word"]
