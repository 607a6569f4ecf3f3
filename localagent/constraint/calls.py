"""The calls of one tool, as rules.

Where strings are quoted, an argument is its name and a value. Where they are raw text between tags, the
parser infers the type of a value from its text and the schema. So no string may be written that it would
take for something else, and what ends a value is part of its terminal.
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


@lru_cache(maxsize=1024)
def call_rules(shape: Layout, tool: str, strict: bool, special: tuple[tuple[str, int], ...]) -> Call:
    """The rules for the calls of one tool, given as JSON."""
    function = json.loads(tool)
    try:
        return _Writer(shape, function, strict, special).call()
    except RecursionError:
        reason = "its schemas nest too deeply"
        return any_arguments(shape, function["name"], strict, special, "$ref", reason)


def any_arguments(
    shape: Layout, name: str, strict: bool, special: tuple[tuple[str, int], ...], keyword: str, reason: str
) -> Call:
    """The rules for the calls of a tool whose schema is left out. Raises SchemaRefused in strict mode."""
    reader = Reader(name, None, strict)
    reader.relax("", keyword, reason)
    call = _Writer(shape, {"name": name}, strict, special).call()
    return replace(call, relaxed=tuple(reader.relaxed.values()))


def layout_text(text: str, rules: Rules, literals: Literals) -> str:
    """Fixed text of a layout as part of a rule."""
    parts = [literals.write(part) for part in text.split(INDEX)]
    number = f" {rules.terminal(_INDEX)} " if parts[1:] else ""
    return number.join(parts).strip()


class _Writer:
    """Writes the calls of one tool."""

    def __init__(
        self, shape: Layout, function: dict[str, Any], strict: bool, special: tuple[tuple[str, int], ...]
    ) -> None:
        self._shape = shape
        self._name = function["name"]
        schema = function.get("parameters") or {}
        if isinstance(schema, dict) and not isinstance(schema.get("type"), list):
            schema["type"] = "object"  # whatever it says: arguments have names
        inner = shape.values.strings
        inlines = inner.style == "quoted" and shape.strings.style == "quoted"
        closing = inner.close if inner.style == "verbatim" else ""
        self._reader = Reader(self._name, schema, strict, inlines, closing)
        self._rules, self._literals = Rules(), Literals(dict(special))
        self._values = Values(
            self._rules,
            self._reader,
            shape.values,
            self._literals,
            shape.member,
            _unwritable(shape, self._rules),
            shape.is_sorted,
        )

    def call(self) -> Call:
        """The name, and what may follow it."""
        shape, name, reader, write = self._shape, self._name, self._reader, self._text
        try:
            self._refuse_tokens(name)
            shape.dialect.render([(name, {})], shape.renderer)
        except (ValueError, Unsupported) as error:
            reader.relax("", "name", str(error))
            return Call({}, "", tuple(reader.relaxed.values()))
        lead = write(name + "".join(gap + name for gap in shape.gaps))
        bodies = [self._arguments(record) for record in self._records()]
        start = self._rules.rule(f"{lead} {choice(bodies)}")
        relaxed = tuple(reader.relaxed.values())
        return Call(self._rules.reachable([start]), start, relaxed, reader.trials.seconds)

    def _text(self, text: str) -> str:
        return layout_text(text, self._rules, self._literals)

    def _refuse_tokens(self, name: str) -> None:
        """Raise Unsupported for a name that holds the text of a token, since that would be written."""
        if self._literals.split(name)[1]:
            raise Unsupported(f"the name {name!r:.60} holds a marker of the model's vocabulary")

    def _records(self) -> list[Record]:
        """The objects that the arguments may be."""
        reader = self._reader
        options = _resolved(reader.read(reader.root, ""), reader)
        records = tuple(option for option in options if isinstance(option, Record))
        finite = [option for option in self._values.finite(records) if isinstance(option, Record)]
        if records and not finite:
            reader.relax("", "$ref", "no arguments of finite length fit it")
        return finite or [Record()]

    def _arguments(self, record: Record) -> str:
        """What follows the name in a call with these arguments."""
        shape, reader, write = self._shape, self._reader, self._text
        kinds = declared([{"name": self._name, "parameters": reader.root}])[self._name].kinds
        members = []
        for key in sorted(record.properties, key=str.lower) if shape.is_sorted else record.properties:
            kept = self._values.finite(record.properties[key])
            path = f"/properties/{escaped_step(key)}"
            if not kept and record.properties[key]:
                reader.relax(path, "$ref", "no value of finite length fits it")
                kept = ANYTHING
            if not kept:
                continue  # `false`: it may not be given
            try:
                self._refuse_tokens(key)
                written = self._by_kind(key, path, kept, kinds.get(key))
                reason = self._rules.refusal((expression for _, expression in written), reader.trials)
                if reason:
                    reader.relax(path, "size", f"it is too much to be enforced: {reason}")
                    kept = tuple(wider for option in kept for wider in KINDS[_kind(option)]) or ANYTHING
                    written = self._by_kind(key, path, kept, kinds.get(key))
                around = [(shape.argument(key, kind), expression) for kind, expression in written]
            except Unsupported as error:
                reader.relax(path, "properties", str(error))
                continue
            first = choice(f"{write(texts.first)} {expression}" for texts, expression in around)
            following = choice(f"{write(texts.next)} {expression}" for texts, expression in around)
            members.append((first, following, key in record.required))
        empty, close = write(shape.empty), write(shape.close)
        if others := self._undeclared(record):
            probe = shape.argument(PROBE_KEY, "integer")
            first, more = (
                choice(f"{write(before)} {name} {write(after)} {value}" for name, value in others)
                for before, after in (probe.first.split(PROBE_KEY), probe.next.split(PROBE_KEY))
            )
            empty = f"{first} ({more})* {close} | {empty}"
            close = f"({more})* {close}"
        return self._values.chain(members, empty, close)

    def _undeclared(self, record: Record) -> list[tuple[str, str]]:
        """Names, as terminals, and values of arguments that are not declared, where the schema asks for such.

        In raw notations there are none: such text, without a schema, would be read as whatever it looks like.
        """
        if self._shape.strings.style == "raw" or (
            record.most is not None and record.most <= len(record.properties)
        ):
            return []
        taken = " & ~/" + "|".join(map(escaped, (*record.properties, *sorted(WRAPPERS)))) + "/"
        patterns = [pattern for pattern, _ in record.patterns]
        others = []
        for matching, options in (*record.patterns, ("", record.extra or ())):
            if kept := self._values.finite(options):
                name = _NAME + taken + (f" & /{searched(matching)}/" if matching else "")
                name += "".join(f" & ~/{searched(pattern)}/" for pattern in patterns if pattern != matching)
                others.append((self._rules.terminal(name), self._rules.rule(self._values.any_of(kept))))
        return others

    def _by_kind(self, key: str, path: str, options: Options, kinds: Kinds) -> list[tuple[Kind, str]]:
        """The values of one argument, with what ends each, by the kind that decides what surrounds them.

        `kinds`: the types that the parser takes the argument to have, None for any.
        """
        shape, values = self._shape, self._values
        if shape.strings.style != "raw":
            # Quotes are part of the value, so that either may be used.
            post = self._text(shape.argument(key, "integer").post)
            return [("integer", f"{self._rules.rule(values.any_of(options))} {post}")]
        # What stands around a raw value depends on its type.
        options = expanded(tuple(_resolved(options, self._reader)))
        if not shape.is_typed and kinds is not None:
            options = _readable(options, kinds)
            if not options:
                reason = f"the dialect {shape.dialect.name} cannot write such a value"
                self._reader.relax(path, "type", reason)
                options = (Text(),)
        strings = [option for option in options if isinstance(option, Text)]
        words = [
            option.value
            for option in options
            if isinstance(option, Constant) and isinstance(option.value, str)
        ]
        writable = [word for word in words if _can_be_raw(shape, word, kinds)]
        if words and not writable:
            self._reader.relax(path, "enum", f"the dialect {shape.dialect.name} cannot write its values")
            strings.append(Text())
        post = shape.argument(key, "string").post
        unlike = "" if shape.is_typed or kinds == _STRING else f" & ~/{_value_like(kinds)}/"
        written: list[tuple[Kind, str]] = []
        if writable:
            written.append(("string", values.ending(choice(map(quoted, writable)), post)))
        for text in strings:
            written.append(("string", values.verbatim(text, "", post, unlike + _edges(shape))))
        for kind in dict.fromkeys(_kind(option) for option in options):
            if kind != "string":
                same = tuple(option for option in options if _kind(option) == kind)
                alone = shape.is_typed or not strings
                written.append((kind, self._unlike_text(key, path, kind, same, alone)))
        return written

    def _unlike_text(self, key: str, path: str, kind: Kind, options: Options, alone: bool) -> str:
        """A raw value that is no string. `alone`: no string may stand in its place."""
        post = self._shape.argument(key, kind).post
        spelled = self._values.spelling(self._shape.constants)
        if alone or kind in ("array", "object"):
            values = self._values if kind in ("array", "object") else spelled
            return f"{self._rules.rule(values.any_of(options))} {self._text(post)}"
        # The end belongs to the value: only that tells `12` from `12 Main St`.
        bounds = [
            keyword for option in options if isinstance(option, Number) for keyword in number_schema(option)
        ]
        if bounds[1:]:
            self._reader.relax(path, bounds[1], "beside a string no number is bounded")
        forms = [quoted(spelled.written(option.value)) for option in options if isinstance(option, Constant)]
        forms += [INTEGER if option.integer else NUMBER for option in options if isinstance(option, Number)]
        return self._values.ending(choice(forms), post)


def _unwritable(shape: Layout, rules: Rules) -> str:
    """A terminal for the markers and tags that no string may hold, "" for none."""
    if not shape.reserved:
        return ""
    exact = [escaped(text) for text in shape.reserved]
    exact += dict.fromkeys(escaped(torn_beginning(tag)) for tag in shape.near if tag[1] == "/")
    return rules.terminal("/" + "|".join((*exact, *map(near, shape.near))) + "/")


def _readable(options: Options, kinds: frozenset[str]) -> Options:
    """The options that the parser can read as what they are."""
    readable = []
    for option in options:
        kind = _kind(option)
        if kind in kinds or (kind == "integer" and "number" in kinds):
            readable.append(option)
        elif option == Number(False) and "integer" in kinds:
            readable.append(Number(True))
    return tuple(readable)


def _edges(shape: Layout) -> str:
    """For a terminal: how raw text may not begin or end."""
    excluded = ""
    if shape.edges:
        edge = "[" + "".join(f"\\x{ord(char):02x}" for char in shape.edges) + "]"
        excluded = f" & ~/{edge}(?s:.*)|(?s:.*){edge}/"
    if shape.near:  # in front of a tag it would be part of that
        excluded += r" & ~/(?s:.*)[^\s<]</"
    return excluded


def _resolved(options: Options, reader: Reader) -> list[Option]:
    """The options without references."""
    waiting, others, seen = list(options), list[Option](), set[str]()
    while waiting:
        match waiting.pop(0):
            case Reference(pointer):
                if pointer not in seen:
                    seen.add(pointer)
                    waiting += reader.resolve(pointer)
            case option:
                others.append(option)
    return others


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
