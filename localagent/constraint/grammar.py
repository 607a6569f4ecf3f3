"""From a dialect and tools, or from a JSON Schema, to a grammar for llguidance.

    (dialect, tools) --layout, schema, calls--> Grammar(text, relaxed) --matching--> Matcher

One tool's schema never touches another tool: each is read, written and tried on its own. What it asks for
and cannot be held while the model writes is left out and named in `Grammar.relaxed`; in strict mode it is an
error instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from localagent.constraint.calls import Call, any_arguments, call_rules, layout_text
from localagent.constraint.layout import Notation, Strings, layout
from localagent.constraint.merging import DEEPEST
from localagent.constraint.options import fallback
from localagent.constraint.rules import Literals, Rules, choice, quoted
from localagent.constraint.schema import Reader, Relaxed
from localagent.constraint.values import Values
from localagent.errors import Unsupported, UsageError
from localagent.parsers import Dialect
from localagent.parsers.engine.tools import declared

__all__ = ["Grammar", "Relaxed", "block_grammar", "schema_grammar"]

MOST_SECONDS: Final = 6.0
"""Seconds of processor time for the trials of all tools."""
_JSON: Final = Notation(
    Strings("quoted", '"', '"'), {True: "true", False: "false", None: "null"}, ", ", ": ", has_bare=False
)
_SPACED: Final = replace(_JSON, comma=",", colon=":", gap=r"[ \t\r\n]{1,64}")
"""JSON in whatever white space the model is used to."""


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
    ends: Sequence[int] = (),
    bare: bool = False,
) -> Grammar:
    """A whole block of calls, from the marker that opens it to what closes it, both included.

    Several blocks, where the dialect writes one call to a block and `parallel` is set. `names`: only these
    tools. `special`: id by text of the tokens that the vocabulary holds whole. `renderer`: the dialect's
    notation, by default its first. `ends`: the tokens that end a turn; one of them may come where the parser
    takes that for the end of the block. `bare`: or one call without its marker, as models write it that do
    not follow their template: a JSON object, in any white space, the name first, or the dialect's own. The
    rule `opener` is the marker alone, "" where the dialect has none, and `inside` all that follows it.

    Raises GrammarMissing, Unsupported for a dialect without calls, UsageError for a name that is not
    declared, and, if `strict`, SchemaRefused.
    """
    functions = {function["name"]: function for function in map(_function, tools)}
    wanted = list(functions) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in functions]:
        raise UsageError(f"no tool is named {unknown[0]!r}: there are {', '.join(functions) or 'none'}")
    if not wanted:
        raise UsageError("calls cannot be bounded without tools")
    shape, tokens, seconds = layout(dialect, renderer), special or {}, 0.0
    known, calls = tuple(sorted(tokens.items())), list[Call]()
    for name in wanted:
        if seconds > MOST_SECONDS:
            reason = f"trying the parts of the tools before it took more than {MOST_SECONDS} s"
            calls.append(any_arguments(shape, name, strict, known, "size", reason))
        else:
            calls.append(call_rules(shape, _serial(functions[name]), strict, known))
        seconds += calls[-1].seconds
    relaxed = [reason for call in calls for reason in call.relaxed]
    if not any(call.start for call in calls):
        first = relaxed[0]
        raise Unsupported(f"{first.tool} cannot be called in the dialect {dialect.name}: {first.reason}")
    rules = Rules()
    write = partial(layout_text, rules=rules, literals=Literals(tokens))
    for call in calls:
        rules.bodies.update(call.rules)
    one = rules.rule(choice(call.start for call in calls if call.start))
    joins = [write(text) for text in (shape.between, shape.again) if text is not None]
    more = f"({choice(joins)} {one})*" if parallel and joins else ""
    closings = [write(shape.tail) or '""']
    if ends:
        cuts = [cut for cut in shape.cuts if more or len(cut) < len(shape.tail)]
        closings += [f"{write(cut)} <[{','.join(map(str, ends))}]>" for cut in cuts]
    rules.bodies["inside"] = f"{write(shape.head)} {one} {more} {choice(closings)}"
    rules.bodies["opener"] = write(shape.opener) or '""'
    starts = ["opener inside" if shape.opener else "inside"]
    if bare:
        objects = list[str]()
        for name in wanted:
            written, reader = _object(rules, functions[name], strict, spent=seconds > MOST_SECONDS)
            objects.append(written)
            relaxed += reader.relaxed.values()
            seconds += reader.trials.seconds
        starts.append(choice(objects))
        if shape.unmarked is not None:
            starts.append(f"{write(shape.unmarked)} {one}")
    return Grammar(rules.text(" | ".join(starts)), tuple(dict.fromkeys(relaxed)))


def _object(rules: Rules, function: Mapping[str, Any], strict: bool, spent: bool) -> tuple[str, Reader]:
    """The rule for a call of one tool as an object, and what read the schema. `spent`: there is no time left
    to try that.
    """
    gap = f"{rules.terminal(f'/{_SPACED.gap}/')}?"
    schema = (not spent and function.get("parameters")) or {}
    if isinstance(schema, dict) and not isinstance(schema.get("type"), list):
        schema = {**schema, "type": "object"}
        if declared([{**function, "parameters": schema}])[function["name"]].closed:
            schema["additionalProperties"] = False  # as the parser has it, also where no property is declared
    arguments, reader = _json(rules, function["name"], schema, strict, _SPACED)
    parts = ['"{"', '"\\"name\\""', '":"', quoted(json.dumps(function["name"])), '","']
    parts += ['("\\"arguments\\"" | "\\"parameters\\"")', '":"', arguments, '"}"']
    return rules.rule(f" {gap} ".join(parts)), reader


def schema_grammar(schema: Any = None, strict: bool = True, name: str = "response_format") -> Grammar:
    """JSON that fits `schema`; any JSON object without one. Raises GrammarMissing and SchemaRefused."""
    rules = Rules()
    start, reader = _json(rules, name, {"type": "object"} if schema is None else schema, strict, _JSON)
    return Grammar(rules.text(start), tuple(reader.relaxed.values()))


def _json(rules: Rules, name: str, schema: Any, strict: bool, notation: Notation) -> tuple[str, Reader]:
    """The rule for JSON that fits `schema`, and what read that."""
    reader = Reader(name, schema, strict)

    def member(key: str) -> str:
        return json.dumps(key, ensure_ascii=False) + notation.colon

    values = Values(rules, reader, notation, Literals({}), member)
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
    if reason := rules.refusal([start], reader.trials):
        reader.relax("", "size", f"it is too much to be enforced: {reason}")
        start = values.any_of(fallback(schema))
    return start, reader


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
