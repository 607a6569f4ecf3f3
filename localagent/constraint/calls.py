"""The calls of one tool, as rules.

Where strings are quoted, an argument is its name and a value. Where they are raw text between tags, the
parser tells by what stands there of what type it is, with the help of the schema: so no string may be
written that it would take for something else, and what ends a value is part of its terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast

from localagent.constraint.layout import INDEX, PROBE_KEY, Kind, Layout
from localagent.constraint.leaves import escaped, searched
from localagent.constraint.options import (
    ANYTHING,
    KINDS,
    Constant,
    List,
    Number,
    Option,
    Options,
    Record,
    Reference,
    Text,
    expanded,
    number_schema,
)
from localagent.constraint.rules import Literals, Rules, choice, near, quoted
from localagent.constraint.schema import Reader, Relaxed, escaped_step
from localagent.constraint.values import INTEGER, NUMBER, Values
from localagent.errors import Unsupported
from localagent.parsers.engine.tools import WRAPPERS, declared, kind_of
from localagent.parsers.literals.near import torn_beginning
from localagent.parsers.literals.typed_text import STRING as _STRING
from localagent.parsers.literals.typed_text import Kinds, typed_text

_NAME: Final = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
"""An argument's name that every dialect writes as it is."""
_INDEX: Final = "/0|[1-9][0-9]{0,5}/"


@dataclass(frozen=True, slots=True)
class Call:
    """The calls of one tool: the rules, the name of the one that stands for a call, what was relaxed, and the
    seconds of processor time that trials took.
    """

    rules: Mapping[str, str]
    start: str
    relaxed: tuple[Relaxed, ...]
    seconds: float = 0.0


class Texts:
    """Fixed text of a layout."""

    def __init__(self, rules: Rules, literals: Literals) -> None:
        self._rules = rules
        self._literals = literals

    def around(self, text: str, named: list[tuple[str, str]]) -> str:
        """The text in front of a value, with other names in place of the probe's, and a value for each."""
        before, after = text.split(PROBE_KEY)
        return choice(f"{self.write(before)} {name} {self.write(after)} {value}" for name, value in named)

    def refuse_tokens(self, name: str) -> None:
        """Raise Unsupported for a name that holds the text of a token, since that would be written."""
        if self._literals.split(name)[1]:
            raise Unsupported(f"the name {name!r:.60} holds a marker of the model's vocabulary")

    def write(self, text: str) -> str:
        """`text` as part of a rule."""
        parts = []
        for number, part in enumerate(text.split(INDEX)):
            if number:
                parts.append(self._rules.terminal(_INDEX))
            parts.append(self._literals.write(part))
        return " ".join(filter(None, parts))


@lru_cache(maxsize=1024)
def call_rules(shape: Layout, tool: str, strict: bool, special: tuple[tuple[str, int], ...]) -> Call:
    """The rules for the calls of one tool, given as JSON."""
    function = json.loads(tool)
    try:
        return _written(shape, function, strict, special)
    except RecursionError:
        said = "its schemas nest too deeply"
        return any_arguments(shape, function["name"], strict, special, "$ref", said)


def any_arguments(
    shape: Layout, name: str, strict: bool, special: tuple[tuple[str, int], ...], keyword: str, reason: str
) -> Call:
    """The rules for the calls of a tool whose schema is left out. Raises SchemaRefused in strict mode."""
    reader = Reader(name, None, strict)
    reader.relax("", keyword, reason)
    return replace(_written(shape, {"name": name}, strict, special), relaxed=tuple(reader.relaxed.values()))


def _written(
    shape: Layout, function: dict[str, Any], strict: bool, special: tuple[tuple[str, int], ...]
) -> Call:
    rules, literals = Rules(), Literals(dict(special))
    inlines = shape.values.strings.style == "quoted" and shape.strings.style == "quoted"
    schema = function.get("parameters") or {}
    if isinstance(schema, dict) and not isinstance(schema.get("type"), list):
        schema["type"] = "object"  # whatever it says: arguments have names
    closing = shape.values.strings.close if shape.values.strings.style == "verbatim" else ""
    reader = Reader(function["name"], schema, strict, inlines, closing)
    values = Values(
        rules, reader, shape.values, literals, shape.member, _unwritable(shape, rules), shape.is_sorted
    )
    texts = Texts(rules, literals)
    name = function["name"]
    try:
        texts.refuse_tokens(name)
        shape.dialect.render([(name, {})], shape.renderer)
    except (ValueError, Unsupported) as error:
        reader.relax("", "name", str(error))
        return Call({}, "", tuple(reader.relaxed.values()))
    lead = texts.write(name + "".join(gap + name for gap in shape.gaps))
    bodies = [_arguments(shape, record, reader, values, texts) for record in _records(reader, values)]
    start = rules.rule(f"{lead} {choice(bodies)}")
    relaxed = tuple(reader.relaxed.values())
    return Call(rules.reachable([start]), start, relaxed, reader.trials.seconds)


def _unwritable(shape: Layout, rules: Rules) -> str:
    """A terminal for the markers and tags that no string may hold, "" for none."""
    if not shape.reserved:
        return ""
    exact = [escaped(text) for text in shape.reserved]
    exact += dict.fromkeys(escaped(torn_beginning(tag)) for tag in shape.near if tag[1] == "/")
    return rules.terminal("/" + "|".join((*exact, *map(near, shape.near))) + "/")


def _records(reader: Reader, values: Values) -> list[Record]:
    """The objects that a call's arguments may be."""
    waiting, found = list(reader.read(reader.root, "")), []
    seen: set[str] = set()
    while waiting:
        match waiting.pop(0):
            case Reference(pointer) if pointer not in seen:
                seen.add(pointer)
                waiting += reader.resolve(pointer)
            case Record() as record:
                found.append(record)
    finite = [option for option in values.finite(tuple(found)) if isinstance(option, Record)]
    if found and not finite:
        reader.relax("", "$ref", "no arguments of finite length fit it")
    return finite or [Record()]


def _arguments(shape: Layout, record: Record, reader: Reader, values: Values, texts: Texts) -> str:
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
            texts.refuse_tokens(key)
            written = _by_kind(shape, key, kept, values, reader, kinds.get(key), texts)
            said = values.rules.refusal((expression for _, expression in written), reader.trials)
            if said:
                reader.relax(path, "size", f"it is too much to be enforced: {said}")
                kept = tuple(each for option in kept for each in KINDS[_kind(option)]) or ANYTHING
                written = _by_kind(shape, key, kept, values, reader, kinds.get(key), texts)
            first: list[str] = []
            following: list[str] = []
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
        leading, more = (texts.around(text, others) for text in (around.first, around.next))
        empty = f"{leading} ({more})* {close} | {empty}"
        close = f"({more})* {close}"
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


def _by_kind(
    shape: Layout, key: str, options: Options, values: Values, reader: Reader, kinds: Kinds, texts: Texts
) -> list[tuple[Kind, str]]:
    """The values of one argument, with what ends each, by the kind that decides what stands around them.

    `kinds`: the types that the parser takes the argument to have, None for any.
    """
    if shape.strings.style != "raw":
        # Quotes are part of the value, so that either may be used.
        post = texts.write(shape.argument(key, "integer").post)
        return [("integer", f"{values.rules.rule(values.any_of(options))} {post}")]
    path = f"/properties/{escaped_step(key)}"
    flat = _resolved(options, reader)
    if not shape.is_typed and kinds is not None:
        flat = _readable(flat, kinds)
        if not flat:
            reader.relax(path, "type", f"the dialect {shape.dialect.name} cannot write such a value")
            flat = (Text(),)
    strings = [option for option in flat if isinstance(option, Text)]
    words = [
        option.value for option in flat if isinstance(option, Constant) and isinstance(option.value, str)
    ]
    writable = [word for word in words if _can_be_raw(shape, word, kinds)]
    if words and not writable:
        reader.relax(path, "enum", f"the dialect {shape.dialect.name} cannot write its values")
        strings.append(Text())
    post = shape.argument(key, "string").post
    unlike = "" if shape.is_typed or kinds == _STRING else f" & ~/{_value_like(kinds)}/"
    found: list[tuple[Kind, str]] = []
    if writable:
        found.append(("string", values.ending(choice(map(quoted, writable)), post)))
    for text in strings:
        found.append(("string", values.verbatim(text, "", post, unlike + _edges(shape))))
    for kind in dict.fromkeys(_kind(option) for option in flat):
        if kind != "string":
            same = tuple(option for option in flat if _kind(option) == kind)
            is_alone = shape.is_typed or not strings
            found.append((kind, _unlike_text(shape, key, kind, same, is_alone, values, reader, texts)))
    return found


def _unlike_text(
    shape: Layout,
    key: str,
    kind: Kind,
    options: Options,
    is_alone: bool,
    values: Values,
    reader: Reader,
    texts: Texts,
) -> str:
    """A raw value that is no string. `is_alone`: no string may stand in its place."""
    post = shape.argument(key, kind).post
    spelled = values.spelling(shape.constants)
    if kind in ("array", "object"):
        return f"{values.rules.rule(values.any_of(options))} {texts.write(post)}"
    if is_alone:
        return f"{values.rules.rule(spelled.any_of(options))} {texts.write(post)}"
    # The end belongs to the value: only that tells `12` from `12 Main St`.
    bounds = [
        keyword for option in options if isinstance(option, Number) for keyword in number_schema(option)
    ]
    if bounds[1:]:
        reader.relax(f"/properties/{escaped_step(key)}", bounds[1], "beside a string no number is bounded")
    forms = [quoted(spelled.written(option.value)) for option in options if isinstance(option, Constant)]
    forms += [INTEGER if option.integer else NUMBER for option in options if isinstance(option, Number)]
    return values.ending(choice(forms), post)


def _readable(options: Options, kinds: frozenset[str]) -> Options:
    """The options that the parser can read as what they are."""
    found = []
    for option in options:
        kind = _kind(option)
        if kind in kinds or (kind == "integer" and "number" in kinds):
            found.append(option)
        elif option == Number(False) and "integer" in kinds:
            found.append(Number(True))
    return tuple(found)


def _edges(shape: Layout) -> str:
    """For a terminal: how raw text may not begin or end."""
    found = ""
    if shape.edges:
        edge = "[" + "".join(f"\\x{ord(char):02x}" for char in shape.edges) + "]"
        found = f" & ~/{edge}(?s:.*)|(?s:.*){edge}/"
    if shape.near:  # in front of a tag it would be part of that
        found += r" & ~/(?s:.*)[^\s<]</"
    return found


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
