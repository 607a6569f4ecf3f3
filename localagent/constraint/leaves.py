"""Regular expressions and bounded numbers, as llguidance takes them, and whether it does.

A pattern of JSON Schema is an ECMA regular expression that matches anywhere in a text. Terminals of a grammar
match a whole text, in the syntax of Rust's `regex`, without look-around.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from localagent.constraint.matching import limits, llguidance

ANY_TEXT: Final = "(?s:.*)"
LONGEST_PATTERN: Final = 10_000
_LOOK_AROUND: Final = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:[=!]|<[=!])")
_ENDS: Final = re.compile(r"(?<!\\)(?:\\\\)*\$\Z")
_PLACE: Final = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_CLASS_OR_ESCAPE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def escaped(text: str) -> str:
    """A regular expression for `text` alone."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}" for char in text)


def inline(schema: Mapping[str, Any]) -> str:
    """A schema as the body of a rule, for llguidance to write as JSON without white space."""
    options = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


@lru_cache(maxsize=4096)
def refusal(body: str) -> str:
    """Why llguidance refuses a rule or a terminal with this body, "" if it does not."""
    said = llguidance().LLMatcher.validate_grammar(
        llguidance().LLMatcher.grammar_from_lark(f"start: value\nvalue: {body}\n"), None, limits=limits()
    )
    if said.startswith("WARNING"):
        return ""
    # It repeats the grammar behind the reason, and a regular expression before.
    reason = _PLACE.sub("", " ".join(said.split()).partition(" 1 | start:")[0])
    return reason.rpartition("error: ")[2][:200]


@lru_cache(maxsize=4096)
def beginless(body: str) -> str:
    """Why no text can begin a rule with this body, "" if one can. That may come out only when it is tried.

    So with the bounds 0.25 and 0.35 and multiples of 0.1: 0.3 fits, but llguidance cannot write it.
    """
    package = llguidance()
    grammar = package.LLMatcher.grammar_from_lark(f"start: value\nvalue: {body}\n")
    matcher = package.LLMatcher(package.LLTokenizer("byte"), grammar, log_level=0, limits=limits())
    matcher.compute_bitmask()
    return "no value that fits it can be written" if matcher.is_error() else ""


@lru_cache(maxsize=4096)
def unusable(pattern: Any, inlined: bool) -> str:
    """Why a pattern cannot be enforced, "" if it can. `inlined`: within `%json`, not as a terminal."""
    if not isinstance(pattern, str):
        return f"{pattern!r:.40} is no regular expression"
    if len(pattern) > LONGEST_PATTERN:
        return f"it has more than {LONGEST_PATTERN:,} characters"
    if _LOOK_AROUND.search(pattern):
        return "look-around cannot be enforced"
    if inlined:
        said = refusal(inline({"type": "string", "pattern": pattern}))
    else:
        try:
            said = refusal(f"/{searched(pattern)}/")
        except ValueError as error:
            return str(error)
    return said and "it cannot be enforced: " + said


def searched(pattern: str) -> str:
    """A pattern that matches anywhere, as one for the whole text.

    Raises ValueError for an anchor that stands neither at its beginning nor at its end.
    """
    body = pattern.removeprefix("^")
    begins, ends = body != pattern, _ENDS.search(body) is not None
    if ends:
        body = body[:-1]
    plain = _CLASS_OR_ESCAPE.sub("", body)
    if "^" in plain or "$" in plain or re.search(r"(?<!\\)(?:\\\\)*\\[bB]", body):
        raise ValueError("an anchor within a pattern cannot be enforced")
    if (begins or ends) and _has_alternatives(plain):
        raise ValueError("anchors of single alternatives cannot be enforced")
    written: str = llguidance().regex_to_lark(body, "dw")
    return f"{'' if begins else ANY_TEXT}({written}){'' if ends else ANY_TEXT}"


def _has_alternatives(plain: str) -> bool:
    """Whether a `|` stands outside of all groups."""
    depth = 0
    for char in plain:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False
