"""What may be written for each schema, letter by letter: a byte is a token, and no model is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localagent.constraint.grammar import block_grammar, schema_grammar
from localagent.constraint.rules import Literals, near
from parsers import DIALECTS
from tests.constraint.drawing import read, takes_bytes, tool_of

INTEGER, BOOLEAN = {"type": "integer"}, {"type": "boolean"}
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
DEEP: dict[str, Any] = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}


def array(**more: Any) -> dict[str, Any]:
    return {"type": "array", "items": INTEGER, **more}


def record(*required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), **more}


def patterned(**more: Any) -> dict[str, Any]:
    return record(patternProperties={"^x": INTEGER, "y$": BOOLEAN}, **more)


# The schema of an answer; what fits it; what does not.
ANSWERS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "string"}, ['""', '"a\'b"', r'"\"\\\b\f\n\r\t\u00e9"', '"\u20ac"'], ['"', '"a', '"\n"', r'"\x"', r'"\ud800"', "'a'"]),
    ({"type": "string", "minLength": 1, "maxLength": 2}, ['"a"', r'"\n\u00e9"'], ['""', '"abc"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ({"type": "string", "minLength": 2}, ['"ab"', '"abc"'], ['"a"', '""']),
    ({"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"aaaa"', '"ax"']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"', '""']),
    ({"type": "string", "pattern": "b$"}, ['"ab"'], ['"abc"']),
    ({"type": "string", "pattern": r"^a\$"}, ['"a$"', '"a$b"'], ['"a"']),
    ({"type": "string", "pattern": r"^(a|b\|)$"}, ['"a"', '"b|"'], ['"b"', '"ab|"']),
    ({"type": "string", "pattern": "^[|^$]$"}, ['"|"', '"^"', '"$"'], ['"a"', '"||"']),
    ({"type": "string", "pattern": "a|b"}, ['"xay"', '"b"'], ['"x"']),
    ({"allOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b", "minLength": 3}]}, ['"bca"'], ['"a"', '"ab"', '"bbb"']),
    ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"'], ['"127.0.0.256"', '"x127.0.0.1"']),
    (INTEGER, ["0", "-7", "1" + "0" * 300], ["01", "1.0", "+1", "1e3", "1" + "0" * 301, '"1"', "true"]),
    (
        {"type": "number"},
        ["0", "-1.5", "1e5", "2E+99", "1.25e-12", "9e299", "9.5E+299", "1e-999", "1" + "0" * 200 + "." + "5" * 300],
        ["01", "1.", ".5", "1e300", "12e299", "1e1000", "NaN", "1" + "0" * 201, "0." + "5" * 301, "1e"],
    ),
    ({"type": "integer", "minimum": 9, "exclusiveMaximum": 12}, ["9", "11"], ["8", "12", "9.0"]),
    ({"type": "number", "multipleOf": 0.5}, ["1.5", "2"], ["1.25"]),
    (BOOLEAN, ["true", "false"], ["null", "True", "1"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["true", "1"]),
    (array(), ["[]", "[1]", "[1, 2, 3]"], ["[", "[1,2]", "[1, ]", "[, 1]", "[true]", "[1 2]"]),
    (array(maxItems=0), ["[]"], ["[1]"]),
    (array(maxItems=1), ["[]", "[1]"], ["[1, 2]"]),
    (array(maxItems=2), ["[]", "[1]", "[1, 2]"], ["[1, 2, 3]"]),
    (array(minItems=1), ["[1]", "[1, 2, 3]"], ["[]"]),
    (array(minItems=2), ["[1, 2]", "[1, 2, 3]"], ["[]", "[1]"]),
    (array(minItems=2, maxItems=3), ["[1, 2]", "[1, 2, 3]"], ["[]", "[1]", "[1, 2, 3, 4]"]),
    (array(minItems=1, maxItems=1), ["[1]"], ["[]", "[1, 2]"]),
    (array(prefixItems=[BOOLEAN, {"type": "null"}], items=False), ["[]", "[true]", "[true, null]"], ["[null]", "[true, null, 1]"]),
    (array(prefixItems=[BOOLEAN, {"type": "null"}]), ["[]", "[true]", "[true, null]", "[true, null, 1, 2]"], ["[1]", "[true, 1]", "[true null]"]),
    (array(prefixItems=[BOOLEAN, BOOLEAN], minItems=1), ["[true]", "[true, true, 1]"], ["[]"]),
    (array(prefixItems=[BOOLEAN, BOOLEAN], minItems=2, maxItems=3), ["[true, true]", "[true, true, 1]"], ["[true]", "[true, true, 1, 2]"]),
    (array(prefixItems=[BOOLEAN], minItems=3), ["[true, 1, 2]", "[true, 1, 2, 3]"], ["[true, 1]", "[]"]),
    (array(prefixItems=[BOOLEAN, BOOLEAN], maxItems=1), ["[]", "[true]"], ["[true, true]"]),
    (array(prefixItems=[BOOLEAN, BOOLEAN], maxItems=2), ["[true]", "[true, true]"], ["[true, true, 1]"]),
    (array(prefixItems=[BOOLEAN, False]), ["[]", "[true]"], ["[true, 1]", "[true, true]"]),
    ({"type": "array"}, ["[]", '[1, "a", [null], {"k": true}]'], ["[1,2]", "{}"]),
    (record("a", "c", properties={"a": INTEGER, "b": INTEGER, "c": INTEGER}), ['{"a": 1, "c": 2}', '{"a": 1, "b": 1, "c": 2}'],
     ["{}", '{"a": 1}', '{"c": 2, "a": 1}', '{"a": 1, "c": 2, "b": 1}', '{"a": 1, "c": 2, "d": 1}', '{"a":1, "c": 2}', '{"a": 1 "c": 2}']),
    (record(properties={"a": INTEGER, "b": INTEGER}), ["{}", '{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'],
     ['{"b": 1, "a": 1}', '{"x": 1}', '{, "a": 1}', '{"a": 1, }', '{"a": 1, "a": 1}']),
    (record(properties={"a": BOOLEAN}, additionalProperties=INTEGER), ["{}", '{"a": true}', '{"x": 1}', '{"x": 1, "y": 2}', '{"a": true, "x": 1, "y": 2}'],
     ['{"a": 1}', '{"x": true}', '{"x": 1, "a": true}', '{"x": 1 "y": 2}']),
    (record("a", properties={"a": BOOLEAN}, additionalProperties=INTEGER, minProperties=2, maxProperties=3),
     ['{"a": true, "x": 1}', '{"a": true, "x": 1, "y": 1}'], ['{"a": true}', '{"x": 1, "y": 1}', '{"a": true, "x": 1, "y": 1, "z": 1}']),
    (record(additionalProperties=INTEGER, minProperties=1, maxProperties=2), ['{"x": 1}', '{"x": 1, "y": 1}'], ["{}", '{"x": 1, "y": 1, "z": 1}']),
    (record(additionalProperties=INTEGER, minProperties=2), ['{"x": 1, "y": 1}', '{"x": 1, "y": 1, "z": 1}'], ["{}", '{"x": 1}']),
    (record(additionalProperties=INTEGER, maxProperties=1), ["{}", '{"x": 1}'], ['{"x": 1, "y": 1}']),
    (record(additionalProperties=INTEGER, maxProperties=0), ["{}"], ['{"x": 1}']),
    (record("a", properties={"a": BOOLEAN}, additionalProperties=INTEGER, maxProperties=1), ['{"a": true}'], ['{"a": true, "x": 1}']),
    (record(additionalProperties=False), ["{}"], ['{"x": 1}']),
    (record(properties={}), ["{}", '{"x": [1]}'], ['{"": 1}']),
    (patterned(), ["{}", '{"xa": 1}', '{"ay": true}', '{"xa": 1, "ay": true}'], ['{"xa": true}', '{"ay": 1}', '{"xy": 1}', '{"xy": true}', '{"z": 1}']),
    (patterned(additionalProperties={"type": "null"}), ['{"z": null}', '{"xa": 1, "z": null}'], ['{"z": 1}', '{"xa": null}', '{"xy": null}']),
    (patterned(properties={"b": BOOLEAN}), ['{"b": true}', '{"b": true, "xa": 1}'], ['{"z": 1}']),
    (record(patternProperties={"^x": False, "^z": INTEGER}), ['{"z": 1}'], ['{"x": 1}']),
    (record(propertyNames={"pattern": "^[a-z<]+$", "maxLength": 2}), ['{"ab": 1}', "{}"], ['{"abc": 1}', '{"1": 1}', '{"": 1}', '{"<": 1}']),
    (record(propertyNames={"minLength": 2}), ['{"ab": 1}'], ['{"a": 1}']),
    (record(propertyNames={"enum": ["a", "b.c"]}), ['{"a": 1, "b.c": 2}'], ['{"bxc": 1}']),
    (record(additionalProperties=INTEGER), ['{"\u00e9 b": 1}'], [r'{"a\"b": 1}', '{"a\'b": 1}', '{"a>b": 1}', r'{"\u00e9": 1}']),
    (record(properties={"a": False, "b": INTEGER}), ["{}", '{"b": 1}'], ['{"a": 1}', '{"a": 1, "b": 1}']),
    (TREE, ["{}", '{"kids": []}', '{"kids": [{}, {"kids": [{}]}]}'], ['{"kids": [1]}', '{"kids": {}}']),
    (DEEP, ["null", "[null]", "[[null], null]"], ["[]", "[[]]", "1"]),
    ({"type": "array", "prefixItems": [INTEGER, {"$ref": "#"}], "items": False, "minItems": 1}, ["[1]", "[1, [2]]", "[1, [2, [3]]]"], ["[]", "[1, 2]"]),
    ({"type": "array", "prefixItems": [INTEGER], "items": {"$ref": "#"}, "minItems": 1}, ["[1]", "[1, [1], [1, [1]]]"], ["[]", "[1, 1]"]),
    ({"anyOf": [INTEGER, record("a", "b", properties={"a": {"$ref": "#"}, "b": BOOLEAN})]}, ["1", '{"a": {"a": 1, "b": true}, "b": false}'], ['{"a": 1}', '{"b": true}']),
    ({"enum": ["it's", 'a"b', 1, 2.5, None, [1, "x"], {"k": [True], "j": {}}, "\u20ac"]},
     ['"it\'s"', '"a\\"b"', "1", "2.5", "null", '[1, "x"]', '{"k": [true], "j": {}}', '"\u20ac"'], ['"x"', "1.0", "[1]", '{"j": {}, "k": [true]}', "true"]),
    (record(propertyNames={"pattern": r"^\w\d$"}), ['{"a1": 1}', '{"_2": 1}'], ['{"\u00e91": 1}', '{"a\u0661": 1}', '{"a": 1}']),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": array(items={"$ref": "#/$defs/d"}, minItems=1), "d": BOOLEAN}}, ["[true]"], ["[]", "[1]"]),
    ({}, ["1", '{"a": [1, "x", null, true, false, {}, -0.5]}'], ["nul", '{"a":1}', "'x'"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fitting", "others"), ANSWERS)
def test_an_answer_is_what_fits_and_nothing_else(schema: Any, fitting: list[str], others: list[str]) -> None:
    grammar = schema_grammar(schema)
    assert [text for text in fitting if not takes_bytes(grammar.text, text)] == []
    assert [text for text in others if takes_bytes(grammar.text, text)] == []
    for text in fitting:
        json.loads(text)


# -- calls --------------------------------------------------------------------------------------------

PROPERTIES = {
    "s": {"type": "string"},
    "word": {"enum": ["up", "a bit", "it's"]},
    "n": INTEGER,
    "b": BOOLEAN,
    "none": {"type": "null"},
    "x": {"type": "number"},
    "list": array(maxItems=2),
    "tags": {"type": "array", "items": {"enum": ["p", "q r"]}},
    "o": record("k", properties={"k": {"type": "string", "maxLength": 3}, "l": {"$ref": "#/$defs/small"}}),
    "ref": {"$ref": "#/$defs/small"},
}
PARAMETERS = record("n", properties=PROPERTIES, **{"$defs": {"small": {"enum": [1, 2, None, True]}}})
CALLS: list[dict[str, Any]] = [
    {"n": 1},
    {"s": "some text", "n": -12},
    {"s": "", "n": 0},
    {"s": "12", "word": "a bit", "n": 3, "b": True, "none": None, "x": -1.5},
    {"word": "it's", "n": 3, "b": False, "x": 2},
    {"n": 1, "list": [], "tags": ["q r", "p"]},
    {"n": 1, "list": [7, 8], "o": {"k": "abc", "l": None}, "ref": True},
    {"n": 1, "o": {"k": ""}, "ref": 2},
]
UNFIT: list[dict[str, Any]] = [
    {},
    {"s": "some text"},
    {"n": 1.5},
    {"n": "one"},
    {"n": None},
    {"n": 1, "b": None},
    {"n": 1, "none": True},
    {"n": 1, "x": "x"},
    {"word": "down", "n": 1},
    {"n": 1, "list": [1, 2, 3]},
    {"n": 1, "list": ["1"]},
    {"n": 1, "tags": ["r"]},
    {"n": 1, "o": {}},
    {"n": 1, "o": {"k": "abcd"}},
    {"n": 1, "o": {"k": "a", "l": 3}},
    {"n": 1, "ref": 3},
    {"n": 1, "ref": False},
    {"n": 1, "other": 1},
]
CALLING = [name for name, dialect in DIALECTS.items() if dialect.renderers]


@pytest.mark.parametrize("name", CALLING)
def test_a_call_is_what_its_dialect_writes_for_what_fits(name: str) -> None:
    dialect, tools = DIALECTS[name], [tool_of("do_it", PARAMETERS), tool_of("more", {})]
    grammar = block_grammar(dialect, tools)
    assert grammar.relaxed == ()
    opener = dialect.calls.open if dialect.calls else ""

    def written(arguments: dict[str, Any]) -> str:
        text = dialect.render([("do_it", arguments)])
        return text[text.index(opener) :] if opener in text else text

    tried = []
    for each in CALLS:
        calls = read(dialect, tools, written(each))
        # It writes lists and objects as elements, which the grammar has as JSON.
        if name != "minimax-m3" or not ({"list", "o"} & each.keys()):
            assert not isinstance(calls, str), calls
            tried += [each] * (dict(calls[0].arguments) == each)
    assert len(tried) >= len(CALLS) - 3, "what it writes it reads"
    assert [each for each in tried if not takes_bytes(grammar.text, written(each))] == []
    assert [each for each in UNFIT if takes_bytes(grammar.text, written(each))] == []


OPEN = record("a", properties={"a": INTEGER}, additionalProperties=BOOLEAN)
OPEN_CALLS = [
    # What the schema of the arguments is; what fits it; what does not.
    (OPEN, [{"a": 1}, {"a": 1, "x": True}, {"a": 1, "x_1": True, "y": False}], [{"x": True}, {"a": 1, "x": 1}, {"a": True}]),
    (record(additionalProperties=BOOLEAN), [{}, {"x": True}, {"x": True, "y": True}], [{"x": 1}]),
    ({**OPEN, "maxProperties": 1}, [{"a": 1}], [{"a": 1, "x": True}]),
    (record(properties={"a": INTEGER}), [{}, {"a": 1}], [{"x": True}]),
    (record(patternProperties={"^no": False, "^i": INTEGER, "b$": BOOLEAN}), [{"in": 1}, {"ab": True, "i2": 3}], [{"nob": True}, {"ib": 1}, {"in": True}, {"x": 1}]),
    (record(properties={"a": INTEGER}, patternProperties={"^i": INTEGER}), [{"a": 1, "in": 1}], [{"a": 1, "x": 1}, {"in": True}]),
    (record(properties={"a": False, "b": INTEGER}), [{}, {"b": 1}], [{"a": 1}]),
    ({"$ref": "#/$defs/o", "$defs": {"o": record("k", properties={"k": INTEGER})}}, [{"k": 1}], [{}, {"k": True}]),
    ({"anyOf": [record("k", properties={"k": INTEGER}), record("l", properties={"l": INTEGER})]}, [{"k": 1}, {"l": 1}], [{}, {"k": 1, "l": 1}]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["lfm2", "hermes", "gemma4", "llama-pythonic"])
@pytest.mark.parametrize(("schema", "fitting", "others"), OPEN_CALLS)
def test_names_that_nobody_declared_are_written_where_the_schema_asks_for_them(
    schema: Any, fitting: list[Any], others: list[Any], name: str
) -> None:
    grammar = block_grammar(DIALECTS[name], [tool_of("f", schema)])
    assert [
        each for each in fitting if not takes_bytes(grammar.text, DIALECTS[name].render([("f", each)]))
    ] == []
    assert [each for each in others if takes_bytes(grammar.text, DIALECTS[name].render([("f", each)]))] == []


@pytest.mark.parametrize("name", ["qwen3-coder", "glm45", "hermes"])
def test_an_argument_that_a_dialect_cannot_write_leaves_the_others(name: str) -> None:
    properties = {"n": INTEGER, "</arg_key>\n": INTEGER, "l": {"enum": ["x"]}}
    grammar = block_grammar(DIALECTS[name], [tool_of("f", record("n", properties=properties))])
    assert len(grammar.relaxed) == (name != "hermes")
    for arguments, fits in (
        ({"n": 1, "l": "x"}, True),
        ({"n": 1}, True),
        ({"l": "x"}, False),
        ({"n": 1, "l": "y"}, False),
    ):
        assert takes_bytes(grammar.text, DIALECTS[name].render([("f", arguments)])) is fits


def test_what_is_nested_deeper_than_anything_is_read_leaves_the_others() -> None:
    deep: Any = {"type": "string"}
    for _ in range(2_000):
        deep = {"anyOf": [deep]}
    properties = {"n": {"anyOf": [INTEGER, {"enum": ["one", "two"]}]}, "deep": deep}
    grammar = block_grammar(DIALECTS["hermes"], [tool_of("f", record("n", properties=properties))])
    assert {(each.path[:16], each.keyword) for each in grammar.relaxed} == {
        ("/properties/deep", "properties")
    }
    for arguments, fits in (({"n": 1}, True), ({"n": "two"}, True), ({"n": "three"}, False), ({}, False)):
        assert takes_bytes(grammar.text, DIALECTS["hermes"].render([("f", arguments)])) is fits


UNWRITTEN = "enum: the dialect {} cannot write its values"
RAW: list[tuple[Any, list[str], list[str], list[str]]] = [
    # Beside a string, by the parser's own reading: the schema; what can be written; what cannot; what is reported.
    ({"type": "string"}, ["", "12", "true", "null", "[1]", "a\nb", "a < b"], ["</parameter>", "<parameter=x>", "a</parameter", "x<function=", "</tool_call>", ' if "</para" in t', "</par ameter> x", "</fun  ction> q"], []),
    ({"type": ["string", "integer"]}, ["12", "-3", "12 Main St", "true", "x"], ["1.5", " 12"], []),
    ({"type": ["string", "boolean"]}, ["True", "truest", "12"], ["true", "True "], []),
    ({"type": ["string", "null"]}, ["None", "nullable", "12"], ["null"], []),
    ({"type": ["string", "number"]}, ["1.5", "12", "1.5.1"], [], []),
    ({"type": ["string", "integer"], "minimum": 3}, ["2", "x"], [], ["minimum: beside a string no number is bounded"]),
    ({"enum": ["a", "b c"]}, ["a", "b c"], ["c", "a b c", ""], []),
    ({"enum": ["a", "</parameter>"]}, ["a"], ["</parameter>", "b"], []),
    ({"enum": ["</parameter>x"]}, ["anything"], ["</parameter>x"], [UNWRITTEN]),
    ({"enum": ["</parameter>x", 3], "type": ["string", "integer"]}, ["3", "x"], ["4"], [UNWRITTEN]),
    ({"enum": ["12", "x", 12]}, ["12", "x"], ["13"], []),
    ({"type": ["integer", "null"]}, ["1", "None"], ["x", "True", "1.5"], []),
    ({"type": "integer", "minimum": 3}, ["3", "40"], ["2"], []),
    ({"$ref": "#/$defs/p"}, ["1", "None"], ["x", "True"], []),
    ({"anyOf": [{"$ref": "#/$defs/p"}, {"type": "boolean"}]}, ["1", "None", "True"], ["x"], []),
    ({"type": "array", "items": INTEGER}, ["[1, 2]", "[]"], ["1", '["x"]'], []),
    ({"type": ["array", "string"]}, ["[1]", "text"], ["[1"], []),
    ({"type": "object", "properties": {"k": BOOLEAN}}, ["{}", '{"k": true}'], ['{"k": 1}', "x"], []),
    ({}, ["1", "text", "True", "[1]", '{"a": 1}', "None"], ["true", "null", "[1", "{"], []),
]  # fmt: skip
EDGES: list[tuple[Any, list[str], list[str], list[str]]] = [
    # Where the end of a line belongs to the tag.
    ({"type": "string"}, ["a\nb", " a "], ["\na", "a\n", "\n"], []),
    ({"enum": ["\nb", "c"]}, ["c"], ["b", "\nb"], []),
    ({"enum": ["\nb"]}, ["b", "c"], ["\nb"], [UNWRITTEN]),
]


@pytest.mark.parametrize(
    ("name", "schema", "texts", "others", "reported"),
    [*(("qwen3-coder", *row) for row in RAW), *(("seed-oss", *row) for row in EDGES)],
)
def test_raw_text_is_what_is_read_as_what_the_schema_asks_for(
    name: str, schema: Any, texts: list[str], others: list[str], reported: list[str]
) -> None:
    dialect = DIALECTS[name]
    definitions = {"p": {"anyOf": [INTEGER, {"type": "null"}, {"$ref": "#/$defs/p"}]}}
    tool = tool_of("f", record("a", properties={"a": schema}, **{"$defs": definitions}))
    grammar = block_grammar(dialect, [tool])
    assert [f"{each.keyword}: {each.reason}" for each in grammar.relaxed] == [
        each.format(name) for each in reported
    ]
    call = dialect.render([("f", {"a": "probe"})])
    assert [text for text in texts if not takes_bytes(grammar.text, call.replace("probe", text))] == []
    assert [text for text in others if takes_bytes(grammar.text, call.replace("probe", text))] == []


# -- fixed text ---------------------------------------------------------------------------------------


def test_markers_in_fixed_text_are_tokens_the_longest_first() -> None:
    literals = Literals({"<a>": 1, "<a><b>": 2, "": 3})
    assert literals.write("x<a>y<a><b>") == '"x" <[1]> "y" <[2]>'
    assert literals.write("<a>") == "<[1]>"
    assert literals.write("") == ""
    assert literals.write('q"\x7f\n') == '"q\\"\\u007f\\n"'
    assert literals.split("x<a>y") == ("x", "<a>y")
    assert literals.split("xy") == ("xy", "")
    assert literals.only(["<a>", "<c>"]).write("<a><b>") == '<[1]> "<b>"'
    assert Literals({}).write("<a>") == '"<a>"'


@pytest.mark.parametrize(
    ("tag", "fitting", "others"),
    [
        (
            "<ab>",
            ["<ab>", "<b>", "<a>", "<ab", "<xb>", "<axb>", "<aab>", "<a b>", "<  \nab>"],
            ["<>", "<a<b>", "ab>", "<cd>"],
        ),
        ("<a b>", ["<a b>", "<ab>", "<a  b>", "<a xb>", "<a\nb>"], ["<axyb>"]),
        ("</p>", ["</p>", "<p>", "/p>", "\np>", "</xp>"], ["p>", " p>", "<//pp>"]),
    ],
)
def test_what_is_one_edit_from_a_tag_is_near_it(tag: str, fitting: list[str], others: list[str]) -> None:
    grammar = f"start: TAG\nTAG: /{near(tag)}/\n"
    assert [text for text in fitting if not takes_bytes(grammar, text)] == []
    assert [text for text in others if takes_bytes(grammar, text)] == []
