"""What a docstring says of a function and of its parameters: Google, NumPy, reST and epydoc style.

Knows docstrings. Does not know signatures: whether a parameter exists is for the caller to say.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field

_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "other_param"})
"""What a section of parameters is called; attributes and what a generator receives have others."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A docstring, read. `parameters` has the documented ones, with or without a text."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def docstring_of(function: object) -> str | None:
    """The docstring of a function, also an inherited one; not what Python says of every `__call__`."""
    found = inspect.getdoc(function)
    return None if found == inspect.getdoc(type.__call__) else found


def read_docstring(text: str | None) -> Documented:
    """The summary and the long description as one text, and the parameters by name."""
    if not text or not text.strip():
        return Documented()
    from docstring_parser import ParseError, parse

    clean = inspect.cleandoc(text)
    try:
        found = parse(clean)
    except ParseError:  # half a section is no reason to have no description
        return Documented(clean)
    gap = "\n\n" if found.blank_after_short_description else "\n"
    description = gap.join(part for part in (found.short_description, found.long_description) if part)
    parameters: dict[str, str] = {}
    for one in found.params:
        if one.args[0] in _PARAMETERS:
            said = " ".join((one.description or "").split())
            for name in one.arg_name.split(","):  # NumPy documents `x, y : int` together
                parameters[name.strip().lstrip("*")] = said
    return Documented(description.strip(), parameters)
