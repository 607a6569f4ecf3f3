"""Calls back to text, in the notation that models were trained on.

Strings and mappings are written as JSON, which is also Python, everything else as Python writes it; that
is one of the mixtures LFM2's own chat templates produce, and the only one that needs no guessing to read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from parsers.grammars.call import NAME
from parsers.grammars.pythonic import PARAMETER
from parsers.spans import Span


def render_pythonic(span: Span, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """`<start>[f(city="Paris", days=3), g()]<end>`. Raises ValueError for what no call can hold."""
    return f"{span.open}[{', '.join(_call(name, arguments, span) for name, arguments in calls)}]{span.close}"


def _call(name: str, arguments: Mapping[str, Any], span: Span) -> str:
    if not name or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no tool name: letters, digits, '_', '.' and '-' only")
    parts = []
    for key, value in arguments.items():
        text = _value(value, span)
        parts.append(
            f"{key}={text}" if key and PARAMETER.fullmatch(key) else f"**{{{_string(key, span)}: {text}}}"
        )
    return f"{name}({', '.join(parts)})"


def _value(value: Any, span: Span) -> str:
    if isinstance(value, str):
        return _string(value, span)
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} has no JSON form")
        return repr(value)
    if isinstance(value, Mapping):
        items = (f"{_string(str(key), span)}: {_value(item, span)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item, span) for item in value)}]"
    raise ValueError(f"{type(value).__name__} has no JSON form")


def _string(text: str, span: Span) -> str:
    """A JSON string. Markers in it are escaped: spelled out, they could become control tokens."""
    quoted = json.dumps(text, ensure_ascii=False)
    for marker in (span.open, span.close):
        quoted = quoted.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
    return quoted
