"""Names of tools and parameters: the form that models are shown, and matching what models write to it.

A shown name has only letters, digits and underscores, so that every dialect can write it (LFM2 writes Python
calls). Models confuse two names with the same normal form.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from localagent.errors import InvalidTool

_GIVEN = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_KEYWORDS = frozenset(word.lower() for word in keyword.kwlist)


def check_name(name: object) -> str:
    """Check the name of a tool and return it. Raises InvalidTool."""
    if not isinstance(name, str) or not _GIVEN.fullmatch(name):
        raise InvalidTool(
            f"{name!r:.80} is not a name for a tool: it takes 1 to 64 letters, digits, "
            "underscores, hyphens, dots or slashes; give one with @tool(name=...)"
        )
    return name


def shown_name(name: str) -> str:
    """The name as models see it: `my-server.search` is `my_server_search`, and `3d` is `_3d`."""
    text = _FOREIGN.sub("_", name)
    return f"_{text}" if text[:1].isdigit() or keyword.iskeyword(text) else text


def normal_name(name: str) -> str:
    """The name without letter case and punctuation, which models change."""
    text = _FOREIGN.sub("_", name).lower()
    return f"_{text}" if text[:1].isdigit() or text in _KEYWORDS else text


def shown_parameter(name: str) -> str:
    """The name of a parameter as models see it. Keywords stay: every dialect can write `from=...`."""
    return name if name.isidentifier() else shown_name(name)


def matched(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The arguments under the names of the parameters.

    An unknown name is taken for the one missing parameter whose shown name or normal form it has. If several
    fit, or several names mean the same parameter, nothing is guessed.
    """
    meant: dict[str, str] = {}
    for form in (shown_parameter, normal_name):
        unknown = _by_form(form, (key for key in arguments if key not in names and key not in meant))
        missing = _by_form(
            form, (name for name in names if name not in arguments and name not in meant.values())
        )
        for text, keys in unknown.items():
            if len(keys) == len(missing.get(text, ())) == 1:
                meant[keys[0]] = missing[text][0]
    return {meant.get(key, key): value for key, value in arguments.items()}


def _by_form(form: Callable[[str], str], names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(form(name), []).append(name)
    return found
