"""How calls are written, according to a `response_template`: where their name and their arguments are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..patterns.expression import Group, Row, parse
from ..patterns.program import Pattern, compile_pattern
from .checks import Checks

PARSERS: Mapping[str, tuple[str, ...]] = {
    "text": ("strip",),
    "json": ("unquoted_keys", "string_delims"),
    "xml-inline": ("tag_pattern", "value_parser"),
}
"""What reads the text of a field, with its arguments."""

_ANYTHING = parse(".*?")
_TRANSFORMS = (
    "must give function.name and function.arguments: '{content}' for both, '{content.KEY}' for each, '{KEY}' "
    "for each with transform_each, or '{GROUP}', which open_pattern has, and '{content}'"
)


@dataclass(frozen=True, slots=True)
class ObjectCalls:
    """JSON objects that hold name and arguments under these keys. `several`: they are in a list."""

    name_key: str
    arguments_key: str
    several: bool = False


@dataclass(frozen=True, slots=True)
class ObjectArguments:
    """The name in a `group` of what opens the field, and an object of arguments.

    `quote`: the token around its strings, and then its keys have no quotes; "" if it is JSON.
    """

    group: str
    quote: str


@dataclass(frozen=True, slots=True)
class TagArguments:
    """The name in a `group` of what opens the field, and a tag for each argument.

    A tag is `head`, which has the key, the value, and `tail`. `strip`: white space around values means
    nothing. `json`: what is JSON is no text.
    """

    group: str
    head: Pattern
    tail: Pattern
    strip: bool
    json: bool


Shape = ObjectCalls | ObjectArguments | TagArguments


def read_shape(
    checks: Checks, key: str, table: Mapping[str, Any], args: Mapping[str, Any], groups: tuple[str, ...]
) -> Shape:
    """The shape of the calls in the field `key`. Raises InvalidDialect.

    `table`: the field. `args`: its `content_args`. `groups`: those of its `open_pattern`.
    """
    parser, transform = table.get("content", "text"), table.get("transform")
    several = checks.flag(key, table, "transform_each", default=False)
    call = transform.get("function", transform) if isinstance(transform, dict) else transform
    if call == "{content}" and not several:
        keys: tuple[str, ...] = ("name", "arguments")
    elif isinstance(call, dict):
        keys = tuple(_inner(call.get(part), "" if several else "content.") for part in ("name", "arguments"))
        group = _inner(call.get("name"), "")
        if group in groups and call.get("arguments") == "{content}" and not several:
            return _arguments(checks, key, parser, args, group)
    else:
        keys = ()
    if not all(keys) or len(set(keys)) != 2:
        checks.refuse(f"{key}.transform", _TRANSFORMS)
    if parser != "json":
        checks.refuse(f"{key}.content", f"{parser} holds no names of calls: use json")
    for name in args:
        hint = "can only be where the arguments are '{content}' and the name is in open_pattern"
        checks.refuse(f"{key}.content_args.{name}", hint)
    return ObjectCalls(keys[0], keys[1], several)


def _inner(value: object, prefix: str) -> str:
    """The word in a placeholder that is `prefix` and a word, "" for anything else."""
    placeholder = re.fullmatch(rf"\{{{re.escape(prefix)}(\w+)\}}", value) if isinstance(value, str) else None
    return placeholder[1] if placeholder else ""


def _arguments(checks: Checks, key: str, parser: str, args: Mapping[str, Any], group: str) -> Shape:
    """Arguments that are the whole content."""
    if parser == "text":
        checks.refuse(f"{key}.content", "text makes no arguments: use json or xml-inline")
    key = f"{key}.content_args"
    return _tags(checks, key, args, group) if parser == "xml-inline" else _object(checks, key, args, group)


def _object(checks: Checks, key: str, args: Mapping[str, Any], group: str) -> ObjectArguments:
    unquoted, delims = checks.flag(key, args, "unquoted_keys", default=False), args.get("string_delims") or []
    if not unquoted and not delims:
        return ObjectArguments(group, "")
    match delims:
        case [[str(quote), str(same)]] if unquoted and quote == same and quote.startswith("<"):
            return ObjectArguments(group, quote)
    hint = "must be one pair of equal tokens such as <|q|>, with unquoted_keys = true"
    return checks.refuse(f"{key}.string_delims", hint)


def _tags(checks: Checks, key: str, args: Mapping[str, Any], group: str) -> TagArguments:
    place = f"{key}.tag_pattern"
    tag = checks.expression(place, args.get("tag_pattern"))
    items = tag.items if isinstance(tag, Row) else ()
    places = {item.name: number for number, item in enumerate(items) if isinstance(item, Group)}
    if list(places) != ["key", "value"]:
        hint = "must have the groups 'key' and 'value', in this order and outside of brackets"
        checks.refuse(place, hint)
    if items[places["value"]] != Group("value", _ANYTHING):
        checks.refuse(place, "the value must be '.*?'")
    # what is around a value are ordinary texts, also where they look like tokens
    head, tail = (
        compile_pattern(Row(part), tokens=False)
        for part in (items[: places["value"]], items[places["value"] + 1 :])
    )
    if head.matches_anywhere or tail.matches_anywhere:
        checks.refuse(place, "a text must stand before and after the value")
    parser = args.get("value_parser")
    if parser is None:
        return TagArguments(group, head, tail, strip=False, json=False)
    place = f"{key}.value_parser"
    table = checks.table(place, parser, ("name", "args"))
    name = table.get("name", "text")
    inner = checks.table(
        f"{place}.args", table.get("args", {}), ("allow_non_json",) if name == "json" else ()
    )
    if name not in ("text", "json") or (name == "json" and inner.get("allow_non_json") is not True):
        checks.refuse(place, "must be text, or json with allow_non_json = true")
    return TagArguments(group, head, tail, strip=True, json=name == "json")
