"""Calls as they are written by renderers and chat templates, and what each cut and each fault makes of them."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from localagent_bench.parsers import outputs as module
from localagent_bench.parsers.corpora import AskedCalls
from localagent_bench.parsers.outputs import (
    ModelTemplate,
    Output,
    cut,
    model_templates,
    rendered,
    templated,
    with_fault,
)


def tool(name):
    return {
        "type": "function",
        "function": {"name": name, "description": "Does.", "parameters": {"type": "object"}},
    }


TOOLS = [tool("convert"), tool("save")]
CALLS = [("convert", {"a": 12}), ("save", {"s": 'it\'s "x"'})]
TASK = AskedCalls("t", TOOLS, CALLS)
FIRST = '<tool_call>\n{"name": "convert", "arguments": {"a": 12}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "save", "arguments": {"s": "it\'s \\"x\\""}}\n</tool_call>'
BOTH = f"{FIRST}\n{SECOND}"
HERMES = Output("hermes", "json", BOTH, CALLS, TOOLS, "t, json")


def test_calls_are_written_in_each_notation():
    assert list(rendered("hermes", [TASK])) == [HERMES]
    said = "<|tool_call_start|>[{}]<|tool_call_end|>"
    assert [(each.how, each.text, each.id) for each in rendered("lfm2", [TASK])] == [
        ("pythonic", said.format('convert(a=12), save(s="it\'s \\"x\\"")'), "t, pythonic"),
        (
            "json",
            said.format(
                '{"name": "convert", "arguments": {"a": 12}}, {"name": "save", "arguments": {"s": "it\'s \\"x\\""}}'
            ),
            "t, json",
        ),
    ]
    (first, *_) = rendered("harmony", [TASK])
    assert first.text.startswith(" to=functions.convert<|channel|>"), "what the prompt ends with is not in it"


def test_what_a_format_cannot_hold_is_left_out():
    bad = ("save", {"s": "</arg_value>"})
    half, none = AskedCalls("half", TOOLS, [CALLS[0], bad]), AskedCalls("none", TOOLS, [bad])
    (found,) = rendered("glm45", [half, none])
    assert (found.id, found.calls) == ("half, pairs", CALLS[:1])


REQUEST = {"dialect": "hermes", "tools": TOOLS, "finish": "stop"}


@pytest.mark.parametrize(
    ("more", "pieces", "asked"),
    [
        ({}, None, {"text": BOTH}),
        ({}, ("a", "b"), {"chunks": ["a", "b"]}),
        ({}, (), {"chunks": []}),
        ({"inside": "reasoning"}, None, {"text": BOTH, "inside": "reasoning"}),
        (
            {"template": "qwen", "finish": "length"},
            None,
            {"text": BOTH, "template": "qwen", "finish": "length"},
        ),
    ],
)
def test_a_parser_is_asked_for_the_whole_or_for_pieces(more, pieces, asked):
    assert replace(HERMES, **more).request(pieces) == REQUEST | asked


TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% if message.tool_calls %}{% for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


def test_templates_whose_calls_a_dialect_reads_are_found(tmp_path):
    for name, text in (("b.jinja", TEMPLATE), ("a.jinja", TEMPLATE), ("c.jinja", PLAIN), ("d.txt", TEMPLATE)):
        (tmp_path / name).write_text(text)
    (tmp_path / "e.jinja").write_bytes(b"\xff{{")
    assert model_templates(tmp_path) == [ModelTemplate(name, "hermes", TEMPLATE) for name in "ab"]


def of_template(source, *tasks):
    return list(templated(ModelTemplate("qwen", "hermes", source), tasks or [TASK]))


def test_a_template_writes_the_turn_that_its_model_would():
    (found,) = of_template(TEMPLATE)
    text = f"{FIRST}{SECOND}"
    assert found == Output("hermes", "qwen", text, CALLS, TOOLS, "t, qwen", "stop", None, "qwen")
    assert [each.id for each in of_template(TEMPLATE, TASK, replace(TASK, id="u"))] == ["t, qwen", "u, qwen"]


def test_a_template_that_shows_the_first_call_alone_is_given_that():
    first = TEMPLATE.replace("in message.tool_calls %}", "in message.tool_calls[:1] %}")
    assert [(each.text, each.calls) for each in of_template(first)] == [(FIRST, CALLS[:1])]


def test_a_template_that_takes_the_text_of_arguments_is_given_that():
    text = TEMPLATE.replace("| tojson", "+ ''")
    assert [each.text for each in of_template(text)] == [f"{FIRST}{SECOND}"]


def test_a_turn_that_begins_in_reasoning_says_so():
    thinks = TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif").replace(
        "{{ message.role }}\n", "{{ message.role }}\n{% if message.role == 'assistant' %}<think>\n{% endif %}"
    )
    assert [(each.text, each.inside) for each in of_template(thinks)] == [(f"{FIRST}{SECOND}", "reasoning")]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        TEMPLATE.replace("<tool_call>", "{{ raise_exception('no calls') }}"),
        TEMPLATE.replace("<|im_start|>assistant\n{% endif", "another beginning{% endif"),
        TEMPLATE.replace("{% if message.tool_calls %}", "{% if false %}"),
    ],
)
def test_a_template_that_writes_no_calls_gives_none(source):
    assert of_template(source) == []


def test_an_output_is_cut_where_it_says():
    text = "<tool_call>\n{'name': 1} w\u00f6rter </tool_call>"
    draw = random.Random(1)
    assert cut("abcdefgh", "3", "hermes", draw) == ["abc", "def", "gh"]
    assert cut("abcdef", "7", "hermes", draw) == ["abcdef"]
    lengths = {len(piece) for piece in cut("x" * 5000, "random", "hermes", draw)[:-1]}
    assert lengths == {*range(1, 13)}
    assert all(all(cut("x" * 50, "random", "hermes", random.Random(seed))) for seed in range(100)), (
        "no empty ones"
    )
    pytest.importorskip("tokenizers")
    tokens = cut(text, "token", "hermes", draw)
    assert (tokens[0], tokens[-1]) == ("<tool_call>", "</tool_call>")
    assert "name" in tokens and "w\u00f6rter" not in tokens, "as a small vocabulary has it"


def test_without_a_tokenizer_words_and_signs_stand_for_tokens(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    module._tokens.cache_clear()
    text = "<tool_call>\n\n{'name': 1} w\u00f6rter </tool_call>x"
    try:
        assert cut(text, "token", "hermes", random.Random(1)) == [
            *(
                "<tool_call>",
                "\n\n",
                "{",
                "'",
                "name",
                "'",
                ":",
                " 1",
                "}",
                " w\u00f6rter",
                " ",
                "</tool_call>",
                "x",
            )
        ]
    finally:
        module._tokens.cache_clear()


OTHER = AskedCalls("o", [TOOLS[0], tool("draft")], [("draft", {"b": 1}), ("convert", {})])
DRAFT = '<tool_call>\n{"name": "draft", "arguments": {"b": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("lost", BOTH[:38] + BOTH[39:]),
        ("doubled", BOTH[:38] + BOTH[38] * 2 + BOTH[39:]),
        ("changed", BOTH[:38] + "_" + BOTH[39:]),
        ("cut", BOTH[:38]),
        ("twice", BOTH * 2),
        ("marker", f"{FIRST}\n" + SECOND.replace('it\'s \\"x\\"', "see </tool_call> here")),
        ("draft", f"<think>\nPerhaps {DRAFT} No: that is not what they want.\n</think>\n\n{BOTH}"),
    ],
)
def test_a_fault_is_what_it_is_called(fault, text, monkeypatch):
    draw = random.Random(1)
    monkeypatch.setattr(
        draw, "randrange", lambda length: 38 if length == len(BOTH) else pytest.fail("beyond the text")
    )
    monkeypatch.setattr(draw, "choice", lambda each: each[-1] if isinstance(each, list) else each[7])
    broken = with_fault(HERMES, fault, OTHER, draw)
    assert broken == replace(
        HERMES,
        text=text,
        finish="length" if fault == "cut" else "stop",
        calls=[CALLS[0], ("save", {"s": "see </tool_call> here"})] if fault == "marker" else CALLS,
        tools=[*TOOLS, tool("draft")] if fault == "draft" else TOOLS,
    )


def test_each_quote_may_be_the_one_that_is_dropped():
    found = {with_fault(HERMES, "quote", OTHER, random.Random(seed)).text for seed in range(300)}
    assert found == {BOTH[:at] + BOTH[at + 1 :] for at, char in enumerate(BOTH) if char in "\"'"}


def test_each_string_and_each_marker_may_be_the_ones_of_a_fault():
    calls = [("save", {"n": 1, "s": "a", "t": "b"}), ("save", {"u": "c"})]
    found = set()
    for seed in range(100):
        broken = with_fault(replace(HERMES, calls=calls), "marker", OTHER, random.Random(seed))
        found |= {
            (at, key, value) for at, (_, given) in enumerate(broken.calls) for key, value in given.items()
        }
    marked = {(at, key, f"see {mark} here") for at, key in ((0, "s"), (0, "t"), (1, "u")) for mark in MARKERS}
    assert found == marked | {(0, "n", 1), (0, "s", "a"), (0, "t", "b"), (1, "u", "c")}


MARKERS = ("<tool_call>", "</tool_call>")


@pytest.mark.parametrize(
    ("fault", "output"),
    [
        *((fault, replace(HERMES, text="")) for fault in ("lost", "doubled", "changed", "quote", "cut")),
        ("quote", replace(HERMES, text="no quotes")),
        ("marker", replace(HERMES, calls=CALLS[:1])),
        ("marker", replace(HERMES, how="qwen")),
        ("draft", replace(HERMES, inside="reasoning")),
        ("draft", replace(HERMES, dialect="llama3-json", how="json")),
        ("draft", replace(HERMES, dialect="harmony", how="role")),
        ("draft", replace(HERMES, calls=OTHER.calls[:1])),
    ],
)
def test_a_fault_without_a_place_is_left_out(fault, output):
    assert with_fault(output, fault, OTHER, random.Random(1)) is None


def test_a_draft_of_a_templates_output_is_written_as_models_usually_do():
    broken = with_fault(replace(HERMES, how="qwen"), "draft", OTHER, random.Random(1))
    assert broken is not None
    assert DRAFT in broken.text
