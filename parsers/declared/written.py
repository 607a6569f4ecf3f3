"""Calls as a `response_template` says that they are written, where its patterns say how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..dialect import Calls, Render
from ..engine.spans import Span
from ..formats.gemma import KEY, GemmaWriter
from ..literals.values import MAX_DEPTH
from ..literals.writer import JSON, RawWriter, Writer
from .raw import OPENED_TAG
from .shapes import (
    FixedArguments,
    LineArguments,
    ObjectArguments,
    ObjectCalls,
    TagArguments,
    Value,
)
from .template import Field

Reads = Callable[[str, list[tuple[str, Mapping[str, Any]]]], bool]
"""Whether a text is read as these calls and nothing else."""


def renderer(field: Field, reads: Reads) -> Render:
    """Writes calls into `field`. What does not read back as it was is no call in this format: ValueError."""

    def render(span: Span, markers: Iterable[str], calls: Calls) -> str:
        calls = list(calls)
        written = _write(field, tuple(markers), calls)
        if not reads(written, calls):
            names = ", ".join(name for name, _ in calls)
            raise ValueError(f"the format that the model declares cannot express these calls: {names}")
        return written

    return render


def can_be_written(field: Field) -> bool:
    """Whether the patterns of the field say what to write."""
    groups = {} if field.open is None else dict.fromkeys(field.open.groups, "x")
    texts = [anchor.written(groups) for anchor in (field.open, field.close) if anchor is not None]
    if isinstance(field.shape, TagArguments):
        texts += [field.shape.head.written({"key": "x"}), field.shape.tail.written({})]
    return None not in texts


def _write(field: Field, markers: tuple[str, ...], calls: list[tuple[str, Mapping[str, Any]]]) -> str:
    for name, _ in calls:
        Writer.check_name(name)
    shape = field.shape
    if isinstance(shape, ObjectCalls):
        writer = Writer(markers, JSON)
        objects = [writer.mapping(_object(shape, *call)) for call in calls]
        if shape.several and not (shape.loose and field.repeats):
            return _framed(field, {}, f"[{', '.join(objects)}]")
        group = "" if shape.name is None else shape.name.group
        texts = [_framed(field, {group: name}, text) for (name, _), text in zip(calls, objects, strict=True)]
    else:
        texts = [_call(field, markers, name, arguments) for name, arguments in calls]
    if len(texts) > 1 and not field.repeats:
        raise ValueError("the format that the model declares has no more than one call in a turn")
    return "".join(texts)


def _object(shape: ObjectCalls, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that holds a call."""
    found: Mapping[str, Any] = {shape.arguments_key: arguments}
    if shape.name is None:
        found = {shape.name_key: name, **found}
    for key in reversed(() if shape.loose else shape.path):
        found = {key: found}
    return found


def _call(field: Field, markers: tuple[str, ...], name: str, arguments: Mapping[str, Any]) -> str:
    """A call that has its name in what opens the field."""
    shape = field.shape
    assert shape is not None and not isinstance(shape, ObjectCalls)
    raw = RawWriter(markers)
    groups = {shape.name.group: name}
    match shape:
        case ObjectArguments(bare_keys=bare, quote=quote):
            plain = _BareWriter(markers, JSON) if bare else Writer(markers, JSON)
            writer = GemmaWriter(markers, quote) if quote else plain
            return _framed(field, groups, writer.mapping(arguments, MAX_DEPTH + 1 if quote else MAX_DEPTH))
        case TagArguments():
            tail = shape.tail.written({})
            body = "".join(
                f"{shape.head.written({'key': raw.key(key)})}{_value(raw, item, shape.value)}{tail}"
                for key, value in arguments.items()
                for item in (value if shape.merge and isinstance(value, list) and len(value) > 1 else [value])
            )
            return _framed(field, groups, body, closing=True)
        case LineArguments():
            pairs = (f"{key}{shape.separator}{_value(raw, arguments[key], shape.value)}" for key in arguments)
            return _framed(field, groups, shape.line_end.join(pairs))
        case FixedArguments():
            for argument, group in shape.groups.items():
                groups[group] = raw.raw(str(arguments.get(argument, "")))
            return _framed(field, groups, _value(raw, arguments.get(shape.content, ""), shape.value))


def _value(writer: RawWriter, value: Any, how: Value) -> str:
    """A value as raw text."""
    text = isinstance(value, str) and how.parser != "json"
    text = text or (how.text_too and isinstance(value, str) and value.lstrip()[:1] != '"')
    return writer.raw(value) if text else writer.value(value)


def _framed(field: Field, groups: Mapping[str, str], body: str, *, closing: bool = False) -> str:
    """`body` between what opens and closes the field. `closing`: with the tags closed that it opens."""
    assert field.open is not None
    opened = field.open.written(groups)
    closed = "" if field.close is None else field.close.written({})
    assert opened is not None
    assert closed is not None
    tags = [f"</{name}>" for name in reversed(OPENED_TAG.findall(opened))] if closing else []
    return f"{opened}{body}{''.join(tag for tag in tags if tag not in closed)}{closed}"


class _BareWriter(Writer):
    """JSON with keys that have no quotes."""

    def mapping(self, mapping: Mapping[Any, Any], depth: int = MAX_DEPTH) -> str:
        """See `Writer`."""
        self._check(depth)
        items = (
            f"{key if isinstance(key, str) and key and KEY.fullmatch(key) else self.string(key)}:"
            f"{self.value(value, depth - 1)}"
            for key, value in mapping.items()
        )
        return f"{{{','.join(items)}}}"
