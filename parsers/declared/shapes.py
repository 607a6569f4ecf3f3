"""How calls are written, according to a `response_template`: where their name and their arguments stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..patterns import ANY, Group, OneOf, Pattern, Repeat, Row
from .checks import Checks

PARSERS: Mapping[str, tuple[str, ...]] = {
    "text": ("strip",),
    "int": ("strip",),
    "float": ("strip",),
    "bool": ("strip",),
    "json": ("unquoted_keys", "string_delims", "allow_non_json", "strip"),
    "xml-inline": ("tag_pattern", "value_parser", "merge_duplicates"),
    "kv-lines": ("line_sep", "kv_sep", "strip", "value_parser"),
}
"""What reads the text of a field, with what it can be told."""

_VALUES = ("text", "int", "float", "bool", "json")
_LITERAL_ONLY = ("unquoted_keys", "string_delims")
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True, slots=True)
class Value:
    """How a text becomes a value. `text_too`: what is no JSON is text."""

    parser: str = "text"
    strip: bool = False
    text_too: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """Where the name of a call stands: in a group of the opening pattern, or in the template itself."""

    group: str = ""
    constant: str = ""


@dataclass(frozen=True, slots=True)
class ObjectCalls:
    """JSON objects that hold name and arguments. `path`: the keys that lead to the object that does.

    `several`: they stand in a list. `loose`: the outermost object may hold name and arguments as well.
    `name`: stands outside of the objects.
    """

    path: tuple[str, ...]
    name_key: str
    arguments_key: str
    several: bool = False
    loose: bool = False
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class ObjectArguments:
    """A JSON object of arguments. `bare_keys`: keys have no quotes. `quote`: stands around strings."""

    name: Name
    bare_keys: bool
    quote: str


@dataclass(frozen=True, slots=True)
class TagArguments:
    """A tag for each argument: `head` with its key, the value, `tail`.

    `fits`: what a value must match, "" if anything does. `merge`: the values of a key that comes again make a
    list.
    """

    name: Name
    head: Pattern
    tail: Pattern
    fits: str
    value: Value
    merge: bool


@dataclass(frozen=True, slots=True)
class LineArguments:
    """A line for each argument. `strip`: white space around keys means nothing."""

    name: Name
    line_end: str
    separator: str
    strip: bool
    value: Value


@dataclass(frozen=True, slots=True)
class FixedArguments:
    """Arguments that the template names: constants, groups of `open_pattern`, and `content`: the text."""

    name: Name
    constants: Mapping[str, Any]
    groups: Mapping[str, str]
    content: str
    value: Value


Shape = ObjectCalls | ObjectArguments | TagArguments | LineArguments | FixedArguments


class Shapes:
    """Reads how the calls in one field are written."""

    def __init__(
        self, checks: Checks, key: str, parser: str, args: Mapping[str, Any], groups: tuple[str, ...]
    ) -> None:
        """`key`: of the field. `parser`, `args`: what reads its text. `groups`: those of `open_pattern`."""
        self._checks = checks
        self._key = key
        self._at = f"{key}.transform"
        self._args_key = f"{key}.content_args"
        self._parser = parser
        self._args = args
        self._groups = groups

    def read(self, transform: object, *, each: bool) -> Shape:
        """What `transform` says, of each item of a list if `each`. Raises InvalidDialect."""
        refuse = self._checks.refuse
        if transform is None:
            if self._parser != "json" or each:
                refuse(self._at, "missing: it says where a call has its name and arguments")
            self._plain_json()
            return ObjectCalls(("function",), "name", "arguments", several=True, loose=True)
        call = transform.get("function", transform) if isinstance(transform, dict) else transform
        whole = self._path(call)
        if whole is not None:
            return self._objects((*whole, "name"), (*whole, "arguments"), each=each)
        if not isinstance(call, dict) or not {"name", "arguments"} <= call.keys():
            refuse(self._at, "must say where function.name and function.arguments are")
        name, arguments = self._path(call["name"]), self._path(call["arguments"])
        if each or (name is not None and name[0] not in self._groups):
            if name is None or arguments is None:
                refuse(self._at, "function.name and function.arguments must both stand in the content")
            return self._objects(name, arguments, each=each)
        if name is None:
            found = Name(constant=self._checks.text(f"{self._at}.function.name", call["name"]))
        elif len(name) == 1:
            found = Name(group=name[0])
        else:
            refuse(self._at, f"the group {name[0]!r} has no parts")
        return self._fixed(found, call["arguments"]) if arguments is None else self._content(found, arguments)

    def _objects(self, name: tuple[str, ...], arguments: tuple[str, ...], *, each: bool) -> ObjectCalls:
        """Calls that are objects, with the paths to name and arguments, which start in an item if `each`."""
        if self._parser != "json":
            self._checks.refuse(f"{self._key}.content", f"{self._parser} holds no names of calls: use json")
        self._plain_json()
        if not each:
            for path in (name, arguments):
                if path[0] != "content":
                    known = ", ".join(("content", *self._groups))
                    self._checks.refuse(self._at, f"there is no {path[0]!r} to refer to: there are {known}")
            name, arguments = name[1:], arguments[1:]
        if not name or not arguments or name[:-1] != arguments[:-1] or name == arguments:
            self._checks.refuse(self._at, "name and arguments must be two members of one object")
        return ObjectCalls(name[:-1], name[-1], arguments[-1], several=each)

    def _content(self, name: Name, arguments: tuple[str, ...]) -> Shape:
        """Arguments that are the content, or a member of it."""
        refuse = self._checks.refuse
        if arguments[0] != "content":
            refuse(self._at, "function.arguments must be '{content}' or a part of it")
        if len(arguments) > 1:
            if self._parser != "json":
                refuse(self._at, f"{self._parser} has no parts: function.arguments must be '{{content}}'")
            self._plain_json()
            return ObjectCalls(arguments[1:-1], "", arguments[-1], name=name)
        if self._parser == "json":
            return self._object_arguments(name)
        if self._parser == "xml-inline":
            return self._tags(name)
        if self._parser != "kv-lines":
            hint = f"{self._parser} makes no arguments: use json, xml-inline or kv-lines"
            refuse(f"{self._key}.content", hint)
        return self._lines(name)

    def _object_arguments(self, name: Name) -> ObjectArguments:
        bare = self._checks.flag(self._args_key, self._args, "unquoted_keys", default=False)
        delims, quote = self._args.get("string_delims") or [], ""
        if delims:
            pair = delims[0] if isinstance(delims, list) and len(delims) == 1 else None
            if not isinstance(pair, list) or len(pair) != 2 or pair[0] != pair[1]:
                self._checks.refuse(f"{self._args_key}.string_delims", "must be one pair of equal texts")
            quote = self._checks.text(f"{self._args_key}.string_delims", pair[0])
            if not bare or not quote.startswith("<"):
                hint = "must be a token such as <|q|>, with unquoted_keys = true"
                self._checks.refuse(f"{self._args_key}.string_delims", hint)
        return ObjectArguments(name, bare, quote)

    def _tags(self, name: Name) -> TagArguments:
        at, refuse = f"{self._args_key}.tag_pattern", self._checks.refuse
        node = self._checks.expression(at, self._args.get("tag_pattern"))
        items = node.items if isinstance(node, Row) else (node,)
        places = {item.name: place for place, item in enumerate(items) if isinstance(item, Group)}
        if set(places) != {"key", "value"} or places["key"] > places["value"]:
            refuse(at, "must have the groups 'key' and 'value', in this order and outside of brackets")
        value = items[places["value"]]
        assert isinstance(value, Group)
        inner = (
            value.item.items[0] if isinstance(value.item, Row) and len(value.item.items) == 1 else value.item
        )
        if not isinstance(inner, Repeat) or not isinstance(inner.item, OneOf) or inner.most is not None:
            refuse(at, "the value must be '.*?', or a set of characters with '*' or '+'")
        characters = inner.item.expression
        if characters == ANY and not inner.lazy:
            refuse(at, "the value takes all that follows: write '.*?'")
        # what stands around a value are ordinary texts, also where they look like tokens
        head = self._checks.pattern(at, Row(items[: places["value"]]), tokens=False)
        tail = self._checks.pattern(at, Row(items[places["value"] + 1 :]), tokens=False)
        if head.matches_anywhere or tail.matches_anywhere:
            refuse(at, "a text must stand before and after the value")
        fits = "" if characters == ANY and inner.least == 0 else f"{characters}{{{inner.least},}}"
        merge = self._checks.flag(self._args_key, self._args, "merge_duplicates", default=False)
        return TagArguments(name, head, tail, fits, self._member_value(strip=False), merge)

    def _lines(self, name: Name) -> LineArguments:
        line_end, separator = (
            self._checks.text(f"{self._args_key}.{key}", self._args.get(key, default))
            for key, default in (("line_sep", "\n"), ("kv_sep", ":"))
        )
        strip = self._checks.flag(self._args_key, self._args, "strip", default=True)
        return LineArguments(name, line_end, separator, strip, self._member_value(strip=strip))

    def _fixed(self, name: Name, arguments: object) -> FixedArguments:
        """Arguments that the transform lists one by one."""
        if not isinstance(arguments, dict) or self._parser not in _VALUES:
            hint = "function.arguments must be '{content}', or an object in which '{content}' is one value"
            self._checks.refuse(self._at, hint)
        constants: dict[str, Any] = {}
        groups: dict[str, str] = {}
        contents: list[str] = []
        for argument, source in arguments.items():
            path = self._path(source)
            if path is None and not _has_placeholder(source):
                constants[argument] = source
            elif path == ("content",):
                contents.append(argument)
            elif path is not None and len(path) == 1 and path[0] in self._groups:
                groups[argument] = path[0]
            else:
                self._checks.refuse(self._at, f"the argument {argument!r} refers to what is not there")
        if len(contents) != 1:
            self._checks.refuse(self._at, "exactly one argument must be '{content}'")
        value = self._value(self._args_key, self._parser, self._args, strip=False)
        return FixedArguments(name, constants, groups, contents[0], value)

    # -- values ----------------------------------------------------------------------------------------

    def _member_value(self, *, strip: bool) -> Value:
        """How values of tags and lines are read. `strip`: without white space at their ends in any case."""
        at, told = f"{self._args_key}.value_parser", self._args.get("value_parser")
        if told is None:
            return Value(strip=strip)
        table = self._checks.table(at, told, ("name", "args"))
        name = table.get("name", "text")
        if name not in _VALUES:
            self._checks.refuse(f"{at}.name", f"{name!r} is none of {', '.join(_VALUES)}")
        args = self._checks.table(f"{at}.args", table.get("args", {}), PARSERS[name])
        return self._value(f"{at}.args", name, args, strip=strip)

    def _value(self, at: str, parser: str, args: Mapping[str, Any], *, strip: bool) -> Value:
        self._plain_json(at, args)
        stripped = self._checks.flag(at, args, "strip", default=True)
        text_too = parser == "json" and self._checks.flag(at, args, "allow_non_json", default=False)
        return Value(parser, stripped or strip, text_too)

    def _plain_json(self, at: str = "", args: Mapping[str, Any] | None = None) -> None:
        """Refuse another notation than JSON's, which is read only where the content is the arguments."""
        for key in _LITERAL_ONLY:
            if (self._args if args is None else args).get(key):
                hint = "can only be where the arguments are '{content}' and the name stands outside"
                self._checks.refuse(f"{at or self._args_key}.{key}", hint)

    def _path(self, value: object) -> tuple[str, ...] | None:
        """The keys that a placeholder names, None for anything else."""
        if not isinstance(value, str):
            return None
        if found := _PLACEHOLDER.fullmatch(value):
            return tuple(found[1].split("."))
        if _PLACEHOLDER.search(value):
            self._checks.refuse(self._at, f"{value!r} mixes a placeholder with text: it must be all of it")
        return None


def _has_placeholder(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_placeholder, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None
