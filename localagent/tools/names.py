"""Names of tools and parameters: what models are shown, and what they may have meant by what they write.

A shown name has only letters, digits and underscores, so that every dialect can write it (LFM2 writes Python
calls). Two names with one normal form are the same name to a model.
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
    """The name of a tool, if models can be given it. Raises InvalidTool."""
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
    """What is left of a name when letter case and punctuation, which models change, do not count."""
    text = _FOREIGN.sub("_", name).lower()
    return f"_{text}" if text[:1].isdigit() or text in _KEYWORDS else text


def shown_parameter(name: str) -> str:
    """The name of a parameter as models see it. Keywords stay: every dialect can write `from=...`."""
    return name if name.isidentifier() else shown_name(name)


def matched(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The arguments under the names of the parameters.

    An unknown name that can only mean one missing parameter is that parameter: as models are shown it, or in
    its normal form. Where two may be meant, or two mean the same, nothing is guessed.
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
