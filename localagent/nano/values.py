"""Sorts of arguments: how a value is drawn, how people say it, and its JSON schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localagent.nano.words import Lexicon


@dataclass(frozen=True, slots=True)
class Sort:
    """One sort of argument. `say` writes a value as it stands in a request."""

    schema: dict[str, Any]
    draw: Callable[[Lexicon], Any]
    say: Callable[[Any, Lexicon], str] = lambda value, lexicon: str(value)


def choice(*options: str) -> Sort:
    """An enumeration of strings."""
    return Sort({"type": "string", "enum": list(options)}, lambda lexicon: lexicon.rng.choice(options))


def sentence(lexicon: Lexicon) -> str:
    """A text with spaces and punctuation, but without double quotes, as it stands between them."""
    rng = lexicon.rng
    words = [lexicon.word() for _ in range(rng.randint(1, 7))]
    for at in range(len(words) - 1):
        style = rng.random()
        if style < 0.15:
            words[at] += rng.choice((",", ",", ";", ":", " -", "..."))
        elif style < 0.2:
            words[at] += rng.choice(("'s", "'t", "'ll"))
        elif style < 0.25:
            words[at] = f"({words[at]})"
        elif style < 0.32:
            words[at] = str(rng.randint(0, 999))
        elif style < 0.36:
            words[at] = _address(lexicon) if style < 0.34 else rng.choice(_SIGNS) + rng.choice(_SIGNS)
    return " ".join(words) + rng.choice(("", "", ".", "!", "?", "?!"))


_SIGNS = "<>|/&#@%*_=+$[]{}~^"


def _address(lexicon: Lexicon) -> str:
    return f"{lexicon.key()}@{lexicon.key()}.org"


def _recipient(lexicon: Lexicon) -> str:
    return _address(lexicon) if lexicon.chance(0.15) else lexicon.name()


def listed(items: list[str], lexicon: Lexicon) -> str:
    """a, b and c."""
    if len(items) == 1:
        return items[0]
    joiner = lexicon.rng.choice((" and ", " and ", ", "))
    return ", ".join(items[:-1]) + joiner + items[-1]


def _number(lexicon: Lexicon) -> float:
    rng = lexicon.rng
    size = rng.choice((10, 100, 1000))
    if lexicon.chance(0.4):
        return rng.randint(-size, size) or 1
    return round(rng.uniform(-size, size), rng.choice((1, 1, 2))) or 0.5


def _path(lexicon: Lexicon) -> str:
    folders = [lexicon.key() for _ in range(lexicon.rng.randint(0, 2))]
    return "/".join([*folders, lexicon.key()]) + lexicon.rng.choice((".txt", ".md", ".py", ".csv", ""))


def _fields(lexicon: Lexicon) -> dict[str, Any]:
    count = lexicon.rng.randint(1, 3)
    return {
        lexicon.key(): lexicon.rng.randint(0, 99) if lexicon.chance(0.3) else lexicon.word()
        for _ in range(count)
    }


def _say_fields(fields: dict[str, Any], lexicon: Lexicon) -> str:
    sign = lexicon.rng.choice((" = ", "=", ": ", " "))
    return listed([f"{key}{sign}{value}" for key, value in fields.items()], lexicon)


def _lines(lexicon: Lexicon) -> list[dict[str, Any]]:
    rng = lexicon.rng
    return [{"item": lexicon.word(), "count": rng.randint(1, 99)} for _ in range(rng.randint(1, 4))]


def _say_lines(lines: list[dict[str, Any]], lexicon: Lexicon) -> str:
    return listed([f"{line['count']} {line['item']}" for line in lines], lexicon)


def _words(lexicon: Lexicon) -> list[str]:
    return [lexicon.phrase(2) for _ in range(lexicon.rng.randint(1, 5))]


def _integer(most: int) -> Sort:
    return Sort({"type": "integer"}, lambda lexicon: lexicon.rng.randint(1, most))


_TEXT = {"type": "string"}
_LINE = {"type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "integer"}}}

SORTS: dict[str, Sort] = {
    "name": Sort(_TEXT, Lexicon.name),
    "recipient": Sort(_TEXT, _recipient),
    "word": Sort(_TEXT, Lexicon.word),
    "phrase": Sort(_TEXT, lambda lexicon: lexicon.phrase(3)),
    "label": Sort({"type": ["string", "null"]}, Lexicon.word),
    "code": Sort(_TEXT, Lexicon.code),
    "text": Sort(_TEXT, sentence),
    "path": Sort(_TEXT, _path),
    "few": _integer(9),
    "many": _integer(999),
    "percent": _integer(100),
    "number": Sort({"type": "number"}, _number),
    "flag": Sort({"type": "boolean"}, lambda lexicon: lexicon.chance(0.5)),
    "units": choice("celsius", "fahrenheit"),
    "language": choice("French", "German", "Spanish", "Italian", "Japanese"),
    "sky": choice("sunny", "cloudy", "rainy", "windy", "foggy", "clear"),
    "words": Sort({"type": "array", "items": _TEXT}, _words, listed),
    "fields": Sort({"type": "object"}, _fields, _say_fields),
    "lines": Sort({"type": "array", "items": _LINE}, _lines, _say_lines),
}
"""Every sort by the name that `skills` uses."""
