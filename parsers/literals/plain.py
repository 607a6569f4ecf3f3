"""Items in their plainest shape, read in one step: no escapes, no markers, the next item already in sight.

Nothing here decides what the readers would decide otherwise: a string that is followed by a comma and the
start of the next item is closed (policy 26), and everything less clear is left to them. It only spares the
common case of dense JSON their generators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json.encoder import encode_basestring as quote_json
from typing import Any

from parsers.engine.words import CONSTANTS

_TEXT = r"""(?:"([^"\\<\ud800-\udfff]*)"|'([^'\\<\ud800-\udfff]*)')"""
_WORD = r"(-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,15})?|true|false|null|True|False|None)"
_VALUE = rf"(?:{_TEXT}|{_WORD})"
_S = r"[ \t\r\n\f\v]*"

_ITEM = re.compile(rf"""{_S}{_VALUE}{_S},{_S}(?=["'\[{{])|{_S}{_WORD}{_S},{_S}(?=-?[0-9])""")
_KEY = re.compile(rf"{_S}{_TEXT}{_S}:")
_MEMBER = re.compile(rf"""{_S}{_VALUE}{_S},{_S}(?=["'])""")
_OF_PYTHON = frozenset({"True", "False", "None"})
_CONSTANT_TEXT = {True: "true", False: "false", None: "null"}


def plain_items(
    text: str, start: int, append: Callable[[Any], None], write: Callable[[str], None]
) -> tuple[int, bool]:
    """Read items of a list, each with its comma.

    Returns where the first that is not plain begins, and whether any was written as only Python writes it.
    """
    python = False
    while (item := _ITEM.match(text, start)) is not None:
        double, single, before_any, before_number = item.groups()
        word = before_any or before_number
        value, written = _read(double, single, word)
        python = python or single is not None or word in _OF_PYTHON
        append(value)
        write(f"{written}, ")
        start = item.end()
    return start, python


def plain_members(
    text: str, start: int, members: dict[str, Any], words: dict[str, str], write: Callable[[str], None]
) -> tuple[int, str | None, bool]:
    """Read members of a mapping, each with its comma.

    Returns where reading stopped, the key if that is behind the colon of a member that is not plain, and
    whether anything was written as only Python writes it.
    """
    python = False
    while (found := _KEY.match(text, start)) is not None:
        key = found[1] if found[2] is None else found[2]
        write(f"{quote_json(key)}: ")
        start = found.end()
        member = _MEMBER.match(text, start)
        python = python or found[2] is not None
        if member is None:
            return start, key, python
        double, single, word = member.groups()
        members[key], written = _read(double, single, word)
        python = python or single is not None or word in _OF_PYTHON
        if word:
            words[key] = word
        write(f"{written}, ")
        start = member.end()
    return start, None, python


def _read(double: str | None, single: str | None, word: str | None) -> tuple[Any, str]:
    """The value, and its JSON text."""
    if word is None:
        text = single if double is None else double
        assert text is not None
        return text, quote_json(text)
    if word in CONSTANTS:
        return CONSTANTS[word], _CONSTANT_TEXT[CONSTANTS[word]]
    number = float(word) if "." in word else int(word)
    return number, repr(number)
