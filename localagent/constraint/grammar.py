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
from typing import Any, Final, cast

from localagent.constraint.layout import INDEX, PROBE_KEY, Kind, Layout, Notation, Strings, layout
from localagent.constraint.leaves import escaped, refusal, searched
from localagent.constraint.rules import INTEGER, NUMBER, Literals, Rules, Values, choice, near, quoted
from localagent.constraint.schema import (
    ANYTHING,
    DEEPEST,
    KINDS,
    Constant,
    List,
    Number,
    Option,
    Options,
    Reader,
    Record,
    Reference,
    Relaxed,
    Text,
    escaped_step,
    expanded,
    fallback,
    number_schema,
)
from localagent.errors import Unsupported, UsageError
from parsers import Dialect
from parsers.engine.tools import WRAPPERS, declared, kind_of
from parsers.literals.typed_text import STRING as _STRING
from parsers.literals.typed_text import Kinds, typed_text

__all__ = ["Grammar", "Relaxed", "block_grammar", "schema_grammar"]

_LONG: Final = 10_000
_NAME: Final = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
"""An argument's name that every dialect writes as it is."""
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
    known_tools = {_function(tool)["name"]: _function(tool) for tool in tools}
    wanted = list(known_tools) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in known_tools]:
        raise UsageError(f"no tool is named {unknown[0]!r}: there are {', '.join(known_tools) or 'none'}")
    if not wanted:
        raise UsageError("calls cannot be bounded without tools")
    known = tuple(sorted((special or {}).items()))
    calls = [_call(shape, _serial(known_tools[name]), strict, known) for name in wanted]
    rules, literals = Rules(), Literals(special or {})
    for call in calls:
        rules.bodies.update(call.rules)
    if not any(call.start for call in calls):
        raise Unsupported(
            f"{calls[0].relaxed[0].tool} cannot be called in the dialect {dialect.name}: {calls[0].relaxed[0].reason}"
        )
    one = rules.rule(choice(call.start for call in calls if call.start))
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

    def around(self, text: str, named: list[tuple[str, str]]) -> str:
        """The text in front of a value, with other names in place of the probe's, and a value for each."""
        before, after = text.split(PROBE_KEY)
        return choice(f"{self.write(before)} {name} {self.write(after)} {value}" for name, value in named)

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


@lru_cache(maxsize=1024)
def _call(shape: Layout, tool: str, strict: bool, special: tuple[tuple[str, int], ...]) -> _Call:
    """The rules for the calls of one tool, given as JSON."""
    function = json.loads(tool)
    rules, literals = Rules(), Literals(dict(special))
    inlines = shape.values.strings.style == "quoted" and shape.strings.style == "quoted"
    reader = Reader(function["name"], function.get("parameters") or {}, strict, inlines)
    values = Values(
        rules, reader, shape.values, literals, shape.member, _unwritable(shape, rules), shape.is_sorted
    )
    texts = _Texts(rules, literals)
    name = function["name"]
    try:
        shape.dialect.render([(name, {})], shape.renderer)
    except ValueError as error:
        reader.relax("", "name", str(error))
        return _Call({}, "", tuple(reader.relaxed.values()))
    lead = texts.write(name + "".join(gap + name for gap in shape.gaps))
    bodies = [_arguments(shape, record, reader, values, texts) for record in _records(reader, values)]
    start = rules.rule(f"{lead} {choice(bodies)}")
    return _Call(rules.bodies, start, tuple(reader.relaxed.values()))


def _unwritable(shape: Layout, rules: Rules) -> str:
    """A terminal for the markers and tags that no string may hold, "" for none."""
    if not shape.reserved:
        return ""
    exact = (escaped(text) for text in shape.reserved)
    return rules.terminal("/" + "|".join((*exact, *map(near, shape.near))) + "/")


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
    """What follows the name in a call with these arguments."""
    kinds = declared([{"name": reader.tool, "parameters": reader.root}])[reader.tool].kinds
    members = []
    keys = sorted(record.properties, key=str.lower) if shape.is_sorted else list(record.properties)
    for key in keys:
        kept = values.finite(record.properties[key])
        path = f"/properties/{escaped_step(key)}"
        if not kept and record.properties[key]:
            reader.relax(path, "$ref", "no value of finite length fits it")
            kept = ANYTHING
        if not kept:
            continue  # `false`: it may not be given
        try:
            written = _by_kind(shape, key, kept, values, reader, kinds.get(key), texts)
            said = _refusal(values.rules, written)
            if said:
                reader.relax(path, "size", f"it is too much to be enforced: {said}")
                kept = tuple(each for option in kept for each in KINDS[_kind(option)]) or ANYTHING
                written = _by_kind(shape, key, kept, values, reader, kinds.get(key), texts)
            first, following = [], []
            for kind, expression in written:
                around = shape.argument(key, kind)
                first.append(f"{texts.write(around.first)} {expression}")
                following.append(f"{texts.write(around.next)} {expression}")
        except Unsupported as error:
            reader.relax(path, "properties", str(error))
            continue
        members.append((choice(first), choice(following), key in record.required))
    empty, close = texts.write(shape.empty), texts.write(shape.close)
    others = _undeclared(shape, record, values)
    if others:
        around = shape.argument(PROBE_KEY, "integer")
        leading, following = (texts.around(text, others) for text in (around.first, around.next))
        empty = f"{leading} ({following})* {close} | {empty}"
        close = f"({following})* {close}"
    return values.chain(members, empty, close)


def _undeclared(shape: Layout, record: Record, values: Values) -> list[tuple[str, str]]:
    """Names, as terminals, and values of arguments that are not declared, where the schema asks for such.

    Raw text of an argument that nobody declared would be read as whatever it looks like, so there are none.
    """
    if shape.strings.style == "raw" or (record.most is not None and record.most <= len(record.properties)):
        return []
    taken = " & ~/" + "|".join(map(escaped, (*record.properties, *WRAPPERS))) + "/"
    patterns = [pattern for pattern, _ in record.patterns]
    found = []
    for matching, options in (*record.patterns, ("", record.extra or ())):
        kept = values.finite(options)
        if not kept:
            continue
        name = _NAME + taken + (f" & /{searched(matching)}/" if matching else "")
        name += "".join(f" & ~/{searched(pattern)}/" for pattern in patterns if pattern != matching)
        found.append((values.rules.terminal(name), values.rules.rule(values.any_of(kept))))
    return found


def _refusal(rules: Rules, written: list[tuple[Kind, str]]) -> str:
    """Why an argument's values cannot be compiled, "" if they can. Most need not be tried."""
    needed = rules.reachable(expression for _, expression in written)
    if not any("%json" in body or " & " in body or len(body) > _LONG for body in needed.values()):
        return ""
    return refusal(
        choice(expression for _, expression in written)
        + "\n"
        + "".join(f"{name}: {body}\n" for name, body in needed.items())
    )


def _by_kind(
    shape: Layout, key: str, options: Options, values: Values, reader: Reader, kinds: Kinds, texts: _Texts
) -> list[tuple[Kind, str]]:
    """The values of one argument, with what ends each, by the kind that decides what stands around them."""
    if shape.strings.style != "raw":
        # Quotes are part of the value, so that either may be used.
        return [
            (
                "integer",
                f"{values.rules.rule(values.any_of(options))} {texts.write(shape.argument(key, 'integer').post)}",
            )
        ]
    path = f"/properties/{escaped_step(key)}"
    flat = _resolved(options, reader)
    if not shape.is_typed and kinds is not None:
        readable = tuple(
            option
            for option in flat
            if _kind(option) in kinds or (_kind(option) == "integer" and "number" in kinds)
        )
        if "integer" in kinds and not kinds & {"number", "string"}:
            readable += tuple(Number(True) for option in flat if option == Number(False))
        if not readable:
            reader.relax(path, "type", f"the dialect {shape.dialect.name} cannot write such a value")
        flat = readable or (Text(),)
    post = shape.argument(key, "string").post
    words = [option.value for option in flat if _is_word(option)]
    strings = [option for option in flat if isinstance(option, Text)]
    others = [option for option in flat if option not in strings and not _is_word(option)]
    writable = [word for word in words if _can_be_raw(shape, word, kinds)]
    if words and not writable:
        reader.relax(path, "enum", f"the dialect {shape.dialect.name} cannot write its values")
        strings.append(Text())
    found: list[tuple[Kind, str]] = []
    if writable:
        found.append(("string", values.ending(choice(map(quoted, writable)), post)))
    unlike = "" if shape.is_typed or kinds == _STRING else f" & ~/{_value_like(kinds)}/"
    if shape.edges:
        edge = "[" + "".join(f"\\x{ord(char):02x}" for char in shape.edges) + "]"
        unlike += f" & ~/{edge}(?s:.*)|(?s:.*){edge}/"
    if shape.near:  # in front of a tag it would be part of that
        unlike += r" & ~/(?s:.*)[^\s<]</"
    for text in strings:
        found.append(("string", values.verbatim(text, "", post, unlike)))
    spelled = values.spelling(shape.constants)
    for kind in dict.fromkeys(map(_kind, others)):
        same = tuple(option for option in others if _kind(option) == kind)
        post = shape.argument(key, kind).post
        if kind in ("array", "object"):
            found.append((kind, f"{values.rules.rule(values.any_of(same))} {texts.write(post)}"))
        elif not strings or shape.is_typed:
            found.append((kind, f"{values.rules.rule(spelled.any_of(same))} {texts.write(post)}"))
        else:
            # Beside a string the end of the value belongs to it: only that tells `12` from `12 Main St`.
            bounded = next(
                (each for each in same if isinstance(each, Number) and len(number_schema(each)) > 1), None
            )
            if bounded is not None:
                reader.relax(
                    path, next(iter(list(number_schema(bounded))[1:])), "beside a string it is not bounded"
                )
            constants = [option.value for option in same if isinstance(option, Constant)]
            body = (
                choice(map(quoted, map(spelled.written, constants)))
                if constants
                else INTEGER
                if kind == "integer"
                else NUMBER
            )
            found.append((kind, values.ending(body, post)))
    return found


def _is_word(option: Option) -> bool:
    return isinstance(option, Constant) and isinstance(option.value, str)


def _resolved(options: Options, reader: Reader) -> Options:
    """The options without references: what stands around a raw value depends on its type."""
    waiting, found, seen = list(expanded(options)), [], set()
    while waiting:
        option = waiting.pop(0)
        if isinstance(option, Reference):
            if option.pointer not in seen:
                seen.add(option.pointer)
                waiting += expanded(reader.resolve(option.pointer))
        else:
            found.append(option)
    return tuple(found)


def _kind(option: Option) -> Kind:
    match option:
        case Constant(value):
            return cast("Kind", kind_of(value))
        case Number():
            return "integer" if option.integer else "number"
        case Text():
            return "string"
        case List():
            return "array"
    return "object"


def _can_be_raw(shape: Layout, word: str, kinds: Kinds) -> bool:
    """Whether a string can stand as raw text and is read as that string."""
    if any(text in word for text in shape.reserved) or word.strip(shape.edges) != word:
        return False
    return shape.is_typed or typed_text(word, kinds) == (word, False)


def _value_like(kinds: Kinds) -> str:
    """A pattern for raw text that would be read as something other than a string."""
    patterns = {
        "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
        "boolean": "[Tt]rue|[Ff]alse",
        "null": "null|None",
        "array": r"\[(?s:.*)",
        "object": r"\{(?s:.*)",
    }
    patterns["integer"] = patterns["number"]
    wanted = [pattern for kind, pattern in patterns.items() if kinds is None or kind in kinds]
    return r"[\s\x1c-\x1f]*(" + "|".join(dict.fromkeys(wanted)) + r")[\s\x1c-\x1f]*"
