"""Schemas that break other servers: each compiles or is relaxed by name, in its time, and touches no other tool."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from localagent.constraint.grammar import block_grammar, schema_grammar
from localagent.constraint.keywords import FORMATS, KEYWORDS
from localagent.constraint.leaves import Trials
from localagent.constraint.matching import matcher_factory
from localagent.constraint.merging import LARGEST, Merging, Unreadable
from localagent.constraint.options import ANYTHING, Number, Text
from localagent.constraint.rules import Rules
from localagent.errors import SchemaRefused, Unsupported, UsageError
from parsers import DIALECTS
from tests.constraint.drawing import special_of, tool_of

SECONDS = 10.0
"""For one tool, on a machine that does other things as well; alone it is a tenth of a second."""


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def nested_by_patterns(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "patternProperties": {"^a": schema}}
    return schema


def pairs(count: int) -> dict[str, Any]:
    return {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f"{n}{m}"} for m in range(20)]} for n in range(count)
        ]
    }


ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
ZOD_UUID = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    "|00000000-0000-0000-0000-000000000000)$"
)
DEFINITIONS = {
    "point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
    "itself": {"$ref": "#/$defs/itself"},
    "endless": {"type": "object", "properties": {"n": {"$ref": "#/$defs/endless"}}, "required": ["n"]},
}
BRANCHES = [
    {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k", "x"]},
    {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
]

# What it is: the schema of an argument, and the keywords that are reported.
ROWS: dict[str, tuple[Any, set[str]]] = {
    "zod's e-mail, with look-ahead": ({"type": "string", "format": "email", "pattern": ZOD_EMAIL}, {"pattern"}),
    "zod's uuid": ({"type": "string", "format": "uuid", "pattern": ZOD_UUID}, set()),
    "zod's integer": ({"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1}, set()),
    "true": (True, set()),
    "false": (False, set()),
    "empty": ({}, set()),
    "no schema": (7, {"type"}),
    "null": (None, {"type"}),
    "a list": ([], {"type"}),
    "any": ({"type": "any"}, {"type"}),
    "reference": ({"$ref": "#/$defs/point"}, set()),
    "reference with others": ({"$ref": "#/$defs/point", "required": ["y"]}, set()),
    "reference to nothing": ({"$ref": "#/$defs/nowhere"}, {"$ref"}),
    "remote reference": ({"$ref": "https://example.com/a.json"}, {"$ref"}),
    "reference to itself": ({"$ref": "#/$defs/itself"}, {"$ref"}),
    "recursion": ({"$ref": "#/$defs/tree"}, set()),
    "recursion of the tool": ({"$ref": "#"}, set()),
    "recursion without an end": ({"$ref": "#/$defs/endless"}, {"$ref"}),
    "dynamic reference": ({"$dynamicRef": "#x"}, {"$dynamicRef"}),
    "maxLength 10,000": ({"type": "string", "maxLength": 10_000}, set()),
    "maxLength 10,000 and a pattern": ({"type": "string", "maxLength": 10_000, "pattern": "^[a-z]+$"}, set()),
    "maxLength of a billion": ({"type": "string", "maxLength": 10**9}, {"maxLength"}),
    "minLength 9,999": ({"type": "string", "minLength": 9_999}, set()),
    "10,000 values": ({"enum": [f"value {n}" for n in range(10_000)]}, set()),
    "30,000 values": ({"enum": list(range(30_000))}, {"enum"}),
    "values of all types": ({"enum": ["a", 1, 1.5, None, True, [1, "x"], {"k": "v"}]}, set()),
    "strange characters": ({"enum": ["é", "日本", "\U0001f600", "a\"b'c", "a\\b", "\n"]}, set()),
    "no values": ({"enum": []}, {"enum"}),
    "values of another type": ({"type": "string", "enum": [1, 2]}, {"enum"}),
    "constant": ({"const": {"a": [1, 2]}}, set()),
    "minimum over maximum": ({"type": "integer", "minimum": 5, "maximum": 1}, {"minimum"}),
    "nothing between": ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, {"exclusiveMinimum"}),
    "no multiple": ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 5}, {"minimum"}),
    "minLength over maxLength": ({"type": "string", "minLength": 5, "maxLength": 2}, {"minLength"}),
    "minItems over maxItems": ({"type": "array", "minItems": 3, "maxItems": 1}, {"minItems"}),
    "two types at once": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, {"allOf"}),
    "draft 4": ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, set()),
    "bounds as text": ({"type": "integer", "minimum": "1"}, {"minimum"}),
    "a multiple that cannot be written": (
        {"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.35},
        {"minimum"},
    ),
    "multiples that can": ({"type": "number", "multipleOf": 0.1, "minimum": 0.2, "maximum": 0.4}, set()),
    "beyond floating point": ({"type": "integer", "minimum": 10**400}, {"minimum"}),
    "half of a surrogate pair": ({"enum": ["\ud800", "x"]}, {"enum"}),
    "half of a pair, nested": ({"const": {"k": ["\udfff"]}}, {"const"}),
    "infinity": ({"type": "number", "minimum": float("inf")}, {"minimum"}),
    "40 deep": (nested(40), set()),
    "300 deep": (nested(300), {"properties"}),
    "2,000 deep": (nested(2_000), {"properties"}),
    "300 deep, by patterns": (nested_by_patterns(300), {"properties"}),
    "too many alternatives": (pairs(6), {"allOf"}),
    "names of all kinds": (
        {"type": "object", "properties": {key: {"type": "integer"} for key in ("naïve", "日本", "a b", 'q"', "x<y>")}},
        set(),
    ),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, set()),
    "oneOf, told apart": ({"oneOf": BRANCHES}, set()),
    "oneOf, overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"oneOf"}),
    "allOf": ({"allOf": [*BRANCHES[:1], {"properties": {"b": {"type": "string"}}, "required": ["b"]}]}, set()),
    "not": ({"type": "string", "not": {"const": "x"}}, {"not"}),
    "if": ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"if"}),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, {"uniqueItems"}),
    "contains": ({"type": "array", "contains": {"type": "integer"}, "minContains": 2}, {"contains", "minContains"}),
    "tuple": ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, set()),
    "tuple of draft 7": ({"type": "array", "items": [{"type": "integer"}], "additionalItems": {}}, set()),
    "a million items": ({"type": "array", "maxItems": 10**6}, {"maxItems"}),
    "map": ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, set()),
    "patterns of names": ({"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False}, set()),
    "names by a pattern": ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, set()),
    "counted properties": ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, {"minProperties"}),
    "required, not declared": ({"type": "object", "properties": {}, "required": ["z"]}, set()),
    "not a regular expression": ({"type": "string", "pattern": "[a-"}, {"pattern"}),
    "reference to a group": ({"type": "string", "pattern": r"(a)\1"}, {"pattern"}),
    "word boundary": ({"type": "string", "pattern": r"\bfoo\b"}, {"pattern"}),
    "classes of Unicode": ({"type": "string", "pattern": r"^\p{Lu}\p{Ll}+$"}, set()),
    "a million repetitions": ({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}, set()),
    "unknown format": ({"type": "string", "format": "iban"}, set()),
    "unknown keyword": ({"type": "string", "x-order": 1}, set()),
}  # fmt: skip


def tool_with(schema: Any, name: str = "f") -> dict[str, Any]:
    properties = {"a": schema, "n": {"type": "integer"}}
    return tool_of(
        name, {"type": "object", "properties": properties, "required": ["n"], "$defs": DEFINITIONS}
    )


@pytest.mark.parametrize("name", ["lfm2", "hermes", "qwen3-coder", "gemma4"])
@pytest.mark.parametrize("row", ROWS)
def test_it_compiles_or_is_relaxed_by_name(row: str, name: str, vocabulary: Any) -> None:
    schema, keywords = ROWS[row]
    factory = matcher_factory(vocabulary)
    start = time.monotonic()
    grammar = block_grammar(DIALECTS[name], [tool_with(schema)], special=special_of(vocabulary))
    factory.compile(grammar.text).mask()
    assert time.monotonic() - start < SECONDS
    assert {found.keyword for found in grammar.relaxed} == keywords
    assert all(found.tool == "f" and found.path.startswith("/properties/a") for found in grammar.relaxed)


@pytest.mark.parametrize("name", ["lfm2", "hermes", "gemma4"])
@pytest.mark.parametrize("place", ["value", "item", "key"])
def test_a_marker_that_a_schema_holds_is_text_and_ends_nothing(
    name: str, place: str, vocabulary: Any
) -> None:
    special = special_of(vocabulary)
    forms: dict[str, Any] = {
        "value": lambda word: word,
        "item": lambda word: [word],
        "key": lambda word: {word: 1},
    }
    value = forms[place]("<|im_end|>")
    tool = tool_of("f", {"type": "object", "properties": {"a": {"const": value}}, "required": ["a"]})
    grammar = block_grammar(DIALECTS[name], [tool], special=special)
    assert not grammar.relaxed
    matcher = matcher_factory(vocabulary).compile(grammar.text)
    rendered = DIALECTS[name].render([("f", {"a": forms[place]("here")})])
    for token in vocabulary.tokenize(rendered[: rendered.index("here")], special=True):
        matcher.accept(token)
    mask = matcher.mask()
    assert not [text for text, token in special.items() if mask[token // 32] >> (token % 32) & 1]


@pytest.mark.parametrize("name", ["lfm2", "hermes", "gemma4"])
def test_names_that_hold_a_marker_are_refused_by_name(name: str, vocabulary: Any) -> None:
    special = special_of(vocabulary)
    schema = {"type": "object", "properties": {"<|im_end|>": {"type": "integer"}}}
    tools = [tool_of("f", schema), tool_of("<|im_end|>", {}), tool_of("g", {})]
    grammar = block_grammar(DIALECTS[name], tools, special=special)
    assert [(found.tool, found.keyword) for found in grammar.relaxed] == [
        ("f", "properties"),
        ("<|im_end|>", "name"),
    ]
    assert f"<[{special['<|im_end|>']}]>" not in grammar.text


@pytest.mark.parametrize("text", ["\x16", "a\bc", "\\\x00"])
def test_a_control_character_is_forced_only_where_it_is_escaped(text: str) -> None:
    tool = tool_of(
        "f", {"type": "object", "properties": {"a": {"enum": [text, "x"]}, "b": {"enum": ["\\b\n\t"]}}}
    )
    assert not block_grammar(DIALECTS["hermes"], [tool]).relaxed
    for name in ("qwen3-coder", "gemma4"):
        [relaxed] = block_grammar(DIALECTS[name], [tool]).relaxed
        assert (relaxed.path, relaxed.keyword) == ("/properties/a", "enum")


@pytest.mark.parametrize(("name", "mark"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_a_constant_that_holds_what_ends_a_string_is_not_written(name: str, mark: str) -> None:
    """It would end there, and the call would be another one."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [f"x{mark},b:{mark}y", "z"]}, "b": {"const": "y"}},
    }
    [relaxed] = block_grammar(DIALECTS[name], [tool_of("f", schema)]).relaxed
    assert (relaxed.path, relaxed.keyword) == ("/properties/a", "enum")
    with pytest.raises(SchemaRefused):
        block_grammar(DIALECTS[name], [tool_of("f", schema)], strict=True)
    assert not block_grammar(DIALECTS["hermes"], [tool_of("f", schema)]).relaxed


@pytest.mark.parametrize("name", ["lfm2", "qwen3-coder"])
def test_a_reason_is_a_few_words_and_not_the_grammar(name: str) -> None:
    for row, words in (
        ("not a regular expression", "character class"),
        ("reference to a group", "backreference"),
    ):
        [relaxed] = block_grammar(DIALECTS[name], [tool_with(ROWS[row][0])]).relaxed
        assert relaxed.reason.startswith("it cannot be enforced: ")
        assert words in relaxed.reason
        assert len(relaxed.reason) < 100


@pytest.mark.parametrize("row", [row for row, (_, keywords) in ROWS.items() if keywords])
def test_strict_refuses_it_in_one_line(row: str) -> None:
    with pytest.raises(SchemaRefused, match=r"^the schema of f cannot be enforced: /properties/a") as refused:
        block_grammar(DIALECTS["lfm2"], [tool_with(ROWS[row][0])], strict=True)
    assert any(f": {keyword}: " in str(refused.value) for keyword in ROWS[row][1])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("row", [row for row, (_, keywords) in ROWS.items() if not keywords])
def test_strict_takes_the_others(row: str) -> None:
    assert block_grammar(DIALECTS["lfm2"], [tool_with(ROWS[row][0])], strict=True).relaxed == ()


def test_one_tool_does_not_touch_another(vocabulary: Any, accepts: Any) -> None:
    tools = [tool_with(schema, f"t{number}") for number, (schema, _) in enumerate(ROWS.values())]
    tools.append(
        tool_of("good", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    )
    grammar = block_grammar(DIALECTS["lfm2"], tools)
    assert accepts(grammar, "<|tool_call_start|>[good(n=1)]<|tool_call_end|>")
    assert not accepts(grammar, "<|tool_call_start|>[good(n='1')]<|tool_call_end|>")
    assert not accepts(grammar, "<|tool_call_start|>[good()]<|tool_call_end|>")
    assert "good" not in {found.tool for found in grammar.relaxed}


def test_two_hundred_tools(vocabulary: Any, accepts: Any) -> None:
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "maxLength": 10_000} for n in range(30)},
    }
    grammar = block_grammar(DIALECTS["hermes"], [tool_of(f"tool_{n}", schema) for n in range(200)])
    call = '<tool_call>\n{"name": "tool_199", "arguments": {"p3": "x", "p29": "y"}}\n</tool_call>'
    assert accepts(grammar, call)
    assert not accepts(grammar, call.replace("199", "200"))


def test_only_the_named_tools_and_only_one_call() -> None:
    tools = [tool_with({}, "f"), tool_with({}, "g")]
    assert '"g"' not in block_grammar(DIALECTS["lfm2"], tools, names=["f"]).text
    with pytest.raises(UsageError, match="no tool is named 'h': there are f, g"):
        block_grammar(DIALECTS["lfm2"], tools, names=["h"])
    with pytest.raises(UsageError, match="without tools"):
        block_grammar(DIALECTS["lfm2"], [])


def test_parallel_calls(accepts: Any) -> None:
    tools = [tool_of("f", {})]
    one, two = (DIALECTS["lfm2"].render([("f", {})] * count) for count in (1, 2))
    assert accepts(block_grammar(DIALECTS["lfm2"], tools), two)
    alone = block_grammar(DIALECTS["lfm2"], tools, parallel=False)
    assert accepts(alone, one)
    assert not accepts(alone, two)


@pytest.mark.parametrize("name", ["minicpm5", "qwen3-coder", "glm45"])
def test_beside_a_string_a_constant_does_not_rule_out_others_of_its_type(name: str, accepts: Any) -> None:
    for listed in (1, "\b"):  # the second is let go, and so any value is allowed
        schema = {"anyOf": [{"enum": [listed]}, {"type": ["string", "integer"]}]}
        tool = tool_of("f", {"type": "object", "properties": {"a": schema}, "required": ["a"]})
        grammar = block_grammar(DIALECTS[name], [tool])
        for value in (1, 0, "one"):
            assert accepts(grammar, DIALECTS[name].render([("f", {"a": value})])), (listed, value)


def test_names_that_a_dialect_cannot_write(accepts: Any) -> None:
    tools = [tool_of("get weather", {}), tool_of("f", {"properties": {"a b": {"type": "integer"}, "n": {}}})]
    grammar = block_grammar(DIALECTS["qwen3-coder"], tools)
    assert {(found.tool, found.path, found.keyword) for found in grammar.relaxed} == {
        ("get weather", "", "name"),
        ("f", "/properties/a b", "properties"),
    }
    pythonic = block_grammar(DIALECTS["lfm2"], tools[1:])
    assert pythonic.relaxed == ()
    assert accepts(pythonic, '<|tool_call_start|>[f(**{"a b": 3})]<|tool_call_end|>')
    with pytest.raises(Unsupported, match="'get weather' is no tool name"):
        block_grammar(DIALECTS["qwen3-coder"], tools[:1])


def test_a_dialect_without_calls() -> None:
    with pytest.raises(Unsupported, match="plain"):
        block_grammar(DIALECTS["plain"], [tool_of("f", {})])


def test_a_response_format(accepts: Any) -> None:
    grammar = schema_grammar(
        {"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {}}, "required": ["a"]}
    )
    assert accepts(grammar, '{"a": "x", "b": [1, {"c": null}]}')
    assert not accepts(grammar, '{"b": 1}')
    assert accepts(schema_grammar(None), '{"anything": {"at": ["all"]}}')
    assert not accepts(schema_grammar(None), "[1]")
    with pytest.raises(
        SchemaRefused, match=r"response_format cannot be enforced: /properties/a: uniqueItems"
    ):
        schema_grammar({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (False, "not"),
        ({"not": {}}, "not"),
        ({"items": {"$ref": "#"}, "type": "array", "minItems": 1}, r"\$ref"),
    ],
)
def test_what_no_value_fits_is_refused_by_the_keyword_that_says_so(schema: Any, keyword: str) -> None:
    with pytest.raises(SchemaRefused, match=rf"/: {keyword}: no value of finite length fits it"):
        schema_grammar(schema)


@pytest.mark.parametrize("keyword", [word for word, treatment in KEYWORDS.items() if treatment == "refused"])
def test_what_the_table_says_is_refused(keyword: str) -> None:
    (found,) = block_grammar(DIALECTS["lfm2"], [tool_with({"type": "string", keyword: "#x"})]).relaxed
    assert (found.path, found.keyword) == ("/properties/a", keyword)


def test_the_readme_has_the_table() -> None:
    import localagent.constraint

    text = (Path(localagent.constraint.__file__).parent / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| .* \|$", text, re.MULTILINE)
    assert len(rows) == len(KEYWORDS)
    assert dict(rows) == KEYWORDS
    assert all(f"`{name}`" in text for name in FORMATS)


@pytest.mark.parametrize("kind", ["string", None, "array"])
def test_arguments_have_names_whatever_their_schema_says_of_its_type(kind: str | None) -> None:
    schema = {"type": kind, "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    meant = block_grammar(DIALECTS["hermes"], [tool_of("f", {**schema, "type": "object"})])
    found = block_grammar(DIALECTS["hermes"], [tool_of("f", schema)])
    assert (found.text, found.relaxed) == (meant.text, ())


def test_values_that_cannot_be_compiled_are_refused_with_the_reason() -> None:
    rules = Rules()
    fine, wrong = rules.terminal("/[a-z]+/ & ~/b/"), rules.terminal("/[a-z]+/ & ~/(?=b)/")
    assert rules.refusal([fine], Trials()) == ""
    assert "look-around" in rules.refusal([wrong], Trials())


def test_what_merging_costs_is_what_it_compares():
    """Many small ones together, too: 2,500 pairs each time, of which none is left."""
    merging = Merging(lambda pointer: ANYTHING)
    numbers = tuple(Number(integer=True, low=low) for low in range(50))
    texts = tuple(Text(least=least) for least in range(50))
    for _ in range(LARGEST // 2_500):
        assert merging.both(numbers, texts, "allOf") == ()
    with pytest.raises(Unreadable, match="more than 20,000 parts"):
        merging.both(numbers, texts, "allOf")
