"""What each schema comes to: the options that the model has, and what of it is reported."""

from __future__ import annotations

from typing import Any

import pytest

from localagent.constraint.merging import DEEPEST, WIDEST, Merging, Unreadable
from localagent.constraint.options import (
    ANYTHING,
    Any_,
    Constant,
    List,
    Number,
    Options,
    Record,
    Reference,
    Text,
)
from localagent.constraint.schema import LONGEST_ENUM, Reader
from localagent.errors import SchemaRefused

TEXT, INTEGER, NUMBER = Text(), Number(integer=True), Number(integer=False)
DEFINITIONS: dict[str, Any] = {
    "s": {"type": "string", "maxLength": 4},
    "t": {"type": "string", "minLength": 2},
    "n": {"type": "integer"},
    "none": False,
    "a/b c~": {"type": "null"},
    "list": [{}, {"type": "boolean"}],
}

# The schema; what it comes to; what is reported, with the path below it.
ROWS: list[tuple[Any, Options, list[str]]] = [
    ({"type": ["string", "null"]}, (TEXT, Constant(None)), []),
    ({"type": ["integer", "boolean"]}, (INTEGER, Constant(True), Constant(False)), []),
    ({"minLength": 2}, (Text(least=2),), []),
    ({"minimum": 1}, (Number(integer=False, low=1),), []),
    ({"items": {"type": "null"}}, (List(items=(Constant(None),)),), []),
    ({"required": ["a"]}, (Record(properties={"a": ANYTHING}, required=frozenset({"a"})),), []),
    ({"title": "x"}, ANYTHING, []),
    ({"type": "string", "minLength": 2, "maxLength": 2}, (Text(least=2, most=2),), []),
    ({"type": "string", "minLength": 3, "maxLength": 2}, (TEXT,), ["minLength: no value fits it"]),
    ({"type": "string", "minLength": 1.5, "maxLength": 2.5}, (Text(least=2, most=2),), []),
    ({"type": "string", "minLength": 10000}, (Text(least=10000),), []),
    ({"type": "string", "minLength": 10001}, (TEXT,), ["minLength: 10,001 is more than 10,000"]),
    ({"type": "string", "maxLength": 100000}, (Text(most=100000),), []),
    ({"type": "string", "maxLength": 100001}, (TEXT,), ["maxLength: 100,001 is more than 100,000"]),
    ({"type": "string", "minLength": -1}, (TEXT,), []),
    ({"type": "string", "format": ["date"]}, (TEXT,), []),
    ({"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": True}, (Number(integer=True, low=1, high=5, above=1, below=5),), []),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, (Number(integer=False, above=0, below=1),), []),
    ({"type": "integer", "multipleOf": 3, "minimum": 0}, (Number(integer=True, low=0, multiple=3),), []),
    ({"type": "integer", "multipleOf": 0}, (INTEGER,), ["multipleOf: 0 is not positive"]),
    ({"type": "integer", "multipleOf": -1}, (INTEGER,), ["multipleOf: -1 is not positive"]),
    ({"type": "integer", "minimum": True}, (INTEGER,), []),
    ({"type": "integer", "minimum": 2, "maximum": 2}, (Number(integer=True, low=2, high=2),), []),
    ({"type": "integer", "minimum": 2, "exclusiveMaximum": 2}, (INTEGER,), ["minimum: no value fits it"]),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3}, (INTEGER,), ["exclusiveMinimum: no value fits it"]),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 4}, (Number(integer=True, above=2, below=4),), []),
    ({"type": "integer", "minimum": 4, "maximum": 6, "multipleOf": 7}, (INTEGER,), ["minimum: no value fits it"]),
    ({"type": "integer", "minimum": 4, "maximum": 7, "multipleOf": 7}, (Number(integer=True, low=4, high=7, multiple=7),), []),
    ({"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.5}, (NUMBER,), ["minimum: no value fits it"]),
    ({"type": "integer", "minimum": 0.5, "maximum": 0.75}, (INTEGER,), ["minimum: no value fits it"]),
    ({"type": "array", "minItems": 1000, "maxItems": 1000}, (List(least=1000, most=1000),), []),
    ({"type": "array", "minItems": 1001}, (List(),), ["minItems: 1,001 is more than 1,000"]),
    ({"type": "array", "maxItems": 1001}, (List(),), ["maxItems: 1,001 is more than 1,000"]),
    ({"type": "array", "minItems": 3, "maxItems": 2}, (List(),), ["minItems: no value fits it"]),
    ({"type": "array", "items": False}, (List(most=0),), []),
    ({"type": "array", "items": False, "minItems": 1}, (List(),), ["minItems: no value fits it"]),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"type": "string"}], "items": False, "maxItems": 1}, (List(lead=((Constant(None),), (TEXT,)), most=1),), []),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"type": "string"}], "items": False}, (List(lead=((Constant(None),), (TEXT,)), most=2),), []),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "string"}, "minItems": 2}, (List(lead=((Constant(None),),), items=(TEXT,), least=2),), []),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "string"}}, (List(lead=((Constant(None),),), items=(TEXT,)),), []),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": False, "maxItems": 4}, (List(lead=((Constant(None),),), most=1),), []),
    ({"type": "object", "properties": {"a": {"type": "null"}, "b": False}, "required": ["a"]}, (Record(properties={"a": (Constant(None),), "b": ()}, required=frozenset({"a"})),), []),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, (Record(extra=ANYTHING),), ["required: no value fits it"]),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b", "c", 3], "additionalProperties": {"type": "null"}}, (Record(properties={"a": (TEXT,), "b": (Constant(None),), "c": (Constant(None),)}, required=frozenset({"b", "c"}), extra=(Constant(None),)),), []),
    ({"type": "object", "properties": {}, "unevaluatedProperties": False}, (Record(extra=()),), []),
    ({"type": "object", "unevaluatedProperties": True}, (Record(),), ["unevaluatedProperties: it is checked when the call is finished"]),
    (
        {"type": "object", "patternProperties": {"^x": {"type": "string", "minLength": 1}}, "properties": {"xy": {"type": "string", "maxLength": 3}, "z": {"type": "null"}}, "required": ["xz"]},
        (Record(properties={"xy": (Text(least=1, most=3),), "z": (Constant(None),), "xz": (Text(least=1),)}, required=frozenset({"xz"}), patterns=(("^x", (Text(least=1),)),)),),
        [],
    ),
    ({"type": "object", "patternProperties": {"(?=x)": {"type": "string"}, "^y": {"type": "null"}}}, (Record(patterns=(("^y", (Constant(None),)),)),), ["patternProperties: look-around cannot be enforced"]),
    ({"type": "object", "minProperties": 2, "maxProperties": 3}, (Record(least=2, most=3),), []),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"], "maxProperties": 1}, (Record(properties={"a": ANYTHING}, required=frozenset({"a"}), most=1),), []),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}, (Record(extra=ANYTHING),), ["maxProperties: no value fits it"]),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1, "maxProperties": 2},
        (Record(properties={"a": ANYTHING, "b": ANYTHING}, required=frozenset({"a"})),),
        ["minProperties: with optional properties they are not counted", "maxProperties: with optional properties they are not counted"],
    ),
    ({"type": "object", "minProperties": 2, "maxProperties": 1}, (Record(extra=ANYTHING),), ["minProperties: no value fits it"]),
    ({"type": "object", "propertyNames": {"pattern": "^a", "minLength": 2}}, (Record(names=Text(least=2, patterns=("^a",))),), []),
    ({"type": "object", "propertyNames": {"enum": ["a.b", "c"]}}, (Record(names=Text(patterns=("^(a\\.b|c)$",))),), []),
    ({"type": "object", "propertyNames": {"type": ["string", "integer"]}}, (Record(),), ["propertyNames: only strings can be names"]),
    ({"type": "object", "propertyNames": True}, (Record(),), []),
    ({"type": "object", "propertyNames": {}}, (Record(),), []),
    ({"type": "integer", "nullable": True}, (INTEGER, Constant(None)), []),
    ({"type": "integer", "nullable": "yes"}, (INTEGER,), []),
    ({"type": "integer", "enum": [1, 2.5, "x", 3.0]}, (Constant(1), Constant(3.0)), []),
    ({"const": "x", "type": "string", "maxLength": 1}, (Constant("x"),), []),
    ({"const": "xy", "type": "string", "maxLength": 1}, (TEXT,), ["const: no value fits it"]),
    ({"const": "xy", "type": "string", "minLength": 3}, (TEXT,), ["const: no value fits it"]),
    ({"enum": [1, True, 1.0, 1]}, (Constant(1), Constant(True), Constant(1.0)), []),
    ({"allOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 2, "maximum": 9}, {"exclusiveMaximum": 5}]}, (Number(integer=True, low=2, high=9, below=5),), []),
    ({"allOf": [{"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 2}]}, (Number(integer=True, multiple=2),), []),
    ({"allOf": [{"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}, ANYTHING, ["multipleOf: several at once cannot be enforced"]),
    ({"allOf": [{"type": "number", "multipleOf": 2}, {"type": "number"}]}, (Number(integer=False, multiple=2),), []),
    ({"allOf": [{"type": "number"}, {"type": "number", "multipleOf": 2}]}, (Number(integer=False, multiple=2),), []),
    ({"allOf": [{"type": "number", "exclusiveMinimum": 1}, {"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 5}, {"type": "number", "exclusiveMaximum": 4, "maximum": 9}]}, (Number(integer=False, high=9, above=2, below=4),), []),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 2}]}, ANYTHING, ["allOf: no value fits it"]),
    ({"allOf": [{"type": "string", "minLength": 1, "maxLength": 5, "pattern": "a"}, {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "b"}]}, (Text(least=2, most=4, patterns=("a", "b")),), []),
    ({"allOf": [{"type": "string", "minLength": 3}, {"type": "string", "maxLength": 3}]}, (Text(least=3, most=3),), []),
    ({"allOf": [{"type": "string", "minLength": 4}, {"type": "string", "maxLength": 3}]}, ANYTHING, ["allOf: no value fits it"]),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, (INTEGER,), []),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ANYTHING, ["allOf: no value fits it"]),
    ({"allOf": [{"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "minItems": 1}, {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": 4}]}, (List(lead=((TEXT,),), items=(INTEGER,), least=1, most=4),), []),
    ({"allOf": [{"type": "array", "prefixItems": [{"type": "string"}, {"type": "string"}]}, {"type": "array", "items": {"type": "integer"}}]}, (List(lead=((), ()), items=(INTEGER,), most=0),), []),
    ({"allOf": [{"type": "array", "prefixItems": [{}, {"type": "string"}], "minItems": 2}, {"type": "array", "items": {"type": "integer"}}]}, ANYTHING, ["allOf: no value fits it"]),
    ({"allOf": [{"type": "array", "items": {"type": "string"}, "maxItems": 3}, {"type": "array", "items": {"type": "integer"}}]}, (List(most=0),), []),
    (
        {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["null", "string"]}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "null"}, "c": {}}, "required": ["c"], "additionalProperties": {"type": ["string", "null"]}, "maxProperties": 9}]},
        (Record(properties={"a": (TEXT,), "b": (Constant(None),), "c": ANYTHING}, required=frozenset({"a", "c"}), extra=(TEXT, Constant(None))),),
        ["/allOf/1: maxProperties: with optional properties they are not counted"],
    ),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object", "properties": {"a": {"type": "null"}}}]}, ANYTHING, ["allOf: no value fits it"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object", "properties": {"a": {"type": "null"}}}]}, (Record(properties={"a": ()}),), []),
    ({"allOf": [{"type": "object", "additionalProperties": {"type": ["null", "string"]}}, {"type": "object", "additionalProperties": {"type": ["string", "boolean"]}}]}, (Record(extra=(TEXT,)),), []),
    ({"allOf": [{"type": "object", "additionalProperties": {"type": "null"}}, {"type": "object"}]}, (Record(extra=(Constant(None),)),), []),
    ({"allOf": [{"type": "object"}, {"type": "object", "additionalProperties": {"type": "null"}}]}, (Record(extra=(Constant(None),)),), []),
    ({"allOf": [{"type": "object", "propertyNames": {"maxLength": 4}}, {"type": "object", "propertyNames": {"minLength": 2}}]}, (Record(names=Text(least=2, most=4)),), []),
    ({"allOf": [{"type": "object", "propertyNames": {"maxLength": 4}}, {"type": "object"}]}, (Record(names=Text(most=4)),), []),
    ({"allOf": [{"type": "object", "patternProperties": {"^x": {"type": "string"}}}, {"type": "object", "patternProperties": {"^y": {"type": "null"}}, "properties": {"xa": {"maxLength": 2}}}]}, (Record(properties={"xa": (Text(most=2),)}, patterns=(("^x", (TEXT,)), ("^y", (Constant(None),)))),), []),
    ({"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]}, (Constant("b"), Constant("c")), []),
    ({"allOf": [{"enum": ["a", 1, None, [1], {"k": 1}]}, {"type": ["string", "array"]}]}, (Constant("a"), Constant([1])), []),
    ({"enum": [[1], [1, 2], ["x"], [], 3], "type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1}, (Constant([1]),), []),
    ({"enum": [{"a": 1}, {"a": "x"}, {"b": 1}, {}, {"a": 1, "c": 2}], "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}, (Constant({"a": 1}),), []),
    ({"enum": [{"x1": "s"}, {"x1": 1}, {"y": 1}], "type": "object", "patternProperties": {"^x": {"type": "string"}}}, (Constant({"x1": "s"}), Constant({"y": 1})), []),
    ({"enum": ["ab", "b", 3], "type": "string", "pattern": "^a"}, (Constant("ab"),), []),
    ({"enum": [True, 1, 2.0, 0.5], "type": "integer"}, (Constant(1), Constant(2.0)), []),
    ({"enum": [1, 2, 3, 4, 5], "minimum": 2, "exclusiveMaximum": 5, "multipleOf": 2}, (Constant(2), Constant(4)), []),
    ({"enum": [1, 2, 3], "exclusiveMinimum": 1, "maximum": 2}, (Constant(2),), []),
    ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}], "type": ["null", "boolean"]}, (Constant(None),), []),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, (TEXT, Constant(None)), []),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, (TEXT, Text(most=1)), ["oneOf: a value may fit more than one of its schemas"]),
    ({"oneOf": [{"const": 1}, {"const": 2}, {"type": "string"}]}, (Constant(1), Constant(2), TEXT), []),
    ({"oneOf": [{"const": 1}, {"type": "integer"}]}, (Constant(1), INTEGER), ["oneOf: a value may fit more than one of its schemas"]),
    ({"oneOf": [{"type": "integer"}, {"const": 1}]}, (INTEGER, Constant(1)), ["oneOf: a value may fit more than one of its schemas"]),
    ({"oneOf": [{"type": "string"}, {}]}, (TEXT, Any_()), ["oneOf: a value may fit more than one of its schemas"]),
    (
        {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}, {"type": "object", "properties": {"k": {"const": "b"}}}]},
        (Record(properties={"k": (Constant("a"),)}, required=frozenset({"k"})), Record(properties={"k": (Constant("b"),)})),
        ["oneOf: a value may fit more than one of its schemas"],
    ),
    ({"oneOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/n"}]}, (Reference("#/$defs/s"), Reference("#/$defs/n")), []),
    ({"oneOf": [{"$ref": "#/$defs/s"}, {"type": "string"}]}, (Reference("#/$defs/s"), TEXT), ["oneOf: a value may fit more than one of its schemas"]),
    ({"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/s"}]}, (INTEGER, Reference("#/$defs/s")), []),
    ({"oneOf": [{"$ref": "#/$defs/none"}, {"type": "integer"}]}, (Reference("#/$defs/none"), INTEGER), ["oneOf: a value may fit more than one of its schemas"]),
    ({"$ref": "#/$defs/s", "maxLength": 3}, (Text(most=3),), []),
    ({"allOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/s"}]}, (Reference("#/$defs/s"),), []),
    ({"allOf": [{"$ref": "#/$defs/s"}, {"$ref": "#/$defs/t"}]}, (Text(least=2, most=4),), []),
    ({"$ref": "#/$defs/s", "enum": ["long", "x", "xy", 1]}, (Constant("long"), Constant("x"), Constant("xy")), []),
    ({"$ref": "#/$defs/a~1b%20c~0"}, (Reference("#/$defs/a~1b%20c~0"),), []),
    ({"$ref": "#/$defs/list/1"}, (Reference("#/$defs/list/1"),), []),
    ({"$ref": "#/$defs/list/x"}, ANYTHING, ["$ref: '#/$defs/list/x' names nothing"]),
    ({"$ref": "#/$defs/list/7"}, ANYTHING, ["$ref: '#/$defs/list/7' names nothing"]),
    ({"$ref": 7}, ANYTHING, ["$ref: 7 is not within the schema"]),
    ({"$ref": "s"}, ANYTHING, ["$ref: 's' is not within the schema"]),
    ({"not": {}}, (), []),
    ({"not": {"type": "null"}}, ANYTHING, ["not: it is checked when the call is finished"]),
    ({"contains": {}, "maxContains": 2}, ANYTHING, ["contains: it is checked when the call is finished", "maxContains: it is checked when the call is finished"]),
    ({"maxContains": 2}, ANYTHING, []),
    ({"uniqueItems": False}, ANYTHING, []),
    ({"then": {}, "else": {}}, ANYTHING, []),
    ({"if": {}}, ANYTHING, ["if: it is checked when the call is finished"]),
    ({"type": "string", "pattern": "^a", "format": "uuid2"}, (Text(patterns=("^a",)),), []),
    ({"type": "string", "pattern": 3}, (TEXT,), ["pattern: 3 is no regular expression"]),
    ({"type": ["string", 3]}, (TEXT,), ["type: ['string', 3] is no type"]),
    ({"type": ["integer", "any"], "minimum": 3}, (INTEGER,), ["type: ['integer', 'any'] is no type"]),
    ({"type": []}, ANYTHING, ["type: no value fits it"]),
    ({"type": {}}, ANYTHING, ["type: {} is no type"]),
    ({"type": "number", "minimum": 2, "exclusiveMaximum": 2}, (NUMBER,), ["minimum: no value fits it"]),
    ({"type": "number", "minimum": 2, "maximum": 2}, (Number(integer=False, low=2, high=2),), []),
    ({"type": "number", "minimum": 3, "maximum": 2}, (NUMBER,), ["minimum: no value fits it"]),
    ({"type": "integer", "minimum": 1, "maximum": 29, "multipleOf": 30}, (INTEGER,), ["minimum: no value fits it"]),
    ({"type": "integer", "minimum": 8, "maximum": 20, "multipleOf": 7}, (Number(integer=True, low=8, high=20, multiple=7),), []),
    ({"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 14, "multipleOf": 7}, (INTEGER,), ["exclusiveMinimum: no value fits it"]),
    ({"type": "integer", "minimum": -3, "maximum": -1, "multipleOf": 4}, (INTEGER,), ["minimum: no value fits it"]),
    ({"type": "integer", "minimum": 1, "maximum": 35, "multipleOf": 35}, (Number(integer=True, low=1, high=35, multiple=35),), []),
    ({"enum": [0.3, 0.35, 1], "multipleOf": 0.1}, (Constant(0.3), Constant(1)), []),
    ({"enum": ["ab", 1], "type": "string", "pattern": "^\\p{L}+$"}, (Constant("ab"),), []),
    ({"enum": ["a", "abc", "ab"], "type": "string", "minLength": 2, "maxLength": 2}, (Constant("ab"),), []),
    ({"type": "object", "patternProperties": {"^x": {"type": "string"}}, "required": ["y"], "additionalProperties": {"type": "boolean"}}, (Record(properties={"y": (Constant(True), Constant(False))}, required=frozenset({"y"}), extra=(Constant(True), Constant(False)), patterns=(("^x", (TEXT,)),)),), []),
    ({"type": "object", "patternProperties": {"^a/b~": {"not": {"const": 1}, "type": "integer"}}}, (Record(patterns=(("^a/b~", (INTEGER,)),)),), ["/patternProperties/^a~1b~0: not: it is checked when the call is finished"]),
    (
        {"type": "object", "properties": {"a/b~": {"not": {"const": 1}, "type": "integer"}}, "additionalProperties": {"type": "integer", "contains": {}}, "propertyNames": {"not": {"const": "x"}, "type": "string"}},
        (Record(properties={"a/b~": (INTEGER,)}, extra=(INTEGER,), names=TEXT),),
        ["/additionalProperties: contains: it is checked when the call is finished", "/propertyNames: not: it is checked when the call is finished", "/properties/a~1b~0: not: it is checked when the call is finished"],
    ),
    (
        {"type": "array", "prefixItems": [{}, {"type": "null", "not": {"const": 1}}], "items": {"type": "null", "uniqueItems": True}},
        (List(lead=(ANYTHING, (Constant(None),)), items=(Constant(None),)),),
        ["/prefixItems/1: not: it is checked when the call is finished", "/items: uniqueItems: it is checked when the call is finished"],
    ),
    ({"type": "array", "items": [{"type": "null", "not": {"const": 1}}]}, (List(lead=((Constant(None),),)),), ["/items/0: not: it is checked when the call is finished"]),
    ({"anyOf": [{"type": "null"}, {"type": "string", "not": {"const": "x"}}]}, (Constant(None), TEXT), ["/anyOf/1: not: it is checked when the call is finished"]),
    ({"oneOf": [{"type": "string", "not": {"const": "x"}}]}, (TEXT,), ["/oneOf/0: not: it is checked when the call is finished"]),
    ({"allOf": [{"type": "string"}, {"not": {"const": "x"}}]}, (TEXT,), ["/allOf/1: not: it is checked when the call is finished"]),
    ({"allOf": "x", "anyOf": {}, "required": "a"}, (Record(),), []),
    ({"type": "object", "properties": [1]}, (Record(),), []),
    ({"enum": "x", "type": "string"}, (TEXT,), []),
    ({"type": "object", "maxProperties": 0}, (Record(most=0),), []),
    ({"type": "object", "minProperties": 1001}, (Record(),), ["minProperties: 1,001 is more than 1,000"]),
    ({"anyOf": [{"type": "integer"}, {"const": None}], "$ref": "#/$defs/n"}, (INTEGER,), []),
    ({"enum": [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}]}, (Constant({"b": 2, "a": 1}), Constant({"a": 1})), []),
    *(
        ({"type": "object", "patternProperties": {pattern: {}}}, (Record(),), [f"patternProperties: {reason}"])
        for pattern, reason in (
            ("^a|b$", "anchors of single alternatives cannot be enforced"),
            ("a|b$", "anchors of single alternatives cannot be enforced"),
            ("^(a)|b", "anchors of single alternatives cannot be enforced"),
            ("a^b", "an anchor within a pattern cannot be enforced"),
            ("a$b", "an anchor within a pattern cannot be enforced"),
            (r"\ba", "an anchor within a pattern cannot be enforced"),
            (r"\\\b", "an anchor within a pattern cannot be enforced"),
            (r"a\B", "an anchor within a pattern cannot be enforced"),
            ("(?<=a)b", "look-around cannot be enforced"),
            ("a" * 10_001, "it has more than 10,000 characters"),
        )
    ),
    *(
        ({"type": "object", "patternProperties": {pattern: {}}}, (Record(patterns=((pattern, ANYTHING),)),), [])
        for pattern in ("^(a|b)$", "a|b", "^[|^$]", r"^a\$", r"a\|b$", r"\\b", r"\(?=", "[(]a|b", "a" * 10_000)
    ),
]  # fmt: skip


def read(schema: Any, **definitions: Any) -> tuple[Options, list[str]]:
    """The options, and what is reported."""
    reader = Reader("f", {"$defs": DEFINITIONS | definitions}, strict=False)
    options = reader.read(schema, "/p")
    paths = [(found.path.removeprefix("/p"), found) for found in reader.relaxed.values()]
    assert all(found.tool == "f" for _, found in paths)
    return options, [f"{path and path + ': '}{found.keyword}: {found.reason}" for path, found in paths]


@pytest.mark.parametrize(("schema", "options", "reported"), ROWS)
def test_a_schema_is_read_as_the_choices_that_it_leaves(
    schema: Any, options: Options, reported: list[str]
) -> None:
    found = read(schema)
    assert found == (options, reported)
    assert str(found) == str((options, reported)), "1 is not True"


def test_what_a_reference_names_is_read_where_it_stands() -> None:
    root = {"$defs": {"a/b c~": {"type": "integer", "not": {"const": 1}}, "list": [{}, {"type": "null"}]}}
    reader = Reader("f", root, strict=False)
    assert reader.resolve("#/$defs/a~1b%20c~0") == (INTEGER,)
    assert [found.path for found in reader.relaxed.values()] == ["/$defs/a~1b%20c~0"]
    assert reader.resolve("#/$defs/list/1") == (Constant(None),)
    assert reader.resolve("#/$defs") == ANYTHING
    assert reader.resolve("#") is reader.resolve("#")
    with pytest.raises(Unreadable, match="'#/nowhere' names nothing"):
        reader.resolve("#/nowhere")


def test_strict_names_the_root_too() -> None:
    with pytest.raises(SchemaRefused) as refused:
        Reader("f", {}, strict=True).read({"not": {"const": 1}}, "")
    assert str(refused.value) == (
        "the schema of f cannot be enforced: /: not: it is checked when the call is finished"
    )


# -- how deep, and how many ---------------------------------------------------------------------------

NESTED = {
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}},
    "patternProperties": lambda inner: {"type": "object", "patternProperties": {"a": inner}},
    "additionalProperties": lambda inner: {"type": "object", "additionalProperties": inner},
    "propertyNames": lambda inner: {"type": "object", "propertyNames": inner},
    "items": lambda inner: {"type": "array", "items": inner},
    "prefixItems": lambda inner: {"type": "array", "prefixItems": [inner]},
    "allOf": lambda inner: {"allOf": [inner]},
    "anyOf": lambda inner: {"anyOf": [inner]},
    "oneOf": lambda inner: {"oneOf": [inner]},
}


def nested(keyword: str, depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = NESTED[keyword](inner)
    return inner


@pytest.mark.parametrize("keyword", NESTED)
def test_schemas_are_read_to_the_deepest_and_no_deeper(keyword: str) -> None:
    word = "only strings can be names"
    reported = [each for each in read(nested(keyword, DEEPEST, {"type": "string"}))[1] if word not in each]
    assert reported == []
    _, reported = read(nested(keyword, DEEPEST + 1, {"type": "string"}))
    (deep,) = [each for each in reported if word not in each]
    assert deep.endswith("properties: schemas may nest 64 deep")


@pytest.mark.parametrize("keyword", ["properties", "additionalProperties", "items", "prefixItems"])
def test_merging_goes_as_deep(keyword: str) -> None:
    """One level is that of `allOf` itself."""
    deep = [nested(keyword, DEEPEST - 1, {"type": "string", name: 3}) for name in ("minLength", "maxLength")]
    options, reported = read({"allOf": deep})
    assert reported == []
    assert "Text(least=3, most=3, " in str(options)


@pytest.mark.parametrize("keyword", ["properties", "additionalProperties", "items", "prefixItems", "$ref"])
def test_what_is_too_much_is_reported_by_the_keyword_that_merges(keyword: str) -> None:
    """Deep within what is merged, too."""
    NESTED["$ref"] = lambda inner: {"$ref": "#/$defs/other"}
    one, other = (
        {"anyOf": [{"type": "string", "pattern": f"{mark}{n}"} for n in range(17)]} for mark in "ab"
    )
    both = {"allOf": [nested(keyword, 1, one) if keyword != "$ref" else one, nested(keyword, 1, other)]}
    assert read(both, other=other)[1] == ["allOf: merging gives more than 256 alternatives"]


def test_names_that_cannot_be_are_none() -> None:
    names = [{"type": "object", "propertyNames": {key: 2}} for key in ("minLength", "maxLength")]
    assert read({"allOf": names}) == ((Record(names=Text(2, 2)),), [])
    names[1]["propertyNames"] = {"maxLength": 1}
    names[0] |= {"properties": {"ab": {"type": "null"}}, "patternProperties": {"a": {}}}
    assert read({"allOf": [*names, {"type": "object"}]}) == (
        (Record({"ab": (Constant(None),)}, extra=()),),
        [],
    )


def chain(count: int, end: Any) -> dict[str, Any]:
    """Definitions that refer to one another in turn."""
    return {f"r{n}": {"$ref": f"#/$defs/r{n + 1}"} for n in range(count - 1)} | {f"r{count - 1}": end}


def test_references_are_followed_as_far() -> None:
    merged = {"$ref": "#/$defs/r0", "type": "string", "minLength": 2}
    options, reported = read(merged, **chain(DEEPEST, {"type": "string", "maxLength": 2}))
    assert (options, reported) == ((Text(2, 2),), [])
    _, reported = read(merged, **chain(DEEPEST + 1, {"type": "string"}))
    assert reported == ["$ref: it refers to itself"]
    listed = {"$ref": "#/$defs/r0", "enum": ["x", 1]}
    assert read(listed, **chain(DEEPEST, {"type": "string"})) == ((Constant("x"),), [])
    assert read(listed, **chain(DEEPEST + 1, {"type": "string"}))[1] == ["enum: no value fits it"]


@pytest.mark.parametrize(
    ("keyword", "wrap"),
    [
        ("items", lambda value: [value]),
        ("properties", lambda value: {"a": value}),
        ("additionalProperties", lambda value: {"k": value}),
    ],
)
def test_constants_are_held_against_what_is_as_deep(keyword: str, wrap: Any) -> None:
    fitting: Any = "x"
    other: Any = 1
    for _ in range(DEEPEST):
        fitting, other = wrap(fitting), wrap(other)
    schema = nested(keyword, DEEPEST, {"type": "string"}) | {"enum": [fitting, other]}
    assert read(schema) == ((Constant(fitting),), [])


def test_merging_gives_so_many_alternatives_and_no_more() -> None:
    merging = Merging(lambda pointer: ANYTHING)
    texts = tuple(Text(patterns=(str(n),)) for n in range(WIDEST + 1))
    assert merging.both(texts[:WIDEST], (TEXT,), "allOf") == texts[:WIDEST]
    with pytest.raises(Unreadable, match="merging gives more than 256 alternatives"):
        merging.both(texts, (TEXT,), "anyOf")
    numbers = tuple(Number(integer=True, low=low) for low in range(17))
    assert merging.both(texts[:256], numbers[:16], "allOf") == ()
    with pytest.raises(Unreadable, match="merging gives more than 256 alternatives") as unreadable:
        merging.both(texts[:256], numbers, "oneOf")
    assert unreadable.value.args[0] == "oneOf"


def test_an_enumeration_may_be_so_long_and_no_longer() -> None:
    assert len(read({"enum": [*range(LONGEST_ENUM), 0, 0]})[0]) == LONGEST_ENUM
    assert read({"enum": [*range(LONGEST_ENUM + 1)]}) == (ANYTHING, ["enum: it has more than 20,000 values"])
