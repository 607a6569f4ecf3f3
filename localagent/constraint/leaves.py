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

from localagent.constraint.matching import llguidance, trial

ANY_TEXT: Final = "(?s:.*)"
LONGEST_PATTERN: Final = 10_000
LARGEST_PATTERN: Final = 10_000
"""Characters that the patterns of a schema force: they are written out before the first mask."""
MOST_TRIALS: Final = 64
"""Patterns and bounds in one tool: each is compiled, which takes some milliseconds."""
MOST_SECONDS: Final = 2.0
"""Seconds of processor time for all trials of one tool."""
_LONG: Final = 10_000
"""Characters of a rule whose trial is not kept."""
_LOOK_AROUND: Final = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:[=!]|<[=!])")
_ENDS: Final = re.compile(r"(?<!\\)(?:\\\\)*\$\Z")
_PLACE: Final = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/|<\[\d+\]>')
"""A token of the model's vocabulary in a rule, or what is passed over: texts and regular expressions."""
# A class without an end goes on to the end of the pattern: looked for from each `[`, it takes quadratic time.
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\])*\]?"
_REPEATED: Final = re.compile(rf"\\[pP]\{{\w*\}}|\\.|{_CLASS}|\{{(\d+)(?:,\d*)?\}}|.", re.DOTALL)
_CLASS_OR_ESCAPE: Final = re.compile(rf"\\.|{_CLASS}", re.DOTALL)


def escaped(text: str) -> str:
    """A regular expression for `text` alone."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}" for char in text)


def inline(schema: Mapping[str, Any]) -> str:
    """A schema as the body of a rule, for llguidance to write as JSON without white space."""
    options = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


class Trials:
    """Tries what the grammar of one tool is made of, within a time, a number and a size."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of processor time, so far."""
        self._sizes: dict[str, int] = {}
        """The characters that each pattern or bounded number forces."""

    def refusal(self, body: str) -> str:
        """Why a rule or a terminal with this body cannot be used, "" if it can.

        That may come out only when a value is written: with the bounds 0.25 and 0.35 and multiples of 0.1,
        0.3 fits, but llguidance cannot write it.
        """
        if self.seconds > MOST_SECONDS:
            return f"trying the parts of the schema takes more than {MOST_SECONDS} s"
        reason, seconds = _refusal(body) if len(body) < _LONG else _refusal.__wrapped__(body)
        self.seconds += seconds
        return reason

    def unusable_number(self, body: str) -> str:
        """Why a number within these bounds cannot be enforced, "" if it can."""
        return self._beyond(body, 0) or self.refusal(body)

    def unusable_pattern(self, pattern: Any, inlined: bool) -> str:
        """Why a pattern cannot be enforced, "" if it can. `inlined`: within `%json`, not as a terminal."""
        text = str(pattern)
        if len(text) <= LONGEST_PATTERN and (reason := self._beyond(text, least_size(text))):
            return reason
        if not isinstance(pattern, str):
            return f"{pattern!r:.40} is no regular expression"
        if len(pattern) > LONGEST_PATTERN:
            return f"it has more than {LONGEST_PATTERN:,} characters"
        if _LOOK_AROUND.search(pattern):
            return "look-around cannot be enforced"
        try:
            written = inline({"type": "string", "pattern": pattern}) if inlined else f"/{searched(pattern)}/"
        except ValueError as error:
            return str(error)
        reason = self.refusal(written)
        return reason and f"it cannot be enforced: {reason}"

    def _beyond(self, tried: str, size: int) -> str:
        """Why a pattern or a bounded number is more than one schema may have, "" if it is not. `size`: the
        characters that it forces.
        """
        others = {known: size for known, size in self._sizes.items() if known != tried}
        if len(others) == MOST_TRIALS:
            return f"the schema has more than {MOST_TRIALS} patterns and bounded numbers"
        if sum(others.values()) + size > LARGEST_PATTERN:
            return f"it forces {size:,} characters or more, and a schema may have {LARGEST_PATTERN:,}"
        self._sizes[tried] = size
        return ""


@lru_cache(maxsize=4096)
def _refusal(body: str) -> tuple[str, float]:
    # It is tried on bytes, of which none is a token of the model's vocabulary.
    plain = _TOKEN.sub(lambda hit: '"\\u0001"' if hit[0][0] == "<" else hit[0], body)
    answer, seconds = trial(f"start: value\nvalue: {plain}\n")
    # It repeats the grammar behind the reason, and a regular expression before.
    reason = _PLACE.sub("", " ".join(answer.split()).partition(" 1 | start:")[0])
    return reason.rpartition("error: ")[2][:200], seconds


def least_size(pattern: str) -> int:
    """About how many characters the shortest text has that a pattern matches, in one pass over the pattern.

    Of alternatives all are counted: each of them is compiled.
    """
    groups, last = [0], 0  # the sizes of the open groups so far, and that of what comes last in the innermost
    for hit in _REPEATED.finditer(pattern):
        if hit[1] is not None:
            groups[-1] += last * (int(hit[1][:9]) - 1)
            last *= int(hit[1][:9])
        elif hit[0] in ("*", "?"):
            groups[-1], last = groups[-1] - last, 0
        elif hit[0] == "(":
            groups.append(0)
        elif hit[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif hit[0] not in ("^", "$", "|", "+"):
            last = 1
            groups[-1] += 1
    return sum(groups)


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
