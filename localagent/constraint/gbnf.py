"""A grammar as llama.cpp and XGrammar read it, for servers without llguidance: mostly GBNF.

It knows no intersection, no complement and no inline schema, and a text has no longest match: grammars that
need one of those are refused (`Unsupported`), never written in part. Format: llama.cpp's
grammars/README.md, and XGrammar's grammar_parser for the way in which it writes tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
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
    rules = []
    for line in lark.splitlines():
        rule = _RULE.fullmatch(line)
        if rule is None:  # `name[lazy]`
            _refuse("text up to a marker")
        name, body = rule.groups()
        rules.append(f"{'root' if name == 'start' else name} ::= {_joined(_expression(body, dialect))}\n")
    return "".join(rules)


def _expression(text: str, dialect: Dialect) -> Iterator[str]:
    """The parts of a rule."""
    one, other = _TOKENS[dialect]
    for kind, part in _cut(_PART, text):
        match kind:
            case "space":
                continue
            case "string":
                yield _literal(json.loads(part))
            case "regex":
                yield f"({_joined(_pattern(part[1:-1]))})"
            case "token":
                yield one.format(part[2:-2])
            case "other":
                yield other.format(part[3:-2])
            case _:
                yield part


def _pattern(text: str) -> Iterator[str]:
    """The parts of a regular expression."""
    for kind, part in _cut(_PIECE, text):
        match kind:
            case "class":
                yield _ESCAPED.sub(_in_class, part)
            case "any":
                yield r"[^\x00]"
            case "code":
                yield _literal(chr(int(part[2:], 16)))
            case "escaped":
                yield _literal(part[1])
            case "plain":
                yield _literal(part)
            case _:
                yield part


def _cut(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """The parts of a text, each with the name of the group that it matches."""
    start = 0
    while start < len(text):
        part = pattern.match(text, start)
        if part is None:
            _refuse(repr(text[start : start + 20]))
        assert part.lastgroup is not None
        yield part.lastgroup, part[0]
        start = part.end()


def _in_class(escape: re.Match[str]) -> str:
    code = escape[1]
    if code.isalnum() and len(code) == 1 and code not in "nrt":  # a class of its own, such as `\\w`
        _refuse(repr(escape[0]))
    # Before a hexadecimal digit XGrammar reads `\\x1f` as part of a longer number: that is refused above.
    return escape[0] if len(code) > 1 or code in '\\"nrt[]' else f"\\x{ord(code):02x}"


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
