"""A `response_template`, checked: what its fields hold, where they begin and end, and where a call has its name.

The keys and their meaning are those of transformers 5.23 (`utils/chat_parsing/response_templates.py` and
`content_parsers.py` there, and its guide "Response Parsing"):

- `fields`: name → field. Outside of all fields counts the one without `open`, if there is one.
- `open`, `close`: a text or a list of texts; `open_pattern`, `close_pattern`: a regular expression, matched with
  DOTALL, whose named groups `transform` can use. A field without `close` goes on to the end.
- `content`: what reads the text in between: `text`, `int`, `float`, `bool`, `json`, `xml-inline` or `kv-lines`,
  each with its `content_args`.
- `transform`: the shape of the value, in which a whole string "{content}", "{content.key}" or "{group}" stands
  for what was read; with `transform_each` for each item of a list, whose keys are the names then.
- `repeats`, `join`, `optional`, `defaults`: how the message is put together; they decide nothing here.
- `start_anchor`, `start_anchor_pattern`: where the turn begins in the prompt.
- any other key is an error.

The fields that mean something to chat clients are `content`, `reasoning_content` (in older templates `thinking`)
and `tool_calls`; a template with others is refused, since there would be no place for what they hold. So is the
older `response_schema`, regular expressions over the whole output, which transformers drops silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from typing import Literal as Exactly

from parsers.dialect import InvalidDialect
from parsers.patterns import (
    ANY,
    TAG,
    Choice,
    Group,
    InvalidPattern,
    Literal,
    Node,
    OneOf,
    Pattern,
    Repeat,
    Row,
    compile_pattern,
    literals,
    parse,
)

Kind = Exactly["content", "reasoning", "calls"]
KINDS: Mapping[str, Kind] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "calls",
}
"""The fields that can be expressed, and what they hold."""

_TEMPLATE_KEYS = ("version", "defaults", "start_anchor", "start_anchor_pattern", "fields")
_FIELD_KEYS = (
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
    "transform", "transform_each",
)  # fmt: skip
_PARSER_KEYS: Mapping[str, tuple[str, ...]] = {
    "text": ("strip",),
    "int": ("strip",),
    "float": ("strip",),
    "bool": ("strip",),
    "json": ("unquoted_keys", "string_delims", "allow_non_json", "strip"),
    "xml-inline": ("tag_pattern", "value_parser", "merge_duplicates"),
    "kv-lines": ("line_sep", "kv_sep", "strip", "value_parser"),
}
_PLACEHOLDER = re.compile(r"\{\w+(?:\.\w+)*\}")
_SCALARS = ("text", "int", "float", "bool", "json")


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
    """JSON objects that hold name and arguments. `path`: the keys of the object that does.

    `loose`: that object may as well be the outermost one. `name`: stands outside the object instead.
    """

    path: tuple[str, ...]
    name_key: str
    arguments_key: str
    several: bool
    loose: bool = False
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class ObjectArguments:
    """A JSON object of arguments. `bare_keys`: keys have no quotes; `quote`: stands around strings."""

    name: Name
    bare_keys: bool = False
    quote: str = ""


@dataclass(frozen=True, slots=True)
class TagArguments:
    """A tag for each argument: `head` with its key, the value, `tail`. `fits`: what a value must match, if anything."""

    name: Name
    head: Pattern
    fits: str
    tail: Pattern
    value: Value
    merge: bool


@dataclass(frozen=True, slots=True)
class LineArguments:
    """A line for each argument."""

    name: Name
    line_end: str
    separator: str
    strip: bool
    value: Value


@dataclass(frozen=True, slots=True)
class FixedArguments:
    """Arguments that the template names: constants, groups of the opening pattern, and the text as `content`."""

    name: Name
    constants: Mapping[str, Any]
    groups: Mapping[str, str]
    content: str
    value: Value


Shape = ObjectCalls | ObjectArguments | TagArguments | LineArguments | FixedArguments


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `open` is None where it holds what stands outside the others, `close` where nothing ends it."""

    name: str
    kind: Kind
    open: Pattern | None
    close: Pattern | None
    strip: bool
    repeats: bool
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """All of it. `frame`: the tokens with which the turn begins in the prompt, which some models write again."""

    fields: tuple[Field, ...]
    frame: Pattern | None

    def of_kind(self, kind: Kind) -> tuple[Field, ...]:
        """The fields of that kind."""
        return tuple(field for field in self.fields if field.kind == kind)


def _is_one_text(node: Node) -> bool:
    """Whether it matches a single token, or one of several, and white space."""
    match node:
        case Literal(text):
            return len(TAG.findall(text)) <= 1 and bool(text.strip())
        case Row(items):
            rest = [item for item in items if not _is_blank(item)]
            return len(rest) == 1 and _is_one_text(rest[0])
        case Choice(items):
            return all(map(_is_one_text, items))
    return False


def _is_blank(node: Node) -> bool:
    match node:
        case Literal(text):
            return not text.strip()
        case Repeat(OneOf(expression)) | OneOf(expression):
            return expression == r"[\s]"
    return False


def read_template(where: str, table: object) -> Template:
    """The template that the JSON value `table` is. Raises InvalidDialect, a line that begins with `where`."""
    return _Reader(where).template(table)


class _Reader:
    """Reads one template."""

    def __init__(self, where: str) -> None:
        self._where = where

    def template(self, table: object) -> Template:
        found = self._table("response_template", table, _TEMPLATE_KEYS)
        if found.get("version", 1) != 1:
            self._refuse("version", f"{found['version']!r} is not known here: there is 1")
        self._table("defaults", found.get("defaults", {}))
        anchor, _ = self._anchor("", found, "start_anchor")
        if anchor is None:
            self._refuse("start_anchor", "missing: name the text with which the model's turn begins")
        fields = self._table("fields", found.get("fields"))
        if not fields:
            self._refuse("fields", "empty: name a field")
        read = tuple(self._field(name, field) for name, field in fields.items())
        implicit = [field.name for field in read if field.open is None]
        if len(implicit) > 1:
            self._refuse("fields", f"{' and '.join(implicit)} have no open: only one field can do without")
        for kind in ("content", "reasoning", "calls"):
            names = [field.name for field in read if field.kind == kind]
            if len(names) > 1:
                self._refuse("fields", f"{' and '.join(names)} hold the same: keep one of them")
        return Template(read, anchor if any(map(TAG.search, anchor.tokens)) and not implicit else None)

    def _field(self, name: str, table: object) -> Field:
        key = f"fields.{name}"
        if name not in KINDS:
            self._refuse(key, f"a message has no place for it: there are {', '.join(KINDS)}")
        kind = KINDS[name]
        field = self._table(key, table, _FIELD_KEYS)
        open_, groups = self._anchor(key, field, "open")
        close, others = self._anchor(key, field, "close")
        for what, anchor in (("open", open_), ("close", close)):
            if anchor is not None and anchor.matches_anywhere:
                self._refuse(
                    f"{key}.{what}_pattern",
                    "matches where there is nothing: name a text that must stand there",
                )
        if others:
            self._refuse(
                f"{key}.close_pattern", f"the group {others[0]!r} comes after the call that needs it"
            )
        repeats = self._flag(key, field, "repeats", False)
        self._flag(key, field, "optional", True)
        if "join" in field and not (repeats and isinstance(field["join"], str)):
            self._refuse(f"{key}.join", "must be a text, and needs repeats = true")
        if groups and "transform" not in field:
            self._refuse(f"{key}.transform", f"missing: the group {groups[0]!r} is used nowhere else")
        parser = field.get("content", "text")
        if not isinstance(parser, str) or parser not in _PARSER_KEYS:
            self._refuse(f"{key}.content", f"no parser {parser!r}: there are {', '.join(_PARSER_KEYS)}")
        args = self._table(f"{key}.content_args", field.get("content_args", {}), _PARSER_KEYS[parser])
        if kind != "calls":
            if parser != "text" or "transform" in field:
                self._refuse(key, "is text here: content must be 'text', without a transform")
            strip = self._flag(f"{key}.content_args", args, "strip", True)
            return Field(name, kind, open_, close, strip, repeats, None)
        if open_ is None:
            self._refuse(f"{key}.open", "missing: name the text with which calls begin")
        shape = self._shape(key, field, parser, args, groups)
        if close is None and not isinstance(shape, ObjectCalls | ObjectArguments):
            self._refuse(f"{key}.close", "missing: a call that the end completes might have been cut off")
        for what, anchor in (("open", open_), ("close", close)):
            if anchor is not None and not anchor.tokens:
                self._refuse(f"{key}.{what}", "needs a text in it that is not white space")
        if isinstance(shape, ObjectCalls) and close is not None and not _is_one_text(close.node):
            self._refuse(f"{key}.close_pattern", "must be one text, with white space around it at most")
        return Field(name, kind, open_, close, True, repeats, shape)

    # -- anchors ----------------------------------------------------------------------------------------

    def _anchor(
        self, key: str, table: Mapping[str, Any], name: str
    ) -> tuple[Pattern | None, tuple[str, ...]]:
        """What `name` and `name`_pattern say, and the groups in it."""
        prefix = f"{key}." if key else ""
        text, expression = table.get(name), table.get(f"{name}_pattern")
        if text is not None and expression is not None:
            self._refuse(f"{prefix}{name}", f"stands beside {name}_pattern: keep one of them")
        if expression is not None:
            found = self._pattern(f"{prefix}{name}_pattern", expression)
            return found, found.groups
        if text is None:
            return None, ()
        texts = text if isinstance(text, list) else [text]
        if not texts or not all(isinstance(each, str) and each for each in texts):
            self._refuse(f"{prefix}{name}", "must be a text or a list of texts, none of them empty")
        return compile_pattern(literals(tuple(dict.fromkeys(texts)))), ()

    def _pattern(self, key: str, expression: object) -> Pattern:
        return self._compiled(key, self._parsed(key, expression))

    def _parsed(self, key: str, expression: object) -> Node:
        if not isinstance(expression, str):
            self._refuse(key, "must be a text, a regular expression")
        try:
            return parse(expression)
        except InvalidPattern as error:
            self._refuse(key, str(error))

    def _compiled(self, key: str, node: Node, *, tokens: bool = True) -> Pattern:
        try:
            return compile_pattern(node, tokens=tokens)
        except InvalidPattern as error:
            self._refuse(key, str(error))

    # -- calls ------------------------------------------------------------------------------------------

    def _shape(
        self,
        key: str,
        field: Mapping[str, Any],
        parser: str,
        args: Mapping[str, Any],
        groups: tuple[str, ...],
    ) -> Shape:
        """How calls are read: by what `transform` says of their names and arguments."""
        each = self._flag(key, field, "transform_each", False)
        transform = field.get("transform")
        if transform is None:
            if parser != "json" or each:
                self._refuse(f"{key}.transform", "missing: it says where a call has its name and arguments")
            self._plain_json(key, args)
            return ObjectCalls(("function",), "name", "arguments", several=True, loose=True)
        at = f"{key}.transform"
        call = transform.get("function", transform) if isinstance(transform, dict) else transform
        whole = self._path(at, call)
        if whole is not None:
            name_path = arguments_path = whole
            name_path, arguments_path = (*whole, "name"), (*whole, "arguments")
            return self._objects(key, parser, args, groups, each, name_path, arguments_path)
        if not isinstance(call, dict) or not {"name", "arguments"} <= call.keys():
            self._refuse(at, "must say where function.name and function.arguments are")
        name_path = self._path(at, call["name"])
        arguments = call["arguments"]
        arguments_path = self._path(at, arguments)
        if each or (name_path is not None and name_path[0] not in groups):
            if name_path is None or arguments_path is None:
                self._refuse(at, "name and arguments must both stand in the content")
            return self._objects(key, parser, args, groups, each, name_path, arguments_path)
        if name_path is not None and len(name_path) == 1:
            name = Name(group=name_path[0])
        elif isinstance(call["name"], str) and name_path is None and call["name"]:
            name = Name(constant=call["name"])
        else:
            self._refuse(at, "function.name must be a group of open_pattern, in the content, or a fixed name")
        if arguments_path is None:
            return self._fixed(key, at, parser, args, groups, name, arguments)
        if arguments_path[0] != "content":
            self._refuse(at, "function.arguments must be the content, or a part of it")
        if len(arguments_path) > 1:
            if parser != "json":
                self._refuse(at, f"{parser} has no parts: write '{{content}}'")
            self._plain_json(key, args)
            *path, last = arguments_path[1:]
            return ObjectCalls(tuple(path), "", last, several=False, name=name)
        match parser:
            case "json":
                return self._object_arguments(key, args, name)
            case "xml-inline":
                return self._tags(key, args, name)
            case "kv-lines":
                return self._lines(key, args, name)
        self._refuse(f"{key}.content", f"{parser} makes no arguments: use json, xml-inline or kv-lines")

    def _objects(
        self,
        key: str,
        parser: str,
        args: Mapping[str, Any],
        groups: tuple[str, ...],
        each: bool,
        name: tuple[str, ...],
        arguments: tuple[str, ...],
    ) -> ObjectCalls:
        """Calls that are objects, with paths to name and arguments."""
        at = f"{key}.transform"
        if parser != "json":
            self._refuse(f"{key}.content", f"{parser} holds no names of calls: use json")
        self._plain_json(key, args)
        if not each:
            for path in (name, arguments):
                if path[0] != "content":
                    self._refuse(
                        at,
                        f"there is no {path[0]!r}: there are content{''.join(f', {group}' for group in groups)}",
                    )
            name, arguments = name[1:], arguments[1:]
        if not name or not arguments or name[:-1] != arguments[:-1] or name == arguments:
            self._refuse(at, "name and arguments must be two members of one object")
        return ObjectCalls(name[:-1], name[-1], arguments[-1], several=each)

    def _plain_json(self, key: str, args: Mapping[str, Any]) -> None:
        for name in ("unquoted_keys", "string_delims"):
            if args.get(name):
                self._refuse(
                    f"{key}.content_args.{name}", "is read only where the content is the arguments alone"
                )

    def _object_arguments(self, key: str, args: Mapping[str, Any], name: Name) -> ObjectArguments:
        at = f"{key}.content_args"
        bare = self._flag(at, args, "unquoted_keys", False)
        delims = args.get("string_delims") or []
        quote = ""
        if delims:
            pair = delims[0] if isinstance(delims, list) and len(delims) == 1 else None
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or pair[0] != pair[1]
                or not isinstance(pair[0], str)
            ):
                self._refuse(f"{at}.string_delims", "must be one pair of equal texts")
            quote = pair[0]
            if not bare or not quote.startswith("<"):
                self._refuse(
                    f"{at}.string_delims", "must be a token such as <|q|>, with unquoted_keys = true"
                )
        return ObjectArguments(name, bare, quote)

    def _tags(self, key: str, args: Mapping[str, Any], name: Name) -> TagArguments:
        at = f"{key}.content_args.tag_pattern"
        node = self._parsed(at, args.get("tag_pattern"))
        items = node.items if isinstance(node, Row) else (node,)
        places = {item.name: place for place, item in enumerate(items) if isinstance(item, Group)}
        if set(places) != {"key", "value"} or places["key"] > places["value"]:
            self._refuse(at, "must have the groups 'key' and 'value', in this order and outside of brackets")
        group = items[places["value"]]
        assert isinstance(group, Group)
        inner = (
            group.item.items[0] if isinstance(group.item, Row) and len(group.item.items) == 1 else group.item
        )
        if not isinstance(inner, Repeat) or not isinstance(inner.item, OneOf) or inner.most is not None:
            self._refuse(at, "the value must be '.*?', or a set of characters with '*' or '+'")
        if inner.item.expression == ANY and not inner.lazy:
            self._refuse(at, "the value takes all that follows: write '.*?'")
        fits = (
            f"{inner.item.expression}{{{inner.least},}}"
            if inner.item.expression != ANY or inner.least
            else ""
        )
        head = self._compiled(at, Row(items[: places["value"]]), tokens=False)
        tail = self._compiled(at, Row(items[places["value"] + 1 :]), tokens=False)
        if tail.matches_anywhere or head.matches_anywhere:
            self._refuse(at, "a text must stand before and after the value")
        value = self._value(f"{key}.content_args", args, strip=False)
        merge = self._flag(f"{key}.content_args", args, "merge_duplicates", False)
        return TagArguments(name, head, fits, tail, value, merge)

    def _lines(self, key: str, args: Mapping[str, Any], name: Name) -> LineArguments:
        at = f"{key}.content_args"
        found = {}
        for what, default in (("line_sep", "\n"), ("kv_sep", ":")):
            text = args.get(what, default)
            if not isinstance(text, str) or not text:
                self._refuse(f"{at}.{what}", "must be a text, and not empty")
            found[what] = text
        strip = self._flag(at, args, "strip", True)
        return LineArguments(
            name, found["line_sep"], found["kv_sep"], strip, self._value(at, args, strip=strip)
        )

    def _value(self, at: str, args: Mapping[str, Any], *, strip: bool) -> Value:
        """How the values of tags and lines are read."""
        if args.get("value_parser") is None:
            return Value(strip=strip)
        parser = self._table(f"{at}.value_parser", args["value_parser"], ("name", "args"))
        name = parser.get("name", "text")
        if name not in _SCALARS:
            self._refuse(f"{at}.value_parser.name", f"{name!r} is none of {', '.join(_SCALARS)}")
        more = self._table(f"{at}.value_parser.args", parser.get("args", {}), _PARSER_KEYS[name])
        return self._scalar(f"{at}.value_parser.args", name, more, strip=strip)

    def _scalar(self, at: str, parser: str, args: Mapping[str, Any], *, strip: bool) -> Value:
        for name in ("unquoted_keys", "string_delims"):
            if args.get(name):
                self._refuse(f"{at}.{name}", "is read only where the content is the arguments alone")
        return Value(
            parser,
            self._flag(at, args, "strip", True) or strip,
            parser == "json" and self._flag(at, args, "allow_non_json", False),
        )

    def _fixed(
        self,
        key: str,
        at: str,
        parser: str,
        args: Mapping[str, Any],
        groups: tuple[str, ...],
        name: Name,
        arguments: object,
    ) -> FixedArguments:
        """Arguments that the transform lists one by one."""
        if not isinstance(arguments, dict) or parser not in _SCALARS:
            self._refuse(
                at, "function.arguments must be '{content}', or an object whose content is one value"
            )
        constants: dict[str, Any] = {}
        captured: dict[str, str] = {}
        contents: list[str] = []
        for argument, source in arguments.items():
            path = self._path(at, source)
            if path is None:
                if self._has_placeholder(source):
                    self._refuse(at, f"the argument {argument!r} must be a placeholder or hold none")
                constants[argument] = source
            elif path == ("content",):
                contents.append(argument)
            elif len(path) == 1 and path[0] in groups:
                captured[argument] = path[0]
            else:
                self._refuse(at, f"there is no {'.'.join(path)!r} for the argument {argument!r}")
        if len(contents) != 1:
            self._refuse(at, "exactly one argument must be '{content}'")
        value = self._scalar(f"{key}.content_args", parser, args, strip=False)
        return FixedArguments(name, constants, captured, contents[0], value)

    # -- values -----------------------------------------------------------------------------------------

    def _path(self, at: str, value: object) -> tuple[str, ...] | None:
        """The keys that a placeholder names, None for anything else."""
        if not isinstance(value, str):
            return None
        inner = value[1:-1] if value[:1] == "{" and value[-1:] == "}" else ""
        keys = tuple(inner.split("."))
        if all(word and word.replace("_", "a").isalnum() for word in keys):
            return keys
        if self._has_placeholder(value):
            self._refuse(at, f"{value!r} mixes a placeholder with text: it must be all of it")
        return None

    def _has_placeholder(self, value: object) -> bool:
        if isinstance(value, dict | list):
            return any(map(self._has_placeholder, value.values() if isinstance(value, dict) else value))
        return isinstance(value, str) and _PLACEHOLDER.search(value) is not None

    def _table(self, key: str, value: object, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._refuse(key, "missing" if value is None else "must be an object")
        for name in value:
            if known is not None and name not in known:
                prefix = "" if key == "response_template" else f"{key}."
                self._refuse(f"{prefix}{name}", f"no such key: there are {', '.join(known)}")
        return value

    def _flag(self, key: str, table: Mapping[str, Any], name: str, default: bool) -> bool:
        value = table.get(name, default)
        if not isinstance(value, bool):
            self._refuse(f"{key}.{name}", "must be true or false")
        return value

    def _refuse(self, key: str, reason: str) -> NoReturn:
        raise InvalidDialect(f"{self._where}: {key}: {reason}")
