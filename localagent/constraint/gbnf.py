"""A grammar as llama.cpp and XGrammar read it, for servers without llguidance: mostly GBNF.

It knows no intersection, no complement and no inline schema, and a text has no longest match: grammars that
need one of those are refused (`Unsupported`), never said in part. Format: llama.cpp's grammars/README.md, and
XGrammar's grammar_parser for the way in which it writes tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NoReturn

from localagent.errors import Unsupported

Dialect = Literal["gbnf", "ebnf"]
"""llama.cpp's, or XGrammar's."""

_RULE: Final = re.compile(r"(\w+): ?(.*)")
_PART: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<regex>/(?:[^/\\]|\\.)*/)
    | (?P<token><\[\d+\]>)
    | (?P<other><\[\^\d+\]>)
    | (?P<name>[A-Za-z]\w*)
    | (?P<mark>[()|*+?]|\{\d+(?:,\d*)?\})
    """,
    re.VERBOSE,
)
_PIECE: Final = re.compile(
    r"""
      (?P<class>\[\^?(?:[^\]\\]|\\.)+\])
    | (?P<any>\(\?s:\.\))
    | (?P<mark>[|)*+?]|\((?!\?)|\{\d+(?:,\d*)?\})
    | (?P<code>\\x[0-9a-fA-F]{2})
    | (?P<escaped>\\[^\w])
    | (?P<plain>[^\\.^$\[\](){}|*+?])
    """,
    re.VERBOSE,
)
_ESCAPED: Final = re.compile(r"\\(x[0-9a-fA-F]{2}(?![0-9a-fA-F])|.)")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/')
_TOKENS: Final[Mapping[Dialect, tuple[str, str]]] = {
    "gbnf": ("<[{}]>", "!<[{}]>"),
    "ebnf": ("Token({})", "ExcludeToken({})"),
}


def core(lark: str) -> str:
    """The same grammar, if XGrammar reads it. vLLM draws with that or with llguidance, and does not say with
    which: some versions end at a grammar that theirs cannot read. Raises Unsupported.
    """
    if any(mark in _QUOTED.sub("", lark) for mark in "&~"):
        raise Unsupported("XGrammar, with which a server may draw, knows no intersection of patterns")
    return lark


def gbnf(lark: str, dialect: Dialect) -> str:
    """The grammar of a turn, which is written for llguidance. `<[^7]>` in it is any token but that.

    Raises Unsupported for what GBNF cannot say.
    """
    lines = []
    for line in lark.splitlines():
        found = _RULE.fullmatch(line)
        if found is None:  # `name[lazy]`
            _refuse("text up to a marker")
        name = "root" if found[1] == "start" else found[1]
        lines.append(f"{name} ::= {_joined(_expression(found[2], dialect))}")
    return "\n".join(lines) + "\n"


def _expression(text: str, dialect: Dialect) -> Iterator[str]:
    """The parts of a rule."""
    one, other = _TOKENS[dialect]
    write: Mapping[str, Callable[[str], str]] = {
        "string": lambda said: _literal(json.loads(said)),
        "regex": lambda said: f"({_joined(_pattern(said[1:-1]))})",
        "token": lambda said: one.format(said[2:-2]),
        "other": lambda said: other.format(said[3:-2]),
        "name": str,
        "mark": str,
    }
    for kind, said in _cut(_PART, text):
        if kind != "space":
            yield write[kind](said)


def _pattern(text: str) -> Iterator[str]:
    """The parts of a regular expression."""
    write: Mapping[str, Callable[[str], str]] = {
        "class": lambda said: _ESCAPED.sub(_in_class, said),
        "any": lambda said: r"[^\x00]",
        "mark": str,
        "code": lambda said: _literal(chr(int(said[2:], 16))),
        "escaped": lambda said: _literal(said[1]),
        "plain": _literal,
    }
    for kind, said in _cut(_PIECE, text):
        yield write[kind](said)


def _cut(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = pattern.match(text, at)
        if found is None:
            _refuse(repr(text[at : at + 20]))
        assert found.lastgroup is not None
        yield found.lastgroup, found[0]
        at = found.end()


def _in_class(found: re.Match[str]) -> str:
    said = found[1]
    if said.isalnum() and len(said) == 1 and said not in "nrt":  # a class of its own, such as `\\w`
        _refuse(repr(found[0]))
    # Before a hexadecimal digit XGrammar reads `\\x1f` as part of a longer number: that is refused above.
    return found[0] if len(said) > 1 or said in '\\"nrt[]' else f"\\x{ord(said):02x}"


def _joined(parts: Iterable[str]) -> str:
    """What repeats a part stands directly behind it."""
    return "".join(part if part[0] in "*+?{" else f" {part}" for part in parts).strip()


def _literal(text: str) -> str:
    """A string of GBNF."""
    # No `\\x22`: XGrammar would read on in the hexadecimal digits that follow.
    return '"' + "".join(map(_char, text)) + '"'


def _char(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _refuse(what: str) -> NoReturn:
    raise Unsupported(
        f"a server without llguidance cannot be told {what:.60} in a grammar: start it with that"
    )
