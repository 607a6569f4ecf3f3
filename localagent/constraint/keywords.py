"""Every keyword of JSON Schema (drafts 7 and 2020-12), and what becomes of it here.

    enforced    nothing else can be written
    checked     nothing holds it while the model writes: it is reported, and the finished call is validated
    refused     the schema it stands in becomes "any value of its type"; reported and validated likewise
    annotation  says nothing about which values are valid

In strict mode `checked` and `refused` are both an error, SchemaRefused. A test holds the README's table to
this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Treatment = Literal["enforced", "checked", "refused", "annotation"]

KEYWORDS: Final[Mapping[str, tuple[Treatment, str]]] = {
    "type": ("enforced", "also as a list; unknown names are refused"),
    "enum": ("enforced", "up to 20,000 values and 500,000 characters, in the dialect's own spelling"),
    "const": ("enforced", "up to 10,000 characters, in the dialect's own spelling"),
    "nullable": ("enforced", "of OpenAPI: null is one more type"),
    "properties": (
        "enforced",
        "up to 1,000, in the schema's order; undeclared ones are only written if the schema says so",
    ),
    "required": ("enforced", ""),
    "additionalProperties": ("enforced", "left out, it is false where properties are declared"),
    "patternProperties": ("enforced", "up to 32; a name that fits several patterns is not written"),
    "propertyNames": ("enforced", "patterns and lengths; names that are declared are not looked at"),
    "minProperties": ("checked", "enforced if no property is optional"),
    "maxProperties": ("checked", "enforced if no property is optional"),
    "items": ("enforced", "as a list it is the draft-7 spelling of prefixItems"),
    "prefixItems": ("enforced", "up to 200"),
    "additionalItems": ("enforced", "draft 7"),
    "minItems": ("enforced", "up to 1,000"),
    "maxItems": ("enforced", "up to 1,000; a larger one is checked"),
    "minLength": ("enforced", "up to 10,000"),
    "maxLength": ("enforced", "up to 100,000; a larger one is checked"),
    "pattern": (
        "enforced",
        "but look-around, references to groups, inner anchors, and what forces more than 10,000 characters "
        "are checked",
    ),
    "format": ("enforced", "the formats named below; any other is an annotation, as the standard has it"),
    "minimum": ("enforced", ""),
    "maximum": ("enforced", ""),
    "exclusiveMinimum": ("enforced", "also draft 4's, a boolean"),
    "exclusiveMaximum": ("enforced", "also draft 4's, a boolean"),
    "multipleOf": ("enforced", "but several on one number, and more than 10,000 remainders, are checked"),
    "anyOf": ("enforced", "up to 1,000 schemas, constants apart"),
    "oneOf": (
        "enforced",
        "up to 1,000; checked where one value may fit two of the schemas, or there are many",
    ),
    "allOf": ("enforced", "the schemas are merged"),
    "$ref": ("enforced", "up to 256, within the schema, also recursive; any other is refused"),
    "$defs": ("enforced", "where a $ref names them"),
    "definitions": ("enforced", "where a $ref names them"),
    "unevaluatedProperties": ("checked", "enforced if false, and nothing else adds properties"),
    "unevaluatedItems": ("checked", ""),
    "uniqueItems": ("checked", ""),
    "contains": ("checked", ""),
    "minContains": ("checked", ""),
    "maxContains": ("checked", ""),
    "not": ("checked", ""),
    "if": ("checked", ""),
    "then": ("checked", "with if"),
    "else": ("checked", "with if"),
    "dependentRequired": ("checked", ""),
    "dependentSchemas": ("checked", ""),
    "dependencies": ("checked", "draft 7"),
    "$dynamicRef": ("refused", ""),
    "$recursiveRef": ("refused", ""),
    "$anchor": ("annotation", "a $ref to it is refused"),
    "$dynamicAnchor": ("annotation", ""),
    "$recursiveAnchor": ("annotation", ""),
    "$id": ("annotation", "references are looked up in this schema alone"),
    "$schema": ("annotation", ""),
    "$vocabulary": ("annotation", ""),
    "$comment": ("annotation", ""),
    "title": ("annotation", ""),
    "description": ("annotation", ""),
    "default": ("annotation", ""),
    "examples": ("annotation", ""),
    "deprecated": ("annotation", ""),
    "readOnly": ("annotation", ""),
    "writeOnly": ("annotation", ""),
    "contentEncoding": ("annotation", ""),
    "contentMediaType": ("annotation", ""),
    "contentSchema": ("annotation", ""),
}
"""Keyword: what becomes of it, and a remark. What is not listed is an annotation, as the standard has it."""

_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{{2}}|[1-9][0-9]{{3}})-{_DAY}"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"

FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": (
        "P([0-9]{1,9}W|([0-9]{1,9}Y)?([0-9]{1,9}M)?[0-9]{1,9}D|([0-9]{1,9}Y)?[0-9]{1,9}M|[0-9]{1,9}Y"
        "|T([0-9]{1,9}H)?([0-9]{1,9}M)?[0-9]{1,9}S|T([0-9]{1,9}H)?[0-9]{1,9}M|T[0-9]{1,9}H)"
    ),
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL})+",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,8}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:{_GROUP}|::({_GROUP}:){{0,5}}{_GROUP}|::",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]{0,30}:(//)?[A-Za-z0-9_.~:/?#@!$&()*+,;=%-]+",
}
"""The formats that are enforced, each a regular expression for part of its values: February has 28 days."""
