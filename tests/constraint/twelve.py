"""Twelve tools with nested schemas, and things to ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PLACE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "lat": {"type": "number", "minimum": -90, "maximum": 90},
        "lon": {"type": "number", "minimum": -180, "maximum": 180},
    },
    "required": ["name"],
}


def function(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def text(most: int = 30) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def listed(items: Mapping[str, Any], least: int = 0, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


TWELVE = [
    function("get_weather", ["city"], city=text(), days={"type": "integer", "minimum": 1, "maximum": 9}),
    function("set_alarm", ["at"], at={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}, label=text()),
    function("route", ["start", "end"], start=PLACE, end=PLACE, by={"enum": ["car", "train", "bicycle"]}),
    function("send_mail", ["to", "subject"], to=listed(text(), 1), subject=text(), urgent={"type": "boolean"}),
    function(
        "order",
        ["items"],
        items=listed(
            {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "count": {"type": "integer", "minimum": 1}},
                "required": ["id", "count"],
            },
            1,
        ),
        note={"type": ["string", "null"], "maxLength": 30},
    ),
    function("switch_light", ["room", "on"], room=text(), on={"type": "boolean"}),
    function("find", ["query"], query=text(), within={"anyOf": [{"type": "integer"}, text(10)]}),
    function("translate", ["text", "into"], text=text(60), into={"enum": ["de", "fr", "es", "ja"]}),
    function("plot", ["points"], points=listed(listed({"type": "number"}, 2, 2), 1)),
    function("remember", ["facts"], facts={"type": "object", "additionalProperties": text(20)}),
    function("now"),
    function("book", ["guests", "from"], guests={"type": "integer", "minimum": 1, "maximum": 12},
             **{"from": {"type": "string", "format": "date"}}, place=PLACE),
]  # fmt: skip

QUESTIONS = [
    "What is the weather like in Oslo?",
    "Wake me at seven.",
    "Say hello.",
    "Send a mail to Anna about the meeting, please.",
    "Turn off the light in the kitchen.",
    "Why is the sky blue?",
    "Plot a few points.",
    "Book a table for four tomorrow.",
]


def fits(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is one of a tool that there is, with arguments that its schema allows."""
    import jsonschema

    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TWELVE}
    checker = jsonschema.Draft202012Validator(
        schemas[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return bool(checker.is_valid(arguments))
