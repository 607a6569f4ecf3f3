"""Names and values back to text, in the notations that models were trained on.

Strings and mappings are written as JSON, which is also Python, everything else as Python writes it; that
is one of the mixtures LFM2's own chat templates produce, and the only one that needs no guessing to read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..engine.writer import NAME
from ..events import MAX_DEPTH
from .values import PARAMETER

PYTHON = {None: "None", True: "True", False: "False"}
JSON = {None: "null", True: "true", False: "false"}


_SURROGATE = re.compile("[\ud800-\udfff]")


class Writer:
    """Writes calls in either notation. `constants`: how it spells null, true and false."""

    def __init__(self, markers: Iterable[str], constants: Mapping[bool | None, str]) -> None:
        self._markers = tuple(markers)
        self._any_marker = re.compile("|".join(map(re.escape, self._markers)) or "(?!)")
        self._constants = constants

    def json(self, name: str, arguments: Mapping[str, Any]) -> str:
        """`{"name": ..., "arguments": {...}}`."""
        self.check_name(name)
        return f'{{"name": "{name}", "arguments": {self.mapping(arguments, MAX_DEPTH - 1)}}}'

    def pythonic(self, name: str, arguments: Mapping[str, Any]) -> str:
        """`name(key=value, **{"other key": value})`."""
        self.check_name(name)
        parts = []
        for key, value in arguments.items():
            if isinstance(key, str) and key and PARAMETER.fullmatch(key):
                parts.append(f"{key}={self.value(value, MAX_DEPTH)}")
            else:
                parts.append(f"**{self.mapping({key: value}, MAX_DEPTH)}")
        return f"{name}({', '.join(parts)})"

    def value(self, value: Any, depth: int = MAX_DEPTH) -> str:
        """Any JSON value."""
        match value:
            case str():
                return self.string(value)
            case None | True | False:
                return self._constants[value]
            case int():
                return int.__repr__(value)  # an enumeration's own repr is no number
            case float() if math.isfinite(value):
                return float.__repr__(value)
            case Mapping():
                return self.mapping(value, depth)
            case list() | tuple():
                self._check(depth)
                return f"[{', '.join(self.value(item, depth - 1) for item in value)}]"
        raise ValueError(f"{value!r:.40} has no JSON form")

    def mapping(self, mapping: Mapping[Any, Any], depth: int = MAX_DEPTH) -> str:
        """An object."""
        self._check(depth)
        items = (f"{self.string(key)}: {self.value(item, depth - 1)}" for key, item in mapping.items())
        return f"{{{', '.join(items)}}}"

    def string(self, text: Any) -> str:
        """A JSON string in which no marker stands."""
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.40} is no key of a JSON object: keys are strings")
        if not text.isascii() and _SURROGATE.search(text):
            raise ValueError("a string with a lone surrogate has no JSON form")
        quoted = quote_json(text)
        if self._any_marker.search(quoted):
            for marker in self._markers:
                quoted = quoted.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
        return quoted

    @staticmethod
    def check_name(name: str) -> None:
        """Raise ValueError for what is no tool name."""
        if not name or not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no tool name: letters, digits, '_', '.' and '-' only")

    @staticmethod
    def _check(depth: int) -> None:
        if depth == 0:
            raise ValueError(f"a value may be nested {MAX_DEPTH} deep, not deeper")


class RawWriter(Writer):
    """Writes raw values. `reserved`: the tags and markers that must not stand in one."""

    constants = JSON
    """How it spells null, true and false."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = tuple(dict.fromkeys(reserved))
        super().__init__(self._reserved, self.constants)

    def raw(self, value: Any) -> str:
        """A string as it is, any other value in the format's notation.

        Raises ValueError for a string that holds a tag or a marker.
        """
        if not isinstance(value, str):
            return self.value(value)
        super().string(value)  # its characters have a JSON form
        for text in self._reserved:
            if text in value:
                raise ValueError(f"a string with {text!r} in it cannot be written as raw text")
        return value

    def key(self, key: Any) -> str:
        """The name of an argument. Raises ValueError for what no tag can hold."""
        super().string(key)
        if not key or key != key.strip() or key[0] == "'" or any(char in key for char in '<>"\n'):
            raise ValueError(f"{key!r:.40} cannot be the name of an argument in a tag")
        return str(key)


class JsonContainers(RawWriter):
    """Lists and objects as JSON, everything else as Python's `str` writes it."""

    constants = PYTHON

    def raw(self, value: Any) -> str:
        """A value between tags: lists and objects are JSON."""
        if isinstance(value, (list, tuple, Mapping)):
            return Writer(self._reserved, JSON).value(value)
        return super().raw(value)


class PythonText(RawWriter):
    """Values as Python's `str` writes them, except strings in lists that need an escape: those are JSON."""

    constants = PYTHON

    def string(self, text: Any) -> str:
        """A string in a list or an object, in single quotes where it needs no escape."""
        quoted = super().string(text)
        plain = quoted == f'"{text}"' and text.isprintable() and "'" not in text
        return f"'{text}'" if plain else quoted


def verbatim(text: Any, tokens: Iterable[str]) -> str:
    """Text where nothing can be escaped. Raises ValueError for what it cannot hold, tokens among it."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is no key of a JSON object: keys are strings")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("a string with a lone surrogate has no JSON form")
    for token in tokens:
        if token in text:
            raise ValueError(f"a string here cannot hold {token}, a token of the format")
    return text
