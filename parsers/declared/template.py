"""A `response_template`, checked: what its fields hold, and where they begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal as Exactly

from ..patterns.expression import literals
from ..patterns.program import TAG, Pattern, compile_pattern
from .checks import Checks
from .shapes import PARSERS, ObjectArguments, ObjectCalls, Shape, read_shape

Kind = Exactly["content", "reasoning", "calls"]
KINDS: Mapping[str, Kind] = {
    "content": "content",
    "reasoning_content": "reasoning",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "tool_calls": "calls",
}
"""The fields that there is a place for, and what they hold."""

_TEMPLATE_KEYS = ("version", "defaults", "start_anchor", "start_anchor_pattern", "fields")
_FIELD_KEYS = (
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join",
    "optional", "transform", "transform_each",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `open` is None for content outside the others, `close` where nothing ends it.

    `strip`: white space at the ends of its text means nothing. `shape`: of the calls in it.
    """

    name: str
    kind: Kind
    open: Pattern | None
    close: Pattern | None
    strip: bool
    repeats: bool
    shape: Shape | None = None

    @property
    def opens(self) -> tuple[str, ...]:
        """The tokens in what opens it."""
        return () if self.open is None else self.open.tokens

    @property
    def closes(self) -> tuple[str, ...]:
        """The tokens in what closes it."""
        return () if self.close is None else self.close.tokens

    @property
    def quotes(self) -> tuple[str, ...]:
        """The token around the strings in its calls, if there is one."""
        return (self.shape.quote,) if isinstance(self.shape, ObjectArguments) and self.shape.quote else ()


@dataclass(frozen=True, slots=True)
class Template:
    """All fields. `frame`: the tokens with which a turn begins, where a model can write them again."""

    fields: tuple[Field, ...]
    frame: Pattern | None

    def of_kind(self, kind: Kind) -> Field | None:
        """The field of that kind, if there is one."""
        return next((field for field in self.fields if field.kind == kind), None)


def read_template(where: str, value: object) -> Template:
    """The template that is the JSON value `value`. Raises InvalidDialect, a line that begins with `where`."""
    checks = Checks(where)
    table = checks.table("response_template", value, _TEMPLATE_KEYS)
    if table.get("version", 1) != 1:
        checks.refuse("response_template.version", f"{table['version']!r} is not known here: there is 1")
    checks.table("response_template.defaults", table.get("defaults", {}))
    anchor = _anchor(checks, "response_template", table, "start_anchor")
    if anchor is None:
        checks.refuse("response_template.start_anchor", "missing: name the text with which a turn begins")
    table = checks.table("response_template.fields", table.get("fields"))
    fields = tuple(_field(checks, name, field) for name, field in table.items())
    if not fields:
        checks.refuse("response_template.fields", "empty: name a field")
    names = [field.name for field in fields if field.kind == "reasoning"]
    if len(names) > 1:
        checks.refuse("response_template.fields", f"{' and '.join(names)} hold the same: keep one of them")
    # Where content is what is outside the other fields, that is text like any other.
    framed = any(map(TAG.search, anchor.tokens)) and all(field.open is not None for field in fields)
    return Template(fields, anchor if framed else None)


def _field(checks: Checks, name: str, value: object) -> Field:
    key = f"fields.{name}"
    if name not in KINDS:
        checks.refuse(key, f"a message has no place for it: there are {', '.join(KINDS)}")
    kind = KINDS[name]
    table = checks.table(key, value, _FIELD_KEYS)
    open_, close = (_anchor(checks, key, table, end) for end in ("open", "close"))
    if open_ is None and kind != "content":
        checks.refuse(f"{key}.open", "missing: only content can do without")
    groups = () if open_ is None else open_.groups
    if close is not None and close.groups:
        checks.refuse(f"{key}.close_pattern", f"the group {close.groups[0]!r} comes too late for the call")
    if groups and "transform" not in table:
        checks.refuse(f"{key}.transform", f"missing: nothing else can use the group {groups[0]!r}")
    repeats = checks.flag(key, table, "repeats", default=False)
    checks.flag(key, table, "optional", default=True)
    if "join" in table and not (repeats and isinstance(table["join"], str)):
        checks.refuse(f"{key}.join", "must be a text, and needs repeats = true")
    parser = table.get("content", "text")
    if not isinstance(parser, str) or parser not in PARSERS:
        checks.refuse(f"{key}.content", f"no parser {parser!r}: there are {', '.join(PARSERS)}")
    args = checks.table(f"{key}.content_args", table.get("content_args", {}), PARSERS[parser])
    if kind != "calls":
        if parser != "text" or "transform" in table:
            checks.refuse(key, "holds text: content must be 'text', without a transform")
        strip = checks.flag(f"{key}.content_args", args, "strip", default=True)
        return Field(name, kind, open_, close, strip, repeats)
    shape = read_shape(checks, key, table, args, groups)
    if close is None:
        checks.refuse(f"{key}.close", "missing: a call that the end completes might have been cut off")
    for end, anchor in (("open", open_), ("close", close)):
        if anchor is not None and not anchor.tokens:
            checks.refuse(f"{key}.{end}", "needs a text that is more than white space")
    if isinstance(shape, ObjectCalls) and not close.is_one_token:
        checks.refuse(f"{key}.close", "must be one text, with white space around it at most")
    return Field(name, kind, open_, close, strip=True, repeats=repeats, shape=shape)


def _anchor(checks: Checks, key: str, table: Mapping[str, Any], name: str) -> Pattern | None:
    """The pattern of `name`, a text or several, or of `name`_pattern, a regular expression."""
    text, expression = table.get(name), table.get(f"{name}_pattern")
    if text is not None and expression is not None:
        checks.refuse(f"{key}.{name}", f"stands beside {name}_pattern: keep one of them")
    if expression is not None:
        pattern = compile_pattern(checks.expression(f"{key}.{name}_pattern", expression))
        if pattern.matches_anywhere:
            hint = "matches where there is nothing: name a text that must stand there"
            checks.refuse(f"{key}.{name}_pattern", hint)
        return pattern
    if text is None:
        return None
    texts = [checks.text(f"{key}.{name}", item) for item in (text if isinstance(text, list) else [text])]
    if not texts:
        checks.refuse(f"{key}.{name}", "empty: name a text")
    return compile_pattern(literals(tuple(dict.fromkeys(texts))))
