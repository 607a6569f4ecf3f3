"""A function's parameters are shown to models as JSON schema, with nothing that a model cannot use."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from localagent.errors import InvalidTool
from localagent.tools import tool
from localagent.tools.schema import MAX_INLINED, inlined, tidied
from parsers.engine.tools import declared


class Unit(enum.Enum):
    C = "c"
    F = "f"


class Days(enum.Enum):
    FIRST = dt.date(2026, 1, 1)


class Mixed(enum.Enum):
    ONE = 1
    X = "x"


class Item(BaseModel):
    """An item."""

    count: int = Field(ge=1)
    note: str | None = None


class Box(BaseModel, extra="forbid"):
    item: Item
    spare: Item | None = Field(None, description="If the first breaks.")


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    deep: bool


NULL = {"type": "null"}
ITEM = {
    "type": "object",
    "description": "An item.",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "note": {"anyOf": [{"type": "string"}, NULL]},
    },
    "required": ["count"],
}
TYPES = [
    (int, {"type": "integer"}),
    (str, {"type": "string"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (Any, {}),
    (int | None, {"anyOf": [{"type": "integer"}, NULL]}),
    (int | (str | None), {"anyOf": [{"type": "integer"}, {"type": "string"}, NULL]}),
    (Annotated[int, Field(title="A")] | Annotated[int, Field(title="B")], {"type": "integer"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (dict, {"type": "object"}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (
        tuple[int, str],
        {
            "type": "array",
            "maxItems": 2,
            "minItems": 2,
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
        },
    ),
    (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal["a"], {"type": "string", "const": "a"}),
    (Literal[1, "a", None], {"type": ["integer", "string", "null"], "enum": [1, "a", None]}),
    (Unit, {"type": "string", "enum": ["c", "f"]}),
    (Mixed, {"type": ["integer", "string"], "enum": [1, "x"]}),
    (Item, ITEM),
    (list[Item], {"type": "array", "items": ITEM}),
    (
        Box,
        {
            "type": "object",
            "properties": {
                "item": ITEM,
                "spare": {"description": "If the first breaks.", "anyOf": [ITEM, NULL]},
            },
            "required": ["item"],
        },
    ),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"type": "string", "const": kind}},
                    "required": ["kind"],
                }
                for kind in ("cat", "dog")
            ]
        },
    ),
    (
        Point,
        {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
            "required": ["x"],
        },
    ),
    (Options, {"type": "object", "properties": {"deep": {"type": "boolean"}}}),
    (dt.datetime, {"type": "string", "format": "date-time"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (Path, {"type": "string", "format": "path"}),
    (decimal.Decimal, {"type": "number"}),
    (Annotated[int, Field(ge=1, le=5)], {"type": "integer", "minimum": 1, "maximum": 5}),
    (Annotated[str, "Where to look."], {"type": "string", "description": "Where to look."}),
    (Annotated[str, Field(description="Where.")], {"type": "string", "description": "Where."}),
    (
        Annotated[str, "plain", Field(description="of the Field")],
        {"type": "string", "description": "of the Field"},
    ),
    (Annotated[Item, "Which one."], {**ITEM, "description": "Which one."}),
]


def made(annotation: Any, **options: Any):
    def f(value):
        return value

    f.__annotations__ = {"value": annotation}
    return tool(f, **options)


@pytest.mark.parametrize(("annotation", "expected"), TYPES, ids=lambda value: f"{value!s:.40}")
def test_a_type_has_this_schema(annotation, expected):
    schema = made(annotation).parameters
    assert schema == {"type": "object", "properties": {"value": expected}, "required": ["value"]}
    Draft202012Validator.check_schema(schema)
    declared([made(annotation).schema])
    json.dumps(schema)


def test_type_and_description_come_first():
    found = made(Annotated[int, Field(ge=1, description="How many.")]).parameters["properties"]["value"]
    assert list(found) == ["type", "description", "minimum"]


def test_parsers_read_the_types():
    def f(n: int, unit: Unit, text: str, maybe: int | None = None, choice: Literal["a", 1] = "a"): ...

    (found,) = declared([tool(f).schema]).values()
    assert found.types == {"n": "integer", "unit": "string", "text": "string", "maybe": None, "choice": None}
    assert found.kinds["maybe"] == {"integer", "null"}
    assert found.kinds["choice"] == {"string", "integer"}


def test_a_recursive_type_keeps_its_definition():
    def f(root: Node, item: Item): ...

    schema = tool(f).parameters
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["root"] == {"$ref": "#/$defs/Node"}
    assert schema["properties"]["item"] == ITEM
    assert list(schema["$defs"]) == ["Node"]
    check = Draft202012Validator(schema)
    item = {"count": 1}
    assert check.is_valid({"root": {"name": "a", "children": [{"name": "b"}]}, "item": item})
    assert not check.is_valid({"root": {"name": "a", "children": [{"name": 3}]}, "item": item})


def test_two_types_of_one_name_are_not_mixed_up():
    class Item(BaseModel):  # shadows the one above
        other: str

    def f(one: ITEM_ABOVE, two: Item): ...

    properties = tool(f).parameters["properties"]
    assert list(properties["one"]["properties"]) == ["count", "note"]
    assert list(properties["two"]["properties"]) == ["other"]


ITEM_ABOVE = Item


@pytest.mark.parametrize(
    ("default", "annotation", "expected"),
    [
        (3, int, {"type": "integer", "default": 3}),
        (Unit.F, Unit, {"type": "string", "enum": ["c", "f"], "default": "f"}),
        (None, int | None, {"anyOf": [{"type": "integer"}, NULL]}),
        (5, int | None, {"anyOf": [{"type": "integer"}, NULL], "default": 5}),
        (Path("a"), Path, {"type": "string", "format": "path", "default": "a"}),
        (Item(count=2), Item, {**ITEM, "default": {"count": 2, "note": None}}),
        (Field(3, ge=1, description="How many."), int, {"type": "integer", "description": "How many.", "minimum": 1, "default": 3}),
        (Field(default_factory=list), list[int], {"type": "array", "items": {"type": "integer"}}),
    ],
    ids=str,
)  # fmt: skip
def test_a_default_is_in_the_schema_as_json(default, annotation, expected):
    def f(value=default):
        return value

    f.__annotations__ = {"value": annotation}
    assert tool(f).parameters == {"type": "object", "properties": {"value": expected}}


def test_a_default_in_annotated_is_a_default():
    found = made(Annotated[int, Field(default=3)])
    assert found.parameters == {"type": "object", "properties": {"value": {"type": "integer", "default": 3}}}


def test_a_function_without_parameters_takes_an_empty_object():
    def f(): ...

    assert tool(f).parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (Callable, "has no JSON Schema"),
        (int | Callable[[], int], "has no JSON Schema"),
        pytest.param(object(), "has no JSON Schema", id="a value"),
        (Iterable[int], "checked only while it is read: use list"),
        (type[int], "a class is no JSON value"),
        (InvalidTool, "has no JSON Schema"),
        (Annotated[InvalidTool, "x"], "^tool f, parameter value: .*InvalidTool has no JSON Schema"),
        (Annotated[int, Field(alias="n")], "alias"),
        (Literal[Unit.C], "members of an Enum in a Literal are read from no JSON"),
        (Days, "an Enum is read from text and numbers"),
    ],
    ids=str,
)
def test_a_type_without_a_schema_is_refused(annotation, says):
    with warnings.catch_warnings(), pytest.raises(InvalidTool, match=says) as caught:
        warnings.simplefilter("ignore")  # pydantic would only warn of a part of a union that it leaves out
        made(annotation)
    assert str(caught.value).startswith("tool f, parameter value: ")
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)
    assert "arbitrary_types" not in str(caught.value)


def test_a_decimal_that_is_left_out_is_a_number_too():
    def f(a: decimal.Decimal = decimal.Decimal("1.50"), b: decimal.Decimal | None = decimal.Decimal(3)): ...

    properties = tool(f).parameters["properties"]
    assert json.dumps([properties[name]["default"] for name in "ab"]) == "[1.5, 3]"


def test_the_parameter_at_fault_is_named_among_good_ones():
    def f(a: int, b: Callable[[], int], c: str): ...

    with pytest.raises(InvalidTool, match="tool f, parameter b: "):
        tool(f)


def test_words_of_schemas_are_fine_as_names_of_parameters():
    def f(title: str, default: int, properties: dict[str, int], enum: list[int], const: int = 3): ...

    schema = tool(f).parameters
    assert list(schema["properties"]) == ["title", "default", "properties", "enum", "const"]
    assert schema["required"] == ["title", "default", "properties", "enum"]
    assert schema["properties"]["const"] == {"type": "integer", "default": 3}


def test_values_in_a_schema_are_left_alone():
    schema = {"type": "object", "default": {"title": "x", "additionalProperties": False}, "title": "T"}
    assert tidied(schema) == {"type": "object", "default": {"title": "x", "additionalProperties": False}}


def test_a_schema_that_would_explode_keeps_its_definitions():
    definitions = {
        f"D{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/D{n + 1}"} for side in "ab"}}
        for n in range(40)
    }
    schema = {"$ref": "#/$defs/D0", "$defs": {**definitions, "D40": {"type": "integer"}}}
    assert inlined(schema) == schema
    few = {
        "type": "array",
        "prefixItems": [{"$ref": "#/$defs/A"}] * MAX_INLINED,
        "$defs": {"A": {"type": "null"}},
    }
    assert inlined(few) == {"type": "array", "prefixItems": [{"type": "null"}] * MAX_INLINED}
