"""What a server is told to hold, and what becomes of one that does not: no turn that breaks it ever ends well."""

from __future__ import annotations

import json
import sys

import pytest

from localagent.constraint.matching import matcher_factory
from localagent.errors import ConstraintFailed, GrammarMissing, Unsupported
from localagent.hosts.sampling import Sampling
from localagent.model import Model
from localagent.nano import MLX
from localagent.remote.server import Server
from localagent.remote.tokens import generation as module
from localagent.remote.tokens.apis import Asked, LlamaServer, Sglang, VllmCompletions, VllmTokens
from localagent.remote.tokens.host import TokenHost
from localagent.remote.tokens.vocabulary import read_model_files
from localagent.turn import BrokenOff, Done
from parsers import DIALECTS
from tests.remote.scripted import DONE, event, head, scripted

PATH = "/inference/v1/generate"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "count", "parameters": NUMBERS}},
]
OPEN = {"name": "f", "parameters": {"type": "object", "additionalProperties": {"type": "integer"}}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANSWER = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
PARIS = '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>'
TWO = '<|tool_call_start|>[get_weather(city="Paris"), count(a=1)]<|tool_call_end|>'
BAD = '<|tool_call_start|>[count(a="x")]<|tool_call_end|>'
END = "<|im_end|>"


@pytest.fixture(scope="module")
def files():
    return read_model_files(MLX)


def host_at(url, files, takes=("core", "schema"), api=VllmTokens):
    return TokenHost(
        Server.at(url, "key", 5.0), api, files, name="nano", model="m", context=512, takes=lambda ids: takes
    )


def written(files, text, reason="stop"):
    """The events of a vLLM that writes this text, a token in each, and then ends the turn."""
    ids = files.vocabulary.tokenize(text, special=True)
    told = [event({"choices": [{"token_ids": [each], "finish_reason": None}]}) for each in ids]
    return [head(), *told, event({"choices": [{"token_ids": [], "finish_reason": reason}]}), DONE]


def turn(files, text, reason="stop", takes=("core", "schema"), **options):
    """The events of a turn in which the server writes `text`, the error that ended it, and what it was told."""
    seen = []
    with scripted(routes={PATH: [written(files, text, reason)]}) as server:
        model = Model(host_at(server.url, files, takes), DIALECTS["lfm2"])
        try:
            seen += model.stream("Hi.", **{"tools": TOOLS, **options})
        except ConstraintFailed as error:
            return seen, error, server.asked[0].body
        return seen, None, server.asked[0].body


HELD = [
    (PARIS + END, {"tool_choice": "required"}),
    (TWO + END, {"tool_choice": "required"}),
    ("<think>Hm.</think>" + PARIS, {"tool_choice": "required"}),
    (PARIS + END, {"tool_choice": "get_weather"}),
    ("No." + END, {"tool_choice": "none"}),
    ("Well. " + PARIS + " So." + TWO + END, {"strict": True}),
    ("No." + END, {"strict": True}),
    ("Well. " + PARIS + " So." + END, {"parallel_tool_calls": False}),
    ('{"n": 7}' + END, {"response_format": ANSWER, "tools": None}),
    ("<think>Hm.</think>{" + '"n": 7}', {"response_format": ANSWER}),
    (PARIS + END, {"response_format": ANSWER}),
]
BROKEN = [
    ("No." + END, {"tool_choice": "required"}, "wrote 'N', which may not come there"),
    (END, {"tool_choice": "required"}, "ended the turn before the grammar does"),
    ("", {"tool_choice": "required"}, "ended the turn before the grammar does"),
    ("<think>Hm.", {"tool_choice": "required"}, "ended the turn before the grammar does"),
    (PARIS[:-19], {"tool_choice": "required"}, "ended the turn before the grammar does"),
    (PARIS + "So." + END, {"tool_choice": "required"}, "which may not come there"),
    (TWO + END, {"tool_choice": "required", "parallel_tool_calls": False}, "which may not come there"),
    (PARIS + END, {"tool_choice": "count"}, "which may not come there"),
    (PARIS + END, {"tool_choice": "none"}, "wrote '<|tool_call_start|>', which may not come there"),
    (BAD + END, {"strict": True}, "which may not come there"),
    (PARIS + PARIS + END, {"parallel_tool_calls": False}, "wrote '<|tool_call_start|>'"),
    ('{"n": "x"}' + END, {"response_format": ANSWER, "tools": None}, "which may not come there"),
    ("Seven." + END, {"response_format": ANSWER}, "which may not come there"),
]


@pytest.mark.parametrize(("text", "options"), HELD)
def test_what_a_server_holds_ends_well(files, text, options):
    seen, error, body = turn(files, text, **options)
    assert error is None
    assert isinstance(seen[-1], Done)
    assert seen[-1].message.raw == text
    assert seen[-1].relaxed == ()
    # What it was told allows just that, by the same package that a server would read it with.
    matcher = matcher_factory(files.vocabulary).compile(
        body["sampling_params"]["structured_outputs"]["grammar"]
    )
    for token in files.vocabulary.tokenize(text.removesuffix(END), special=True):
        matcher.accept(token)
    assert matcher.accepting


@pytest.mark.parametrize(("text", "options", "says"), BROKEN)
def test_what_a_server_does_not_hold_ends_in_an_error_with_all_that_it_wrote(files, text, options, says):
    seen, error, body = turn(files, text, **options)
    assert says in str(error)
    assert "\n" not in str(error)
    assert not any(isinstance(each, Done) for each in seen)
    if text not in ("", END):
        assert isinstance(seen[-1], BrokenOff)
        assert text.startswith(seen[-1].message.raw)
        assert seen[-1].message.raw
    # And what it was told does not allow it.
    matcher = matcher_factory(files.vocabulary).compile(
        body["sampling_params"]["structured_outputs"]["grammar"]
    )
    try:
        for token in files.vocabulary.tokenize(text.removesuffix(END), special=True):
            matcher.accept(token)
    except ConstraintFailed:
        return
    assert not matcher.accepting


def test_text_that_might_have_begun_a_stop_string_is_not_lost_with_the_turn(files):
    seen, error, _ = turn(files, "No.", tool_choice="required", stop=["No. Never."])
    assert error is not None
    assert seen[-1].message.raw == "N"


def test_a_turn_that_is_cut_short_by_its_length_is_none_that_breaks_a_rule(files):
    seen, error, _ = turn(files, PARIS[:-22], "length", tool_choice="required")
    assert error is None
    assert seen[-1].message.stop_reason == "length"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{ "n" :7}', None),
        ("<think>Hm.</think>\n{\"n\": 7}", None),
        ('{"n": "x"}', "does not fit the schema (/n"),
        ("Seven.", "which is no JSON"),
        ("", "which is no JSON"),
    ],
)  # fmt: skip
def test_a_schema_is_passed_on_where_no_grammar_can_be(files, text, says):
    seen, error, body = turn(files, text, takes=("schema",), response_format=ANSWER, tools=None)
    assert body["sampling_params"]["structured_outputs"] == {"json": SCHEMA}
    if says is None:
        assert error is None
        assert seen[-1].message.raw == text
    else:
        assert says in str(error)


def test_any_object_is_asked_for_as_a_schema_too(files):
    asked = {"response_format": {"type": "json_object"}, "tools": None, "takes": ("schema",)}
    _, error, body = turn(files, '{"a": [1]}', **asked)
    assert error is None
    assert body["sampling_params"]["structured_outputs"] == {"json": {"type": "object"}}
    assert "does not fit" in str(turn(files, "[1]", **asked)[1])


@pytest.mark.parametrize(
    ("takes", "options"),
    [
        (("schema",), {"tool_choice": "required"}),
        (("schema",), {"tool_choice": "none"}),
        (("schema",), {"tool_choice": "get_weather"}),
        (("schema",), {"response_format": ANSWER}),  # or a call
        (("schema",), {"parallel_tool_calls": False}),
        (("schema",), {"strict": True}),
        ((), {"response_format": ANSWER, "tools": None}),
    ],
)
def test_what_a_server_cannot_be_told_is_refused_and_not_dropped(files, takes, options):
    model = Model(host_at("http://127.0.0.1:1", files, takes), DIALECTS["lfm2"])
    with pytest.raises(Unsupported, match=r"draws its tokens elsewhere,? and its server cannot be held to"):
        list(model.stream("Hi.", **{"tools": TOOLS, **options}))


@pytest.mark.parametrize(
    ("takes", "options", "says"),
    [
        (("schema",), {"tool_choice": "required"}, "tool_choice 'required'"),
        (("schema",), {"tool_choice": "count"}, "tool_choice 'count'"),
        (("schema",), {"tool_choice": "none"}, "tool_choice 'none'"),
        (("schema",), {"response_format": ANSWER}, "response_format"),
        (("schema",), {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (("schema",), {"strict": True}, "strict"),
        ((), {"strict": True, "parallel_tool_calls": False}, "parallel_tool_calls"),
        (
            ("core",),
            {"strict": True, "tools": [OPEN]},
            "strict (XGrammar, with which a server may draw, knows no intersection of patterns)",
        ),
    ],
)
def test_what_a_server_cannot_be_told_is_named_with_the_reason(files, takes, options, says):
    model = Model(host_at("http://127.0.0.1:1", files, takes), DIALECTS["lfm2"])
    with pytest.raises(Unsupported) as caught:
        list(model.stream("Hi.", **{"tools": TOOLS, **options}))
    assert str(caught.value) == (
        f"nano draws its tokens elsewhere, and its server cannot be held to {says}: leave it out"
    )


def test_what_only_llguidance_reads_is_not_told_to_a_server_that_may_draw_with_another(files):
    """Other names than the declared ones take an intersection of patterns."""
    record = {"type": "object", "properties": {"x & ~/y": {"type": "integer"}}}
    open_record = {**record, "additionalProperties": {"type": "integer"}}
    for inner, error in ((record, None), (open_record, "knows no intersection of patterns")):
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": inner}, "required": ["a"]}}
        asked = {"tools": [tool], "tool_choice": "required"}
        text = '<|tool_call_start|>[f(a={"x & ~/y": 1})]<|tool_call_end|>'
        if error is None:
            assert turn(files, text, **asked)[1] is None
            continue
        with pytest.raises(Unsupported, match=error):
            turn(files, text, **asked)


def test_markers_that_are_plain_text_are_told_to_no_server(files):
    model = Model(host_at("http://127.0.0.1:1", files), DIALECTS["hermes"])
    for options in ({"strict": True}, {"tool_choice": "none"}, {"parallel_tool_calls": False}):
        with pytest.raises(
            Unsupported, match="not all markers of the dialect hermes are tokens of their own"
        ):
            list(model.stream("Hi.", tools=TOOLS, **options))


def test_nothing_is_told_where_nothing_can_be_judged(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    model = Model(host_at("http://127.0.0.1:1", read_model_files(MLX)), DIALECTS["lfm2"])
    for options in ({"tool_choice": "required"}, {"strict": True}, {"response_format": ANSWER}):
        with pytest.raises(GrammarMissing, match="needs llguidance"):
            list(model.stream("Hi.", tools=TOOLS, **options))


def test_what_is_left_to_the_model_asks_for_no_grammar(files):
    seen, error, body = turn(files, BAD + END)
    assert error is None
    assert [(each.tool, each.keyword) for each in seen[-1].relaxed] == [("get_weather", ""), ("count", "")]
    assert "was told to hold nothing" in seen[-1].relaxed[0].reason
    assert "structured_outputs" not in body["sampling_params"]


def test_each_server_has_its_own_word_for_it():
    def body(api, form, bound):
        return api().body(Asked((1,), Sampling(), 9, (7,), "m", "r", form, bound))

    assert body(VllmTokens, "core", "start: x")["sampling_params"]["structured_outputs"] == {
        "grammar": "start: x"
    }
    assert body(VllmCompletions, "core", "start: x")["structured_outputs"] == {"grammar": "start: x"}
    assert body(VllmCompletions, "schema", SCHEMA)["structured_outputs"] == {"json": SCHEMA}
    assert body(Sglang, "lark", "start: x")["sampling_params"]["ebnf"] == "start: x"
    assert json.loads(body(Sglang, "schema", SCHEMA)["sampling_params"]["json_schema"]) == SCHEMA
    assert body(LlamaServer, "lark", "start: x")["grammar"] == "%llguidance {}\nstart: x"
    assert body(LlamaServer, "gbnf", "root ::= x")["grammar"] == "root ::= x"
    assert body(LlamaServer, "schema", SCHEMA)["json_schema"] == SCHEMA
    assert body(Sglang, "ebnf", "root ::= x")["sampling_params"]["ebnf"] == "root ::= x"
    for api, form in (
        (VllmTokens, "lark"),
        (VllmCompletions, "gbnf"),
        (Sglang, "gbnf"),
        (LlamaServer, "ebnf"),
    ):
        with pytest.raises(Unsupported, match=f"cannot be told a constraint as {form}"):
            body(api, form, "x")


def test_what_a_server_takes_is_asked_once(files):
    asked = []

    def takes(ids):
        asked.append(ids)
        return ("lark",)

    host = TokenHost(
        Server.at("http://127.0.0.1:1", None, 1.0), VllmTokens, files, name="n", model="m", context=512, takes=takes
    )  # fmt: skip
    prompt = host.render([{"role": "user", "content": "Hi."}])
    assert [host.takes(prompt), host.takes(prompt)] == [("lark",), ("lark",)]
    assert asked == [prompt.ids]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.02)
