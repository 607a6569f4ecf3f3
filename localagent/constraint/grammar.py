"""From a dialect and tools, or from a JSON Schema, to a grammar for llguidance.

    (dialect, tools) --layout, schema, calls--> Grammar(text, relaxed) --matching--> Matcher

One tool's schema never touches another tool: each is read, written and tried on its own. What of it cannot be
held while the model writes is left out and named in `Grammar.relaxed`; in strict mode it is an error instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from localagent.constraint.calls import Call, Texts, any_arguments, call_rules
from localagent.constraint.layout import Notation, Strings, layout
from localagent.constraint.merging import DEEPEST
from localagent.constraint.options import fallback
from localagent.constraint.rules import Literals, Rules, choice
from localagent.constraint.schema import Reader, Relaxed
from localagent.constraint.values import Values
from localagent.errors import Unsupported, UsageError
from parsers import Dialect

__all__ = ["Grammar", "Relaxed", "block_grammar", "schema_grammar"]

MOST_SECONDS: Final = 6.0
"""Seconds of processor time for the trials of all tools."""
_JSON: Final = Notation(
    Strings("quoted", '"', '"'), {True: "true", False: "false", None: "null"}, ", ", ": ", has_bare=False
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's Lark, and what of the schemas it does not hold."""

    text: str
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

    Several blocks, where the dialect writes one call to a block and `parallel` is set. `names`: only these
    tools. `special`: id by text of the tokens that the vocabulary holds whole. `renderer`: the dialect's
    notation, by default its first. The rule `opener` is the marker alone, "" where the dialect has none, and
    `inside` all that follows it.

    Raises GrammarMissing, Unsupported for a dialect without calls, UsageError for a name that is not
    declared, and, if `strict`, SchemaRefused.
    """
    shape = layout(dialect, renderer)
    known_tools = {_function(tool)["name"]: _function(tool) for tool in tools}
    wanted = list(known_tools) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in known_tools]:
        raise UsageError(f"no tool is named {unknown[0]!r}: there are {', '.join(known_tools) or 'none'}")
    if not wanted:
        raise UsageError("calls cannot be bounded without tools")
    known = tuple(sorted((special or {}).items()))
    calls = list[Call]()
    for name in wanted:
        if sum(call.seconds for call in calls) > MOST_SECONDS:
            said = f"trying the parts of the tools before it took more than {MOST_SECONDS} s"
            calls.append(any_arguments(shape, name, strict, known, "size", said))
        else:
            calls.append(call_rules(shape, _serial(known_tools[name]), strict, known))
    rules, literals = Rules(), Literals(special or {})
    for call in calls:
        rules.bodies.update(call.rules)
    if not any(call.start for call in calls):
        first = calls[0].relaxed[0]
        raise Unsupported(f"{first.tool} cannot be called in the dialect {dialect.name}: {first.reason}")
    one = rules.rule(choice(call.start for call in calls if call.start))
    texts = Texts(rules, literals)
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
    read = reader.read(reader.root, "")
    options = values.finite(read)
    if not options:  # `false` allows what {"not": {}} does
        reader.relax("", "$ref" if read else "not", "no value of finite length fits it")
        options = fallback(schema)
    try:
        start = values.any_of(options)
    except RecursionError:
        reader.relax("", "$ref", "its schemas nest too deeply")
        start = values.any_of(fallback(schema))
    if said := rules.refusal([start], reader.trials):
        reader.relax("", "size", f"it is too much to be enforced: {said}")
        start = values.any_of(fallback(schema))
    return Grammar(rules.text(start), tuple(reader.relaxed.values()))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function


def _serial(function: Mapping[str, Any]) -> str:
    """A tool as JSON, by which its rules are kept; without what is nested deeper than anything is read."""
    try:
        return json.dumps(function)
    except RecursionError:
        return json.dumps(_shallow(function, 4 * DEEPEST))


def _shallow(value: Any, depth: int) -> Any:
    if not depth:
        return True
    if isinstance(value, Mapping):
        return {key: _shallow(inner, depth - 1) for key, inner in value.items()}
    return [_shallow(inner, depth - 1) for inner in value] if isinstance(value, list) else value


def _json_member(key: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: "
