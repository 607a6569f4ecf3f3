"""The rules of a grammar, and fixed text in them.

The language is llguidance's dialect of Lark: rules in lower case; in upper case terminals, which are
regular expressions with `&` and `~`; special tokens as `<[id]>`; JSON Schemas inline as `%json {...}`. A
rule is named by a hash of its text, so that what is written twice exists once, whichever tool it comes
from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from localagent.constraint.leaves import Trials, escaped

_LONG: Final = 10_000
"""Characters of rules that are tried before they are used."""
_NAME: Final = re.compile("[rs][0-9a-f]{16}|T[0-9A-F]{16}")


class Rules:
    """The rules written so far, by name."""

    def __init__(self) -> None:
        self.bodies: dict[str, str] = {}

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        if _NAME.fullmatch(body):
            return body
        return self._named("r", body)

    def terminal(self, body: str) -> str:
        """The name of a terminal with this body."""
        return self._named("T", body)

    def shortest(self, body: str) -> str:
        """The name of a rule with this terminal, which ends where it first matches.

        For texts of which none is the beginning of another. llguidance looks for the longest match otherwise,
        and fails on a token that follows while it looks.
        """
        return self._named("s", self.terminal(body))

    def reserve(self, key: str) -> str:
        """The name of a rule whose body comes later, since it refers to itself."""
        return "r" + _hash(key)

    def reachable(self, expressions: Iterable[str]) -> dict[str, str]:
        """The rules that these refer to, directly or not."""
        reached: dict[str, str] = {}
        waiting = list(expressions)
        while waiting:
            for name in _NAME.findall(waiting.pop()):
                if name not in reached and name in self.bodies:
                    reached[name] = self.bodies[name]
                    waiting.append(reached[name])
        return reached

    def refusal(self, expressions: Iterable[str], trials: Trials) -> str:
        """Why these, of which one is written, cannot be compiled, "" if they can. Most need not be tried."""
        expressions = list(expressions)
        needed = self.reachable(expressions)
        if sum(map(len, needed.values())) < _LONG and not any(
            "%json" in body or " & " in body for body in needed.values()
        ):
            return ""
        return trials.refusal(choice(expressions) + "\n" + definitions(needed))

    def text(self, start: str) -> str:
        """The grammar."""
        return f"start: {start}\n{definitions(self.bodies)}"

    def _named(self, prefix: str, body: str) -> str:
        name = prefix + (_hash(body).upper() if prefix == "T" else _hash(body))
        self.bodies[name] = body
        return name


def definitions(bodies: Mapping[str, str]) -> str:
    """Rules and terminals in the grammar's language."""
    return "".join(f"{name}{'[lazy]' if name[0] == 's' else ''}: {body}\n" for name, body in bodies.items())


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


class Literals:
    """Fixed text, in which markers that are tokens of the vocabulary are written as those."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        # The longest first: one may begin like another.
        words = sorted(filter(None, special), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, words)) or "(?!)")

    def only(self, words: Iterable[str]) -> Literals:
        """The same where only these are markers: between them stands a value, whose words are text."""
        return Literals({word: self._special[word] for word in words if word in self._special})

    def split(self, text: str) -> tuple[str, str]:
        """`text` up to the first token in it, and the rest."""
        hit = self._tokens.search(text)
        return (text, "") if hit is None else (text[: hit.start()], text[hit.start() :])

    def write(self, text: str) -> str:
        """`text` as part of a rule; "" for none."""
        parts = []
        while text:
            plain, rest = self.split(text)
            if plain:
                parts.append(quoted(plain))
            hit = self._tokens.match(rest)
            if hit is None:
                break
            parts.append(f"<[{self._special[hit[0]]}]>")
            text = rest[hit.end() :]
        return " ".join(parts)


def quoted(text: str) -> str:
    """`text` as a literal of the grammar."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def choice(parts: Iterable[str]) -> str:
    """Alternatives, each as a whole."""
    distinct = list(dict.fromkeys(parts))
    return distinct[0] if len(distinct) == 1 else "(" + " | ".join(distinct) + ")"


def near(tag: str) -> str:
    """A regular expression for a tag but for one edit, which a parser takes for that tag.

    A run of white space is one edit, however long.

    Two edits, which some parsers forgive in long tags, are let pass: a lexer that counts them has so many
    states that a mask takes half a second.
    """
    other = r"([^<\n]|\s+)" if re.search(r"\s", tag) else r"([^<\s]|\s+)"
    exact = edited = ""
    for char in reversed(tag[1:]):
        own = escaped(char)
        edited = f"({own}{edited}|({other}({own})?)?{exact})"
        exact = own + exact
    if tag[1] != "/":
        return f"<{edited}"
    return f"<{edited}|[\\n\\x2f]{escaped(tag[2:])}"
