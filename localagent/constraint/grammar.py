"""From a dialect and tools, or from a JSON Schema, to a grammar for llguidance.

    (dialect, tools) --layout, schema, rules--> Grammar(text, relaxed) --matching--> Matcher

One tool's schema never touches another tool: each is read, written and tried on its own. What of it cannot be held
while the model writes is left out and named in `Grammar.relaxed`; in strict mode it is an error instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from localagent.constraint.layout import INDEX, Layout, Notation, Strings, layout
from localagent.constraint.rules import Literals, Rules, Values, choice
from localagent.constraint.schema import (
    Options,
    Reader,
    Record,
    Reference,
    Relaxed,
    fallback,
)
from localagent.errors import UsageError
from parsers import Dialect

__all__ = ["Grammar", "Relaxed", "block_grammar", "schema_grammar"]

_INDEX: Final = "/0|[1-9][0-9]{0,5}/"
_JSON: Final = Notation(
    Strings("quoted", '"', '"'), {True: "true", False: "false", None: "null"}, ", ", ": ", has_bare=False
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's Lark, and what of the schemas it does not hold."""

    text: str
    relaxed: tuple[Relaxed, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """The calls of one tool: the rules, the name of the one that stands for a call, what was relaxed."""

    rules: Mapping[str, str]
    start: str
    relaxed: tuple[Relaxed, ...]


def block_grammar(
    dialect: Dialect,
    tools: Sequence[Mapping[str, Any]],
    names: Iterable[str] | None = None,
    parallel: bool = True,
    strict: bool = False,
    special: Mapping[str, int] | None = None,
    renderer: str | None = None,
) -> Grammar:
    """A whole block of calls, from the marker that opens it up to and with what closes it.

    Several blocks, where the dialect writes one call to a block and `parallel` is set. `names`: only these tools.
    `special`: id by text of the tokens that the vocabulary holds whole. `renderer`: the dialect's notation, by
    default its first. The rule `opener` is the marker alone, "" where the dialect has none, and `inside` all
    that follows it.

    Raises GrammarMissing, Unsupported for a dialect without calls, UsageError for a name that is not declared,
    and, if `strict`, SchemaRefused.
    """
    shape = layout(dialect, renderer)
    declared = {_function(tool)["name"]: _function(tool) for tool in tools}
    wanted = list(declared) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in declared]:
        raise UsageError(f"no tool is named {unknown[0]!r}: there are {', '.join(declared) or 'none'}")
    if not wanted:
        raise UsageError("calls cannot be bounded without tools")
    known = tuple(sorted((special or {}).items()))
    calls = [_call(shape, json.dumps(declared[name]), strict, known) for name in wanted]
    rules, literals = Rules(), Literals(special or {})
    for call in calls:
        rules.bodies.update(call.rules)
    one = rules.rule(choice(call.start for call in calls))
    texts = _Texts(rules, literals)
    more = f"({texts.write(shape.between)} {one})*" if parallel and shape.between is not None else ""
    rules.bodies["inside"] = f"{texts.write(shape.head)} {one} {more} {texts.write(shape.tail)}"
    rules.bodies["opener"] = texts.write(shape.opener) or '""'
    start = "opener inside" if shape.opener else "inside"
    return Grammar(rules.text(start), tuple(found for call in calls for found in call.relaxed))


def schema_grammar(schema: Any = None, strict: bool = True, name: str = "response_format") -> Grammar:
    """JSON that fits `schema`; any JSON object without one. Raises GrammarMissing and SchemaRefused."""
    reader = Reader(name, {"type": "object"} if schema is None else schema, strict)
    rules = Rules()
    values = Values(rules, reader, _JSON, Literals({}), _json_member)
    options = values.finite(reader.read(reader.root, ""))
    if not options:
        reader.relax("", "$ref", "no value fits it")
        options = fallback(schema)
    start = values.any_of(options)
    return Grammar(rules.text(start), tuple(reader.relaxed.values()))


class _Texts:
    """Fixed text of a layout."""

    def __init__(self, rules: Rules, literals: Literals) -> None:
        self._rules = rules
        self._literals = literals

    def write(self, text: str) -> str:
        parts = []
        for number, part in enumerate(text.split(INDEX)):
            if number:
                parts.append(self._rules.terminal(_INDEX))
            parts.append(self._literals.write(part))
        return " ".join(filter(None, parts))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function


def _json_member(key: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: "


@lru_cache(maxsize=1024)
def _call(shape: Layout, tool: str, strict: bool, special: tuple[tuple[str, int], ...]) -> _Call:
    """The rules for the calls of one tool, given as JSON."""
    function = json.loads(tool)
    rules, literals = Rules(), Literals(dict(special))
    reader = Reader(function["name"], function.get("parameters") or {}, strict)
    values = Values(rules, reader, shape.values, literals, shape.member, shape.reserved, shape.is_sorted)
    texts = _Texts(rules, literals)
    name = function["name"]
    lead = texts.write(name + "".join(gap + name for gap in shape.gaps))
    bodies = [_arguments(shape, record, reader, values, texts) for record in _records(reader, values)]
    start = rules.rule(f"{lead} {choice(bodies)}")
    return _Call(rules.bodies, start, tuple(reader.relaxed.values()))


def _records(reader: Reader, values: Values) -> list[Record]:
    """The objects that a call's arguments may be."""
    waiting, found, seen = list(reader.read(reader.root, "")), [], set()
    while waiting:
        option = waiting.pop(0)
        match option:
            case Reference(pointer) if pointer not in seen:
                seen.add(pointer)
                waiting += reader.resolve(pointer)
            case Record():
                found.append(option)
    finite = values.finite(tuple(found))
    return [option for option in finite if isinstance(option, Record)] or [Record()]


def _arguments(shape: Layout, record: Record, reader: Reader, values: Values, texts: _Texts) -> str:
    members = []
    keys = sorted(record.properties, key=str.lower) if shape.is_sorted else list(record.properties)
    for key in keys:
        kept = values.finite(record.properties[key])
        if not kept:
            continue
        first, following = [], []
        for kind, expression in _by_kind(shape, key, kept, values):
            around = shape.argument(key, kind)
            post = "" if kind == "string" else texts.write(around.post)
            first.append(f"{texts.write(around.first)} {expression} {post}")
            following.append(f"{texts.write(around.next)} {expression} {post}")
        members.append((choice(first), choice(following), key in record.required))
    return values.chain(members, texts.write(shape.empty), texts.write(shape.close))


def _by_kind(shape: Layout, key: str, options: Options, values: Values) -> list[tuple[Any, str]]:
    return [("integer", values.rules.rule(values.any_of(options)))]
