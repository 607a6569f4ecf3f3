"""What a model declares is read as it says, with the laws of every dialect; what cannot be read is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers import DIALECTS, CallEnd, Dialect, Markup, Reasoning, StreamParser, Text
from parsers.custom import InvalidDialect, load_declared
from parsers.declared import declared_dialect
from tests.parsers import test_laws
from tests.parsers.declarations import DECLARATIONS, NAMED, OUTCOMES, TAG, WHOLE, called, template
from tests.parsers.outputs import cuts, declaring, outputs
from tests.parsers.reading import calls_of, characters, check_run, exact, merged, outcome, read, split, whole

FEW = settings(max_examples=max(5, settings.default.max_examples // 20))
"""A declared format is read with patterns, which take longer than the tables of known formats."""


def dialect(declared: object, **config: Any) -> Dialect:
    """The dialect for that `response_template`."""
    found = declared_dialect({"response_template": declared, **config})
    assert found is not None
    return found


@pytest.fixture(scope="module", autouse=True)
def among_the_dialects() -> Iterator[None]:
    """The declared ones, so that whatever is tested of a dialect can be tested of them."""
    made = {name: replace(dialect(declared), name=name) for name, declared in DECLARATIONS.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, each in made.items():
            patch.setitem(DIALECTS, name, each)  # type: ignore[arg-type]
        yield


@pytest.mark.parametrize(("name", "raw", "expected"), OUTCOMES)
def test_outputs_are_read_as_declared(name, raw, expected):
    events = read(name, whole(raw))
    check_run(raw, events)
    assert outcome(events) == {"content": "", "reasoning": "", "calls": [], "malformed": []} | expected
    assert exact(read(name, characters(raw))) == exact(events)
    assert (
        not [event for event in events if getattr(event, "repaired", False)]
        or "tool_name" in raw
        or "null" in raw
    )


def test_every_declaration_has_an_outcome_and_a_renderer():
    assert {name for name, _, _ in OUTCOMES} == set(DECLARATIONS)
    assert all(DIALECTS[name].renderers for name in DECLARATIONS)


# -- laws ----------------------------------------------------------------------------------------------

WRITING = [name for name in DECLARATIONS if name not in ("list", "blocks")]
"""Those in which calls can be in several places, with text of any kind in front of them."""


@pytest.mark.law("chunks", "monotone", "json", "total", "lossless", "prompt", "markers", "finish")
@pytest.mark.parametrize("dialect", [*DECLARATIONS])
@FEW
@given(data=st.data())
def test_any_output_keeps_the_laws(dialect, data):
    raw = data.draw(outputs(dialect))
    given = test_laws.options(data, dialect)
    events = read(dialect, whole(raw), **given)
    check_run(raw, events)
    assert exact(read(dialect, characters(raw), **given)) == exact(events)
    assert exact(read(dialect, split(raw, data.draw(cuts)), **given)) == exact(events)
    assert exact(read(dialect, whole(raw), finish="length", **given)) == exact(events)
    test_laws.check_nothing_is_taken_back(dialect, raw, data.draw(st.integers(0, len(raw))), given)
    test_laws.check_markers_do_not_leak(dialect, raw)
    check_spelled_markers_are_text(dialect, raw)
    if dialect != "blocks":  # where any text can be the beginning of a field
        check_text_is_held_only_while_it_may_be_a_marker(dialect, raw)


def check_spelled_markers_are_text(name: str, raw: str) -> None:
    """When the vocabulary has them as tokens. White space at the ends is still none of the content."""
    tokens = frozenset({*DIALECTS[name].markers, *DIALECTS[name].cores.values()})
    events = merged(read(name, [(raw, False)], atomic=tokens))
    if name == "started":  # it begins in its reasoning, whatever the output begins with
        assert {type(event) for event in events} <= {Reasoning, Markup}
    else:
        assert [event.text for event in events if isinstance(event, Text)] == [raw.strip()][
            : bool(raw.strip())
        ]


def check_text_is_held_only_while_it_may_be_a_marker(name: str, raw: str) -> None:
    """Or the beginning of a field, or white space at its end. Inside calls, what follows decides."""
    table = DIALECTS[name]
    parser = StreamParser(table)
    end = 0
    for count, char in enumerate(raw, 1):
        events = parser.feed(char)
        end = events[-1].end if events else end
        held = raw[end:count].lstrip()
        if any(opener in raw[:count] for opener in table.openers):
            break
        assert not held or any(m.startswith(held) or held.startswith(m) for m in table.markers)


@pytest.mark.law("chunks")
@pytest.mark.parametrize("dialect", [*DECLARATIONS])
@FEW
@given(data=st.data())
def test_flags_change_nothing_about_the_laws(dialect, data):
    test_laws.test_chunking_of_flagged_pieces_changes_nothing.hypothesis.inner_test(dialect, data)


@pytest.mark.law("roundtrip", "complete")
@pytest.mark.parametrize("dialect", WRITING)
@FEW
@given(data=st.data())
def test_calls_keep_the_laws(dialect, data):
    test_laws.test_calls_keep_the_laws.hypothesis.inner_test(dialect, data)


@pytest.mark.law("prompt")
@pytest.mark.parametrize("dialect", WRITING)
@FEW
@given(words=st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=20))
def test_string_arguments_stream_as_they_arrive(dialect, words):
    test_laws.test_string_arguments_stream_as_they_arrive.hypothesis.inner_test(dialect, words)


# -- values --------------------------------------------------------------------------------------------


def argument(value_parser: dict[str, Any] | None, **told: Any) -> dict[str, Any]:
    """A declaration of calls with one tag for each argument."""
    args = {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</arg>", **told}
    if value_parser is not None:
        args["value_parser"] = value_parser
    ends = {"open_pattern": r"\[CALL\](?P<name>\w+)\n", "close": "[END]"}
    return template(tool_calls={**ends, "content": "xml-inline", "content_args": args, "transform": NAMED})


def tools(kind: object) -> list[dict[str, Any]]:
    return [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": kind}}}}}]


MAYBE_JSON = {"name": "json", "args": {"allow_non_json": True}}


@pytest.mark.parametrize(
    ("parser", "text", "kind", "value"),
    [
        (None, " 3 ", None, " 3 "),
        (None, "3", "integer", 3),
        (None, "True", "boolean", True),
        (None, "x", "integer", "not_a_literal"),
        (None, "3", ["integer", "null"], 3),
        (None, "<|q|>", None, "<|q|>"),
        ({"name": "text"}, " a b ", None, "a b"),
        ({"name": "text"}, " a b ", "string", "a b"),
        ({}, " a ", None, "a"),
        (MAYBE_JSON, "[1, 2]", None, [1, 2]),
        (MAYBE_JSON, "Paris", None, "Paris"),
        (MAYBE_JSON, "True", None, "True"),
        (MAYBE_JSON, "True", "boolean", True),
        (MAYBE_JSON, "007", "integer", 7),
        (MAYBE_JSON, "007", None, "007"),
        (MAYBE_JSON, "NaN", None, "NaN"),
        (MAYBE_JSON, '"7"', None, "7"),
        (MAYBE_JSON, '"7"', "string", "7"),
        (MAYBE_JSON, '"7"', "integer", 7),
        (MAYBE_JSON, "1.50", "string", "1.50"),  # transformers makes it a number
        (MAYBE_JSON, "3.0", "integer", 3),
        (MAYBE_JSON, "[" * 5_000 + "]" * 5_000, None, "too_deep"),
        (MAYBE_JSON, "\ud83d", None, "\ufffd"),
        (None, "\ud83d\ude00\ud83d", None, "\U0001f600\ufffd"),
    ],
)
def test_a_value_has_the_type_that_its_parser_and_the_tool_give_it(parser, text, kind, value):
    made = dialect(argument(parser))
    raw = f"[CALL]f\n<a>{text}</arg>[END]"
    declared = None if kind is None else tools(kind)
    ways = []
    for pieces in (whole(raw), characters(raw)):
        stream = StreamParser(made, declared)
        ways.append([event for piece, _ in pieces for event in stream.feed(piece)] + stream.close())
        check_run(raw, ways[-1])
    assert exact(ways[0]) == exact(ways[1])
    found = outcome(ways[0])
    refused = isinstance(value, str) and "_" in value
    assert found["malformed"] == ([value] if refused else [])
    assert json.dumps(found["calls"]) == json.dumps([] if refused else [["f", {"a": value}]])


def test_a_key_and_its_value_may_have_tags_of_their_own():
    """As in what TRL declares for GLM 4.5, where the end of the output, too, closes the content."""
    tag = r"<key>(?P<key>[^<]+)</key>\s*\n<value>(?P<value>.*?)</value>"
    calls = {
        "open_pattern": r"<tool_call>(?P<name>\S+)\n?", "close_pattern": r"</tool_call>\s*", "repeats": True,
        "content": "xml-inline", "content_args": {"tag_pattern": tag, "value_parser": MAYBE_JSON}, "transform": NAMED,
    }  # fmt: skip
    made = dialect(template(content={"close_pattern": r"<\|user\|>\s*|$"}, tool_calls=calls))
    raw = "Hi\n<tool_call>f\n<key>a</key>\n<value>[1]</value>\n<key>b</key>\n<value>x</value>\n</tool_call>\n"
    for end in ("", "<|user|>"):
        stream = StreamParser(made)
        events = stream.feed(raw + end) + stream.close()
        assert outcome(events) == {
            "content": "Hi", "reasoning": "", "calls": [["f", {"a": [1], "b": "x"}]], "malformed": [],
        }  # fmt: skip


def test_a_model_may_declare_no_calls():
    stream = StreamParser(dialect(template(content={"close": "<|end|>"})))
    events = stream.feed("So it is.<|end|>") + stream.close()
    assert outcome(events) == {"content": "So it is.", "reasoning": "", "calls": [], "malformed": []}


def test_calls_that_begin_with_any_word_are_looked_for_only_after_the_content():
    fields = {"open_pattern": r"(?P<name>\w+) := ", "close": " done", "content": "json"}
    transform = called("{name}", "{content}")
    made = dialect(
        template(
            content={"open": "<answer>", "close": "</answer>"}, tool_calls=fields | {"transform": transform}
        )
    )
    stream = StreamParser(made)
    raw = '<answer>I would write f := {"a": 1} done</answer>f := {"a": 2} done'
    assert calls_of([*stream.feed(raw), *stream.close()]) == [("f", {"a": 2})]


WEATHER = [("get_weather", {"city": "Paris", "days": 3, "units": "celsius"})]


@pytest.mark.parametrize("name", [*DECLARATIONS])
def test_no_broken_character_makes_a_call_that_nobody_wrote(name):
    """One that is lost, doubled or changed. What is still a call holds all that it held, as it is written."""
    raw = DIALECTS[name].render(WEATHER)
    for at, char in enumerate(raw):
        for broken in ("", char * 2, "x", "<", '"'):
            text = f"{raw[:at]}{broken}{raw[at + 1 :]}"
            for tool, arguments in calls_of(read(name, whole(text), tools=declaring(WEATHER))):
                assert len(arguments) == 3, text
                assert tool in text
                assert all(key in text and str(value) in text for key, value in arguments.items()), text


# -- writing -------------------------------------------------------------------------------------------

BOTH = [("f", {"city": "Rome", "o": {"a": [1, True, None]}}), ("g", {})]
JSON_OF_BOTH = ('{"city": "Rome", "o": {"a": [1, true, null]}}', "{}")


def test_a_comma_that_is_missing_between_two_objects_is_repaired_as_in_the_known_formats():
    for name in ("list", "command-r7b"):
        events = read(name, whole(re.sub(r"},\s*{", "}{", DIALECTS[name].render(BOTH))))
        assert [event.repaired for event in events if isinstance(event, CallEnd)] == [True, False]


@pytest.mark.parametrize(
    ("name", "call", "between"),
    [
        ("objects", '<tool_call>{"name": "%s", "arguments": %s}</tool_call>', ""),
        ("list", '{"tool_name": "%s", "parameters": %s}', ", "),
        ("messages", "<|channel|>commentary to=functions.%s<|message|>%s<|call|>", ""),
        ("blocks", '<|invoke|>{"name": "%s", "args": %s}<|over|>', ""),
    ],
)
def test_objects_are_written_as_declared(name, call, between):
    made = DIALECTS[name]
    written = between.join(call % (tool, text) for (tool, _), text in zip(BOTH, JSON_OF_BOTH, strict=True))
    if between:
        written = f"{made.calls.open}[{written}]{made.calls.close}"
    assert made.render(BOTH) == written


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        (
            "tags",
            '<tool_call><function=f><parameter=city>Rome</parameter><parameter=o>{"a": [1, true, null]}</parameter>'
            "</function></tool_call>",
            "<tool_call><function=g></function></tool_call>",
        ),
        (
            "typed tags",
            '<tool_call><function=f><parameter=city>Rome</parameter><parameter=o>{"a": [1, true, null]}</parameter>'
            "</function></tool_call>",
            "<tool_call><function=g></function></tool_call>",
        ),
        (
            "bare keys",
            '<|tool_call>call:f{city:<|"|>Rome<|"|>,o:{a:[1,true,null]}}<tool_call|>',
            "<|tool_call>call:g{}<tool_call|>",
        ),
    ],
)
def test_arguments_are_written_as_declared(name, first, second):
    assert DIALECTS[name].render(BOTH) == first + second


def test_tags_that_the_opening_leaves_open_are_closed_around_tags_alone():
    """An object of arguments ends with its brace: what opens its field says nothing of other tags."""
    opens = {"open_pattern": r"<do><with=(?P<name>\w+)>", "close": "</do>", "transform": NAMED}
    made = dialect(template(tool_calls={**opens, "content": "json"}))
    assert made.render([("f", {"a": 1})]) == '<do><with=f>{"a": 1}</do>'
    made = dialect(
        template(tool_calls={**opens, "content": "xml-inline", "content_args": {"tag_pattern": TAG}})
    )
    assert made.render([("f", {"a": 1})]) == "<do><with=f><parameter=a>1</parameter></with></do>"


def test_what_a_format_cannot_hold_is_not_written():
    for name, call in (
        ("tags", ("f", {"a": " 1"})),
        ("tags", ("f", {"a": "</parameter>"})),
        ("tags", ("f", {"a": "</tool_call>"})),
        ("messages", ("a-b", {})),
        ("bare keys", ("f", {"a": '<|"|>'})),
        ("objects", ("no name", {})),
    ):
        with pytest.raises(ValueError, match=r"cannot|is no"):
            DIALECTS[name].render([call])
    once = dialect(template(tool_calls=CALLS))
    with pytest.raises(ValueError, match="no more than one call"):
        once.render([("f", {})] * 2)


def test_a_pattern_that_does_not_say_what_to_write_can_be_read_all_the_same():
    fields = {"open_pattern": r"<call \w+>", "close": "</call>", "content": "json", "transform": WHOLE}
    made = dialect(template(tool_calls=fields))
    stream = StreamParser(made)
    assert calls_of(stream.feed('<call 1a>{"name": "f", "arguments": {}}</call>')) == [("f", {})]
    with pytest.raises(ValueError, match="has no tool calls"):
        made.render([("f", {})])


# -- the configuration ---------------------------------------------------------------------------------


def test_the_tokens_of_the_vocabulary_are_told_apart_from_text():
    """`</s>` ends a turn though no field says so; what no special token is may be spelled in ordinary ones."""
    tokens = {
        "1": {"content": "<tool_call>", "special": True},
        "2": {"content": "<think>", "special": False},
        "3": 4,
    }
    made = dialect(DECLARATIONS["objects"], eos_token={"content": "</s>"}, added_tokens_decoder=tokens)
    assert made.ends == ("<|im_end|>", "<|endoftext|>", "</s>")
    assert "<tool_call>" not in made.shown
    assert "<think>" in made.shown
    stream = StreamParser(made)
    events = stream.feed("<think>a</think><tool_call>b</s>", special=False) + stream.close()
    assert outcome(events) == {"reasoning": "a", "content": "<tool_call>b", "calls": [], "malformed": []}


@pytest.mark.parametrize(
    ("name", "reasoning", "calls", "ends", "answers", "cores"),
    [
        ("objects", ("<think>", "</think>"), ("<tool_call>", "</tool_call>"), ("<|im_end|>", "<|endoftext|>"), [], {}),
        (
            "messages",  # prompts end with the whole of what opens the reasoning
            ("<|channel|>analysis<|message|>", "<|end|>"),
            ("<|channel|>", "<|call|>"),
            (),
            [("<|channel|>", "<|end|>")],
            {"<|channel|>analysis<|message|>": "<|channel|>"},
        ),
        (
            "blocks",
            ("<|thinking|>", "<|over|>"),
            ("<|invoke|>", "<|over|>"),
            (),
            [("<|text|>", "<|over|>")],
            {},
        ),
        (
            "bare keys",
            ("<|channel>thought\n", "<channel|>"),
            ("<|tool_call>", "<tool_call|>"),
            ("<turn|>", "<|tool_response>"),
            [],
            {"<|channel>thought\n": "<|channel>"},
        ),
        ("tags", ("<think>", "</think>"), ("<tool_call>", "</tool_call>"), ("<|im_end|>",), [], {}),
    ],
)  # fmt: skip
def test_the_markers_of_a_declared_format(name, reasoning, calls, ends, answers, cores):
    made = DIALECTS[name]
    spans = [span and (span.open, span.close) for span in (made.reasoning, made.calls, *made.answers)]
    assert (spans, made.ends, made.cores) == ([reasoning, calls, *answers], ends, cores)


def test_a_configuration_without_a_declaration_has_no_dialect():
    assert declared_dialect({}) is None
    assert declared_dialect({"response_template": None, "response_schema": None}) is None


CALLS = {"open": "<c>", "close": "</c>", "content": "json", "transform": WHOLE}
NAMES = {"open_pattern": "<c (?P<name>a)>", "close": "</c>", "content": "json", "transform": NAMED}
WHERE = "fields.tool_calls.transform: must give function.name and function.arguments: "


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "response_template: must be an object"),
        ({**template(content={}), "version": 2}, "version: 2 is not known here"),
        ({**template(content={}), "x": 2}, "response_template.x: no such key: there are version, "),
        ({**template(content={}), "defaults": 2}, "defaults: must be an object"),
        ({**template(content={}), "start_anchor_pattern": "a"}, "start_anchor: stands beside start_anchor_pattern"),
        ({"fields": {"content": {}}}, "start_anchor: missing: name the text"),
        ({"start_anchor": "a"}, "fields: missing"),
        (template(), "fields: empty: name a field"),
        (template(content={}, thinking={}), "fields.thinking.open: missing: only content can do without"),
        (
            template(reasoning={"open": "a"}, thinking={"open": "b"}),
            "response_template.fields: reasoning and thinking hold the same: keep one of them",
        ),
        (template(citation={}), "fields.citation: a message has no place for it: there are content, "),
        (template(content=3), "fields.content: must be an object"),
        (template(content={"strip": True}), "fields.content.strip: no such key: there are open, "),
        (template(content={"content": "yaml"}), "fields.content.content: no parser 'yaml': there are text, "),
        (template(content={"content": ["text"]}), "fields.content.content: no parser"),
        (template(content={"content": "json"}), "fields.content: holds text"),
        (template(content={"transform": {}}), "fields.content: holds text"),
        (template(content={"content_args": {"trim": True}}), "fields.content.content_args.trim: no such key"),
        (template(content={"content_args": {"strip": 1}}), "content_args.strip: must be true or false"),
        (template(content={"repeats": 1}), "fields.content.repeats: must be true or false"),
        (template(content={"join": ""}), "fields.content.join: must be a text, and needs repeats"),
        (template(content={"open": ""}), "fields.content.open: must be a text, and not empty"),
        (template(content={"open": []}), "fields.content.open: empty: name a text"),
        (template(content={"open": ["a", 3]}), "fields.content.open: must be a text"),
        (template(content={"open": "a", "open_pattern": "b"}), "open: stands beside open_pattern: keep one"),
        (template(content={"close_pattern": "("}), "fields.content.close_pattern: no regular expression"),
        (template(content={"close_pattern": r"\s*"}), "close_pattern: matches where there is nothing"),
        (template(content={"close_pattern": "(?=x)"}), "close_pattern: '(?=' cannot be matched as text arrives"),
        (template(content={"close_pattern": "x" * 3000}), "close_pattern: too long"),
        (template(content={"close_pattern": "x{3}"}), "close_pattern: write '{' as '\\{' where it is text"),
        (template(content={"open_pattern": "(?P<n>a)"}), "transform: missing: nothing else can use the group 'n'"),
        (template(content={"close_pattern": "(?P<n>a)"}), "the group 'n' comes too late"),
        (template(tool_calls={**CALLS, "open": None}), "fields.tool_calls.open: missing: only content can do without"),
        (template(tool_calls={**CALLS, "open": "\n"}), "fields.tool_calls.open: needs a text that is more than"),
        (template(tool_calls={**CALLS, "close_pattern": "</c>|x</d>"}) , "close: stands beside"),
        (
            template(tool_calls={**CALLS, "close": None, "close_pattern": "</d></c>"}),
            "fields.tool_calls.close: must be one text",
        ),
        (template(tool_calls={**CALLS, "close": ["</c>", "<|eot|>"]}), "fields.tool_calls.close: must be one text"),
        (template(tool_calls={**CALLS, "close": None}), "close: missing: a call that"),
        (template(tool_calls={**CALLS, "transform": None}), WHERE),
        (template(tool_calls={**CALLS, "transform": "a {content}"}), WHERE),
        (template(tool_calls={**CALLS, "transform": {"function": "{call}"}}), WHERE),
        (template(tool_calls={**CALLS, "transform": {"name": "f"}}), WHERE),
        (template(tool_calls={**CALLS, "transform": called("f", "{content}")}), WHERE),
        (template(tool_calls={**CALLS, "transform": called("{content.a}", "{content.a}")}), WHERE),
        (template(tool_calls={**CALLS, "transform": called("{content.a}", "{content.b.c}")}), WHERE),
        (template(tool_calls={**CALLS, "transform": called("f", {"a": "{content}", "b": 1})}), WHERE),
        (template(tool_calls={**CALLS, "transform_each": True}), WHERE),
        (template(tool_calls={**CALLS, "transform_each": True, "transform": called("{a.b}", "{a.c}")}), WHERE),
        (template(tool_calls={**NAMES, "transform": called("{name}", "{content.input}")}), WHERE),
        (template(tool_calls={**NAMES, "transform": called("{tool}", "{content}")}), WHERE),
        (template(tool_calls={**CALLS, "content": "text"}), "content: text holds no names of calls: use json"),
        (template(tool_calls={**NAMES, "content": "text"}), "text makes no arguments: use json or xml-inline"),
        (template(tool_calls={**NAMES, "content": "kv-lines"}), "no parser 'kv-lines': there are text, json, xml-inline"),
        (
            template(tool_calls={**CALLS, "content_args": {"unquoted_keys": True}}),
            "content_args.unquoted_keys: can only be where",
        ),
        (
            template(tool_calls={**CALLS, "content_args": {"allow_non_json": True}}),
            "content_args.allow_non_json: no such key: there are unquoted_keys, string_delims",
        ),
        *(
            (template(tool_calls={**NAMES, "content_args": args}), "string_delims: must be one pair of equal tokens")
            for args in (
                {"unquoted_keys": True},
                {"string_delims": [["<q>", "<q>"]]},
                {"unquoted_keys": True, "string_delims": [["<q>", "</q>"]]},
                {"unquoted_keys": True, "string_delims": [["'", "'"]]},
                {"unquoted_keys": True, "string_delims": [["<q>", "<q>"], ["'", "'"]]},
            )
        ),
        (argument(None, tag_pattern=None), "tag_pattern: missing"),
        (argument(None, tag_pattern="<(?P<key>a)>"), "must have the groups 'key' and 'value'"),
        (argument(None, tag_pattern="<(?P<value>a)(?P<key>b)>"), "must have the groups 'key' and 'value'"),
        (argument(None, tag_pattern="<(?P<key>a)=(?P<value>b)>"), "the value must be '.*?'"),
        (argument(None, tag_pattern="<(?P<key>a)=(?P<value>.*)>"), "the value must be '.*?'"),
        (argument(None, tag_pattern="<(?P<key>a)=(?P<value>[^<]*)>"), "the value must be '.*?'"),
        (argument(None, tag_pattern="<(?P<key>a)=(?P<value>.*?)"), "a text must stand before and after the value"),
        (argument(None, merge_duplicates=True), "content_args.merge_duplicates: no such key"),
        (argument({"name": "yaml"}), "value_parser: must be text, or json with allow_non_json = true"),
        (argument({"name": "int"}), "value_parser: must be text, or json with allow_non_json = true"),
        (argument({"name": "json"}), "value_parser: must be text, or json with allow_non_json = true"),
        (argument({"name": "text", "x": 1}), "value_parser.x: no such key"),
        (argument({"name": "text", "args": {"strip": False}}), "value_parser.args.strip: no such key: there are none"),
        (argument({"name": "json", "args": {"unquoted_keys": True}}), "value_parser.args.unquoted_keys: no such key"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_in_one_line(value, says):
    with pytest.raises(InvalidDialect) as caught:
        declared_dialect({"response_template": value}, "here.json")
    line = str(caught.value)
    assert line.startswith("here.json: ")
    assert says in line
    assert "\n" not in line


def test_a_declaration_is_read_from_a_file_or_a_folder(tmp_path):
    file = tmp_path / "tokenizer_config.json"
    for text, says in (
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON: nested too deep"),
        ("3", "not a JSON object"),
        ("{}", "response_template: missing: this model declares no output format; name its dialect"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises(InvalidDialect, match=says):
            load_declared(tmp_path)
    file.write_text(json.dumps({"response_template": DECLARATIONS["tags"]}))
    assert load_declared(tmp_path).name == load_declared(file).name == "declared"
    with pytest.raises(InvalidDialect, match="File name too long"):
        load_declared(Path("x" * 5000))


def test_white_space_around_what_closes_a_field_belongs_to_it():
    for close in (
        {"close": "\n</c>"},
        {"close_pattern": r"\s*</c>\n?"},
    ):
        fields = {"open": "<c>", **close, "repeats": True, "content": "json", "transform": WHOLE}
        stream = StreamParser(dialect(template(tool_calls=fields)))
        events = stream.feed('<c>{"name": "f", "arguments": {}}\n</c>') + stream.close()
        assert outcome(events) == {"content": "", "reasoning": "", "calls": [["f", {}]], "malformed": []}


def test_white_space_in_front_of_what_opens_a_field_belongs_to_it():
    """Also where the white space of the content counts, however much of the output has come."""
    calls = {
        "open_pattern": r"\s*<c>",
        "close": "</c>",
        "repeats": True,
        "content": "json",
        "transform": WHOLE,
    }
    made = dialect(template(content={"content_args": {"strip": False}}, tool_calls=calls))
    raw = ' So \n <c>{"name": "f", "arguments": {}}</c>\n<c>{"name": "g", "arguments": {}}</c> done \n'
    for pieces in (whole(raw), characters(raw)):
        stream = StreamParser(made)
        events = [event for piece, _ in pieces for event in stream.feed(piece)] + stream.close()
        assert "".join(event.text for event in events if isinstance(event, Text)) == " So done \n"
        assert calls_of(events) == [("f", {}), ("g", {})]


def test_the_older_form_is_named():
    with pytest.raises(InvalidDialect, match=r"here\.json: response_schema: the older form"):
        declared_dialect({"response_schema": {"x-regex": "."}}, "here.json")
