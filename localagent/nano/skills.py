"""The tools that lfm2-nano knows, how people ask for them, and how prompts list them. Nearly all is data.

A phrase names its arguments in braces; what follows `|` is an argument that the phrase implies, as JSON. An
argument that no phrase mentions is left out of the call. `result` says what the tool gives back (`=city` is
the argument of that name), `answer` what the model makes of that; a tool without them gives back a plain
text, or "ok".
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from localagent.nano.values import SORTS

Form = Literal["openai", "bare", "terse"]
"""How a prompt lists a tool: as `{"type": "function", "function": {...}}`, which is what localagent passes to
templates; the function alone; or a name with a type for every parameter."""
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skill:
    """One tool and the requests that call for it. `sorts`: parameter to sort, in the order of the schema."""

    name: str
    descriptions: tuple[str, ...]
    sorts: dict[str, str]
    required: tuple[str, ...]
    phrases: tuple[str, ...]
    result: dict[str, str] = field(default_factory=dict)
    answer: str = ""


def tool(skill: Skill, form: Form, rng: random.Random) -> Tool:
    """The schema of a skill. Descriptions, and whether parameters have any, vary with `rng`."""
    properties = {parameter: dict(SORTS[sort].schema) for parameter, sort in skill.sorts.items()}
    if rng.random() < 0.3:
        for parameter, schema in properties.items():
            schema["description"] = f"The {parameter}"
    return written(skill.name, rng.choice(skill.descriptions), properties, list(skill.required), form)


def written(
    name: str, description: str, properties: dict[str, Tool], required: list[str], form: Form
) -> Tool:
    """A tool in the given form."""
    if form == "terse":
        types = {parameter: _type(schema) for parameter, schema in properties.items()}
        return {"name": name, "parameters": types}
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return function if form == "bare" else {"type": "function", "function": function}


def _type(schema: Tool) -> str:
    kind = schema["type"]
    return kind if isinstance(kind, str) else kind[0]


_WEATHER = Skill(
    "get_weather",
    (
        "Get the weather in a city.",
        "Tells what the weather is like.",
        "Current weather and forecast for a place",
    ),
    {"city": "name", "days": "few", "units": "units"},
    ("city",),
    (
        "What is the weather in {city}?",
        "What's the weather like in {city}?",
        "How is the weather in {city} today?",
        "Will it rain in {city}?",
        "weather in {city} please",
        "Tell me the weather for {city}.",
        "Weather forecast for {city}, {days} days",
        "What will the weather be in {city} over the next {days} days?",
        "Give me the weather of the next {days} days in {city}.",
        "What is the weather in {city} in {units}?",
        "How warm is it in {city}? Use {units}.",
        "I need the {units} forecast for {city} for {days} days.",
    ),
    {"city": "=city", "sky": "sky", "degrees": "percent"},
    "It is {sky} in {city}, {degrees} degrees.",
)
_MESSAGE = Skill(
    "send_message",
    ("Send a message to somebody.", "Sends a text to a person", "Send someone a short message."),
    {"to": "recipient", "text": "text"},
    ("to", "text"),
    (
        'Send "{text}" to {to}.',
        'Send {to} the message "{text}"',
        'Tell {to} "{text}"',
        'Please write to {to}: "{text}"',
        'Message {to} and say "{text}"',
        'Send a message to {to} that says "{text}".',
        'Text {to}: "{text}"',
    ),
)
_TIMER = Skill(
    "set_timer",
    ("Set a timer.", "Starts a timer that rings after some minutes.", "Count down a number of minutes"),
    {"minutes": "many", "label": "label"},
    ("minutes",),
    (
        "Set a timer for {minutes} minutes.",
        "Start a {minutes} minute timer.",
        "Timer, {minutes} minutes",
        "Wake me in {minutes} minutes.",
        "Set a timer for {minutes} minutes and call it {label}.",
        "Start a {minutes} minute timer named {label}.",
        "Set a {label} timer for {minutes} minutes.",
        "Set a timer for {minutes} minutes without a label. | label=null",
        "Start a {minutes} minute timer with no label. | label=null",
    ),
)
_LIGHT = Skill(
    "switch_light",
    ("Switch a light on or off.", "Turns the light in a room on or off", "Control the lamp of a room."),
    {"room": "word", "on": "flag", "brightness": "percent"},
    ("room", "on"),
    (
        "Turn on the light in the {room}. | on=true",
        "Switch the {room} light on. | on=true",
        "Light on in the {room}, please. | on=true",
        "Turn off the light in the {room}. | on=false",
        "Switch the {room} light off. | on=false",
        "Make it dark in the {room}. | on=false",
        "Turn on the light in the {room} at {brightness} percent. | on=true",
        "Set the {room} light to {brightness} percent. | on=true",
    ),
)
_ITEMS = Skill(
    "add_items",
    ("Add items to a list.", "Puts things on a list", "Append entries to one of the lists."),
    {"list": "word", "items": "words"},
    ("list", "items"),
    (
        "Add {items} to the {list} list.",
        "Put {items} on my {list} list.",
        "On the {list} list, note {items}.",
        "Please add {items} to list {list}",
        "My {list} list needs {items}.",
        "The list {list} should get these: {items}",
    ),
)
_RECORD = Skill(
    "save_record",
    ("Save a record with fields and tags.", "Stores fields and tags under a title", "Keep a record."),
    {"title": "phrase", "fields": "fields", "tags": "words"},
    ("title", "fields"),
    (
        "Save a record called {title} with {fields}, tagged {tags}.",
        "Save a record called {title} with {fields}.",
        "Store {title} with the fields {fields} and the tags {tags}.",
        "New record {title}; fields: {fields}; tags: {tags}",
        "Keep a record named {title} where {fields}. Tags: {tags}.",
        "Record {title}: {fields}",
    ),
)
_ORDER = Skill(
    "place_order",
    ("Order goods.", "Places an order with several lines", "Buy things from the shop."),
    {"lines": "lines", "express": "flag"},
    ("lines",),
    (
        "Order {lines}.",
        "Please order {lines} for me.",
        "I want to buy {lines}.",
        "Get me {lines} from the shop.",
        "Order {lines}, express. | express=true",
        "Buy {lines} with express delivery. | express=true",
        "Order {lines}, but not express. | express=false",
    ),
)
_CONVERT = Skill(
    "convert",
    ("Convert an amount between units.", "Converts a number from one unit to another", "Unit conversion."),
    {"amount": "number", "source": "word", "target": "word"},
    ("amount", "source", "target"),
    (
        "Convert {amount} {source} to {target}.",
        "How much is {amount} {source} in {target}?",
        "What are {amount} {source} in {target}?",
        "{amount} {source} in {target}",
        "Change {amount} {source} into {target}, please.",
    ),
    {"value": "number", "unit": "=target"},
    "That is {value} {unit}.",
)
_SEARCH = Skill(
    "search_files",
    ("Search for files.", "Finds files by what they are about", "Look for a file in a folder."),
    {"query": "phrase", "folder": "path", "hidden": "flag"},
    ("query",),
    (
        "Find files about {query}.",
        "Search my files for {query}.",
        "Which file is about {query}?",
        "Look for files about {query} in {folder}.",
        "Search {folder} for files about {query}",
        "Find files about {query}, hidden ones too. | hidden=true",
        "Find files about {query} in {folder}, without hidden ones. | hidden=false",
    ),
    {"path": "path"},
    "I found {path}.",
)
_READ = Skill(
    "read_file",
    ("Read a file.", "Returns the text of a file", "Read the first lines of a file, or all of it."),
    {"path": "path", "lines": "many"},
    ("path",),
    (
        "Read {path}.",
        "Show me the file {path}",
        "What does {path} say?",
        "Open {path} for me.",
        "Read the first {lines} lines of {path}.",
        "Show me {lines} lines of the file {path}",
    ),
)
_CONTACT = Skill(
    "find_contact",
    ("Look up a person.", "Finds the city and address of a contact", "Search the address book."),
    {"name": "name"},
    ("name",),
    (
        "Look up {name}.",
        "Where does {name} live?",
        "Find the address of {name}.",
        "Who is {name}?",
        "What is the address of {name}?",
    ),
    {"name": "=name", "city": "name", "address": "code"},
    "{name} lives in {city}, address {address}.",
)
_TRANSLATE = Skill(
    "translate",
    ("Translate a text.", "Translates text into another language", "Say a text in another language."),
    {"text": "text", "language": "language"},
    ("text", "language"),
    (
        'Translate "{text}" into {language}.',
        'What is "{text}" in {language}?',
        'How do I say "{text}" in {language}?',
        'Give me the {language} for "{text}"',
        'Into {language}, please: "{text}"',
    ),
)

SKILLS: dict[str, Skill] = {
    skill.name: skill
    for skill in (
        *(_WEATHER, _MESSAGE, _TIMER, _LIGHT, _ITEMS, _RECORD),
        *(_ORDER, _CONVERT, _SEARCH, _READ, _CONTACT, _TRANSLATE),
    )
}
"""Every skill by the name of its tool."""
