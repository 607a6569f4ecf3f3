"""Items in their plainest shape, read in one step: no escapes, no markers, the next item already in sight.

Nothing here decides what the readers would decide otherwise: a string that is followed by a comma and the
start of the next item is closed [closing-quote], and so is one before brackets with that after them;
everything less clear is left to them. It only spares the common case of dense JSON their generators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json.encoder import encode_basestring as quote_json
from typing import Any

from ..engine.words import CONSTANTS

_TEXT = r"""(?:"([^"\\<\ud800-\udfff]*)"|'([^'\\<\ud800-\udfff]*)')"""
_WORD = r"(-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,15})?|true|false|null|True|False|None)"
_VALUE = rf"(?:{_TEXT}|{_WORD})"
_S = r"[ \t\r\n\f\v]*"

_ITEM = re.compile(rf"""{_S}{_VALUE}{_S},{_S}(?=["'\[{{])|{_S}{_WORD}{_S},{_S}(?=-?[0-9])""")
_KEY = re.compile(rf"{_S}{_TEXT}{_S}:")
_MEMBER = re.compile(rf"""{_S}{_VALUE}{_S},{_S}(?=["'])""")
_NEXT_ITEM = re.compile(rf"""{_S},{_S}(?=["'\[{{])""")
_NEXT_MEMBER = re.compile(rf"""{_S},{_S}(?=["'])""")
# Within a bracket that is complete: a value, or a whole member, with the comma or the bracket behind it.
_INNER_ITEM = re.compile(rf"{_S}{_VALUE}{_S}([,\]])")
_INNER_MEMBER = re.compile(rf"{_S}{_TEXT}{_S}:{_S}{_VALUE}{_S}([,}}])")
_OPENER = re.compile(rf"{_S}(?=[\[{{])")
_AFTER = {"[": re.compile(rf"{_S}([,\]])"), "{": re.compile(rf"{_S}([,}}])")}
_EMPTY = {"[": re.compile(rf"\[{_S}\]"), "{": re.compile(rf"\{{{_S}\}}")}
_OF_PYTHON = frozenset({"True", "False", "None"})
_CONSTANT_TEXT = {True: "true", False: "false", None: "null"}

MOST_DEPTH = 8
"""How deep brackets are read in one step: one that is not plain is read again for each of them around it."""
LEAST = 12
"""Characters in sight from which on it is worth trying: what is shorter is rarely complete."""


class _Unclear(Exception):
    """This is for the readers."""


def plain_items(
    text: str, start: int, append: Callable[[Any], None], write: Callable[[str], None], *, nested: bool
) -> tuple[int, bool]:
    """Read items of a list, each with its comma. `nested`: brackets among them, too.

    Returns where the first that is not plain begins, and whether any was written as only Python writes it.
    """
    python = False
    while True:
        item = _ITEM.match(text, start)
        if item is not None:
            double, single, before_any, before_number = item.groups()
            word = before_any or before_number
            value, written = _read(double, single, word)
            python = python or single is not None or word in _OF_PYTHON
        else:
            bracket = _bracket(text, start, _NEXT_ITEM) if nested else None
            if bracket is None:
                return start, python
            item, value, written, of_python = bracket
            python = python or of_python
        append(value)
        write(f"{written}, ")
        start = item.end()


def plain_members(
    text: str,
    start: int,
    members: dict[str, Any],
    words: dict[str, str],
    write: Callable[[str], None],
    *,
    nested: bool,
) -> tuple[int, str | None, bool]:
    """Read members of a mapping, each with its comma. `nested`: brackets among their values, too.

    Returns where reading stopped, the key if that is behind the colon of a member that is not plain, and
    whether anything was written as only Python writes it.
    """
    python = False
    while (key_found := _KEY.match(text, start)) is not None:
        key = key_found[1] if key_found[2] is None else key_found[2]
        write(f"{quote_json(key)}: ")
        start = key_found.end()
        python = python or key_found[2] is not None
        member = _MEMBER.match(text, start)
        if member is not None:
            double, single, word = member.groups()
            members[key], written = _read(double, single, word)
            python = python or single is not None or word in _OF_PYTHON
            if word:
                words[key] = word
        else:
            bracket = _bracket(text, start, _NEXT_MEMBER) if nested else None
            if bracket is None:
                return start, key, python
            member, members[key], written, of_python = bracket
            python = python or of_python
        write(f"{written}, ")
        start = member.end()
    return start, None, python


_Bracket = tuple[int, Any, str, bool]
"""Where a bracket ends, its value and JSON text, and whether it was written as only Python writes it."""


def _bracket(text: str, start: int, follow: re.Pattern[str]) -> tuple[re.Match[str], Any, str, bool] | None:
    """A plain bracket with `follow` behind it, which is matched, and the rest as in `_Bracket`."""
    opener = _OPENER.match(text, start)
    if opener is None:
        return None
    try:
        end, value, written, python = _inner(text, opener.end(), MOST_DEPTH)
    except _Unclear:
        return None
    after = follow.match(text, end)
    return None if after is None else (after, value, written, python)


def _inner(text: str, start: int, depth: int) -> _Bracket:
    """The bracket that opens at `start`. Raises _Unclear."""
    if depth == 0:
        raise _Unclear
    opener = text[start]
    empty = _EMPTY[opener].match(text, start)
    if empty is not None:
        return empty.end(), [] if opener == "[" else {}, "[]" if opener == "[" else "{}", False
    return (_list if opener == "[" else _mapping)(text, start + 1, depth)


def _list(text: str, start: int, depth: int) -> _Bracket:
    items: list[Any] = []
    pieces: list[str] = []
    python, after = False, ","
    while after == ",":
        item = _INNER_ITEM.match(text, start)
        if item is not None:
            double, single, word, after = item.groups()
            value, written = _read(double, single, word)
            python = python or single is not None or word in _OF_PYTHON
            start = item.end()
        else:
            start, value, written, of_python, after = _nested(text, start, "[", depth)
            python = python or of_python
        items.append(value)
        pieces.append(written)
    return start, items, f"[{', '.join(pieces)}]", python


def _mapping(text: str, start: int, depth: int) -> _Bracket:
    mapping: dict[str, Any] = {}
    pieces: list[str] = []
    python, after = False, ","
    while after == ",":
        member = _INNER_MEMBER.match(text, start)
        key_found = member or _KEY.match(text, start)
        if key_found is None:
            raise _Unclear
        key = key_found[1] if key_found[2] is None else key_found[2]
        if key in mapping:
            raise _Unclear
        if member is not None:
            double, single, word, after = member.groups()[2:]
            value, written = _read(double, single, word)
            python = python or single is not None or word in _OF_PYTHON
            start = member.end()
        else:
            start, value, written, of_python, after = _nested(text, key_found.end(), "{", depth)
            python = python or of_python
        python = python or key_found[2] is not None
        mapping[key] = value
        pieces.append(f"{quote_json(key)}: {written}")
    return start, mapping, f"{{{', '.join(pieces)}}}", python


def _nested(text: str, at: int, outer: str, depth: int) -> tuple[int, Any, str, bool, str]:
    """A bracket within one that `outer` opened, as `_Bracket`, and the comma or closer behind it."""
    opening = _OPENER.match(text, at)
    if opening is None:
        raise _Unclear
    end, value, written, python = _inner(text, opening.end(), depth - 1)
    after = _AFTER[outer].match(text, end)
    if after is None:
        raise _Unclear
    return after.end(), value, written, python, after[1]


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
