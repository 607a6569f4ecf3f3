"""Every keyword of JSON Schema (drafts 7 and 2020-12), and what becomes of it here.

    enforced    nothing else can be written
    checked     nothing holds it while the model writes: it is reported, and the finished call is validated
    refused     the schema it stands in becomes "any value of its type"; reported and validated likewise
    annotation  says nothing about which values are valid

In strict mode `checked` and `refused` are both an error, SchemaRefused. The README has a remark on each
keyword, and a test holds its table to this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEYWORDS: Final[Mapping[str, str]] = {
    keyword: treatment
    for treatment, keywords in {
        "enforced": """
            type enum const nullable properties required additionalProperties patternProperties propertyNames
            items prefixItems additionalItems minItems maxItems minLength maxLength pattern format
            minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
            anyOf oneOf allOf $ref $defs definitions
        """,
        "checked": """
            minProperties maxProperties unevaluatedProperties unevaluatedItems uniqueItems
            contains minContains maxContains not if then else
            dependentRequired dependentSchemas dependencies
        """,
        "refused": "$dynamicRef $recursiveRef",
        "annotation": """
            $anchor $dynamicAnchor $recursiveAnchor $id $schema $vocabulary $comment title description default
            examples deprecated readOnly writeOnly contentEncoding contentMediaType contentSchema
        """,
    }.items()
    for keyword in keywords.split()
}
"""What is not listed is an annotation, as the standard has it."""

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
