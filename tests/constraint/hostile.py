"""Schemas that are small or large, and cost more than they look: what a server may be sent in a tool."""

from __future__ import annotations

from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


def _nested(depth: int, key: str, **more: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {key: [schema, {"type": "integer"}], **more}
    return schema


def _deep(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = _object(a=schema)
    return schema


def _lists(depth: int, most: int) -> Any:
    schema: Any = {"type": "string", "minLength": 1}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": most, "maxItems": most}
    return schema


def _doubling(levels: int) -> dict[str, Any]:
    """Each definition refers to the next one twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/properties/x/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    definitions[f"d{levels}"] = _object(a={"type": "string"})
    return {"$ref": "#/properties/x/$defs/d0", "$defs": definitions}


def _twice(levels: int, level: Any) -> Any:
    """`level` of `level` of ..., each of which is written in two places."""
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = level(schema)
    return schema


def _chains(levels: int, level: Any, **more: Any) -> dict[str, Any]:
    """Two chains of definitions. `level`: one of them, by the references to the next ones of both."""
    ends = {f"{chain}{levels}": {"type": kind} for chain, kind in (("a", "string"), ("b", "integer"))}
    definitions = {
        f"{chain}{n}": level(*({"$ref": f"#/properties/x/$defs/{next_}{n + 1}"} for next_ in (chain, *"ab")))
        for n in range(levels)
        for chain in "ab"
    }
    return {"$defs": {**definitions, **ends}, **more}


_BOTH = [{"$ref": f"#/properties/x/$defs/{chain}0"} for chain in "ab"]


def _tagged(count: int, keyword: str) -> dict[str, Any]:
    return {
        keyword: [_object(kind={"const": f"k{n}"}, **{f"a{n}": {"type": "string"}}) for n in range(count)]
    }


HOSTILE: dict[str, Any] = {
    # Repetitions: what is forced is written out before the first mask.
    "nested repeats": _text("^((((a{100}){100}){100}){100})$"),
    "nested repeats of a class": _text("^(([a-z]{100}){100}){100}$"),
    "a million": _text("^(a{1000}){1000}$"),
    "a million at most": _text("^(a{0,1000}){0,1000}$"),
    "a hundred thousand": _text("^a{100000}$"),
    "a hundred thousand, not anchored": _text("a{100000}"),
    "ten thousand": _text("^(ab){5000}$"),
    "five thousand of a group": _text("^(a|bc|def){5000}$"),
    "a repeat of a repeat without an end": _text("^((a{50,}){50,}){50,}$"),
    "repeats in alternatives": _text("^((a{300}|b{300}){300}|c{90000})$"),
    "many groups of repeats": _text("^" + "(x{50}y{50}){9}" * 300 + "$"),
    "many open repeats": _text("^" + "(x{0,50}y{0,50}){0,9}" * 300 + "$"),
    "thirty times anything": _text("^" + "(.*)" * 30 + "x{40}$"),
    "optional before the same": _text("^" + "a?" * 300 + "a" * 300 + "$"),
    "the nth from the end": _text("^(a|b)*a(a|b){200}$"),
    "the nth from the end, anything": _text("a.{400}b.{400}c"),
    "counted in counted": _text(r"^((\w{1,40}\s){1,40}\n){1,40}$"),
    "letters of any script": _text(r"^(\p{L}{1,300}\p{N}{1,300}){1,300}$"),
    "many alternatives": _text("^(" + "|".join(f"w{n}x" for n in range(2000)) + ")$"),
    "alternatives with gaps": _text("^(" + "|".join(f"a{n}.*b{n}" for n in range(400)) + ")$"),
    "nearly the same alternatives": _text("^(" + "|".join("a" * n + ".*z" for n in range(1, 200)) + ")$"),
    "the longest pattern": _text("^" + "[a-f0-9]" * 1250 + "$"),
    "longer than any pattern": _text("^" + "(a|b)" * 4000 + "$"),
    "nested groups": _text("^" + "(" * 2000 + "a" + ")*" * 2000 + "$"),
    "nested repeats of groups": _text("^" + "(" * 500 + "a" + ")+" * 500 + "$"),
    "classes without an end": _text("[" * 9_999),
    "look-ahead": _text("^(?=(a+)+$)(a+)+b$"),
    "a reference to a group": _text(r"^(a{1,50})\1\1$"),
    "three patterns at once": {"allOf": [_text(f"{c}.{{80}}{c}") for c in "abc"], "type": "string"},
    "ten patterns at once": {"allOf": [_text(f"{c}.{{30}}{c}") for c in "abcdefghij"], "type": "string"},
    "a pattern and a length": _text("^(ab|a)*$", minLength=9000, maxLength=9001),
    "a pattern and a format": _text("a{500}.*b{500}", format="uri"),
    "patterns in many places": _object(**{f"p{n}": _text(f"^(x{{9}}{n}){{90}}$") for n in range(200)}),
    # Lengths and numbers of items.
    "a text of a length": {"type": "string", "minLength": 10_000, "maxLength": 10_000},
    "a text of 100,000": {"type": "string", "minLength": 100_000},
    "a billion items": _lists(3, 1000),
    "a thousand items": _lists(1, 1000),
    "ten to the tenth items": _lists(10, 10),
    "many first items": {"type": "array", "prefixItems": [{"enum": [n, str(n)]} for n in range(5000)]},
    # Constants.
    "a constant of 500 kB": {"const": "x" * 500_000},
    "a constant of 50 kB": {"const": "x" * 50_000},
    "a constant list": {"const": list(range(50_000))},
    "a deep constant": {"const": __import__("json").loads("[" * 300 + "]" * 300)},
    "two hundred thousand words": {"enum": [f"word-{n}" for n in range(200_000)]},
    "fifteen thousand words": {"enum": [f"word-{n}" for n in range(15_000)]},
    "long words": {"enum": ["y" * 5_000 + str(n) for n in range(200)]},
    "two lists of words": {"allOf": [{"enum": [f"a{n + m}" for n in range(9_000)]} for m in (0, 5)]},
    "words that fit a pattern": {"enum": ["a" * n for n in range(2_000)], "pattern": "^(a|aa)+$"},
    "a word that makes a pattern backtrack": {"enum": ["a" * 60 + "b"], "pattern": "^(a|aa)+$"},
    "words that make a pattern backtrack": {
        "enum": ["a" * 60 + f"b{n}" for n in range(500)],
        "pattern": "^(a|aa)+$",
    },
    # Alternatives.
    "oneOf of 3,000": _tagged(3000, "oneOf"),
    "anyOf of 3,000": _tagged(3000, "anyOf"),
    "oneOf of 250": _tagged(250, "oneOf"),
    "oneOf of 3,000 constants": {"oneOf": [{"const": f"c{n}", "title": str(n)} for n in range(3000)]},
    "oneOf of 5,000 ranges": {
        "oneOf": [{"type": "integer", "minimum": n, "maximum": n + 1} for n in range(5000)]
    },
    "alternatives that multiply": {"allOf": [_tagged(12, "anyOf") for _ in range(12)]},
    "objects that multiply": {
        "allOf": [{"anyOf": [_object(**{f"a{n}b{m}": {}}) for m in range(3)]} for n in range(12)]
    },
    "nested anyOf": _nested(60, "anyOf"),
    "nested oneOf of wide ones": {"oneOf": [_nested(6, "oneOf") for _ in range(200)]},
    # Properties.
    "3,000 patternProperties": {
        "type": "object",
        "patternProperties": {f"^p{n}_": {"type": "string"} for n in range(3000)},
    },
    "patternProperties that explode": {
        "type": "object",
        "patternProperties": {f"^(a{{90}}){{90}}{n}": {"type": "integer"} for n in range(5)},
    },
    "20,000 properties": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(20_000)},
    },
    "3,000 properties that are not required": {
        "type": "object",
        "properties": {f"p{n}": {"type": ["string", "null", "integer"]} for n in range(3000)},
    },
    "a name of 100,000 characters": _object(**{"n" * 100_000: {"type": "string"}}),
    "names that must fit": {
        "type": "object",
        "propertyNames": _text("^(k{100}){100}$"),
        "additionalProperties": {"type": "integer"},
    },
    "a name that makes a pattern backtrack": {
        "type": "object",
        "properties": {"a" * 60 + "b": {"type": "integer"}},
        "patternProperties": {"^(a|aa)+$": {"type": "integer"}},
    },
    "names of classes without an end": {
        "type": "object",
        "properties": {"a": {}},
        "patternProperties": {"[^" * 4_999: {}},
    },
    "names that patterns are slow with": {
        "type": "object",
        "properties": {"a" * 350 + str(n): {} for n in range(900)},
        "patternProperties": {f"^(a*a*{c}|a*a*a{c})$": {"type": "integer"} for c in "bcdefghij"},
    },
    "50,000 required names": {"type": "object", "required": [f"r{n}" for n in range(50_000)]},
    # Depth and references.
    "60 objects deep": _deep(60),
    "200 objects deep": _deep(200),
    "300 alternatives deep": _nested(300, "allOf"),
    "itself": {"$ref": "#/properties/x"},
    "references that double": _doubling(40),
    "a tree without an end": {"type": "array", "minItems": 2, "items": {"$ref": "#/properties/x"}},
    "a wide tree": _object(**{f"c{n}": {"anyOf": [{"$ref": "#/properties/x"}, {}]} for n in range(40)}),
    "required names that double": _twice(
        30, lambda inner: {"type": "object", "required": ["a", "b"], "additionalProperties": inner}
    ),
    "pattern properties that double": _twice(
        30, lambda inner: {"properties": {"a": {}, "b": {}}, "patternProperties": {"^[ab]$": inner}}
    ),
    "first items that double": _twice(
        30, lambda inner: {"allOf": [{"prefixItems": [{}, {}]}, {"items": inner, "type": "array"}]}
    ),
    "nullable properties that double": _twice(
        20,
        lambda inner: {
            "allOf": [
                _object(a={"nullable": True}, b={"nullable": True}),
                {"patternProperties": {".": inner}},
            ]
        },
    ),
    "oneOf of two chains": _chains(40, lambda same, a, b: _object(x=same, y=same), oneOf=_BOTH),
    "a constant in two chains": _chains(40, lambda same, a, b: {"anyOf": [a, b]}, anyOf=_BOTH, const=True),
    "one list of words in another": {
        "enum": [f"a{n}" for n in range(9_000)],
        "$ref": "#/properties/x/$defs/words",
        "$defs": {"words": {"enum": [f"a{n}" for n in range(5, 9_005)]}},
    },
    "a long chain of references": {
        "$ref": "#/properties/x/$defs/d0",
        "$defs": {
            **{f"d{n}": _object(a={"$ref": f"#/properties/x/$defs/d{n + 1}"}) for n in range(3000)},
            "d3000": {"type": "string"},
        },
    },
    # Numbers.
    "a number of a huge multiple": {
        "type": "integer",
        "multipleOf": 999_983,
        "minimum": 3,
        "maximum": 10**15,
    },
    "a number of a tiny multiple": {"type": "number", "multipleOf": 1e-9, "minimum": 0, "maximum": 1},
    "a number in a narrow range": {"type": "number", "minimum": 1e-300, "maximum": 1.0000000001e-300},
    "many multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949)]},
}
"""Each by what it does, as the schema of one argument, `x`."""
