"""What is wrong with a value, in words for the model that wrote it.

Each finding is one line with the path as the model wrote it. pydantic's URLs and Python's type names are left
out, since they mean nothing to a model.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import ValidationError

from localagent.wording import one_line, quoted, writable

_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_INPUT = "Input should be "
_NOUNS = (
    (re.compile(r"a valid dictionary( or (an )?instance of .+)?$|a valid mapping$"), "an object"),
    (re.compile(r"an object or instance of .+$|a dictionary or an instance of .+$"), "an object"),
    (re.compile(r"a valid (array|list|tuple|set|frozenset)$"), "a list"),
    (re.compile(r", unable to (parse|interpret) .*$"), ""),
    (re.compile(r"^Input is not (a valid [\w ]+?)( for <class .+)?$"), rf"{_INPUT}\1"),
    (re.compile(r"^Unable to extract tag using discriminator (.+)$"), r"\1 is missing"),
)
FORMATS = {
    "date": 'a date such as "2026-01-31"',
    "date-time": 'a date and time such as "2026-01-31T12:00:00"',
    "time": 'a time such as "12:30:00"',
    "duration": 'a duration such as "PT1H30M" or "01:30:00"',
}
"""What text of a format looks like: a model that is told only "not a date" writes the same again."""
_TIMES = (
    ("date_", "date"), ("datetime_", "date-time"), ("time_delta", "duration"),
    ("time_", "time"),
)  # fmt: skip
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\b(?:True|False|None)\b")
_JSON = {"True": "true", "False": "false", "None": "null"}


def findings(error: ValidationError, root: str, value: Any) -> list[str]:
    """What a failed validation found wrong with `value`, which is called `root`."""
    places: dict[str, list[tuple[str, str]]] = {}
    for each in error.errors(include_url=False):
        missing = each["type"] in _MISSING
        path = _path(root, each["loc"], value, missing or each["type"] in _UNKNOWN)
        said, instead = _said(each["type"], each["msg"]), ""
        if said.startswith(_INPUT) and ", not " not in said and ", got " not in said:
            instead = f", not {shown(each['input'])}"
        if "[key]" in each["loc"]:
            said = f"as a key: {said}"
        if (said, instead) not in places.setdefault(path, []):
            places[path].append((said, instead))
    return [line for path, found in places.items() for line in _lines(path, found)]


def shown(value: Any) -> str:
    """A value as JSON, short enough for a line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 and text.isprintable() else f"{ascii(text[:60])[1:-1]}..."


def _lines(path: str, found: list[tuple[str, str]]) -> list[str]:
    """One line where the alternatives of a union say the same thing of one value."""
    if len(found) > 1 and all(said.startswith(_INPUT) and instead for said, instead in found):
        choices = dict.fromkeys(said.removeprefix(_INPUT) for said, _ in found)
        found = [(_INPUT + " or ".join(choices), found[0][1])]
    return [one_line(writable(f"{path}: {said}{instead}"), 400) for said, instead in found]


def _path(root: str, location: tuple[int | str, ...], value: Any, ends_outside: bool) -> str:
    """The path to the value. Steps that are not in it name an alternative of a union, and are left out."""
    path, here = root, value
    for at, step in enumerate(location):
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            path += f"[{step}]"
            here = here[step]
        elif isinstance(step, int) and isinstance(here, list) and ends_outside:
            path += f"[{step}]"  # a tuple is too short
        elif isinstance(step, str) and isinstance(here, dict):
            if step in here:
                here = here[step]
            elif not ends_outside or at < len(location) - 1:
                continue
            path += f".{quoted(step)}"
    return path


def _said(kind: str, message: str) -> str:
    if kind in _MISSING:
        return "missing"
    if kind in _UNKNOWN:
        return "there is no such key"
    if kind.endswith(("_parsing", "_inexact")):
        for begins, what in _TIMES:
            if kind.startswith(begins):
                reason = message.rpartition(", ")[2]
                return f"{_INPUT}{FORMATS[what]}" + (f" ({reason})" if "range" in reason else "")
    said = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for pattern, noun in _NOUNS:
        said = pattern.sub(noun, said)
    return _LITERAL.sub(lambda each: _JSON.get(each[0], each[0]), said) if said.startswith(_INPUT) else said
