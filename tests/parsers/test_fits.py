"""Whether a call fits the declared tools: the check itself, and how a stream tells it."""

from __future__ import annotations

import re
import time

import pytest

from parsers import (
    DIALECTS,
    ArgumentEnd,
    CallEnd,
    CallPart,
    CallStart,
    Malformed,
    MalformedPart,
    MisfitKind,
    StreamParser,
    Text,
    ToolCheck,
    collect,
    misfits,
)
from parsers.engine.fits import ArgumentCheck, argument_fits
from parsers.engine.tools import declared
from tests.parsers.outputs import CALLING
from tests.parsers.reading import characters, check_run, exact, read, whole

NESTED = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F", 1, None]},
    "one": {"const": 1},
    "maybe": {"type": ["string", "null"]},
    "either": {"anyOf": [{"type": "integer"}, NESTED]},
    "where": NESTED,
    "points": {"type": "array", "items": NESTED},
    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    "tuple": {"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "integer"}]},
    "old": {"type": "string", "nullable": True},
    "loose": {"type": "float"},
    "union": {"type": "number|null"},
    "sized": {"type": "int32"},
    "optional": {"type": "Optional[List[int|str]]"},
    "many": {"type": "integer[]"},
    "words": {"type": "array of strings"},
    "strange": {"type": "colour"},
    "referred": {"$ref": "#/$defs/x"},
    "any": True,
    "never": False,
    "listed": {"const": [1]},
    "both": {"const": "a", "enum": ["b", "c"]},
    "patterned": {
        "patternProperties": {"^x": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    },
    "perhaps": {"nullable": True, "anyOf": [{"type": "string"}]},
}


def tool(name: str = "f", required: tuple[str, ...] = (), **schema: object) -> dict:
    parameters = {"type": "object", "properties": PROPERTIES, "required": [*required], **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def check_call(name: str, arguments: dict, tools: list | None) -> object:
    return ToolCheck(tools).call(name, arguments)


def reasons(fits: object) -> list[tuple[str, str]]:
    return [(reason.kind.value, reason.path) for reason in misfits(fits)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Paris", "days": 3, "unit": "C"},
        {"days": 3.0},  # a whole number, as JSON Schema has it
        {"unit": None, "one": 1.0, "maybe": None, "old": None},
        {"either": 3, "where": {"x": 1, "tags": []}, "points": [{"x": 0.5}]},
        {"either": {"x": 1}, "counts": {"a": 1}, "tuple": [1, "a"]},
        {"loose": 1.5, "union": None, "sized": 3, "optional": None, "many": [1], "words": []},
        {"listed": [1.0], "patterned": {"xa": "s"}, "perhaps": None},
        {"strange": 3, "referred": [], "any": {}},  # what is not known is no reason
    ],
)
def test_what_fits(arguments):
    assert check_call("f", arguments, [tool()]) is True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"town": 1}, [("unknown_key", "/town")]),
        ({"a/b~c": 1}, [("unknown_key", "/a~1b~0c")]),
        ({"city": 3, "days": "3"}, [("wrong_type", "/city"), ("wrong_type", "/days")]),
        ({"days": 3.5}, [("wrong_type", "/days")]),
        ({"days": True}, [("wrong_type", "/days")]),
        ({"city": None}, [("wrong_type", "/city")]),
        ({"unit": "K"}, [("wrong_type", "/unit")]),
        ({"unit": True}, [("wrong_type", "/unit")]),  # which is 1 in Python
        ({"one": 2}, [("wrong_type", "/one")]),
        ({"loose": "1.5"}, [("wrong_type", "/loose")]),
        ({"union": "x"}, [("wrong_type", "/union")]),
        ({"either": "x"}, [("wrong_type", "/either")]),
        ({"either": {"x": "y"}}, [("wrong_type", "/either")]),
        ({"where": {"tags": ["a", 1]}}, [("missing_required", "/where/x"), ("wrong_type", "/where/tags/1")]),
        ({"points": [{"x": 1}, {"x": 1, "y": 2}]}, [("unknown_key", "/points/1/y")]),
        ({"counts": {"a": "b"}}, [("wrong_type", "/counts/a")]),
        ({"sized": "3", "optional": {}}, [("wrong_type", "/sized"), ("wrong_type", "/optional")]),
        ({"many": 1, "words": "a"}, [("wrong_type", "/many"), ("wrong_type", "/words")]),
        ({"never": None}, [("wrong_type", "/never")]),
        ({"listed": [True]}, [("wrong_type", "/listed")]),
        ({"both": "a"}, [("wrong_type", "/both")]),
    ],
)
def test_what_does_not_fit(arguments, told):
    assert reasons(check_call("f", arguments, [tool()])) == told


TEXTS = {"type": "string", "enum": ["a", "<b>", 1]}
SCHEMAS = (
    *PROPERTIES.values(), TEXTS, {"type": "str"}, {"type": "int"}, {"type": "array"}, {"type": "object"},
    {"type": "array", "items": TEXTS}, {"type": "array", "items": {"type": "array", "items": {"type": "bool"}}},
    {"type": "array", "items": True}, {"type": "integer", "enum": [1]}, {"type": "none"}, {},
)  # fmt: skip
VALUES = (
    "a", "<b>", "c", 1, 1.0, 1.5, True, None, [], ["a"], ["<b>"], [1], [[True]], [[1]], {}, {"x": 1},
    {"x": ["<b>"]}, [{"x": "<b>"}], [[["<b>"]]],
)  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_what_is_told_quickly_is_what_the_whole_check_tells(schema):
    marks = re.compile("<b>")
    (known,) = declared([tool(properties={"x": schema})]).values()
    for value in VALUES:
        reasons = [*ArgumentCheck().of(known, "x", value)]
        marked = "<b>" in str(value)
        assert (argument_fits(known, "x", value, marks) is True) == (not reasons and not marked), value


def test_missing_parameters_and_undeclared_names():
    assert reasons(check_call("f", {"days": 1}, [tool(required=("city", "days"))])) == [
        ("missing_required", "/city")
    ]
    assert reasons(check_call("g", {"town": 1}, [tool()])) == [("undeclared_name", "")]
    assert check_call("g", {}, None) is None
    assert check_call("g", {}, []) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {}}},
        {"allOf": [{}]},
        {"properties": None},
    ],
)
def test_a_schema_that_may_take_more_keys_does_not_refuse_them(schema):
    assert check_call("f", {"town": 1}, [tool(**schema)]) is True
    assert check_call("f", {"town": 1}, [{"name": "f"}]) is True  # a tool that says nothing of its parameters


def test_keys_that_a_schema_takes_have_its_type():
    assert reasons(check_call("f", {"town": 1}, [tool(additionalProperties={"type": "string"})])) == [
        ("wrong_type", "/town")
    ]


def test_only_a_few_places_are_named():
    assert len(misfits(check_call("f", {str(n): n for n in range(100)}, [tool()]))) == 8


def test_a_hostile_schema_costs_no_more_than_its_steps():
    choices: dict = {"type": "string"}
    for _ in range(7):
        choices = {"anyOf": [{"type": "array", "items": choices}] * 30}
    value: object = 1
    for _ in range(7):
        value = [value] * 3
    declared = [{"name": "f", "parameters": {"properties": {"a": choices, "b": {"type": "integer"}}}}]
    begun = time.process_time()
    assert check_call("f", {"a": value, "b": "x"}, declared) is not None
    assert time.process_time() - begun < 1


# -- in the stream ----------------------------------------------------------------------------------------

S, E = "<|tool_call_start|>", "<|tool_call_end|>"
TOOLS = [tool(required=("city",))]


def told(raw: str, dialect: str = "lfm2", **options: object) -> list[tuple[str, object]]:
    """What the events of one output say of calls that fit or do not; the same however it is cut."""
    events = read(dialect, whole(raw), **options)
    assert exact(read(dialect, characters(raw), **options)) == exact(events)
    kinds = CallStart | ArgumentEnd | CallEnd
    return [(type(event).__name__, event.fits) for event in events if isinstance(event, kinds)]


def test_reasons_are_told_as_soon_as_they_are_known():
    stream = told(f"{S}[f(town=1, days=2)]{E}", tools=TOOLS)
    assert [(name, reasons(fits) if fits is not True else True) for name, fits in stream] == [
        ("CallStart", True),
        ("ArgumentEnd", [("unknown_key", "/town")]),
        ("ArgumentEnd", True),
        ("CallEnd", [("unknown_key", "/town"), ("missing_required", "/city")]),
    ]
    stream = told(f"{S}[g(town=1)]{E}", tools=TOOLS)
    assert [fits and reasons(fits) for _, fits in stream] == [
        [("undeclared_name", "")], None, [("undeclared_name", "")],
    ]  # fmt: skip


def test_without_declared_tools_nothing_is_said():
    raw = f"{S}[f(town=1)]{E}"
    assert {fits for _, fits in told(raw)} == {None}
    assert {fits for _, fits in told(raw, tools=[])} == {None}
    (part,) = collect(read("lfm2", whole(raw), tools=TOOLS))
    assert isinstance(part, CallPart) and len(misfits(part.fits)) == 2


def test_of_a_repeated_argument_nothing_is_unknown():
    *_, end = told(f"{S}[f(city='x', city='x')]{E}", tools=TOOLS)
    assert end == ("CallEnd", True)


def test_a_marker_in_a_string_is_named_unless_its_token_cannot_stand_there():
    raw = f'{S}[f(city="a {E} b")]{E}'
    (part,) = collect(read("lfm2", whole(raw), tools=TOOLS))
    assert reasons(part.fits) == [("markup_in_value", "/city")]
    pieces = [(S, True), (f'[f(city="a {E} b")]', False), (E, True)]
    parser = StreamParser(DIALECTS["lfm2"], tools=TOOLS, atomic={S, E})
    events = [event for piece in pieces for event in parser.feed(*piece)]
    assert [event.fits for event in events if isinstance(event, CallEnd)] == [True]


# -- and where a call that does not fit is none -----------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "raw"),
    [
        ("hermes", '<tool_call>\n{"name": "f"}\n</tool_call>'),  # a repair: it has no arguments
        ("hermes", '<tool_call>\n{"name": "f", "arguments": "{\\"days\\": 1}"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"city": "x", "days“: 10, ”unit": "C"}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"maybe": "x", "unitty": 1}}\n</tool_call>'),  # two keys in one
        ("lfm2", f"{S}[f(maybe='x\", city=\"y')]{E}"),  # a value that holds the missing one
        ("lfm2", f"{S}[f(x), f(town='a', city='b')]{E}"),  # behind a fault
        ("lfm2", f"{S}[f(city='a {E}', town=1)]{E}"),  # a marker, and a key of nobody
        (
            "longcat",  # its end came too early: the rest of it follows
            "<longcat_tool_call>f\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>1"
            "</longcat_arg_value>\n</longcat_tool_call>city</longcat_arg_key>",
        ),
        (
            "harmony",  # a draft in reasoning that is not over
            "<|channel|>analysis<|message|>Or <|start|>assistant to=functions.g<|channel|>commentary json"
            '<|message|>{"a": 1}<|call|> hm<|end|>',
        ),
    ],
)  # fmt: skip
def test_a_call_that_shows_a_fault_and_does_not_fit_is_malformed(dialect, raw):
    events = read(dialect, whole(raw), tools=TOOLS)
    assert exact(read(dialect, characters(raw), tools=TOOLS)) == exact(events)
    assert not [event for event in events if isinstance(event, CallEnd)]
    assert [part.name for part in collect(events) if isinstance(part, MalformedPart)][-1:] in (["f"], ["g"])
    assert [event for event in events if isinstance(event, Malformed)]


@pytest.mark.parametrize(
    ("dialect", "raw"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "python", "arguments": {"code": "print(\'a\')"}}\n</tool_call>'),
        ("lfm2", f"{S}[f(town='Paris')]{E}"),
        ("lfm2", f"{S}[f(ciy='Paris')]{E}"),  # its own misspelling
        ("lfm2", f"{S}[f(maybe='the city')]{E}"),
        ("lfm2", f"{S}[g(a=1)]{E} "),
        # a harmless repair says nothing of a value that has another type
        ("hermes", '<tool_call>\n{"name": "f", "arguments": "{\\"city\\": \\"x\\", \\"days\\": \\"y\\"}"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"city": "x", "days": None}}\n</tool_call>'),
        # code may hold the name of a parameter that no call needs
        ("lfm2", f"{S}[f(city=\"open('x', maybe='w', days=1)\", town=1)]{E}"),
    ],
)  # fmt: skip
def test_what_the_model_may_have_meant_stays_a_call(dialect, raw):
    (end,) = (e for e in read(dialect, whole(raw), tools=TOOLS) if isinstance(e, CallEnd))
    assert misfits(end.fits)


OPEN = [
    {"$ref": "#/$defs/in"},
    {"oneOf": [{"required": ["input"]}, {"required": ["city"]}]},
    {"patternProperties": {"^in": {"type": "object"}}},
    {"additionalProperties": True},
    {"required": ["input"]},
]


@pytest.mark.parametrize("dialect", CALLING)
@pytest.mark.parametrize("schema", OPEN, ids=str)
def test_what_a_schema_leaves_open_is_no_wrapper(dialect, schema):
    arguments = {"input": {"city": "x"}}
    raw = DIALECTS[dialect].render([("f", arguments)])
    (end,) = (e for e in read(dialect, whole(raw), tools=[tool(**schema)]) if isinstance(e, CallEnd))
    assert end.arguments == arguments


@pytest.mark.parametrize("dialect", CALLING)
def test_wrappers_in_wrappers_are_taken_off(dialect):
    raw = DIALECTS[dialect].render([("f", {"arguments": {"input": {"args": {"days": 1}}}})])
    events = read(dialect, whole(raw), tools=[tool()])
    check_run(raw, events)
    (end,) = (e for e in events if isinstance(e, CallEnd))
    assert (end.arguments, end.repaired, end.fits) == ({"days": 1}, True, True)


@pytest.mark.parametrize(
    "dialect", ["mistral", "deepseek-v3", "deepseek-v31", "kimi-k2", "solar-open", "harmony"]
)
@pytest.mark.parametrize("surplus", ["}", "]", "\n```\n"])
def test_what_is_too_much_behind_a_refused_call_is_no_text_either(dialect, surplus):
    texts = []
    for arguments in ({"city": "x"}, {"city": "x", "y':": 2}):
        before, after = DIALECTS[dialect].render([("f", arguments)]).rsplit("}", 1)
        events = read(dialect, whole(f"{before}}}{surplus}{after}"), tools=[tool()])
        texts.append("".join(event.text for event in events if isinstance(event, Text)))
    assert texts[0] == texts[1]


def test_without_declared_tools_no_call_is_refused_for_them():
    (part,) = collect(read("hermes", whole('<tool_call>\n{"name": "f"}\n</tool_call>')))
    assert isinstance(part, CallPart) and part.repaired and part.fits is None


def test_the_kinds_of_reasons_are_a_closed_set():
    assert [kind.value for kind in MisfitKind] == [
        "undeclared_name", "unknown_key", "missing_required", "wrong_type", "markup_in_value",
    ]  # fmt: skip
